"""`rooflight.predict`: how long a step takes on devices that are here or elsewhere, on one or on many."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from dataclasses import replace as replace_option
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from msgspec.structs import replace

from rooflight.errors import BadInput
from rooflight.hardware.calibration import Calibration
from rooflight.hardware.device import Device
from rooflight.hardware.roofs import is_unknown
from rooflight.ledger import Op
from rooflight.memory.cudnn_workspaces import DeviceWorkspaces
from rooflight.memory.largest import MOST
from rooflight.memory.predict import MemoryPredictor
from rooflight.memory.result import Memory
from rooflight.ops.op_tasks import is_guess
from rooflight.parallel.layout import Layout
from rooflight.prediction.advice import predicted_advice
from rooflight.prediction.capacity import (
    Deployment,
    OneDevice,
    Timed,
    barely,
    memory_notes,
    savings,
    settings_given,
    too_large,
    with_limits,
)
from rooflight.prediction.cluster_run import Cluster, layout_of, retime_by, timed_by, timed_by_spec
from rooflight.prediction.device_run import DeviceRun, device_runs, rates, spec_prediction
from rooflight.prediction.generations import GenerationTrace, by_generation, joined
from rooflight.prediction.paleo import Ppp, given_ppp
from rooflight.prediction.resolve_devices import (
    assumed_notes,
    ceilings_of,
    devices_of,
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
from rooflight.prediction.tiers import TIERS, Predictor, check_precision
from rooflight.prediction.traces import StepRequest, Traces
from rooflight.spec import FIELDS, PredictKeywords, StepSpec, takes_step
from rooflight.step.changes import COMPILE_ASSUMES
from rooflight.step.costed_step import Step, ledger_of
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
    model: str | nn.Module | StepSpec,
    *inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    on: str | Device | Sequence[str | Device] = "h200",
    tier: str | None = None,
    ppp: float | Ppp | None = None,
    calibration: Calibration | str | Path | None = None,
    advice: bool | None = None,
    find_savings: bool = True,
    roofline: bool = False,
    memory: bool = False,
    max_batch: bool = False,
    max_seq: bool = False,
    allocator: str | None = None,
    command: str = "",
    **step: Unpack[PredictKeywords],
) -> Predictions:
    """Predicted time and memory of one step, for every device in `on` and every batch; none of them is needed.

    `model` and its options are those of `rooflight.estimate`. `on`: names of the database, .toml files, or `here`;
    several in a list, or separated by commas. `tier`: `calibrated`, `transferred` or `spec`; by default the most
    accurate that each device has data for (`ppp` needs `spec`). `calibration`: a file written by `rooflight calibrate`.
    `graphs`: the step as one CUDA graph. `compile`, `fused`, `channels_last` and `pad` are changes of the traced step.
    `roofline`: roofs and points beside every prediction. `gpus` in each of `nodes`, working together as `parallel` says
    (`ddp`, `fsdp`, `tp`, `pp`, `8x4x2`, ...): the batch is then that of one replica, cut into `micro_batches`.
    `advice`: what would make each faster; by default if there are at most 12 predictions. `memory`: memory over the
    step, and what would reduce it; the peaks are in every prediction. `find_savings`: look for what would reduce memory
    where a step does not fit. `max_batch`, `max_seq`: the largest batch and the longest sequence that fit, of a model
    by name. `allocator`: settings of torch's CUDA allocator as in PYTORCH_CUDA_ALLOC_CONF.

        >>> rooflight.predict("resnet50", on=["a100", "h200"], batch=[1, 8, 64], step="train")
    """
    spec = StepSpec.given(model, step, verb="predict", inputs=inputs, kwargs=kwargs)
    _check_devices(on)
    given = read_calibration(calibration)
    devices = devices_of(on, given)
    batches, live = _batches(spec, model), spec.model if isinstance(model, (str, StepSpec)) else model
    layout = layout_of(spec.parallel, gpus=spec.gpus, nodes=spec.nodes)
    ppp = ppp if ppp is None or isinstance(ppp, Ppp) else given_ppp(ppp)
    tier = _tier(devices, tier=tier, ppp=ppp)
    check_precision(spec.autocast or spec.dtype, devices, option="--autocast" if spec.autocast else "--dtype")
    traces = Traces(live, inputs, kwargs, **spec.build)
    asked = StepRequest(traces, TraceOptions.of(spec, command=command), allocator or "")
    return answer(
        asked,
        devices,
        batches,
        tier=tier,
        ppp=ppp,
        given=given,
        advice=advice,
        find_savings=find_savings,
        roofline=roofline,
        layout=layout,
        micro_batches=spec.micro_batches,
        timeline=memory,
        max_batch=max_batch,
        max_seq=max_seq,
    )


def answer(
    asked: StepRequest,
    devices: Sequence[Device],
    batches: Sequence[int],
    *,
    tier: str | None = None,
    ppp: Ppp | None = None,
    given: Calibration | None = None,
    advice: bool | None = None,
    find_savings: bool = True,
    roofline: bool = False,
    layout: Layout | None = None,
    micro_batches: int | None = None,
    timeline: bool = False,
    max_batch: bool = False,
    max_seq: bool = False,
    scaled: bool = False,
) -> Predictions:
    """`predict` of a step whose traces are shared by several questions. `scaled`: its batches come from one trace that
    serves every batch, however few are asked for."""
    _check_together(devices, tier, layout, asked.options, roofline=roofline, micro_batches=micro_batches)

    def traced(target: str) -> GenerationTrace:
        one = replace_option(asked, options=replace_option(asked.options, target=target))
        steps, notes = one.traces.steps(batches, one.options, scaled=scaled or layout is not None)
        return GenerationTrace(one, steps, notes)

    cells = len(batches or [1]) * len(devices)
    parts = by_generation(devices, traced)
    ways = [_ways(some, tier, given) for _, some in parts]
    own = own_workspaces([one for way in ways for one in way.predictors])
    memories = MemoryPredictor(settings_given(asked.allocator), DeviceWorkspaces(own), named=cells <= ADVISED_CELLS)
    works = [
        _PredictionJob(
            trace,
            some,
            way,
            ppp=ppp,
            advice=cells <= ADVISED_CELLS if advice is None else advice,
            roofline=roofline,
            layout=layout,
            micro_batches=micro_batches,
            memories=memories,
            timeline=timeline,
            curves=cells <= CURVED_CELLS,
        )
        for (trace, some), way in zip(parts, ways, strict=True)
    ]
    found = joined(
        [
            with_limits(
                _answered(work),
                work.trace.asked,
                [work.place(device) for device in work.devices],
                memories,
                max_batch=max_batch,
                max_seq=max_seq,
            )
            for work in works
        ],
        devices,
    )
    saved = _savings(works, found) if find_savings else ()
    return replace(found, notes=(*found.notes, *memories.settings.notes), savings=saved)


@dataclass(frozen=True)
class _TimeSources:
    """How each device's times are found, and what must be said of it."""

    predictors: Sequence[Predictor]
    by_spec: Sequence[Device]
    notes: tuple[str, ...]


