"""A step made ready for prediction: its distinct ops with their tasks and demands, and where each of them stands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from dataclasses import replace as replace_step
from functools import cached_property
from typing import Any, TypeVar, TypeVarTuple

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from rooflight.estimation.costs import cost_of, signature
from rooflight.estimation.fused_optimizer import with_fused_optimizer
from rooflight.hardware.roofs import demand_of
from rooflight.ledger import COMPILED, GRAPHS, PASSES, Cost, Execution, Ledger, Op
from rooflight.ops.kernel_task import Task
from rooflight.ops.op_tasks import is_guess, tasks_of
from rooflight.step.cache_reuse import Array, Reuse, touches_of
from rooflight.step.changes import as_asked
from rooflight.step.fused_attention import with_fused_attention
from rooflight.step.fusion import fused_away, is_fusible
from rooflight.step.host_calls import HostParts, parts_of, phases_of
from rooflight.step.other_batches import OtherBatch

_WAITS = frozenset({"aten::_local_scalar_dense", "aten::item", "aten::nonzero", "aten::is_nonzero", "aten::equal"})
_TRUTHS = frozenset({"aten::all", "aten::any"})


Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")
TracedIn = Callable[[str, str], "Step | None"]
"""From a precision and a target (`cuda:80`); `None` where the model as it is now gives another step."""


@dataclass(frozen=True)
class Demands:
    """What every kind of op asks of a device, by formula: a `Demand` each, in columns."""

    precisions: tuple[str, ...]
    precision_of: npt.NDArray[np.intp]
    """Which of the precisions each is in."""
    matrix: Array
    """FLOPs of matrix work, recomputed ones and the causal half counted as they are run."""
    other: Array
    useful: Array
    """FLOPs of the mathematics alone."""
    read: Array
    written: Array


@dataclass(frozen=True, eq=False)
class Step:
    """One step of one batch. Ops that are alike are there once; `kind_of` says which of them each op is."""

    ledger: Ledger
    """Of the trace, whose batch may be another."""
    batch: int | None
    kinds: tuple[Op, ...]
    """The distinct ops, with their costs."""
    kind_of: npt.NDArray[np.intp]
    tasks: tuple[Task, ...]
    """The tasks of all kinds, one after the other."""
    task_kind: npt.NDArray[np.intp]
    """Which kind each task is of."""
    scaling: OtherBatch
    """From the traced batch to this one."""
    trace: PreparedTrace
    at_batch: Callable[[int], Step] | None = None
    """The same step at another batch; `None`: it was traced with one batch only."""
    traced_in: TracedIn | None = None
    """The same step, traced in another precision; `None`: it cannot be traced again."""
    runs_in: Mapping[str, str] = field(default_factory=dict)
    """Precisions that stand for those of the trace, `{"fp32": "bf16"}`: what would be, told by tasks and demands. What
    a cache holds is still told by the bytes of the trace."""
    execution: Execution = "eager"
    """How it is run: what tells how long its ops take looks here."""
    spared: frozenset[int] = frozenset()
    """Ops that it has not, in their places: the host does nothing for them."""

    @property
    def is_compiled(self) -> bool:
        return self.execution in COMPILED

    @property
    def is_graph(self) -> bool:
        """Is the whole step one CUDA graph?"""
        return self.execution in GRAPHS

    def fused_attention(self, dtype: str) -> Step:
        """The step with a fused kernel for each attention that has one in that type, and none as it was traced."""
        ledger, spared = with_fused_attention(self.ledger, dtype)
        return replace_step(self._of(ledger), spared=spared) if spared else self

    def fused_optimizer(self) -> Step:
        """The step with one op for all of its optimizer's."""
        ledger = with_fused_optimizer(self.ledger)
        return self if ledger is self.ledger else self._of(ledger)

    def _of(self, ledger: Ledger) -> Step:
        """The same step, whose ops were changed."""
        prime = None if self.batch == self.ledger.header.batch else self.ledger.header.batch
        step = PreparedTrace(ledger, prime).at(None if prime is None else self.batch)
        return replace_step(step, execution=self.execution, at_batch=self.at_batch, traced_in=self.traced_in)

    @cached_property
    def variants(self) -> dict[str, Step]:
        """This step run in other ways, by the key of the change: made once, whatever it is asked for."""
        return {}

    @cached_property
    def moves(self) -> Array:
        """Of every op: the part of its bytes that it moves when chains of ops run as one kernel."""
        ledger, moved = ledger_of(self), np.ones(len(self.ledger.ops))
        fusible = np.array(list(map(is_fusible, self.kinds)), dtype=bool)[self.kind_of].tolist()
        for index, spared in fused_away(ledger.ops, ledger.storages, fusible).items():
            moved[index] = 1 - spared
        return moved

    @cached_property
    def reuse(self) -> Reuse:
        """What of the inputs of its ops a cache still holds."""
        return self.once(touches_of).reuse(self.scaling.sizes)

    def _narrower(self, precision: str) -> float:
        """How many times the bytes of the trace its tensors have."""
        return 0.5 if self.runs_in.get(precision) in ("bf16", "fp16") else 1.0

    @cached_property
    def demands(self) -> Demands:
        run = [self.runs_in.get(op.precision, op.precision) or "fp32" for op in self.kinds]
        precisions = list(dict.fromkeys(run))
        rows = [
            (
                demand.matrix_flops,
                demand.other_flops,
                (op.cost.flops or 0) if op.cost else 0,
                self._narrower(op.precision) * demand.bytes_read,
                self._narrower(op.precision) * demand.bytes_written,
            )
            if (demand := demand_of(op)) is not None
            else (0, 0, 0, 0, 0)
            for op in self.kinds
        ]
        of = np.array([precisions.index(precision) for precision in run], dtype=np.intp)
        return Demands(tuple(precisions), of, *np.array(rows, dtype=np.float64).reshape(-1, 5).T)

    @cached_property
    def launches(self) -> npt.NDArray[np.bool_]:
        """Of every kind: does it run anything? Views do not, nor ops whose work another one does."""
        return np.bincount(self.task_kind, minlength=len(self.kinds)) > 0

    @cached_property
    def is_first(self) -> npt.NDArray[np.bool_]:
        """Of every task: is it the first of its like in its op?"""
        seen: set[tuple[int, Task]] = set()
        first = np.ones(len(self.tasks), dtype=bool)
        for place, key in enumerate(zip(self.task_kind.tolist(), self.tasks, strict=True)):
            first[place] = key not in seen
            seen.add(key)
        return first

    def once(self, function: Callable[[Ledger, *Arguments], Result], *arguments: *Arguments) -> Result:
        """What a function of the trace gives, computed once for the steps of all its batches."""
        return self.trace.once(function, *arguments)

    @property
    def phase_of(self) -> npt.NDArray[np.intp]:
        """Of every op, as a place in `PHASES`."""
        return self.once(phases_of)

    @property
    def has_lifetimes(self) -> bool:
        """Does the ledger tell when its storages are made and freed? A log from elsewhere has ops alone."""
        ledger = self.ledger
        return ledger.header.traced_on != "import" and any(storage.born is not None for storage in ledger.storages)

    @cached_property
    def guessed(self) -> npt.NDArray[np.bool_]:
        """Of every kind: is its time a guess?"""
        return np.array([is_guess(op) for op in self.kinds], dtype=bool)

    @cached_property
    def has_products(self) -> npt.NDArray[np.bool_]:
        """Of every kind: does it multiply matrices?"""
        return np.array([op.cost is not None and bool(op.cost.macs) for op in self.kinds], dtype=bool)

    @property
    def waits(self) -> npt.NDArray[np.bool_]:
        """Of every op: does the host need its result before it goes on?"""
        return self.once(_waits_of)

    @cached_property
    def ops_with_cost(self) -> tuple[Op, ...]:
        """Every op of the step at this batch, its cost filled in; shapes are those of the kind it is of."""
        return tuple(
            replace(
                self.kinds[kind],
                index=op.index,
                phase=op.phase,
                module=op.module,
                call=op.call,
                ordinal=op.ordinal,
                rank=op.rank,
            )
            for op, kind in zip(self.ledger.ops, self.kind_of.tolist(), strict=True)
        )


