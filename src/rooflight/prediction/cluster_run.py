"""From one GPU's predicted step to a run on many: what `parallel` needs of a step, and what it answers as a result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_in
from functools import cached_property, partial

import numpy as np
from msgspec.structs import replace

from rooflight import formatting, metrics
from rooflight.errors import BadInput
from rooflight.hardware.device import Device
from rooflight.ledger import Op
from rooflight.memory.largest import SizeFit
from rooflight.memory.predict import MemoryPredictor
from rooflight.memory.result import Memory
from rooflight.memory.sharding.ranks import FullestRank, Groups, fullest_rank
from rooflight.ops.op_tasks import tasks_of
from rooflight.parallel.blocks import model_of
from rooflight.parallel.fabric import Fabric, fabric_of
from rooflight.parallel.layout import Layout, ParallelOptions, parse
from rooflight.prediction.cluster import pipeline, tensor
from rooflight.prediction.cluster.combined import ParallelStep
from rooflight.prediction.cluster.combined import predict as predict_parallel
from rooflight.prediction.cluster.scaling import Kind, ScalingCurve, curve
from rooflight.prediction.cluster.step import Retime, TimedStep
from rooflight.prediction.device_run import gap_of, host_of, spec_seconds
from rooflight.prediction.paleo import Ppp
from rooflight.prediction.result import ClusterPrediction, Interval, Prediction, ScalingPoint, Traffic
from rooflight.prediction.tiers import Predictor
from rooflight.spec import NOT_ACCUMULATED
from rooflight.step.changes import in_padded
from rooflight.step.costed_step import Step, ledger_of

_SIZES = (1, 2, 4, 8, 16, 64, 256, 1024, 4096)
"""GPUs of the runs in a curve."""
_COMMUNICATION_DEVIATION = 0.25
"""Of exposed communication (one standard deviation): what is known of a cluster is its data sheet."""
_HOST_SHARE = 0.2
"""Of the computing time: from here on it is worth a line that the GPU waits for its host, as on one GPU."""
_ABOVE_ONE = 1.0005
"""An efficiency that is written as more than 100.0%."""

Timed = Callable[[Step], TimedStep]
StepAt = Callable[[int], Step]
"""A step of so many samples."""


def layout_of(parallel: str | None, *, gpus: int, nodes: int) -> Layout | None:
    """`None`: one GPU. Without a word on how, several GPUs are data parallel."""
    if gpus < 1 or nodes < 1:
        raise BadInput(f"--gpus={gpus} --nodes={nodes}: give at least 1 of each")
    if parallel is None and gpus * nodes == 1:
        return None
    return parse(parallel or "ddp", gpus=gpus, nodes=nodes)


def timed_by(predictor: Predictor) -> Timed:
    """Steps with the seconds of a calibrated or transferred prediction; the gaps between kernels are in them."""

    def timed(step: Step) -> TimedStep:
        times = predictor.op_times(step)
        busy = times.seconds + times.kernels * gap_of(predictor, graphs=step.is_graph) * (times.seconds > 0)
        host = [0.0] * len(busy) if step.is_graph else host_of(step, predictor).tolist()
        share = np.divide(times.seconds, busy, out=np.ones(len(busy)), where=busy > 0)
        return TimedStep(
            ledger_of(step),
            busy.tolist(),
            host,
            predictor.tier,
            kernel_share=share.tolist(),
            floor_s=times.floor_s.tolist(),
        )

    return timed


def timed_by_spec(device: Device, ppp: Ppp | None) -> Timed:
    def timed(step: Step) -> TimedStep:
        _, seconds = spec_seconds(step, device, ppp)
        return TimedStep(ledger_of(step), seconds.tolist(), [0.0] * len(seconds), "spec")

    return timed


def retime_by(predictor: Predictor, like: Step | None = None) -> Retime:
    """Times a matmul that tensor parallelism has cut. Its weights come from memory, as they do in a large model.
    `like`: as this step is run, which may pad odd products, or have a compiler that does where it is faster."""
    known: dict[object, float] = {}
    pads = like is not None and like.ledger.header.pad
    may_pad = like is not None and like.is_compiled

    def timed(op: Op) -> float:
        tasks = tasks_of(op)
        odd = float(predictor.task_seconds(tasks).sum())
        if not pads and not may_pad:
            return odd
        even = float(predictor.task_seconds([in_padded(task) for task in tasks]).sum())
        return even if pads else min(odd, even)

    def retime(op: Op) -> float:
        key = (op.name, op.precision, *(tensor.shape for tensor in op.inputs))
        if key not in known:
            known[key] = timed(op)
        return known[key]

    return retime


_ANY = 10**9
"""GPUs in a node of whatever size."""
GPUS_PER_NODE = 8
"""Where a device's file does not say."""


