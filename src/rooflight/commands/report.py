"""`rooflight report PATH`: a ledger, two side by side, or a study, as a page, as tables, or as pictures."""

from __future__ import annotations

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


@click.command(short_help="a ledger, two side by side, or a study as a page, tables or pictures")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path(path_type=Path))
@click.option("--to", type=click.Choice(FORMS), help="In which form; else the name behind -o tells, or it is text.")
@click.option("--chart", metavar="NAME", help=f"Which picture, with --to png, svg or pdf: {', '.join(CHARTS)}.")
@click.option("--dark", is_flag=True, help="A picture for dark pages.")
@click.option("--section", "sections", multiple=True, metavar="NAME",
              help="Only this section, in html, md, latex, csv and json; may be given several times.")  # fmt: skip
@click.option("--width", metavar="LENGTH",
              help="How wide a table of LaTeX may be, such as 16cm (also mm, in, pt); else as the text of an A4 "
                   "article, 345pt.")  # fmt: skip
@click.option("--claims", type=click.Path(path_type=Path), metavar="FILE",
              help="A table of claims (CSV) to be checked in the report.")  # fmt: skip
@click.option("--on", metavar="DEVICE,...", default="h200,a100,v100", show_default=True,
              help="GPUs whose times and memory the report predicts.")  # fmt: skip
@table_options
@measured_options
@click.option("--explain", metavar="LAYER", help="Derive one layer by pen and paper.")
@form_options(json="The same as --to json.", csv="The same as --to csv.", md="The same as --to md.",
              output="Write to FILE instead of the terminal.")  # fmt: skip
def command(paths: tuple[Path, ...], to: str | None, chart: str | None, dark: bool, sections: tuple[str, ...],
            width: str | None, claims: Path | None, on: str, by: By, depth: int | None, unfold: bool, memory: bool,
            kernels: int, explain: str | None, **asked: Any) -> None:  # fmt: skip
    """Show what is known of PATH: in the terminal, or as one file to open, send or print.

    PATH is a ledger, as `rooflight estimate -o PATH` or `rooflight measure -o PATH` saved it; recorded:NAME, a
    measurement that comes with rooflight (see `rooflight list recordings`); or a study's folder. Two ledgers are put
    side by side. Several that are the ranks of one run, as torchrun leaves them, are joined: rooflight report
    run.rank*.json

    With -o report.html, one page that needs no network: roofline, layers with their derivations, causes, memory, lanes,
    other batches and devices, many GPUs, where every number comes from. Pictures: -o roofline.png --chart roofline.
    """
    from rooflight.reporting.writers import ENDINGS, MUST

    form = one_form({**asked, "to": to}, {f".{end}": form for end, form in ENDINGS.items()}, must=MUST)
    output, force = asked["output"], asked["force"]
    if width is not None:
        from rooflight.reporting.writers import check_width

        check_width(width, form)
    if form == "text" and claims is not None:
        raise BadInput(f"in the terminal a table is checked by `{shell('compare', paths[0], claims=claims)}`; here "
                       "it becomes a part of a file: add -o report.html")  # fmt: skip
    table = {"--by": by != "module", "--depth": depth is not None, "--unfold": unfold, "--memory": memory,
             "--kernels": kernels != KERNELS}  # fmt: skip
    whole = form not in ("text", "csv") or sections or claims is not None
    if given := [name for name, is_given in {**table, "--explain": explain is not None}.items() if is_given and whole]:
        raise BadInput(f"{given[0]} is of the table in the terminal, and a report has all rows: leave it out, or the "
                       "file or form")  # fmt: skip
    if explain is not None and form != "text":
        raise BadInput("--explain prints text: leave the form or the file out")
    if form == "text" and (sections or chart or dark):
        raise BadInput("--section, --chart and --dark are of a file: name one, such as -o report.html or -o "
                       "roofline.png, or say the form with --to")  # fmt: skip
    if len(paths) == 1 and paths[0].is_dir():
        _refuse_for_a_study(by=by, depth=depth, explain=explain, claims=claims)
        _study(paths[0], form, chart=chart, dark=dark, sections=sections, width=width, output=output, force=force)
        return
    ledgers, names = _ledgers(paths)
    if explain:
        from rooflight.commands.output import emit
        from rooflight.estimation.derivation import derive
        from rooflight.reporting.derivation import derivation_text

        emit(derivation_text(derive(ledgers[0], explain)))
        return
    if form == "text" or (form == "csv" and not sections and claims is None and len(ledgers) == 1):
        _shown(ledgers, form, by=by, depth=depth, unfold=unfold, memory=memory, kernels=kernels, on=on, output=output,
               force=force)  # fmt: skip
    else:
        _made(ledgers, names, form, chart=chart, dark=dark, sections=sections, width=width, claims=claims, on=on,
              output=output, force=force)  # fmt: skip
    if output is not None:
        say(f"wrote {output}")