def _ways(devices: Sequence[Device], tier: str | None, given: Calibration | None) -> _TimeSources:
    predictors: list[Predictor] = []
    by_spec: list[Device] = []
    notes: tuple[str, ...] = ()
    for device in devices:
        if tier == "spec" or (tier is None and has_spec_only(device, given)):
            by_spec.append(device)
            notes += () if tier == "spec" else (spec_only_note(device),)
            continue
        one, said = predictor_of(device, tier, given)
        predictors.append(one)
        notes += said
    return _TimeSources(predictors, by_spec, notes)


def _answered(work: _PredictionJob) -> Predictions:
    predictors, by_spec = work.ways.predictors, work.ways.by_spec
    rows = [*work.by_predictors(predictors), *(row for device in by_spec for row in work.by_spec(device))]
    places = {device.name: place for place, device in enumerate(work.devices)}
    rows.sort(key=lambda row: places[row.device])
    timed = [one.device for one in predictors]
    assumed = (COMPILE_ASSUMES,) if work.steps[0].is_compiled and predictors else ()
    notes = (
        *assumed,
        *work.trace.notes,
        *work.ways.notes,
        *vendor_notes(predictors),
        *versions_notes(predictors),
        *assumed_notes(timed),
    )
    steps = work.steps
    return Predictions(
        header=_header(steps),
        predictions=tuple(rows),
        notes=(
            *too_large(rows),
            *barely(rows),
            *steps[0].ledger.header.notes,
            *notes,
            *_guesses(steps, {row.tier for row in rows}),
            *memory_notes(rows),
        ),
        devices=tuple(work.devices),
        graphs=steps[0].is_graph,
        precisions=_precisions(steps[0]),
        calibrations={one.device.name: _made(one) for one in predictors},
    )


def _savings(works: Sequence[_PredictionJob], found: Predictions) -> tuple[MemorySaving, ...]:
    """Of the first device and its largest batch, where memory was asked for, or where something does not fit."""
    rows, any_work = found.predictions, works[0]
    if any_work.layout is not None or not rows or not any_work.memories.named:
        return ()
    wrong = [row for row in rows if row.memory is not None and not row.memory.fits]
    if not wrong and not any_work.timeline:
        return ()
    about = wrong[0] if wrong else max((r for r in rows if r.device == rows[0].device), key=lambda r: r.batch or 0)
    work = next(work for work in works if about.device in {device.name for device in work.devices})
    return work.savings(about)


