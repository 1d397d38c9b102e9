"""Is a value what a row states, as far as its digits go? And which of many candidates are?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import islice
from math import floor, log10

from rooflight.claims import mistakes
from rooflight.claims.amounts import Amount, Shape, Stated, Word
from rooflight.claims.case import Case
from rooflight.claims.conventions import conventions, prefixes
from rooflight.claims.estimated import ANSWERS
from rooflight.claims.result import Answer, Candidate, CannotTell, Value

_TWINS = {"flops": "macs", "ops": "macs", "macs": "flops"}
MOST_SPREAD = Fraction(1, 200)
"""A number given so roughly is anybody's: far-fetched mistakes are not looked for."""
NEAR = Fraction(1, 100)
MOST = 3
"""So many explanations of one value are named: with more, none says anything."""
_DIGITS_BEFORE = (2, 3, 4)
"""To so many digits somebody may have rounded before multiplying."""


def states(stated: Stated, answer: Answer) -> bool:
    """Within the digits that were given, and the range that was measured."""
    value = answer.value
    if isinstance(stated, Amount) and not isinstance(value, (str, tuple)):
        low, high = (value if end is None else end for end in (answer.low, answer.high))
        return stated.touches(low, high)
    return is_value(stated, value)


def is_value(stated: Stated, value: Value) -> bool:
    if isinstance(stated, Shape) and isinstance(value, tuple):
        return stated.sizes == (value[1:] if stated.any_batch else value) or stated.sizes == value[1:]
    if isinstance(stated, Word) and isinstance(value, str):
        return stated.text.lower() == value.lower()
    return isinstance(stated, Amount) and not isinstance(value, (str, tuple)) and stated.holds(value)


def _rounded_before(stated: Amount, found: Candidate) -> Candidate | None:
    """0.22 MB x 64 for 221,440 B x 64."""
    if found.by is None or isinstance(found.value, (str, tuple)) or not found.value:
        return None
    unit = Fraction(found.value) / found.by
    for digits in _DIGITS_BEFORE:
        step = Fraction(10) ** (floor(log10(abs(unit))) - digits + 1)
        short = round(unit / step) * step
        if stated.holds(short * found.by):
            return replace(found, text=f"{found.text}; and it was rounded to {digits} digits before that")
    return None


def matching(stated: Stated, found: Iterable[Candidate]) -> Iterator[Candidate]:
    """Those that give what is stated; a bound is given by too many."""
    if isinstance(stated, Amount) and (stated.low is None or stated.high is None):
        return
    for candidate in found:
        if is_value(stated, candidate.value):
            yield candidate
        elif isinstance(stated, Amount) and (rounded := _rounded_before(stated, candidate)) is not None:
            yield rounded


def by_convention(case: Case) -> tuple[Candidate, ...]:
    """The convention under which the row is right: the simplest, where its digits fit several."""
    stated = case.claim.stated
    assert stated is not None
    if (simplest := next(matching(stated, conventions(case)), None)) is not None:
        return (simplest,)
    if (plain := by_prefix(stated, case.answer)) is not None:
        return (plain,)
    found = (_with_prefix(row, text) for meant, text in _meant(stated) for row in matching(meant, conventions(case)))
    return tuple(islice(found, 1))


def forward_alone(case: Case) -> tuple[Candidate, ...]:
    """Is a number of a training step that of its forward as well? The multiply-adds of a first layer always are."""
    stated = case.claim.stated
    assert stated is not None
    found = matching(stated, mistakes.values(case, (mistakes.formulas.phases,)))
    return tuple(row for row in found if row.code == "forward-for-training")


def by_prefix(stated: Stated, answer: Answer) -> Candidate | None:
    """Is it right with another kind of prefix?"""
    found = (Candidate("binary-prefix", text, answer.value) for meant, text in _meant(stated) if states(meant, answer))
    return next(found, None)


def _meant(stated: Stated) -> Iterator[tuple[Amount, str]]:
    """What the digits are with other prefixes."""
    if isinstance(stated, Amount):
        for factor, text in prefixes(stated):
            yield stated.times(factor), text


def _with_prefix(found: Candidate, text: str) -> Candidate:
    return replace(found, code=f"{found.code}+binary-prefix", text=f"{found.text}; and {text}")


def by_mistake(case: Case) -> tuple[Candidate, ...]:
    """The mistakes that give the value: the likely ones, then those in another convention, then the remote ones."""
    stated = case.claim.stated
    assert stated is not None
    if found := _once(matching(stated, mistakes.values(case, mistakes.LIKELY))):
        return found
    if (twin := _twin(case)) is not None:
        called = "multiply-adds called FLOPs" if twin.name == "macs" else "FLOPs called multiply-adds"
        code = "macs-for-flops" if twin.name == "macs" else "flops-for-macs"
        made = matching(stated, mistakes.values(twin, mistakes.LIKELY))
        if found := _once(
            replace(row, code=f"{row.code}+{code}", text=f"{row.text}; and they are {called}") for row in made
        ):
            return found
    likely = tuple(mistakes.values(case, mistakes.LIKELY))
    return _once(_with_prefix(row, text) for meant, text in _meant(stated) for row in matching(meant, likely))


def by_remote_mistake(case: Case) -> tuple[Candidate, ...]:
    stated = case.claim.stated
    assert stated is not None
    if isinstance(stated, Amount) and stated.spread > MOST_SPREAD:
        return ()
    remote = _once(matching(stated, mistakes.values(case, mistakes.REMOTE)))
    return remote or _once(matching(stated, mistakes.values(case, mistakes.COSTLY)))


def nearest(case: Case) -> str:
    """The mistake that comes nearest, where none gives the value: somebody may have rounded on the way."""
    stated, right = case.claim.stated, case.answer.value
    if not isinstance(stated, Amount) or not stated.value or isinstance(right, (str, tuple)) or not right:
        return ""
    best, apart = None, min(NEAR, abs(stated.value / Fraction(right) - 1))
    for found in (*conventions(case), *mistakes.values(case, mistakes.LIKELY)):
        if isinstance(found.value, (str, tuple)) or not found.value:
            continue
        by = abs(stated.value / Fraction(found.value) - 1)
        if by < apart:
            best, apart = found, by
    return "" if best is None else f"the nearest gives a value {100 * float(apart):.2g}% off: {best.text}"


def _twin(case: Case) -> Case | None:
    """The same row, had FLOPs been multiply-adds."""
    name = _TWINS.get(case.name)
    if name is None:
        return None
    try:
        answer = ANSWERS[name](case.scope.of(name))
    except CannotTell:
        return None
    return case.of(name, answer) if answer.value else None


def _once(found: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """Each that says something of its own."""
    by_text: dict[tuple[str, str], Candidate] = {}
    for candidate in found:
        by_text.setdefault((candidate.code, candidate.text), candidate)
    return tuple(islice(by_text.values(), MOST))
