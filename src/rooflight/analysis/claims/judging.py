"""Judges rows one by one: the ledger's answer, then conventions, then mistakes, then what the table itself says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from rooflight.analysis.claims import (
    description_claims,
    device_claims,
    estimated_answers,
    matching,
    measured_answers,
    rate_claims,
    ratio_claims,
    utilisation_claims,
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
from rooflight.analysis.claims.conventions import ClaimCase
from rooflight.analysis.claims.ledger_query import ClaimScope, LedgerBook, device_of, scope_of
from rooflight.analysis.claims.ledger_shelf import LedgerShelf
from rooflight.analysis.claims.quantities import QUANTITIES, misspelt_counter
from rooflight.analysis.claims.rate_terms import as_quantity
from rooflight.analysis.claims.row_inference import TIMES, WORKSPACE_SIGN, ClaimTable
from rooflight.analysis.finding import Finding

_MEMORY = ("peak_allocated_bytes", "peak_reserved_bytes", "gpu_memory_bytes", "param_bytes", "output_bytes",
           "total_size")  # fmt: skip
"""What people call memory."""
_EITHER = ("flops", "ops", "macs", "bytes", "intensity")
"""What a formula gives, and beside the name of a device a run may have given as well."""
_WORKSPACES = ("workspace_bytes", *WORKSPACE_SIGN)
_ASK = "measured or estimated? It is not what the formulas give, and a run may have given it"
_BY_ITSELF = "it follows from the table itself"
_MOST_BATCH = 12
"""Of the powers of two that a total may have been multiplied by."""


class ClaimsJudge:
    """Ledgers and a table. Rows may follow from others, so each is judged when it is first asked for."""

    def __init__(self, shelf: LedgerShelf, claims: Sequence[Claim]) -> None:
        self.shelf = shelf
        header = shelf.first.ledger.header
        self.table = ClaimTable(claims, header.model, header.batch)
        self._judged: dict[int, JudgedClaim] = {}

    def book(self, claim: Claim) -> LedgerBook:
        """The ledger that a row is held against."""
        return self.shelf.book(claim)

    def judged(self, claim: Claim) -> JudgedClaim:
        if claim.row not in self._judged:
            # What it says while it is being judged.
            self._judged[claim.row] = unknown(claim, "the row follows from itself by way of others")
            self._judged[claim.row] = self._judge(claim)
        return self._judged[claim.row]

    def judged_anew(self, claim: Claim) -> JudgedClaim:
        """A row, had it been another one: of another quantity, or of a whole step."""
        return self._judge(claim)

    def scope(self, claim: Claim) -> ClaimScope:
        """What a row is about, in its ledger; raises `CannotTell`."""
        return scope_of(self.book(claim), claim, claim.name)

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
        name, book = _meant(claim), self.book(claim)
        scope = scope_of(book, claim, name, metric=claim.named.metric, per_sample=claim.named.per_sample)
        is_own = book.is_measured and device_of(claim) in (None, book.device)
        if name in estimated_answers.ANSWERS and not (name == "growth_bytes" and is_own):
            estimated_answers.check_known(scope)
            answer = estimated_answers.ANSWERS[name](scope)
        else:
            measured_answers.check_run(book, claim, device_of(claim))
            if name not in measured_answers.ANSWERS:
                raise CannotTell("whose time it is must be said: wall time, GPU-busy time or kernel time")
            answer = measured_answers.ANSWERS[name](scope)
        return ClaimCase(claim, scope, answer, self.table)

    def _answered(self, claim: Claim) -> JudgedClaim:
        try:
            judged = self.compared(self.case(claim))
        except CannotTell as why:
            return self._without_ledger(claim, why)
        if judged.verdict != "wrong":
            return judged
        if claim.name in _EITHER and claim.device and claim.kind is None:
            return self._either(claim, judged)
        if claim.name in _WORKSPACES and (other := self._other_engine(claim)) is not None:
            return replace(other, reason="of another engine than the one that the ledger's run took")
        return judged

    def _either(self, claim: Claim, judged: JudgedClaim) -> JudgedClaim:
        """A value beside a device that no formula gives: wrong only where a known mistake gives it, or where it could
        have been counted by nobody."""
        is_rough = isinstance(claim.stated, Amount) and claim.stated.spread > matching.MOST_SPREAD
        if judged.because and not is_rough:
            return judged
        counted = as_quantity(claim, "executed_flops")
        if claim.name == "flops" and (missed := device_claims.tensor_work(self, counted)) is not None:
            return wrong(claim, *missed)
        assert judged.answer is not None
        value = number_of(judged.answer.value)
        by_formula = "" if value is None else f": {float(value):,.12g} by formula ({judged.answer.how})"
        return unknown(claim, f"{_ASK}{by_formula}", "a column kind that says measured or estimated")

    def _intensity(self, claim: Claim) -> JudgedClaim:
        """Of a run on a device by its rows; of a measured part as counted or by formula, which are both right; else by
        formula."""
        book, device = self.book(claim), device_of(claim)
        if claim.device and claim.kind != "estimated" and not (book.is_measured and book.device is device):
            by_rows = rate_claims.judged_intensity(self, claim)
            if by_rows is not None:
                return by_rows
        case = self.case(claim)
        if claim.kind == "estimated" or not measured_answers.is_own(case.scope, device):
            return self._answered(claim)
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
            return right(claim, answer, matching.inside(claim.stated, answer))
        if ways := matching.by_convention(case):
            also = matching.forward_alone(case)
            return replace(right_by(claim, answer, *ways, *also), ambiguous=bool(also))
        because = matching.by_mistake(case) or self._by_own_rows(claim) or matching.by_remote_mistake(case)
        reason = "" if because else matching.nearest(case)
        return replace(wrong(claim, answer, *because, reason=reason), ambiguous=len(because) > 1)

    def _by_own_rows(self, claim: Claim) -> tuple[Finding, ...]:
        """A value that is only as wrong as the rows it was made of: their sum, a batch of it, or their quotient."""
        for inferred, text in self._own_values(claim):
            if matching.states(claim.stated, inferred):
                found = self.follows(inferred)
                return (found.also("total-of-another-batch", text) if text else found,)
        return ()

    def _own_values(self, claim: Claim) -> Iterator[tuple[Answer, str]]:
        if claim.name == "share":
            yield from ((answer, "") for answer in self._own_shares(claim))
        if (added := self.table.sum_of_rows(claim)) is None:
            return
        yield added, ""
        for batch in self.batches(claim):
            if claim.name in ("flops", "macs", "ops", "bytes", "output_bytes"):
                yield times_batch(added, Fraction(batch)), f"its rows are of one sample and it is of batch {batch}"
                text = f"its rows are of batch {batch} and it is of one sample"
                yield times_batch(added, Fraction(1, batch)), text

    def batches(self, claim: Claim) -> list[int]:
        """Those that the row, the table and the ledger speak of, and the usual ones."""
        header = self.book(claim).ledger.header
        known = (claim.batch, *(row.batch for row in self.table.claims), header.batch)
        usual = (2**power for power in range(1, _MOST_BATCH + 1))
        return [batch for batch in dict.fromkeys((*known, *usual)) if batch is not None and batch > 1]

    def _own_shares(self, claim: Claim) -> Iterator[Answer]:
        for name in ("ops", "flops", "macs"):
            part, whole = self.table.find((name,), claim), self.table.find((name,), replace(claim, layer=""))
            if part is not None and whole is not None and whole.ends[0] > 0 and part.claim.row != whole.claim.row:
                low, high = part.ends[0] / whole.ends[1], part.ends[1] / whole.ends[0]
                rows = (part.claim.row, whole.claim.row)
                yield Answer(part.value / whole.value, f"{part} / {whole}", "the table", low, high, rows=rows)

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
        if claim.name in _WORKSPACES and (other := self._other_engine(claim)) is not None:
            return replace(other, reason=f"{other.reason}; {why.reason}" if other.reason else why.reason)
        if (added := self.table.sum_of_rows(claim)) is not None:
            return self._added_up(claim, added, why)
        if claim.name == "executed_flops" and (missed := device_claims.tensor_work(self, claim)) is not None:
            return wrong(claim, *missed)
        return unknown(claim, why.reason, why.needs)

    def _added_up(self, claim: Claim, added: Answer, why: CannotTell) -> JudgedClaim:
        """The verdict on a total by its rows, which may be all that it has, or some."""
        wrongs = {row.claim.row: row for row in map(self.row, added.rows) if row.verdict == "wrong"}
        if not matching.states(claim.stated, added):
            if (prefix := matching.by_prefix(claim.stated, added)) is not None:
                return right_by(claim, added, prefix)
            how = f"{added.how} is {float(added.number):,.12g}; whether they are all of it, the ledger does not tell"
            return unknown(claim, f"{why.reason}; {how}", why.needs)
        if wrongs:
            listed = ", ".join(map(str, wrongs))
            return unknown(claim, f"it is {added.how}, of which {listed} {'is' if len(wrongs) == 1 else 'are'} wrong")
        return right(claim, added, f"it follows from the table itself; {why.reason}")

    def _other_engine(self, claim: Claim) -> JudgedClaim | None:
        """Memory of an op that a run of the ledger does not tell: which engine runs is the library's choice. Right
        where it is what cuDNN's Winograd needs, or adds up with the table's own workspace; `None` where neither."""
        if claim.name == "workspace_bytes":
            winograd = device_claims.workspace(self, claim)
            if winograd is None or matching.states(claim.stated, winograd):
                return None if winograd is None else right(claim, winograd)
            prefix = matching.by_prefix(claim.stated, winograd)
            return None if prefix is None else right_by(claim, winograd, prefix)
        workspace = self.table.find(("workspace_bytes",), claim)
        if workspace is None or self.judged(workspace.claim).verdict == "wrong":
            return None
        sign = WORKSPACE_SIGN[claim.name]
        for output, text, rows in self._outputs(claim):
            low, high = (end + sign * part for end, part in zip(output, workspace.ends[::sign], strict=True))
            how = f"output {text} {'+' if sign > 0 else '-'} workspace {workspace}"
            answer = Answer((low + high) / 2, how, "the table", low, high, rows=(*rows, workspace.claim.row))
            if matching.states(claim.stated, answer):
                ways = [finding for row in map(self.row, answer.rows) for finding in row.because]
                return right_by(claim, answer, *ways[:1]) if ways else right(claim, answer, _BY_ITSELF)
            if (prefix := matching.by_prefix(claim.stated, answer)) is not None:
                return right_by(claim, answer, prefix)
        return None

    def _outputs(self, claim: Claim) -> Iterator[tuple[tuple[Fraction, Fraction], str, tuple[int, ...]]]:
        """By the ledger, and as the table states it: what is wrong elsewhere is no reason against a sum."""
        try:
            value = self.case(as_quantity(claim, "output_bytes")).number
            yield (value, value), f"{float(value):,.12g} B", ()
        except CannotTell:
            pass
        if (row := self.table.find(("output_bytes",), claim)) is not None:
            yield row.ends, str(row), (row.claim.row,)

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

    def _counter(self, claim: Claim) -> JudgedClaim:
        assert claim.named is not None
        book = self.book(claim)
        measured = book.measured if book.is_measured else None
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


def times_batch(added: Answer, factor: Fraction) -> Answer:
    """A sum of rows, had each been of another batch."""
    low, high = (None if end is None else Fraction(end) * factor for end in (added.low, added.high))
    text = f"{factor} × {added.how}" if factor > 1 else f"{added.how} / {1 / factor}"
    return replace(added, value=added.number * factor, low=low, high=high, how=text)


def _meant(claim: Claim) -> str:
    """The quantity, where its unit does not say that it is the other one: FLOPs in GMAC are multiply-adds."""
    unit = claim.stated.unit.base if isinstance(claim.stated, Amount) else ""
    if claim.name in ("flops", "ops") and unit == "mac":
        return "macs"
    return "flops" if claim.name == "macs" and unit == "flop" else claim.name


_JUDGES: dict[str, Callable[[ClaimsJudge, Claim], JudgedClaim]] = {
    **device_claims.JUDGES,
    **dict.fromkeys((*TIMES, *rate_claims.RATES), rate_claims.judged_rate),
    "roof_share": rate_claims.judged_roof_share,
    "intensity": ClaimsJudge._intensity,
    "ratio": ratio_claims.judged_ratio,
    "memory": ClaimsJudge._memory,
    "layers": description_claims.judged_layers,
    "input_shape": description_claims.judged_input,
    **dict.fromkeys(("mfu", "hfu"), utilisation_claims.judged_utilisation),
    "counter": ClaimsJudge._counter,
}
"""Quantities that are judged in a way of their own."""
