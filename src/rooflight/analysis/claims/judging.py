"""Judges rows one by one: the ledger's answer, then conventions, then mistakes, then what the table itself says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from rooflight.analysis.claims import (
    device_claims,
    estimated_answers,
    matching,
    measured_answers,
    mistakes,
)
from rooflight.analysis.claims.claim import (
    Amount,
    Answer,
    CannotTell,
    Claim,
    JudgedClaim,
    number_of,
    right,
    right_by,
    unknown,
    wrong,
)
from rooflight.analysis.claims.conventions import ClaimCase, conventions, tried
from rooflight.analysis.claims.ledger_query import LedgerBook, device_of, scope_of
from rooflight.analysis.claims.model_parts import part_of
from rooflight.analysis.claims.quantities import QUANTITIES, Operand, misspelt_counter
from rooflight.analysis.claims.row_inference import ClaimTable
from rooflight.analysis.finding import Finding
from rooflight.analysis.sanity.ratios import explain, memory_ratio
from rooflight.errors import BadInput

_NEAR = 0.15
"""What may be left of a ratio that conventions explain."""
_IN_USE = ("gpu_memory_bytes", "peak_allocated_bytes", "peak_reserved_bytes")
_MEMORY = ("peak_allocated_bytes", "peak_reserved_bytes", "gpu_memory_bytes", "param_bytes", "output_bytes",
           "total_size")  # fmt: skip
"""What people call memory."""


class ClaimsJudge:
    """A ledger and a table. Rows may follow from others, so each is judged when it is first asked for."""

    def __init__(self, book: LedgerBook, claims: Sequence[Claim]) -> None:
        self.book = book
        self.table = ClaimTable(claims, book.ledger.header.model, book.ledger.header.batch)
        self._judged: dict[int, JudgedClaim] = {}

    def judged(self, claim: Claim) -> JudgedClaim:
        if claim.row not in self._judged:
            # What it says while it is being judged.
            self._judged[claim.row] = unknown(claim, "the row follows from itself by way of others")
            self._judged[claim.row] = self._judge(claim)
        return self._judged[claim.row]

    def row(self, number: int) -> JudgedClaim:
        return self.judged(next(claim for claim in self.table.claims if claim.row == number))

    def _judge(self, claim: Claim) -> JudgedClaim:
        if claim.unreadable:
            return JudgedClaim(claim=claim, verdict="unreadable", reason=claim.trouble)
        if claim.named is None or claim.stated is None:
            return unknown(claim, claim.trouble)
        try:
            return _JUDGES.get(claim.name, ClaimsJudge._answered)(self, claim)
        except CannotTell as why:
            return unknown(claim, why.reason, why.needs)

    # What the ledger answers.

    def case(self, claim: Claim) -> ClaimCase:
        """The row with the ledger's answer; raises `CannotTell`."""
        assert claim.named is not None
        name = _meant(claim)
        scope = scope_of(self.book, claim, name, metric=claim.named.metric, per_sample=claim.named.per_sample)
        if name in estimated_answers.ANSWERS and not (name == "growth_bytes" and self.book.is_measured):
            estimated_answers.check_known(scope)
            answer = estimated_answers.ANSWERS[name](scope)
        else:
            measured_answers.check_run(self.book, claim, device_of(claim))
            if name not in measured_answers.ANSWERS:
                raise CannotTell("whose time it is must be said: wall time, GPU-busy time or kernel time")
            answer = measured_answers.ANSWERS[name](scope)
        return ClaimCase(claim, scope, answer, self.table)

    def _answered(self, claim: Claim) -> JudgedClaim:
        try:
            if claim.name == "intensity" and claim.device:  # formulas tell it as well, but this is of a run there
                measured_answers.check_run(self.book, claim, device_of(claim))
            case = self.case(claim)
        except CannotTell as why:
            return self._without_ledger(claim, why)
        if case.name == "intensity" and measured_answers.is_own(case.scope, device_of(claim)):
            return self._intensity(case)
        return self.compared(case)

    def _intensity(self, case: ClaimCase) -> JudgedClaim:
        """Of a measured part as counted or by formula: both are right, and which one is said."""
        formula, counted = case.answer, tuple(measured_answers.intensities(case.scope))
        ways = [(answer, f"as counted: {answer.how}") for answer in counted]
        for answer, which in (*ways, (formula, f"by formula: {formula.how}")):
            if matching.states(case.claim.stated, answer):
                return right(case.claim, answer, which)
        if counted:
            how = f"{counted[0].how}; by formula it is {float(formula.number):.4g}: {formula.how}"
            case = replace(case, answer=replace(counted[0], how=how))
        return self.compared(case)

    def compared(self, case: ClaimCase) -> JudgedClaim:
        """The verdict on a row that the ledger answers."""
        claim, answer = case.claim, case.answer
        if matching.states(claim.stated, answer):
            return right(claim, answer)
        if ways := matching.by_convention(case):
            also = matching.forward_alone(case)
            return replace(right_by(claim, answer, *ways, *also), ambiguous=bool(also))
        because = matching.by_mistake(case) or self._by_own_rows(claim) or matching.by_remote_mistake(case)
        reason = "" if because else matching.nearest(case)
        return replace(wrong(claim, answer, *because, reason=reason), ambiguous=len(because) > 1)

    def _by_own_rows(self, claim: Claim) -> tuple[Finding, ...]:
        """A value that is only as wrong as the rows it was made of."""
        inferred = self.table.follows(claim)
        is_followed = inferred is not None and matching.states(claim.stated, inferred)
        return (self.follows(inferred),) if inferred is not None and is_followed else ()

    def follows(self, inferred: Answer) -> Finding:
        """That a value is only as wrong as the rows it was made of."""
        wrongs = [row for row in map(self.row, inferred.rows) if row.verdict == "wrong"]
        numbers = ", ".join(str(row.claim.row) for row in wrongs[:6]) + (", ..." if len(wrongs) > 6 else "")
        codes = [code for row in wrongs for finding in row.because[:1] for code in finding.codes]
        text = f"it follows from its own rows ({inferred.how})"
        if wrongs:
            text += f", of which {numbers} {'is' if len(wrongs) == 1 else 'are'} wrong"
        return Finding("+".join(dict.fromkeys(("follows-from-its-rows", *codes))), text, inferred.value)

    # What only the table answers.

    def _without_ledger(self, claim: Claim, why: CannotTell) -> JudgedClaim:
        inferred = self.table.follows(claim)
        if inferred is not None:
            return self._followed(claim, inferred, why)
        missed = device_claims.tensor_work(self, claim)
        if missed is not None:
            return wrong(claim, *missed)
        if claim.name == "workspace_bytes" and (winograd := device_claims.workspace(self, claim)) is not None:
            return right(claim, winograd, why.reason)
        reason = why.reason
        if claim.name == "time" and self.book.is_measured:
            times = measured_answers.scopes_of_time(scope_of(self.book, claim, "wall_time"))
            if (time := next(matching.matching(claim.stated, times), None)) is not None:
                reason += f"; the value is that of {time.text}"
        return unknown(claim, reason, why.needs)

    def _memory(self, claim: Claim) -> JudgedClaim:
        """Memory that does not say whose: never judged, but told what it would be."""
        assert claim.named is not None
        meant = []
        for name in _MEMORY:
            try:
                case = self.case(replace(claim, named=replace(claim.named, quantity=QUANTITIES[name])))
            except CannotTell:
                continue
            if matching.states(claim.stated, case.answer) or matching.by_prefix(claim.stated, case.answer) is not None:
                meant.append(name)
        said = f"; the value is that of {' and of '.join(meant)}" if meant else ""
        return unknown(claim, f"whose memory it is must be said: one of {', '.join(_MEMORY)}{said}")

    def _followed(self, claim: Claim, inferred: Answer, why: CannotTell) -> JudgedClaim:
        """The verdict on a row by the rows it follows from."""
        if not matching.states(claim.stated, inferred):
            if (prefix := matching.by_prefix(claim.stated, inferred)) is not None:
                return right_by(claim, inferred, prefix)
            if because := tuple(matching.matching(claim.stated, inferred.mistaken)):
                return wrong(claim, inferred, *because)
            text = f"{inferred.how} gives {float(inferred.number):,.6g}, not this"
            return wrong(claim, inferred, Finding("does-not-follow", text, inferred.value))
        ingredients = [self.row(number) for number in inferred.rows]
        if any(row.verdict == "wrong" for row in ingredients):
            # What would follow, had the wrong rows been right.
            meant = {row.claim.row: row.right_value for row in ingredients}
            values = {number: value for number, value in meant.items() if value is not None}
            corrected = replace(self.table, right=values).follows(claim) if values else None
            return wrong(claim, corrected or inferred, self.follows(inferred))
        ways = [finding for row in ingredients if row.verdict == "convention" for finding in row.because]
        if ways:
            return right_by(claim, inferred, *ways)
        return right(claim, inferred, f"it follows from the table itself; {why.reason}")

    def _counter(self, claim: Claim) -> JudgedClaim:
        assert claim.named is not None
        measured = self.book.measured if self.book.is_measured else None
        counters = frozenset() if measured is None else frozenset(measured.step) | measured.known
        meant = misspelt_counter(claim.named.metric, counters)
        if meant is not None:
            assert isinstance(meant.value, str)
            try:
                answer = self.case(replace(claim, named=replace(claim.named, metric=meant.value))).answer
            except CannotTell:
                answer = Answer(meant.value, "its right name", "the tables of counters")
            return wrong(claim, answer, meant)
        if isinstance(claim.stated, str):
            return unknown(claim, "no value was stated")
        return self._answered(claim)


