"""`rooflight study STUDY.toml -o FOLDER`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rooflight.commands.signals import say_again
from rooflight.commands.step_options import axes_of, check_positive, step_options, words_of
from rooflight.commands.terminal import ProgressBar, is_quiet, progress, say, shows_bars
from rooflight.errors import BadInput
from rooflight.formatting import printable
from rooflight.spec import shell

if TYPE_CHECKING:
    from rooflight.study.journal import JournalEntry, Progress
    from rooflight.study.local import LocalLauncher
    from rooflight.study.slurm.launcher import SlurmLauncher
    from rooflight.study.store import Store

_MOST_LINES = 40
"""Of a study's progress and of its end; the report has all of them."""
_LINE_S = 5.0
"""Between two lines of progress, where there are many."""


@click.command(short_help="a grid of models, batches, precisions and devices")
@click.argument("what", metavar="STUDY.toml|MODEL,...|FOLDER")
@step_options("study")
@click.option(
    "--on",
    metavar="DEVICE,...",
    help="Devices to predict on, and to measure on where present: names, .toml files, a few numbers, or `here`.",
)
@click.option("--layers", metavar="LAYER,...", help="Also record the values of these layers.")
@click.option(
    "--measure/--no-measure", default=None, help="Measure the cells or not. Default: where the device is present."
)
@click.option("--repeat", type=int, help="Timed steps per measurement, of which the median is taken. Default: 20.")
@click.option(
    "--timeout",
    "timeout_s",
    type=float,
    metavar="SECONDS",
    help="Limit for the estimate, the prediction or the measurement of a cell. Default: 3600.",
)
@click.option(
    "-o", "--output", "folder", type=click.Path(path_type=Path), metavar="FOLDER", help="Folder for all results."
)
@click.option("--retry", is_flag=True, help="Run failed cells again.")
@click.option(
    "--launcher", type=click.Choice(["local", "slurm"]), default="local", show_default=True, help="Where cells are run."
)
@click.option("--workers", type=int, help="Local worker processes. Default: one per core.")
@click.option("--partition", help="Slurm partition.")
@click.option("--gres", help="Slurm resources of each cell, such as gpu:1.")
@click.option("--time", help="Slurm time limit of one cell: 90 (minutes), 1:30:00. Default: 60.")
@click.option("--account", help="Slurm account.")
@click.option("--qos", help="Slurm quality of service.")
@click.option("--constraint", help="Slurm constraint on nodes.")
@click.option("--nodelist", help="Slurm nodes to use.")
@click.option("--max-parallel", type=int, help="Cells that run in Slurm at the same time. Default: 8.")
@click.option("--slurm", multiple=True, metavar="KEY=VALUE", help="Any other option of sbatch. Repeatable.")
@click.option(
    "--setup",
    multiple=True,
    metavar="COMMAND",
    help="Command to run on a node before Python, such as module load cuda. Repeatable.",
)
@click.option("--python", metavar="COMMAND", help="Command that starts Python on a node. Default: this Python.")
@click.option("--cancel", is_flag=True, help="Cancel the study's tasks in Slurm; finished cells are kept.")
@click.option("--dry-run", is_flag=True, help="Only print what would be run.")
def command(what: str, **options: Any) -> None:
    """Run a grid of models, batches, precisions and devices: every cell is estimated, predicted on its device, and
    measured where the device is present.

    FOLDER keeps everything: after an interruption, `rooflight study FOLDER` resumes; several processes may work
    on one folder at once. `rooflight report FOLDER` shows it.
    """
    from rooflight.commands.output import say_cards
    from rooflight.study.api import make_ready, prepare, run, to_make_again
    from rooflight.study.plan import devices_named

    if options["cancel"]:
        _cancel(what, options)
        return
    plan, axes = _asked(what, options)
    launcher = _launcher(options)
    with prepare(plan, options["folder"], axes, dry=options["dry_run"]) as store:
        if options["dry_run"]:
            from rooflight.commands.output import emit
            from rooflight.study.launch import outline

            lines = outline(store, elsewhere=options["launcher"] == "slurm")
            emit("\n".join([*lines, *to_make_again(store)[1], launcher.dry_run(store)]))
            return
        say_cards(devices_named(store.plan))
        for line in make_ready(store, retry=options["retry"]):
            say(line)
        with _heard(store, launcher), _progress(store) as report:
            run(store, launcher, progress=report)
        _show(store, launcher)


def _asked(what: str, options: Mapping[str, Any]) -> tuple[str | list[str], dict[str, Any]]:
    """A file, a folder, or models with their axes."""
    axes = axes_of(options, "study")
    axes |= {name: words_of(name, options[name]) for name in ("on", "layers") if options[name] is not None}
    axes |= {name: options[name] for name in ("measure", "repeat", "timeout_s") if options[name] is not None}
    if what.endswith(".toml") or Path(what).is_dir():
        if axes:
            raise BadInput(
                "plan-has-a-grid", f"{what} has its own plan: leave --{next(iter(axes)).removesuffix('_s')} out"
            )
        return what, {}
    return words_of("MODEL", what), axes


