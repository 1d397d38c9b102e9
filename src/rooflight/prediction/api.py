"""`rooflight.predict`: how long a step takes on devices that are here or elsewhere, on one or on many."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from dataclasses import replace as replace_option
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from msgspec.structs import replace

from rooflight.errors import BadInput
from rooflight.hardware.calibration import Calibration
from rooflight.hardware.device import Device
from rooflight.hardware.devices import cards_taken
from rooflight.hardware.roofs import is_unknown
from rooflight.ledger import Ledger, Note, Op
from rooflight.memory.cudnn_workspaces import DeviceWorkspaces
from rooflight.memory.largest import MOST
from rooflight.memory.predict import MemoryPredictor
from rooflight.ops.op_tasks import is_guess, tasks_of
from rooflight.parallel.layout import Layout, replicas
from rooflight.prediction.advice import predicted_advice
from rooflight.prediction.capacity import barely, memory_notes, savings, settings_given, too_large, with_limits
from rooflight.prediction.cluster_run import MEMORY_UNKNOWN, Cluster, OneDevice, layout_of
from rooflight.prediction.device_run import SpecTier, TimeSource, device_runs, predicted
from rooflight.prediction.generations import GenerationTrace, by_generation, joined
from rooflight.prediction.own_ops import carried_note, own_times
from rooflight.prediction.paleo import Ppp, given_ppp
from rooflight.prediction.recorded_calibration import RecordedCalibration
from rooflight.prediction.resolve_devices import (
    assumed_notes,
    ceilings_of,
    devices_of,
    guess_notes,
    has_spec_only,
    own_workspaces,
    predictor_of,
    read_calibration,
    spec_only_note,
    vendor_notes,
    versions_notes,
)
from rooflight.prediction.result import MemorySaving, Prediction, Predictions
from rooflight.prediction.roofline import RooflineTimes, roofline
from rooflight.prediction.stored_step import LedgerTraces, beside_measured, check_precisions, ledger_given, spec_of
from rooflight.prediction.tiers import TIERS, Predictor, check_precision
from rooflight.prediction.traces import StepRequest, Traces
from rooflight.spec import FIELDS, PredictKeywords, StepSpec, is_program, takes_step, with_part_of
from rooflight.step.changes import COMPILE_ASSUMES, padding_note
from rooflight.step.costed_step import Step, moving_ledger_of
from rooflight.trace import TraceOptions

if TYPE_CHECKING:
    from torch import nn

ADVISED_CELLS = 12
"""With more of them advice, some tenths of a second each, would take longer than everything else: it must be asked
for."""
CURVED_CELLS = 4
"""With more of them, no curves of scaling are drawn."""


@takes_step("predict")
def predict(
    model: str | nn.Module | StepSpec | Callable[..., Any] | Ledger | Path,
    *inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    on: str | Device | Sequence[str | Device] = "h200",
    tier: str | None = None,
    ppp: float | Ppp | None = None,
    calibration: Calibration | RecordedCalibration | str | Path | None = None,
    advice: bool | None = None,
    find_savings: bool = True,
    roofline: bool = False,
    memory: bool = False,
    max_batch: bool = False,
    max_seq: bool = False,
    allocator: str | None = None,
    labels: Any = None,
    real_data: bool = False,
    command: str = "",
    **step: Unpack[PredictKeywords],
) -> Predictions:
    """Predicted time and memory of one step, for every device in `on` and every batch; none of them is needed.

    `model` and its options are those of `rooflight.estimate`; or a ledger, its file or `recorded:h200/NAME`, whose step
    is predicted as it was, its measured time beside on the device it was measured on. `on`: names of the database,
    .toml files, or `here`; several in a list, or separated by commas. `tier`: `calibrated`, `published`, `transferred`
    or `spec`; by default the most accurate that each device has data for (`ppp` needs `spec`). `calibration`: a file
    written by `rooflight calibrate`, or what `rooflight.calibration_from` returns.
    `graphs`: the step as one CUDA graph. `compile`, `fused`, `channels_last` and `pad` are changes of the traced step.
    `roofline`: roofs and points beside every prediction. `gpus` in each of `nodes`, working together as `parallel` says
    (`ddp`, `fsdp`, `tp`, `pp`, `8x4x2`, ...): the batch is then that of one replica, cut into `micro_batches`.
    `advice`: what would make each faster; by default if there are at most 12 predictions. `memory`: memory over the
    step, and what would reduce it; the peaks are in every prediction. `find_savings`: look for what would reduce memory
    where a step does not fit. `max_batch`, `max_seq`: the largest batch and the longest sequence that fit, of a model
    by name. `allocator`: settings of torch's CUDA allocator as in PYTORCH_CUDA_ALLOC_CONF. `real_data`: the step is
    really run, on this machine's CPU, to see its ops: for models whose data decides what runs.

        >>> rooflight.predict("resnet50", on=["a100", "h200"], batch=[1, 8, 64], step="train")
    """
    ledger = ledger_given(model)
    if ledger is None:
        spec = _divided(StepSpec.given(model, step, verb="predict", inputs=inputs, kwargs=kwargs, labels=labels))
    else:
        spec = spec_of(ledger, step, inputs=inputs or kwargs)
    _check_devices(on)
    given = read_calibration(calibration.calibration if isinstance(calibration, RecordedCalibration) else calibration)
    devices = devices_of(on, given)
    batches = _batches(spec, model if ledger is None else spec)
    layout = layout_of(spec.parallel, gpus=spec.gpus, nodes=spec.nodes)
    ppp = ppp if ppp is None or isinstance(ppp, Ppp) else given_ppp(ppp)
    tier = _tier(devices, tier=tier, ppp=ppp)
    if ledger is not None:
        check_precisions(ledger.ops, devices)
        traces: Traces = LedgerTraces(ledger, spec)
    else:
        traces = _traces_of(model, (inputs, kwargs, labels), spec, devices)
    how = TraceOptions.of(spec, on="cpu" if real_data else "meta", command=command)
    asked = StepRequest(traces, how, allocator or "")
    predictions = Question(
        asked,
        devices,
        batches,
        tier=tier,
        ppp=ppp,
        calibration=given,
        advice=advice,
        find_savings=find_savings,
        roofline=roofline,
        layout=layout,
        micro_batches=spec.micro_batches,
        timeline=memory,
        max_batch=max_batch,
        max_seq=max_seq,
    ).answer()
    if ledger is not None:
        predictions = beside_measured(predictions, ledger, spec)
    return replace(predictions, notes=(*(Note("card-taken", line) for line in cards_taken(on)), *predictions.notes))


def _traces_of(
    model: Any, called: tuple[tuple[Any, ...], Mapping[str, Any] | None, Any], spec: StepSpec, devices: Sequence[Device]
) -> Traces:
    """Of a model that is traced here, `called` with inputs, keywords and labels."""
    check_precision(spec.autocast or spec.dtype, devices, option="--autocast" if spec.autocast else "--dtype")
    inputs, kwargs, labels = called
    live = spec.model if isinstance(model, (str, StepSpec)) else model
    return Traces(live, inputs, kwargs, labels=labels, **spec.build)


@dataclass(frozen=True)
class Question:
    """What `predict` is asked, of a step whose traces may be shared by several questions."""

    asked: StepRequest
    devices: Sequence[Device]
    batches: Sequence[int]
    _: KW_ONLY
    tier: str | None = None
    ppp: Ppp | None = None
    calibration: Calibration | None = None
    advice: bool | None = None
    find_savings: bool = True
    roofline: bool = False
    layout: Layout | None = None
    micro_batches: int | None = None
    timeline: bool = False
    """Memory over the step?"""
    max_batch: bool = False
    max_seq: bool = False
    scaled: bool = False
    """Do its batches come from one trace that serves every batch, however few are asked for?"""

    @property
    def cells(self) -> int:
        return len(self.batches or [1]) * len(self.devices)

    def answer(self) -> Predictions:
        self._check()
        traces = by_generation(self.devices, self._traced)
        check_precisions(traces[0][0].steps[0].kinds, self.devices)  # a step of one's own names none
        sources = [[self._source(device) for device in some] for _, some in traces]
        workspaces = own_workspaces(_predictors(source for some in sources for source, _ in some))
        memories = MemoryPredictor(
            settings_given(self.asked.allocator), DeviceWorkspaces(workspaces), named=self.cells <= ADVISED_CELLS
        )
        jobs = [_GenerationJob(self, trace, some, memories) for (trace, _), some in zip(traces, sources, strict=True)]
        predictions = joined([job.answer() for job in jobs], self.devices)
        savings = self._savings(jobs, predictions) if self.find_savings else ()
        return replace(predictions, notes=(*predictions.notes, *memories.settings.notes), savings=savings)

    def _traced(self, target: str) -> GenerationTrace:
        asked = replace_option(self.asked, options=replace_option(self.asked.options, target=target))
        scaled = self.scaled or self.layout is not None
        return GenerationTrace(asked, *asked.traces.steps(self.batches, asked.options, scaled=scaled))

    def _source(self, device: Device) -> tuple[TimeSource, tuple[Note, ...]]:
        """How the device's times are found, and what must be said of it."""
        if self.tier == "spec":
            return SpecTier(device, self.ppp), ()
        if self.tier is None and has_spec_only(device, self.calibration):
            return SpecTier(device, self.ppp), (spec_only_note(device),)
        return predictor_of(device, self.tier, self.calibration)

    def _savings(self, jobs: Sequence[_GenerationJob], predictions: Predictions) -> tuple[MemorySaving, ...]:
        """Of the first device and its largest batch, where memory was asked for, or where something does not fit."""
        rows = predictions.predictions
        if self.layout is not None or not rows or rows[0].memory is None or not jobs[0].memories.named:
            return ()
        wrong = [row for row in rows if row.memory is not None and not row.memory.fits]
        if not wrong and not self.timeline:
            return ()
        about = wrong[0] if wrong else max((r for r in rows if r.device == rows[0].device), key=lambda r: r.batch or 0)
        return next(saved for job in jobs if (saved := job.savings(about)) is not None)

    def _check(self) -> None:
        """One line for what cannot be asked for at once."""
        how = self.asked.options
        changes = [FIELDS[name].option for name in _CHANGES if getattr(how, name)]
        if self.micro_batches is not None and self.layout is None:
            raise BadInput("option-needs-another", "--micro-batches goes with several GPUs: add --gpus or --nodes")
        if self.layout is not None and self.roofline:
            raise BadInput("option-conflict", "a roofline is of one device: leave --roofline or --gpus out")
        if self.tier == "spec" and how.graphs:
            raise BadInput(
                "option-conflict",
                "the spec tier knows no host, so a CUDA graph changes nothing: leave --graphs out, or --tier spec and "
                "--ppp",
            )
        other = next((device for device in self.devices if not device.is_cuda), None)
        what = "" if other is None else "a CPU" if other.kind == "cpu" else f"{other.vendor}'s"
        if other is not None and how.graphs:
            raise BadInput(
                "option-needs-gpu",
                f"{other.name} is {what}: CUDA graphs are for GPUs of NVIDIA and AMD, leave --graphs out",
            )
        if changes and (self.tier == "spec" or other is not None):
            who = "the spec tier knows no kernels" if other is None else f"{other.name} is {what}"
            raise BadInput(
                "option-needs-gpu", f"{who}, and {changes[0]} changes those of a GPU: leave {changes[0]} out"
            )


