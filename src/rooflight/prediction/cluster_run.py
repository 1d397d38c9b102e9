"""From one GPU's predicted step to a run on many: what `parallel` needs of a step, and what it answers as a result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_in
from functools import cache, cached_property, partial

from msgspec.structs import replace

from rooflight import formatting, metrics
from rooflight.errors import BadInput
from rooflight.hardware.device import Device
from rooflight.ledger import Note, Op
from rooflight.memory.largest import SizeFit
from rooflight.memory.predict import MemoryPredictor
from rooflight.memory.result import Memory
from rooflight.memory.sharding.ranks import FullestRank, Groups, fullest_rank
from rooflight.ops.op_tasks import tasks_of
from rooflight.parallel.blocks import model_of
from rooflight.parallel.fabric import Fabric, fabric_of
from rooflight.parallel.layout import Layout, ParallelOptions, parse
from rooflight.prediction.cluster import pipeline, tensor
from rooflight.prediction.cluster.combined import HOST_SHARE, ParallelStep
from rooflight.prediction.cluster.combined import predict as predict_parallel
from rooflight.prediction.cluster.scaling import Kind, ScalingCurve, curve
from rooflight.prediction.cluster.step import Retime, TimedStep
from rooflight.prediction.device_run import TimeSource, timed
from rooflight.prediction.result import ClusterPrediction, Interval, Prediction, ScalingPoint
from rooflight.prediction.tiers import Predictor
from rooflight.spec import NOT_ACCUMULATED
from rooflight.step.changes import in_padded
from rooflight.step.costed_step import Step

_SIZES = (1, 2, 4, 8, 16, 64, 256, 1024, 4096)
"""GPUs of the runs in a curve."""
_COMMUNICATION_DEVIATION = 0.25
"""Of exposed communication (one standard deviation): what is known of a cluster is its data sheet."""
_ABOVE_ONE = 1.0005
"""An efficiency that is written as more than 100.0%."""

MEMORY_UNKNOWN = "the ledger does not tell when tensors are made and freed"

StepAt = Callable[[int], Step]
"""A step of so many samples."""


def layout_of(parallel: str | None, *, gpus: int, nodes: int) -> Layout | None:
    """`None`: one GPU. Without a word on how, several GPUs are data parallel."""
    if parallel is None and gpus == nodes == 1:
        return None
    return parse(parallel or "ddp", gpus=gpus, nodes=nodes)


def retime_by(predictor: Predictor, like: Step | None = None) -> Retime:
    """Times a matmul that tensor parallelism has cut. Its weights come from memory, as they do in a large model.
    `like`: as this step is run, which may pad odd products, or have a compiler that does where it is faster."""
    times_s: dict[object, float] = {}
    pads = like is not None and like.ledger.header.pad
    may_pad = like is not None and like.is_compiled

    def seconds_of(op: Op) -> float:
        tasks = tasks_of(op)
        odd = float(predictor.task_seconds(tasks).sum())
        if not pads and not may_pad:
            return odd
        even = float(predictor.task_seconds([in_padded(task) for task in tasks]).sum())
        return even if pads else min(odd, even)

    def retime(op: Op) -> float:
        key = (op.name, op.precision, *(tensor.shape for tensor in op.inputs))
        if key not in times_s:
            times_s[key] = seconds_of(op)
        return times_s[key]

    return retime


@dataclass(frozen=True)
class OneDevice:
    """Where a step runs, and what tells how long it takes there."""

    source: TimeSource

    @property
    def device(self) -> Device:
        return self.source.device

    @property
    def units(self) -> tuple[int, ...]:
        """What batches are multiples of, where larger ones are looked for; the next is for those below the first, where
        none of these fits."""
        return (1,)

    def traced_at(self, batch: int) -> str:
        """What of a batch is traced, in words."""
        return f"batch {batch:,}"

    def memory(self, step_at: StepAt, batch: int, memories: MemoryPredictor) -> Memory:
        """What a step takes there, of the fullest GPU where there are many."""
        step, rank = self._rank(step_at, batch)
        return memories.of(step, self.device, change=rank)

    def fits(self, step_at: StepAt, batch: int, memories: MemoryPredictor) -> SizeFit:
        step, rank = self._rank(step_at, batch)
        return memories.fits(step, self.device, change=rank)

    def _rank(
        self, step_at: StepAt, batch: int, timed_step: TimedStep | None = None
    ) -> tuple[Step, FullestRank | None]:
        """What is traced of a batch, and what the fullest of many GPUs makes of its script."""
        return step_at(batch), None

    def completed(
        self, alone: Prediction, step: Step, memories: MemoryPredictor, *, curves: bool, timeline: bool
    ) -> Prediction:
        """The prediction for one GPU as that for all there are, with the memory of the fullest. `curves`: weak and
        strong scaling too. `timeline`: of that GPU's memory."""
        memory = memories.of(step, self.device, timeline=timeline) if step.has_lifetimes else None
        return replace(alone, memory=memory)


