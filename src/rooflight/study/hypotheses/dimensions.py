"""What a number of a claim is a number of: dimensions, and the units that a literal may have."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple


class Dimension(NamedTuple):
    """Exponents. Samples, tokens, parameters and MACs are plain counts."""

    flop: int = 0
    byte: int = 0
    second: int = 0

    def times(self, other: Dimension, sign: int = 1) -> Dimension:
        return Dimension(*(mine + sign * its for mine, its in zip(self, other, strict=True)))

    @property
    def name(self) -> str:
        """`FLOP/s`; of a plain number empty."""
        parts = list(zip(("FLOP", "B", "s"), self, strict=True))
        over = "·".join(_power(unit, power) for unit, power in parts if power > 0)
        under = "·".join(_power(unit, -power) for unit, power in parts if power < 0)
        return f"{over or '1'}/{under}" if under else over


def _power(unit: str, power: int) -> str:
    return unit if power == 1 else f"{unit}^{power}"


PLAIN = Dimension()
FLOP = Dimension(flop=1)
BYTE = Dimension(byte=1)
SECOND = Dimension(second=1)
OF_UNITS: dict[str, Dimension] = {
    "flop": FLOP, "byte": BYTE, "second": SECOND, "count": PLAIN, "part": PLAIN, "percent": PLAIN, "times": PLAIN,
    "1/second": Dimension(second=-1), "flop/byte": Dimension(flop=1, byte=-1),
}  # fmt: skip
"""By the unit that a quantity of a study has."""

_SI = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_IEC = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_PER_SECOND = Dimension(second=-1)


def _units() -> dict[str, tuple[Fraction, Dimension]]:
    found: dict[str, tuple[Fraction, Dimension]] = {
        "%": (Fraction(1, 100), PLAIN), "/s": (Fraction(1), _PER_SECOND), "min": (Fraction(60), SECOND),
        "h": (Fraction(3600), SECOND),
    }  # fmt: skip
    found |= {prefix: (Fraction(size), PLAIN) for prefix, size in _SI.items()}
    for prefix, part in {"": 1, "m": 10**3, "u": 10**6, "µ": 10**6, "μ": 10**6, "n": 10**9}.items():
        found[f"{prefix}s"] = (Fraction(1, part), SECOND)
    for prefix, size in {"": 1, **_SI}.items():
        for word, dimension in (("FLOP", FLOP), ("FLOPs", FLOP), ("FLOP/s", FLOP.times(SECOND, -1)),
                                ("FLOP/B", FLOP.times(BYTE, -1)), ("MAC", PLAIN), ("MACs", PLAIN)):  # fmt: skip
            found[f"{prefix}{word}"] = (Fraction(size), dimension)
    for prefix, size in {"": 1, **_SI, **_IEC}.items():
        found[f"{prefix}B"] = (Fraction(size), BYTE)
        found[f"{prefix}B/s"] = (Fraction(size), BYTE.times(SECOND, -1))
    for word in ("samples/s", "images/s", "tokens/s"):
        found[word] = (Fraction(1), _PER_SECOND)
    return found


UNITS = _units()
CONFUSED = {
    "KB": "kB (1,000 bytes) or KiB (1,024)", "KB/s": "kB/s or KiB/s", "K": "k (1,000)", "kb": "kB: bits are not known",
    "Kb": "kB: bits are not known", "Mb": "MB: bits are not known", "Gb": "GB: bits are not known",
    "mb": "MB", "gb": "GB", "b": "B", "S": "s", "sec": "s", "seconds": "s", "msec": "ms", "MS": "ms",
    **{f"{prefix}FLOPS": f"{prefix}FLOP for work or {prefix}FLOP/s for speed" for prefix in ("", *_SI)},
    **{f"{prefix}flops": f"{prefix}FLOP for work or {prefix}FLOP/s for speed" for prefix in _SI},
}  # fmt: skip
"""Spellings that mean two things, or nothing, and what to write instead."""


def comparable(left: Dimension, right: Dimension) -> bool:
    """Whether two may stand on the two sides of a comparison or a sum. FLOPs are a count: `flops = 2 * macs`."""
    return left == right or {left, right} == {FLOP, PLAIN}
