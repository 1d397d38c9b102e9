"""`rooflight report PATH`: a ledger, two side by side, or a study, as a page, as tables, or as pictures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rooflight.commands.form_options import form_options, one_form
from rooflight.commands.garbage import rarely_collected
from rooflight.commands.table_options import KERNELS, measured_options, table_options
from rooflight.commands.terminal import progress, say
from rooflight.errors import BadInput
from rooflight.spec import shell

if TYPE_CHECKING:
    from rooflight.ledger import Ledger
    from rooflight.reporting.document import Document
    from rooflight.summary import By

FORMS = ("text", "html", "md", "latex", "csv", "json", "png", "svg", "pdf")
CHARTS = ("roofline", "memory", "lanes", "shares", "sweep", "devices", "scaling")
"""Of a ledger; a pair has them twice, as roofline-a and roofline-b, and a study its own."""


@dataclass(frozen=True)
class _ReportFile:
    """What a report is written as, and where it goes."""

    form: str
    chart: str | None
    sections: tuple[str, ...]
    dark: bool
    width: str | None
    output: Path | None
    force: bool

    def write(self, report: Document) -> None:
        from rooflight.commands.output import deliver
        from rooflight.reporting.writers import write

        form: Any = self.form
        mode: Any = "dark" if self.dark else "light"
        content = write(report, form, chart=self.chart, sections=self.sections, mode=mode, width=self.width)
        deliver(content, self.output, force=self.force)


@click.command(short_help="a ledger, two side by side, or a study as a page, tables or pictures")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path(path_type=Path))
@click.option(
    "--to", type=click.Choice(FORMS), help="Output format. Default: by the ending of the file after -o, else text."
)
@click.option("--chart", metavar="NAME", help=f"Which picture, with --to png, svg or pdf: {', '.join(CHARTS)}.")
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
    "--on",
    metavar="DEVICE,...",
    default="h200,a100,v100",
    show_default=True,
    help="GPUs whose times and memory the report predicts.",
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
def command(
    paths: tuple[Path, ...],
    to: str | None,
    chart: str | None,
    dark: bool,
    sections: tuple[str, ...],
    width: str | None,
    claims: Path | None,
    on: str,
    by: By,
    depth: int | None,
    unfold: bool,
    memory: bool,
    kernels: int,
    explain: str | None,
    **asked: Any,
) -> None:
    """Show a ledger or a study in the terminal, or as one file to open, send or print.

    PATH is a ledger, as `rooflight estimate -o PATH` or `rooflight measure -o PATH` saved it; recorded:NAME, a
    measurement that comes with rooflight (see `rooflight list recordings`); or a study's folder. Two ledgers are put
    side by side. Several that are the ranks of one run, as torchrun leaves them, are joined: rooflight report
    run.rank*.json

    With -o report.html, one page that needs no network: roofline, layers with their derivations, causes, memory, lanes,
    other batches and devices, many GPUs, where every number comes from. Pictures: -o roofline.png --chart roofline.
    """
    from rooflight.reporting.writers import ENDINGS, MUST

    form = one_form({**asked, "to": to}, {f".{end}": form for end, form in ENDINGS.items()}, must=MUST)
    file = _ReportFile(form, chart, sections, dark, width, asked["output"], asked["force"])
    if width is not None:
        from rooflight.reporting.writers import check_width

        check_width(width, form)
    if form == "text" and claims is not None:
        raise BadInput(
            f"in the terminal a table is checked by `{shell('compare', paths[0], claims=claims)}`; here "
            "it becomes a part of a file: add -o report.html"
        )
    table = {
        "--by": by != "module",
        "--depth": depth is not None,
        "--unfold": unfold,
        "--memory": memory,
        "--kernels": kernels != KERNELS,
    }
    whole = form not in ("text", "csv") or sections or claims is not None
    if given := [name for name, is_given in {**table, "--explain": explain is not None}.items() if is_given and whole]:
        raise BadInput(
            f"{given[0]} is of the table in the terminal, and a report has all rows: leave it out, or the file or form"
        )
    if explain is not None and form != "text":
        raise BadInput("--explain prints text: leave the form or the file out")
    if form == "text" and (sections or chart or dark):
        raise BadInput(
            "--section, --chart and --dark are of a file: name one, such as -o report.html or -o "
            "roofline.png, or say the form with --to"
        )
    if len(paths) == 1 and paths[0].is_dir():
        _refuse_for_a_study(by=by, depth=depth, explain=explain, claims=claims)
        _study(paths[0], file)
        return
    ledgers, names = _ledgers(paths)
    if explain:
        from rooflight.commands.output import emit
        from rooflight.estimation.derivation import derive
        from rooflight.reporting.sections.derivation import derivation_text

        emit(derivation_text(derive(ledgers[0], explain)))
        return
    if form == "text" or (form == "csv" and not sections and claims is None and len(ledgers) == 1):
        _shown(ledgers, file, by=by, depth=depth, unfold=unfold, memory=memory, kernels=kernels, on=on)
    else:
        _made(ledgers, names, file, claims=claims, on=on)
    if file.output is not None:
        say(f"wrote {file.output}")


def _ledgers(paths: tuple[Path, ...]) -> tuple[list[Ledger], list[str]]:
    """One, two that are compared, or the ranks of one run as one; and how a command line names them."""
    import shlex

    from rooflight.files import load
    from rooflight.reporting.report.api import arranged

    if len(paths) > 1 and any(path.is_dir() for path in paths):
        raise BadInput("a study is reported alone: leave the others out")
    return arranged([load(path) for path in paths], [shlex.quote(str(path)) for path in paths])


def _shown(
    ledgers: list[Ledger],
    file: _ReportFile,
    *,
    by: By,
    depth: int | None,
    unfold: bool,
    memory: bool,
    kernels: int,
    on: str,
) -> None:
    """In the terminal, or the main table as CSV."""
    from rooflight.commands.output import show, show_roofline
    from rooflight.reporting.sections.ledger_documents import is_log, ledger_document

    if len(ledgers) == 2:
        from rooflight.analysis.comparison.sides import Comparison
        from rooflight.reporting.sections.compare_tables import compare_document

        document = compare_document(Comparison(*ledgers), by=by, depth=depth, folded=not unfold)
        show(document, file.form, output=file.output, force=file.force)
        return
    (ledger,) = ledgers
    from rooflight.prediction.resolve_devices import devices_of

    devices_of(on, None)  # what is wrong with them is told before the tables
    document = ledger_document(ledger, by=by, depth=depth, folded=not unfold, memory=memory, kernels=kernels)
    show(document, file.form, output=file.output, force=file.force)
    if file.form == "text" and not is_log(ledger):
        show_roofline(ledger, on)


def _made(ledgers: list[Ledger], names: list[str], file: _ReportFile, *, claims: Path | None, on: str) -> None:
    """The whole report, or a part of it."""
    from itertools import count

    from rooflight.reporting.report.api import named_report
    from rooflight.reporting.report.ledger_report import STEPS

    with rarely_collected(), progress("reading", count="{task.completed:g} of {task.total:g}") as bar:
        done = count()
        made = named_report(ledgers, names, on=on, claims=claims, say=lambda doing: bar.show(doing, next(done), STEPS))
        bar.show("writing", STEPS, STEPS)
        file.write(made)


def _study(folder: Path, file: _ReportFile) -> None:
    from rooflight.commands.output import show
    from rooflight.reporting.report.study_report import study_report
    from rooflight.reporting.sections.study_document import study_document
    from rooflight.study.api import load

    study = load(folder)
    if file.form == "text":
        show(study_document(study.rows, study.plan, folder=str(folder)), "text")
        return
    file.write(study_report(study.rows, study.plan, folder=str(folder)))
    if file.output is not None:
        say(f"wrote {file.output}")


def _refuse_for_a_study(*, by: str, depth: int | None, explain: str | None, claims: Path | None) -> None:
    """What a study has not must not be passed over in silence."""
    if by != "module" or depth is not None or explain is not None:
        raise BadInput(
            "--by, --depth and --explain are of a ledger: a study's are in its folder `ledgers`, each to be "
            "reported by itself"
        )
    if claims is not None:
        raise BadInput("a study has its own claims, in its plan: a table of them goes with one ledger")
