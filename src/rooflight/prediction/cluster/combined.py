"""`predict`: the step of a run on many GPUs, whatever the mixture of data, tensor and pipeline parallelism.

Tensor parallelism shortens ops and makes the GPU wait between them; a pipeline runs stages of those ops for one
micro-batch after the other; data parallel ranks then add up their gradients while the last micro-batch's backward runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from rooflight import summary
from rooflight.errors import BadInput
from rooflight.hardware.device import Device
from rooflight.ledger import PASSES, PHASES, Phase
from rooflight.parallel.blocks import Model, is_attention, model_of
from rooflight.parallel.fabric import Fabric
from rooflight.parallel.gradients import Bucket, gradients_of
from rooflight.parallel.layout import Layout, ParallelOptions, Recompute
from rooflight.parallel.state_memory import ModelStates, per_gpu, states_of
from rooflight.prediction.cluster import pipeline, tensor
from rooflight.prediction.cluster.communication import Transfer, all_reduce
from rooflight.prediction.cluster.data_parallel import bucket_words, ddp, fsdp, gradient_rows, in_buckets, sent, zero
from rooflight.prediction.cluster.step import ParallelOutcome, Retime, StepAt, TimedStep, exchange
from rooflight.prediction.result import Traffic


@dataclass(frozen=True)
class ParallelStep:
    """The step of one GPU among many, what it waits for, and what was assumed."""

    layout: Layout
    batch: int
    """Samples of one replica in a step."""
    micro_batches: int
    time_s: float
    compute_s: float
    """The same work of this GPU with no communication and no bubble."""
    bubble_s: float
    host_wait_s: float
    """The part of `compute_s` that a host which needs no time would save."""
    gpu_bound_s: float
    """The step with such a host, of which waiting hides no communication; where it waits for long."""
    kernel_s: dict[Phase, float]
    """In which this GPU's kernels run, over all its micro-batches; of a pipeline, the slowest stage's."""
    host_s: float
    """In which its host launches them."""
    exchanges: tuple[Traffic, ...]
    """What this GPU sends; of a pipeline, one of the slowest stage."""
    parameters: int
    """Of the model, once: a replica is no second model."""
    memory: ModelStates
    """Parameters, gradients and optimizer state on the fullest GPU."""
    gradient_bytes: float
    """What data parallel ranks have to add up: the gradients of one rank's weights."""
    tokens: int | None
    """A replica's tokens in a step."""
    assumptions: tuple[str, ...]

    @property
    def global_batch(self) -> int:
        return self.batch * self.layout.data

    @property
    def communication_s(self) -> float:
        """All transfers of one GPU, hidden or not."""
        return sum(row.time_s for row in self.exchanges)

    @property
    def exposed_s(self) -> float:
        """What the step is longer by for communication."""
        rest = self.time_s - self.compute_s - self.bubble_s
        return rest if rest > _ROUNDING * self.time_s else 0.0

    @property
    def throughput(self) -> float:
        """Samples a second, all GPUs together."""
        return self.global_batch / self.time_s

    def gpu_bound_efficiency(self, first: ParallelStep) -> float | None:
        """Efficiency against a smaller run, if neither waits for its host; `None`: this one does not."""
        if self.gpu_bound_s == self.time_s:
            return None
        rates = [step.global_batch / step.gpu_bound_s / step.layout.gpus for step in (self, first)]
        return rates[0] / rates[1]

    @property
    def tokens_per_s(self) -> float | None:
        return None if self.tokens is None else self.tokens * self.layout.data / self.time_s


