"""`rooflight predict MODEL --on DEVICES`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rooflight.commands.real_data import check_real_data, real_data_option
from rooflight.commands.result_options import PICTURES, form_options, forms_or_picture, picture_options
from rooflight.commands.step_options import (
    check_run,
    quiet_model,
    run_options,
    step_of,
    step_options,
    typed_command,
    typed_step,
)
from rooflight.commands.terminal import progress, say
from rooflight.errors import BadInput
from rooflight.spec import StepSpec, shell

if TYPE_CHECKING:
    from rooflight.ledger import Ledger
    from rooflight.prediction.paleo import Ppp
    from rooflight.prediction.result import Predictions
    from rooflight.reporting.document import Document


@click.command(short_help="time and memory of a step on any device, or on many")
@click.argument("model")
@step_options("predict")
@click.option(
    "--on",
    "devices",
    default="h200",
    show_default=True,
    metavar="DEVICE,...",
    help="Names of `rooflight list devices`, .toml files, `here` for this machine's, or a few numbers in quotes: "
    "'memory=24GB,bandwidth=864GB/s,fp32=91.6T', also sms, clock, cache, power, capability, name and other peaks; "
    "a ; ends such a description.",
)
@click.option(
    "--tier",
    type=click.Choice(["calibrated", "published", "transferred", "spec"]),
    help="Method of prediction. Default: the most accurate that the device has data for.",
)
@click.option(
    "--ppp",
    metavar="FRACTION|LEDGER",
    help="PALEO's platform percent of peak, with --tier spec: a fraction, or a measured ledger to take it from.",
)
@click.option(
    "--calibration", type=click.Path(path_type=Path), help="Calibration file, as written by `rooflight calibrate`."
)
@run_options("time")
@click.option("--price", type=float, help="Price of one device per hour, in any currency.")
@click.option(
    "--memory", is_flag=True, help="Memory over the step, memory at the peak by tensor, and what would reduce it."
)
@click.option("--max-batch", is_flag=True, help="The largest batch that fits each device; with --gpus, per replica.")
@click.option("--max-seq", is_flag=True, help="The longest sequence that fits each device, at the first batch.")
@click.option(
    "--allocator",
    metavar="SETTINGS",
    help="Settings of torch's CUDA allocator, as in PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True, ...",
)
@real_data_option
@click.option("--roofline", is_flag=True, help="With --json: roofs, ridges, every op as a point, the time of every op.")
@picture_options("devices, sweep (several batches), scaling (several GPUs); the default is what fits")
@form_options(
    json="Print one JSON document.",
    csv="Print as CSV, one row per device and batch.",
    output="Write to FILE: .json, .json.gz, .csv, .md, or a chart as .png, .svg or .pdf.",
)
def command(**options: Any) -> None:
    """Predict how long a step of MODEL takes and how much memory it needs, on devices of this machine or any other.

    MODEL is named as for `rooflight estimate`, or is a ledger: a file that `estimate`, `measure` or `import` saved, or
    `recorded:h200/NAME`, whose step is predicted as it was. Several batches and devices are separated by commas. Every
    time has a 90% interval and a tier: calibrated (micro-benchmarks of the device itself), published (as transferred,
    corrected by single ops that others timed on it), transferred (micro-benchmarks of another device, scaled), or spec
    (the data sheet). A calibration of `rooflight calibrate --from` makes it partial, products in fp8, int8 or fp64 make
    it guessed.
    """
    _check_one_model(options["model"], options["devices"])
    ledger = _ledger(options["model"])
    spec = step_of(options, "predict") if ledger is None else StepSpec.of(ledger.header)
    to, written = forms_or_picture(options)
    _check(spec, options, as_json="json" in (to, written))
    predictions = _predict(spec if ledger is None else ledger, options)
    from rooflight.commands.output import show
    from rooflight.reporting.sections.predict_document import predict_document

    run = {name: options[name] for name in ("epochs", "dataset_size", "price")}
    document = predict_document(predictions, **run, op_times=options["roofline"])
    if written in PICTURES.values():
        _draw(predictions, document, options, written)
    elif written:
        show(document, written, output=options["output"], force=options["force"])
        say(f"wrote {options['output']}")
    if not written or (to != "text" and written not in PICTURES.values()):
        show(document, to)


def _check_one_model(text: str, devices: str) -> None:
    if "," in text and ":" not in text and not Path(text).exists():
        raise BadInput(
            "several-models", f"predict takes one model: several are shown by `{shell('report', text, on=devices)}`"
        )


def _draw(predictions: Predictions, document: Document, options: Mapping[str, Any], form: str) -> None:
    """The devices side by side; several batches as lines, several GPUs as curves of scaling."""
    from dataclasses import replace

    from rooflight.commands.output import draw
    from rooflight.reporting.charts.devices import devices_chart
    from rooflight.reporting.charts.scaling import scaling_chart
    from rooflight.reporting.charts.sweep import sweep_chart
    from rooflight.reporting.document import Section

    found = [make(predictions) for make in (scaling_chart, sweep_chart, devices_chart)]
    model = predictions.header.model
    charts = tuple(
        replace(chart, title=f"{model}: {chart.title[:1].lower()}{chart.title[1:]}")
        for chart in found
        if chart is not None
    )
    chart = options["chart"] or (charts[0].name if charts else None)
    if chart not in (names := [chart.name for chart in charts]):
        raise BadInput(
            "unknown-chart",
            f"no chart {chart!r} of this prediction: it has {', '.join(names)}; `rooflight report MODEL --chart list` "
            "tells others",
        )
    draw(replace(document, sections=(Section("charts", charts=charts),)), options, form, chart=chart)
    say(f"wrote {options['output']}")


def _check(spec: StepSpec, options: Mapping[str, Any], *, as_json: bool) -> None:
    check_run(spec, options, "time")
    price = options["price"]
    if price is not None and not (math.isfinite(price) and price > 0):
        raise BadInput("out-of-range", f"--price must be above 0, got {price:g}: what one device costs an hour")
    if options["roofline"] and not as_json:
        raise BadInput("option-needs-another", "--roofline is data for programs: add --json, or -o FILE.json")


def _ppp(text: str | None) -> Ppp | None:
    """PALEO's constant as a number, or computed from a measured ledger."""
    if text is None:
        return None
    from rooflight.prediction.paleo import given_ppp, ppp_of_step

    try:
        value = float(text)
    except ValueError:
        value = None
    if value is not None:
        return given_ppp(value)
    from rooflight.files import load
    from rooflight.hardware.devices import recognise_name
    from rooflight.recordings import is_recorded

    if not is_recorded(text) and not Path(text).exists():
        raise BadInput("bad-fraction", f"--ppp {text}: give a fraction such as 0.5, or the file of a measured ledger")
    ledger = load(text)
    device = recognise_name(ledger.header.device or "")
    if device is None:
        where = ledger.header.device or "no device"
        raise BadInput("unknown-peak", f"--ppp {text}: measured on {where}, whose peaks are not known; give a fraction")
    return ppp_of_step(ledger, device)


def _ledger(text: str) -> Ledger | None:
    from rooflight.prediction.stored_step import ledger_given

    return ledger_given(text)


def _predict(what: StepSpec | Ledger, options: Mapping[str, Any]) -> Predictions:
    from rooflight.prediction.api import predict

    names = ("tier", "calibration", "roofline", "memory", "max_batch", "max_seq", "allocator", "real_data")
    typed = {} if isinstance(what, StepSpec) else typed_step(options, "predict")
    with quiet_model(), progress(f"predicting {options['model']} on {options['devices']}"):
        if isinstance(what, StepSpec):
            check_real_data(what, options)
        return predict(
            what,
            **typed,
            on=options["devices"],
            ppp=_ppp(options["ppp"]),
            command=typed_command(),
            **{name: options[name] for name in names},
        )
