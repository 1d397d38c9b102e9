"""Two ledgers joined: totals, rows and the ops that only one of them has.

Each side may be an estimate or a measurement, eager or compiled. What can be put side by side is decided once for the
whole comparison: executed FLOPs with executed ones; where only one side was counted, the useful FLOPs of the other with
what was executed in ops with matrix work. The same goes for DRAM and compulsory bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from msgspec.structs import replace as replace_fields

from rooflight import views
from rooflight.analysis.cause import Account
from rooflight.analysis.comparison.align import Alignment, align
from rooflight.analysis.comparison.bridge import Bridge
from rooflight.analysis.comparison.bridges import Bridges, device_of_side
from rooflight.analysis.comparison.memory import ComparedMemory, SideMemory, compare_memory
from rooflight.analysis.comparison.memory_bridge import memory_bridge
from rooflight.analysis.comparison.why import Quantity, Reasons, Why, why
from rooflight.analysis.verdicts import Judge
from rooflight.errors import BadInput
from rooflight.hardware.device import Device
from rooflight.hardware.devices import recognise_name
from rooflight.ledger import Ledger, total
from rooflight.metrics import DRAM_BYTES, EXECUTED_FLOPS, Unit, ratio
from rooflight.summary import By, has_formulas
from rooflight.summary.facts import Number
from rooflight.summary.measured import Measured, is_measured
from rooflight.summary.measured_rows import MeasuredRow, rows
from rooflight.summary.measured_step import busy_s, dram_bytes, executed_flops, useful_flops, wall_s

Basis = Literal["executed", "matrix executed", "useful", "DRAM", "compulsory"]


@dataclass(frozen=True)
class Figures:
    """What one side says of a row."""

    time_s: Number | None
    """Of its kernels, or of its calls on a CPU."""
    flops: Number | None
    """Executed, or useful beside an estimate."""
    bytes: Number | None
    """Of DRAM, or compulsory beside an estimate."""
    ops: int
    """How many."""
    only_here: int
    """Ops of the row that the other side does not have."""


@dataclass(frozen=True)
class PairRow:
    """A row of the summary on both sides; `None` where a side does not have it at all."""

    name: str
    """Module, type or op."""
    type: str
    """Class of the module."""
    depth: int
    """In the module tree."""
    a: Figures | None
    """Side A."""
    b: Figures | None
    """Side B."""
    why: Account | None = None
    """Causes of executed FLOPs: of B's, or of A's where B executed none."""

    def ratio_of(self, pick: Callable[[Figures], Number | None]) -> float | None:
        """B by A."""
        return ratio(pick(self.b), pick(self.a)) if self.a is not None and self.b is not None else None


@dataclass(frozen=True)
class TotalLine:
    """A quantity of the whole step on both sides."""

    name: str
    """In words."""
    unit: Unit
    """Of both values."""
    a: Number | None
    """Of side A; `None`: not known."""
    b: Number | None
    """Of side B."""

    @property
    def ratio(self) -> float | None:
        """B by A."""
        return ratio(self.b, self.a)


@dataclass(frozen=True)
class Difference:
    """Something that the two steps were run with, and that is not the same."""

    name: str
    """Which setting."""
    a: str
    """On side A."""
    b: str
    """On side B."""


class Comparison(views.Shown):
    """Ledger A against ledger B."""

    def __init__(self, a: Ledger, b: Ledger | Measured, *, on: Device | None = None) -> None:
        """`on`: where the times of a B that nobody measured are predicted."""
        self._on = on
        self.a, self.b = Measured(a), b if isinstance(b, Measured) else Measured(b)
        self.predicted = Judge(self.b.ledger, on=on) if on is not None and not is_measured(self.b.ledger) else None
        """What is predicted of B, where it is."""
        if self.predicted is not None:
            self.b = self.predicted.measured
        self._sides = (self.a, self.b)
        self.flops_basis = _bases(self._sides, EXECUTED_FLOPS, ("executed", "matrix executed", "useful"))
        self.bytes_basis = _bases(self._sides, DRAM_BYTES, ("DRAM", "DRAM", "compulsory"))
        self.alignment: Alignment = align(self.a.ledger, self.b.ledger)
        self.only_a, self.only_b = list(self.alignment.only_a), list(self.alignment.only_b)
        self.reasons = Reasons(self.a), Reasons(self.b)
        self._only = (frozenset(op.index for op in self.only_a), frozenset(op.index for op in self.only_b))

    def to_pandas(self, by: By = "module") -> Any:
        """One row for every module, type or op: the figures of both sides and their ratios (needs pandas)."""
        return views.frame(self, by)

    @cached_property
    def whys(self) -> list[Why]:
        """Why FLOPs, bytes, time and memory differ, as far as a side was measured."""
        quantities: tuple[Quantity, ...] = ("FLOPs", "DRAM bytes", "time", "memory")
        accounts = [why(*self.reasons, quantity) for quantity in quantities]
        return [account for account in accounts if account is not None]

    @cached_property
    def bridges(self) -> list[Bridge]:
        """FLOPs, bytes, time and memory from A to B by cause, as far as both sides were measured or predicted."""
        devices = device_of_side(self.a, self._on), device_of_side(self.b, self._on)
        found = Bridges(self._sides, self.reasons, self.alignment, devices).all()
        memory = memory_bridge(self.memory.joined, self._sides, devices) if found else None
        return [*found, memory] if memory is not None else found

    def differences(self) -> list[Difference]:
        """What was not the same: ratios mix it in."""
        differing = []
        for name in _COMPARED:
            values = [getattr(side.ledger.header, name) for side in self._sides]
            if values[0] == values[1] or (name in _OF_A_RUN and None in values):
                continue
            differing.append(Difference(name, *map(_said, values)))
        ran_on = self.a.ledger.header.device
        if self.predicted is not None and self.predicted.device is not None and ran_on is not None:
            differing.append(Difference("device", ran_on, f"{self.predicted.device_title}, predicted"))
        return differing

    def totals(self) -> list[TotalLine]:
        """The whole step: what at least one side knows."""
        lines = [
            self._line("wall time", "second", wall_s),
            self._line("GPU-busy", "second", busy_s),
            self._line("sum of kernel times", "second", lambda side: side.total.get("kernel_time_s")),
            self._line("sum of op times", "second", lambda side: side.total.get("host_time_s")),
            self._line("kernels", "count", lambda side: side.total.get("kernels")),
            self._line("useful FLOPs", "flop", lambda side: useful_flops(side.ledger)),
            *(self._line(_unit_name(name), "flop", _whole(name)) for name in EXECUTED_FLOPS),
            *self._both_kinds(),
            self._line("compulsory bytes", "byte", _compulsory),
            self._line("DRAM read", "byte", _whole("dram_bytes_read")),
            self._line("DRAM written", "byte", _whole("dram_bytes_written")),
            self._line("through L2", "byte", _whole("l2_bytes")),
            self._line("through L1", "byte", _whole("l1_bytes")),
            *self._memory_lines(),
        ]
        return [line for line in lines if line.a or line.b]

    @cached_property
    def judge(self) -> tuple[str, Judge] | None:
        """The side that gets a verdict: measured on a device that is known, B where both are; else B as predicted."""
        for name, side in (("B", self.b.ledger), ("A", self.a.ledger)):
            if is_measured(side) and recognise_name(side.header.device) is not None:
                return name, Judge(side)
        return None if self.predicted is None else ("B", self.predicted)

    @cached_property
    def memory(self) -> ComparedMemory:
        """Made when it is asked for: the memory of an estimate is predicted by running it through an allocator."""
        return compare_memory(self.a, self.b, on=self._on)

    def _memory_lines(self) -> list[TotalLine]:
        """Names say who was predicted where the other side was measured."""
        joined = self.memory.joined
        if joined is None:
            return [
                self._line("allocated at the peak", "byte", _whole("peak_allocated_bytes")),
                self._line("reserved at the peak", "byte", _whole("peak_reserved_bytes")),
            ]
        a, b = joined.kinds
        kinds = f": A {a}, B {b}" if a != b else ""
        picks: dict[str, Callable[[SideMemory], Number | None]] = {
            "allocated before the step": lambda side: side.before_bytes,
            "allocated at the peak": lambda side: side.peak_allocated_bytes,
            "reserved at the peak": lambda side: side.peak_reserved_bytes,
            "outside the allocator": lambda side: side.outside_bytes,
        }
        return [TotalLine(name + kinds, "byte", pick(joined.a), pick(joined.b)) for name, pick in picks.items()]

    def _both_kinds(self) -> list[TotalLine]:
        """An estimate against a measurement: useful with executed, compulsory with counted."""
        lines = []
        flops: dict[str, Callable[[Measured], Number | None]] = {
            "useful": lambda side: useful_flops(side.ledger),
            "matrix executed": lambda side: side.total.matrix_executed,
        }
        traffic: dict[str, Callable[[Measured], Number | None]] = {"compulsory": _compulsory, "DRAM": dram_bytes}
        a, b = self.flops_basis
        if a != b:
            lines.append(
                TotalLine(f"matrix work: A {_short(a)}, B {_short(b)}", "flop", flops[a](self.a), flops[b](self.b))
            )
        a, b = self.bytes_basis
        if a != b:
            lines.append(TotalLine(f"bytes: A {a}, B {b}", "byte", traffic[a](self.a), traffic[b](self.b)))
        return lines

    def _line(self, name: str, unit: Unit, pick: Callable[[Measured], Number | None]) -> TotalLine:
        return TotalLine(name, unit, pick(self.a), pick(self.b))

    def rows(self, by: By = "module") -> list[PairRow]:
        """Modules in A's order, then what only B has; types and ops the slowest first."""
        return self.paired(rows(self.a, by), rows(self.b, by), by)

    def paired(self, rows_a: list[MeasuredRow], rows_b: list[MeasuredRow], by: By) -> list[PairRow]:
        """Rows of the same name side by side."""
        of_a, of_b = ({row.name: row for row in side} for side in (rows_a, rows_b))
        names = [*of_a, *(name for name in of_b if name not in of_a)]
        pairs = [self._pair(of_a.get(name), of_b.get(name)) for name in names]
        return pairs if by == "module" else sorted(pairs, key=_weight, reverse=True)

    def total_pair(self, whole_a: MeasuredRow, whole_b: MeasuredRow) -> PairRow:
        """The last row: the ops of both, or both whole steps where one side knows no more than that."""
        row = self._pair(whole_a, whole_b)
        a, b = row.a, row.b
        assert a is not None and b is not None
        if self.flops_basis == ("executed", "executed") and not self._both_know(EXECUTED_FLOPS):
            a, b = replace(a, flops=executed_flops(self.a)), replace(b, flops=executed_flops(self.b))
        if self.bytes_basis == ("DRAM", "DRAM") and not self._both_know(DRAM_BYTES):
            a, b = replace(a, bytes=dram_bytes(self.a)), replace(b, bytes=dram_bytes(self.b))
        return replace(row, a=a, b=b)

    def _both_know(self, names: tuple[str, ...]) -> bool:
        """Have ops on both sides one of these?"""
        return all(any(name in side.known for name in names) for side in self._sides)

    def _pair(self, row_a: MeasuredRow | None, row_b: MeasuredRow | None) -> PairRow:
        known = row_a or row_b
        assert known is not None
        a, b = (None if row is None else self._figures(number, row) for number, row in enumerate((row_a, row_b)))
        return PairRow(known.name, known.estimate.type, known.estimate.depth, a, b, self._why(row_a, row_b))

    def _why(self, row_a: MeasuredRow | None, row_b: MeasuredRow | None) -> Account | None:
        for side, row in ((1, row_b), (0, row_a)):
            account = self.reasons[side].flops_of(row.group.ops) if row is not None else None
            if account is not None:
                return account
        return None

    def _figures(self, side: int, row: MeasuredRow) -> Figures:
        sums, estimate = row.sums, row.estimate.totals
        known = bool(estimate.ops) and sum(entry.calls for entry in estimate.uncounted) < estimate.ops
        flops: dict[str, Number | None] = {
            "executed": sums.executed_flops,
            "matrix executed": sums.matrix_executed,
            "useful": estimate.flops if known else None,
        }
        traffic: dict[str, Number | None] = {
            "DRAM": sums.dram_bytes,
            "compulsory": estimate.bytes if known else None,
        }
        return Figures(
            time_s=sums.time_s,
            flops=flops[self.flops_basis[side]],
            bytes=traffic[self.bytes_basis[side]],
            ops=len(row.group.ops),
            only_here=len(self._only[side].intersection(row.group.ops)),
        )

    def unmatched(self) -> dict[str, tuple[Counter[str], Counter[str]]]:
        """Ops that only one side has, by module: their names and how often, in A and in B."""
        modules: dict[str, tuple[Counter[str], Counter[str]]] = {}
        for side, ops in enumerate((self.only_a, self.only_b)):
            for op in ops:
                modules.setdefault(op.module, (Counter(), Counter()))[side][op.name] += 1
        return modules


