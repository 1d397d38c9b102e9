"""Judges rows one by one: the ledger's answer, then conventions, then mistakes, then what the table itself says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rooflight.claims import concluding, estimated, figures, matching, metric_names, placed, ran
from rooflight.claims.amounts import Amount, Missing
from rooflight.claims.book import Book, find_device, scope_of
from rooflight.claims.case import Case
from rooflight.claims.claim import Claim
from rooflight.claims.names import COUNTER, QUANTITIES
from rooflight.claims.own import Table
from rooflight.claims.ratios import judge_ratio
from rooflight.claims.result import Answer, Candidate, CannotTell, Judged
from rooflight.claims.verdicts import follows, off_by, right_value, short, unknown, wrong
from rooflight.hardware.device import Device

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


class Judge:
    """A ledger and a table. Rows may follow from others, so each is judged when it is first asked for."""

    def __init__(self, book: Book, claims: Sequence[Claim]) -> None:
        self.book = book
        self.table = Table(claims, book.ledger.header.model, book.ledger.header.batch)
        self._known: dict[int, Judged] = {}
        self._asked: set[int] = set()

    def judged(self, claim: Claim) -> Judged:
        if claim.row not in self._known:
            if claim.row in self._asked:
                return unknown(claim, "the row follows from itself by way of others")
            self._asked.add(claim.row)
            self._known[claim.row] = self._judge(claim)
        return self._known[claim.row]

    def row(self, number: int) -> Judged:
        return self.judged(next(claim for claim in self.table.claims if claim.row == number))

    def _judge(self, claim: Claim) -> Judged:
        if claim.unreadable:
            return Judged(claim=claim, verdict="unreadable", reason=claim.trouble)
        if claim.named is None or claim.stated is None:
            return unknown(claim, claim.trouble)
        quantity = claim.named.quantity
        try:
            if quantity.source == "device":
                return self._device(claim)
            if quantity.name == "ratio":
                return judge_ratio(self, claim)
            if quantity.source == "table":
                return concluding.judge(self, claim)
            if quantity.name == "memory":
                return self._memory(claim)
            if quantity is COUNTER:
                return self._counter(claim)
            return self._answered(claim)
        except CannotTell as found:
            return unknown(claim, found.reason, found.needs)

    # What the ledger answers.

    def case(self, claim: Claim) -> Case:
        """The row with the ledger's answer; raises `CannotTell`."""
        assert claim.named is not None
        name = _meant(claim)
        scope = scope_of(self.book, claim, name, metric=claim.named.metric, per_sample=claim.named.per_sample)
        if name in estimated.ANSWERS and not (name == "growth_bytes" and self.book.is_measured):
            estimated.check_known(scope)
            answer = estimated.ANSWERS[name](scope)
        elif name in ran.KEPT:
            answer = ran.KEPT[name](scope)
        else:
            ran.check_run(self.book, claim, device_of(claim))
            if name not in ran.ANSWERS:
                raise CannotTell("whose time it is must be said: wall time, GPU-busy time or kernel time")
            answer = ran.ANSWERS[name](scope)
        return Case(claim, scope, answer, self.table)

    def _answered(self, claim: Claim) -> Judged:
        try:
            if claim.named is not None and claim.named.quantity.name in _OF_A_RUN and device_of(claim) is not None:
                ran.check_run(self.book, claim, device_of(claim))
            case = self.case(claim)
        except CannotTell as found:
            return self._without_ledger(claim, found)
        if case.name == "intensity" and placed.is_own(case.scope, device_of(claim)):
            return self._intensity(case)
        return self.compared(case)

    def _intensity(self, case: Case) -> Judged:
        """Of a measured part as counted or by formula: both are right, and which one is said."""
        assert case.claim.stated is not None
        formula, counted = case.answer, tuple(placed.intensities(case.scope))
        ways = [(one, f"as counted: {one.how}") for one in counted] + [(formula, f"by formula: {formula.how}")]
        for answer, which in ways:
            if matching.states(case.claim.stated, answer):
                return Judged(claim=case.claim, verdict="right", answer=answer, reason=which)
        if counted and not isinstance(formula.value, (str, tuple)):
            how = f"{counted[0].how}; by formula it is {float(formula.value):.4g}: {formula.how}"
            case = replace(case, answer=replace(counted[0], how=how))
        return self.compared(case)

    def compared(self, case: Case) -> Judged:
        """The verdict on a row that the ledger answers."""
        claim, answer = case.claim, case.answer
        assert claim.stated is not None
        if matching.states(claim.stated, answer):
            return Judged(claim=claim, verdict="right", answer=answer)
        if found := matching.by_convention(case):
            also = matching.forward_alone(case)
            return Judged(claim=claim, verdict="convention", answer=answer, because=(*found, *also),
                          off_by=off_by(claim, answer), ambiguous=bool(also))  # fmt: skip
        found = matching.by_mistake(case) or self._by_own_rows(claim) or matching.by_remote_mistake(case)
        return replace(wrong(claim, answer, found, "" if found else matching.nearest(case)), ambiguous=len(found) > 1)

    def _by_own_rows(self, claim: Claim) -> tuple[Candidate, ...]:
        """A value that is only as wrong as the rows it was made of."""
        made = self.table.follows(claim)
        if made is None or claim.stated is None or not matching.states(claim.stated, made):
            return ()
        return (follows(self, made),)

    # What only the table answers.

    def _without_ledger(self, claim: Claim, why: CannotTell) -> Judged:
        made = self.table.follows(claim)
        if made is not None:
            return self.followed(claim, made, why)
        missed = concluding.tensor_work(self, claim)
        if missed is not None:
            return wrong(claim, missed[0], (missed[1],))
        assert claim.named is not None and claim.stated is not None
        if claim.named.quantity.name == "workspace_bytes" and (known := concluding.workspace(self, claim)) is not None:
            return Judged(claim=claim, verdict="right", answer=known, reason=why.reason)
        reason = why.reason
        if claim.named.quantity.name == "time" and self.book.is_measured:
            scope = scope_of(self.book, claim, "wall_time")
            same = matching.matching(claim.stated, ran.scopes_of_time(scope))
            reason += "".join(f"; the value is that of {found.text}" for found in list(same)[:1])
        return unknown(claim, reason, why.needs)

    def _memory(self, claim: Claim) -> Judged:
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

    def followed(self, claim: Claim, made: Answer, why: CannotTell | None = None) -> Judged:
        """The verdict on a row by the rows it follows from."""
        assert claim.stated is not None
        if not matching.states(claim.stated, made):
            if (meant := matching.by_prefix(claim.stated, made)) is not None:
                return Judged(claim=claim, verdict="convention", answer=made, because=(meant,))
            if found := tuple(matching.matching(claim.stated, made.mistaken)):
                return wrong(claim, made, found)
            text = f"{made.how} gives {short(made)}, not this"
            return wrong(claim, made, (Candidate("does-not-follow", text, made.value),))
        ingredients = [self.row(number) for number in made.rows]
        if any(row.verdict == "wrong" for row in ingredients):
            return wrong(claim, self._corrected(claim) or made, (follows(self, made),))
        others = tuple(found for row in ingredients if row.verdict == "convention" for found in row.because)
        if others:
            return Judged(claim=claim, verdict="convention", answer=made, because=others)
        reason = f"it follows from the table itself; {why.reason}" if why is not None else ""
        return Judged(claim=claim, verdict="right", answer=made, reason=reason)

    def _corrected(self, claim: Claim) -> Answer | None:
        """What would follow, had the wrong rows been right."""
        made = self.table.follows(claim)
        values = {} if made is None else {number: right_value(self.row(number)) for number in made.rows}
        right = {number: value for number, value in values.items() if value is not None}
        return self.table.corrected(right).follows(claim) if right else None

    # Devices and counters.

    def _device(self, claim: Claim) -> Judged:
        assert claim.named is not None
        name = claim.named.quantity.name
        found = figures.answers(claim, name)
        assert isinstance(claim.stated, Amount)
        for answer in found:
            if matching.states(claim.stated, answer):
                return Judged(claim=claim, verdict="right", answer=answer)
        return wrong(claim, found[0], tuple(figures.slips(claim, name, float(claim.stated.value))))

    def _counter(self, claim: Claim) -> Judged:
        assert claim.named is not None
        own = frozenset(self.book.measured.step) | self.book.measured.known if self.book.is_measured else frozenset()
        meant = metric_names.misspelt(claim.named.metric, own)
        if meant is not None:
            assert isinstance(meant.value, str)
            right = replace(claim, named=replace(claim.named, metric=meant.value))
            try:
                answer = self.case(right).answer
            except CannotTell:
                answer = Answer(meant.value, "its right name", "the tables of counters")
            return Judged(claim=claim, verdict="wrong", answer=answer, because=(meant,))
        if isinstance(claim.stated, Missing):
            return unknown(claim, "no value was stated")
        return self._answered(claim)


def _meant(claim: Claim) -> str:
    """The quantity, where its unit does not say that it is the other one: FLOPs in GMAC are multiply-adds."""
    assert claim.named is not None
    name = claim.named.quantity.name
    unit = claim.stated.unit.dimension if isinstance(claim.stated, Amount) else ""
    if name in ("flops", "ops") and unit == "mac":
        return "macs"
    return "flops" if name == "macs" and unit == "flop" else name


def device_of(claim: Claim) -> Device | None:
    return find_device(claim.device)[1] if claim.device else None