_CHANGES = ("compile", "channels_last", "fused", "pad")
"""Ways to run a step that change its kernels."""


def _predictors(sources: Iterable[TimeSource]) -> list[Predictor]:
    return [source for source in sources if isinstance(source, Predictor)]


@dataclass(frozen=True)
class _GenerationJob:
    """What is wanted of devices of one generation, which share a trace."""

    question: Question
    trace: GenerationTrace
    by_device: Sequence[tuple[TimeSource, tuple[Note, ...]]]
    """How each device's times are found, and what must be said of it."""
    memories: MemoryPredictor

    @property
    def sources(self) -> list[TimeSource]:
        return [source for source, _ in self.by_device]

    def answer(self) -> Predictions:
        steps, predictors = self.trace.steps, _predictors(self.sources)
        tasks = [task for step in steps for task in step.tasks]
        for predictor in predictors:
            predictor.task_times(tasks)  # all at once is faster than step by step
        rows = [self._row(source, step) for source in self.sources for step in steps]
        predictions = Predictions(
            header=_header(steps),
            predictions=tuple(rows),
            notes=(
                *too_large(rows),
                *barely(rows),
                *steps[0].ledger.header.notes,
                *((Note("assumed-compilation", COMPILE_ASSUMES),) if steps[0].is_compiled and predictors else ()),
                *self.trace.notes,
                *filter(None, [padding_note(steps[0])]),
                *(note for _, notes in self.by_device for note in notes),
                *guess_notes(source.device for source in self.sources),
                *vendor_notes(predictors),
                *versions_notes(predictors),
                *assumed_notes(predictor.device for predictor in predictors),
                *_guesses(steps, {row.tier for row in rows}, predictors),
                *carried_note(steps[0], rows),
                *memory_notes(rows),
                *(
                    ()
                    if steps[0].has_lifetimes
                    else (Note("memory-unknown", f"memory is not known: {MEMORY_UNKNOWN}"),)
                ),
            ),
            devices=tuple(source.device for source in self.sources),
            graphs=steps[0].is_graph,
            precisions=tuple(sorted({op.precision for op in steps[0].kinds if op.cost is not None and op.cost.macs})),
            calibrations={predictor.device.name: _calibrated_with(predictor) for predictor in predictors},
        )
        return with_limits(
            predictions,
            self.trace.asked,
            map(self._place, self.sources),
            self.memories,
            max_batch=self.question.max_batch,
            max_seq=self.question.max_seq,
        )

    def _row(self, source: TimeSource, step: Step) -> Prediction:
        question = self.question
        advised = question.cells <= ADVISED_CELLS if question.advice is None else question.advice
        if isinstance(source, Predictor) and advised and question.layout is None:
            run = device_runs(step, [source])[0]
            advice = predicted_advice(run, lambda other: self.memories.fits(other, source.device)[0])
            row = replace(run.prediction(), advised=True, advice=advice)
        else:
            row = predicted(step, source)
        if question.roofline:
            row = _with_roofline(row, step, source)
        curves = question.cells <= CURVED_CELLS
        return self._place(source).completed(row, step, self.memories, curves=curves, timeline=question.timeline)

    def _place(self, source: TimeSource) -> OneDevice:
        """Where the step runs: the device, or as many of it as were asked for."""
        layout = self.question.layout
        if layout is None:
            return OneDevice(source)
        return Cluster(source, layout, self.question.micro_batches, self.trace.steps[0])

    def savings(self, about: Prediction) -> tuple[MemorySaving, ...] | None:
        """`None`: the prediction is of another generation."""
        source = next((source for source in self.sources if source.device.name == about.device), None)
        if source is None:
            return None
        step = next(step for step in self.trace.steps if step.batch == about.batch)
        return savings(self.trace.asked, step, source, self.memories)