def in_nodes(layout: Layout, device: Device) -> Layout:
    """The GPUs that were asked for, in nodes that hold as many as nodes of this device do."""
    return layout.in_nodes_of(_most(device))


def _most(device: Device) -> int:
    return GPUS_PER_NODE if device.gpus_per_node is None else round(device.gpus_per_node.value)


def _nodes_note(asked: Layout, device: Device) -> tuple[str, ...]:
    """Where the nodes are other than those that were asked for: with one note a device."""
    layout, figure = in_nodes(asked, device), device.gpus_per_node
    full = layout.gpus == layout.nodes * layout.gpus_per_node
    if layout.nodes == asked.nodes:
        return ()
    why = f"a node holds {_most(device)} of {device.title}" + (
        f" ({figure.source})" if figure is not None else ", which is assumed: its file gives no gpus_per_node"
    )
    each = f" of {layout.gpus_per_node}" if full else f" of at most {layout.gpus_per_node}"
    if asked.nodes > 1:
        why += (
            f". Asked for were {asked.gpus_per_node:,} in each of {asked.nodes:,} nodes; --gpus is of one node, so "
            f"for {asked.gpus_per_node:,} in all leave --nodes out"
        )
    return (f"{device.name}: {layout.gpus:,} GPUs are {layout.nodes:,} nodes{each}, joined by a network: {why}",)


