"""Data parallel ranks that share what replicas would each hold: ZeRO stages 1 to 3, and FSDP.

Stages 1 and 2: gradients are reduce-scattered in buckets while backward runs, each rank updates its part of the
weights, and an all-gather hands the new weights round, exposed, before the next step.

Stage 3 and FSDP: weights lie in parts, too. Each unit (a transformer block, or a top-level child) is gathered before
its forward and again before its backward, and its gradients are reduce-scattered after it. The next unit's weights
travel while this one computes, never more than one ahead; gathers and scatters share one stream. What belongs to no
unit is gathered once and stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rooflight.prediction.parallel.blocks import Model, children
from rooflight.prediction.parallel.communication import Transfer, all_gather, reduce_scatter
from rooflight.prediction.parallel.ddp import BUCKET_BYTES, FIRST_BUCKET_BYTES, bucket_words, buckets, gradients, sent
from rooflight.prediction.parallel.fabric import Fabric, Group
from rooflight.prediction.parallel.states import states_of
from rooflight.prediction.parallel.step import Clocks, Outcome, TimedStep, exchange, steady_s


def zero(step: TimedStep, group: Group, fabric: Fabric, *, overlap: bool = True,
         first_bytes: float = FIRST_BUCKET_BYTES, cap_bytes: float = BUCKET_BYTES) -> Outcome:  # fmt: skip
    """Stages 1 and 2: they differ in memory, not in what is sent."""
    step = step.scaled(1 / group.ranks, "optimizer")
    found = buckets(gradients(step.ledger), first_bytes=first_bytes, cap_bytes=cap_bytes)
    scattered = [reduce_scatter(bucket.nbytes, group, fabric) for bucket in found]
    updates = bool(step.phases["optimizer"]) and group.ranks > 1
    weights = states_of(step.ledger).parameter_bytes
    gathered = all_gather(weights, group, fabric)
    clocks = Clocks(step)

    def one_step() -> None:
        clocks.run((*step.phases["forward"], *step.phases["backward"]))
        clocks.wait_for(sent(found, scattered, clocks.ends, after_s=0.0 if overlap else clocks.gpu_s))
        clocks.run(step.phases["optimizer"])
        if updates:
            clocks.wait_for(clocks.now_s + gathered.time_s)

    time_s = steady_s(clocks, one_step)
    rows = exchange("gradients, reduce-scatter", [bucket.nbytes for bucket in found], scattered)
    words = list(bucket_words(found, group, overlap=overlap, first_bytes=first_bytes, cap_bytes=cap_bytes))
    if updates:
        rows += exchange("weights, all-gather", [weights], [gathered])
        words.append("each rank updates its part of the weights; new weights are gathered after the update, exposed")
    return Outcome(time_s, rows, tuple(words))


@dataclass(frozen=True)
class _Wrapped:
    """A unit of FSDP: its weights and the ops that need them."""

    nbytes: int
    forward: tuple[int, ...]
    backward: tuple[int, ...]


def wrapped(step: TimedStep, model: Model) -> tuple[list[_Wrapped], int]:
    """The units FSDP gathers one at a time, and the bytes of the weights around them."""
    if model.blocks:
        units = [model.units[number] for number in model.blocks]
        made = [_Wrapped(unit.parameter_bytes, unit.forward, unit.backward) for unit in units]
    else:
        made = _top_level(step)
    everything = sum(s.nbytes for s in step.ledger.storages if s.category == "parameter")
    return made, everything - sum(unit.nbytes for unit in made)


def _top_level(step: TimedStep) -> list[_Wrapped]:
    ledger, made = step.ledger, []
    for child in children(ledger.modules)[""]:
        inside = f"{child.path}."
        nbytes = sum(s.nbytes for s in ledger.storages if s.category == "parameter" and s.name.startswith(inside))
        ops = [op for op in ledger.ops if op.module == child.path or op.module.startswith(inside)]
        forward = tuple(op.index for op in ops if op.phase == "forward")
        backward = tuple(op.index for op in ops if op.phase == "backward")
        if nbytes and forward:
            made.append(_Wrapped(nbytes, forward, backward))
    return sorted(made, key=lambda unit: unit.forward[0])


def fsdp(step: TimedStep, model: Model, group: Group, fabric: Fabric, *, prefetch: bool = True) -> Outcome:
    """ZeRO stage 3: weights, gradients and optimizer state in parts."""
    step = step.scaled(1 / group.ranks, "optimizer")
    units, around = wrapped(step, model)
    run = _Run(step, group, fabric, prefetch=prefetch)
    time_s = steady_s(run.clocks, lambda: run.one_step(units, around))
    rows = exchange("weights, all-gather", run.gathered_bytes, run.gathered)
    rows += exchange("gradients, reduce-scatter", run.scattered_bytes, run.scattered)
    words = (
        f"{len(units)} units gathered one by one, the next while one computes" if prefetch
        else f"{len(units)} units, each gathered only when it is its turn",
        "weights and gradients travel in their own dtype",
        "communication does not slow the kernels it runs beside",
    ) if group.ranks > 1 else ()  # fmt: skip
    return Outcome(time_s, rows, words)


class _Run:
    """Compute and communication side by side."""

    def __init__(self, step: TimedStep, group: Group, fabric: Fabric, *, prefetch: bool) -> None:
        self.step, self.group, self.fabric, self.prefetch = step, group, fabric, prefetch
        self.clocks = Clocks(step)
        self.free_s = 0.0
        """When the stream of communication is done with all it has."""
        self._nothing_sent()

    def _nothing_sent(self) -> None:
        self.gathered: list[Transfer] = []
        self.gathered_bytes: list[float] = []
        self.scattered: list[Transfer] = []
        self.scattered_bytes: list[float] = []

    def one_step(self, units: Sequence[_Wrapped], around: int) -> None:
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
        self.free_s = max(self.free_s, self.clocks.gpu_s) + transfer.time_s

    def forward(self, units: Sequence[_Wrapped]) -> None:
        starts = {unit.forward[0]: number for number, unit in enumerate(units)}
        begun = [0.0] * len(units)
        arrived: dict[int, float] = {}
        for op in self.step.phases["forward"]:
            if (number := starts.get(op)) is not None:
                if number not in arrived:
                    arrived[number] = self.gather(units[number].nbytes, after_s=self.clocks.gpu_s)
                self.clocks.wait_for(arrived[number])
                begun[number] = self.clocks.gpu_s
                if self.prefetch and number + 1 < len(units):
                    arrived[number + 1] = self.gather(units[number + 1].nbytes, after_s=begun[number])
            self.clocks.run((op,))

    def backward(self, units: Sequence[_Wrapped], around: int) -> None:
        order = sorted((unit for unit in units if unit.backward), key=lambda unit: unit.backward[0])
        starts = {unit.backward[0]: number for number, unit in enumerate(order)}
        ends = {unit.backward[-1]: number for number, unit in enumerate(order)}
        arrived: dict[int, float] = {}
        if self.prefetch and order:  # the host runs ahead: the first weights travel while the loss is computed
            arrived[0] = self.gather(order[0].nbytes, after_s=self.clocks.gpu_s)
        for op in self.step.phases["backward"]:
            if (number := starts.get(op)) is not None:
                if number not in arrived:
                    arrived[number] = self.gather(order[number].nbytes, after_s=self.clocks.gpu_s)
                self.clocks.wait_for(arrived[number])
                if self.prefetch and number + 1 < len(order):
                    arrived[number + 1] = self.gather(order[number + 1].nbytes, after_s=self.clocks.gpu_s)
            self.clocks.run((op,))
            if (number := ends.get(op)) is not None:
                self.scatter(order[number].nbytes)
        if order and around:
            self.scatter(around)