def _divided(spec: StepSpec) -> StepSpec:
    """With the batch of one replica, where that of all was given."""
    if spec.total_batch is None:
        return spec
    return with_part_of(spec, spec.total_batch, replicas(parallel=spec.parallel, gpus=spec.gpus, nodes=spec.nodes))


def _batches(spec: StepSpec, model: object) -> list[int]:
    batches = list(spec.batches)
    if max(batches, default=0) > MOST:
        raise BadInput(
            "batch-too-large", f"--batch={max(batches)} is more than any device takes: give at most {MOST:,}"
        )
    if isinstance(model, (str, StepSpec)) or is_program(model):
        return batches
    from torch import nn

    if not isinstance(model, nn.Module):
        raise BadInput(
            "not-a-model", f"expected the name of a model, an nn.Module or a step to call, got {type(model).__name__}"
        )
    if len(batches) > 1:
        raise BadInput("needs-a-model-name", "a live module is predicted with the inputs you pass: one batch at a time")
    return batches


def _check_devices(on: object) -> None:
    several = on if isinstance(on, Sequence) and not isinstance(on, str) else [on]
    if wrong := [device for device in several if not isinstance(device, (str, Device))]:
        raise BadInput("unknown-device", f"--on must name devices (see `rooflight list devices`), got {wrong[0]!r}")


