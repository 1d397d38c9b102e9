"""`rooflight estimate MODEL`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from rooflight.commands.real_data import check_real_data, real_data_option
from rooflight.commands.result_options import (
    PICTURES,
    form_options,
    forms_or_picture,
    picture_options,
    table_of,
    table_options,
)
from rooflight.commands.step_options import check_run, quiet_model, run_options, step_of, step_options, typed_command
from rooflight.commands.terminal import progress, say
from rooflight.errors import BadInput
from rooflight.spec import StepSpec

if TYPE_CHECKING:
    from rooflight.ledger import Ledger
    from rooflight.reporting.document import Document


@click.command(short_help="FLOPs, bytes and memory of a model, by formula")
@click.argument("model")
@step_options("estimate")
@click.option(
    "--target",
    default="cuda",
    show_default=True,
    help="Device whose kernels are assumed: cuda (Hopper or newer), cuda:80 (a compute capability), cpu.",
)
@real_data_option
@table_options
@run_options("cost")
@click.option("--explain", metavar="LAYER", help="Derive the figures of one layer, as with pen and paper.")
@click.option("--latex", is_flag=True, help="With --explain or --symbolic: as LaTeX.")
@click.option("--symbolic", is_flag=True, help="The closed form in batch B and sequence S, with Big-O.")
@picture_options("shares (the default), roofline, memory, sweep, devices, scaling; times are predicted on the H200")
@form_options(
    output="Write to FILE: .json or .json.gz saves the ledger, .csv and .md the table, .png, .svg and .pdf a chart."
)
def command(**options: Any) -> None:
    """FLOPs, bytes and memory of every operation of MODEL, by formula; needs no GPU and no memory for weights.

    MODEL is a built-in name (see `rooflight list models`), torchvision:NAME, timm:NAME, hf:NAME-or-folder,
    package.module:factory or path/to/file.py:factory.
    """
    spec = step_of(options, "estimate")
    to, written = forms_or_picture(options)
    _check(spec, options, to, written)
    if options["symbolic"]:
        _symbolic(spec, options)
        return
    from rooflight.estimation.api import estimate

    with quiet_model():
        check_real_data(spec, options)
        ledger = estimate(spec, target=options["target"], real_data=options["real_data"], command=typed_command())
    from rooflight.commands.output import explain, keep, ops_of, show
    from rooflight.reporting.sections.ledger_documents import estimate_document

    def document(to: str) -> Document:
        epochs, size = options["epochs"], options["dataset_size"]
        return estimate_document(ledger, epochs=epochs, dataset_size=size, **table_of(options))

    if options["explain"] is not None:
        explain(ledger, options["explain"], latex=options["latex"])
    if written in PICTURES.values():
        _draw(ledger, options, written)
    elif written:
        say(keep(ledger, document, options, written, held=ops_of(ledger, options)))
    if options["explain"] is None and (written in ("", "json") or (to != "text" and written not in PICTURES.values())):
        show(document(to), to)


_CHART = "shares"


def _draw(ledger: Ledger, options: Mapping[str, Any], form: str) -> None:
    """What it costs by type of layer, or another chart of its report."""
    from rooflight.commands.output import draw
    from rooflight.reporting.report.api import named_report

    chart = options["chart"] or _CHART
    with progress(f"drawing {chart}"):
        draw(named_report([ledger], [""], chart=chart), options, form, chart=chart)
    say(f"wrote {options['output']}")


def _check(spec: StepSpec, options: Mapping[str, Any], to: str, written: str) -> None:
    check_run(spec, options, "cost")
    given = [name for name, usual in _OF_THE_TABLE.items() if options[name] != usual]
    if given and written in PICTURES.values():
        raise BadInput(
            "option-not-applicable",
            f"--{given[0].replace('_', '-')} is of the table, and a picture has none: leave it or the file out",
        )
    if options["latex"] and not (options["explain"] or options["symbolic"]):
        raise BadInput("option-needs-another", "--latex goes with --explain or --symbolic")
    if options["explain"] and options["symbolic"]:
        raise BadInput("option-conflict", "choose one of --explain and --symbolic")
    if options["explain"] and (to != "text" or written not in ("", "json")):
        raise BadInput(
            "option-conflict",
            "--explain prints text or --latex; with -o FILE.json it also saves the ledger, nothing else",
        )
    if options["symbolic"] and options["real_data"]:
        raise BadInput(
            "option-conflict", "a closed form is of many steps, and --real-data runs one: leave one of them out"
        )
    if options["symbolic"] and (to in ("csv", "md") or written not in ("", "json")):
        raise BadInput("wrong-suffix", "--symbolic prints text, --latex or --json, and writes a .json file with -o")


_OF_THE_TABLE = {"by": "module", "depth": None, "unfold": False, "epochs": None, "dataset_size": None}
"""Options of what is printed, and what they usually are."""


def _symbolic(spec: StepSpec, options: Mapping[str, Any]) -> None:
    """The closed form, checked at the batch and sequence that were asked for as well."""
    import json

    from rooflight.commands.output import deliver
    from rooflight.estimation.symbolic import closed_form
    from rooflight.reporting.sections.closed_form import to_json_dict, to_latex, to_text

    also = [(batch, spec.past if spec.step == "decode" else spec.seq) for batch in spec.batches]
    with quiet_model():
        form = closed_form(spec, also=also, target=options["target"])
    if options["as_json"] or options["output"]:
        content = json.dumps(to_json_dict(form))
    else:
        content = (to_latex if options["latex"] else to_text)(form, depth=options["depth"])
    deliver(content.encode(), options["output"], force=options["force"])
    if options["output"] is not None:
        say(f"wrote {options['output']}")
