"""`rooflight.measure`: run a step for real, and write down what the device did under the ops it belongs to."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any, Unpack, cast

import msgspec
import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from rooflight.errors import BadInput, CannotMeasure, RooflightError
from rooflight.estimation.costs import fill_costs
from rooflight.hardware.counter_tables import Level
from rooflight.ledger import FORMAT_VERSION, Ledger, Note
from rooflight.machine.conditions import Conditions
from rooflight.machine.installed_gpus import cuda_version, device_name, driver_version
from rooflight.measurement.collectors import cpu as on_cpu
from rooflight.measurement.collectors import gpu as on_gpu
from rooflight.measurement.collectors.plain_step import CollectorContext
from rooflight.measurement.cupti.op_counters import check_names
from rooflight.measurement.cupti.ranges import probe
from rooflight.measurement.data_parallel import check_replicas, measure_replicas, refuse_for_several
from rooflight.measurement.execution.compiled import CompiledStep, is_compiled
from rooflight.measurement.execution.eager import CapturedStep, EagerStep
from rooflight.measurement.findings import Findings, MeasurementInterrupted, Progress, silent
from rooflight.measurement.ncu import run_profiled_step
from rooflight.measurement.next_steps import measure_next_steps
from rooflight.measurement.options import CounterBackend, MeasureOptions
from rooflight.measurement.ranks import process_rank
from rooflight.measurement.room import refuse_what_cannot_fit
from rooflight.measurement.together import follow, together
from rooflight.models.resolve import workload_of
from rooflight.models.workload import Workload
from rooflight.spec import (
    BOTH_BATCHES,
    POSITIONAL,
    MeasureKeywords,
    StepSpec,
    is_program,
    program_name,
    takes_step,
    with_part_of,
)
from rooflight.trace.options import TensorKind, TraceOptions
from rooflight.trace.program_stage import Program, ProgramStage, ledger_of, staged_program
from rooflight.trace.snapshot import Snapshot
from rooflight.trace.stage import Recording, Stage, staged
from rooflight.trace.tracer import header_of


class MeasurementStopped(KeyboardInterrupt):
    """Ctrl-C during a measurement; `ledger` holds what was measured before."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__("interrupted")
        self.ledger = ledger


@takes_step("measure")
def measure(
    model: str | nn.Module | StepSpec | Program,
    *inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    device: str | None = None,
    counters: CounterBackend = "auto",
    levels: Sequence[Level] = ("dram",),
    metrics: Sequence[str] = (),
    per_kernel: bool = False,
    spread: bool = False,
    repeat: int = 20,
    compile_mode: str | None = None,
    total_batch: int | None = None,
    labels: Any = None,
    progress: Progress = silent,
    command: str = "",
    **step: Unpack[MeasureKeywords],
) -> Ledger:
    """Run one step and measure it: time, memory, kernels and hardware counters of every op.

    `model` is a name, built here on `device` (the GPU if there is one), or a live module that is called with `inputs`
    where it is, and left exactly as it was. The step is timed `repeat` times without profiler and counters, and run a
    few times more for the rest. What cannot be measured is missing, and a note says why. `loss`, `labels` and
    `optimizer` are those of `rooflight.estimate`.

    Or `model` is any step of your own: a callable, called with `inputs` and `kwargs`. What it can reach (modules,
    optimizers, random state) is put back before every run and in the end. A step that draws from an iterator, or that
    works with other processes, cannot be taken back: every run is then your program's next step, and the ledger says
    how many there were. With several processes all call this, and rank 0 measures.

    `gpus`: a training step of a model by name in as many processes, a GPU each (on the CPU: so many processes), joined
    by DistributedDataParallel; `batch` is each one's, `total_batch` that of all together. Counters are not taken then.

        >>> ledger = rooflight.measure("resnet50", batch=16, step="train")
        >>> ledger.to_pandas()[["op", "kernel_time_s", "dram_bytes_read"]]
    """
    spec = StepSpec.given(model, step, verb="measure", inputs=inputs, kwargs=kwargs, labels=labels)
    spec = msgspec.structs.replace(spec, compile=spec.compile or compile_mode is not None)
    if spec.compile and spec.graphs:
        raise BadInput(
            "option-conflict",
            "a compiled step is not captured as one CUDA graph here: choose one of --compile and --graphs "
            "(--compile-mode=reduce-overhead uses graphs by itself)",
        )
    options = MeasureOptions(
        counters=counters,
        levels=_several(levels),
        metrics=_several(metrics),
        per_kernel=per_kernel,
        spread=spread,
        repeat=repeat,
        execution=spec.execution,
        compile_mode=compile_mode,
    )
    if is_program(model):
        return _measure_program(cast(Program, model), (inputs, kwargs or {}), spec, options, progress, device)
    model = cast("str | nn.Module | StepSpec", model)
    if total_batch is not None:
        if step.get("batch") is not None:
            raise BadInput("two-batches", BOTH_BATCHES)
        spec = with_part_of(spec, total_batch, spec.gpus)
    several = spec.gpus > 1
    if several:
        refuse_for_several(live=isinstance(model, nn.Module), options=options, device=device)
    elif counters == "ncu":
        raise BadInput(
            "needs-own-process",
            "ncu needs a process of its own: use the command line, `rooflight measure --counters ncu`",
        )
    called = [*(f"{POSITIONAL}{place}" for place in range(len(inputs))), *(kwargs or ())]
    live = called if isinstance(model, nn.Module) else None
    command = command or _asked(spec, options, live=live, device=device)
    given = _MeasureCall(model, inputs, kwargs, labels, _device(model, (inputs, kwargs), device))
    return (_measure_several if several else _measure_one)(spec, given, options, command, progress)