def _tier(devices: Sequence[Device], *, tier: str | None, ppp: Ppp | None) -> str | None:
    """The tier that was asked for, if everything that was asked for goes together."""
    if not devices:
        raise BadInput("no-device", "no device given: name one with --on (see `rooflight list devices`)")
    if tier == "partial":
        raise BadInput(
            "unknown-choice",
            "the tier partial is not asked for: a calibration by `rooflight calibrate --from` makes it: leave it out",
        )
    if tier is not None and tier not in TIERS:
        raise BadInput("unknown-choice", f"unknown tier {tier!r}; known: {', '.join(TIERS)}")
    if ppp is not None and tier not in (None, "spec"):
        raise BadInput("option-conflict", "--ppp goes with the spec tier: leave --ppp or --tier out")
    if len({device.kind for device in devices}) > 1:
        raise BadInput("mixed-devices", "a CPU and a GPU run different kernels: predict them one after the other")
    return "spec" if ppp is not None else tier


def _with_roofline(row: Prediction, step: Step, source: TimeSource) -> Prediction:
    times = RooflineTimes.of_ops(
        f"predicted, {row.tier}", dict(enumerate(row.op_times_s)), gpu_busy_s=row.gpu_time_s, wall_s=row.time_s
    )
    ceilings = ceilings_of(source.device, source if isinstance(source, Predictor) else None)
    return replace(
        row, roofline=roofline(moving_ledger_of(step), source.device, times=times, ceilings=ceilings).to_dict()
    )