def _ledgers(paths: tuple[Path, ...]) -> tuple[list[Ledger], list[str]]:
    """One, two that are compared, or the ranks of one run as one; and how a command line names them."""
    import shlex

    from rooflight.files import load
    from rooflight.reporting.report.arranged import arranged

    if len(paths) > 1 and any(path.is_dir() for path in paths):
        raise BadInput("a study is reported alone: leave the others out")
    return arranged([load(path) for path in paths], [shlex.quote(str(path)) for path in paths])


def _shown(ledgers: list[Ledger], form: str, *, by: By, depth: int | None, unfold: bool, memory: bool, kernels: int,
           on: str, output: Path | None, force: bool) -> None:  # fmt: skip
    """In the terminal, or the main table as CSV."""
    from rooflight.commands.output import show, show_roofline
    from rooflight.reporting.ledger_documents import is_log, ledger_document

    if len(ledgers) == 2:
        from rooflight.comparison.sides import Comparison
        from rooflight.reporting.compare_tables import compare_document

        document = compare_document(Comparison(*ledgers), by=by, depth=depth, folded=not unfold)
        show(document, form, output=output, force=force)
        return
    (ledger,) = ledgers
    from rooflight.prediction.asked import devices_of

    devices_of(on, None)  # what is wrong with them is told before the tables
    document = ledger_document(ledger, by=by, depth=depth, folded=not unfold, memory=memory, kernels=kernels)
    show(document, form, output=output, force=force)
    if form == "text" and not is_log(ledger):
        show_roofline(ledger, on)


def _made(ledgers: list[Ledger], names: list[str], form: str, *, chart: str | None, dark: bool,
          sections: tuple[str, ...], width: str | None, claims: Path | None, on: str, output: Path | None,
          force: bool) -> None:  # fmt: skip
    """The whole report, or a part of it."""
    from itertools import count

    from rooflight.reporting.report.api import named_report
    from rooflight.reporting.report.of_ledger import STEPS

    with rarely_collected(), progress("reading", count="{task.completed:g} of {task.total:g}") as bar:
        done = count()
        made = named_report(ledgers, names, on=on, claims=claims, say=lambda doing: bar.show(doing, next(done), STEPS))
        bar.show("writing", STEPS, STEPS)
        _write(made, form, chart=chart, dark=dark, sections=sections, width=width, output=output,
               force=force)  # fmt: skip


def _study(folder: Path, form: str, *, chart: str | None, dark: bool, sections: tuple[str, ...], width: str | None,
           output: Path | None, force: bool) -> None:  # fmt: skip
    from rooflight.commands.output import show
    from rooflight.reporting.report.of_study import study_report
    from rooflight.reporting.study_document import study_document
    from rooflight.study.api import load

    study = load(folder)
    if form == "text":
        show(study_document(study.rows, study.plan, folder=str(folder)), "text")
        return
    made = study_report(study.rows, study.plan, folder=str(folder))
    _write(made, form, chart=chart, dark=dark, sections=sections, width=width, output=output,
               force=force)  # fmt: skip
    if output is not None:
        say(f"wrote {output}")


def _write(made: Document, form: str, *, chart: str | None, dark: bool, sections: tuple[str, ...], width: str | None,
           output: Path | None, force: bool) -> None:  # fmt: skip
    from rooflight.commands.output import deliver
    from rooflight.reporting.writers import write

    asked: Any = form
    content = write(made, asked, chart=chart, sections=sections, mode="dark" if dark else "light", width=width)
    deliver(content, output, force=force)


def _refuse_for_a_study(*, by: str, depth: int | None, explain: str | None, claims: Path | None) -> None:
    """What a study has not must not be passed over in silence."""
    if by != "module" or depth is not None or explain is not None:
        raise BadInput("--by, --depth and --explain are of a ledger: a study's are in its folder `ledgers`, each to be "
                       "reported by itself")  # fmt: skip
    if claims is not None:
        raise BadInput("a study has its own claims, in its plan: a table of them goes with one ledger")
