"""Every unit that rooflight reads, once: how it is spelled, what it is a multiple of, and its dimension.

One table, read in three ways. `parse_unit` is strict, for what is written for rooflight (hypotheses):
exact spellings, and what could mean two things is refused. `printed_unit` knows what profilers print (`Kbyte`,
`inst/cycle`), whose prefixes are powers of 1,000, also for bytes. `table_unit` takes what people write into tables, in
any case and in words (`GFLOPS`, `million params`); what the quantity is counted in decides what it means.

Base units have the names that `metrics.Unit` has; `rooflight.formatting` writes what this reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import product
from typing import NamedTuple


class Dimension(NamedTuple):
    """Exponents. Samples, tokens, parameters, MACs and ratios are plain counts."""

    flop: int = 0
    byte: int = 0
    second: int = 0

    def times(self, other: Dimension, sign: int = 1) -> Dimension:
        return Dimension(*(mine + sign * its for mine, its in zip(self, other, strict=True)))

    @property
    def name(self) -> str:
        """`FLOP/s`; of a plain number empty."""
        parts = list(zip(("FLOP", "B", "s"), self, strict=True))
        over = "·".join(_power(symbol, power) for symbol, power in parts if power > 0)
        under = "·".join(_power(symbol, -power) for symbol, power in parts if power < 0)
        return f"{over or '1'}/{under}" if under else over


def _power(symbol: str, power: int) -> str:
    return symbol if power == 1 else f"{symbol}^{power}"


PLAIN = Dimension()
FLOP = Dimension(flop=1)
BYTE = Dimension(byte=1)
SECOND = Dimension(second=1)
DIMENSIONS: dict[str, Dimension] = {
    "flop": FLOP, "mac": PLAIN, "byte": BYTE, "second": SECOND, "count": PLAIN, "part": PLAIN, "percent": PLAIN,
    "times": PLAIN, "1/second": Dimension(second=-1), "flop/byte": Dimension(flop=1, byte=-1),
    "flop/second": Dimension(flop=1, second=-1), "byte/second": Dimension(byte=1, second=-1),
}  # fmt: skip
"""By the base unit, as quantities name it."""


@dataclass(frozen=True)
class Unit:
    """One of it is `factor` of its base; its prefix is a `power` of 1,000 or, where it is binary, of 1,024."""

    text: str
    """As it was written; empty for a number without unit."""
    base: str
    """`byte/second`: a unit of `DIMENSIONS`, or what a profiler counts (`inst`, `cycle/second`)."""
    factor: Fraction = Fraction(1)
    power: int = 0
    binary: bool = False

    @property
    def dimension(self) -> Dimension:
        return DIMENSIONS.get(self.base, PLAIN)

    @property
    def rounds(self) -> bool:
        """A number printed with so large a unit has lost its last digits."""
        return self.factor > 1

    def in_base(self, number: Decimal) -> Decimal:
        """So many of it, in the base unit."""
        return number * self.factor.numerator / self.factor.denominator


class UnitError(ValueError):
    """No unit, or one that could be two: the message says which are known, or what to write instead."""


class _Spelling(NamedTuple):
    """Some of the names of one base unit, and the prefixes that they take."""

    base: str
    symbols: tuple[str, ...] = ()
    """As strict texts have it."""
    words: tuple[str, ...] = ()
    """As tables of people have it besides: in small letters, without spaces and hyphens, `/s` and `/b` short."""
    printed: tuple[str, ...] = ()
    """As profilers print it."""
    prefixes: Mapping[str, int] = {}
    factor: Fraction = Fraction(1)


_LARGE = {"k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_SMALL = {"m": -1, "u": -2, "µ": -2, "μ": -2, "n": -3, "p": -4}  # two different letters mu
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_LARGE_WORDS = {"kilo": 1, "thousand": 1, "mega": 2, "million": 2, "giga": 3, "billion": 3, "tera": 4}
_SMALL_WORDS = {"milli": -1, "micro": -2, "nano": -3}
_BILLION = {"b": 3, "bn": 3}
_FLOP = ("flop", "flops", "op", "ops", "operation", "operations", "floatingpointoperation", "floatingpointoperations")
_MAC = (
    "mac", "macs", "madd", "madds", "multadd", "multadds", "multiplyadd", "multiplyadds", "multiplyaccumulate",
    "multiplyaccumulates", "fma", "fmas",
)  # fmt: skip
_COUNTED = (
    "param", "params", "parameter", "parameters", "element", "elements", "elem", "elems", "layer", "layers", "kernel",
    "kernels", "image", "images", "sample", "samples", "weight", "weights", "call", "calls", "inst", "insts",
    "instruction", "instructions",
)  # fmt: skip
_DONE = (
    "", "1", "img", "imgs", "image", "images", "sample", "samples", "token", "tokens", "it", "iteration", "iterations",
    "step", "steps", "batches",
)  # fmt: skip
_PRINTED_COUNTS = (
    "inst", "instruction", "cycle", "warp", "block", "thread", "register", "sector", "request", "SM", "pass", "cluster",
    "wavefront", "quad", "bit", "tag", "texel", "packet", "op", "flop",
)  # fmt: skip
_TABLE = (
    _Spelling("flop", ("FLOP", "FLOPs"), ("", *_FLOP), prefixes=_LARGE),
    _Spelling("flop", words=("",), prefixes=_BILLION),
    _Spelling("mac", ("MAC", "MACs"), ("", *_MAC), prefixes=_LARGE),
    _Spelling("mac", words=("",), prefixes=_BILLION),
    _Spelling("count", ("",), prefixes=_LARGE),
    _Spelling("count", words=("", *_COUNTED), prefixes=_LARGE | _BINARY),
    _Spelling("count", words=("",), prefixes=_BILLION),
    _Spelling("byte", ("B",), ("byte", "bytes"), ("byte", "bytes", "B"), _LARGE | _BINARY),
    _Spelling("second", ("s",), ("sec", "secs", "second", "seconds"), ("second", "seconds", "sec", "s"), _SMALL),
    _Spelling("second", ("min",), ("minute", "minutes"), factor=Fraction(60)),
    _Spelling("second", ("h",), ("hour", "hours"), factor=Fraction(3600)),
    _Spelling("flop/second", ("FLOP/s",), ("flops/s", "flopps", "flopsps", "flop", "flops"), prefixes=_LARGE),
    _Spelling("byte/second", ("B/s",), ("byte/s", "bytes/s", "bps", "byteps", "bytesps"), prefixes=_LARGE | _BINARY),
    _Spelling("flop/byte", ("FLOP/B",), tuple(f"{word}/b" for word in _FLOP), prefixes=_LARGE),
    _Spelling("flop/byte", words=tuple(f"{word}/b" for word in _MAC), factor=Fraction(2)),
    _Spelling("1/second", ("/s", "samples/s", "images/s", "tokens/s")),
    _Spelling("1/second", words=tuple(f"{word}/s" for word in _DONE), prefixes=_LARGE),
    _Spelling("1/second", words=("fps", "ips")),
    _Spelling("1/second", words=("", "tok/s"), prefixes=_LARGE),
    _Spelling("part", ("%",), ("percent",), factor=Fraction(1, 100)),
    _Spelling("times", ("x", "×"), ("times", "fold", "ratio")),
    _Spelling("hz", printed=("hz", "Hz"), prefixes=_LARGE),
    _Spelling("watt", printed=("W", "watt", "watts"), prefixes={"k": 1}),
    *(_Spelling(name, printed=(name, f"{name}s"), prefixes=_LARGE) for name in _PRINTED_COUNTS),
)


def _spelled(spelling: _Spelling, names: tuple[str, ...], prefixes: Mapping[str, int]) -> Iterator[Unit]:
    for name, (prefix, power) in product(names, {"": 0, **prefixes}.items()):
        binary = prefix in _BINARY
        factor = Fraction(1024 if binary else 1000) ** power * spelling.factor
        if name or prefix:
            yield Unit(f"{prefix}{name}", spelling.base, factor, power, binary)


def _strict() -> dict[str, Unit]:
    units = (unit for spelling in _TABLE for unit in _spelled(spelling, spelling.symbols, spelling.prefixes))
    return {unit.text: unit for unit in units}


def _of_profilers() -> dict[str, Unit]:
    """Nsight Compute prints 32,768 bytes as 32.77 Kbyte, and Nsight Systems' MB is 10**6 bytes too."""
    units: dict[str, Unit] = {"": Unit("", ""), "%": Unit("%", "%")}
    for spelling in _TABLE:
        prefixes = {prefix: power for prefix, power in spelling.prefixes.items() if prefix not in _BINARY}
        kilo = {"K": 1} if "k" in prefixes else {}
        for unit in _spelled(spelling, spelling.printed, {**prefixes, **kilo}):
            units.setdefault(unit.text, unit)
    return units