def _batches(spec: StepSpec, model: str | nn.Module | StepSpec) -> list[int]:
    found = list(spec.batches)
    if any(one > MOST for one in found):
        raise BadInput(f"--batch={max(found)} is more than any device takes: give at most {MOST:,}")
    if isinstance(model, (str, StepSpec)):
        return found
    from torch import nn

    if not isinstance(model, nn.Module):
        raise BadInput(f"expected the name of a model or an nn.Module, got {type(model).__name__}")
    if len(found) > 1:
        raise BadInput("a live module is predicted with the inputs you pass: one batch at a time")
    return found


def _check_devices(on: object) -> None:
    several = on if isinstance(on, Sequence) and not isinstance(on, str) else [on]
    if wrong := [one for one in several if not isinstance(one, (str, Device))]:
        raise BadInput(f"--on must name devices (see `rooflight list devices`), got {wrong[0]!r}")


_CHANGES = ("compile", "channels_last", "fused", "pad")
"""Ways to run a step that change its kernels."""


def _check_together(
    devices: Sequence[Device],
    tier: str | None,
    layout: Layout | None,
    how: TraceOptions,
    *,
    roofline: bool,
    micro_batches: int | None,
) -> None:
    """One line for what cannot be asked for at once."""
    graphs, changes = how.graphs, [FIELDS[name].option for name in _CHANGES if getattr(how, name)]
    if micro_batches is not None and layout is None:
        raise BadInput("--micro-batches goes with several GPUs: add --gpus or --nodes")
    if layout is not None and roofline:
        raise BadInput("a roofline is of one device: leave --roofline or --gpus out")
    if tier == "spec" and graphs:
        raise BadInput(
            "the spec tier knows no host, so a CUDA graph changes nothing: leave --graphs out, or --tier spec and --ppp"
        )
    if devices[0].kind == "cpu" and graphs:
        raise BadInput(f"{devices[0].name} is a CPU: CUDA graphs are for GPUs, leave --graphs out")
    if changes and (tier == "spec" or devices[0].kind == "cpu"):
        who = f"{devices[0].name} is a CPU" if devices[0].kind == "cpu" else "the spec tier knows no kernels"
        raise BadInput(f"{who}, and {changes[0]} changes those of a GPU: leave {changes[0]} out")


def _tier(devices: Sequence[Device], *, tier: str | None, ppp: Ppp | None) -> str | None:
    """The tier that was asked for, if everything that was asked for goes together."""
    if not devices:
        raise BadInput("no device given: name one with --on (see `rooflight list devices`)")
    if tier is not None and tier not in TIERS:
        raise BadInput(f"unknown tier {tier!r}; known: {', '.join(TIERS)}")
    if ppp is not None and tier not in (None, "spec"):
        raise BadInput("--ppp goes with the spec tier: leave --ppp or --tier out")
    if len({device.kind for device in devices}) > 1:
        raise BadInput("a CPU and a GPU run different kernels: predict them one after the other")
    return "spec" if ppp is not None else tier


