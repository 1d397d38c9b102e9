"""What a step would take elsewhere: on other devices, at other batches, on many GPUs. Predicted when a report is made.

Batches and many GPUs need the model itself (`prediction/rebuilt.py`). Devices at the ledger's own batch need nothing
but the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from rooflight.errors import BadInput, RooflightError
from rooflight.hardware.device import Device
from rooflight.ledger import Ledger, Note
from rooflight.prediction.api import Question
from rooflight.prediction.cluster_run import layout_of
from rooflight.prediction.device_run import device_runs
from rooflight.prediction.rebuilt import as_run_on, on_other_kind, traces_of
from rooflight.prediction.resolve_devices import memories_on, predictor_of
from rooflight.prediction.result import Prediction, Predictions
from rooflight.prediction.tiers import check_precision
from rooflight.spec import StepSpec, is_live
from rooflight.step.costed_step import own_step
from rooflight.summary.measured import is_measured

if TYPE_CHECKING:
    from rooflight.prediction.rebuilt import Rebuilt

_MOST_BATCH = 4096
_SIZES, _SIZES_OF_LARGE = 9, 5
_LARGE = 5_000
"""Ops from which on a step is predicted at fewer batches."""
_GPUS_PER_NODE, _NODES = 8, 4


@dataclass(frozen=True)
class PredictedPart:
    """One question to the prediction: its answer, or why there is none."""

    answer: Predictions | None = None
    missing: str = ""
    command: str = ""
    """What would answer it, where a report does not ask by itself."""


@dataclass(frozen=True)
class ReportPredictions:
    devices: PredictedPart
    """At the ledger's own batch."""
    sweep: PredictedPart
    scaling: PredictedPart


def predictions_for(ledger: Ledger, devices: Sequence[Device], again: Rebuilt | str) -> ReportPredictions:
    """On devices that can run the step. `again`: the same step by name, or why it cannot be had."""
    if why := why_nothing(ledger, devices):
        nothing = PredictedPart(missing=why)
        return ReportPredictions(nothing, nothing, nothing)
    large = len(ledger.ops) >= _LARGE
    batch = ledger.header.batch or 1
    sizes = {"batch": tuple(_batches(batch, _SIZES_OF_LARGE if large else _SIZES))}
    cluster = {"gpus": _GPUS_PER_NODE, "nodes": _NODES}
    only_training = PredictedPart(missing="scaling is of training")
    training = ledger.header.step == "train"
    if isinstance(again, str):
        where = [device.name for device in devices]
        return ReportPredictions(
            _tried(lambda: _from_ledger(ledger, devices)),
            _by_hand(ledger, again, where, sizes),
            _by_hand(ledger, again, where[:1], cluster) if training else only_training,
        )
    plain = partial(Question, again.asked, advice=False, find_savings=False)
    many = layout_of(None, **cluster)
    scaling = _tried(lambda: plain(devices[:1], [batch], layout=many).answer()) if training else only_training
    sweep = _tried(lambda: plain(devices, list(sizes["batch"])).answer())
    if large and sweep.answer is not None:
        rows = tuple(row for row in sweep.answer if row.batch == batch)
        here = PredictedPart(replace(sweep.answer, predictions=rows))
    else:
        here = _tried(lambda: plain(devices, [batch], scaled=again.scaled).answer())
    return ReportPredictions(here, sweep, scaling)


def why_nothing(ledger: Ledger, devices: Sequence[Device]) -> str:
    """Why nothing can be predicted; empty where it can."""
    if not ledger.ops or ledger.header.step is None:
        return "this run has no record of its ops, so nothing can be predicted from it"
    ranks = len({op.rank for op in ledger.ops})
    if ranks > 1:
        return f"this ledger holds {ranks} ranks, and predictions are of one: report one's alone"
    return "" if devices else "none of the devices can run this step: name others with --on"


def _by_hand(ledger: Ledger, why: str, on: Sequence[str], changed: dict[str, Any]) -> PredictedPart:
    """The command that answers what a report does not ask by itself."""
    if is_live(ledger.header) or ledger.header.batch is None:
        return PredictedPart(missing=why)
    try:
        command = replace(StepSpec.of(ledger.header), **changed).check().command("predict", on=on)
    except RooflightError as error:
        return PredictedPart(missing=error.on_command_line)
    return PredictedPart(missing=f"{why}; the command below predicts it", command=command)


def _tried(ask: Callable[[], Predictions]) -> PredictedPart:
    """One that cannot be answered must not take the report with it."""
    try:
        return PredictedPart(ask())
    except RooflightError as error:
        return PredictedPart(missing=error.on_command_line)


def _batches(batch: int, sizes: int) -> list[int]:
    """Powers of two around the ledger's own, and that itself."""
    lowest = max(0, batch.bit_length() - 1 - sizes // 2)
    powers = [2**power for power in range(lowest, lowest + sizes) if 2**power <= max(batch, _MOST_BATCH)]
    return sorted({1, batch, *powers})


def usable(ledger: Ledger, devices: Sequence[Device]) -> tuple[list[Device], tuple[str, ...]]:
    """Devices that have the precision of the step; of the others, why not."""
    header = ledger.header
    able, left_out = [], []
    for device in devices:
        try:
            check_precision(header.autocast or header.dtype or "fp32", [device])
            able.append(device)
        except BadInput as error:
            left_out.append(error.on_command_line)
    return able, tuple(left_out)


def _from_ledger(ledger: Ledger, devices: Sequence[Device]) -> Predictions:
    """The ledger's own step on devices."""
    runs = list(runs_from(ledger, devices))
    return Predictions(
        header=ledger.header,
        predictions=tuple(run.prediction for run in runs),
        devices=tuple(devices),
        notes=tuple(note for run in runs for note in run.notes),
    )


@dataclass(frozen=True)
class PredictedRun:
    """A ledger's step on a device."""

    ledger: Ledger
    """With the ops that it would run there."""
    prediction: Prediction
    notes: tuple[Note, ...]


def runs_from(ledger: Ledger, devices: Sequence[Device]) -> Iterator[PredictedRun]:
    """The ledger's own step on each device: its ops, with the memory they take there."""
    traces = traces_of(ledger)
    plain = replace(ledger, kernels=(), measurements=()) if is_measured(ledger) else ledger
    memories, step_for = memories_on(*devices), cache(lambda cpu: own_step(on_other_kind(plain, cpu=cpu)))
    for device in devices:
        there, otherwise = as_run_on(plain, device, traces)
        step = step_for(device.kind == "cpu") if there is plain else own_step(there)
        predictor, said = predictor_of(device, None, None)
        (cell,) = device_runs(step, [predictor])
        prediction = replace(cell.prediction(), memory=memories.of(step, device))
        yield PredictedRun(
            there, prediction, (*said, *([Note("kernels-of-another-target", otherwise)] if otherwise else []))
        )