def with_its_estimate(
    ledger: Ledger, name: str, *, on: Device | None = None, measured: Measured | None = None
) -> Comparison:
    """A measured step against what the mathematics says of the same ops: both are in one ledger. With `on`, a step
    against what is predicted of it there. `measured`: of this ledger, where somebody has it already."""
    if on is not None and ledger.ops:
        return Comparison(ledger, _estimate_of(ledger), on=on)
    if not is_measured(ledger) or not has_formulas(ledger):
        what = "holds no ops" if is_measured(ledger) else "is an estimate"
        raise BadInput(
            "nothing-to-compare",
            f"compare {name} with what? It {what}: give a second ledger, a device with --on, or a table of "
            "claims with --claims",
        )
    taken = ledger if measured is None or measured.ledger is not ledger else measured
    return Comparison(_estimate_of(ledger), taken)


def _estimate_of(ledger: Ledger) -> Ledger:
    """The same step, as if nobody had run it."""
    header = replace_fields(ledger.header, device=None, conditions={}, cuda=None, driver=None, notes=(), recording="")
    return replace_fields(ledger, header=header, kernels=(), measurements=()) if is_measured(ledger) else ledger


_COMPARED = (
    "model", "step", "batch", "accumulate", "sequence", "past", "dtype", "autocast", "math", "optimizer", "loss",
    "checkpoint", "execution", "channels_last", "fused", "pad", "foreach", "settings", "input",
    "device", "target", "torch", "cuda", "driver", "world",
)  # fmt: skip
_OF_A_RUN = ("device", "cuda", "driver", "torch")
"""An estimate has none of these, and differs in nothing by that."""


