"""Weak and strong scaling: from one GPU to thousands, with PALEO's communication models beside.

Weak: every replica keeps its batch, the global batch grows. Strong: the global batch is kept and divided, so every
replica has less to do, down to one sample. A curve starts at the smallest run of its kind: one GPU, or one replica of
a model that tensor and pipeline parallelism spread over several; speed-up and efficiency are against that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rooflight.errors import BadInput
from rooflight.hardware.device import Device
from rooflight.parallel.fabric import Fabric
from rooflight.parallel.layout import Layout, ParallelOptions
from rooflight.prediction.cluster.combined import ParallelStep, predict
from rooflight.prediction.cluster.communication import PALEO
from rooflight.prediction.cluster.step import Retime, StepAt, TimedStep

Kind = Literal["weak", "strong"]
MOST_GPUS = 4096


@dataclass(frozen=True)
class CurvePoint:
    """One size of run."""

    gpus: int
    step: ParallelStep
    speedup: float
    """Throughput over that of the first point."""
    efficiency: float
    """Speed-up over the ratio of GPUs."""
    paleo_time_s: dict[str, float]
    """The step as PALEO has it: computation, then one all-reduce of all gradients, by communication model."""
    paleo_speedup: dict[str, float]


LayoutAt = Callable[[int], Layout]
"""The layout of so many replicas: more of them may need more nodes."""
FabricOf = Callable[[Layout], Fabric]
"""What joins the GPUs of a run: two cards may have a bridge that eight have not."""


@dataclass(frozen=True)
class ScalingCurve:
    kind: Kind
    points: tuple[CurvePoint, ...]
    notes: tuple[str, ...]

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Those of the largest run."""
        return self.points[-1].step.assumptions


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
    known: dict[int, TimedStep] = {}

    def remembered(size: int) -> TimedStep:
        if size not in known:
            known[size] = step_at(size)
        return known[size]

    alone = layout_at(1)
    one = alone.tensor * alone.pipeline
    counts = list(replicas) if replicas is not None else _doubling(MOST_GPUS // one)
    if not counts or min(counts) < 1:
        raise BadInput(f"no runs of at least one replica of {one} GPUs each: give other numbers")
    notes: list[str] = []
    points: list[CurvePoint] = []
    for count in counts:
        size = batch if kind == "weak" else -(-batch // count)
        if kind == "strong" and count > batch:
            notes.append(f"the curve ends where a global batch of {batch} has no sample left for another replica")
            break
        if kind == "strong" and batch % count:
            notes.append(f"{count} replicas do not divide {batch}: each takes {size}, as many as the fullest")
        cut = options
        if options.micro_batches and size % options.micro_batches:
            cut = replace(options, micro_batches=None)
            notes.append(
                f"a batch of {size} cannot be cut into {options.micro_batches} micro-batches: that row of the "
                f"{kind} curve is as without --micro-batches"
            )
        larger = layout_at(count)
        fabric = fabric_of(larger)
        step = predict(remembered, larger, fabric, batch=size, device=device, options=cut, retime=retime)
        points.append(_point(step, points[0] if points else None, fabric))
    return ScalingCurve(kind, tuple(points), tuple(notes))


def _doubling(most: int) -> list[int]:
    return [2**power for power in range(max(most, 1).bit_length())]


def _point(step: ParallelStep, first: CurvePoint | None, fabric: Fabric) -> CurvePoint:
    base = first.step if first else step
    ratio = step.layout.gpus / base.layout.gpus
    speedup = step.throughput / base.throughput
    paleo = paleo_times(step, fabric)
    throughput = {name: step.global_batch / time_s for name, time_s in paleo.items()}
    first_rate = base.global_batch / (first.paleo_time_s if first else paleo)["tree"]
    return CurvePoint(
        step.layout.gpus,
        step,
        speedup,
        speedup / ratio,
        paleo,
        {name: rate / first_rate for name, rate in throughput.items()},
    )


def paleo_times(step: ParallelStep, fabric: Fabric) -> dict[str, float]:
    """Computation and bubble, then one all-reduce of all gradients over the slowest link, hidden by nothing."""
    ranks = step.layout.data
    link = fabric.between if step.layout.data_group.nodes > 1 else fabric.inside
    link_time_s = step.gradient_bytes / link.bytes_per_s
    return {name: step.compute_s + step.bubble_s + time(link_time_s, ranks) for name, time in PALEO.items()}
