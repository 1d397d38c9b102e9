"""`rooflight report PATH`: a ledger, two side by side, or a study, as a page, as tables, or as pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rooflight.commands.result_options import KERNELS, form_options, measured_options, one_form, table_of, table_options
from rooflight.commands.step_options import grid_options
from rooflight.commands.terminal import progress, say
from rooflight.errors import BadInput
from rooflight.spec import shell

if TYPE_CHECKING:
    from rooflight.ledger import Ledger
    from rooflight.reporting.document import Document

FORMS = ("text", "html", "md", "latex", "csv", "json", "png", "svg", "pdf")
CHARTS = ("roofline", "bars", "memory", "lanes", "shares", "sweep", "devices", "scaling")
"""Of a ledger; a pair has some twice, as roofline-a and roofline-b, and a study its own."""
LIST = "list"
"""In place of a chart's name: which there are."""
_USUAL = "h200,a100,v100"


@click.command(short_help="ledgers, a study, or models by name as a page, tables or pictures")
@click.argument("paths", nargs=-1, required=True, metavar="PATH|MODEL,...", type=click.Path(path_type=Path))
@grid_options("estimate")
@click.option(
    "--to", type=click.Choice(FORMS), help="Output format. Default: by the ending of the file after -o, else text."
)
@click.option(
    "--chart",
    metavar="NAME",
    help=f"Which picture, with --to png, svg or pdf: {', '.join(CHARTS)}; `{LIST}` tells what this input has.",
)
@click.option(
    "--of",
    metavar="QUANTITY",
    help="What --chart bars and --chart batch draw: params, flops, memory, time, ...; of bars also one over another, "
    "as in 'flops.measured / flops.estimated'.",
)
@click.option("--layer", metavar="LAYER", help="Draw that of one layer: with --chart batch, of a study's --layers.")
@click.option("--dark", is_flag=True, help="Draw the chart for a dark background.")
@click.option(
    "--section",
    "sections",
    multiple=True,
    metavar="NAME",
    help="Only this section, in html, md, latex, csv and json. Repeatable.",
)
@click.option(
    "--width",
    metavar="LENGTH",
    help="Widest LaTeX table, such as 16cm (also mm, in, pt). Default: the text of an A4 article, 345pt.",
)
@click.option(
    "--claims",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A table of claims (CSV) to be checked in the report.",
)
@click.option(
    "--strict", is_flag=True, help="With --claims: a value that is right only under another convention counts as wrong."
)
@click.option(
    "--on",
    metavar="DEVICE,...",
    show_default=_USUAL,
    help="GPUs whose times and memory the report predicts: as `rooflight predict --on` takes them.",
)
@table_options
@measured_options
@click.option("--explain", metavar="LAYER", help="Derive the figures of one layer, as with pen and paper.")
@form_options(
    json="The same as --to json.",
    csv="The same as --to csv.",
    md="The same as --to md.",
    output="Write to FILE instead of the terminal.",
)
def command(paths: tuple[Path, ...], **options: Any) -> None:
    """Show ledgers or a study in the terminal, or as one file to open, send or print.

    PATH is a ledger, as `rooflight estimate -o PATH` or `rooflight measure -o PATH` saved it; recorded:NAME, a
    measurement that comes with rooflight (see `rooflight list recordings`); or a study's folder. Two ledgers are put
    side by side, more stand on one roofline. Several that are the ranks of one run, as torchrun leaves them, are
    joined: rooflight report run.rank*.json

    MODEL,... are models by name, which are estimated here: rooflight report vgg11,vgg13 --batch 16 --on v100,a100.
    Options of the step take several values, and are for models by name only.

    With -o report.html, one page that needs no network: roofline, layers with their derivations, causes, memory, lanes,
    other batches and devices, many GPUs, where every number comes from. Pictures: -o roofline.png --chart roofline.
    """
    from rooflight.reporting.writers import ENDINGS, MUST

    form = one_form(options, {f".{end}": form for end, form in ENDINGS.items()}, must=MUST)
    if options["width"] is not None:
        from rooflight.reporting.writers import check_width

        check_width(options["width"], form)
    if options["chart"] == LIST and form == "text":
        form = "svg"  # a picture, as far as it is made
    _check(paths, options, form)
    if len(paths) == 1 and paths[0].is_dir():
        _study(paths[0], options, form)
    else:
        with _rarely_collected():
            _ledger(paths, options, form)
    if options["on"] not in (None, _USUAL):
        from rooflight.commands.output import say_cards

        say_cards(options["on"])
    if options["output"] is not None and options["chart"] != LIST:
        say(f"wrote {options['output']}")


