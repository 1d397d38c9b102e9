"""Pipeline parallelism: stages of layers, micro-batches that follow one another through them.

One forward, one backward (1F1B): with p stages and m micro-batches the slowest stage works m times, and waits while the
first micro-batch comes to it and the last one leaves: (p - 1) more turns where stages are equal, a bubble of (p - 1)/m.
Interleaving (v chunks of layers a stage) makes the bubble v times shorter and sends v times as often.
Activations pass from stage to stage while nobody computes on them, one transfer each way for every micro-batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rooflight.errors import BadInput
from rooflight.ledger import Ledger, is_inside
from rooflight.parallel.blocks import Model, ModelUnit
from rooflight.parallel.fabric import Fabric
from rooflight.parallel.layout import Layout, ParallelOptions
from rooflight.prediction.cluster.communication import Transfer, all_gather, point_to_point
from rooflight.prediction.cluster.step import TimedStep


@dataclass(frozen=True)
class PipelineStage:
    """What one pipeline rank does with one micro-batch, and its part of the weights."""

    units: tuple[int, ...]
    forward_s: float
    backward_s: float
    optimizer_s: float
    weight_share: float

    @property
    def turn_s(self) -> float:
        return self.forward_s + self.backward_s


def micro_batches_for(batch: int, stages: int, options: ParallelOptions) -> int:
    """Return the number of micro-batches that a replica's batch is cut into."""
    if (asked := options.micro_batches) is not None:
        if asked < 1 or batch % asked:
            raise BadInput(
                "not-divisible",
                f"a batch of {batch} cannot be cut into {asked} equal micro-batches: use a divisor of {batch}",
            )
        return asked
    if stages == 1:
        return 1
    least = min(options.micro_batches_a_stage * stages, batch)
    return next(count for count in range(least, batch + 1) if batch % count == 0)


def check(model: Model, layout: Layout, *, interleave: int = 1) -> None:
    """One line for a model that has not so many layers."""
    layers, what = (len(model.blocks), "blocks") if model.blocks else (len(model.units), "layers")
    if layout.pipeline * interleave > layers:
        chunks = f"{layout.pipeline} pipeline stages" + (f" of {interleave} chunks each" if interleave > 1 else "")
        raise BadInput(
            "not-divisible", f"{chunks} are more than the model's {layers} {what}: use at most {layers // interleave}"
        )


def stages_of(step: TimedStep, model: Model, count: int) -> list[PipelineStage]:
    """Equally many blocks a stage where that is possible, as Megatron-LM cuts; else the cut with the shortest slowest
    stage. What comes before the blocks goes to the first stage, what comes after to the last.
    """
    groups = even_units(model, count)
    if groups is None:
        groups = _balanced([_busy(step, unit.forward) + _busy(step, unit.backward) for unit in model.units], count)
    total = sum(unit.parameter_bytes for unit in model.units) or 1
    update_s = _busy(step, step.update)
    stages = []
    for numbers in groups:
        units = [model.units[number] for number in numbers]
        share = _weight_bytes(step.ledger, units) / total
        forward_s = sum(_busy(step, unit.forward) for unit in units)
        backward_s = sum(_busy(step, unit.backward) for unit in units)
        stages.append(PipelineStage(tuple(numbers), forward_s, backward_s, update_s * share, share))
    return stages


def _weight_bytes(ledger: Ledger, units: Sequence[ModelUnit]) -> int:
    """Return the bytes of a stage's weights. A weight that two stages use lies on both."""
    used = {tensor.storage for unit in units for index in unit.forward for tensor in ledger.ops[index].inputs}
    return sum(
        row.nbytes
        for row in ledger.storages
        if row.category == "parameter" and (row.id in used or any(is_inside(row.name, unit.path) for unit in units))
    )


def _busy(step: TimedStep, ops: Sequence[int]) -> float:
    """The longer of host and GPU, waits for tensor parallel ranks included."""
    waits = sum(step.wait_s[index] for index in ops) if step.wait_s else 0.0
    return max(sum(step.gpu_s[index] for index in ops) + waits, sum(step.host_s[index] for index in ops))


def even_units(model: Model, count: int) -> list[list[int]] | None:
    """The units of every stage; `None`: there are no blocks, or they cannot be shared out evenly."""
    if not model.blocks or len(model.blocks) % count:
        return None
    size = len(model.blocks) // count
    starts = [model.blocks[stage * size] for stage in range(count)]
    starts[0] = 0
    return [list(range(a, b)) for a, b in zip(starts, [*starts[1:], len(model.units)], strict=True)]


