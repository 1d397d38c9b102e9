"""The names under which a ledger keeps what its processor does at best, and who asks for them.

`measurement/collectors/cpu_rates.py` times them beside the step, in the same process, with the same threads. A name
ends in `.1` where one thread did the work, else all threads of the step did.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from rooflight.ledger import Op, Value

PEAK, CORES, CLOCK, THREADS, SPEED = "peak", "cores", "clock_hz", "threads", "speed"
"""FLOP/s of all cores by the processor's description (`peak.fp32`), its cores and clock; threads of the step; the part
of the peak that some instructions reach (`speed.avx2`)."""
PRODUCT, COPY, CALL, ELEMENT, FAULT = "product", "copy", "call", "element", "page_fault"
"""FLOP/s of matrix products (`product.fp32`); bytes/s of copies by the bytes they touch (`copy.262144`); seconds of a
call that has nothing to do (`call.aten::relu`), of an element beyond it (`element.aten::exp.1`), of a page fault."""
BATCHED, CONVOLUTION, IN_PLACE = "batched-product", "convolution", "in-place"
"""FLOP/s of several products in one call, and of a convolution by oneDNN; bytes/s, read and written, of an op in place,
which brings in no second tensor."""
BEHIND = (0, 2**22, 2**26)
"""Bytes that were gone through before a call: they take the place of its code and data in the caches."""
ONE = ".1"
TRAINING = " in training"
"""Behind the name of an op that goes over its input once more when it trains."""


def name_of(op: Op) -> str:
    """Under which an op was timed."""
    trains = op.packet == "aten::native_batch_norm" and op.args.get("training") is True
    return op.packet + (TRAINING if trains else "")


def call_name(name: str, behind: int) -> str:
    """Of a call behind so many bytes."""
    return f"{CALL}-behind-{behind}.{name}" if behind else f"{CALL}.{name}"


@dataclass(frozen=True)
class CpuRates:
    """What a processor does at best."""

    values: Mapping[str, Value]

    def of(self, name: str, *, one: bool = False) -> float | None:
        """By name; `one`: of one thread, never more than that of all."""
        value = self.values.get(name + ONE if one else name)
        return None if value is None else float(value.value)

    @cached_property
    def threads(self) -> int:
        return int(self.of(THREADS) or 1)

    @cached_property
    def cores(self) -> float:
        return max(self.of(CORES) or self.threads, self.threads)

    def product(self, precision: str, *, one: bool = False, kind: str = PRODUCT) -> float | None:
        """FLOP/s that products of a precision reach: of all threads no less than of one."""
        alone = self.of(f"{kind}.{precision}", one=True)
        if one or self.threads == 1:
            return alone
        together = self.of(f"{kind}.{precision}")
        return max(filter(None, (alone, together)), default=None)

    def roof(self, precision: str) -> float | None:
        """FLOP/s of all cores: by description, or by what one core was seen to do where that is more. A virtual machine
        tells a clock that its cores may run above."""
        described, alone = self.of(f"{PEAK}.{precision}"), self.product(precision, one=True)
        seen = None if alone is None else alone * self.cores
        one, together = (self.product(precision, one=one, kind=CONVOLUTION) for one in (True, False))
        of_convolutions = None if one is None else one * self.cores
        rates = (described, seen, self.product(precision), of_convolutions, together)
        return max(filter(None, rates), default=None)

    def bandwidth(self, touched: float, *, one: bool = False, in_place: bool = False) -> float | None:
        """Bytes/s where so many bytes are read and written."""
        kind = IN_PLACE if in_place and self._curves[IN_PLACE][True] else COPY
        return _between(self._curves[kind][one or self.threads == 1], touched)

    @cached_property
    def _curves(self) -> dict[str, dict[bool, list[tuple[int, float]]]]:
        """By kind and whether one thread did it: bytes and bytes/s, the smallest first. All threads are no slower than
        one."""
        curves = {}
        for kind in (COPY, IN_PLACE):
            alone: dict[int, float] = {}
            together: dict[int, float] = {}
            for name, value in self.values.items():
                start, _, size = name.partition(".")
                if start == kind:
                    (alone if size.endswith(ONE) else together)[int(size.removesuffix(ONE))] = float(value.value)
            both = {size: max(together.get(size, 0.0), alone.get(size, 0.0)) for size in {*alone, *together}}
            curves[kind] = {True: sorted(alone.items()), False: sorted(both.items())}
        return curves

    def call_s(self, name: str, behind: float = 0) -> float | None:
        """Seconds of a call of that name that has nothing to do; in place as else; of another name, what all that
        were timed take at least. `behind`: bytes that were gone through since the last of that name."""
        if call_name(name, 0) not in self.values:
            name = name.removesuffix("_")
        known = [(max(size, BEHIND[1] >> 4), self.of(call_name(name, size))) for size in BEHIND]
        timed = [(size, seconds) for size, seconds in known if seconds]
        return _between(timed or self._least_calls_s, behind)

    def any_call_s(self, behind: float) -> float:
        """How much longer the code takes that every call runs, behind so many bytes: what the call that is least
        concerned takes longer."""
        below = max((step for step in self._longer_s if step[0] <= behind), default=(0, 0.0))
        above = min((step for step in self._longer_s if step[0] > behind), default=below)
        if not below[0] or above[0] <= below[0]:
            return below[1]
        part = math.log(behind / below[0]) / math.log(above[0] / below[0])
        return below[1] + part * (above[1] - below[1])

    @cached_property
    def _longer_s(self) -> list[tuple[int, float]]:
        """By bytes: what the call that is least concerned takes longer."""
        names = [name.partition(".")[2] for name in self.values if name.startswith(call_name("", 0))]
        longer = []
        for size in BEHIND:
            each = [(self.call_s(name, size) or 0.0) - (self.call_s(name) or 0.0) for name in names]
            longer.append((max(size, BEHIND[1] >> 4), max(min(each, default=0.0), 0.0)))
        return longer

    @cached_property
    def _least_calls_s(self) -> list[tuple[int, float]]:
        least = []
        for size in BEHIND:
            start = call_name("", size)
            times = [float(value.value) for name, value in self.values.items() if name.startswith(start)]
            least += [(max(size, BEHIND[1] >> 4), min(times))] if times else []
        return least


def _between(points: Sequence[tuple[int, float]], size: float) -> float | None:
    """Between two sizes that were timed, by the logarithm; the last known beyond them."""
    below = [point for point in points if point[0] <= size]
    above = [point for point in points if point[0] > size]
    if not below or not above:
        return (below[-1] if below else above[0])[1] if points else None
    (small, low), (large, high) = below[-1], above[0]
    part = math.log(size / small) / math.log(large / small)
    return math.exp(math.log(low) + part * math.log(high / low))
