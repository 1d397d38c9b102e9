"""`rooflight run -- COMMAND`: somebody's program, and what its regions measured; with `--ops`, one of its steps."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from rooflight.commands.result_options import LEDGER_OR_TABLE, form_options, forms
from rooflight.commands.signals import answered_by
from rooflight.commands.terminal import complain, say
from rooflight.errors import BadFile, BadInput, CannotMeasure
from rooflight.spec import shell

if TYPE_CHECKING:
    from rooflight.ledger import Ledger
    from rooflight.measurement.scripts.settings import StepRange
    from rooflight.reporting.document import Document

_NO_REGIONS = (
    "no region was entered: write `with rooflight.region('name'):` around what you want to know, and run it again"
)
_MUST = "must end in .json, .json.gz, .html, .csv or .md"
_USUAL = {"--counters": "auto", "--level": "dram", "--steps": None}
_WHY_MISSING = "they ran on another machine, entered no region or were killed before they could write"


@click.command(
    short_help="measure a program: its steps, op by op, or its regions",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("--ops", is_flag=True, help="Find the program's steps and record one of them op by op: see below.")
@click.option(
    "--steps",
    metavar="FIRST:LAST",
    help="With --ops: the steps that may be timed, recorded and counted. Default: 3 and those after it.",
)
@click.option("--stop-after", is_flag=True, help="With --ops: end the program when all of that is done.")
@click.option(
    "--counters",
    type=click.Choice(["auto", "cupti", "none"]),
    default=_USUAL["--counters"],
    show_default=True,
    help="Hardware counters. auto: where they can be read; cupti: an error if they cannot; none: only time and memory.",
)
@click.option(
    "--level",
    type=click.Choice(["dram", "l2", "l1"]),
    default=_USUAL["--level"],
    show_default=True,
    help="Count the bytes of this level of memory too; DRAM always.",
)
@form_options(
    ["json"],
    json="Print one JSON document; the program's output goes to stderr.",
    output="Also write to FILE: .json or .json.gz saves the ledger, .html a page with charts, .csv and .md the table; "
    "the ledger is then kept beside it.",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND [ARGUMENTS]...")
def command(counters: str, level: str, command: tuple[str, ...], **options: Any) -> None:
    """Run a program and show what its steps or its regions measured.

    With --ops nothing in the program is changed: its steps are found by its optimizers (or, where nothing is trained,
    by calls of its models). A few are timed, one is recorded op by op, on a GPU the next give counters; the others run
    as they do without rooflight, and the results are the same.

    Regions the program marks itself, with `with rooflight.region("conv2"):` or as a decorator; each execution of a
    region measures a part. What is missing at the end is listed. The exit code is the program's.

    \b
    rooflight run --ops -o run.json -- python train.py --epochs 1
    rooflight run -- python main.py --epochs 1
    rooflight run -o run.json -- torchrun --nproc-per-node 2 main.py
    """
    if not command:
        raise BadInput("no-program", "nothing to run: write `rooflight run -- python main.py`")
    steps = _steps(options)
    to, written = forms(options, LEDGER_OR_TABLE | {".html": "html"}, must=_MUST, measured=True)
    if counters == "cupti":
        from rooflight.measurement.cupti.library import has_driver

        if not has_driver():
            raise CannotMeasure(
                "no-driver", "--counters cupti: there is no NVIDIA driver here (`rooflight doctor` says more)"
            )
    with tempfile.TemporaryDirectory(prefix="rooflight-") as folder:
        from rooflight.measurement.regions.settings import COUNTERS, LEVEL, RUN

        environment = {**os.environ, RUN: folder, COUNTERS: counters, LEVEL: level}
        if steps is not None:
            from rooflight.measurement.scripts.settings import environment_for

            environment |= environment_for(steps, stop_after=options["stop_after"], base=os.environ)
        began = monotonic()
        code = _run(command, environment, quiet=options["as_json"])
        took = monotonic() - began
        ledgers, complaints = _collect(Path(folder))
        asked = shell("run", *_words(options, counters, level), "--", *command)
        joined = _joined(ledgers, asked)
        if steps is not None:
            from rooflight.measurement.scripts.results import recorded_script

            script = recorded_script(Path(folder), took_s=took, command=asked)
            complaints += script.complaints
            joined = _with_regions(script.ledger, joined)
        # Before anything is printed: an output that is closed or full must not cost the only copy.
        kept = _saved(joined, options, written, code) if joined is not None and written else None
    if joined is None:
        nothing = "; nothing was written" if written else ""
        complaints = [f"{line}{nothing}" for line in complaints or (_NO_REGIONS,)]
    try:
        _show(joined, to, code=code, complaints=complaints)
    finally:
        if isinstance(kept, str):
            say(f"rooflight: {kept}")
    if isinstance(kept, BadFile):
        raise kept
    if not code and counters == "cupti" and joined is not None and not _has_counters(joined):
        raise CannotMeasure(
            "nothing-counted", "--counters cupti: nothing could be counted, and the lines above say why"
        )
    sys.exit(code)


def _steps(options: Mapping[str, Any]) -> StepRange | None:
    """`None`: only the program's regions are of interest."""
    if not options["ops"]:
        if given := next((name for name in ("steps", "stop_after") if options[name]), None):
            raise BadInput("option-needs-another", f"--{given.replace('_', '-')} is of --ops: add it")
        return None
    from rooflight.measurement.scripts.settings import StepRange, parse_steps

    return parse_steps(options["steps"]) if options["steps"] else StepRange()


def _words(options: Mapping[str, Any], counters: str, level: str) -> list[str]:
    """The options as they were given, for the command that is kept."""
    flags = {"--ops": options["ops"], "--stop-after": options["stop_after"]}
    given = {"--steps": options["steps"], "--counters": counters, "--level": level}
    told = [word for name, value in given.items() if value != _USUAL[name] for word in (name, value)]
    return [*(name for name, is_given in flags.items() if is_given), *told]


