"""Units as people write them in tables, with what one of them is in the base unit.

Unlike a profiler's, they are not all of one kind: MB beside MiB, GFLOPS for a count or for a rate. What a quantity is
counted in decides which is meant.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

Dimension = Literal[
    "flop", "mac", "byte", "second", "count", "flop/s", "byte/s", "flop/byte", "rate", "fraction", "ratio",
    "counter", "shape", "word",
]  # fmt: skip


@dataclass(frozen=True)
class Unit:
    """`factor` of the base unit; `power` of 1,000 or, where it is binary, of 1,024."""

    dimension: Dimension
    factor: Fraction
    text: str = ""
    power: int = 0
    binary: bool = False


_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}
_SECONDS = {"": 0, "m": -1, "u": -2, "µ": -2, "μ": -2, "n": -3}  # two different letters mu
_FLOP = r"(?:fl)?ops?|floating[- ]point operations?|operations?"
_MAC = r"macs?|madds?|mult-?adds?|multiply-adds?|multiply-accumulates?|fmas?"
_BYTE = r"b|bytes?"
_COUNT = r"|params?|parameters?|elements?|elems?|layers?|kernels?|images?|samples?|weights?|calls?|inst(?:ruction)?s?"
_RATES = r"(?:|1|imgs?|images?|samples?|tokens?|it|iterations?|steps?|batches)"
_PREFIX = r"(?P<prefix>[kmgtpe]?)(?P<binary>i?)"
_SPELLED = {"kilo": "k", "mega": "m", "giga": "g", "tera": "t", "thousand": "k", "million": "m", "billion": "g"}


def _prefixed(base: str, text: str, dimension: Dimension, *, after: str = "") -> Unit | None:
    found = re.fullmatch(rf"{_PREFIX}\s*(?:{base}){after}", text, re.IGNORECASE)
    if found is None:
        return None
    power, binary = _POWERS[found["prefix"].lower()], bool(found["binary"])
    if binary and (not power or dimension not in ("byte", "byte/s", "count")):
        return None
    return Unit(dimension, Fraction(1024 if binary else 1000) ** power, text, power, binary)


def unit_of(text: str, dimension: Dimension) -> Unit | None:
    """What a unit means for a quantity that is counted in `dimension`; `None` for one that it cannot have."""
    text = " ".join(text.replace("·", "/").split())
    for word, letter in _SPELLED.items():
        text = re.sub(rf"^{word}[\s-]*", letter, text, flags=re.IGNORECASE)
    if not text:
        return Unit(dimension, Fraction(1))
    return _READERS[dimension](text) if dimension in _READERS else None


def _flop(text: str) -> Unit | None:
    if (macs := _prefixed(_MAC, text, "mac")) is not None:
        return macs
    return _prefixed(rf"{_FLOP}|", text, "flop") or _billion(text, "flop")


def _mac(text: str) -> Unit | None:
    return _prefixed(rf"{_MAC}|", text, "mac") or _prefixed(_FLOP, text, "flop") or _billion(text, "mac")


def _count(text: str) -> Unit | None:
    return _prefixed(_COUNT, text, "count") or _billion(text, "count")


def _billion(text: str, dimension: Dimension) -> Unit | None:
    """`1.8B` parameters."""
    return Unit(dimension, Fraction(10**9), text, 3) if text in ("B", "b", "bn") else None


def _seconds(text: str) -> Unit | None:
    found = re.fullmatch(r"([munµμ]?)(?:s|secs?|seconds?)|(min|minutes?)|(h|hours?)", text, re.IGNORECASE)
    if found is None:
        return None
    if found[2] or found[3]:
        return Unit("second", Fraction(60 if found[2] else 3600), text)
    power = _SECONDS[found[1].lower()]
    return Unit("second", Fraction(1000) ** power, text, power)


def _flops_per_s(text: str) -> Unit | None:
    """`GFLOPS` with a capital S, or written out."""
    return _prefixed(r"flops?", text, "flop/s", after=r"(?:\s*/\s*s(?:ec|econd)?|\s*ps|)")


def _bytes_per_s(text: str) -> Unit | None:
    return _prefixed(_BYTE, text, "byte/s", after=r"(?:\s*/\s*s(?:ec|econd)?|\s*ps)")


def _intensity(text: str) -> Unit | None:
    found = re.fullmatch(rf"(?:{_FLOP}|(?P<mac>{_MAC}))\s*(?:/|per)\s*(?:b|bytes?)", text, re.IGNORECASE)
    if found is None:
        return None
    return Unit("flop/byte", Fraction(2 if found["mac"] else 1), text)


def _rate(text: str) -> Unit | None:
    found = re.fullmatch(rf"(?P<prefix>k?)\s*{_RATES}\s*/\s*s(?:ec|econd)?|(?P<fps>fps|ips)", text, re.IGNORECASE)
    return None if found is None else Unit("rate", Fraction(1000 if found["prefix"] else 1), text)


def _fraction(text: str) -> Unit | None:
    return Unit("fraction", Fraction(1, 100), text) if re.fullmatch(r"%|percent|per cent", text.lower()) else None


def _ratio(text: str) -> Unit | None:
    if re.fullmatch(r"x|×|times|fold|ratio", text.lower()):
        return Unit("ratio", Fraction(1), text)
    percent = _fraction(text)
    return None if percent is None else Unit("ratio", percent.factor, text)


def _counter(text: str) -> Unit | None:
    """A counter counts instructions, bytes or nanoseconds; which of them its own name tells."""
    for read in (_seconds, lambda one: _prefixed(_BYTE, one, "counter"), _count, _flop):
        if (found := read(text)) is not None:
            return Unit("counter", found.factor, text, found.power, found.binary)
    return None


_READERS = {
    "flop": _flop,
    "mac": _mac,
    "byte": lambda text: _prefixed(_BYTE, text, "byte"),
    "second": _seconds,
    "count": _count,
    "flop/s": _flops_per_s,
    "byte/s": _bytes_per_s,
    "flop/byte": _intensity,
    "rate": _rate,
    "fraction": _fraction,
    "ratio": _ratio,
    "counter": _counter,
}
EXAMPLES = {
    "flop": "FLOP, GFLOP or GMAC", "mac": "MAC or GMAC", "byte": "B, KB, KiB, MB or MiB", "second": "s, ms or us",
    "count": "nothing, K or M", "flop/s": "GFLOP/s", "byte/s": "GB/s", "flop/byte": "FLOP/byte", "rate": "images/s",
    "fraction": "%", "ratio": "x, or nothing", "counter": "what the profiler prints", "shape": "nothing",
    "word": "nothing",
}  # fmt: skip
