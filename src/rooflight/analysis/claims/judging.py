"""Judges rows one by one: the ledger's answer, then conventions, then mistakes, then what the table itself says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rooflight.analysis.claims import (
    conclusions,
    device_answers,
    estimated_answers,
    matching,
    measured_answers,
    roofline_answers,
)
from rooflight.analysis.claims.case import ClaimCase, follows
from rooflight.analysis.claims.claim import Amount, Claim, MissingValue
from rooflight.analysis.claims.ledger_query import LedgerBook, device_of, scope_of
from rooflight.analysis.claims.quantities import COUNTER, QUANTITIES, misspelt_counter
from rooflight.analysis.claims.ratios import judge_ratio
from rooflight.analysis.claims.result import (
    Answer,
    CannotTell,
    JudgedClaim,
    right,
    right_by,
    unknown,
    wrong,
)
from rooflight.analysis.claims.row_inference import ClaimTable
from rooflight.analysis.finding import Finding

_OF_A_RUN = ("intensity",)
"""What formulas answer as well, but not for a row that names a device: that is of a run there."""
_MEMORY = (
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "gpu_memory_bytes",
    "param_bytes",
    "output_bytes",
    "total_size",
)
"""What people call memory."""


class ClaimsJudge:
    """A ledger and a table. Rows may follow from others, so each is judged when it is first asked for."""

    def __init__(self, book: LedgerBook, claims: Sequence[Claim]) -> None:
        self.book = book
        self.table = ClaimTable(claims, book.ledger.header.model, book.ledger.header.batch)
        self._known: dict[int, JudgedClaim] = {}
        self._asked: set[int] = set()

    def judged(self, claim: Claim) -> JudgedClaim:
        if claim.row not in self._known:
            if claim.row in self._asked:
                return unknown(claim, "the row follows from itself by way of others")
            self._asked.add(claim.row)
            self._known[claim.row] = self._judge(claim)
        return self._known[claim.row]

    def row(self, number: int) -> JudgedClaim:
        return self.judged(next(claim for claim in self.table.claims if claim.row == number))

    def _judge(self, claim: Claim) -> JudgedClaim:
        if claim.unreadable:
            return JudgedClaim(claim=claim, verdict="unreadable", reason=claim.trouble)
        if claim.named is None or claim.stated is None:
            return unknown(claim, claim.trouble)
        quantity = claim.named.quantity
        try:
            if quantity.source == "device":
                return self._device(claim)
            if quantity.name == "ratio":
                return judge_ratio(self, claim)
            if quantity.source == "table":
                return conclusions.judge(self, claim)
            if quantity.name == "memory":
                return self._memory(claim)
            if quantity is COUNTER:
                return self._counter(claim)
            return self._answered(claim)
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
        elif name in measured_answers.KEPT:
            answer = measured_answers.KEPT[name](scope)
        else:
            measured_answers.check_run(self.book, claim, device_of(claim))
            if name not in measured_answers.ANSWERS:
                raise CannotTell("whose time it is must be said: wall time, GPU-busy time or kernel time")
            answer = measured_answers.ANSWERS[name](scope)
        return ClaimCase(claim, scope, answer, self.table)

    def _answered(self, claim: Claim) -> JudgedClaim:
        try:
            if claim.name in _OF_A_RUN and device_of(claim) is not None:
                measured_answers.check_run(self.book, claim, device_of(claim))
            case = self.case(claim)
        except CannotTell as why:
            return self._without_ledger(claim, why)
        if case.name == "intensity" and roofline_answers.is_own(case.scope, device_of(claim)):
            return self._intensity(case)
        return self.compared(case)

    def _intensity(self, case: ClaimCase) -> JudgedClaim:
        """Of a measured part as counted or by formula: both are right, and which one is said."""
        assert case.claim.stated is not None
        formula, counted = case.answer, tuple(roofline_answers.intensities(case.scope))
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
        assert claim.stated is not None
        if matching.states(claim.stated, answer):
            return right(claim, answer)
        if ways := matching.by_convention(case):
            also = matching.forward_alone(case)
            return replace(right_by(claim, answer, *ways, *also), ambiguous=bool(also))
        mistakes = matching.by_mistake(case) or self._by_own_rows(claim) or matching.by_remote_mistake(case)
        reason = "" if mistakes else matching.nearest(case)
        return replace(wrong(claim, answer, *mistakes, reason=reason), ambiguous=len(mistakes) > 1)

    def _by_own_rows(self, claim: Claim) -> tuple[Finding, ...]:
        """A value that is only as wrong as the rows it was made of."""
        inferred = self.table.follows(claim)
        if inferred is None or claim.stated is None or not matching.states(claim.stated, inferred):
            return ()
        return (follows(self, inferred),)

    # What only the table answers.

    def _without_ledger(self, claim: Claim, why: CannotTell) -> JudgedClaim:
        inferred = self.table.follows(claim)
        if inferred is not None:
            return self._followed(claim, inferred, why)
        missed = conclusions.tensor_work(self, claim)
        if missed is not None:
            return wrong(claim, *missed)
        if claim.name == "workspace_bytes" and (known := conclusions.workspace(self, claim)) is not None:
            return right(claim, known, why.reason)
        reason = why.reason
        if claim.name == "time" and self.book.is_measured:
            times = measured_answers.scopes_of_time(scope_of(self.book, claim, "wall_time"))
            reason += "".join(
                f"; the value is that of {time.text}" for time in [*matching.matching(claim.stated, times)][:1]
            )
        return unknown(claim, reason, why.needs)

    def _memory(self, claim: Claim) -> JudgedClaim:
        """Memory that does not say whose: never judged, but told what it would be."""
        assert claim.stated is not None and claim.named is not None
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
        assert claim.stated is not None
        if not matching.states(claim.stated, inferred):
            if (meant := matching.by_prefix(claim.stated, inferred)) is not None:
                return right_by(claim, inferred, meant)
            if mistakes := tuple(matching.matching(claim.stated, inferred.mistaken)):
                return wrong(claim, inferred, *mistakes)
            text = f"{inferred.how} gives {float(inferred.number):,.6g}, not this"
            return wrong(claim, inferred, Finding("does-not-follow", text, inferred.value))
        ingredients = [self.row(number) for number in inferred.rows]
        if any(row.verdict == "wrong" for row in ingredients):
            return wrong(claim, self._corrected(claim) or inferred, follows(self, inferred))
        ways = [finding for row in ingredients if row.verdict == "convention" for finding in row.because]
        if ways:
            return right_by(claim, inferred, *ways)
        return right(claim, inferred, f"it follows from the table itself; {why.reason}")

    def _corrected(self, claim: Claim) -> Answer | None:
        """What would follow, had the wrong rows been right."""
        inferred = self.table.follows(claim)
        values = {} if inferred is None else {number: self.row(number).right_value for number in inferred.rows}
        meant = {number: value for number, value in values.items() if value is not None}
        return self.table.corrected(meant).follows(claim) if meant else None

    # Devices and counters.

    def _device(self, claim: Claim) -> JudgedClaim:
        figures = device_answers.answers(claim, claim.name)
        assert isinstance(claim.stated, Amount)
        for answer in figures:
            if matching.states(claim.stated, answer):
                return right(claim, answer)
        return wrong(claim, figures[0], *device_answers.slips(claim, claim.name, float(claim.stated.value)))

    def _counter(self, claim: Claim) -> JudgedClaim:
        assert claim.named is not None
        own = frozenset(self.book.measured.step) | self.book.measured.known if self.book.is_measured else frozenset()
        meant = misspelt_counter(claim.named.metric, own)
        if meant is not None:
            assert isinstance(meant.value, str)
            try:
                answer = self.case(replace(claim, named=replace(claim.named, metric=meant.value))).answer
            except CannotTell:
                answer = Answer(meant.value, "its right name", "the tables of counters")
            return wrong(claim, answer, meant)
        if isinstance(claim.stated, MissingValue):
            return unknown(claim, "no value was stated")
        return self._answered(claim)


def _meant(claim: Claim) -> str:
    """The quantity, where its unit does not say that it is the other one: FLOPs in GMAC are multiply-adds."""
    unit = claim.stated.unit.base if isinstance(claim.stated, Amount) else ""
    if claim.name in ("flops", "ops") and unit == "mac":
        return "macs"
    return "flops" if claim.name == "macs" and unit == "flop" else claim.name