def _waits_of(ledger: Ledger) -> npt.NDArray[np.bool_]:
    # Adam reads its step counters on the host: that waits for nothing.
    waits = np.array([op.kind != "host" and op.packet in _WAITS for op in ledger.ops], dtype=bool)
    read = {tensor.storage for op in ledger.ops for tensor in op.inputs}
    for op in ledger.ops:
        # A truth that no op reads is one that Python asks for; without data nobody could answer, and the trace has no
        # op that brings it to the host.
        if (
            op.packet in _TRUTHS
            and op.kind == "compute"
            and all(not tensor.shape and tensor.storage not in read for tensor in op.outputs)
        ):
            waits[op.index] = True
    return waits


class PreparedTrace:
    """A traced step, whose ops were told apart once, ready for any batch."""

    def __init__(
        self, ledger: Ledger, prime: int | None, traced_in: Callable[[int | None], TracedIn] | None = None
    ) -> None:
        self.ledger = ledger
        self.prime = prime
        """The batch it was traced with, in whose place others can be put; `None`: no other can."""
        self._traced_in = traced_in
        """For each batch, what traces its step in another precision."""
        self._sizes = {storage.id: storage.nbytes for storage in ledger.storages}
        known: dict[object, int] = {}
        self._kinds: list[Op] = []
        kind_of = []
        for op in ledger.ops:
            key = (signature(op, self._sizes), op.precision, op.phase in PASSES)
            place = known.get(key)
            if place is None:
                place = known[key] = len(self._kinds)
                self._kinds.append(op)
            kind_of.append(place)
        self._kind_of = np.array(kind_of, dtype=np.intp)
        self._fixed: dict[int, tuple[Op, list[Task]]] = {}
        """Ops that no batch changes, as those of the optimizer."""
        self._results: dict[tuple[object, ...], Any] = {}
        self._steps: dict[int | None, Step] = {}

    @cached_property
    def host_parts(self) -> list[HostParts]:
        """What every kind of op costs the host, whatever the batch."""
        return [parts_of(replace(op, cost=cost_of(op, self._sizes) or op.cost)) for op in self._kinds]

    def once(self, function: Callable[[Ledger, *Arguments], Result], *arguments: *Arguments) -> Result:
        """A `functools.cache` that ends with the trace: what a function of its ledger gives, by function and
        arguments."""
        key = function, *arguments
        if key not in self._results:
            self._results[key] = function(self.ledger, *arguments)
        result: Result = self._results[key]
        return result

    def at(self, batch: int | None) -> Step:
        """The step of a batch, made once; `None`: of the batch that was traced."""
        if batch not in self._steps:
            self._steps[batch] = self._made(batch)
        return self._steps[batch]

    def _made(self, batch: int | None) -> Step:
        prime = self.prime if batch is not None else None
        scaling = OtherBatch(prime, batch or 1)
        kinds, tasks, task_kind = [], [], []
        for place, traced in enumerate(self._kinds):
            fixed = self._fixed.get(place)
            if fixed is None:
                op, sizes = scaling.op(traced), self._sizes
                if prime is not None:
                    sizes = {row.storage: scaling.size(sizes.get(row.storage, 0)) for row in traced.inputs}
                op = replace(op, cost=cost_of(op, sizes) or (None if prime is not None else traced.cost))
                fixed = op, tasks_of(op)
                same = op.kind == "view" or (op.args == traced.args and op.outputs == traced.outputs)
                if same and batch not in (None, prime):  # the traced batch itself changes nothing
                    self._fixed[place] = fixed
            op, some = fixed
            kinds.append(op)
            tasks += some
            task_kind += [place] * len(some)
        step = Step(
            ledger=self.ledger,
            batch=batch if batch is not None else self.ledger.header.batch,
            kinds=tuple(kinds),
            kind_of=self._kind_of,
            tasks=tuple(tasks),
            task_kind=np.array(task_kind, dtype=np.intp),
            scaling=scaling,
            trace=self,
            at_batch=None if prime is None else self.at,
            execution=self.ledger.header.execution,
            traced_in=None if self._traced_in is None else self._traced_in(batch),
        )
        return as_asked(step)


def own_step(ledger: Ledger) -> Step:
    """Of a ledger as it is, at its own batch."""
    return PreparedTrace(ledger, None).at(None)


def moving_ledger_of(step: Step) -> Ledger:
    """`ledger_of`, with the bytes that a compiler's kernels move: what stays in registers is none."""
    ledger = ledger_of(step)
    if not step.is_compiled:
        return ledger
    ops = [
        op if part == 1 or (cost := op.cost) is None else replace(op, cost=_moving(cost, part))
        for op, part in zip(ledger.ops, step.moves.tolist(), strict=True)
    ]
    return replace(ledger, ops=tuple(ops))


def _moving(cost: Cost, part: float) -> Cost:
    read, written = (
        None if nbytes is None else round(part * nbytes) for nbytes in (cost.bytes_read, cost.bytes_written)
    )
    return replace(cost, bytes_read=read, bytes_written=written)


def ledger_of(step: Step) -> Ledger:
    """The whole ledger of a step at its own batch, every op with its cost."""
    ledger = step.scaling.ledger(step.ledger)
    return replace(
        ledger,
        ops=tuple(
            replace(op, cost=step.kinds[kind].cost) for op, kind in zip(ledger.ops, step.kind_of.tolist(), strict=True)
        ),
    )