def _ledger(paths: tuple[Path, ...], options: Mapping[str, Any], form: str) -> None:
    from rooflight.commands.report_sources import ledgers_of, stand_together

    ledgers, names = ledgers_of(paths, options)
    together = stand_together(paths, ledgers)
    _check_several(ledgers, options, together=together)
    if options["explain"]:
        from rooflight.commands.output import explain

        explain(ledgers[0], options["explain"])
    elif (form == "text" and not together) or (form == "csv" and not _is_report(options) and len(ledgers) == 1):
        _show(ledgers, options, form)
    else:
        _report(ledgers, names, options, form, together=together)


def _is_report(options: Mapping[str, Any]) -> bool:
    """Whatever the form: only a report has sections, and checks a table of claims."""
    return bool(options["sections"]) or options["claims"] is not None


def _check(paths: tuple[Path, ...], options: Mapping[str, Any], form: str) -> None:
    claims = options["claims"]
    if options["strict"] and claims is None:
        raise BadInput(
            "option-needs-another", "--strict is of --claims: give a table of claims with it, or leave it out"
        )
    if form == "text" and claims is not None:
        raise BadInput(
            "option-needs-another",
            f"in the terminal a table is checked by `{shell('compare', paths[0], claims=claims)}`; here "
            "it becomes a part of a file: add -o report.html",
        )
    given = [name for name, usual in _OF_THE_TABLE.items() if options[name] != usual]
    if given and (form not in ("text", "csv") or _is_report(options)):
        raise BadInput(
            "option-not-applicable",
            f"--{given[0]} is of the table in the terminal, and a report has all rows: leave it out, or the file or "
            "form",
        )
    if options["explain"] is not None and form != "text":
        raise BadInput("option-not-applicable", "--explain prints text: leave the form or the file out")
    if form == "text" and (options["sections"] or options["chart"] or options["dark"]):
        raise BadInput(
            "option-needs-another",
            "--section, --chart and --dark are of a file: name one, such as -o report.html or -o "
            "roofline.png, or say the form with --to",
        )
    if options["of"] is not None and options["chart"] not in ("bars", "batch"):
        raise BadInput("option-needs-another", "--of says what --chart bars or --chart batch draws: add one of them")
    if options["layer"] is not None and options["chart"] != "batch":
        layer = options["layer"]
        raise BadInput(
            "needs-a-study",
            f"--layer is of a study's folder that kept the layer: say `--chart batch --layer {layer}`, or "
            f"`--chart bars --of 'footprint(layer={layer})'`",
        )
    if options["chart"] == "batch" and not paths[0].is_dir():
        raise BadInput(
            "needs-a-study", "--chart batch is of a study's folder: of a ledger, --chart sweep shows other batches"
        )
    if len(paths) > 1 and any(path.is_dir() for path in paths):
        raise BadInput("study-not-alone", "a study is reported alone: leave the others out")
    if not paths[0].is_dir():
        return
    # What a study has not must not be passed over in silence.
    if any(options[name] != _OF_THE_TABLE[name] for name in ("by", "depth", "explain")):
        raise BadInput(
            "needs-a-ledger",
            "--by, --depth and --explain are of a ledger: a study's are in its folder `ledgers`, each to be "
            "reported by itself",
        )
    if claims is not None:
        raise BadInput(
            "claims-of-study", "a study has its own claims, in its plan: a table of them goes with one ledger"
        )


