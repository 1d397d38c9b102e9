"""One quantity by another: each side from the ledger, or from the table's own rows where the ledger has none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from rooflight.analysis.claims import device_figures, matching, mistakes
from rooflight.analysis.claims.claim import Answer, CannotTell, Claim, JudgedClaim, number_of, right, right_by, wrong
from rooflight.analysis.claims.conventions import ClaimCase, conventions, tried
from rooflight.analysis.claims.model_parts import part_of
from rooflight.analysis.claims.quantities import QUANTITIES
from rooflight.analysis.claims.quantity_names import Operand
from rooflight.analysis.claims.row_inference import Ingredient
from rooflight.analysis.finding import Finding
from rooflight.analysis.sanity.ratios import explain, memory_ratio
from rooflight.errors import BadInput

if TYPE_CHECKING:
    from rooflight.analysis.claims.judging import ClaimsJudge

_NEAR = 0.15
"""What may be left of a ratio that conventions explain."""
_IN_USE = ("gpu_memory_bytes", "peak_allocated_bytes", "peak_reserved_bytes")


@dataclass(frozen=True)
class RatioSide:
    """One number of the two. `case` where the ledger has it, `row` where the table states it."""

    name: str
    value: Fraction
    low: Fraction
    high: Fraction
    text: str
    case: ClaimCase | None = None
    row: int | None = None
    stated: Ingredient | None = None
    """By the table, also where the ledger has it."""
    mistaken: tuple[Finding, ...] = ()
    """What else it may have been taken for."""


def judged_ratio(judge: ClaimsJudge, claim: Claim) -> JudgedClaim:
    assert claim.named is not None and claim.named.parts is not None
    above, below = (_side(judge, claim, operand) for operand in claim.named.parts)
    if below.low <= 0 or not below.value:
        raise CannotTell(f"{below.text} is 0, and nothing is divided by it")
    rows = tuple(side.row for side in (above, below) if side.row is not None and side.case is None)
    value, origin = above.value / below.value, "the ledger" + (" and the table" if rows else "")
    low, high = above.low / below.high, above.high / below.low
    answer = Answer(value, f"{above.text} / {below.text}", origin, low, high, rows=rows)
    unlike = _unlike(judge, claim, above, below)
    if matching.states(claim.stated, answer):
        if unlike is not None:
            return right_by(claim, answer, unlike)
        return right(claim, answer, "it follows from the table itself" if rows else "")
    mistaken = matching.matching(claim.stated, _mistaken(above, below))
    findings = (
        *filter(None, [unlike, _inverted(claim, above, below)]),
        *_by_own_rows(judge, claim, above, below),
        *mistaken,
    )
    return wrong(claim, answer, *_once(findings), reason=_explained(claim, value) if _is_of_work(above, below) else "")


def _side(judge: ClaimsJudge, claim: Claim, operand: Operand) -> RatioSide:
    side = replace(
        claim, named=operand.named, device=operand.on or claim.device, quantity=operand.named.written, row=-1
    )
    if operand.of:
        is_layer = _is_layer(judge, claim, operand.of)
        side = replace(side, layer=operand.of) if is_layer else replace(side, model=operand.of)
    name = operand.named.quantity.name
    row = judge.table.find((name,), side)
    if name in device_figures.FIGURES:
        return _figure(judge, side, row)
    try:
        case = judge.case(side)
    except CannotTell as why:
        if row is None:
            raise CannotTell(f"{operand.named.written}: {why.reason}", why.needs) from None
        meant = judge.judged(row.claim)
        if meant.right_value is not None:
            text = f"{float(meant.right_value):,.12g} (what row {row.claim.row} should say)"
            return RatioSide(name, *(meant.right_value,) * 3, text, None, row.claim.row, row)
        return RatioSide(name, row.value, *row.ends, str(row), None, row.claim.row, row)
    value = number_of(case.answer.value)
    if value is None:
        raise CannotTell(f"{operand.named.written} is no number to divide")
    low, high = (value if end is None else Fraction(end) for end in (case.answer.low, case.answer.high))
    text = f"{operand.named.written} {float(value):,.12g}"
    return RatioSide(name, value, low, high, text, case, None if row is None else row.claim.row, row)


def _figure(judge: ClaimsJudge, side: Claim, row: Ingredient | None) -> RatioSide:
    """A figure of a device: as the table has it, where that is right."""
    if row is None:
        row = next(iter(judge.table.peaks(side)), None) if side.name == "peak" else None
    is_wrong = row is not None and judge.judged(row.claim).verdict == "wrong"
    if row is not None and (not is_wrong or not side.device):
        return RatioSide(side.name, row.value, *row.ends, str(row), None, row.claim.row, row)
    answer = device_figures.figures_of(side)[0]
    low, high = (Fraction(answer.number if end is None else end) for end in (answer.low, answer.high))
    slips: tuple[Finding, ...] = ()
    if side.name == "peak":
        used = device_figures.used_peaks(side, side.precision or "fp32")
        slips = tuple(replace(peak.flaw, value=peak.flops_per_s) for peak in used if peak.flaw is not None)
    number = None if row is None else row.claim.row
    return RatioSide(side.name, answer.number, low, high, answer.how, None, number, row, slips)


def _is_layer(judge: ClaimsJudge, claim: Claim, of: str) -> bool:
    try:
        part_of(judge.book(claim).ledger, of)
    except CannotTell:
        return False
    return True


def _by_own_rows(judge: ClaimsJudge, claim: Claim, above: RatioSide, below: RatioSide) -> tuple[Finding, ...]:
    """Does the division follow from the numbers that the table states for both?"""
    over, under = above.stated, below.stated
    if over is None or under is None or under.ends[0] <= 0:
        return ()
    rows = (over.claim.row, under.claim.row)
    low, high = over.ends[0] / under.ends[1], over.ends[1] / under.ends[0]
    quotient = Answer(over.value / under.value, f"row {rows[0]} / row {rows[1]}", "the table", low, high, rows=rows)
    if not matching.states(claim.stated, quotient):
        return ()
    others = [code for row in quotient.rows for cause in judge.row(row).because[:1] for code in cause.codes]
    finding = judge.follows(quotient)
    return (replace(finding, code="+".join(dict.fromkeys((*finding.codes, *others)))),)


def _mistaken(above: RatioSide, below: RatioSide) -> Iterator[Finding]:
    """What the quotient would be with one of its sides mistaken."""
    for side, other, is_above in ((above, below, True), (below, above, False)):
        where = "above" if is_above else "below"
        slips = () if side.case is None else (*conventions(side.case), *tried(mistakes.LIKELY, side.case))
        for finding in (*slips, *side.mistaken):
            if value := number_of(finding.value):
                quotient = value / other.value if is_above else other.value / value
                yield Finding(finding.code, f"{side.name} {where} the line: {finding.text}", quotient)


def _unlike(judge: ClaimsJudge, claim: Claim, above: RatioSide, below: RatioSide) -> Finding | None:
    """All the memory of a process against one part of what it holds."""
    if above.name not in _IN_USE or below.name != "param_bytes":
        return None
    try:
        text = memory_ratio(float(above.value), judge.book(claim).ledger).finding.text
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


def _is_of_work(above: RatioSide, below: RatioSide) -> bool:
    """Multiply-adds and FLOPs are told apart where one of both is divided."""
    return any(QUANTITIES[side.name].unit in ("flop", "mac", "flop/second") for side in (above, below))


def _inverted(claim: Claim, above: RatioSide, below: RatioSide) -> Finding | None:
    if not above.value or not matching.is_value(claim.stated, below.value / above.value):
        return None
    return Finding("ratio-inverted", "that is the inverse: the second by the first", below.value / above.value)


def _once(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    return tuple({finding.code: finding for finding in reversed(findings)}.values())[::-1]