def _has_counters(ledger: Ledger) -> bool:
    return any(value.origin.startswith("cupti") for row in ledger.measurements for value in row.quantities.values())


# --- the program ---


def _run(command: Sequence[str], environment: dict[str, str], *, quiet: bool) -> int:
    """Its exit code; as a shell says it where a signal ended it. Its input and output are ours."""
    sys.stdout.flush()
    sys.stderr.flush()
    process: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        # Ctrl-C at a terminal reaches the program by itself; a second one would break off its own tidying up.
        if number == signal.SIGINT and _at_terminal():
            return
        if process is None:
            early.append(number)
        else:
            process.send_signal(number)  # does nothing when it has ended

    # While the program runs, signals are its business. A handler, unlike `SIG_IGN`, is not inherited by it.
    with answered_by(pass_on, "SIGINT", "SIGTERM", "SIGHUP"):
        try:
            process = subprocess.Popen(command, env=environment, stdout=2 if quiet else None)
        except OSError as error:
            raise BadInput("program-not-started", _why_not(command, error)) from None
        for number in early:
            process.send_signal(number)
        code = process.wait()
    return code if code >= 0 else 128 - code


def _at_terminal() -> bool:
    """Are we in the foreground of a terminal, where the whole group hears Ctrl-C?"""
    if not hasattr(os, "tcgetpgrp"):  # Windows: Ctrl-C reaches every program of the console
        return True
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _why_not(command: Sequence[str], error: OSError) -> str:
    program = command[0]
    if program.startswith("-"):
        return f"no option {program}: put what is for the program after --, as in `rooflight run -- python main.py`"
    if program.endswith(".py") and Path(program).is_file():
        return f"{program} is no program: write `rooflight run -- python {shlex.join(command)}`"
    if isinstance(error, FileNotFoundError):
        return f"no command {program!r}: is it installed, and spelled right?"
    return f"cannot run {program!r}: {error.strerror or error}; is it a program, and may you run it?"


# --- what it left ---


def _collect(folder: Path) -> tuple[list[tuple[str, Ledger]], list[str]]:
    """Ledgers by process, lowest rank first, and a line for each that cannot be read."""
    from rooflight.files import load

    ledgers: list[tuple[str, Ledger]] = []
    damaged = []
    for path in folder.glob("rank*.json"):
        try:
            ledgers.append((path.name.split("-")[1].removeprefix("pid"), load(path)))
        except BadFile as error:
            damaged.append(f"the regions of one process are lost: {error}")
    return sorted(ledgers, key=lambda entry: (entry[1].header.rank, int(entry[0]))), damaged


def _joined(ledgers: Sequence[tuple[str, Ledger]], command: str) -> Ledger | None:
    """One ledger of all processes. The first keeps the names of its regions, the others add whose they are."""
    if not ledgers:
        return None
    import msgspec

    from rooflight.ledger import Note
    from rooflight.measurement.regions.ledger import of_process
    from rooflight.profiles.joined_ranks import missing_ranks

    ranks = [ledger.header.rank for _, ledger in ledgers]
    first = ledgers[0][1]
    rows, notes = list(first.measurements), list(first.header.notes)
    for pid, ledger in ledgers[1:]:
        rank = ledger.header.rank
        whose = f"rank {rank}" if ranks.count(rank) == 1 else f"process {pid}"
        rows += of_process(ledger.measurements, whose)
        notes += [note.of(whose) for note in ledger.header.notes]
    world = max(ledger.header.world for _, ledger in ledgers)
    if (missing := missing_ranks(ranks, world)) is not None:
        notes.insert(0, Note(missing.code, f"{missing}: {_WHY_MISSING}"))
    header = msgspec.structs.replace(first.header, world=world, notes=tuple(notes), command=command)
    return msgspec.structs.replace(first, header=header, measurements=tuple(rows))


def _with_regions(step: Ledger | None, regions: Ledger | None) -> Ledger | None:
    """One ledger of the step that was recorded and of the regions."""
    if step is None or regions is None:
        return step or regions
    import msgspec

    header = msgspec.structs.replace(step.header, notes=(*step.header.notes, *regions.header.notes))
    return msgspec.structs.replace(step, header=header, measurements=(*step.measurements, *regions.measurements))


def _document(ledger: Ledger, code: int) -> Document:
    from rooflight.reporting.sections.ledger_documents import is_log, log_document, measure_document

    return log_document(ledger, exit_code=code) if is_log(ledger) else measure_document(ledger)


def _saved(ledger: Ledger, options: Mapping[str, Any], to: str, code: int) -> str | BadFile:
    """What was written, or what stood in the way: to be told after the figures were at least shown."""
    from rooflight.commands.output import keep
    from rooflight.reporting.report.api import log_report, named_report
    from rooflight.reporting.sections.ledger_documents import is_log

    def document(to: str) -> Document:
        if to != "html":
            return _document(ledger, code)
        return log_report(ledger, source="") if is_log(ledger) else named_report([ledger], [str(options["output"])])

    try:
        return keep(ledger, document, options, to, measured=True)
    except BadFile as error:
        return error


def _show(ledger: Ledger | None, to: str, *, code: int, complaints: Sequence[str]) -> None:
    if code:
        complain(
            f"the program ended with exit code {code}" + (": what was measured before" if ledger is not None else "")
        )
    for line in complaints:
        complain(line)
    if ledger is not None:
        from rooflight.commands.output import show

        show(_document(ledger, code), to)
    elif to == "json":
        click.echo(f'{{"header":null,"regions":[],"exit_code":{code}}}')