@dataclass(frozen=True)
class _PredictionJob:
    """Steps, and what is wanted of each on each device."""

    trace: GenerationTrace
    devices: Sequence[Device]
    ways: _TimeSources
    _: KW_ONLY
    ppp: Ppp | None
    advice: bool
    roofline: bool
    layout: Layout | None
    micro_batches: int | None
    memories: MemoryPredictor
    timeline: bool
    curves: bool

    @property
    def steps(self) -> Sequence[Step]:
        return self.trace.steps

    def by_spec(self, device: Device) -> list[Prediction]:
        rows = []
        for step in self.steps:
            found = replace(spec_prediction(step, device, self.ppp), memory=self._memory(step, device))
            if self.roofline:
                found = _with_roofline(found, step, device, None)
            rows.append(self._spread(found, step, self._cluster(device, None)))
        return rows

    def by_predictors(self, predictors: Sequence[Predictor]) -> list[Prediction]:
        tasks = [task for step in self.steps for task in step.tasks]
        for one in predictors:
            one.task_times(tasks)  # all at once is faster than step by step
        runs: list[list[DeviceRun]] = [device_runs(step, predictors) for step in self.steps]
        advised = self.advice and self.layout is None
        rows = []
        for number, one in enumerate(predictors):
            for step, row in zip(self.steps, runs, strict=True):
                found = replace(row[number].prediction(), memory=self._memory(step, one.device))
                if advised:
                    found = replace(
                        found, advised=True, advice=predicted_advice(row[number], self._fits_on(one.device))
                    )
                if self.roofline:
                    found = _with_roofline(found, step, one.device, one)
                rows.append(self._spread(found, step, self._cluster(one.device, one)))
        return rows

    def place(self, device: Device) -> Deployment:
        """Where the step runs: the device, or as many of it as were asked for."""
        return self._cluster(device, self._predictor(device.name)) or OneDevice(device)

    def _predictor(self, device: str) -> Predictor | None:
        return next((one for one in self.ways.predictors if one.device.name == device), None)

    def _cluster(self, device: Device, used: Predictor | None) -> Cluster | None:
        if self.layout is None:
            return None
        if used is None:
            return Cluster(device, self.layout, timed_by_spec(device, self.ppp), None, self.micro_batches)
        timed = timed_by(used)
        return Cluster(device, self.layout, timed, retime_by(used, self.steps[0]), self.micro_batches)

    def _spread(self, found: Prediction, step: Step, cluster: Cluster | None) -> Prediction:
        if cluster is None:
            return found
        return cluster.spread(found, step, curves=self.curves, memories=self.memories, timeline=self.timeline)

    def _memory(self, step: Step, device: Device) -> Memory | None:
        """Of one device. Of many, it is found where the step is spread over them."""
        return None if self.layout is not None else self.memories.of(step, device, timeline=self.timeline)

    def _fits_on(self, device: Device) -> Callable[[Step], bool]:
        return lambda step: self.memories.fits(step, device)[0]

    def savings(self, about: Prediction) -> tuple[MemorySaving, ...]:
        step = next(step for step in self.steps if step.batch == about.batch)
        device = next(device for device in self.devices if device.name == about.device)
        timed = self._timed(device, self._predictor(device.name))
        return savings(self.trace.asked, step, device, self.memories, timed)

    def _timed(self, device: Device, used: Predictor | None) -> Timed:
        def timed(step: Step) -> tuple[float, float | None]:
            if used is None:
                found = spec_prediction(step, device, self.ppp)
                return found.time_s, found.throughput
            time_s = device_runs(step, [used])[0].wall_s
            return time_s, rates(step, time_s)[0]

        return timed


def _with_roofline(found: Prediction, step: Step, device: Device, used: Predictor | None) -> Prediction:
    ledger = ledger_of(step)
    times = RooflineTimes.of_ops(
        f"predicted, {found.tier}",
        dict(enumerate(found.op_times_s)),
        gpu_busy_s=found.gpu_time_s,
        wall_s=found.time_s,
    )
    return replace(found, roofline=roofline(ledger, device, times=times, ceilings=ceilings_of(device, used)).to_dict())


def _guesses(steps: Sequence[Step], tiers: set[str]) -> tuple[str, ...]:
    """Ops whose time is not that of the like of them, by name."""
    doubts: list[tuple[Callable[[Op], bool], str]] = []
    if tiers != {"spec"}:
        doubts.append((is_guess, "nothing like it was timed, so its time is a guess, and may be far too short: "))
    if "spec" in tiers:
        doubts.append((is_unknown, "no formula, or only part of one: the missing part counts as no time: "))
    found = []
    for doubtful, said in doubts:
        names = sorted({op.packet.removeprefix("aten::") for step in steps for op in step.kinds if doubtful(op)})
        found += [said + ", ".join(names)] if names else []
    return tuple(found)


def _header(steps: Sequence[Step]) -> Any:
    """Of the step that was asked for: a trace for many batches has a batch of its own."""
    first, header = steps[0], steps[0].ledger.header
    if first.batch == header.batch and len(steps) == 1:
        return header
    return replace(header, batch=first.batch if len(steps) == 1 else None, inputs=(), outputs=())


def _precisions(step: Step) -> tuple[str, ...]:
    return tuple(sorted({op.precision for op in step.kinds if op.cost is not None and op.cost.macs}))


def _made(one: Predictor) -> str:
    """`comes with rooflight: NVIDIA H200, 2026-11-15, torch 2.11.0, driver 580, 55,268 timed points`, and what its file
    notes."""
    made = one.calibration
    said = [made.device, made.made, f"torch {made.torch}"]
    said += [f"driver {made.driver}"] if made.driver else []
    points = sum(len(some.rows) for some in made.points)
    told = [", ".join(part for part in [*said, f"{points:,} timed points"] if part), *made.notes]
    return f"{one.source}: {'; '.join(told)}"
