"""The options of every verb that prints the table of an estimate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

KERNELS = 10
_OPTIONS = (
    click.option(
        "--by",
        type=click.Choice(["module", "type", "op"]),
        default="module",
        show_default=True,
        help="What a row of the table is.",
    ),
    click.option(
        "--depth", type=click.IntRange(min=0), help="Levels of the module tree to show. Default: 3, in CSV all."
    ),
    click.option("--unfold", is_flag=True, help="Show identical blocks one by one."),
)


_MEASURED = (
    click.option("--memory", is_flag=True, help="For a measurement: allocated memory, row by row."),
    click.option(
        "--kernels",
        type=click.IntRange(min=0),
        default=KERNELS,
        show_default=True,
        help="For a measurement: how many kernels to show.",
    ),
)


def table_options(command: Callable[..., Any]) -> Callable[..., Any]:
    return _with(command, _OPTIONS)


def measured_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """For verbs that show measurements, beside `table_options`."""
    return _with(command, _MEASURED)


def _with(command: Callable[..., Any], options: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    for option in reversed(options):
        command = option(command)
    return command