def _of_tables() -> dict[str, dict[str, Unit]]:
    """By base unit, then by what is written, in small letters."""
    units: dict[str, dict[str, Unit]] = {base: {} for base in DIMENSIONS}
    for spelling in _TABLE:
        spelled = _LARGE_WORDS if "k" in spelling.prefixes else _SMALL_WORDS if "m" in spelling.prefixes else {}
        prefixes, names = {**spelling.prefixes, **spelled}, (*spelling.symbols, *spelling.words)
        for unit in _spelled(spelling, names, prefixes):
            units.setdefault(spelling.base, {}).setdefault(unit.text.lower(), unit)
    return units


UNITS = _strict()
"""What strict texts may have, by its spelling."""
_PRINTED = _of_profilers()
_WRITTEN = _of_tables()
UNCLEAR = {
    "KB": "kB (1,000 bytes) or KiB (1,024)", "KB/s": "kB/s or KiB/s", "K": "k (1,000)", "kb": "kB: bits are not known",
    "Kb": "kB: bits are not known", "Mb": "MB: bits are not known", "Gb": "GB: bits are not known",
    "mb": "MB", "gb": "GB", "b": "B", "S": "s", "sec": "s", "seconds": "s", "msec": "ms", "MS": "ms",
    **{f"{prefix}FLOPS": f"{prefix}FLOP for work or {prefix}FLOP/s for speed" for prefix in ("", *_LARGE)},
    **{f"{prefix}flops": f"{prefix}FLOP for work or {prefix}FLOP/s for speed" for prefix in _LARGE},
}  # fmt: skip
"""Spellings that mean two things, or nothing, and what to write instead."""
KNOWN = (
    "FLOP, FLOP/s, FLOP/B, B, B/s (with k, M, G, T, B also with Ki, Mi, Gi, Ti), MAC, s, ms, us, ns, min, h, /s, "
    "samples/s, %, x"
)


