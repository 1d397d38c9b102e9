"""How cells of tables are written that are more than a number: figures of mixed units, kernel names that fit a line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from rooflight.reporting.kernel_names import short_name
from rooflight.reporting.table import Label


def figure(value: float | None, write: Callable[[Any], str]) -> Label:
    """A cell of a table whose lines have different units."""
    return Label(value, write(value))


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
