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

from collections.abc import Sequence

from rooflight.parallel.blocks import FsdpUnit, Model, fsdp_units
from rooflight.parallel.fabric import Fabric, RankGroup
from rooflight.parallel.gradients import BUCKET_BYTES, FIRST_BUCKET_BYTES, Bucket, buckets, gradients_of
from rooflight.parallel.state_memory import states_of
from rooflight.prediction.cluster.communication import Transfer, all_gather, all_reduce, reduce_scatter
from rooflight.prediction.cluster.step import ParallelOutcome, TimedStep, exchange

_MIB = 2**20


def sent(found: Sequence[Bucket], transfers: Sequence[Transfer], ends: dict[int, float], *, after_s: float) -> float:
    """When the last bucket has arrived: each starts when it is ready and the one before is done, after `after_s`."""
    free = after_s
    for bucket, transfer in zip(found, transfers, strict=True):
        free = max(free, ends[bucket.ready]) + transfer.time_s
    return free


def ddp(
    step: TimedStep,
    group: RankGroup,
    fabric: Fabric,
    *,
    overlap: bool = True,
    share: float = 1.0,
    passes: int = 1,
    first_bytes: float = FIRST_BUCKET_BYTES,
    cap_bytes: float = BUCKET_BYTES,
) -> ParallelOutcome:
    """The step of one replica among `group.ranks`. `share`: the part of every gradient that this rank has. `passes`:
    micro-batches that follow one another; gradients are sent in the last."""
    found = buckets(gradients_of(step.ledger, share=share), first_bytes=first_bytes, cap_bytes=cap_bytes)
    transfers = [all_reduce(bucket.nbytes, group, fabric) for bucket in found]
    clocks = step.clocks()

    def one_step() -> None:
        for _ in range(passes):
            clocks.run((*step.phases["forward"], *step.phases["backward"]))
        clocks.wait_for(sent(found, transfers, clocks.ends, after_s=0.0 if overlap else clocks.device_s))
        clocks.run(step.phases["optimizer"])

    time_s = clocks.steady_s(one_step)
    rows = exchange("gradients, all-reduce", [bucket.nbytes for bucket in found], transfers)
    words = bucket_words(found, group, overlap=overlap, first_bytes=first_bytes, cap_bytes=cap_bytes)
    return ParallelOutcome(time_s, rows, words)


def bucket_words(
    found: Sequence[Bucket], group: RankGroup, *, overlap: bool, first_bytes: float, cap_bytes: float
) -> tuple[str, ...]:
    """The assumptions of summing gradients in buckets."""
    if not found or group.ranks == 1:
        return ()
    when = "on a stream of their own while backward runs" if overlap else "after backward"
    sizes = f"{first_bytes / _MIB:g} MiB first, then {cap_bytes / _MIB:g} MiB"
    filled = "one message" if len(found) == 1 else f"{len(found)} buckets in the order backward makes them, {sizes}"
    return (
        f"gradients: {filled}, {when}",
        *(("communication does not slow the kernels it runs beside",) if overlap else ()),
    )


def zero(
    step: TimedStep,
    group: RankGroup,
    fabric: Fabric,
    *,
    overlap: bool = True,
    first_bytes: float = FIRST_BUCKET_BYTES,
    cap_bytes: float = BUCKET_BYTES,
) -> ParallelOutcome:
    """Stages 1 and 2: they differ in memory, not in what is sent."""
    step = step.scaled(1 / group.ranks, "optimizer")
    found = buckets(gradients_of(step.ledger), first_bytes=first_bytes, cap_bytes=cap_bytes)
    scattered = [reduce_scatter(bucket.nbytes, group, fabric) for bucket in found]
    updates = bool(step.phases["optimizer"]) and group.ranks > 1
    weights = states_of(step.ledger).parameter_bytes
    gathered = all_gather(weights, group, fabric)
    clocks = step.clocks()

    def one_step() -> None:
        clocks.run((*step.phases["forward"], *step.phases["backward"]))
        clocks.wait_for(sent(found, scattered, clocks.ends, after_s=0.0 if overlap else clocks.device_s))
        clocks.run(step.phases["optimizer"])
        if updates:
            clocks.wait_for(clocks.now_s + gathered.time_s)

    time_s = clocks.steady_s(one_step)
    rows = exchange("gradients, reduce-scatter", [bucket.nbytes for bucket in found], scattered)
    words = list(bucket_words(found, group, overlap=overlap, first_bytes=first_bytes, cap_bytes=cap_bytes))
    if updates:
        rows += exchange("weights, all-gather", [weights], [gathered])
        words.append("each rank updates its part of the weights; new weights are gathered after the update, exposed")
    return ParallelOutcome(time_s, rows, tuple(words))