def parse_unit(text: str) -> Unit:
    """A unit in its exact spelling; raises `UnitError`."""
    if (unit := UNITS.get(text)) is not None:
        return unit
    if text in UNCLEAR:
        raise UnitError(f"the unit {text!r} is not clear: write {UNCLEAR[text]}")
    shown = text if len(text) <= 30 else f"{text[:29]}…"
    raise UnitError(f"unknown unit {shown!r}: one of {KNOWN}")


def printed_unit(text: str) -> Unit | None:
    """A unit as profilers print it; `None` for one that is not known. Percent stay percent."""
    text = text.strip()
    above, slash, below = text.partition("/")
    if not slash:
        return _PRINTED.get(text)
    over, under = _PRINTED.get(above) if above else Unit("", "1"), _PRINTED.get(below) if below else None
    if over is None or under is None:
        return None
    return Unit(text, f"{over.base}/{under.base}", over.factor / under.factor)


_ALSO = {"flop": ("mac",), "mac": ("flop",), "times": ("part",)}
"""What a quantity may be written in besides its own unit: work in the other count of it, a ratio in percent."""
_COUNTERS = ("second", "byte", "count", "flop", "mac")
"""What a profiler's counter may count; which of them its own name tells."""
EXAMPLES = {
    "flop": "FLOP, GFLOP or GMAC", "mac": "MAC or GMAC", "byte": "B, KB, KiB, MB or MiB", "second": "s, ms or us",
    "count": "nothing, K or M", "flop/second": "GFLOP/s", "byte/second": "GB/s", "flop/byte": "FLOP/byte",
    "1/second": "images/s or tokens/s", "part": "%", "times": "x, or nothing", "counter": "what the profiler prints",
    "shape": "nothing", "word": "nothing",
}  # fmt: skip
"""Units of a table, for whoever wrote another."""


def table_unit(text: str, base: str) -> Unit | None:
    """What people mean by a unit, for a quantity counted in `base` (or `counter`); `None` for one it cannot have."""
    text = " ".join(text.replace("·", "/").split())
    if not text:
        return Unit("", base)
    short = re.sub(r"\s*(?:/|\bper\b(?! cent))\s*", "/", text.lower())
    short = re.sub(r"/sec(?:ond)?$", "/s", re.sub(r"/bytes?$", "/b", re.sub(r"[\s-]", "", short)))
    bases = _COUNTERS if base == "counter" else (base, *_ALSO.get(base, ()))
    for candidate in bases:
        if (unit := _WRITTEN.get(candidate, {}).get(short)) is not None:
            return Unit(text, unit.base, unit.factor, unit.power, unit.binary)
    return None
