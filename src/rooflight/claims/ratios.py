"""One quantity by another: each side from the ledger, or from the table's own rows where the ledger has none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from rooflight.claims import mistakes
from rooflight.claims.case import Case
from rooflight.claims.claim import Claim
from rooflight.claims.conventions import conventions
from rooflight.claims.matching import matching, states
from rooflight.claims.names import Operand
from rooflight.claims.own import operand_claim
from rooflight.claims.places import place_of
from rooflight.claims.result import Answer, Candidate, CannotTell, Judged
from rooflight.claims.verdicts import Judging, follows, right_value, wrong
from rooflight.errors import BadInput
from rooflight.prediction.sanity.ratios import explain, memory_ratio

_NEAR = 0.15
"""What may be left of a ratio that conventions explain."""
_MEMORY = ("gpu_memory_bytes", "peak_allocated_bytes", "peak_reserved_bytes")


@dataclass(frozen=True)
class _Side:
    """One number of the two. `case` where the ledger has it, `row` where the table states it."""

    name: str
    value: Fraction
    text: str
    case: Case | None
    row: int | None
    stated: Fraction | None
    """By the table, also where the ledger has it."""


def judge_ratio(judging: Judging, claim: Claim) -> Judged:
    assert claim.named is not None and claim.named.parts is not None and claim.stated is not None
    above, below = (_side(judging, claim, operand) for operand in claim.named.parts)
    if not below.value:
        raise CannotTell(f"{below.text} is 0, and nothing is divided by it")
    rows = tuple(side.row for side in (above, below) if side.row is not None and side.case is None)
    value = above.value / below.value
    answer = Answer(value, f"{above.text} / {below.text}", "the ledger" + (" and the table" if rows else ""), rows=rows)
    unlike = _unlike(judging, claim, above, below)
    if states(claim.stated, answer):
        if unlike is not None:
            return Judged(claim=claim, verdict="convention", answer=answer, because=(unlike,))
        reason = "it follows from the table itself" if rows else ""
        return Judged(claim=claim, verdict="right", answer=answer, reason=reason)
    found = _by_own_rows(judging, claim, above, below)
    found += tuple(matching(claim.stated, _mistaken(above, below)))
    if unlike is not None:
        found = (unlike, *found)
    return wrong(claim, answer, _once(found), _explained(claim, value))


def _side(judging: Judging, claim: Claim, operand: Operand) -> _Side:
    one = operand_claim(claim, operand, is_layer=_is_layer(judging, operand.of))
    one = replace(one, quantity=operand.named.written, row=-1)
    name = operand.named.quantity.name
    row = judging.table.find((name,), one)
    stated = None if row is None else row.value
    try:
        case = judging.case(one)
    except CannotTell as why:
        if row is None:
            raise CannotTell(f"{operand.named.written}: {why.reason}", why.needs) from None
        right = right_value(judging.row(row.claim.row))
        made = row if right is None else replace(row, value=right, corrected=True)
        return _Side(name, made.value, str(made), None, row.claim.row, stated)
    value = case.answer.value
    if isinstance(value, (str, tuple)):
        raise CannotTell(f"{operand.named.written} is no number to divide")
    text = f"{operand.named.written} {float(value):,.12g}"
    return _Side(name, Fraction(value), text, case, None if row is None else row.claim.row, stated)


def _is_layer(judging: Judging, of: str) -> bool:
    try:
        place_of(judging.book.ledger, of)
    except CannotTell:
        return False
    return True


def _by_own_rows(judging: Judging, claim: Claim, above: _Side, below: _Side) -> tuple[Candidate, ...]:
    """Does the division follow from the numbers that the table states for both?"""
    if above.stated is None or not below.stated or above.row is None or below.row is None:
        return ()
    how = f"row {above.row} / row {below.row}"
    made = Answer(above.stated / below.stated, how, "the table", rows=(above.row, below.row))
    assert claim.stated is not None
    if not states(claim.stated, made):
        return ()
    others = [code for row in made.rows for found in judging.row(row).because[:1] for code in found.code.split("+")]
    found = follows(judging, made)
    return (replace(found, code="+".join(dict.fromkeys((*found.code.split("+"), *others)))),)


def _mistaken(above: _Side, below: _Side) -> Iterator[Candidate]:
    """What the quotient would be with one of its sides mistaken."""
    for side, other, is_above in ((above, below, True), (below, above, False)):
        if side.case is None:
            continue
        found = (*conventions(side.case), *mistakes.values(side.case, mistakes.LIKELY))
        for candidate in found:
            if isinstance(candidate.value, (str, tuple)) or not candidate.value:
                continue
            value = Fraction(candidate.value)
            made = value / other.value if is_above else other.value / value
            where = "above" if is_above else "below"
            yield Candidate(candidate.code, f"{side.name} {where} the line: {candidate.text}", made)


def _unlike(judging: Judging, claim: Claim, above: _Side, below: _Side) -> Candidate | None:
    """All the memory of a process against one part of what it holds."""
    if above.name not in _MEMORY or below.name != "param_bytes":
        return None
    try:
        found = memory_ratio(float(above.value), judging.book.ledger).finding
    except (BadInput, ZeroDivisionError):
        text = "parameters are a part of what a step keeps: gradients, optimizer state and activations are the rest"
        return Candidate("parameters-for-memory", text, above.value / below.value)
    return Candidate(found.code, found.text, above.value / below.value)


def _explained(claim: Claim, right: Fraction) -> str:
    """Which conventions the stated ratio is made of, beside the right one."""
    stated = getattr(claim.stated, "value", None)
    if not stated or stated <= 0 or right <= 0 or not 1e-9 < stated / right < 1e9:
        return ""
    found = explain(float(stated / right))
    near = found.factors and abs(found.left - 1) < _NEAR
    return f"stated by right: {found.text}" if near else ""


def _once(found: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
    return tuple({candidate.code: candidate for candidate in reversed(found)}.values())[::-1]