def _meant(claim: Claim) -> str:
    """The quantity, where its unit does not say that it is the other one: FLOPs in GMAC are multiply-adds."""
    unit = claim.stated.unit.base if isinstance(claim.stated, Amount) else ""
    if claim.name in ("flops", "ops") and unit == "mac":
        return "macs"
    return "flops" if claim.name == "macs" and unit == "flop" else claim.name


# One quantity by another: each side from the ledger, or from the table's own rows where the ledger has none.


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


def _judge_ratio(judge: ClaimsJudge, claim: Claim) -> JudgedClaim:
    assert claim.named is not None and claim.named.parts is not None
    above, below = (_side(judge, claim, operand) for operand in claim.named.parts)
    if not below.value:
        raise CannotTell(f"{below.text} is 0, and nothing is divided by it")
    rows = tuple(side.row for side in (above, below) if side.row is not None and side.case is None)
    value = above.value / below.value
    answer = Answer(value, f"{above.text} / {below.text}", "the ledger" + (" and the table" if rows else ""), rows=rows)
    unlike = _unlike(judge, claim, above, below)
    if matching.states(claim.stated, answer):
        if unlike is not None:
            return right_by(claim, answer, unlike)
        return right(claim, answer, "it follows from the table itself" if rows else "")
    mistaken = matching.matching(claim.stated, _mistaken(above, below))
    findings = (*filter(None, [unlike]), *_by_own_rows(judge, claim, above, below), *mistaken)
    return wrong(claim, answer, *_once(findings), reason=_explained(claim, value))


