"""Slips of the pen: a prefix, a power of ten, bits for bytes, a digit, the neighbour's row, another model's number."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from rooflight.analysis.claims import counts
from rooflight.analysis.claims.case import ClaimCase, Trial, only_for
from rooflight.analysis.claims.claim import Amount
from rooflight.analysis.claims.conventions import conventions, mixed_operations, plain_operations
from rooflight.analysis.claims.estimated_answers import ANSWERS
from rooflight.analysis.claims.ledger_query import ClaimScope, LedgerBook, traced
from rooflight.analysis.claims.model_parts import leaves, module_part, part_of
from rooflight.analysis.claims.result import CannotTell, number_of
from rooflight.analysis.finding import Finding, Number
from rooflight.models import builtin_names

_DIGITS = 5
"""A number must have so many before one that differs is a slip and not another number."""


def _prefixes(case: ClaimCase) -> Iterator[Finding]:
    value = case.number
    for power in (1, 2, 3, 4):
        for factor, text in ((1000**power, "too large"), (Fraction(1, 1000**power), "too small")):
            yield Finding("prefix", f"a prefix is wrong: {1000**power:,} times {text}", value * factor)
    if case.claim.named is not None and case.claim.named.quantity.unit in ("byte", "byte/second"):
        for power in (1, 2, 3):
            text = f"divided by 1,024{'' if power == 1 else f'^{power}'} and not named so"
            yield Finding("prefix", text, value / 1024**power)
        yield Finding("bits-for-bytes", "bits, not bytes", value * 8)
        yield Finding("bytes-for-bits", "divided by 8, as if the value had been in bits", value / 8)


def _tens(case: ClaimCase) -> Iterator[Finding]:
    value = case.number
    for power in (1, 2, -1, -2):
        text = f"{10 ** abs(power)} times too {'large' if power > 0 else 'small'}: a slip of the decimal point"
        yield Finding("off-by-ten", text, value * Fraction(10) ** power)


def _digits(case: ClaimCase) -> Iterator[Finding]:
    """One digit another, or two neighbours swapped, of a number that was given in full."""
    stated, value = case.claim.stated, case.number
    if not isinstance(stated, Amount) or value.denominator != 1 or stated.value.denominator != 1:
        return
    said, right = str(int(stated.value)), str(int(value))
    if len(said) != len(right) or len(right) < _DIGITS:
        return
    places = [i for i, (one, other) in enumerate(zip(said, right, strict=True)) if one != other]
    swapped = len(places) == 2 and places[1] == places[0] + 1 and said[places[0]] == right[places[1]]
    if len(places) == 1 or (swapped and said[places[1]] == right[places[0]]):
        text = f"a digit is wrong: {int(stated.value):,} for {int(value):,}"
        yield Finding("digit-slip", text, stated.value)


def _value_of(scope: ClaimScope, name: str) -> Number | None:
    try:
        return number_of(ANSWERS[name](scope).value)
    except (CannotTell, KeyError):
        return None


def _others(case: ClaimCase) -> Iterator[ClaimScope]:
    """The other layers of the model."""
    ledger = case.scope.ledger
    for module in leaves(ledger):
        if module.path != case.scope.part.name and module not in case.scope.part.modules:
            yield replace(case.scope, part=module_part(ledger, module))


def _neighbours(case: ClaimCase) -> Iterator[Finding]:
    """The value of another layer: rows that were swapped or shifted."""
    if case.scope.part.kind != "module":
        return
    layers: dict[Number, list[str]] = {}
    for scope in _others(case):
        if (value := _value_of(scope, case.name)) and value != case.answer.value:
            layers.setdefault(value, []).append(scope.part.name)
    for value, names in layers.items():
        more = f" and of {len(names) - 1} more" if len(names) > 1 else ""
        yield Finding("another-layer", f"that is the value of {names[0]}{more}", value)


@only_for("flops", "ops", "macs")
def _included(case: ClaimCase) -> Iterator[Finding]:
    """One layer too many in a sum, by any way to count it."""
    if case.scope.part.kind != "type":
        return
    ways = (
        ("", lambda scope: case.times * counts.macs(scope)),
        (" by the way of pthflops", mixed_operations),
        (" by the way of Caffe's tables", plain_operations),
    )
    for scope in _others(case):
        for text, count in ways:
            own, more = Fraction(count(case.scope)), Fraction(count(scope))
            if more:
                said = f"{scope.part.name} is in the sum, and is no {case.scope.part.name}{text}"
                yield Finding("another-layer-included", said, own + more)


# One model's numbers under another's name.


def family(model: str) -> str:
    """`resnet` of `resnet50`."""
    return re.split(r"[\d:_-]", model.lower())[0]


def siblings(model: str) -> list[str]:
    """Built-in models whose name begins alike; they are traced in a few hundredths of a second."""
    return [name for name in builtin_names() if family(name) == family(model) and name != model]


def _models(case: ClaimCase) -> Iterator[Finding]:
    """Of an estimate in inference: its siblings are traced the same way."""
    header, part = case.scope.ledger.header, case.scope.part
    if header.step != "infer" or header.batch is None or case.name not in ANSWERS or part.kind not in ("total", "type"):
        return
    for name in siblings(header.model):
        if (other := traced(name, header.batch)) is None:
            continue
        scope = replace(case.scope, book=LedgerBook(other), part=part_of(other, case.claim.layer))
        answer = ANSWERS[case.name](scope)
        text = f"that is the value of {name}, not of {header.model}"
        yield Finding("another-model", text, answer.value)
        for way in conventions(replace(case, scope=scope, answer=answer)):
            yield Finding(f"another-model+{way.code}", f"{text}, in another convention: {way.text}", way.value)


REMOTE: tuple[Trial, ...] = (_digits, _tens, _prefixes, _neighbours, _included)
COSTLY: tuple[Trial, ...] = (_models,)
