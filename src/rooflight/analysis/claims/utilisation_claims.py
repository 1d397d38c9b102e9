"""Parts of a peak: MFU, HFU and percent of peak. Which peak, whose FLOPs and which time it is of, people choose
differently; what no choice gives is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from rooflight.analysis.claims import matching, measured_answers, rate_terms
from rooflight.analysis.claims.claim import Answer, CannotTell, Claim, JudgedClaim, right, right_by, wrong
from rooflight.analysis.claims.ledger_query import LedgerBook, device_of
from rooflight.analysis.claims.rate_claims import decided
from rooflight.analysis.claims.rate_terms import MACS, as_term, quotients
from rooflight.analysis.finding import Finding
from rooflight.hardware.roofs import roofs_of
from rooflight.summary.measured_step import main_precision, rates, utilisation

if TYPE_CHECKING:
    from rooflight.analysis.claims.judging import ClaimsJudge

_FP32 = ("fp32", "tf32")
_TIMES = ((False, "by the wall"), (True, "while the GPU is busy"))


def judged_utilisation(judge: ClaimsJudge, claim: Claim) -> JudgedClaim:
    """The verdict on a part of a peak: by the ledger's run, else by the table's own rows."""
    book, device = judge.book(claim), device_of(claim)
    try:
        measured_answers.check_run(book, claim, device)
    except CannotTell as why:
        return _by_rows(judge, claim, why)
    if not measured_answers.is_own(judge.scope(claim), device) or not judge.scope(claim).is_step:
        raise CannotTell("a part of the peak is told of the whole step on its own device", "a row of the total")
    return _by_run(book, claim)


def _by_run(book: LedgerBook, claim: Claim) -> JudgedClaim:
    ways = list(_ways(book, claim.name))
    if not ways:
        raise CannotTell("nothing tells the peak of the device, or the time of the step", "rooflight measure")
    (answer, _), *others = ways
    if matching.states(claim.stated, answer):
        return right(claim, answer)
    for other, finding in others:
        if matching.states(claim.stated, other):
            return right_by(claim, answer, finding)
    halves = (replace(way, value=way.number / 2, low=None, high=None) for way, _ in ways)
    if any(matching.is_value(claim.stated, half.value) for half in halves):
        return wrong(claim, answer, Finding("macs-against-a-peak", MACS, answer.number / 2))
    if "peak" in claim.quantity.lower():
        raise CannotTell(
            f"of which peak, which FLOPs and which time it is must be said; MFU is {100 * float(answer.number):.2g}%",
            "MFU or HFU as quantity",
        )
    return wrong(claim, answer)


def _ways(book: LedgerBook, name: str) -> Iterator[tuple[Answer, Finding]]:
    """As `rooflight measure` shows it, then by the GPU's time, of causal or of executed work, of other peaks."""
    clock = book.measured.step.get("wall_time_s")
    for while_busy, text in _TIMES:
        used = utilisation(book.measured, while_busy=while_busy)
        if used is None:
            continue
        fields = ("mfu", "mfu_causal", "hfu") if name == "mfu" else ("hfu",)
        for field in fields:
            value = getattr(used, field)
            if value is None:
                continue
            low = high = value
            if not while_busy and clock is not None and clock.low and clock.high:
                low, high = value * clock.value / clock.high, value * clock.value / clock.low
            how = f"{field.upper().replace('_', ', ')}, of {used.peaks_text}, {text}"
            code = "while-busy" if while_busy else "executed-flops" if field == "hfu" else "causal"
            yield Answer(value, how, "the run and the device's peaks", low, high), Finding(code, how, value)
    if book.device is None or name != "mfu":
        return
    precision = main_precision(book.ledger) or "fp32"
    asked = _FP32 if precision in _FP32 else (precision,)
    for while_busy, text in _TIMES:
        done = rates(book.measured, while_busy=while_busy)
        for roof in (roof for roof in roofs_of(book.device).compute if roof.precision in asked):
            for what, rate in (("useful", done.useful_flops_per_s), ("executed", done.executed_flops_per_s)):
                if rate is not None:
                    how = f"{what} FLOPs {text}, of the {roof.precision} peak"
                    value = rate / roof.flops_per_s
                    yield Answer(value, how, "the run"), Finding("of-the-peak", how, value)


def _by_rows(judge: ClaimsJudge, claim: Claim, why: CannotTell) -> JudgedClaim:
    """Speed by peak, both of the table or of the device."""
    times = rate_terms.times(judge, claim)
    speeds = [as_term(way) for way in quotients(rate_terms.work(judge, claim), times)]
    try:
        found = decided(claim, list(quotients(speeds, rate_terms.peaks(judge, claim))), why)
    except CannotTell:
        found = None
    if found is None:
        raise why
    return found