def _balanced(seconds: Sequence[float], count: int) -> list[list[int]]:
    """The cut of a row into `count` stretches whose largest sum is least: exact, by its first stage, then the rest."""
    n = len(seconds)
    sums = [0.0]
    for value in seconds:
        sums.append(sums[-1] + value)
    best = [[math.inf] * (n + 1) for _ in range(count + 1)]
    cut = [[0] * (n + 1) for _ in range(count + 1)]
    best[0][0] = 0.0
    for parts in range(1, count + 1):
        for end in range(parts, n + 1):
            for start in range(parts - 1, end):
                worst = max(best[parts - 1][start], sums[end] - sums[start])
                if worst < best[parts][end]:
                    best[parts][end], cut[parts][end] = worst, start
    groups, end = [], n
    for parts in range(count, 0, -1):
        start = cut[parts][end]
        groups.append(list(range(start, end)))
        end = start
    return groups[::-1]


@dataclass(frozen=True)
class PipelineSchedule:
    """A pipeline's forward and backward passes over all micro-batches."""

    time_s: float
    bubble_s: float
    """What the slowest stage waits because the pipeline fills and drains."""
    transfers: int
    """Messages of one rank."""
    exposed_s: float
    """Transfers on the way that decides."""


def schedule(
    stages: Sequence[PipelineStage], micro_batches: int, transfer: Transfer, *, interleave: int = 1
) -> PipelineSchedule:
    """1F1B over these stages. The slowest sets the pace; the others are passed once on the way in and out."""
    p, m, v = len(stages), micro_batches, interleave
    slowest = max(stage.turn_s for stage in stages)
    bubble = (sum(stage.turn_s for stage in stages) - slowest) / v
    ways = 2 if any(stage.backward_s for stage in stages) else 1
    hops = ways * ((p * v - 1) + (m - 1) * v) if p > 1 else 0
    exposed = hops * transfer.time_s
    return PipelineSchedule(m * slowest + bubble + exposed, bubble, ways * m * v if p > 1 else 0, exposed)


def passed_on(model: Model) -> float:
    """Bytes that go from one stage to the next for one micro-batch."""
    numbers = model.blocks or tuple(range(len(model.units)))
    return max((model.units[number].output_bytes for number in numbers[:-1]), default=0)


def transfer_between(model: Model, layout: Layout, fabric: Fabric, *, sequence: bool) -> tuple[Transfer, float]:
    """One message from stage to stage. Each tensor parallel rank sends its part; the next node's ranks gather them."""
    group = layout.pipeline_group
    nbytes = passed_on(model) / layout.tensor
    sent = point_to_point(nbytes, fabric, across_nodes=group.nodes > 1)
    if layout.tensor == 1 or sequence:
        return sent, nbytes
    gathered = all_gather(passed_on(model), layout.tensor_group, fabric)
    return Transfer(sent.time_s + gathered.time_s, f"{sent.how}, gathered by {gathered.how}"), nbytes


def words(
    model: Model,
    layout: Layout,
    stages: Sequence[PipelineStage],
    micro_batches: int,
    batch: int,
    options: ParallelOptions,
) -> tuple[str, ...]:
    """The assumptions of a pipeline."""
    interleave, asked = options.interleave, options.micro_batches is not None
    counts = [len(stage.units) for stage in stages]
    even = bool(model.blocks) and len(model.blocks) % len(stages) == 0
    cut = (
        f"{len(model.blocks) // len(stages)} blocks each, embedding with the first, head and loss with the last"
        if even
        else f"{min(counts)} to {max(counts)} layers each, cut where the slowest stage is shortest"
    )
    why = "" if asked else f" ({options.micro_batches_a_stage} a stage where the batch has as many: a choice)"
    lines = [
        f"{len(stages)} pipeline stages: {cut}",
        f"{micro_batches} micro-batches of {batch // micro_batches}{why}, one forward one backward (1F1B)",
        "activations pass from stage to stage unhidden",
    ]
    if interleave > 1:
        lines.append(f"interleaved: {interleave} chunks of layers a stage, the bubble {interleave} times shorter")
    if layout.pipeline_group.nodes > 1:
        lines.append("stages lie on different nodes: activations cross the network")
    return tuple(lines)