def _launcher(options: Mapping[str, Any]) -> LocalLauncher | SlurmLauncher:
    from rooflight.study.slurm.options import NAMED

    if options["launcher"] == "slurm":
        if options["workers"] is not None:
            raise BadInput(
                "option-not-applicable",
                "--workers is for --launcher local: --max-parallel says how many cells Slurm runs at a time",
            )
        from rooflight.study.slurm.launcher import SlurmLauncher

        return SlurmLauncher(options, status=say)
    of_slurm = (*NAMED, "max_parallel", "slurm", "setup", "python", "cancel")
    given = [name for name in of_slurm if options[name] not in (None, (), False)]
    if given:
        raise BadInput("option-needs-another", f"--{given[0].replace('_', '-')} goes with --launcher slurm")
    check_positive("workers", options["workers"])
    from rooflight.study.local import LocalLauncher

    return LocalLauncher(workers=options["workers"])


def _say(text: str) -> None:
    """Quiet or not."""
    click.echo(printable(text), err=True)


def _cancel(what: str, options: Mapping[str, Any]) -> None:
    from rooflight.study.slurm.launcher import SlurmLauncher

    launcher = _launcher(options)
    if not isinstance(launcher, SlurmLauncher) or not Path(what).is_dir():
        raise BadInput(
            "no-study-folder", "--cancel takes a study's folder: rooflight study FOLDER --launcher slurm --cancel"
        )
    count = launcher.cancel(Path(what))
    say(f"took {count:,} {'task' if count == 1 else 'tasks'} from Slurm; what was finished is kept")


@contextmanager
def _heard(store: Store, launcher: LocalLauncher | SlurmLauncher) -> Iterator[None]:
    """Ctrl-C: nothing is lost, and how to go on is said."""
    try:
        yield
    except KeyboardInterrupt:
        say_again(0)
        _say(f"rooflight: interrupted; what was finished is kept, {launcher.when_interrupted(store.folder)}")
        sys.stderr.flush()
        os._exit(130)


@contextmanager
def _progress(store: Store) -> Iterator[Progress]:
    """A bar where somebody watches, else a line now and then; what fails is said at once."""
    keys = store.keys
    finished = sum(not store.is_open(key) for key in keys)
    if is_quiet():
        yield lambda entry: None  # what failed is in the result
        return
    with progress("starting", count="{task.completed:g}/{task.total:g}") as bar:
        yield _teller(bar, len(keys), finished)


def _teller(bar: ProgressBar, total: int, finished: int) -> Progress:
    last = time.monotonic()
    bar.show("starting", finished, total)

    def tell(entry: JournalEntry) -> None:
        nonlocal finished, last
        finished += 1
        bar.show(f"{entry.side} {entry.key.rpartition('-')[0]}", finished, max(total, finished))
        is_due = total <= _MOST_LINES or finished >= total or time.monotonic() > last + _LINE_S
        if entry.failure:
            bar.line(f"failed: {entry.side} {entry.key}: {entry.failure}")
        elif is_due and not shows_bars():
            last = time.monotonic()
            say(f"{finished:,} of {max(total, finished):,}: {entry.side} {entry.key}")

    return tell


def _show(store: Store, launcher: LocalLauncher | SlurmLauncher) -> None:
    """What was found, where it is, and what to do next."""
    from rooflight.commands.output import show
    from rooflight.reporting.document import table_sections
    from rooflight.reporting.sections.study_claims import claim_table, counted
    from rooflight.reporting.sections.study_tables import summary_document
    from rooflight.study.hypotheses import claims

    with progress("summarising the study"):
        rows, plan = store.rows, store.plan
        document = summary_document(rows, plan, most=_MOST_LINES)
        if plan.claim:
            judged = claims(plan.claim, rows)
            document = replace(
                document,
                lines=(*document.lines, counted(judged)),
                sections=(*table_sections([claim_table(judged)]), *document.sections),
            )
    show(document, "text")
    say(f"wrote {store.folder}; all of it with: {shell('report', store.folder)}")
    if any(row.state == "failed" for row in rows):
        _say(f"try again what failed with: {launcher.command(store.folder)} --retry")
    if any(row.state == "waiting" for row in rows):
        _say(f"what waits needs a device that is not here; run where it is: {launcher.command(store.folder)}")
    if all(cell.on is None for cell in store.cells):
        say("only estimated: --on here measures on this machine, --on h200,a100 predicts")
    if rows and all(row.state == "failed" for row in rows):
        sys.exit(1)  # some failed cells are a result; nothing but failures is none