def _check_several(ledgers: list[Ledger], options: Mapping[str, Any], *, together: bool) -> None:
    """What only one ledger has must not be taken of the first, or passed over."""
    if len(ledgers) == 1:
        return
    names = _OF_THE_TABLE if together else ("memory", "kernels", "explain")
    given = [name for name in names if options[name] != _OF_THE_TABLE[name]]
    if given:
        raise BadInput(
            "needs-one-ledger",
            f"--{given[0]} is of one ledger, and these are {len(ledgers)}: report one alone, or leave it out",
        )


_OF_THE_TABLE: dict[str, Any] = {
    "by": "module",
    "depth": None,
    "unfold": False,
    "memory": False,
    "kernels": KERNELS,
    "explain": None,
}
"""Options of the table in the terminal, and what they usually are."""


def _write(report: Document, options: Mapping[str, Any], form: Any) -> None:
    from rooflight.commands.output import deliver, emit, show
    from rooflight.reporting.writers import charts_of, write

    if options["chart"] == LIST:
        charts = charts_of(report)
        wide = max(map(len, charts))
        emit("\n".join(f"{name:<{wide}}  {title}" for name, title in charts.items()))
        return
    if form == "text":
        show(report, form)
        return
    mode: Any = "dark" if options["dark"] else "light"
    names = ("chart", "sections", "width")
    content = write(report, form, mode=mode, **{name: options[name] for name in names})
    deliver(content, options["output"], force=options["force"])


def _show(ledgers: list[Ledger], options: Mapping[str, Any], form: str) -> None:
    """In the terminal, or the main table as CSV."""
    from rooflight.commands.output import show, show_roofline
    from rooflight.prediction.resolve_devices import devices_of
    from rooflight.reporting.sections.ledger_documents import is_log, ledger_document

    if len(ledgers) == 2:
        from rooflight.analysis.comparison.sides import Comparison
        from rooflight.reporting.sections.compare_tables import compare_document

        document = compare_document(Comparison(*ledgers), **table_of(options))
    else:
        devices_of(options["on"] or _USUAL, None)  # what is wrong with them is told before the tables
        memory, kernels = options["memory"], options["kernels"]
        document = ledger_document(ledgers[0], memory=memory, kernels=kernels, **table_of(options))
    show(document, form, output=options["output"], force=options["force"])
    if form == "text" and len(ledgers) == 1 and not is_log(ledgers[0]):
        show_roofline(ledgers[0], options["on"] or _USUAL)


def _report(ledgers: list[Ledger], names: list[str], options: Mapping[str, Any], form: str, *, together: bool) -> None:
    """All of it, or a part. `together`: on one roofline, and not against each other."""
    from itertools import count

    from rooflight.commands.step_options import typed_command
    from rooflight.reporting.report.api import named_report
    from rooflight.reporting.report.ledger_report import STEPS

    with progress("reading", count="{task.completed:g} of {task.total:g}") as bar:
        done = count()

        def tell(doing: str) -> None:
            bar.show(doing, next(done), STEPS)

        asked = {name: options[name] for name in ("on", "claims", "strict", "chart", "of")}
        report = named_report(ledgers, names, say=tell, together=together, command=typed_command(), **asked)
        bar.show("writing", STEPS, STEPS)
        _write(report, options, form)


@contextmanager
def _rarely_collected() -> Iterator[None]:
    """For a command that makes hundreds of thousands of objects and keeps them to its end, and runs nobody's program.

    Looking through them for cycles again and again takes a sixth of the time of a report and finds nothing; taking them
    apart one by one when Python ends, a second more.
    """
    import atexit
    import gc

    before = gc.get_threshold()
    gc.set_threshold(100_000, 50, 100)
    atexit.register(gc.freeze)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _study(folder: Path, options: Mapping[str, Any], form: str) -> None:
    from rooflight.commands.output import show
    from rooflight.reporting.report.api import report_of_study
    from rooflight.reporting.sections.study_document import study_document
    from rooflight.study.api import load

    with progress("reading the study") as bar:
        study = load(folder)
        bar.show(f"summarising {len(study.rows):,} cells")
        if form != "text":
            report = report_of_study(study, chart=options["chart"], of=options["of"], layer=options["layer"])
            bar.show("writing")
            _write(report, options, form)
            return
        document = study_document(study.rows, study.plan, folder=str(folder))
    show(document, form)
