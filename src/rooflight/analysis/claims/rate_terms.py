"""What times, rates and intensities are made of: work, bytes, times, batches and peaks, each from the ledger, from a
device's figures or from the table's own rows, with what is wrong with it.

A quotient of two such terms is what a row may state. Where a term is wrong, or counts multiply-adds where FLOPs are
meant, so is the quotient, and the one of the right terms is what it should have said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from rooflight.analysis.claims import device_claims, device_figures, mistakes
from rooflight.analysis.claims.claim import Answer, CannotTell, Claim, StepName, number_of
from rooflight.analysis.claims.conventions import ClaimCase, conventions, tried
from rooflight.analysis.claims.quantities import QUANTITIES
from rooflight.analysis.claims.quantity_names import NamedQuantity
from rooflight.analysis.claims.row_inference import COUNTED, TIMES, Ingredient
from rooflight.analysis.finding import Finding
from rooflight.hardware.roofs import roofs_of
from rooflight.summary.measured_step import main_precision

if TYPE_CHECKING:
    from rooflight.analysis.claims.judging import ClaimsJudge

_CALCULATED = Fraction(1, 10**6)
"""Quotients of a table's own rows may differ by so much of themselves: whoever divided had a calculator with fewer
digits."""
_HALVES = frozenset({"macs-for-flops", "macs-and-bias", "mixed-operations", "plain-operations"})
"""Conventions that count a multiply-add once: a count may, and a speed may not, for peaks count it as 2."""
MACS = "multiply-adds where FLOPs are meant: peaks and speeds count a multiply-add as 2"


@dataclass(frozen=True)
class RateTerm:
    """One number of a quotient, from where to where it may lie, and what is wrong with it."""

    value: Fraction
    low: Fraction
    high: Fraction
    text: str
    rows: tuple[int, ...] = ()
    flaws: tuple[Finding, ...] = ()
    is_wrong: bool = False
    """The flaws are mistakes, and no other convention."""
    is_counted: bool = False
    """A row of a run: what its quotients are is no matter of opinion."""
    step: StepName | None = None


@dataclass(frozen=True)
class Way:
    """One way to make the number that a row states."""

    answer: Answer
    flaws: tuple[Finding, ...]
    is_wrong: bool
    is_counted: bool

    @property
    def finding(self) -> Finding:
        """All that is wrong with it, as one."""
        codes = dict.fromkeys(code for flaw in self.flaws for code in flaw.codes)
        text = "; and ".join(dict.fromkeys(flaw.text for flaw in self.flaws))
        return Finding("+".join(codes), text, self.answer.value)


def exact(value: Fraction | float, text: str, *flaws: Finding, is_wrong: bool = True) -> RateTerm:
    number = Fraction(value)
    return RateTerm(number, number, number, text, flaws=flaws, is_wrong=bool(flaws) and is_wrong)


def quotients(above: Iterable[RateTerm], below: Iterable[RateTerm]) -> Iterator[Way]:
    """Every one of the first by every one of the second, of which not both are flawed beyond telling."""
    under = [term for term in below if term.low > 0]
    for over in above:
        for term in under:
            flaws, is_wrong = (*over.flaws, *term.flaws), over.is_wrong or term.is_wrong
            if (mixed := _mixed_steps(over, term)) is not None:
                flaws, is_wrong = (*flaws, mixed), True
            value = over.value / term.value
            slack = abs(value) * _CALCULATED
            low, high = over.low / term.high - slack, over.high / term.low + slack
            rows = tuple(dict.fromkeys((*over.rows, *term.rows)))
            origin = "the table" if over.rows and term.rows else "formulas and the table"
            origin = origin if rows else "formulas and figures"
            answer = Answer(value, f"{over.text} / {term.text}", origin, low, high, rows=rows)
            yield Way(answer, flaws, is_wrong, over.is_counted and (term.is_counted or not term.rows))


def as_term(way: Way) -> RateTerm:
    """What a quotient gives, to be divided again."""
    value = way.answer.number
    low, high = (value if end is None else Fraction(end) for end in (way.answer.low, way.answer.high))
    return RateTerm(value, low, high, f"({way.answer.how})", way.answer.rows, way.flaws, way.is_wrong)


def _mixed_steps(over: RateTerm, under: RateTerm) -> Finding | None:
    """Work of a forward by the time of a training step."""
    of_forward = [step in ("forward", "inference") for step in (over.step, under.step)]
    if over.step is None or under.step is None or over.step == under.step or all(of_forward):
        return None
    code = "forward-for-training" if of_forward[0] else "training-for-forward"
    return Finding(code, f"the work of {over.step} by the time of {under.step}")


def as_quantity(claim: Claim, name: str) -> Claim:
    """The same row, had it been of another quantity."""
    return replace(claim, named=NamedQuantity(QUANTITIES[name], name), quantity=name, said_kind=None, row=-1)


def _of_row(judge: ClaimsJudge, row: Ingredient, times: int = 1) -> RateTerm:
    judged = judge.judged(row.claim)
    low, high = row.ends
    text = f"{times} × {row}" if times > 1 else str(row)
    flaws: tuple[Finding, ...] = ()
    is_wrong = judged.verdict == "wrong"
    if is_wrong:
        codes = [code for finding in judged.because for code in finding.codes]
        code = "+".join(dict.fromkeys(("follows-from-its-rows", *codes)))
        flaws = (Finding(code, f"it follows from row {row.claim.row}, which is wrong"),)
    elif judged.verdict == "convention":
        flaws = judged.because
        if times == 1 and any(_HALVES.intersection(finding.codes) for finding in flaws):
            flaws, is_wrong = (Finding("macs-against-a-peak", f"row {row.claim.row} has {MACS}"),), True
    return RateTerm(
        times * row.value, times * low, times * high, text, (row.claim.row,), flaws, is_wrong, step=row.claim.step
    )


def _corrected(judge: ClaimsJudge, row: Ingredient) -> Iterator[RateTerm]:
    """What a wrong row should say, where more is known of it than a bound."""
    judged = judge.judged(row.claim)
    is_bound = any(judged.says(code) for code in ("faster-than-the-roof", "above-the-roof"))
    if judged.right_value is not None and not is_bound:
        text = f"{float(judged.right_value):,.12g} (what row {row.claim.row} should say)"
        yield replace(exact(judged.right_value, text), rows=(row.claim.row,), step=row.claim.step)


def _sum(row: Ingredient, other: Ingredient) -> RateTerm:
    """Two counts of one run together."""
    low, high = row.ends[0] + other.ends[0], row.ends[1] + other.ends[1]
    rows = (row.claim.row, other.claim.row)
    return RateTerm(
        row.value + other.value, low, high, f"({row} + {other})", rows, is_counted=True, step=row.claim.step
    )


# Work.


def work(judge: ClaimsJudge, claim: Claim, *, thorough: bool = True) -> list[RateTerm]:
    """FLOPs of what a row is of: counted, stated, and by the ledger's formulas; `thorough`: with all that they may be
    by mistake."""
    return [*_counted_work(judge, claim), *_stated_work(judge, claim), *_formula_work(judge, claim, thorough)]


def _counted_work(judge: ClaimsJudge, claim: Claim) -> Iterator[RateTerm]:
    cuda = judge.table.find(("cuda_flops",), claim)
    tensor = judge.table.find(("tensor_flops",), claim)
    if cuda is not None and tensor is not None:
        yield _sum(cuda, tensor)
    for row in judge.table.find_all(COUNTED, claim):
        term = replace(_of_row(judge, row), is_counted=True)
        unseen = device_claims.tensor_work(judge, row.claim) if not term.flaws else None
        if row.claim.name == "cuda_flops" and (tensor is not None or unseen is not None):
            flaw = unseen[1] if unseen is not None else Finding("tensor-work-not-counted", "the CUDA cores alone")
            term = replace(term, flaws=(flaw,), is_wrong=True)
        yield term


def _stated_work(judge: ClaimsJudge, claim: Claim) -> Iterator[RateTerm]:
    for row in judge.table.find_all(("flops", "ops", "macs"), claim, any_step=True):
        if not row.claim.counts_macs:
            yield _of_row(judge, row)
            continue
        yield _of_row(judge, row, 2)
        flaw = Finding("macs-against-a-peak", f"row {row.claim.row} has {MACS}")
        yield replace(_of_row(judge, row), flaws=(flaw,), is_wrong=True)


def _formula_work(judge: ClaimsJudge, claim: Claim, thorough: bool) -> Iterator[RateTerm]:
    try:
        case = judge.case(as_quantity(claim, "flops"))
    except CannotTell:
        return
    if not case.number:
        return
    yield replace(exact(case.number, f"{float(case.number):,.12g} FLOP"), step=claim.step)
    yield from _mistaken(case, thorough)


def _mistaken(case: ClaimCase, thorough: bool) -> Iterator[RateTerm]:
    for way in conventions(case):
        if (value := number_of(way.value)) and (thorough or way.code in _HALVES):
            if _HALVES.intersection(way.codes):
                yield exact(value, f"{float(value):,.12g}", Finding(f"macs-against-a-peak+{way.code}", MACS))
            else:
                yield exact(value, f"{float(value):,.12g} FLOP", way, is_wrong=False)
    for slip in tried(mistakes.LIKELY, case) if thorough else ():
        if value := number_of(slip.value):
            yield exact(value, f"{float(value):,.12g} FLOP", slip)


# Bytes, times and batches.

_USUAL = tuple(2**power for power in range(1, 13))
"""Batches that somebody may have had in mind."""


def moved(judge: ClaimsJudge, claim: Claim) -> Iterator[RateTerm]:
    """Bytes that the table states, counted ones first."""
    table = judge.table
    for row in table.find_all(("dram_bytes",), claim):
        yield replace(_of_row(judge, row), is_counted=True)
        yield from _corrected(judge, row)
    read, written = (table.find((name,), claim) for name in ("dram_bytes_read", "dram_bytes_written"))
    if read is not None and written is not None:
        yield _sum(read, written)
        for row in (read, written):
            flaw = Finding("read-or-written", f"row {row.claim.row} alone: what is read and written counts")
            yield replace(_of_row(judge, row), flaws=(flaw,), is_wrong=True)
    for row in table.find_all(("bytes",), claim):
        yield _of_row(judge, row)


def times(judge: ClaimsJudge, claim: Claim) -> list[RateTerm]:
    """Times of the same run that the table states. Beside one by the wall, one of the GPU alone is another
    convention."""
    rows = judge.table.find_all(TIMES, claim, any_step=True)
    terms = []
    for row in rows:
        term = replace(_of_row(judge, row), is_counted=True)
        if row is not rows[0] and row.claim.name in ("gpu_busy", "kernel_time") and not term.flaws:
            text = f"by {row.claim.quantity}, not by {rows[0].claim.quantity} (row {rows[0].claim.row})"
            is_wrong = claim.name == "throughput"  # samples come by the wall
            flaw = Finding("time-scopes-mixed" if is_wrong else "while-busy", text)
            term = replace(term, flaws=(flaw,), is_wrong=is_wrong)
        terms += [term, *_corrected(judge, row)]
    return terms


def batches(judge: ClaimsJudge, claim: Claim) -> Iterator[RateTerm]:
    """Samples of a step: the row's, or that of the time it is by; and others that the table has."""
    of_times = [row.claim.batch for row in judge.table.find_all(TIMES, claim)]
    known = [claim.batch, *of_times, judge.book(claim).ledger.header.batch]
    right = next((batch for batch in known if batch is not None), None)
    if right is None:
        return
    yield replace(exact(Fraction(right), f"batch {right}"), is_counted=True)
    others = dict.fromkeys((1, *(row.batch for row in judge.table.claims), *known, *_USUAL))
    for other in others:
        if other is not None and other != right:
            said = f"the row is of batch {right}"
            flaw = Finding("batch-missing", f"steps a second, not samples: {said}")
            if other != 1:
                flaw = Finding("batch-mislabelled", f"right at batch {other}: {said}")
            yield exact(Fraction(other), f"batch {other}", flaw)


# Peaks and bandwidths.


def bandwidths(claim: Claim) -> Iterator[RateTerm]:
    """Of the memory of the device that a row names, or of one of the same name."""
    _, device, others = device_figures.named_device(claim)
    for card in (device, *others):
        rate = roofs_of(card).slope().bytes_per_s
        yield exact(rate, f"{rate / 1e9:g} GB/s of {card.title}")


def peaks(judge: ClaimsJudge, claim: Claim) -> Iterator[RateTerm]:
    """FLOP/s that work may have been divided by: of the device in the row's precision, of what it was taken for, and
    those that the table states."""
    if claim.device:
        precision = main_precision(judge.book(claim).ledger) or "fp32"
        for used in device_figures.used_peaks(claim, precision):
            flaws = () if used.flaw is None else (used.flaw,)
            yield exact(used.flops_per_s, used.text, *flaws, is_wrong=used.is_wrong)
    for row in judge.table.peaks(claim):
        term = _of_row(judge, row)
        board = device_figures.of_a_board(row.claim) if not term.flaws else None
        yield term if board is None else replace(term, flaws=(board,), is_wrong=False)
