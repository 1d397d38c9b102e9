"""Is a value what a row states, as far as its digits go? And which of many candidates are?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import islice
from math import floor, log10

from rooflight.analysis.claims import formula_mistakes, mistakes
from rooflight.analysis.claims.claim import Amount, Answer, CannotTell, Shape, Stated, number_of
from rooflight.analysis.claims.conventions import ClaimCase, conventions, prefixes, tried
from rooflight.analysis.claims.estimated_answers import ANSWERS
from rooflight.analysis.finding import Finding, FoundValue
from rooflight.formatting import count, seconds

MOST_SPREAD = Fraction(1, 200)
"""A number given so roughly is anybody's: far-fetched mistakes are not looked for."""
NEAR = Fraction(1, 100)
MOST = 3
"""So many explanations of one value are named: with more, none says anything."""
_DIGITS_BEFORE = (2, 3, 4)
"""To so many digits somebody may have rounded before multiplying."""


def states(stated: Stated | None, answer: Answer) -> bool:
    """Within the digits that were given, and the range that was measured."""
    value = number_of(answer.value)
    if isinstance(stated, Amount) and value is not None:
        low, high = (value if end is None else end for end in (answer.low, answer.high))
        return stated.touches(low, high)
    return is_value(stated, answer.value)


def inside(stated: Stated | None, answer: Answer) -> str:
    """What is said of a value that is right by the spread of a measurement alone."""
    if answer.low is None or answer.high is None or is_value(stated, answer.value):
        return ""
    low, high, value = (float(end) for end in (answer.low, answer.high, answer.number))
    if not isinstance(stated, Amount) or "device" in answer.origin or high - low < value * float(MOST_SPREAD):
        return ""
    if stated.amount_near(answer.number, MOST_SPREAD):
        return ""
    unit = {"second": seconds}.get(stated.unit.base, count)
    return f"inside the spread of the measurement, {unit(low)} to {unit(high)}; its median is {unit(value)}"


def is_value(stated: Stated | None, value: FoundValue | None) -> bool:
    if isinstance(stated, Shape) and isinstance(value, tuple):
        return stated.sizes == (value[1:] if stated.any_batch else value) or stated.sizes == value[1:]
    if isinstance(stated, str) and isinstance(value, str):
        return stated.lower() == value.lower()
    number = number_of(value)
    return isinstance(stated, Amount) and number is not None and stated.holds(number)


def _rounded_before(stated: Amount, finding: Finding) -> Finding | None:
    """0.22 MB x 64 for 221,440 B x 64."""
    value = number_of(finding.value)
    if finding.by is None or not value:
        return None
    unit = value / finding.by
    for digits in _DIGITS_BEFORE:
        step = Fraction(10) ** (floor(log10(abs(unit))) - digits + 1)
        if stated.holds(round(unit / step) * step * finding.by):
            return replace(finding, text=f"{finding.text}; and it was rounded to {digits} digits before that")
    return None


def matching(stated: Stated | None, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Those that give what is stated; a bound is given by too many."""
    if stated is None or (isinstance(stated, Amount) and (stated.low is None or stated.high is None)):
        return
    for finding in findings:
        if is_value(stated, finding.value):
            yield finding
        elif isinstance(stated, Amount) and (rounded := _rounded_before(stated, finding)) is not None:
            yield rounded


def by_convention(case: ClaimCase) -> tuple[Finding, ...]:
    """The convention under which the row is right: the simplest, where its digits fit several."""
    stated = case.claim.stated
    if (simplest := next(matching(stated, conventions(case)), None)) is not None:
        return (simplest,)
    if (plain := by_prefix(stated, case.answer)) is not None:
        return (plain,)
    return tuple(islice(_with_other_prefix(stated, conventions(case)), 1))


def forward_alone(case: ClaimCase) -> tuple[Finding, ...]:
    """Is a number of a training step that of its forward as well? The multiply-adds of a first layer always are."""
    forwards = matching(case.claim.stated, tried((formula_mistakes.phases,), case))
    return tuple(finding for finding in forwards if finding.code == "forward-for-training")


def by_prefix(stated: Stated | None, answer: Answer) -> Finding | None:
    """Is it right with another kind of prefix?"""
    meant = (text for amount, text in prefixes(stated) if states(amount, answer))
    return next((Finding("binary-prefix", text, answer.value) for text in meant), None)


def _with_other_prefix(stated: Stated | None, findings: Iterable[Finding]) -> Iterator[Finding]:
    findings = tuple(findings)
    for amount, text in prefixes(stated):
        for finding in matching(amount, findings):
            yield finding.also("binary-prefix", text)


_TWINS = {
    "flops": ("macs", "macs-for-flops", "they are multiply-adds called FLOPs"),
    "ops": ("macs", "macs-for-flops", "they are multiply-adds called FLOPs"),
    "macs": ("flops", "flops-for-macs", "they are FLOPs called multiply-adds"),
}
"""What a count of work may be instead, and what is said then."""


def by_mistake(case: ClaimCase) -> tuple[Finding, ...]:
    """The mistakes that give the value: the likely ones, then those in another convention."""
    stated, likely = case.claim.stated, tuple(tried(mistakes.LIKELY, case))
    slips = tuple(Finding("prefix", text, case.answer.value) for amount, text in prefixes(stated, with_binary=True)
                  if states(amount, case.answer))  # fmt: skip
    found = _once(matching(stated, likely)) or _once(_as_twin(case))
    return found or slips or _once(_with_other_prefix(stated, likely))


def _as_twin(case: ClaimCase) -> Iterator[Finding]:
    """The likely mistakes that give the value, had FLOPs been multiply-adds."""
    if case.name not in _TWINS:
        return
    name, code, text = _TWINS[case.name]
    scope = case.scope.of(name)
    try:
        value = ANSWERS[name](scope).value
    except CannotTell:
        return
    if value:
        for finding in matching(case.claim.stated, tried(mistakes.LIKELY, case.of(scope, value))):
            yield finding.also(code, text)


def by_remote_mistake(case: ClaimCase) -> tuple[Finding, ...]:
    stated = case.claim.stated
    if isinstance(stated, Amount) and stated.spread > MOST_SPREAD:
        return ()
    remote = _once(matching(stated, tried(mistakes.REMOTE, case)))
    return remote or _once(matching(stated, tried(mistakes.COSTLY, case)))


def nearest(case: ClaimCase) -> str:
    """The mistake that comes nearest, where none gives the value: somebody may have rounded on the way."""
    stated, right = case.claim.stated, number_of(case.answer.value)
    if not isinstance(stated, Amount) or not stated.value or not right:
        return ""
    best, apart = None, min(NEAR, abs(stated.value / right - 1))
    for finding in (*conventions(case), *tried(mistakes.LIKELY, case)):
        value = number_of(finding.value)
        if value and (by := abs(stated.value / value - 1)) < apart:
            best, apart = finding, by
    return "" if best is None else f"the nearest gives a value {100 * float(apart):.2g}% off: {best.text}"


def _once(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Each that says something of its own."""
    by_text: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        by_text.setdefault((finding.code, finding.text), finding)
    return tuple(islice(by_text.values(), MOST))
