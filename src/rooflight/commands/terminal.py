"""The person at the terminal: words beside the result, and a bar while it is made.

Both go to the error output, and with --quiet neither is shown; what went wrong is shown always. Results never come
through here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import click

from rooflight.formatting import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID


@dataclass
class ProgramOptions:
    """What was asked of the whole program, before or after the verb; click carries it along as the context's object."""

    quiet: bool = False
    debug: bool = False


def program_options() -> list[click.Parameter]:
    """--quiet and --debug: of every verb too, since that is where one adds them to a command that was just given."""
    helps = {
        "--quiet": "Print only the result and errors.",
        "--debug": "Show the traceback when something goes wrong.",
    }
    return [
        click.Option([name], is_flag=True, expose_value=False, is_eager=True, callback=_remember, help=help)
        for name, help in helps.items()
    ]


def _remember(context: click.Context, option: click.Parameter, given: bool) -> None:
    asked = context.ensure_object(ProgramOptions)
    if given and option.name is not None:
        setattr(asked, option.name, True)


def is_quiet() -> bool:
    context = click.get_current_context(silent=True)
    asked = None if context is None else context.find_object(ProgramOptions)
    return asked is not None and asked.quiet


def say(message: str) -> None:
    """A word beside the result: what was written, what to do next."""
    if not is_quiet():
        click.echo(printable(message), err=True)


def complain(message: str) -> None:
    """What went wrong, in one line, quiet or not."""
    click.echo(f"rooflight: {printable(message)}", err=True)


def make_console(*, stderr: bool = False) -> Console:
    """As wide as the terminal; in a pipe or a file, as COLUMNS says or wide enough for the tables."""
    from rich.console import Console

    # NO_COLOR alone would leave rich's bold and dim; without a colour system it writes no escape code at all.
    system: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    if (sys.stderr if stderr else sys.stdout).isatty():
        return Console(stderr=stderr, color_system=system)
    given = os.environ.get("COLUMNS", "")
    return Console(stderr=stderr, color_system=system, width=int(given) if given.isdigit() and int(given) > 20 else 150)


class ProgressBar:
    """What is being done, and how far it is; nothing where nobody looks."""

    def __init__(self, shown: Progress | None = None, task: TaskID | None = None) -> None:
        self._shown = shown
        self._task = task

    def show(self, doing: str, done: float = 0, total: float | None = None) -> None:
        """`done` of `total`; without a total, of the same as before."""
        if self._shown is not None and self._task is not None:
            self._shown.update(self._task, description=printable(doing), completed=done, total=total)

    def line(self, message: str) -> None:
        """A line that stays, above the bar; where there is none, on the error output."""
        if self._shown is not None:
            self._shown.console.print(printable(message), markup=False, highlight=False)
        else:
            click.echo(printable(message), err=True)


def shows_bars() -> bool:
    """Somebody looks, at a terminal that can move its cursor, and wants to be told."""
    return not is_quiet() and sys.stderr.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown", "")


@contextmanager
def progress(doing: str, *, count: str = "", wanted: bool = True) -> Iterator[ProgressBar]:
    """A bar on the error output where `shows_bars()`, gone when the work is done.

    `count` is put after it, with rich's words: "{task.completed:g} of {task.total:g}". Without it the bar only moves.
    """
    if not wanted or not shows_bars():
        yield ProgressBar()
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    console = make_console(stderr=True)
    # As wide for every word, so that the bar stays where it is; on a narrow terminal words and bar give way.
    wide = min(34, console.width // 3)
    what = TextColumn("{task.description}", markup=False, table_column=Column(width=wide, no_wrap=True))
    columns = [what, BarColumn(wide), *([TextColumn(count)] if count else []), TimeElapsedColumn()]
    with Progress(*columns, console=console, transient=True) as shown:
        yield ProgressBar(shown, shown.add_task(doing, total=1 if count else None))