def predict(
    step_at: StepAt,
    layout: Layout,
    fabric: Fabric,
    *,
    batch: int,
    device: Device,
    options: ParallelOptions | None = None,
    retime: Retime | None = None,
) -> ParallelStep:
    """The step of this layout. `batch` is a replica's: the global batch is `batch x layout.data`.

    `step_at(b)` gives one GPU's step at a batch of b samples; it is asked once, for a micro-batch. `retime(op)`, where
    given, times the smaller matmuls of tensor parallelism.
    """
    options = options or ParallelOptions()
    _check(layout, options, batch)
    count = pipeline.micro_batches_for(batch, layout.pipeline, options)
    step = step_at(batch // count)
    model = model_of(step.ledger)
    tensor.check(model, layout.tensor)
    if layout.pipeline > 1:
        pipeline.check(model, layout, interleave=options.interleave)
    divided = tensor.divide(step, model, layout.tensor_group, fabric, device, options, retime)
    repeated = _recomputed(divided.step, model, options.recompute)
    work = _RankWork(
        _with_recompute(divided.step, repeated), model, layout, options, batch, count, divided.weight_share
    )
    outcome = _run(work, fabric)
    compute_s, bubble_s = _computing(work, fabric)
    unhosted = replace(work, step=replace(work.step, host_s=[0.0] * len(work.step.host_s)))
    host_wait_s = max(compute_s - _computing(unhosted, fabric)[0], 0.0) if any(work.step.host_s) else 0.0
    gpu_bound_s = _run(unhosted, fabric).time_s if host_wait_s > HOST_SHARE * compute_s else outcome.time_s
    again = {index for ops in repeated.values() for index in ops}
    rows = (*tensor.exchanges(divided, work.stage_ops, again=again, times=count), *outcome.exchanges)
    states, tokens = states_of(step.ledger), summary.tokens(step.ledger)
    held = states.share(divided.weight_share * outcome.stage_share)
    memory = per_gpu(held, layout.mode, layout.data)
    words = (
        *fabric.assumptions(nodes=layout.nodes),
        *(_in_words(row) for row in rows),
        *divided.assumptions,
        *outcome.assumptions,
        *_RECOMPUTE_WORDS[options.recompute],
        *((_APART,) if layout.pipeline > 1 else ()),
        *(("every GPU is as fast as every other",) if layout.gpus > 1 else ()),
    )
    return ParallelStep(
        layout,
        batch,
        count,
        outcome.time_s,
        compute_s,
        bubble_s,
        host_wait_s,
        gpu_bound_s,
        *_kernels_and_host(work),
        rows,
        states.parameters,
        memory,
        held.gradient_bytes,
        None if tokens is None else tokens * count,
        words,
    )


def _check(layout: Layout, options: ParallelOptions, batch: int) -> None:
    if batch < 1:
        raise BadInput("out-of-range", f"a batch of {batch}: every replica needs at least 1 sample")
    if layout.mode != "ddp" and layout.tensor * layout.pipeline > 1:
        raise BadInput(
            "layout-not-modelled",
            f"{layout.mode} together with tensor or pipeline parallelism is not modelled: use ddp with them",
        )
    if layout.mode != "ddp" and (options.micro_batches or 1) > 1:
        raise BadInput(
            "layout-not-modelled",
            f"{layout.mode} with several micro-batches is not modelled: leave --micro-batches out",
        )
    if options.interleave < 1 or (options.interleave > 1 and layout.pipeline == 1):
        raise BadInput(
            "option-needs-another",
            f"{options.interleave} interleaved chunks need a pipeline: use pp, or leave interleaving out",
        )


_ROUNDING = 1e-12
HOST_SHARE = 0.2
"""Of the computing time: from here on it is worth a line that the GPU waits for its host, as on one GPU."""
_APART = "a step begins when the last one is over in all stages: the host has no head start, as it has without them"
_RECOMPUTE_WORDS: dict[Recompute, tuple[str, ...]] = {
    "none": (),
    "selective": ("attention is computed again in backward (selective recomputation)",),
    "full": ("every block is computed again in backward (full recomputation)",),
}


def _in_words(row: Traffic) -> str:
    each = row.bytes / row.calls
    size = f"{each / 1e6:.3g} MB" if each >= 1e6 else f"{each / 1e3:.3g} kB"
    count = f"{row.calls:,} messages, {size} on average" if row.calls > 1 else f"one message of {size}"
    return f"{row.what}: {count}, {row.how}"


def _recomputed(step: TimedStep, model: Model, what: Recompute) -> dict[int, tuple[int, ...]]:
    """By the op of backward that has to wait for them: the forward ops that run again."""
    if what == "none":
        return {}
    again = {}
    for unit in [model.units[number] for number in model.blocks] or model.units:
        ops = unit.forward
        if what == "selective":
            attending: dict[str, list[int]] = defaultdict(list)  # a decoder's layer has two modules that do
            for place, index in enumerate(ops):
                if is_attention(step.ledger.ops[index]):
                    attending[step.ledger.ops[index].module].append(place)
            ops = tuple(index for places in attending.values() for index in ops[places[0] : places[-1] + 1])
        if unit.backward and ops:
            again[unit.backward[0]] = ops
    return again


def _with_recompute(step: TimedStep, repeated: dict[int, tuple[int, ...]]) -> TimedStep:
    """The time of ops that run again is added to the op that needs them."""
    gpu_s, host_s, wait_s = list(step.gpu_s), list(step.host_s), list(step.wait_s)
    for place, ops in repeated.items():
        gpu_s[place] += sum(step.gpu_s[index] for index in ops)
        host_s[place] += sum(step.host_s[index] for index in ops)
        if wait_s:
            wait_s[place] += sum(step.wait_s[index] for index in ops)
    return replace(step, gpu_s=gpu_s, host_s=host_s, wait_s=wait_s)


@dataclass(frozen=True)
class _RankWork:
    """One rank's step of a micro-batch, and the run it is part of."""

    step: TimedStep
    model: Model
    layout: Layout
    options: ParallelOptions
    batch: int
    count: int
    """Micro-batches."""
    weight_share: float

    @cached_property
    def stages(self) -> list[pipeline.PipelineStage]:
        return pipeline.stages_of(self.step, self.model, self.layout.pipeline)

    @cached_property
    def slowest(self) -> pipeline.PipelineStage:
        """The stage that works longest in a step; without a pipeline, all there is."""
        return max(self.stages, key=lambda stage: self.count * stage.turn_s + stage.optimizer_s)

    def ops_of(self, stage: pipeline.PipelineStage, phase: Phase) -> tuple[int, ...]:
        units = [self.model.units[number] for number in stage.units]
        return tuple(index for unit in units for index in (unit.forward if phase == "forward" else unit.backward))

    @property
    def stage_ops(self) -> frozenset[int]:
        """Forward and backward of the slowest stage."""
        return frozenset(self.ops_of(self.slowest, "forward") + self.ops_of(self.slowest, "backward"))


def _kernels_and_host(work: _RankWork) -> tuple[dict[Phase, float], float]:
    """Seconds of one GPU's kernels by phase, and of its host, over all micro-batches; of a pipeline, the slowest
    stage's. A host launches as many kernels where they are smaller."""
    step, ops, update = work.step, work.step.phases, 1.0
    if work.layout.pipeline > 1:
        ops = {**ops, **{phase: work.ops_of(work.slowest, phase) for phase in PASSES}}
        update = work.slowest.weight_share
    times = {phase: work.count if phase in PASSES else update for phase in PHASES}
    host_s = sum(times[phase] * sum(step.host_s[index] for index in ops[phase]) for phase in times)
    if work.layout.mode != "ddp":
        times = {phase: often if phase in PASSES else often / work.layout.data for phase, often in times.items()}
    return {phase: often * step.kernel_s(ops[phase]) for phase, often in times.items()}, host_s


def _computing(work: _RankWork, fabric: Fabric) -> tuple[float, float]:
    """The step with no communication, less its bubble; and the bubble."""
    quiet = replace(work, step=replace(work.step, wait_s=()))
    silent = _run(quiet, fabric.without_cost())
    compute_s = silent.time_s - silent.bubble_s
    if work.layout.pipeline > 1:
        # A stage with many weights updates them while others still pass the last micro-batch back.
        compute_s = max(compute_s, *(work.count * stage.turn_s + stage.optimizer_s for stage in quiet.stages))
    return compute_s, silent.time_s - compute_s


def _run(work: _RankWork, fabric: Fabric) -> ParallelOutcome:
    if work.layout.pipeline > 1:
        return _pipeline(work, fabric)
    step, group, options = work.step, work.layout.data_group, work.options
    if work.layout.mode in ("zero3", "fsdp"):
        return fsdp(step, work.model, group, fabric, options)
    if work.layout.mode in ("zero1", "zero2"):
        return zero(step, group, fabric, options)
    outcome = ddp(step, group, fabric, options, share=work.weight_share, passes=work.count)
    if work.count > 1:
        sent_last = f"{work.count} micro-batches of {work.batch // work.count}, gradients sent after the last"
        outcome = replace(outcome, assumptions=(*outcome.assumptions, sent_last))
    return outcome


def _pipeline(work: _RankWork, fabric: Fabric) -> ParallelOutcome:
    layout, options, stages = work.layout, work.options, work.stages
    transfer, nbytes = pipeline.transfer_between(work.model, layout, fabric, sequence=options.sequence_parallel)
    plan = pipeline.schedule(stages, work.count, transfer, interleave=options.interleave)
    gradients = gradients_of(work.step.ledger, share=work.weight_share)
    sends, time_s, left_s = {}, 0.0, 0.0
    for stage in stages:
        ops = frozenset(work.ops_of(stage, "backward"))
        of_stage = [gradient for gradient in gradients if gradient.ready in ops]
        sends[stage] = in_buckets(of_stage, layout.data_group, fabric, options, all_reduce)
        # A stage is done with its last micro-batch while those before it still have their backward to do.
        finished_s = plan.time_s - left_s / options.interleave
        time_s = max(time_s, finished_s + _exposed_s(work, sorted(ops), sends[stage]) + stage.optimizer_s)
        left_s += stage.backward_s
    of_slowest = sends[work.slowest]
    rows = exchange("activations, stage to stage", [(nbytes, transfer)] * plan.transfers)
    words = pipeline.words(work.model, layout, stages, work.count, work.batch, options)
    return ParallelOutcome(
        time_s,
        rows + gradient_rows("all-reduce", of_slowest),
        words + bucket_words(len(of_slowest), layout.data_group, options),
        plan.bubble_s,
        max(stage.weight_share for stage in stages),
    )


def _exposed_s(work: _RankWork, backward: Sequence[int], sends: Sequence[tuple[Bucket, Transfer]]) -> float:
    """What a stage's gradients take longer than its last backward."""
    if not sends:
        return 0.0
    clocks = work.step.clocks()
    clocks.run(backward)
    start = 0.0 if work.options.overlap else clocks.now_s
    return max(sent(sends, clocks.ends, after_s=start) - clocks.now_s, 0.0)
