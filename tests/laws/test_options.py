"""No option is dropped without a word: it changes the answer, is refused, or is named in a note.

The options are those of `rooflight.spec`, so a new one is covered as it is defined. Values are drawn by a seed.
"""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

import rooflight
from rooflight.commands.main import cli
from rooflight.errors import RooflightError
from rooflight.spec import Field, Verb, fields_for

Options = dict[str, Any]
TINY = {"n_layer": "1", "n_embd": "36", "n_head": "2", "vocab_size": "100"}
TWO = TINY | {"n_layer": "2"}
BASES: list[Options] = [
    {"model": "mnist-cnn"},
    {"model": "mnist-cnn", "step": "train"},
    {"model": "gpt2", "settings": TINY, "input": "int:16"},
    {"model": "gpt2", "settings": TINY, "seq": 16, "step": "train"},
    {"model": "gpt2", "settings": TINY, "past": 16, "step": "decode"},
]
OF_SEVERAL: list[Options] = [
    {"model": "mnist-cnn", "step": "train", "batch": 8, "gpus": 2},
    {"model": "gpt2", "settings": TWO, "seq": 16, "step": "train", "batch": 8, "gpus": 2, "parallel": "pp"},
]
VALUES: dict[str, list[Any]] = {
    "number": [1, 2, 4],
    "flag": [True],
    "switch": [True, False],
    "modules": [("blocks",), ("conv2",), ("h.0",), ("nothing",)],
    "settings": [{"n_layer": "3"}, {"channels": "4,8"}, {"nothing": "3"}],
    "shape": ["1x32x32", "int:8"],
    "text": ["ddp", "fsdp", "tp", "1x2x1", "nothing"],
}
EXEMPT = {"download": "what is built in has nothing to download, and an answer is the same wherever a file came from"}
"""Options that may change nothing, with the reason."""


def values(field: Field, base: Options) -> list[Any]:
    """Return what the option may be given in place of what the step has, in a drawn order."""
    found = list(field.choices or VALUES[field.kind or ""])
    random.Random(f"{field.name} {base}").shuffle(found)
    if field.kind == "settings":
        found = [base.get(field.name, {}) | value for value in found]
    return [value for value in found if value != base.get(field.name, field.default)]


def in_python(verb: Verb, options: Options) -> object:
    """Return all that a function answers but its header, which repeats the options, with the notes of that."""
    keywords = {field.keyword: options[field.name] for field in fields_for(verb) if field.name in options}
    if verb == "estimate":
        ledger = rooflight.estimate(options["model"], **keywords)
        return ledger.ops, ledger.storages, ledger.modules, ledger.header.notes
    found = rooflight.predict(options["model"], on="a100", advice=False, find_savings=False, **keywords)
    return [msgspec.to_builtins(row) for row in found.predictions], found.notes


def in_a_shell(verb: Verb, options: Options) -> object:
    """Return the same of what a command prints with `--json`."""
    words = [word for field in fields_for(verb) if field.name in options for word in field.words(options[field.name])]
    place = ["--on", "a100"] if verb == "predict" else []
    run = CliRunner().invoke(cli, [verb, options["model"], *words, *place, "--json"])
    if run.exception is not None:
        raise run.exception
    answer = json.loads(run.stdout)
    return {**answer, "header": answer["header"]["notes"]}


def answers(ask: Any, verb: Verb, options: Options) -> object:
    """Return what is answered, `None` where the options are refused."""
    try:
        return ask(verb, options)
    except (RooflightError, SystemExit):
        return None


def steps_for(field: Field, verb: Verb) -> list[Options]:
    """Return the steps that may take the option, in a drawn order."""
    found = [*BASES, *(OF_SEVERAL if verb == "predict" else ())]
    random.Random(f"{verb} {field.name}").shuffle(found)
    return [base for base in found if field.step in (None, base.get("step"))]


def what_is_dropped(field: Field, base: Options, verb: Verb, ask: Any, usual: object) -> tuple[Any, bool]:
    """Return a value that changes nothing and is not refused, if no other changes anything; and if one does."""
    same = None
    for value in values(field, base):
        answer = answers(ask, verb, {**base, field.name: value})
        if answer is not None and answer != usual:
            return None, True
        if answer is not None:
            same = value
    return same, False


@pytest.mark.parametrize("ask", [in_python, in_a_shell])
@pytest.mark.parametrize("verb", ["estimate", "predict"])
def test_no_option_is_dropped_without_a_word(verb: Verb, ask: Any) -> None:
    """A value may be the one that is taken anyway, as the usual loss: then another value changes the answer."""
    plain: dict[str, object] = {}
    fields = fields_for(verb)
    for field in fields if ask is in_python else random.Random(verb).sample(fields, 8):
        for base in steps_for(field, verb):
            usual = plain.setdefault(str(base), plain.get(str(base)) or answers(ask, verb, base))
            assert usual is not None, base
            dropped, changes = what_is_dropped(field, base, verb, ask, usual)
            assert dropped is None or field.name in EXEMPT, (field.option, dropped, base)
            if changes:
                break
        else:
            assert field.name in EXEMPT, f"{field.option} changes nothing: give it a value in VALUES"
