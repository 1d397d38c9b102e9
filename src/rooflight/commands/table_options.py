"""The options of every verb that prints the table of an estimate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

_OPTIONS = (
    click.option("--by", type=click.Choice(["module", "type", "op"]), default="module", show_default=True,
                 help="What a row of the table is."),
    click.option("--depth", type=click.IntRange(min=0),
                 help="Levels of the module tree to show. Default: 3 in text, all in files."),
    click.option("--unfold", is_flag=True, help="Show equal blocks one by one."),
)  # fmt: skip


def table_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
