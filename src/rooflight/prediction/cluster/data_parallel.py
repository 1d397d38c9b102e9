"""Data parallel ranks: whole replicas that sum their gradients (DDP), and ranks that share what replicas would each
hold (ZeRO stages 1 to 3, FSDP).

DDP as torch does it: gradients fill buckets in the order in which backward makes them, the first of 1 MiB, the others
of 25 MiB; a full bucket is all-reduced on a stream of its own, one after the other, while backward still runs; the
optimizer waits for the last. What backward does not cover is exposed.

Stages 1 and 2: gradients are reduce-scattered in buckets while backward runs, each rank updates its part of the
weights, and an all-gather hands the new weights round, exposed, before the next step.

Stage 3 and FSDP: weights lie in parts, too. Each unit (a transformer block, or a top-level child) is gathered before
its forward and again before its backward, and its gradients are reduce-scattered after it. The next unit's weights
travel while this one computes, never more than one ahead; gathers and scatters share one stream. What belongs to no
unit is gathered once and stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rooflight.ledger import Ledger, Phase, is_inside
from rooflight.parallel.blocks import Model, ModelUnit, fsdp_units
from rooflight.parallel.fabric import Fabric, RankGroup
from rooflight.parallel.gradients import Bucket, Gradient, buckets, gradients_of
from rooflight.parallel.layout import ParallelOptions
from rooflight.prediction.cluster.communication import Transfer, all_gather, all_reduce, reduce_scatter
from rooflight.prediction.cluster.step import Message, ParallelOutcome, TimedStep, exchange
from rooflight.prediction.result import Traffic

_MIB = 2**20
_AROUND = "<around>"
"""Key of the weights that belong to no unit."""
Collective = Callable[[float, RankGroup, Fabric], Transfer]


def sent(sends: Sequence[tuple[Bucket, Transfer]], ends: dict[int, float], *, after_s: float) -> float:
    """When the last bucket has arrived: each starts when it is ready and the one before is done, after `after_s`."""
    free = after_s
    for bucket, transfer in sends:
        free = max(free, ends[bucket.ready]) + transfer.time_s
    return free


def in_buckets(
    gradients: Sequence[Gradient], group: RankGroup, fabric: Fabric, options: ParallelOptions, collective: Collective
) -> list[tuple[Bucket, Transfer]]:
    """The buckets that ranks add up, and how each is sent."""
    filled = buckets(gradients, first_bytes=options.first_bucket_bytes, cap_bytes=options.bucket_bytes)
    return [(bucket, collective(bucket.nbytes, group, fabric)) for bucket in filled]


def gradient_rows(what: str, sends: Sequence[tuple[Bucket, Transfer]]) -> tuple[Traffic, ...]:
    return exchange(f"gradients, {what}", [(bucket.nbytes, transfer) for bucket, transfer in sends])


def bucket_words(count: int, group: RankGroup, options: ParallelOptions) -> tuple[str, ...]:
    """The assumptions of summing gradients in so many buckets."""
    if not count or group.ranks == 1:
        return ()
    when = "on a stream of their own while backward runs" if options.overlap else "after backward"
    sizes = f"{options.first_bucket_bytes / _MIB:g} MiB first, then {options.bucket_bytes / _MIB:g} MiB"
    filled = "one message" if count == 1 else f"{count} buckets in the order backward makes them, {sizes}"
    return (
        f"gradients: {filled}, {when}",
        *(("communication does not slow the kernels it runs beside",) if options.overlap else ()),
    )


def _steady_s(
    step: TimedStep,
    sends: Sequence[tuple[Bucket, Transfer]],
    options: ParallelOptions,
    *,
    passes: int = 1,
    gathered: Transfer | None = None,
) -> float:
    """Of a step that sends its gradients in its last pass. `gathered`: what follows its update."""
    clocks = step.clocks()

    def one_step() -> None:
        for _ in range(passes):
            clocks.run((*step.phases["forward"], *step.phases["backward"]))
        clocks.wait_for(sent(sends, clocks.ends, after_s=0.0 if options.overlap else clocks.device_s))
        clocks.run(step.update)
        if gathered is not None:
            clocks.wait_for(clocks.now_s + gathered.time_s)

    return clocks.steady_s(one_step)


def ddp(
    step: TimedStep,
    group: RankGroup,
    fabric: Fabric,
    options: ParallelOptions,
    *,
    share: float = 1.0,
    passes: int = 1,
) -> ParallelOutcome:
    """The step of one replica among `group.ranks`. `share`: the part of every gradient that this rank has. `passes`:
    micro-batches that follow one another; gradients are sent in the last."""
    sends = in_buckets(gradients_of(step.ledger, share=share), group, fabric, options, all_reduce)
    time_s = _steady_s(step, sends, options, passes=passes)
    return ParallelOutcome(time_s, gradient_rows("all-reduce", sends), bucket_words(len(sends), group, options))


def zero(step: TimedStep, group: RankGroup, fabric: Fabric, options: ParallelOptions) -> ParallelOutcome:
    """Stages 1 and 2: they differ in memory, not in what is sent."""
    step = step.scaled(1 / group.ranks, "optimizer", "other")
    sends = in_buckets(gradients_of(step.ledger), group, fabric, options, reduce_scatter)
    rows, words = gradient_rows("reduce-scatter", sends), bucket_words(len(sends), group, options)
    weights = _updated_bytes(step.ledger)
    if not weights or group.ranks == 1:
        return ParallelOutcome(_steady_s(step, sends, options), rows, words)
    gathered = all_gather(weights, group, fabric)
    updated = "each rank updates its part of the weights; new weights are gathered after the update, exposed"
    return ParallelOutcome(
        _steady_s(step, sends, options, gathered=gathered),
        rows + exchange("weights, all-gather", [(weights, gathered)]),
        (*words, updated),
    )


def _updated_bytes(ledger: Ledger) -> int:
    """Return the bytes of the weights that the optimizer writes: frozen ones stay as every rank has them."""
    updates = [op for op in ledger.ops if op.phase == "optimizer"]
    written = {tensor.storage for op in updates for name in op.mutates for tensor in op.tensors(name)}
    return sum(row.nbytes for row in ledger.storages if row.category == "parameter" and row.id in written)


def fsdp(step: TimedStep, model: Model, group: RankGroup, fabric: Fabric, options: ParallelOptions) -> ParallelOutcome:
    """ZeRO stage 3: weights, gradients and optimizer state in parts."""
    step = step.scaled(1 / group.ranks, "optimizer", "other")
    units, around = fsdp_units(step.ledger, model)
    gradients = gradients_of(step.ledger)
    by_unit = {unit.path: sum(row.nbytes for row in gradients if is_inside(row.name, unit.path)) for unit in units}
    by_unit[_AROUND] = sum(row.nbytes for row in gradients) - sum(by_unit.values())
    run = _ShardedRun(step, group, fabric, by_unit, prefetch=options.overlap)
    time_s = run.clocks.steady_s(lambda: run.one_step(units, around))
    rows = exchange("weights, all-gather", run.gathered) + exchange("gradients, reduce-scatter", run.scattered)
    turns = " gathered one by one, the next while one computes"
    words = (
        f"{len(units)} units" + (turns if options.overlap else ", each gathered only when it is its turn"),
        "weights and gradients travel in their own dtype",
        "communication does not slow the kernels it runs beside",
    )
    return ParallelOutcome(time_s, rows, words if group.ranks > 1 else ())


class _ShardedRun:
    """Compute and communication side by side."""

    def __init__(
        self, step: TimedStep, group: RankGroup, fabric: Fabric, gradients: Mapping[str, float], *, prefetch: bool
    ) -> None:
        """`gradients`: their bytes, by the path of the unit."""
        self.step, self.group, self.fabric, self.gradients, self.prefetch = step, group, fabric, gradients, prefetch
        self.clocks = step.clocks()
        self.free_s = 0.0
        """When the stream of communication is done with all it has."""
        self.gathered: list[Message] = []
        self.scattered: list[Message] = []
        """Of the last step."""

    def one_step(self, units: Sequence[ModelUnit], around: int) -> None:
        """`around`: bytes of the weights that belong to no unit."""
        self.gathered, self.scattered = [], []
        self.clocks.wait_for(self.gather(around, after_s=self.clocks.now_s))
        self.run_phase("forward", units)
        backward = sorted((unit for unit in units if unit.backward), key=lambda unit: unit.backward[0])
        self.run_phase("backward", backward)
        if backward:
            self.scatter(self.gradients[_AROUND])
        self.clocks.wait_for(self.free_s)
        self.clocks.run(self.step.update)

    def gather(self, nbytes: float, *, after_s: float) -> float:
        transfer = all_gather(nbytes, self.group, self.fabric)
        self.gathered.append((nbytes, transfer))
        self.free_s = max(self.free_s, after_s) + transfer.time_s
        return self.free_s

    def scatter(self, nbytes: float) -> None:
        transfer = reduce_scatter(nbytes, self.group, self.fabric)
        self.scattered.append((nbytes, transfer))
        self.free_s = max(self.free_s, self.clocks.device_s) + transfer.time_s

    def run_phase(self, phase: Phase, units: Sequence[ModelUnit]) -> None:
        """Every op of forward or backward; a unit's first waits for its weights, its last in backward sends its
        gradients. `units` in the order of the phase."""
        backward = phase == "backward"
        ops = [unit.backward if backward else unit.forward for unit in units]
        starts = {places[0]: number for number, places in enumerate(ops)}
        ends = {places[-1]: number for number, places in enumerate(ops)} if backward else {}
        arrived: dict[int, float] = {}

        def fetch(number: int) -> None:
            arrived[number] = self.gather(units[number].parameter_bytes, after_s=self.clocks.device_s)

        if (
            backward and self.prefetch and units
        ):  # the host runs ahead: the first weights travel while the loss is computed
            fetch(0)
        for op in self.step.phases[phase]:
            if (number := starts.get(op)) is not None:
                if number not in arrived:
                    fetch(number)
                self.clocks.wait_for(arrived[number])
                if self.prefetch and number + 1 < len(units):
                    fetch(number + 1)
            self.clocks.run((op,))
            if (number := ends.get(op)) is not None:
                self.scatter(self.gradients[units[number].path])