@dataclass(frozen=True)
class _MeasureCall:
    """A model as it was given, and where it is measured."""

    model: str | nn.Module | StepSpec
    inputs: tuple[Any, ...]
    kwargs: Mapping[str, Any] | None
    labels: Any
    where: torch.device

    def refuse_what_cannot_fit(self, spec: StepSpec) -> None:
        without_data = workload_of(spec, self.model, self.inputs, self.kwargs, device="meta")
        refuse_what_cannot_fit(self.where, spec, without_data)


def _measure_several(
    spec: StepSpec, given: _MeasureCall, options: MeasureOptions, command: str, progress: Progress
) -> Ledger:
    """A process for each GPU."""
    check_replicas(spec, given.where.type)
    given.refuse_what_cannot_fit(spec)
    return measure_replicas(spec, on=given.where.type, repeat=options.repeat, command=command, progress=progress)


def _measure_one(
    spec: StepSpec, given: _MeasureCall, options: MeasureOptions, command: str, progress: Progress
) -> Ledger:
    """In this process."""
    where = given.where
    conditions = Conditions(str(where))  # looks at the device before anything of ours is on it
    if where.type != "cuda":
        _refuse_what_needs_a_gpu(options, graphs=spec.graphs)
    if not isinstance(given.model, nn.Module):
        given.refuse_what_cannot_fit(spec)
    with torch.cuda.device(where) if where.type == "cuda" else nullcontext():
        workload = replace(placed_workload(spec, given.model, given.inputs, given.kwargs, where), labels=given.labels)
        if is_compiled(workload.model) and not spec.graphs:
            options = replace(options, execution="compile")
        return measure_workload(workload, trace_options(spec, where, command), options, conditions, progress)