def _side(judge: ClaimsJudge, claim: Claim, operand: Operand) -> RatioSide:
    side = replace(
        claim, named=operand.named, device=operand.on or claim.device, quantity=operand.named.written, row=-1
    )
    if operand.of:
        is_layer = _is_layer(judge, operand.of)
        side = replace(side, layer=operand.of) if is_layer else replace(side, model=operand.of)
    name = operand.named.quantity.name
    row = judge.table.find((name,), side)
    stated = None if row is None else row.value
    try:
        case = judge.case(side)
    except CannotTell as why:
        if row is None:
            raise CannotTell(f"{operand.named.written}: {why.reason}", why.needs) from None
        meant = judge.row(row.claim.row).right_value
        row = row if meant is None else replace(row, value=meant, corrected=True)
        return RatioSide(name, row.value, str(row), None, row.claim.row, stated)
    value = number_of(case.answer.value)
    if value is None:
        raise CannotTell(f"{operand.named.written} is no number to divide")
    text = f"{operand.named.written} {float(value):,.12g}"
    return RatioSide(name, value, text, case, None if row is None else row.claim.row, stated)


def _is_layer(judge: ClaimsJudge, of: str) -> bool:
    try:
        part_of(judge.book.ledger, of)
    except CannotTell:
        return False
    return True


def _by_own_rows(judge: ClaimsJudge, claim: Claim, above: RatioSide, below: RatioSide) -> tuple[Finding, ...]:
    """Does the division follow from the numbers that the table states for both?"""
    if above.stated is None or not below.stated or above.row is None or below.row is None:
        return ()
    how = f"row {above.row} / row {below.row}"
    quotient = Answer(above.stated / below.stated, how, "the table", rows=(above.row, below.row))
    if not matching.states(claim.stated, quotient):
        return ()
    others = [code for row in quotient.rows for cause in judge.row(row).because[:1] for code in cause.codes]
    finding = judge.follows(quotient)
    return (replace(finding, code="+".join(dict.fromkeys((*finding.codes, *others)))),)


def _mistaken(above: RatioSide, below: RatioSide) -> Iterator[Finding]:
    """What the quotient would be with one of its sides mistaken."""
    for side, other, is_above in ((above, below, True), (below, above, False)):
        if side.case is None:
            continue
        where = "above" if is_above else "below"
        for finding in (*conventions(side.case), *tried(mistakes.LIKELY, side.case)):
            if value := number_of(finding.value):
                quotient = value / other.value if is_above else other.value / value
                yield Finding(finding.code, f"{side.name} {where} the line: {finding.text}", quotient)


def _unlike(judge: ClaimsJudge, claim: Claim, above: RatioSide, below: RatioSide) -> Finding | None:
    """All the memory of a process against one part of what it holds."""
    if above.name not in _IN_USE or below.name != "param_bytes":
        return None
    try:
        text = memory_ratio(float(above.value), judge.book.ledger).finding.text
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


_JUDGES: dict[str, Callable[[ClaimsJudge, Claim], JudgedClaim]] = {
    **device_claims.JUDGES,
    "ratio": _judge_ratio,
    "memory": ClaimsJudge._memory,
    "counter": ClaimsJudge._counter,
}
"""Quantities that are judged in a way of their own."""
