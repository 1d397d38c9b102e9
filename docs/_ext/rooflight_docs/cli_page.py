"""The command line as a page: every verb with its arguments, options, defaults and choices, from the click commands."""

from __future__ import annotations

from collections.abc import Iterator

import click

from rooflight.commands.main import VERBS, cli
from rooflight_docs.markdown import cell, table

_LONGEST = 40
"""A list of choices that is longer stands in the words, not beside the name."""


def page() -> str:
    """All verbs, in the order of `rooflight --help`."""
    with click.Context(cli, info_name="rooflight") as context:
        parts = [_overview(), "## Every verb takes\n", table(("option", "what it does"), _options(cli, context))]
        for verb, command in verbs():
            parts.append(_verb(verb, command, context))
    return "\n".join(parts)


def verbs() -> list[tuple[str, click.Command]]:
    """The verbs that `rooflight --help` shows."""
    context = click.Context(cli, info_name="rooflight")
    found = [(verb, cli.get_command(context, verb)) for verb in cli.list_commands(context)]
    return [(verb, command) for verb, command in found if command is not None and not command.hidden]


def shown_options(command: click.Command) -> list[click.Option]:
    """Without those that are for rooflight's own processes."""
    return [one for one in command.params if isinstance(one, click.Option) and not one.hidden]


def arguments(command: click.Command) -> list[click.Argument]:
    return [one for one in command.params if isinstance(one, click.Argument)]


def spelled(option: click.Option) -> str:
    """As one types it: `-o, --output`, `--tf32 / --no-tf32`."""
    names = ", ".join(option.opts)
    return f"{names} / {', '.join(option.secondary_opts)}" if option.secondary_opts else names


def _overview() -> str:
    return table(("verb", "what it does"), ((f"[`{verb}`](#{verb})", VERBS[verb]) for verb, _ in verbs()))


def _verb(verb: str, command: click.Command, parent: click.Context) -> str:
    context = click.Context(command, info_name=verb, parent=parent)
    usage = command.get_usage(context).removeprefix("Usage: ")
    lines = [f"## {verb}\n", f"```text\n{' '.join(usage.split())}\n```\n", f"{_prose(command.help or '')}\n"]
    rows = list(_options(command, context))
    if rows:
        lines.append(table(("option", "what it does"), rows))
    return "\n".join(lines)


def _options(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    shared = {option.name for option in shown_options(cli)}
    for option in shown_options(command):
        if command is not cli and option.name in shared:
            continue
        metavar = "" if option.is_flag or option.count else f" {option.make_metavar(context)}"
        too_long = len(metavar) > _LONGEST
        name = f"`{spelled(option)}{'' if too_long else metavar}`"
        yield cell(name), cell(" ".join(_described(option, choices=too_long)))


def _described(option: click.Option, *, choices: bool) -> Iterator[str]:
    yield option.help or ""
    if choices and isinstance(option.type, click.Choice):
        yield f"One of {', '.join(f'`{choice}`' for choice in option.type.choices)}."
    if option.multiple and "Repeatable" not in (option.help or ""):
        yield "May be given several times."
    if option.required:
        yield "Must be given."
    if (default := _default(option)) is not None:
        yield f"Default: `{default}`."


def _default(option: click.Option) -> str | None:
    """What it is without it; `None` where help says so in words, or where there is nothing to say."""
    held = option.to_info_dict()["default"]
    if option.is_flag or held in (None, (), [], "") or callable(held):
        return None
    text = ", ".join(map(str, held)) if isinstance(held, (tuple, list)) else str(held)
    return None if "default" in (option.help or "").lower() else text


def _prose(text: str) -> str:
    """Click's help as Markdown: `\\b` begins a paragraph whose lines stay as they are."""
    paragraphs = [part.strip("\n") for part in text.split("\n\n")]
    shown = []
    for part in paragraphs:
        lines = part.splitlines()
        if lines and lines[0].strip() == "\b":
            shown.append("```text\n" + "\n".join(lines[1:]) + "\n```")
        else:
            shown.append(" ".join(line.strip() for line in lines))
    return "\n\n".join(shown)
