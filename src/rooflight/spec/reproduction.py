"""The command, or Python's call, that makes a ledger again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from rooflight.ledger import Header
from rooflight.spec.command_line import parse, verb_of
from rooflight.spec.fields import Verb
from rooflight.spec.headers import inputs_of, is_live
from rooflight.spec.step import StepSpec


def repeat(header: Header, *, measured: bool) -> str:
    """What makes a ledger again: the command, with what else its own asked of a measurement, or for a live module the
    call."""
    if header.program or header.command.startswith(("rooflight.record(", "rooflight run ")):
        return header.command
    spec = StepSpec.of(header)
    verb: Verb = "measure" if measured else "estimate"
    inputs = inputs_of(header) if is_live(header) else None
    in_python = inputs is not None or spec.has_own
    if in_python and measured:
        is_call = header.command.startswith(f"rooflight.{verb}(")
        return header.command if is_call else spec.python_call(verb, inputs=inputs)
    target = None if header.target == "cuda" else header.target
    if in_python:
        on = None if header.traced_on == "meta" else header.traced_on
        return spec.python_call(verb, inputs=inputs, target=target, on=on)
    if not measured:
        return spec.command(verb, target=target)
    if verb_of(header.command, header.model) != verb:
        return spec.command(verb, on=header.target.partition(":")[0])
    asked = [*_of_measuring(parse(header.command)[1])]
    if header.target == "cpu" and not any(word.startswith("--on") for word in asked):
        asked += ["--on", "cpu"]  # which was all there was
    return shlex.join([*spec.words(verb), *asked])


_MEASURING = ("--on", "--counters", "--level", "--metrics", "--per-kernel", "--spread", "--repeat", "--compile-mode")


def _of_measuring(rest: Sequence[str]) -> Iterator[str]:
    """What says how a step is measured: how it is shown, and where the result went, are no part of how it was made."""
    words = iter(rest)
    for word in words:
        option, equals, _ = word.partition("=")
        if option in _MEASURING:
            yield word
            if not equals and option not in ("--per-kernel", "--spread"):
                yield from [next(words, "")]
