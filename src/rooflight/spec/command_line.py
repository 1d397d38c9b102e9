"""Commands of rooflight: their words made, quoted and read again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from rooflight.errors import BadInput
from rooflight.spec.definition import by_option
from rooflight.spec.fields import EVERY, settings_of


def shell(verb: str, *words: object, **more: Any) -> str:
    """A command of any verb, quoted: `shell("report", path, output="report.html")`."""
    return shlex.join([*command_words(verb, *words), *option_words(more)])


def command_words(verb: str, *words: object) -> list[str]:
    return ["rooflight", verb, *map(str, words)]


def option_words(more: Mapping[str, Any]) -> Iterator[str]:
    for name, given in more.items():
        several = isinstance(given, (list, tuple))
        for value in given if several and name in _REPEATABLE else [",".join(map(str, given)) if several else given]:
            if value is not None and value is not False:
                yield "-o" if name == "output" else f"--{name.replace('_', '-')}"
                yield from () if value is True else [str(value)]


_REPEATABLE = ("level", "metrics")
"""Options that are given once for every value; others take values with commas."""


def parse(command: str) -> tuple[dict[str, Any], list[str]]:
    """The fields that a command of rooflight gives, and its other words behind the verb."""
    fields = by_option()
    values: dict[str, Any] = {}
    rest: list[str] = []
    words = iter(_after_program(command)[1:])
    for word in words:
        option, equals, value = word.partition("=")
        field = fields.get(option) or fields.get(option.replace("--no-", "--", 1))
        if field is None:
            rest.append(word)
        elif field.kind in ("flag", "switch"):
            values[field.name] = option == field.option
        else:
            text = value if equals else next(words, "")
            if field.kind == "settings":
                values.setdefault(field.name, {}).update(settings_of(text))
            elif field.kind == "number":
                values[field.name] = field.read([int(part) for part in text.split(",")], several=True)
            else:
                values[field.name] = field.read(text)
    return values, rest


def _after_program(command: str) -> list[str]:
    """The verb and what follows: options of the program may stand before it."""
    program, *words = shlex.split(command) or [""]
    verb = next((place for place, word in enumerate(words) if not word.startswith("-")), 0)
    return words[verb:] if program == "rooflight" else []


def verb_of(command: str, model: str) -> str:
    """Of a command of rooflight that runs a step of that very model, else nothing."""
    try:
        words = _after_program(command)
        parse(command)
    except (ValueError, BadInput):
        return ""
    return words[0] if model in words[1:] and words[0] in EVERY else ""