def _several(given: Sequence[Any]) -> tuple[Any, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _asked(spec: StepSpec, options: MeasureOptions, *, live: list[str] | None, device: str | None) -> str:
    """What measures so again: the step, and all that is not as usual."""
    usual = MeasureOptions()
    names = [field.name for field in fields(options) if field.name != "execution"]
    unusual = {name: value for name in names if (value := getattr(options, name)) != getattr(usual, name)}
    return spec.asked("measure", live=live, device=device, **unusual)


def placed_workload(
    spec: StepSpec,
    model: str | nn.Module | StepSpec,
    inputs: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    where: torch.device,
) -> Workload:
    """The workload on the device, in the memory format that was asked for."""
    workload = workload_of(spec, model, inputs, kwargs, device=where.type)
    if not spec.channels_last:
        return workload
    if isinstance(model, nn.Module):
        raise BadInput(
            "needs-a-model-name",
            "--channels-last is for a model by name: a live module is left as it is; put it and its inputs "
            "into it yourself with .to(memory_format=torch.channels_last)",
        )

    def laid_out(leaf: Any) -> Any:
        is_image = isinstance(leaf, torch.Tensor) and leaf.dim() == 4
        return leaf.contiguous(memory_format=torch.channels_last) if is_image else leaf

    # torch's own spelling for mypy is of a single tensor
    model_ = workload.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return replace(
        workload, model=model_, args=tree_map(laid_out, workload.args), kwargs=tree_map(laid_out, workload.kwargs)
    )


def trace_options(spec: StepSpec, where: torch.device, command: str = "") -> TraceOptions:
    """How the step is recorded where it really runs."""
    on: TensorKind = "cuda" if where.type == "cuda" else "cpu"
    target = "cpu" if on == "cpu" else "cuda:{}{}".format(*torch.cuda.get_device_capability(where))
    return TraceOptions.of(spec, on=on, target=target, rank=process_rank().rank, command=command)


def profiled_step(spec: StepSpec, *, device: str | None, only: str | None) -> None:
    """Run the step of a model by name for an outer profiler, such as ncu."""
    where = _device(spec.model, (), device)
    with torch.cuda.device(where) if where.type == "cuda" else nullcontext():
        run_profiled_step(placed_workload(spec, spec, (), None, where), trace_options(spec, where), only=only)


def measure_workload(
    workload: Workload,
    trace_options: TraceOptions,
    options: MeasureOptions,
    conditions: Conditions,
    progress: Progress = silent,
) -> Ledger:
    """Measure a step that is ready to be staged; `conditions` have looked at the device before it was placed."""
    with staged(workload, trace_options) as stage:
        return _measure_staged(stage, options, conditions, progress)


def _measure_program(
    step: Program,
    called_with: tuple[tuple[Any, ...], Mapping[str, Any]],
    spec: StepSpec,
    options: MeasureOptions,
    progress: Progress,
    asked: str | None,
) -> Ledger:
    """Measure a step of the caller's own, where its tensors are."""
    args, kwargs = called_with
    where = Snapshot.of_call(step, args, kwargs, saves=False).device
    wanted = where if asked is None else _parsed(asked)
    if wanted.type != where.type:
        if wanted.type != "cuda" or not torch.cuda.is_available():
            raise BadInput(
                "wrong-device",
                f"the step's tensors are on {where}, not on {asked}: move them first, or leave device out",
            )
        where = _device("", (), asked)  # where it moves them itself
    if options.counters == "ncu":
        raise BadInput(
            "needs-own-process",
            "ncu needs a process of its own, and a step of yours is in this one: use counters='cupti'",
        )
    if where.type != "cuda":
        _refuse_what_needs_a_gpu(options, graphs=False)
    conditions = Conditions(str(where))
    words = [spec.model, *(f"x{place}" for place in range(len(args))), *(f"{name}=..." for name in kwargs)]
    how = trace_options(spec, where, f"rooflight.measure({', '.join(words)})")
    with (
        torch.cuda.device(where) if where.type == "cuda" else nullcontext(),
        staged_program(step, args, kwargs, program_name(step), how) as stage,
        together(stage) as leads,
    ):
        if not leads:
            return fill_costs(ledger_of(stage, follow(stage)))
        if not stage.repeatable:
            return measure_next_steps(stage, options, progress)
        return _measure_staged(stage, options, conditions, progress)


def _measure_staged(
    stage: Stage | ProgramStage, options: MeasureOptions, conditions: Conditions, progress: Progress
) -> Ledger:
    findings = Findings()
    on = stage.options.on
    if process_rank().rank and options.counters == "auto":
        options = replace(options, counters="none", metrics=(), per_kernel=False, spread=False)
        findings.notes.append(Note("counters-on-one-rank", "counters are read on rank 0 only"))
    with warnings.catch_warnings():
        stage.keep()
        execution = _execution(stage, options)
        # A captured step and the same step run eagerly use different streams, on purpose.
        warnings.filterwarnings("ignore", message=".*AccumulateGrad node's stream does not match")
        try:
            if options.metrics and on == "cuda":
                check_names(probe(torch.cuda.current_device()), options.metrics)
            progress("warm-up", 0, 1)
            if on == "cuda":
                # What earlier work left in the allocator's hands is no part of this step's memory.
                gc.collect()
                torch.cuda.empty_cache()
            allocated = _gpu_allocations()
            execution.prepare()
            if isinstance(stage, ProgramStage) and on != "cuda" and _gpu_allocations() > allocated:
                raise BadInput(
                    "moves-to-gpu",
                    "the step moves its tensors to the GPU itself: measure it there, as in "
                    "measure(step, device='cuda')",
                )
            if execution.runs_compiled_code:
                options = replace(options, execution="compile")
                execution = CompiledStep(stage, as_it_is=True)
                execution.prepare()
            stage.settle()
            stage.put_back()
            conditions.before()
            collect = on_gpu.collect if on == "cuda" else on_cpu.collect
            collect(CollectorContext(stage, options, execution, findings, progress))
        except KeyboardInterrupt as stop:
            if not findings.step:
                raise
            if not isinstance(stop, MeasurementInterrupted):
                findings.notes.append(
                    Note("interrupted", "interrupted between two measurements: what follows is missing")
                )
            raise MeasurementStopped(_ledger(stage, findings, conditions, options)) from None
        finally:
            execution.close()
        return _ledger(stage, findings, conditions, options)


def _gpu_allocations() -> int:
    """How many there were in this process."""
    return int(torch.cuda.memory_stats().get("allocation.all.allocated", 0)) if torch.cuda.is_initialized() else 0


def _execution(stage: Stage | ProgramStage, options: MeasureOptions) -> EagerStep:
    if options.execution == "graph":
        return CapturedStep(stage)
    if options.execution == "compile":
        assert isinstance(stage, Stage)  # what runs compiled code as it is, is found out later
        return CompiledStep(stage, mode=options.compile_mode)
    return EagerStep(stage)


def _ledger(stage: Stage | ProgramStage, findings: Findings, conditions: Conditions, options: MeasureOptions) -> Ledger:
    on = stage.options.on
    recording = findings.recording
    if recording is None:  # stopped before the ops were recorded, or they cannot be
        stage.put_back()
        try:
            recording = stage.record()
        except RooflightError:
            if "wall_time_s" not in findings.step:
                raise
            recording = Recording((), (), (), (), ())  # a note says why
    header = stage.header(recording) if isinstance(stage, ProgramStage) else header_of(stage, recording)
    header = msgspec.structs.replace(
        header,
        execution=options.execution,
        device=device_name(on),
        cuda=cuda_version() if on == "cuda" else None,
        driver=driver_version() if on == "cuda" else None,
        conditions=conditions.after(),
        rates=findings.rates,
        notes=(*header.notes, *findings.notes),
        world=process_rank().world,
    )
    return fill_costs(
        Ledger(
            format_version=FORMAT_VERSION,
            header=header,
            modules=recording.modules,
            storages=recording.storages,
            ops=recording.ops,
            kernels=findings.kernels,
            host_calls=findings.host_calls,
            measurements=findings.measurements(),
        )
    )


def _device(model: str | nn.Module | StepSpec, inputs: Any, asked: str | None) -> torch.device:
    """The device the step runs on: where a live module is; as asked, or the GPU if there is one."""
    if isinstance(model, nn.Module):
        places = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
        places = places or {leaf.device for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)}
        if len(places) > 1:
            raise BadInput(
                "several-devices", f"the model lies on {len(places)} devices: measure it on one (model.to('cuda'))"
            )
        spot = places.pop() if places else _parsed(asked or _default_device())
        wanted = _parsed(asked) if asked is not None else spot
        if wanted.type != spot.type or wanted.index not in (None, spot.index):
            raise BadInput("wrong-device", f"the model is on {spot}, not on {asked}: move it first")
    else:
        spot = _parsed(asked or _default_device())
    if spot.type not in ("cuda", "cpu"):
        raise BadInput("unknown-device", f"cannot measure on {spot.type}: use cuda, cuda:1 or cpu")
    if any(leaf.is_meta for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)):
        raise BadInput(
            "meta-input", "an input has no data (it is on meta): measure with real tensors, or use rooflight.estimate"
        )
    if spot.type == "cuda" and not torch.cuda.is_available():
        raise CannotMeasure(
            "no-gpu", "torch sees no GPU: measure on the CPU (--device=cpu), or ask `rooflight doctor` what is missing"
        )
    if spot.type == "cuda" and spot.index is not None and spot.index >= torch.cuda.device_count():
        raise BadInput(
            "gpu-out-of-range",
            f"there is no {spot}: torch sees {torch.cuda.device_count()} GPU(s), the first is cuda:0",
        )
    return spot


def _refuse_what_needs_a_gpu(options: MeasureOptions, *, graphs: bool) -> None:
    """What was asked for by name is not left out in silence."""
    wishes = {
        "CUDA graphs": graphs,
        "CUPTI": options.counters == "cupti",
        "further counters": bool(options.metrics),
        "counters by kernel": options.per_kernel,
        "the spread of counts": options.spread,
        "levels of the memory": options.levels not in (("dram",), ()),
    }
    if asked := [name for name, wished in wishes.items() if wished]:
        raise BadInput(
            "option-needs-gpu",
            f"{' and '.join(asked)}: only on an NVIDIA GPU, and the step is measured on the CPU; leave it out",
        )


def _parsed(name: str) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError:
        raise BadInput("unknown-device", f"unknown device {name!r}: use cuda, cuda:1 or cpu") from None


def _default_device() -> str:
    if not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{process_rank().local_rank % torch.cuda.device_count()}"
