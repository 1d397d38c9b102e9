"""How measured figures are written: times, rates, signed differences, and kernel names that fit a line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from rooflight import units
from rooflight.reporting.kernel_names import short_name
from rooflight.reporting.table import Label

_STEPS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def seconds(value: float | None) -> str:
    """`22.9 ms`: three digits."""
    if value is None:
        return "–"
    if value == 0:
        return "0 s"
    size, unit = next(((size, unit) for size, unit in _STEPS if abs(value) >= size * 0.9995), _STEPS[-1])
    scaled = value / size
    magnitude = abs(scaled)
    digits = 2 if magnitude < 9.995 else 1 if magnitude < 99.95 else 0
    return f"{scaled:,.{digits}f} {unit}"


def per_second(value: float | None) -> str:
    """A count by the second: `1.29 k`, and what is under ten thousand with its digits."""
    if value is None:
        return "–"
    return units.count(value) if abs(value) >= 10_000 else f"{value:,.3g}" if abs(value) < 100 else f"{value:,.0f}"


def tera(value: float | None) -> str:
    """FLOP/s as TFLOP/s, without the unit."""
    return "–" if value is None else _short(value / 1e12)


def peak_tera(value: float) -> str:
    """A peak as its data sheet gives it: `494.5 TFLOP/s`."""
    return f"{value / 1e12:,g} TFLOP/s"


def giga(value: float | None) -> str:
    """B/s as GB/s, without the unit."""
    return "–" if value is None else _short(value / 1e9)


def _short(value: float) -> str:
    if value == 0:
        return "0"
    if abs(value) < 0.01:
        return "<0.01"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}" if abs(value) < 100 else f"{value:,.0f}"


def whole_bytes(value: float | None) -> str:
    return units.bytes_(None if value is None else round(value))


def whole_count(value: float | None) -> str:
    return units.count(round(value) if isinstance(value, float) and value.is_integer() else value)


def quotient(value: float | None) -> str:
    """A ratio with three digits: `1.00`, `12.3`, `1,234`."""
    if value is None:
        return "–"
    magnitude = abs(value)
    if 0 < magnitude < 0.01:
        return f"{value:.2g}"
    return f"{value:,.{2 if magnitude < 9.995 else 1 if magnitude < 99.95 else 0}f}"


def share(value: float | None) -> str:
    """A part of a whole; one that takes away from it has a minus."""
    return units.percent(value) if value is None or value >= 0 else f"-{units.percent(-value)}"


def signed_percent(value: float | None) -> str:
    """A relative difference: exactly equal is `0`, and what is not never reads so."""
    if value is None:
        return "–"
    if value == 0:
        return "0"
    return f"{value:+.2%}" if abs(value) >= 0.0001 else f"{value:+.0e}"


def figure(value: float | None, write: Callable[[Any], str]) -> Label:
    """A cell of a table whose lines have different units."""
    return Label("" if value is None else repr(value), write(value))


_GENERIC = re.compile(
    r"^(?:void )?(?:\w+::|\(anonymous namespace\)::)*(\w*(?:elementwise|reduce|tensor_apply)_kernel)<"
)
_WORK = re.compile(r"\b(\w*[Ff]unctor\w*|\w+_kernel_cuda|\w+_kernel_impl|\w+Ops|launch_\w+)\b")
_WRAPPERS = ("BinaryFunctor", "UnaryFunctor", "AUnaryFunctor", "BUnaryFunctor")
_TELLING = re.compile(r"ImplicitGemm[A-Za-z]*Convolution|Conv[23]d(?:Wgrad|Dgrad|Fprop)|ReduceSplitK|GemmUniversal")
_SHAPE = re.compile(r"GemmShapeILi(\d+)ELi(\d+)ELi(\d+)E")


def kernel_name(name: str, width: int = 48) -> Label:
    """A kernel's name for a line of a table; one of torch's generic kernels is named by the work it was made for."""
    if (generic := _GENERIC.match(name)) is not None:
        work = next((word for word in _WORK.findall(name[generic.end() :]) if word not in _WRAPPERS), None)
        if work is not None:
            return Label(name, cut(f"{work} in {generic[1]}", width))
    if name.startswith("_ZN") and (words := dict.fromkeys(_TELLING.findall(name))):
        # The profiler left it mangled: its telling words are still there.
        shape = _SHAPE.search(name)
        return Label(name, cut(" ".join([*words, "x".join(shape.groups()) if shape else ""]).strip(), width))
    return Label(name, short_name(name.removeprefix("void "), width))


def cut(text: str, width: int) -> str:
    """The beginning of a name that is too long for its place."""
    return text if len(text) <= width else f"{text[: width - 1]}…"
