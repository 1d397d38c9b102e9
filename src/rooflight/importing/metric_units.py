"""Units as profilers print them, and what one of them is in the base unit: `Mbyte` is 10**6 byte, `us` 10**-6 second.

Nsight Compute's prefixes are powers of 1,000, also for bytes: it prints 32,768 bytes as 32.77 Kbyte. Nsight Systems'
`MB` is 10**6 bytes too.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache

_LARGE = {"": 0, "K": 3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_SMALL = {"": 0, "m": -3, "u": -6, "µ": -6, "μ": -6, "n": -9, "p": -12}  # two different letters mu
_SECONDS = ("second", "seconds", "sec", "s")
_BYTES = ("byte", "bytes", "B")
_HERTZ = ("hz", "Hz")
_COUNTED = (
    "inst", "instruction", "cycle", "warp", "block", "thread", "register", "sector", "request", "SM", "pass", "cluster",
    "wavefront", "quad", "bit", "tag", "texel", "packet", "op", "ops", "flop",
)  # fmt: skip


@dataclass(frozen=True)
class Unit:
    """What it is called without its prefix, and how many of those it is."""

    base: str
    factor: Decimal

    @property
    def rounds(self) -> bool:
        """A number printed with so large a unit has lost its last digits."""
        return self.factor > 1


@lru_cache(maxsize=1024)
def unit(text: str) -> Unit | None:
    """What a unit means; `None` for one that is not known. Percent stay percent."""
    text = text.strip()
    if text in ("", "%"):
        return Unit(text, Decimal(1))
    above, slash, below = text.partition("/")
    if not slash:
        return _simple(text)
    if below == "s":
        below = "second"
    upper, lower = (_simple(above) if above else Unit("1", Decimal(1))), _simple(below)
    if upper is None or lower is None:
        return None
    return Unit(f"{upper.base}/{lower.base}", upper.factor / lower.factor)


def _simple(text: str) -> Unit | None:
    for names, base, prefixes in (
        (_SECONDS, "second", _SMALL),
        (_BYTES, "byte", _LARGE),
        (_HERTZ, "hz", _LARGE),
    ):
        for name in names:
            if text.endswith(name) and text[: -len(name)] in prefixes:
                return Unit(base, Decimal(1).scaleb(prefixes[text[: -len(name)]]))
    for name in _COUNTED:
        if text in (name, f"{name}s"):
            return Unit(name, Decimal(1))
        prefix = text.removesuffix(name)
        if prefix != text and prefix in _LARGE:
            return Unit(name, Decimal(1).scaleb(_LARGE[prefix]))
    return None