@dataclass(frozen=True)
class Cluster:
    """Equal nodes of one device, how the work is divided among them, and what tells how long one GPU takes."""

    device: Device
    asked: Layout
    """Its nodes are those that were asked for; `layout` has those that there are."""
    timed: Timed
    retime: Retime | None = None
    micro_batches: int | None = None

    @cached_property
    def layout(self) -> Layout:
        return in_nodes(self.asked, self.device)

    def _layout_at(self, replicas: int) -> Layout:
        """One node was not asked for, it is the default: more replicas fill it before they need another."""
        asked = self.asked if self.asked.nodes > 1 else replace_in(self.asked, gpus_per_node=_ANY)
        return in_nodes(replace_in(asked, data=replicas), self.device)

    @cached_property
    def fabric(self) -> Fabric:
        return self._fabric_of(self.layout)

    def _fabric_of(self, layout: Layout) -> Fabric:
        if self.device.kind == "cpu":
            raise BadInput(
                f"{self.device.name} is a CPU: many devices are predicted for GPUs only, leave --gpus and --nodes out"
            )
        return fabric_of(self.device, gpus_per_node=min(layout.gpus, layout.gpus_per_node))

    def spread(
        self, one: Prediction, step: Step, *, curves: bool, memories: MemoryPredictor, timeline: bool = False
    ) -> Prediction:
        """The prediction for one GPU as that for all of them, with the memory of the fullest. `curves`: weak and strong
        scaling too. `timeline`: of that GPU's memory."""
        if step.batch is None:
            raise BadInput("many GPUs need a batch: this model's inputs do not tell it")
        if step.ledger.header.accumulate > 1:
            raise BadInput(NOT_ACCUMULATED)
        batch = step.batch
        known: dict[int, TimedStep] = {}

        def step_at(size: int) -> TimedStep:
            if size not in known:
                known[size] = self.timed(_at(step, size))
            return known[size]

        found = predict_parallel(
            step_at, self.layout, self.fabric, batch=batch, device=self.device, retime=self.retime, options=self.options
        )
        alone = predict_parallel(step_at, Layout(), self.fabric, batch=batch, device=self.device)
        sizes = self._sizes()
        weak = self._curve("weak", step_at, batch, sizes) if curves else None
        # A live module has the batch of its inputs: its global batch cannot be divided.
        divisible = curves and step.at_batch is not None
        strong = self._curve("strong", step_at, found.global_batch, sizes) if divisible else None
        micro, rank = self._rank(partial(_at, step), batch, timed=step_at(batch // found.micro_batches))
        memory = memories.of(micro, self.device, timeline=timeline, change=rank)
        of_weak, of_strong = (_points(row, self._fits_along(row, step, memories)) for row in (weak, strong))
        curves_made = [row for row in (weak, strong) if row is not None]
        spread = _spread(
            replace(one, memory=memory),
            found,
            rank.words(memory.stage or 0),
            alone.time_s,
            of_weak,
            of_strong,
            curves_made,
        )
        assert spread.many is not None
        notes = (*_nodes_note(self.asked, self.device), *spread.many.notes)
        return replace(spread, many=replace(spread.many, notes=notes))

    def _fits_along(self, found: ScalingCurve | None, step: Step, memories: MemoryPredictor) -> list[metrics.Fit]:
        """Of every run of a curve. From the second on, more replicas take no more of each GPU: where one fits, so do
        all after it."""
        fits: list[metrics.Fit] = []
        for number, point in enumerate(found.points if found is not None else ()):
            if number > 1 and fits[-1] == "fits":
                fits.append("fits")
                continue
            batch, cut = point.step.batch, self.micro_batches
            run = replace_in(self, asked=point.step.layout, micro_batches=None if cut and batch % cut else cut)
            fits.append(run.memory(partial(_at, step), batch, memories).fit)
        return fits

    @property
    def units(self) -> tuple[int, ...]:
        """What batches of a replica are multiples of, where larger ones are looked for: as many micro-batches as are
        chosen for large ones. Below that, each sample is a micro-batch."""
        if self.micro_batches is not None:
            return (self.micro_batches,)
        stages = self.layout.pipeline
        return (pipeline.MICRO_BATCHES_A_STAGE * stages, 1) if stages > 1 else (1,)

    def traced_at(self, batch: int) -> str:
        count = pipeline.micro_batches_for(batch, self.layout.pipeline, self.options.micro_batches)
        return f"batch {batch:,}" if count == 1 else f"a micro-batch of {batch // count:,}"

    def memory(self, step_at: StepAt, batch: int, memories: MemoryPredictor) -> Memory:
        """Of the fullest GPU."""
        micro, rank = self._rank(step_at, batch)
        return memories.of(micro, self.device, change=rank)

    def fits(self, step_at: StepAt, batch: int, memories: MemoryPredictor) -> SizeFit:
        micro, rank = self._rank(step_at, batch)
        return memories.fits(micro, self.device, change=rank)

    def _rank(self, step_at: StepAt, batch: int, timed: TimedStep | None = None) -> tuple[Step, FullestRank]:
        """A micro-batch of the step, and what the fullest GPU makes of its script. `timed`: that micro-batch."""
        count = pipeline.micro_batches_for(batch, self.layout.pipeline, self.options.micro_batches)
        micro = step_at(batch // count)
        return micro, fullest_rank(micro, self.layout, self.options, count, self._groups(micro, timed))

    def _groups(self, step: Step, timed: TimedStep | None) -> Groups:
        """The units of every stage of a pipeline. Where blocks cannot be shared out evenly, a tensor parallel rank's
        seconds decide where it is cut."""
        if self.layout.pipeline == 1:
            return ()
        if (even := pipeline.even_units(model_of(step.ledger), self.layout.pipeline)) is not None:
            return tuple(map(tuple, even))
        timed = timed or self.timed(step)
        model = model_of(timed.ledger)
        divided = tensor.divide(
            timed,
            model,
            self.layout.tensor_group,
            self.fabric,
            sms=int(self.device.sms.value),
            sequence=self.options.sequence_parallel,
            overlap=self.options.overlap,
            retime=self.retime,
        )
        return tuple(stage.units for stage in pipeline.stages_of(divided.step, model, self.layout.pipeline))

    @property
    def options(self) -> ParallelOptions:
        return ParallelOptions(micro_batches=self.micro_batches)

    def _sizes(self) -> list[int]:
        """Replicas of the runs in a curve, this one among them."""
        one = self.layout.tensor * self.layout.pipeline
        return sorted({size // one for size in _SIZES if size % one == 0} | {1, self.layout.data})

    def _curve(self, kind: Kind, step_at: Callable[[int], TimedStep], batch: int, sizes: Sequence[int]) -> ScalingCurve:
        return curve(
            kind,
            step_at,
            self._layout_at,
            self._fabric_of,
            batch=batch,
            device=self.device,
            retime=self.retime,
            options=self.options,
            replicas=sizes,
        )


def _at(step: Step, size: int) -> Step:
    if size == step.batch:
        return step
    if step.at_batch is None:
        raise BadInput("a live module has the batch of its inputs, and a pipeline divides it: give the model by name")
    return step.at_batch(size)


def _spread(
    one: Prediction,
    found: ParallelStep,
    of_memory: Sequence[str],
    alone_s: float,
    weak: tuple[ScalingPoint, ...],
    strong: tuple[ScalingPoint, ...],
    curves: Sequence[ScalingCurve],
) -> Prediction:
    layout, memory = found.layout, found.memory
    efficiency = found.throughput / layout.gpus * alone_s / found.batch
    best = max([efficiency, *(point.efficiency for row in curves for point in row.points)])
    many = ClusterPrediction(
        parallel=layout.name,
        gpus=layout.gpus,
        nodes=layout.nodes,
        gpus_per_node=min(layout.gpus, layout.gpus_per_node),
        tensor=layout.tensor,
        pipeline=layout.pipeline,
        data=layout.data,
        batch=found.batch,
        global_batch=found.global_batch,
        micro_batches=found.micro_batches,
        one_gpu_time_s=alone_s,
        compute_s=found.compute_s,
        host_wait_s=found.host_wait_s,
        bubble_s=found.bubble_s,
        communication_s=found.communication_s,
        exposed_s=found.exposed_s,
        efficiency=efficiency,
        parameters=found.parameters,
        parameter_bytes=memory.parameter_bytes,
        gradient_bytes=memory.gradient_bytes,
        optimizer_bytes=memory.optimizer_bytes,
        assumptions=(*found.assumptions, *of_memory),
        traffic=tuple(
            Traffic(what=row.what, calls=row.calls, bytes=row.nbytes, time_s=row.time_s, how=row.how)
            for row in found.exchanges
        ),
        weak=weak,
        strong=strong,
        notes=(
            *_host_note(found),
            *_sharding_note(found, best),
            *dict.fromkeys(note for row in curves for note in row.notes),
        ),
    )
    gpu_s = sum(found.kernel_s.values())
    part = gpu_s / one.gpu_time_s if one.gpu_time_s else 0.0
    return replace(
        one,
        time_s=found.time_s,
        time_interval_s=_interval(one, found),
        throughput=found.throughput,
        tokens_per_s=found.tokens_per_s,
        many=many,
        advice=(),
        op_times_s=(),
        roofline=None,
        mfu=None if one.mfu is None else one.mfu * one.time_s / alone_s * efficiency,
        gpu_time_s=gpu_s,
        gpu_time_interval_s=Interval(part * one.gpu_time_interval_s.low, part * one.gpu_time_interval_s.high),
        host_time_s=None if one.host_time_s is None else found.host_s,
        phases={phase: time_s for phase, time_s in found.kernel_s.items() if time_s},
    )


def _host_note(found: ParallelStep) -> tuple[str, ...]:
    """Where small pieces keep a GPU waiting for its host, no link is to blame."""
    if found.host_wait_s <= _HOST_SHARE * found.compute_s:
        return ()
    pieces, larger = "", "a larger batch"
    if found.micro_batches > 1:
        pieces, larger = f" of its {found.micro_batches} micro-batches", "larger micro-batches"
    waits, whole = formatting.seconds(found.host_wait_s), formatting.seconds(found.compute_s)
    return (
        f"of the {whole}{pieces} that each GPU computes for, it waits {waits} for its host to launch kernels: "
        f"{larger} or --graphs would help",
    )


def _sharding_note(found: ParallelStep, efficiency: float) -> tuple[str, ...]:
    """Work that is shared looks like a gain: one GPU alone, which efficiency is against, has all of it to do."""
    if efficiency <= _ABOVE_ONE or found.layout.mode == "ddp" or not found.kernel_s["optimizer"]:
        return ()
    return ("efficiency above 100%: every rank updates its own part of the weights only, one GPU alone all of them",)


def _interval(one: Prediction, found: ParallelStep) -> Interval:
    """As far as one GPU's step may be off, its part here may; communication comes on top."""
    work_s = found.time_s - found.exposed_s
    low, high = (abs(end / one.time_s - 1) * work_s for end in (one.time_interval_s.low, one.time_interval_s.high))
    sent = 1.645 * _COMMUNICATION_DEVIATION * found.exposed_s
    return Interval(max(0.0, found.time_s - low - sent), found.time_s + high + sent)


def _points(found: ScalingCurve | None, fits: Sequence[metrics.Fit]) -> tuple[ScalingPoint, ...]:
    rows: Sequence[ScalingPoint] = (
        ()
        if found is None
        else [
            ScalingPoint(
                gpus=row.gpus,
                batch=row.step.batch,
                global_batch=row.step.global_batch,
                time_s=row.step.time_s,
                throughput=row.step.throughput,
                exposed_s=row.step.exposed_s,
                speedup=row.speedup,
                efficiency=row.efficiency,
                paleo_speedup=row.paleo_speedup,
                fit=fit,
            )
            for row, fit in zip(found.points, fits, strict=True)
        ]
    )
    return tuple(rows)
