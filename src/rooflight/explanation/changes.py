"""What a change would make of a measured step: for the work of every set of ops, its time with the change by its time
without.

What a change makes of an op is predicted twice, with and without it, and the measured time is scaled by the ratio of
the two: an error of the prediction that both share falls out, and what a change does not touch gains nothing. Kernels
that would fall away were measured, and so were the bytes a second at which a chain of ops runs.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from rooflight.hardware.tasks import FAMILIES, Task
from rooflight.ledger import Ledger, Op
from rooflight.measured import Measured
from rooflight.prediction import advice as predicted
from rooflight.prediction.cache import Array
from rooflight.prediction.prepared import Step
from rooflight.prediction.tasks import tasks_of
from rooflight.prediction.tiers import Predictor

Ops = tuple[int, ...]
Ratios = Mapping[Ops, float]

_MATRIX = ("gemm", "conv-", "attention-")
_FUSED = (
    "plain", "cast", "math", "broadcast", "strided", "dropout", "reduce", "softmax-", "layer-norm-", "batch-norm-",
    "group-norm-",
)  # fmt: skip
"""Families of work that torch.compile writes kernels of its own for, several ops in one."""
_LAYOUT = re.compile(r"nchwToNhwc|nhwcToNchw")
"""cuDNN's kernels that channels_last makes needless: they bring tensors from one order of their axes into the other."""
_EVEN = 8
"""Rows of so many elements begin at multiples of 16 bytes in 16 bits; fast kernels need that."""
_PADDED = 64
"""What a size is padded to."""
_SIDES = ("m", "n", "k")


@dataclass(frozen=True)
class Change:
    key: str
    """Short, for a column of a table."""
    how: str
    """How a sentence about it begins."""
    origin: str
    """How its effect was found."""
    ratios: Ratios
    """Time with it by time without, for the sets of ops that kernels belong to; 1 where one is missing."""

    def after_s(self, ops: Ops, time_s: float) -> float:
        return time_s * self.ratios.get(ops, 1.0)


def changes_of(measured: Measured, predictor: Predictor, step: Step) -> tuple[Change, ...]:
    """Those that apply to the step. What each of them gains, if anything, is another question."""
    ledger = measured.ledger
    timed = {fact.ops for fact in measured.facts if fact.ops and fact.values.get("kernel_time_s")}
    if not timed:
        return ()
    play = _Play(step, predictor, timed)
    found = [*_precisions(step, predictor, play)]
    # The compiler pads by itself.
    padding = None if ledger.header.is_compiled else _padding(step, play)
    layout = _layout(ledger, step, play)
    found += [one for one in (padding, layout) if one is not None]
    if any(task.family == "foreach" for task in step.tasks):
        found.append(play.change("fused", "with a fused optimizer (fused=True)", predicted.fused(step)))
    if ledger.header.execution == "eager":
        found.append(_compiled(ledger, timed, [one for one in (padding, layout) if one is not None]))
    return tuple(one for one in found if any(ratio < 1 for ratio in one.ratios.values()))


class _Play:
    """Predicts the step with changes, and compares with the same prediction without them."""

    def __init__(self, step: Step, predictor: Predictor, timed: Collection[Ops]) -> None:
        self._predictor, self._timed, self._ops = predictor, timed, step.ledger.ops
        self._before = predictor.op_times(step).seconds
        self._optimizer = [place for place, op in enumerate(self._ops) if op.phase == "optimizer"]
        self.origin = f"predicted with and without it, {predictor.tier} on {predictor.device.name}"

    def change(self, key: str, how: str, step: Step) -> Change:
        return Change(key, how, self.origin, self._ratios(self._predictor.op_times(step).seconds))

    def _ratios(self, after: Array) -> Ratios:
        # One kernel may do the work of all of an optimizer's ops: they are compared together.
        optimizer = self._ratio(after, self._optimizer)
        found = {}
        for ops in self._timed:
            mine = all(self._ops[index].phase == "optimizer" for index in ops)
            found[ops] = optimizer if mine else self._ratio(after, ops)
        return found

    def _ratio(self, after: Array, ops: Sequence[int]) -> float:
        before = float(self._before[list(ops)].sum()) if ops else 0.0
        return float(after[list(ops)].sum()) / before if before else 1.0


def _precisions(step: Step, predictor: Predictor, play: _Play) -> list[Change]:
    matrix = {task.precision for task in step.tasks if task.family.startswith(_MATRIX)}
    found = []
    if matrix & {"fp32", "tf32"} and predicted.timed_in_bf16(predictor):
        found.append(play.change("bf16", "in bf16", predicted.in_bf16(step)))
    if predicted.has_fp32_gemm(step) and "tf32" in predictor.device.tensor_flops_per_s:
        found.append(play.change("TF32", "with TF32 in matmuls", predicted.in_tf32(step)))
    return found


def _padding(step: Step, play: _Play) -> Change | None:
    """Products whose sizes are odd, as a vocabulary of 50,257."""
    uneven = sorted({size for task in step.tasks for size in _uneven(task)}, reverse=True)
    if not uneven:
        return None
    named = [f"{size:,} padded to {_up(size):,}" for size in uneven[:2]]
    more = f" and {len(uneven) - 2} more sizes" if len(uneven) > 2 else ""
    return play.change("pad", f"with {' and '.join(named)}{more}", predicted.changed(step, _padded))