def _guesses(steps: Sequence[Step], tiers: set[str], predictors: Sequence[Predictor]) -> tuple[Note, ...]:
    """Ops whose time is not that of the like of them, by name."""

    def is_unlike(op: Op) -> bool:
        """Also of a calibration of before such works were timed."""
        return is_guess(op) or any(not by.knows(task) for task in tasks_of(op) for by in predictors)

    doubts: list[tuple[Callable[[Op], bool], str, str]] = []
    if tiers != {"spec"}:
        doubts.append(
            (is_unlike, "guessed-times", "nothing like it was timed, so its time is a guess, and may be far off: ")
        )
    if "spec" in tiers:
        doubts.append(
            (is_unknown, "missing-formulas", "no formula, or only part of one: the missing part counts as no time: ")
        )
    notes = []
    for doubtful, code, reason in doubts:
        names = sorted({op.packet.removeprefix("aten::") for step in steps for op in _untimed(step) if doubtful(op)})
        notes += [Note(code, reason + ", ".join(names))] if names else []
    return tuple(notes)


def _untimed(step: Step) -> Iterator[Op]:
    """Kinds of op whose time is not known from a measurement of the step itself."""
    timed = {int(step.kind_of[place]) for place in own_times(step)}
    return (op for kind, op in enumerate(step.kinds) if kind not in timed)


def _header(steps: Sequence[Step]) -> Any:
    """Of the step that was asked for: a trace for many batches has a batch of its own."""
    first, header = steps[0], steps[0].ledger.header
    if first.batch == header.batch and len(steps) == 1:
        return header
    return replace(header, batch=first.batch if len(steps) == 1 else None, inputs=(), outputs=())


def _calibrated_with(predictor: Predictor) -> str:
    """`comes with rooflight: NVIDIA H200, 2026-11-15, torch 2.11.0, driver 580, 55,268 timed points`, and what its file
    notes."""
    calibration = predictor.calibration
    points = sum(len(some.rows) for some in calibration.points)
    driver = f"driver {calibration.driver}" if calibration.driver else ""
    parts = [calibration.device, calibration.made, f"torch {calibration.torch}", driver, f"{points:,} timed points"]
    return f"{predictor.source}: {'; '.join([', '.join(filter(None, parts)), *calibration.notes])}"
