"""`rooflight.predict`: how long a step takes on devices that are here or elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace
from torch import nn

from rooflight.errors import BadInput
from rooflight.hardware.calibration import Calibration
from rooflight.hardware.device import Device
from rooflight.hardware.devices import find
from rooflight.ledger import StepKind
from rooflight.prediction.advice import advise
from rooflight.prediction.cells import Cell, cells_of, spec_cell
from rooflight.prediction.result import Prediction, Predictions
from rooflight.prediction.steps import steps_of
from rooflight.prediction.tiers import TIERS, Predictor, check_precision, predictor
from rooflight.trace import TraceOptions

ADVISED_CELLS = 12
"""With more of them, advice would take longer than everything else: ask for fewer to get it."""


def predict(
    model: str | nn.Module,
    *inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    on: str | Device | Sequence[str | Device] = "h200",
    step: StepKind = "infer",
    batch: int | Sequence[int] | None = None,
    seq: int | None = None,
    past: int | None = None,
    dtype: str | None = None,
    autocast: str | None = None,
    tf32: bool | None = None,
    loss: str | None = None,
    optimizer: str | None = None,
    foreach: bool | None = None,
    accumulate: int = 1,
    overrides: Mapping[str, str] | None = None,
    input_shape: Sequence[int] | None = None,
    download: bool = False,
    tier: str | None = None,
    ppp: float | None = None,
    graphs: bool = False,
    calibration: Calibration | None = None,
    advice: bool = True,
    command: str = "",
) -> Predictions:
    """The time of one step on every device in `on` at every batch, without any of them.

    `model` and its options are those of `rooflight.estimate`. `tier`: `calibrated`, `transferred` or `spec`; the best
    there is for each device where it is not given (`ppp` asks for `spec`). `graphs`: the step as one CUDA graph.

        >>> rooflight.predict("resnet50", on=["a100", "h200"], batch=[1, 8, 64], step="train")
    """
    devices = [find(one) if isinstance(one, str) else one for one in ([on] if isinstance(on, (str, Device)) else on)]
    batches = _batches(model, batch)
    _check(devices, tier=tier, ppp=ppp, dtype=autocast or dtype or "fp32")
    if ppp is not None:
        tier = "spec"
    cpu = any(device.kind == "cpu" for device in devices)
    if cpu and any(device.kind == "gpu" for device in devices):
        raise BadInput("a CPU and a GPU run different kernels: predict them one after the other")
    options = TraceOptions(target="cpu" if cpu else "cuda", autocast=autocast, tf32=tf32, loss=loss,
                           optimizer=optimizer, foreach=foreach, accumulate=accumulate, on="meta",
                           command=command)  # fmt: skip
    steps, notes = steps_of(model, inputs, kwargs, batches, options, step=step, seq=seq, past=past, dtype=dtype,
                            overrides=overrides, input_shape=input_shape, download=download)  # fmt: skip
    if tier == "spec":
        rows = [spec_cell(one, device, ppp) for device in devices for one in steps]
    else:
        predictors = [predictor(device, tier, calibration) for device in devices]
        rows = _calibrated(steps, predictors, graphs=graphs, advice=advice)
        notes += _warnings(predictors)
    return Predictions(header=steps[0].ledger.header, predictions=tuple(rows), notes=notes)


def _batches(model: str | nn.Module, batch: int | Sequence[int] | None) -> list[int]:
    found = [] if batch is None else [batch] if isinstance(batch, int) else list(batch)
    if any(one < 1 for one in found):
        raise BadInput(f"a batch must be at least 1, got {min(found)}")
    if not found and isinstance(model, str):
        found = [1]
    if len(found) > 1 and not isinstance(model, str):
        raise BadInput("a live module is predicted with the inputs you pass: one batch at a time")
    return found


def _check(devices: Sequence[Device], *, tier: str | None, ppp: float | None, dtype: str) -> None:
    if not devices:
        raise BadInput("no device given: name one with on= (see `rooflight list devices`)")
    if tier is not None and tier not in TIERS:
        raise BadInput(f"unknown tier {tier!r}; known: {', '.join(TIERS)}")
    if ppp is not None and tier not in (None, "spec"):
        raise BadInput("a PPP goes with the spec tier: leave one of them away")
    for device in devices:
        check_precision(dtype, device)


def _calibrated(steps: Sequence[Any], predictors: Sequence[Predictor], *, graphs: bool,
                advice: bool) -> list[Prediction]:  # fmt: skip
    cells: list[list[Cell]] = [cells_of(step, predictors, graphs=graphs) for step in steps]
    advised = advice and len(steps) * len(predictors) <= ADVISED_CELLS
    rows = []
    for number, one in enumerate(predictors):
        for step, row in zip(steps, cells, strict=True):
            found = row[number].prediction()
            if advised:
                found = replace(found, advice=advise(step, one, row[number], graphs=graphs))
            rows.append(found)
    return rows


def _warnings(predictors: Sequence[Predictor]) -> tuple[str, ...]:
    """What must be said of calibrations that were made with another torch."""
    import torch

    found = []
    for one in {id(p.calibration): p for p in predictors}.values():
        made = one.calibration.torch
        if made.split("+")[0] != str(torch.__version__).split("+")[0]:
            found.append(f"calibrated with torch {made}, cuDNN {one.calibration.cudnn}, driver {one.calibration.driver}; "
                         "others choose other kernels")  # fmt: skip
    return tuple(found)