def fsdp(step: TimedStep, model: Model, group: RankGroup, fabric: Fabric, *, prefetch: bool = True) -> ParallelOutcome:
    """ZeRO stage 3: weights, gradients and optimizer state in parts."""
    step = step.scaled(1 / group.ranks, "optimizer")
    units, around = fsdp_units(step.ledger, model)
    run = _ShardedRun(step, group, fabric, prefetch=prefetch)
    time_s = run.clocks.steady_s(lambda: run.one_step(units, around))
    rows = exchange("weights, all-gather", run.gathered_bytes, run.gathered)
    rows += exchange("gradients, reduce-scatter", run.scattered_bytes, run.scattered)
    words = (
        (
            f"{len(units)} units gathered one by one, the next while one computes"
            if prefetch
            else f"{len(units)} units, each gathered only when it is its turn",
            "weights and gradients travel in their own dtype",
            "communication does not slow the kernels it runs beside",
        )
        if group.ranks > 1
        else ()
    )
    return ParallelOutcome(time_s, rows, words)


class _ShardedRun:
    """Compute and communication side by side."""

    def __init__(self, step: TimedStep, group: RankGroup, fabric: Fabric, *, prefetch: bool) -> None:
        self.step, self.group, self.fabric, self.prefetch = step, group, fabric, prefetch
        self.clocks = step.clocks()
        self.free_s = 0.0
        """When the stream of communication is done with all it has."""
        self._nothing_sent()

    def _nothing_sent(self) -> None:
        self.gathered: list[Transfer] = []
        self.gathered_bytes: list[float] = []
        self.scattered: list[Transfer] = []
        self.scattered_bytes: list[float] = []

    def one_step(self, units: Sequence[FsdpUnit], around: int) -> None:
        """`around`: bytes of the weights that belong to no unit."""
        self._nothing_sent()
        self.clocks.wait_for(self.gather(around, after_s=self.clocks.now_s))
        self.forward(units)
        self.backward(units, around)
        self.clocks.wait_for(self.free_s)
        self.clocks.run(self.step.phases["optimizer"])

    def gather(self, nbytes: float, *, after_s: float) -> float:
        transfer = all_gather(nbytes, self.group, self.fabric)
        self.gathered.append(transfer)
        self.gathered_bytes.append(nbytes)
        self.free_s = max(self.free_s, after_s) + transfer.time_s
        return self.free_s

    def scatter(self, nbytes: float) -> None:
        transfer = reduce_scatter(nbytes, self.group, self.fabric)
        self.scattered.append(transfer)
        self.scattered_bytes.append(nbytes)
        self.free_s = max(self.free_s, self.clocks.device_s) + transfer.time_s

    def forward(self, units: Sequence[FsdpUnit]) -> None:
        starts = {unit.forward[0]: number for number, unit in enumerate(units)}
        begun = [0.0] * len(units)
        arrived: dict[int, float] = {}
        for op in self.step.phases["forward"]:
            if (number := starts.get(op)) is not None:
                if number not in arrived:
                    arrived[number] = self.gather(units[number].nbytes, after_s=self.clocks.device_s)
                self.clocks.wait_for(arrived[number])
                begun[number] = self.clocks.device_s
                if self.prefetch and number + 1 < len(units):
                    arrived[number + 1] = self.gather(units[number + 1].nbytes, after_s=begun[number])
            self.clocks.run((op,))

    def backward(self, units: Sequence[FsdpUnit], around: int) -> None:
        order = sorted((unit for unit in units if unit.backward), key=lambda unit: unit.backward[0])
        starts = {unit.backward[0]: number for number, unit in enumerate(order)}
        ends = {unit.backward[-1]: number for number, unit in enumerate(order)}
        arrived: dict[int, float] = {}
        if self.prefetch and order:  # the host runs ahead: the first weights travel while the loss is computed
            arrived[0] = self.gather(order[0].nbytes, after_s=self.clocks.device_s)
        for op in self.step.phases["backward"]:
            if (number := starts.get(op)) is not None:
                if number not in arrived:
                    arrived[number] = self.gather(order[number].nbytes, after_s=self.clocks.device_s)
                self.clocks.wait_for(arrived[number])
                if self.prefetch and number + 1 < len(order):
                    arrived[number + 1] = self.gather(order[number + 1].nbytes, after_s=self.clocks.device_s)
            self.clocks.run((op,))
            if (number := ends.get(op)) is not None:
                self.scatter(order[number].nbytes)
        if order and around:
            self.scatter(around)