def _said(value: object) -> str:
    if value is None or value == ():
        return "–"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    if hasattr(value, "tf32_conv"):
        on = [name for name, used in (("convolutions", value.tf32_conv), ("matmuls", value.tf32_matmul)) if used]  # type: ignore[attr-defined]
        return f"TF32 in {' and '.join(on)}" if on else "no TF32"
    return str(value)


def _bases(
    sides: tuple[Measured, Measured], names: tuple[str, ...], choices: tuple[Basis, Basis, Basis]
) -> tuple[Basis, Basis]:
    """What each side contributes: counted with counted; else what compares with an estimate, and the estimate."""
    counted = [any(name in side.known or name in side.step for name in names) for side in sides]
    both, with_estimate, estimated = choices
    if all(counted):
        return both, both
    a, b = (with_estimate if is_counted else estimated for is_counted in counted)
    return a, b


def _short(basis: str) -> str:
    return basis.removeprefix("matrix ")


def _weight(row: PairRow) -> tuple[Number, Number]:
    """Time of both sides, then work."""
    sides = [side for side in (row.a, row.b) if side is not None]
    return sum(side.time_s or 0 for side in sides), sum(side.flops or 0 for side in sides)


def _compulsory(side: Measured) -> Number | None:
    return total(side.ledger.ops).bytes if has_formulas(side.ledger) else None


def _whole(name: str) -> Callable[[Measured], Number | None]:
    """The range around the step where there is one, else the sum of the ops."""

    def pick(side: Measured) -> Number | None:
        return side.step[name].value if name in side.step else side.total.get(name)

    return pick


_UNITS = {"tensor": "tensor cores", "cuda": "CUDA cores"}


def _unit_name(name: str) -> str:
    """`tensor_flops_tf32` is `executed, tensor cores tf32`."""
    unit, _, precision = name.partition("_flops_")
    return f"executed, {_UNITS[unit]} {precision}"


def attributed(side: Measured) -> dict[str, float] | None:
    """Shares of the kernels' time: that of one op, of several fused ones, of none that is known."""
    if not is_measured(side.ledger):
        return None
    total_s = sum(side.attributed.values())
    if not total_s:
        return None
    return {name: side.attributed[n] / total_s for n, name in ((1, "one op"), (2, "several ops"), (0, "no op"))}