def _uneven(task: Task) -> list[int]:
    if task.family != "gemm":
        return []
    sizes = (task.numbers[FAMILIES["gemm"].index(side)] for side in _SIDES)
    return [size for size in sizes if size > _PADDED and size % _EVEN]


def _up(size: int) -> int:
    return -(-size // _PADDED) * _PADDED


def _padded(task: Task) -> Task:
    uneven = _uneven(task)
    named = zip(FAMILIES[task.family], task.numbers, strict=False)
    return task._replace(numbers=tuple(_up(size) if name in _SIDES and size in uneven else size
                                       for name, size in named)) if uneven else task  # fmt: skip


def _layout(ledger: Ledger, step: Step, play: _Play) -> Change | None:
    """Without the kernels that only reorder what convolutions read and write. An estimate has no kernels: there the
    same layers are predicted in that order."""
    how = "in channels_last"
    if not ledger.kernels:
        convolutions = any(task.family.startswith("conv-") for task in step.tasks)
        if not convolutions or predicted.is_channels_last(step):
            return None
        return play.change("channels_last", how, predicted.changed(step, predicted.in_channels_last))
    whole: dict[Ops, float] = defaultdict(float)
    layout: dict[Ops, float] = defaultdict(float)
    for kernel in ledger.kernels:
        if kernel.ops and kernel.time_s is not None:
            whole[kernel.ops] += kernel.time_s
            layout[kernel.ops] += kernel.time_s if _LAYOUT.search(kernel.name) else 0.0
    ratios = {ops: 1 - layout[ops] / time for ops, time in whole.items() if layout[ops]}
    return Change("channels_last", how, "measured: the kernels that change the layout", ratios) if ratios else None


def _compiled(ledger: Ledger, timed: Collection[Ops], others: Sequence[Change]) -> Change:
    """Chains of ops in one kernel, at the bytes a second they have now. By default the compiler also keeps images in
    channels_last between convolutions and pads odd products."""
    spared = fused_away(ledger)
    ratios = {}
    for ops in timed:
        ratio = 1 - spared.get(ops[0], 0.0) if len(ops) == 1 else 1.0
        for other in others:
            ratio *= min(1.0, other.ratios.get(ops, 1.0))
        ratios[ops] = ratio
    return Change("compile", "under torch.compile", "bytes that fused ops need not move, at the measured rate", ratios)


def fused_away(ledger: Ledger) -> dict[int, float]:
    """By op: the part of its bytes that stays in registers when the ops before and after it run in the same kernel.

    What a fusible op wrote is not read again by the fusible ones behind it, and not written where nobody else reads it.
    Behind a product or a convolution a new kernel begins, and between forward and backward: there it is read again.
    """
    written = _written(ledger)
    outlives = {storage.id for storage in ledger.storages if storage.dies is None}
    spared: dict[int, float] = defaultdict(float)
    for made in written:
        readers = [reader for reader in made.readers if made.fusible and _together(made, reader, len(made.readers))]
        for reader in readers:
            spared[reader.index] += min(reader.nbytes, made.nbytes)
        if readers and len(readers) == len(made.readers) and not (made.is_last and made.storage in outlives):
            spared[made.index] += made.nbytes
    return {index: min(1.0, nbytes / moved) for index, nbytes in spared.items() if (moved := _bytes(ledger.ops[index]))}


@dataclass
class _Touch:
    """A storage as one op wrote or read it. `level`: how many products lie before the op, on the longest way."""

    storage: int
    index: int
    nbytes: int
    phase: str
    fusible: bool
    level: int
    readers: list[_Touch] = field(default_factory=list)
    is_last: bool = True


def _together(made: _Touch, reader: _Touch, readers: int) -> bool:
    """In one kernel: nothing that must end before the reader begins has begun after the writer. A value that only one
    op reads can be made when that op runs."""
    return reader.fusible and made.phase == reader.phase and (made.level == reader.level or readers == 1)


def _written(ledger: Ledger) -> list[_Touch]:
    """Everything that ops wrote, with who read it."""
    found: list[_Touch] = []
    now: dict[int, _Touch] = {}
    for op in ledger.ops:
        if op.kind != "compute":
            continue
        fusible = _is_fusible(op)
        inputs = {tensor.storage: tensor for tensor in op.inputs}.values()
        level = max((now[one.storage].level + (not now[one.storage].fusible) for one in inputs if one.storage in now),
                    default=0)  # fmt: skip
        for tensor in inputs:
            if tensor.storage in now:
                now[tensor.storage].readers.append(
                    _Touch(tensor.storage, op.index, tensor.nbytes, op.phase, fusible, level)
                )
        for tensor in (*op.outputs, *(tensor for name in op.mutates for tensor in op.tensors(name))):
            if tensor.storage in now:
                now[tensor.storage].is_last = False
            now[tensor.storage] = _Touch(tensor.storage, op.index, tensor.nbytes, op.phase, fusible, level)
            found.append(now[tensor.storage])
    return found


def _is_fusible(op: Op) -> bool:
    if op.kind != "compute" or op.phase == "optimizer":
        return False
    tasks = tasks_of(op)
    return bool(tasks) and all(task.family.startswith(_FUSED) for task in tasks)


def _bytes(op: Op) -> int:
    return 0 if op.cost is None else (op.cost.bytes_read or 0) + (op.cost.bytes_written or 0)