_ANY = 10**9
"""GPUs in a node of whatever size."""
_GPUS_PER_NODE = 8
"""Where a device's file does not say."""


def _in_nodes(layout: Layout, device: Device) -> Layout:
    """The GPUs that were asked for, in nodes that hold as many as nodes of this device do."""
    return layout.in_nodes_of(_most(device))


def _most(device: Device) -> int:
    return _GPUS_PER_NODE if device.gpus_per_node is None else round(device.gpus_per_node.value)


def _nodes_note(asked: Layout, device: Device) -> tuple[Note, ...]:
    """Where the nodes are other than those that were asked for: with one note a device."""
    layout, figure = _in_nodes(asked, device), device.gpus_per_node
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
    return (
        Note(
            "more-nodes",
            f"{device.name}: {layout.gpus:,} GPUs are {layout.nodes:,} nodes{each}, joined by a network: {why}",
        ),
    )


@dataclass(frozen=True)
class Cluster(OneDevice):
    """Equal nodes of one device, and how the work is divided among them."""

    asked: Layout
    """Its nodes are those that were asked for; `layout` has those that there are."""
    micro_batches: int | None = None
    like: Step | None = None
    """A step that is run as all of them are."""

    @cached_property
    def layout(self) -> Layout:
        return _in_nodes(self.asked, self.device)

    def _layout_at(self, replicas: int) -> Layout:
        """One node was not asked for, it is the default: more replicas fill it before they need another."""
        asked = self.asked if self.asked.nodes > 1 else replace_in(self.asked, gpus_per_node=_ANY)
        return _in_nodes(replace_in(asked, data=replicas), self.device)

    @cached_property
    def retime(self) -> Retime | None:
        return retime_by(self.source, self.like) if isinstance(self.source, Predictor) else None

    @property
    def options(self) -> ParallelOptions:
        if self.like is not None and self.like.ledger.header.step == "decode":
            return ParallelOptions(micro_batches=self.micro_batches, micro_batches_a_stage=1)
        return ParallelOptions(micro_batches=self.micro_batches)

    @cached_property
    def fabric(self) -> Fabric:
        return self._fabric_of(self.layout)

    def _fabric_of(self, layout: Layout) -> Fabric:
        if not self.device.is_cuda:
            what = "a CPU" if self.device.kind == "cpu" else f"{self.device.vendor}'s"
            raise BadInput(
                "option-needs-gpu",
                f"{self.device.name} is {what}: many devices are predicted for GPUs of NVIDIA and AMD only, leave "
                "--gpus and --nodes out",
            )
        return fabric_of(self.device, gpus_per_node=min(layout.gpus, layout.gpus_per_node))

    @property
    def units(self) -> tuple[int, ...]:
        """As many micro-batches as are chosen for large batches. Below that, each sample is a micro-batch."""
        if self.micro_batches is not None:
            return (self.micro_batches,)
        stages = self.layout.pipeline
        return (self.options.micro_batches_a_stage * stages, 1) if stages > 1 else (1,)

    def _count(self, batch: int) -> int:
        return pipeline.micro_batches_for(batch, self.layout.pipeline, self.options)

    def traced_at(self, batch: int) -> str:
        count = self._count(batch)
        return super().traced_at(batch) if count == 1 else f"a micro-batch of {batch // count:,}"

    def _rank(self, step_at: StepAt, batch: int, timed_step: TimedStep | None = None) -> tuple[Step, FullestRank]:
        """`timed_step`: that of a micro-batch."""
        count = self._count(batch)
        micro = step_at(batch // count)
        return micro, fullest_rank(micro, self.layout, self.options, count, self._groups(micro, timed_step))

    def _groups(self, step: Step, timed_step: TimedStep | None) -> Groups:
        """The units of every stage of a pipeline. Where blocks cannot be shared out evenly, a tensor parallel rank's
        seconds decide where it is cut."""
        if self.layout.pipeline == 1:
            return ()
        if (even := pipeline.even_units(model_of(step.ledger), self.layout.pipeline)) is not None:
            return tuple(map(tuple, even))
        timed_step = timed_step or timed(step, self.source)
        model = model_of(timed_step.ledger)
        divided = tensor.divide(
            timed_step, model, self.layout.tensor_group, self.fabric, self.device, self.options, self.retime
        )
        return tuple(stage.units for stage in pipeline.stages_of(divided.step, model, self.layout.pipeline))

    def completed(
        self, alone: Prediction, step: Step, memories: MemoryPredictor, *, curves: bool, timeline: bool
    ) -> Prediction:
        if step.batch is None:
            raise BadInput("unknown-batch", "many GPUs need a batch: this model's inputs do not tell it")
        if step.ledger.header.accumulate > 1:
            raise BadInput("option-conflict", NOT_ACCUMULATED)
        if not step.has_lifetimes:
            raise BadInput("memory-unknown", f"{MEMORY_UNKNOWN}, and many GPUs share it: leave --gpus and --nodes out")
        batch = step.batch
        timed_at = cache(lambda size: timed(_at(step, size), self.source))
        run = predict_parallel(
            timed_at,
            self.layout,
            self.fabric,
            batch=batch,
            device=self.device,
            retime=self.retime,
            options=self.options,
        )
        on_one_s = predict_parallel(timed_at, Layout(), self.fabric, batch=batch, device=self.device).time_s
        scaled: dict[Kind, ScalingCurve] = {}
        if curves:
            scaled["weak"] = self._curve("weak", timed_at, batch)
        # A live module has the batch of its inputs: its global batch cannot be divided.
        if curves and step.at_batch is not None:
            scaled["strong"] = self._curve("strong", timed_at, run.global_batch)
        micro, rank = self._rank(partial(_at, step), batch, timed_at(batch // run.micro_batches))
        memory = memories.of(micro, self.device, timeline=timeline, change=rank)
        # A replica of ddp holds what one GPU alone does.
        one_holds = self.layout.name == "ddp" or memories.fits(step, self.device)[0]
        many = replace(
            _many(run, on_one_s, one_holds, list(scaled.values()), _nodes_note(self.asked, self.device)),
            assumptions=(*run.assumptions, *rank.words(memory.stage or 0)),
            **{kind: self._points(curve, step, memories) for kind, curve in scaled.items()},
        )
        return replace(_of_rank(alone, run, many), memory=memory)

    def _points(self, curve: ScalingCurve, step: Step, memories: MemoryPredictor) -> tuple[ScalingPoint, ...]:
        """Every run of a curve, and whether it fits. From the second on, more replicas take no more of each GPU: where
        one fits, so do all after it."""
        fits: list[metrics.Fit] = []
        for place, run in enumerate(curve.steps):
            if place > 1 and fits[-1] == "fits":
                fits.append("fits")
                continue
            cut = None if self.micro_batches and run.batch % self.micro_batches else self.micro_batches
            cluster = replace_in(self, asked=run.layout, micro_batches=cut)
            fits.append(cluster.memory(partial(_at, step), run.batch, memories).fit)
        return tuple(replace(point, fit=fit) for point, fit in zip(curve.points, fits, strict=True))

    def _curve(self, kind: Kind, timed_at: Callable[[int], TimedStep], batch: int) -> ScalingCurve:
        replica = self.layout.tensor * self.layout.pipeline
        return curve(
            kind,
            timed_at,
            self._layout_at,
            self._fabric_of,
            batch=batch,
            device=self.device,
            retime=self.retime,
            options=self.options,
            replicas=sorted({size // replica for size in _SIZES if size % replica == 0} | {1, self.layout.data}),
        )


def _at(step: Step, size: int) -> Step:
    if size == step.batch:
        return step
    if step.at_batch is None:
        raise BadInput(
            "needs-a-model-name",
            "a live module has the batch of its inputs, a ledger its own, and a pipeline divides it: give the model by "
            "name",
        )
    return step.at_batch(size)


def _many(
    run: ParallelStep,
    on_one_s: float,
    one_holds: bool,
    curves: Sequence[ScalingCurve],
    nodes_note: tuple[Note, ...],
) -> ClusterPrediction:
    """`on_one_s`: the same replica's step on one GPU alone, which need not have the memory: `one_holds`."""
    layout = run.layout
    efficiency = run.throughput / layout.gpus * on_one_s / run.batch if one_holds else None
    best = max([efficiency or 0.0, *(point.efficiency for curve in curves for point in curve.points)])
    return ClusterPrediction(
        parallel=layout.name,
        gpus=layout.gpus,
        nodes=layout.nodes,
        gpus_per_node=min(layout.gpus, layout.gpus_per_node),
        tensor=layout.tensor,
        pipeline=layout.pipeline,
        data=layout.data,
        batch=run.batch,
        global_batch=run.global_batch,
        micro_batches=run.micro_batches,
        one_gpu_time_s=on_one_s,
        compute_s=run.compute_s,
        host_wait_s=run.host_wait_s,
        bubble_s=run.bubble_s,
        communication_s=run.communication_s,
        exposed_s=run.exposed_s,
        efficiency=efficiency,
        parameters=run.parameters,
        parameter_bytes=run.memory.parameter_bytes,
        gradient_bytes=run.memory.gradient_bytes,
        optimizer_bytes=run.memory.optimizer_bytes,
        traffic=run.exchanges,
        notes=(
            *nodes_note,
            *_host_note(run),
            *_sharding_note(run, best),
            *dict.fromkeys(note for curve in curves for note in curve.notes),
        ),
    )


def _of_rank(alone: Prediction, run: ParallelStep, many: ClusterPrediction) -> Prediction:
    """The prediction for one GPU alone as that for one among many."""
    gpu_s = sum(run.kernel_s.values())
    part = gpu_s / alone.gpu_time_s if alone.gpu_time_s else 0.0
    return replace(
        alone,
        time_s=run.time_s,
        time_interval_s=_interval(alone, run),
        throughput=run.throughput,
        tokens_per_s=run.tokens_per_s,
        many=many,
        advice=(),
        op_times_s=(),
        op_least_s=(),
        roofline=None,
        mfu=None if alone.mfu is None else alone.mfu * alone.time_s * run.throughput / run.batch / many.gpus,
        gpu_time_s=gpu_s,
        gpu_time_interval_s=Interval(part * alone.gpu_time_interval_s.low, part * alone.gpu_time_interval_s.high),
        host_time_s=None if alone.host_time_s is None else run.host_s,
        host_time_interval_s=None,
        phases={phase: time_s for phase, time_s in run.kernel_s.items() if time_s},
    )


def _host_note(run: ParallelStep) -> tuple[Note, ...]:
    """Where small pieces keep a GPU waiting for its host, no link is to blame."""
    if run.host_wait_s <= HOST_SHARE * run.compute_s:
        return ()
    pieces, larger = "", "a larger batch"
    if run.micro_batches > 1:
        pieces, larger = f" of its {run.micro_batches} micro-batches", "larger micro-batches"
    waits, computes = formatting.seconds(run.host_wait_s), formatting.seconds(run.compute_s)
    return (
        Note(
            "host-waits",
            f"of the {computes}{pieces} that each GPU computes for, it waits {waits} for its host to launch kernels: "
            f"{larger} or --graphs would help",
        ),
    )


def _sharding_note(run: ParallelStep, efficiency: float) -> tuple[Note, ...]:
    """Work that is shared looks like a gain: one GPU alone, which efficiency is against, has all of it to do."""
    if efficiency <= _ABOVE_ONE or run.layout.mode == "ddp" or not run.kernel_s["optimizer"]:
        return ()
    return (
        Note(
            "shared-updates",
            "efficiency above 100%: every rank updates its own part of the weights only, one GPU alone all of them",
        ),
    )


def _interval(alone: Prediction, run: ParallelStep) -> Interval:
    """As far as one GPU's step may be off, its part here may; communication comes on top."""
    work_s = run.time_s - run.exposed_s
    low, high = (
        abs(end / alone.time_s - 1) * work_s for end in (alone.time_interval_s.low, alone.time_interval_s.high)
    )
    sent = 1.645 * _COMMUNICATION_DEVIATION * run.exposed_s
    return Interval(max(0.0, run.time_s - low - sent), run.time_s + high + sent)
