"""A ledger in place of a model: its step is predicted as it was, whether it was estimated, recorded or measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from rooflight import recordings
from rooflight.errors import BadInput
from rooflight.estimation.gpu_optimizer import takes_all_at_once
from rooflight.files import load
from rooflight.hardware.device import Device
from rooflight.hardware.devices import recognise_name
from rooflight.ledger import Ledger, Note, Op
from rooflight.prediction.rebuilt import as_run_by, on_other_kind, step_of, traces_of
from rooflight.prediction.result import Predictions
from rooflight.prediction.tiers import check_precision
from rooflight.prediction.traces import Traces
from rooflight.spec import FIELDS, StepSpec
from rooflight.step.costed_step import Step
from rooflight.summary.measured import Measured, is_measured
from rooflight.summary.measured_step import busy_s, wall_s
from rooflight.trace import TraceOptions
from rooflight.trace.target import generation, needed_for, parse_target

_ENDINGS = (".json", ".json.gz")
_HOW = ("channels_last", "fused", "pad", "compile", "graphs")
"""Ways to run a step that are found from the plain one."""
_WHERE = ("gpus", "nodes", "parallel", "micro_batches")


def ledger_given(model: Any) -> Ledger | None:
    """The ledger that stands where a model may: itself, its file, or a recording; `None`: it is a model."""
    if isinstance(model, Ledger):
        return _with_ops(model, model.header.model)
    named = isinstance(model, str) and (recordings.is_recorded(model) or model.lower().endswith(_ENDINGS))
    return _with_ops(load(model), str(model)) if named or isinstance(model, Path) else None


def _with_ops(ledger: Ledger, name: str) -> Ledger:
    if not ledger.ops:
        raise BadInput(
            "no-ops",
            f"{name} has kernels or regions but no ops, whose shapes a prediction needs: give a ledger of `rooflight "
            "measure` or `estimate`, or a PyTorch trace that was made with record_shapes=True",
        )
    if ranks := {op.rank for op in ledger.ops} - {ledger.ops[0].rank}:
        raise BadInput(
            "several-ranks", f"{name} has the ops of {len(ranks) + 1} processes: give the ledger of one of them"
        )
    return ledger


def spec_of(ledger: Ledger, keywords: Mapping[str, Any], *, inputs: object = ()) -> StepSpec:
    """The ledger's step, with what may be asked of it besides: how it is run, and on how many GPUs. All else is as it
    was, and refused with a line where it should be otherwise."""
    header, was = ledger.header, StepSpec.of(ledger.header)
    if inputs:
        raise BadInput(
            "option-not-applicable", "inputs go with a live module; the step of a ledger has its own: leave them out"
        )
    given = {name: value for name, value in keywords.items() if value is not None}
    asked = StepSpec.given(header.model, {"step": was.step, **given}, verb="predict")
    fields = {field.name: getattr(asked, field.name) for field in FIELDS.values() if field.keyword in given}
    for name, value in fields.items():
        kept = name in _WHERE or (name in _HOW and value) or value == getattr(was, name)
        if not kept:
            raise BadInput("step-of-ledger", _refusal(ledger, was, name, value))
    return replace(was, **{name: value for name, value in fields.items() if name in (*_HOW, *_WHERE)})


def _refusal(ledger: Ledger, was: StepSpec, name: str, value: Any) -> str:
    option, now = FIELDS[name].option, getattr(was, name)
    text = "" if now in (None, (), {}) else f" ({now})"
    line = f"{option}: the step of a ledger is predicted as it was{text}: leave {option} out"
    if name == "total_batch" or traces_of(ledger) is None:
        return line
    return f"{line}, or predict the model: {replace(was, **{name: value}).command('predict')}"


def check_precisions(ops: Iterable[Op], devices: Sequence[Device]) -> None:
    """One line where a device does not compute in what the step computes in."""
    matrix = {op.precision for op in ops if op.cost is not None and op.cost.macs}
    for precision in sorted({"fp32" if name == "tf32" else name for name in matrix}):
        check_precision(precision, devices, option="another precision")


class LedgerTraces(Traces):
    """Of a ledger's step: as it was, but for kernels that another generation of GPUs has, where it can be traced."""

    def __init__(self, ledger: Ledger, spec: StepSpec) -> None:
        again = traces_of(ledger)  # before torch is loaded: what is traced is kept only then
        super().__init__(spec.model, **spec.build)
        changes: dict[str, Any] = {name: getattr(spec, name) for name in ("channels_last", "fused", "pad")}
        if is_measured(ledger):  # notes on how that was done say nothing of a prediction
            changes["notes"] = ()
        self._ledger = replace(ledger, header=replace(ledger.header, execution=spec.execution, **changes))
        self._again = again
        self._own: dict[bool, Step] = {}

    @property
    def by_name(self) -> bool:
        return False

    def steps(
        self, batches: Sequence[int], options: TraceOptions, *, scaled: bool = False
    ) -> tuple[list[Step], tuple[Note, ...]]:
        ledger, note = as_run_by(self._ledger, options.target, self._again)
        if ledger is not self._ledger:
            return [step_of(ledger, self._again)], ()
        note = note or _kernels_from_elsewhere(ledger, options.target)
        return [self._step(options.target == "cpu")], (Note("kernels-of-another-target", note),) if note else ()

    def _step(self, on_cpu: bool) -> Step:
        """The same one for all GPUs; what is said of times depends on whether it is for a CPU."""
        if on_cpu not in self._own:
            self._own[on_cpu] = step_of(on_other_kind(self._ledger, cpu=on_cpu), self._again)
        return self._own[on_cpu]


def _kernels_from_elsewhere(ledger: Ledger, target: str) -> str:
    """What must be said of a step that runs as it ran for another target."""
    traced, asked = parse_target(ledger.header.target), parse_target(target)
    ran = "ran" if is_measured(ledger) else "was traced"
    if traced.kind != asked.kind:
        known = traces_of(ledger) is not None
        by_name = f", as {StepSpec.of(ledger.header).command('predict')} has them" if known else ""
        at_once = asked.kind == "cuda" and takes_all_at_once(ledger)
        but = " but for the optimizer's, which takes all tensors at once there" if at_once else ""
        others = "attention and TF32" if at_once else "attention, optimizer and TF32"
        return (
            f"the step {ran} for {ledger.header.target}, and is taken to call the same ops for {target}{but}: {others} "
            f"may be others there{by_name}"
        )
    attention = [op for op in ledger.ops if op.packet.startswith("aten::_scaled_dot_product")]
    older = any(asked.capability < needed_for(op.packet, op.precision) for op in attention)
    if attention and (older or generation(traced.capability) < generation(asked.capability)):
        return f"attention {ran} in the kernels of {ledger.header.target}: those of {target} are others"
    return ""


def beside_measured(predictions: Predictions, ledger: Ledger, spec: StepSpec) -> Predictions:
    """With the times that the ledger was measured to take, in the row of the device that it was measured on."""
    device, as_it_ran = recognise_name(ledger.header.device or ""), spec == StepSpec.of(ledger.header)
    if device is None or not as_it_ran or not is_measured(ledger):
        return predictions
    measured = Measured(ledger)
    times = {"measured_time_s": wall_s(measured), "measured_gpu_time_s": busy_s(measured)}
    rows = tuple(replace(row, **times) if row.device == device.name else row for row in predictions)
    return replace(predictions, predictions=rows)
