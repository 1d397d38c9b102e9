"""Weak and strong scaling: from one GPU to thousands, with PALEO's communication models beside.

Weak: every replica keeps its batch, the global batch grows. Strong: the global batch is kept and divided, so every
replica has less to do, down to one sample. A curve starts at the smallest run of its kind: one GPU, or one replica of
a model that tensor and pipeline parallelism spread over several; speed-up and efficiency are against that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from rooflight.errors import BadInput
from rooflight.hardware.device import Device
from rooflight.ledger import Note
from rooflight.parallel.fabric import Fabric
from rooflight.parallel.layout import Layout, ParallelOptions
from rooflight.prediction.cluster.combined import ParallelStep, predict
from rooflight.prediction.cluster.communication import PALEO
from rooflight.prediction.cluster.step import Retime, StepAt
from rooflight.prediction.result import ScalingPoint

Kind = Literal["weak", "strong"]
MOST_GPUS = 4096


LayoutAt = Callable[[int], Layout]
"""The layout of so many replicas: more of them may need more nodes."""
FabricOf = Callable[[Layout], Fabric]
"""What joins the GPUs of a run: two cards may have a bridge that eight have not."""


@dataclass(frozen=True)
class ScalingCurve:
    steps: tuple[ParallelStep, ...]
    points: tuple[ScalingPoint, ...]
    """What each of them is against the first; whether they fit is not looked for here."""
    notes: tuple[Note, ...]


def curve(
    kind: Kind,
    step_at: StepAt,
    layout_at: LayoutAt,
    fabric_of: FabricOf,
    *,
    batch: int,
    device: Device,
    options: ParallelOptions | None = None,
    retime: Retime | None = None,
    replicas: Sequence[int] | None = None,
) -> ScalingCurve:
    """Runs of 1, 2, 4, ... replicas, up to 4,096 GPUs unless `replicas` says which.

    `batch` is a replica's for weak scaling, the global one for strong.
    A replica whose batch cannot be cut into as many micro-batches as the options ask for is cut as by default.
    """
    options = options or ParallelOptions()
    step_at = cache(step_at)
    alone = layout_at(1)
    each = alone.tensor * alone.pipeline
    doubled = [2**power for power in range(max(MOST_GPUS // each, 1).bit_length())]
    counts = list(replicas) if replicas is not None else doubled
    if not counts or min(counts) < 1:
        raise BadInput("no-runs", f"no runs of at least one replica of {each} GPUs each: give other numbers")
    notes: list[Note] = []
    steps: list[ParallelStep] = []
    points: list[ScalingPoint] = []
    first_rates: dict[str, float] = {}
    for count in counts:
        size = batch if kind == "weak" else -(-batch // count)
        if kind == "strong" and count > batch:
            notes.append(_end(batch, last=points[-1].gpus // each if points else 0, following=count))
            break
        if kind == "strong" and batch % count:
            notes.append(
                Note(
                    "uneven-replicas",
                    f"{count} replicas do not divide {batch}: each takes {size}, as many as the fullest",
                )
            )
        cut = options
        if options.micro_batches and size % options.micro_batches:
            cut = replace(options, micro_batches=None)
            notes.append(
                Note(
                    "uneven-micro-batches",
                    f"a batch of {size} cannot be cut into {options.micro_batches} micro-batches: that row of the "
                    f"{kind} curve is as without --micro-batches",
                )
            )
        larger = layout_at(count)
        fabric = fabric_of(larger)
        step = predict(step_at, larger, fabric, batch=size, device=device, options=cut, retime=retime)
        steps.append(step)
        rates = {name: step.global_batch / time_s for name, time_s in paleo_times(step, fabric).items()}
        first_rates = first_rates or rates
        points.append(_point(step, steps[0], {name: rate / first_rates["tree"] for name, rate in rates.items()}))
    return ScalingCurve(tuple(steps), tuple(points), tuple(notes))


def _end(batch: int, *, last: int, following: int) -> Note:
    """Why a curve of strong scaling goes no further."""
    if last == batch:
        return Note(
            "end-of-curve", f"the curve ends where a global batch of {batch} has no sample left for another replica"
        )
    return Note(
        "end-of-curve",
        f"the curve ends before {following} replicas, for which a global batch of {batch} has too few samples",
    )


def _point(step: ParallelStep, first: ParallelStep, paleo_speedup: dict[str, float]) -> ScalingPoint:
    speedup = step.throughput / first.throughput
    return ScalingPoint(
        gpus=step.layout.gpus,
        batch=step.batch,
        global_batch=step.global_batch,
        time_s=step.time_s,
        throughput=step.throughput,
        exposed_s=step.exposed_s,
        speedup=speedup,
        efficiency=speedup / (step.layout.gpus / first.layout.gpus),
        gpu_bound_efficiency=step.gpu_bound_efficiency(first),
        paleo_speedup=paleo_speedup,
    )


def paleo_times(step: ParallelStep, fabric: Fabric) -> dict[str, float]:
    """Computation and bubble, then one all-reduce of all gradients over the slowest link, hidden by nothing."""
    ranks = step.layout.data
    link = fabric.between if step.layout.data_group.nodes > 1 else fabric.inside
    link_time_s = step.gradient_bytes / link.bytes_per_s
    return {name: step.compute_s + step.bubble_s + time(link_time_s, ranks) for name, time in PALEO.items()}
