"""`rooflight compare A B`: two ledgers side by side, and why they differ; `rooflight compare A`: a measured step beside
what the mathematics says of it; `rooflight compare A ... --claims FILE`: a table against one or several."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rooflight.commands.result_options import form_options, one_form, table_of, table_options
from rooflight.commands.terminal import say
from rooflight.errors import BadInput

if TYPE_CHECKING:
    from rooflight.hardware.device import Device

_WRONG = 1
"""Exit code when something in the table is wrong, or nothing of it could be checked: a table that cannot be read at all
is 2, as everywhere."""
_FORMS = {".json": "json", ".csv": "csv", ".md": "md"}


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
@click.option("--on", metavar="DEVICE", help="GPU to predict the times of an estimate for (of A alone, or of B).")
@form_options(
    json="Print one JSON document: both headers, totals, rows, memory.",
    csv="Print the rows as CSV.",
    output="Write to FILE: .json, .csv or .md.",
)
def command(paths: tuple[Path, ...], **options: Any) -> None:
    """Put two saved ledgers side by side and say why they differ: estimate and measurement, eager and compiled, two
    precisions, two batches. Without B, a measured A beside the estimate of the same step, or an estimate
    beside its prediction on the GPU given with --on.

    The gap of every quantity is split into causes with their evidence (tile padding, layout kernels, a fast algorithm,
    L2 hits, launches, ...) and what none of them explains. What was measured gets a verdict and advice.

    A and B are files that `rooflight estimate -o` or `rooflight measure -o` saved, or recorded:NAME, a measurement
    that comes with rooflight (see `rooflight list recordings`). Ratios are B/A. The memory of an estimate is
    predicted for the GPU of the other side.

    With --claims every row of somebody's own table is checked, and a wrong value is shown with the mistake that leads
    to it. There may be one ledger or several then, and models by name (`vgg11,vgg13`): a row is held against the one
    of its model, step, device and batch. The exit code is 0 when nothing is wrong, 1 when something is or when no row
    could be checked, and 2 when the table cannot be read. Multiply-adds called FLOPs, or KiB called KB, are right
    under another convention: with --strict they are wrong.
    """
    to = one_form(
        options, _FORMS, must="must end in .json, .csv or .md; a page is made by `rooflight report A B -o page.html`"
    )
    if options["claims"] is not None:
        _check_claims(paths, options, to)
        return
    for name in ("strict", "batch", "step"):
        if options[name]:
            raise BadInput(f"--{name} is of --claims: give a table of claims with it, or leave it out")
    if len(paths) > 2:
        raise BadInput(
            f"two are put side by side, and these are {len(paths)}: `rooflight report` draws several on one roofline, "
            "and --claims checks a table against several"
        )
    a, b = paths[0], paths[1] if len(paths) == 2 else None
    _check_files(paths)
    from rooflight.analysis.comparison.sides import Comparison, with_its_estimate
    from rooflight.commands.output import say_cards, show
    from rooflight.files import load
    from rooflight.reporting.sections.compare_tables import compare_document

    output, on = options["output"], options["on"]
    device = None if on is None else _device(on)
    say_cards(on or ())
    comparison = with_its_estimate(load(a), str(a), on=device) if b is None else Comparison(load(a), load(b), on=device)
    show(compare_document(comparison, **table_of(options)), to, output=output, force=options["force"])
    if output is not None:
        say(f"wrote {output}")


def _check_files(paths: tuple[Path, ...]) -> None:
    """Models by name are of a table of claims, or of a report."""
    from rooflight.models.registry import BUILTINS

    models = [str(path) for path in paths if str(path) in BUILTINS and not path.exists()]
    if models:
        raise BadInput(
            f"{models[0]} is a model, and two saved ledgers are compared: names go with --claims; "
            f"`rooflight report {','.join(models)}` puts models side by side"
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
        raise BadInput("--on names one GPU of NVIDIA or AMD here (see `rooflight list devices`)")
    return devices[0]
