"""`rooflight compare A B`: two ledgers side by side, and why they differ; `rooflight compare A`: a measured step beside
what the mathematics says of it; `rooflight compare A ... --claims FILE`: a table against one or several."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rooflight.commands.result_options import (
    PICTURES,
    form_options,
    one_form,
    picture_options,
    table_of,
    table_options,
)
from rooflight.commands.terminal import say
from rooflight.errors import BadInput

if TYPE_CHECKING:
    from rooflight.analysis.comparison.sides import Comparison
    from rooflight.hardware.device import Device
    from rooflight.reporting.document import Document
    from rooflight.study.hypotheses import Hypothesis

_WRONG = 1
"""Exit code when something in the table is wrong, or nothing of it could be checked, and when a condition of --fail-if
holds: a table or a condition that cannot be read at all is 2, as everywhere."""
_FORMS = {".json": "json", ".csv": "csv", ".md": "md", **PICTURES}


_MUST = (
    "must end in .json, .csv or .md, or in .png, .svg or .pdf for the waterfall; a page is made by "
    "`rooflight report A B -o page.html`"
)


@click.command(short_help="two ledgers side by side, and why they differ; a table of claims against ledgers")
@click.argument("paths", nargs=-1, required=True, metavar="A [B]", type=click.Path(path_type=Path))
@click.option(
    "--claims",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Check a table of claims (CSV: layer, quantity, value, ...) against A, or against several ledgers and models.",
)
@click.option(
    "--strict", is_flag=True, help="With --claims: a value that is right only under another convention counts as wrong."
)
@click.option("--batch", type=int, help="With --claims and models by name: the batch they are traced at. Default: 1.")
@click.option("--step", type=click.Choice(["infer", "train"]), help="The same for the step. Default: infer.")
@table_options
@click.option(
    "--on",
    metavar="DEVICE",
    help="GPU to predict for: of A alone, the same step there; of an estimate B, its times.",
)
@click.option(
    "--fail-if",
    "fail_if",
    multiple=True,
    metavar="CONDITION",
    help="End with exit code 1 if B/A of a quantity is so: 'time > 1.05', 'memory > 1 or kernels > 1.1'. Several "
    "times: any of them. What is within the noise of the runs is said, and fails nothing.",
)
@picture_options("waterfall, from A to B by cause")
@form_options(
    json="Print one JSON document: both headers, totals, causes from A to B, rows, memory.",
    csv="Print the rows as CSV.",
    output="Write to FILE: .json, .csv or .md; .png, .svg or .pdf draws the waterfall.",
)
def command(paths: tuple[Path, ...], **options: Any) -> None:
    """Put two saved ledgers side by side and say why they differ: eager and compiled, two precisions, two batches, two
    versions of torch, estimate and measurement. Without B, a measured A beside the estimate of the same step; with
    --on, A beside its prediction on that GPU: why would this step be slower there?

    From one run to another every quantity (FLOPs, DRAM bytes, time, memory) is led from A to B by causes, each with its
    evidence: fusion, other kernels, precision, padding, launches, batch, peaks and bandwidth, other ops, ..., and what
    none of them explains. An estimate and a measurement are told apart by the causes of the measurement. What was
    measured gets a verdict and advice.

    A and B are files that `rooflight estimate -o` or `rooflight measure -o` saved, or recorded:NAME, a measurement
    that comes with rooflight (see `rooflight list recordings`). Ratios are B/A. The memory of an estimate is
    predicted for the GPU of the other side, or for that of --on.

    For continuous integration, --fail-if 'time > 1.05' ends with exit code 1 and one line that names the condition, by
    how much it was missed and the largest cause; with 2 where a condition cannot be read. Quantities: time, gpu_busy,
    kernel_time, throughput, tokens, flops, bytes, memory, reserved, kernels, params.

    With --claims every row of somebody's own table is checked, and a wrong value is shown with the mistake that leads
    to it. There may be one ledger or several then, and models by name (`vgg11,vgg13`): a row is held against the one
    of its model, step, device and batch. The exit code is 0 when nothing is wrong, 1 when something is or when no row
    could be checked, and 2 when the table cannot be read. Multiply-adds called FLOPs, or KiB called KB, are right
    under another convention: with --strict they are wrong.
    """
    to = one_form(options, _FORMS, must=_MUST)
    _check_picture(options, to)
    conditions = _conditions(options["fail_if"])
    if options["claims"] is not None:
        if conditions:
            raise BadInput(
                "option-conflict", "--fail-if is of two runs, and --claims has an exit code of its own: leave one out"
            )
        _check_claims(paths, options, to)
        return
    for name in ("strict", "batch", "step"):
        if options[name]:
            raise BadInput(
                "option-needs-another", f"--{name} is of --claims: give a table of claims with it, or leave it out"
            )
    if len(paths) > 2:
        raise BadInput(
            "too-many-ledgers",
            f"two are put side by side, and these are {len(paths)}: `rooflight report` draws several on one roofline, "
            "and --claims checks a table against several",
        )
    a, b = paths[0], paths[1] if len(paths) == 2 else None
    _check_files(paths)
    comparison = _compared(a, b, options["on"])
    failed = _show(comparison, conditions, options, to)
    if options["output"] is not None:
        say(f"wrote {options['output']}")
    if failed:
        sys.stdout.flush()
        for sentence in failed:
            click.echo(f"rooflight: {sentence}", err=True)
        sys.exit(_WRONG)


def _compared(a: Path, b: Path | None, on: str | None) -> Comparison:
    from rooflight.analysis.comparison.sides import Comparison, with_its_estimate
    from rooflight.commands.output import say_cards
    from rooflight.files import load
    from rooflight.summary.measured import is_measured

    device = None if on is None else _device(on)
    say_cards(on or ())
    if b is None:
        return with_its_estimate(load(a), str(a), on=device)
    second = load(b)
    if device is not None and is_measured(second):
        raise BadInput(
            "option-conflict",
            f"{b} was measured{f' on {second.header.device}' if second.header.device else ''}, and --on {on} predicts: "
            f"leave one out; `rooflight compare {a} --on {on}` sets A beside its prediction there",
        )
    return Comparison(load(a), second, on=device)


def _show(comparison: Comparison, conditions: list[Hypothesis], options: Mapping[str, Any], to: str) -> list[str]:
    """The comparison in the form that was asked for; sentences on conditions that failed."""
    from rooflight.commands.output import draw, show
    from rooflight.reporting.sections.bridge_tables import with_gate
    from rooflight.reporting.sections.compare_tables import compare_document
    from rooflight.study.regressions import judge_all

    verdicts = judge_all(conditions, comparison)
    if to in PICTURES.values():
        draw(_drawn(comparison), options, to, chart="waterfall")
    else:
        document = with_gate(compare_document(comparison, **table_of(options)), verdicts)
        show(document, to, output=options["output"], force=options["force"])
    if to != "text":
        for verdict in verdicts:
            if verdict.outcome == "undecided":
                say(verdict.sentence)
    return [verdict.sentence for verdict in verdicts if verdict.outcome == "fails"]


def _drawn(comparison: Comparison) -> Document:
    from rooflight.reporting.charts.waterfall import waterfall_chart
    from rooflight.reporting.document import Document, Section

    chart = waterfall_chart(comparison)
    if chart is None:
        raise BadInput(
            "unknown-chart",
            "no waterfall of these: both sides must be measured or predicted; `rooflight report A B -o page.html` "
            "has other charts",
        )
    return Document(title=chart.title, sections=(Section("charts", charts=(chart,)),))


def _conditions(texts: tuple[str, ...]) -> list[Hypothesis]:
    """Read before any file is, so that a slip is told at once."""
    if not texts:
        return []
    from rooflight.study.regressions import condition

    return [condition(text) for text in texts]


def _check_picture(options: Mapping[str, Any], to: str) -> None:
    if to in PICTURES.values():
        if options["claims"] is not None:
            raise BadInput(
                "option-conflict", "a table of claims has no picture: leave --claims out, or write .json, .csv or .md"
            )
        if options["chart"] not in (None, "waterfall"):
            raise BadInput(
                "unknown-chart",
                f"no chart {options['chart']!r} of a comparison: it has waterfall; `rooflight report A B --chart list` "
                "tells others",
            )
    elif options["chart"] or options["dark"]:
        raise BadInput(
            "option-needs-another", "--chart and --dark are of a picture: name one, as with -o waterfall.png"
        )


def _check_files(paths: tuple[Path, ...]) -> None:
    """Models by name are of a table of claims, or of a report."""
    from rooflight.models.registry import NAMES

    models = [str(path) for path in paths if str(path) in NAMES and not path.exists()]
    if models:
        raise BadInput(
            "not-a-ledger",
            f"{models[0]} is a model, and two saved ledgers are compared: names go with --claims; "
            f"`rooflight report {','.join(models)}` puts models side by side",
        )


def _check_claims(paths: tuple[Path, ...], options: Mapping[str, Any], to: str) -> None:
    """Prints what a table of claims is worth, and ends with a grade as exit code."""
    from rooflight.analysis.claims import check, read_claims
    from rooflight.commands.output import show
    from rooflight.commands.report_sources import ledgers_of
    from rooflight.reporting.sections.claims_tables import claims_document
    from rooflight.spec import fields_for

    claims, output = options["claims"], options["output"]
    rows = read_claims(claims)
    batch = None if options["batch"] is None else str(options["batch"])
    given = {field.name: None for field in fields_for("estimate")} | {"batch": batch, "step": options["step"]}
    ledgers, *_ = ledgers_of(paths, given)
    checked = check(ledgers, rows, file=str(claims), strict=options["strict"])
    show(claims_document(checked), to, output=output, force=options["force"])
    if output is not None:
        say(f"wrote {output}: {checked.grade}")
    if not checked.passes:
        sys.stdout.flush()
        sys.exit(_WRONG)


def _device(name: str) -> Device:
    from rooflight.prediction.resolve_devices import devices_of

    devices = devices_of(name, None)
    if len(devices) != 1 or not devices[0].is_cuda:
        raise BadInput("not-a-gpu", "--on names one GPU of NVIDIA or AMD here (see `rooflight list devices`)")
    return devices[0]
