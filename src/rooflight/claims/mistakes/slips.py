"""Slips of the pen: a prefix, a power of ten, bits for bytes, a digit, the neighbour's row."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from rooflight.claims import counts, estimated
from rooflight.claims.amounts import Amount
from rooflight.claims.book import Scope
from rooflight.claims.case import Case, Trial
from rooflight.claims.conventions import mixed_operations, plain_operations
from rooflight.claims.places import Place, leaves
from rooflight.claims.result import Candidate, CannotTell, Number
from rooflight.ledger import is_inside

_DIGITS = 5
"""A number must have so many before one that differs is a slip and not another number."""


def _number(case: Case) -> Fraction:
    value = case.answer.value
    if isinstance(value, (str, tuple)):
        raise CannotTell("no number")
    return Fraction(value)


def _prefixes(case: Case) -> Iterator[Candidate]:
    value = _number(case)
    for power in (1, 2, 3, 4):
        for factor, text in ((1000**power, "too large"), (Fraction(1, 1000**power), "too small")):
            yield Candidate("prefix", f"a prefix is wrong: {1000**power:,} times {text}", value * factor)
    if case.claim.named is not None and case.claim.named.quantity.dimension in ("byte", "byte/s"):
        for power in (1, 2, 3):
            yield Candidate("prefix", f"divided by 1,024{'' if power == 1 else f'^{power}'} and not named so",
                            value / 1024**power)  # fmt: skip
        yield Candidate("bits-for-bytes", "bits, not bytes", value * 8)
        yield Candidate("bytes-for-bits", "divided by 8, as if the value had been in bits", value / 8)


def _tens(case: Case) -> Iterator[Candidate]:
    value = _number(case)
    for power in (1, 2, -1, -2):
        text = f"{10 ** abs(power)} times too {'large' if power > 0 else 'small'}: a slip of the decimal point"
        yield Candidate("off-by-ten", text, value * Fraction(10) ** power)


def _digits(case: Case) -> Iterator[Candidate]:
    """One digit another, or two neighbours swapped, of a number that was given in full."""
    stated, value = case.claim.stated, _number(case)
    if not isinstance(stated, Amount) or value.denominator != 1 or stated.value.denominator != 1:
        return
    said, right = str(int(stated.value)), str(int(value))
    if len(said) != len(right) or len(right) < _DIGITS:
        return
    places = [i for i, (one, other) in enumerate(zip(said, right, strict=True)) if one != other]
    swapped = len(places) == 2 and places[1] == places[0] + 1 and said[places[0]] == right[places[1]]
    if len(places) == 1 or (swapped and said[places[1]] == right[places[0]]):
        text = f"a digit is wrong: {int(stated.value):,} for {int(value):,}"
        yield Candidate("digit-slip", text, stated.value)


def _value_of(scope: Scope, name: str) -> Number | None:
    try:
        value = estimated.ANSWERS[name](scope).value
    except (CannotTell, KeyError):
        return None
    return None if isinstance(value, (str, tuple)) else value


def _others(case: Case) -> Iterator[Scope]:
    """The other layers of the model."""
    ledger = case.scope.ledger
    for module in leaves(ledger):
        if module.path != case.scope.place.name and module not in case.scope.place.modules:
            ops = tuple(op for op in ledger.ops if op.kind != "view" and is_inside(op.module, module.path))
            place = Place(module.path, "module", (module,), ops)
            yield Scope(case.scope.book, case.name, place, case.scope.step, case.scope.batch, case.scope.metric)


def _neighbours(case: Case) -> Iterator[Candidate]:
    """The value of another layer: rows that were swapped or shifted."""
    if case.scope.place.kind != "module":
        return
    layers: dict[Number, list[str]] = {}
    for scope in _others(case):
        if (value := _value_of(scope, case.name)) and value != case.answer.value:
            layers.setdefault(value, []).append(scope.place.name)
    for value, names in layers.items():
        more = f" and of {len(names) - 1} more" if len(names) > 1 else ""
        yield Candidate("another-layer", f"that is the value of {names[0]}{more}", value)


def _included(case: Case) -> Iterator[Candidate]:
    """One layer too many in a sum, by any way to count it."""
    if case.scope.place.kind != "type" or case.name not in ("flops", "ops", "macs"):
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
                said = f"{scope.place.name} is in the sum, and is no {case.scope.place.name}{text}"
                yield Candidate("another-layer-included", said, own + more)


REMOTE: tuple[Trial, ...] = (_digits, _tens, _prefixes, _neighbours, _included)
