"""One quantity by another: each side from the ledger, or from the table's own rows where the ledger has none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from rooflight.analysis.claims import mistakes
from rooflight.analysis.claims.case import ClaimCase, Judging, follows
from rooflight.analysis.claims.claim import Claim
from rooflight.analysis.claims.conventions import conventions
from rooflight.analysis.claims.matching import matching, states
from rooflight.analysis.claims.model_parts import part_of
from rooflight.analysis.claims.quantities import Operand
from rooflight.analysis.claims.result import Answer, CannotTell, JudgedClaim, number_of, right, right_by, wrong
from rooflight.analysis.claims.row_inference import operand_claim
from rooflight.analysis.finding import Finding
from rooflight.analysis.sanity.ratios import explain, memory_ratio
from rooflight.errors import BadInput

_NEAR = 0.15
"""What may be left of a ratio that conventions explain."""
_MEMORY = ("gpu_memory_bytes", "peak_allocated_bytes", "peak_reserved_bytes")


@dataclass(frozen=True)
class RatioSide:
    """One number of the two. `case` where the ledger has it, `row` where the table states it."""

    name: str
    value: Fraction
    text: str
    case: ClaimCase | None
    row: int | None
    stated: Fraction | None
    """By the table, also where the ledger has it."""


def judge_ratio(judging: Judging, claim: Claim) -> JudgedClaim:
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
            return right_by(claim, answer, unlike)
        return right(claim, answer, "it follows from the table itself" if rows else "")
    mistaken = matching(claim.stated, _mistaken(above, below))
    findings = (*filter(None, [unlike]), *_by_own_rows(judging, claim, above, below), *mistaken)
    return wrong(claim, answer, *_once(findings), reason=_explained(claim, value))


def _side(judging: Judging, claim: Claim, operand: Operand) -> RatioSide:
    side = operand_claim(claim, operand, is_layer=_is_layer(judging, operand.of))
    side = replace(side, quantity=operand.named.written, row=-1)
    name = operand.named.quantity.name
    row = judging.table.find((name,), side)
    stated = None if row is None else row.value
    try:
        case = judging.case(side)
    except CannotTell as why:
        if row is None:
            raise CannotTell(f"{operand.named.written}: {why.reason}", why.needs) from None
        meant = judging.row(row.claim.row).right_value
        row = row if meant is None else replace(row, value=meant, corrected=True)
        return RatioSide(name, row.value, str(row), None, row.claim.row, stated)
    value = number_of(case.answer.value)
    if value is None:
        raise CannotTell(f"{operand.named.written} is no number to divide")
    text = f"{operand.named.written} {float(value):,.12g}"
    return RatioSide(name, value, text, case, None if row is None else row.claim.row, stated)


def _is_layer(judging: Judging, of: str) -> bool:
    try:
        part_of(judging.book.ledger, of)
    except CannotTell:
        return False
    return True


def _by_own_rows(judging: Judging, claim: Claim, above: RatioSide, below: RatioSide) -> tuple[Finding, ...]:
    """Does the division follow from the numbers that the table states for both?"""
    if above.stated is None or not below.stated or above.row is None or below.row is None:
        return ()
    how = f"row {above.row} / row {below.row}"
    quotient = Answer(above.stated / below.stated, how, "the table", rows=(above.row, below.row))
    assert claim.stated is not None
    if not states(claim.stated, quotient):
        return ()
    others = [code for row in quotient.rows for cause in judging.row(row).because[:1] for code in cause.codes]
    finding = follows(judging, quotient)
    return (replace(finding, code="+".join(dict.fromkeys((*finding.codes, *others)))),)


def _mistaken(above: RatioSide, below: RatioSide) -> Iterator[Finding]:
    """What the quotient would be with one of its sides mistaken."""
    for side, other, is_above in ((above, below, True), (below, above, False)):
        if side.case is None:
            continue
        where = "above" if is_above else "below"
        for finding in (*conventions(side.case), *mistakes.values(side.case, mistakes.LIKELY)):
            if value := number_of(finding.value):
                quotient = value / other.value if is_above else other.value / value
                yield Finding(finding.code, f"{side.name} {where} the line: {finding.text}", quotient)


def _unlike(judging: Judging, claim: Claim, above: RatioSide, below: RatioSide) -> Finding | None:
    """All the memory of a process against one part of what it holds."""
    if above.name not in _MEMORY or below.name != "param_bytes":
        return None
    try:
        text = memory_ratio(float(above.value), judging.book.ledger).finding.text
    except (BadInput, ZeroDivisionError):
        text = "parameters are a part of what a step keeps: gradients, optimizer state and activations are the rest"
    return Finding("parameters-for-memory", text, above.value / below.value)


def _explained(claim: Claim, value: Fraction) -> str:
    """Which conventions the stated ratio is made of, beside the right one."""
    stated = getattr(claim.stated, "value", None)
    if not stated or stated <= 0 or value <= 0 or not 1e-9 < stated / value < 1e9:
        return ""
    ratio = explain(float(stated / value))
    return f"stated by right: {ratio.text}" if ratio.factors and abs(ratio.left - 1) < _NEAR else ""


def _once(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    return tuple({finding.code: finding for finding in reversed(findings)}.values())[::-1]
