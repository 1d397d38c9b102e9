"""What is known of a region. Every execution of it adds a piece; `missing` says which pieces are not there yet.

Nothing is measured here: `scheduler` decides what an execution is used for and hands in what came out of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median, median_low
from typing import TYPE_CHECKING, Literal

from rooflight import formatting
from rooflight.ledger import Measurement, Value
from rooflight.measurement.regions.execution_times import ExecutionTimes, PartTimes

if TYPE_CHECKING:
    from rooflight.measurement.regions.counters import CounterPlan

Purpose = Literal["first", "plain", "counters", "span"]
"""`span`: inside a region that is measured on a GPU, two events are recorded and nothing else is done."""
PLAIN_EXECUTIONS = 11
"""So many executions are looked at closely. On a GPU a region then only counts; on a CPU the clock is still read."""
COUNTED = "FLOPs and DRAM bytes"


@dataclass(frozen=True)
class PlainExecution:
    """What one execution without counters told. `None`: nobody keeps count of it, or it was not asked."""

    wall_time_s: float
    gpu_span_s: float | None
    growth_bytes: int | None
    peak_bytes: int | None
    on_gpu: bool


@dataclass
class RegionState:
    """What the executions of a region have brought so far. Only `scheduler` writes here, one thread at a time."""

    executions: int = 0
    failures: int = 0
    first: PlainExecution | None = None
    """The first execution: it includes what is made only once, so it counts only where there is no other."""
    warm_on_gpu: bool = False
    """It has been executed once with CUDA running."""
    plain: list[PlainExecution] = field(default_factory=list)
    """The first `PLAIN_EXECUTIONS` of those without counters."""
    times: ExecutionTimes = field(default_factory=ExecutionTimes)
    """Of every timed execution but the first."""
    parts: PartTimes = field(default_factory=PartTimes)
    """Of the same executions: what of their time was spent in regions inside."""
    first_parts: PartTimes = field(default_factory=PartTimes)
    plan: CounterPlan | None = None
    no_counters: str | None = None
    """Why there will be no counters."""
    remarks: dict[str, None] = field(default_factory=dict)
    """What else the reader should know, each once."""
    waiting: set[Region] = field(default_factory=set)
    """Regions that could not be measured because this one was."""
    done: bool = False
    """Nothing more will be measured."""

    def forget_times(self) -> None:
        self.first, self.plain, self.times = None, [], ExecutionTimes()
        self.parts, self.first_parts = PartTimes(), PartTimes()


class Region:
    """A piece of somebody's program under a name, and what its executions told. Values are those of one execution.

    Read it inside or after the `with` block, at any time: what is not known yet is `None`, and `missing` says why.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.pieces = RegionState()
        """How it stands; for `scheduler` alone."""

    @property
    def executions(self) -> int:
        """How often it ran to its end, with `when` true."""
        return self.pieces.executions

    @property
    def failures(self) -> int:
        """How often an exception left it; nothing is kept of those."""
        return self.pieces.failures

    @property
    def flops(self) -> int | float | None:
        """Executed FLOPs, an FMA as 2: all units together. `None` until all of them are counted.

        fp16 work of the CUDA cores is part of it only where 16-bit work is sure: see `rooflight.measurement.regions`.
        """
        return self._value("executed_flops")

    @property
    def bytes_read(self) -> int | float | None:
        """From DRAM."""
        return self._value("dram_bytes_read")

    @property
    def bytes_written(self) -> int | float | None:
        """To DRAM."""
        return self._value("dram_bytes_written")

    @property
    def intensity(self) -> float | None:
        """Executed FLOPs for every byte of DRAM traffic."""
        flops, read, written = self.flops, self.bytes_read, self.bytes_written
        if flops is None or read is None or written is None or not read + written:
            return None
        return flops / (read + written)

    @property
    def time_s(self) -> float | None:
        """By the host's clock, the GPU waited for before and after: the median of the executions without counters."""
        return self._value("wall_time_s")

    @property
    def gpu_span_s(self) -> float | None:
        """From the first to the last of its work on the GPU's current stream, gaps included; `None` on a CPU."""
        return self._value("gpu_span_s")

    @property
    def gpu_time_s(self) -> float | None:
        """The same as `gpu_span_s`, by the name it had before."""
        return self.gpu_span_s

    @property
    def shares(self) -> dict[str, float]:
        """Which part of its time was spent in each region directly inside it, by name; empty where none is."""
        pieces = self.pieces
        return (pieces.parts if pieces.parts.time_s else pieces.first_parts).shares

    @property
    def growth_bytes(self) -> int | float | None:
        """Memory after minus before: torch's allocator on a GPU, resident memory of the process on a CPU."""
        return self._value("growth_bytes")

    @property
    def peak_bytes(self) -> int | float | None:
        """Most bytes in tensors at one time while it ran; on a CPU, the most the process has had so far."""
        allocated = self._value("peak_allocated_bytes")
        return allocated if allocated is not None else self._value("peak_resident_bytes")

    def _value(self, name: str) -> int | float | None:
        value = self.quantities.get(name)
        return None if value is None else value.value

    @property
    def quantities(self) -> dict[str, Value]:
        """All that is known, under the ledger's names, with origins and the spread over executions."""
        pieces = self.pieces
        quantities: dict[str, Value] = {}
        if pieces.executions:
            quantities["executions"] = Value(pieces.executions, "rooflight.region")
        quantities.update(_plain_quantities(pieces))
        if pieces.plan is not None:
            quantities.update(pieces.plan.quantities())
        return quantities

    @property
    def missing(self) -> tuple[str, ...]:
        """What is still missing, and how many more executions or what else would bring it."""
        pieces = self.pieces
        if not pieces.executions:
            failed = f"to its end: an exception left it {_times(pieces.failures)}" if pieces.failures else ""
            why = tuple(pieces.remarks) or (f"it was never executed {failed or '(or `when` was never true)'}",)
            return tuple(f"everything: {line}" for line in why)
        lines = []
        if not pieces.plain and pieces.first is None:
            lines.append("time and memory: 1 more execution")
        elif not pieces.plain:
            lines.append("a time without what the first execution sets up: 1 more execution")
        if (counters := self._missing_counters()) is not None:
            lines.append(counters)
        return (*lines, *pieces.remarks)

    def _missing_counters(self) -> str | None:
        pieces = self.pieces
        if pieces.no_counters is not None:
            return f"{COUNTED}: {pieces.no_counters}"
        if not pieces.warm_on_gpu:
            return f"{COUNTED}: no GPU is in use"
        if pieces.plan is None:
            return f"{COUNTED}: at least 2 more executions"
        return pieces.plan.missing

    @property
    def complete(self) -> bool:
        """Whether further executions would bring nothing that is not there yet, except a better median."""
        pieces = self.pieces
        if not pieces.plain:
            return False
        counted = pieces.plan is not None and pieces.plan.complete
        return counted or pieces.no_counters is not None or not pieces.warm_on_gpu

    @property
    def measurement(self) -> Measurement:
        """Its row in a ledger."""
        pieces = self.pieces
        first = (pieces.first.wall_time_s,) if pieces.first is not None else ()
        return Measurement(
            scope="region",
            name=self.name,
            quantities=self.quantities,
            parts=self.shares,
            times_s=(*first, *pieces.times.course()),
        )

    def __repr__(self) -> str:
        parts = [f"{self.executions:,} execution{'' if self.executions == 1 else 's'}"]
        if self.failures:
            parts.append(f"{self.failures:,} failed")
        if self.time_s is not None:
            parts.append(f"{self.time_s * 1e3:,.3g} ms" if self.time_s < 1 else f"{self.time_s:,.3f} s")
        if self.flops is not None:
            parts.append(f"{formatting.count(self.flops)}FLOP")
        if self.bytes_read is not None and self.bytes_written is not None:
            read, written = (formatting.bytes_(round(count)) for count in (self.bytes_read, self.bytes_written))
            parts.append(f"DRAM {read} read, {written} written")
        if self.growth_bytes is not None:
            sign = "+" if self.growth_bytes >= 0 else "−"
            parts.append(f"memory {sign}{formatting.bytes_(round(abs(self.growth_bytes)))}")
        lacks = f"; missing {'; '.join(self.missing)}" if self.missing else ""
        return f"<region {self.name!r}: {', '.join(parts)}{lacks}>"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _plain_quantities(pieces: RegionState) -> dict[str, Value]:
    rows = tuple(pieces.plain) or ((pieces.first,) if pieces.first is not None else ())
    if not rows:
        return {}
    on_gpu = rows[-1].on_gpu
    which = "the first execution, what it sets up included" if not pieces.plain else f"median of {len(rows)} executions"
    clock = "host clock, synchronised before and after" if on_gpu else "host clock"
    memory = "torch's allocator" if on_gpu else "resident memory of the process"
    peak = "peak_allocated_bytes" if on_gpu else "peak_resident_bytes"
    quantities = {
        "timed_executions": Value(pieces.times.count or 1, "rooflight.region"),
        "wall_time_s": pieces.times.value(clock) or Value(rows[0].wall_time_s, f"{clock}: {which}"),
        "gpu_span_s": _middle([row.gpu_span_s for row in rows], f"CUDA events: {which}"),
        "growth_bytes": _middle([row.growth_bytes for row in rows], f"{memory}: {which}"),
        peak: _middle([row.peak_bytes for row in rows], memory),
    }
    return {name: value for name, value in quantities.items() if value is not None}


def _middle(values: Sequence[int | float | None], origin: str) -> Value | None:
    """The median of what is known, with least and greatest; a count of bytes stays a whole number."""
    given = [value for value in values if value is not None]
    if not given:
        return None
    integers = all(isinstance(value, int) for value in given)
    value = median_low(given) if integers else median(given)
    return Value(value, origin) if len(given) == 1 else Value(value, origin, low=min(given), high=max(given))
