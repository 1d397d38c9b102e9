"""Times, rates and intensities of a run. They are judged by a measurement of that run, by the table's own rows, and by
what nothing beats; never by FLOPs over a peak, unless the row says that it was computed so, or its very value does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from rooflight.analysis.claims import device_claims, matching, measured_answers, rate_terms
from rooflight.analysis.claims.claim import (
    Amount,
    Answer,
    CannotTell,
    Claim,
    JudgedClaim,
    right,
    right_by,
    unknown,
    wrong,
)
from rooflight.analysis.claims.ledger_query import device_of, scope_of
from rooflight.analysis.claims.physical_limits import broken, limits
from rooflight.analysis.claims.rate_terms import Way, as_term, quotients
from rooflight.analysis.claims.row_inference import TIMES
from rooflight.analysis.finding import Finding
from rooflight.formatting import seconds

if TYPE_CHECKING:
    from rooflight.analysis.claims.judging import ClaimsJudge

RATES = ("performance", "traffic", "throughput")
_FAR = 10
"""A speed that is so many times what its rows give is of nothing that they are of."""
_SLIPS = {"off-by-ten": (Fraction(10), Fraction(100)), "prefix": (Fraction(1000), Fraction(10**6), Fraction(10**9))}


def judged_rate(judge: ClaimsJudge, claim: Claim) -> JudgedClaim:
    """The verdict on a time or a rate."""
    if claim.per_sample and claim.name in TIMES:
        return _of_a_sample(judge, claim)
    why = CannotTell("the row is an estimate", "rows of FLOPs and of a peak, with their device")
    if claim.kind != "estimated":
        try:
            return _of_one_clock(judge, judge.compared(judge.case(claim)))
        except CannotTell as reason:
            why = reason
    ways = list(_ways(judge, claim))
    found = decided(claim, ways, why)
    if found is not None:
        return found
    models = list(_models(judge, claim))
    found = decided(claim, models, CannotTell("FLOPs over a peak, as if every unit were always busy"))
    if found is not None:
        return found
    assert claim.named is not None
    if not claim.named.is_by_peak and (impossible := broken(judge, claim)) is not None:
        return impossible
    if claim.named.is_by_peak and (by := _first_right(models)) is not None:
        return wrong(claim, by, reason=f"off by {_times(claim, by)}")
    if claim.name in TIMES and (outvoted := _outvoted(judge, claim)) is not None:
        return outvoted
    return _not_following(claim, ways) or _unknown(judge, claim, why, ways)


def _of_a_sample(judge: ClaimsJudge, claim: Claim) -> JudgedClaim:
    """A time for one sample: that of its step by its batch."""
    batch = claim.batch or judge.book(claim).ledger.header.batch
    if batch is None or claim.named is None or not isinstance(claim.stated, Amount):
        raise CannotTell("a time for one sample needs the batch of the step", "the column batch")
    named = replace(claim.named, per_sample=False)
    judged = judge.judged_anew(replace(claim, named=named, stated=claim.stated.times(Fraction(batch))))
    answer = judged.answer
    if answer is not None:
        low, high = (None if end is None else Fraction(end) / batch for end in (answer.low, answer.high))
        answer = replace(answer, value=answer.number / batch, low=low, high=high, how=f"({answer.how}) / batch {batch}")
    reason = f"of a step of {batch}: {judged.reason}" if judged.reason else ""
    return replace(judged, claim=claim, answer=answer, reason=reason)


def _of_one_clock(judge: ClaimsJudge, judged: JudgedClaim) -> JudgedClaim:
    """A speed while the GPU is busy, in a table that has no other time than the wall's, is by another clock than its
    own rows. Bytes a second may be of the bytes that the table states."""
    claim, table = judged.claim, judge.table
    if judged.verdict == "wrong" and claim.name == "traffic" and table.find(("bytes",), claim) is not None:
        return decided(claim, [way for way in _ways(judge, claim) if not way.flaws], CannotTell("")) or judged
    if judged.verdict != "convention" or not judged.says("while-busy"):
        return judged
    wall, busy = table.find(("wall_time",), claim), table.find(("gpu_busy", "kernel_time"), claim)
    if wall is None or busy is not None or judged.answer is None:
        return judged
    text = f"by the GPU-busy time, while the table's own time (row {wall.claim.row}) is by the wall"
    return wrong(claim, judged.answer, Finding("time-scopes-mixed", text, judged.answer.value))


def judged_intensity(judge: ClaimsJudge, claim: Claim) -> JudgedClaim | None:
    """The verdict on the intensity of a run on a device by the table's rows; `None` where they tell nothing."""
    ways = list(quotients(rate_terms.work(judge, claim), rate_terms.moved(judge, claim)))
    return decided(claim, ways, CannotTell("")) or _not_following(claim, ways)


def judged_roof_share(judge: ClaimsJudge, claim: Claim) -> JudgedClaim:
    """The verdict on a percent of the roof."""
    book, device = judge.book(claim), device_of(claim)
    if book.is_measured and device in (None, book.device):
        scope = scope_of(book, claim, "roof_share")
        measured_answers.check_run(book, claim, device)
        shares = measured_answers.shares(scope)
        answer = next((share for share in shares if matching.states(claim.stated, share)), shares[0])
    else:
        run = device_claims.run_of(judge, claim)
        if run is None or run[0].percent_of_roof is None:
            raise CannotTell(
                "a share of the roof needs FLOPs, bytes and a time on a device",
                "rows of FLOPs, DRAM bytes and time with their device",
            )
        judged, rows = run
        origin = f"the table and the roofs of {judged.given.device.title}"
        answer = Answer(run[0].percent_of_roof / 100, judged.text[0], origin, rows=rows)
        if not matching.states(claim.stated, answer):
            return _share_by_rows(judge, claim, answer)
    return right(claim, answer) if matching.states(claim.stated, answer) else wrong(claim, answer)


def _share_by_rows(judge: ClaimsJudge, claim: Claim, by: Answer) -> JudgedClaim:
    """The verdict on a percent of the roof that is not `by`, the one that its rows give: of the peak, whatever the
    intensity; of the bandwidth; or of a peak that is none of this work."""
    times = rate_terms.times(judge, claim)
    speeds = [as_term(way) for way in quotients(rate_terms.work(judge, claim), times)]
    ways = list(quotients(speeds, rate_terms.peaks(judge, claim)))
    moved = [as_term(way) for way in quotients(rate_terms.moved(judge, claim), times)]
    ways += quotients(moved, rate_terms.bandwidths(claim))
    plain = Finding("of-the-peak", "percent of a peak, and not of the roof at this intensity")
    asked = [replace(way, flaws=(plain,)) if not way.flaws else way for way in ways]
    found = decided(claim, [Way(by, (), False, True), *asked], CannotTell(""))
    text = f"its rows give {100 * float(by.number):.4g}%, not this"
    return found or wrong(claim, by, Finding("does-not-follow", text, by.value))


def _ways(judge: ClaimsJudge, claim: Claim) -> Iterator[Way]:
    """From the table's own rows, and the ledger's work by the table's times."""
    times = rate_terms.times(judge, claim) if claim.name in RATES else []
    if not times:
        return
    if claim.name == "performance":
        yield from quotients(rate_terms.work(judge, claim), times)
    elif claim.name == "traffic":
        yield from quotients(rate_terms.moved(judge, claim), times)
    else:
        yield from quotients(rate_terms.batches(judge, claim), times)


def _models(judge: ClaimsJudge, claim: Claim) -> Iterator[Way]:
    """FLOPs over a peak: only of a time that does not say whose it is, and never of a measured one."""
    if claim.kind == "measured" or (claim.kind is None and claim.name not in ("time", "throughput")):
        return
    if claim.name not in (*TIMES, "throughput"):
        return
    of_step = list(quotients(rate_terms.work(judge, claim, thorough=claim.kind == "estimated"),
                             rate_terms.peaks(judge, claim)))  # fmt: skip
    if claim.name != "throughput":
        yield from of_step
        return
    yield from quotients(rate_terms.batches(judge, claim), map(as_term, of_step))


def _first_right(ways: Sequence[Way]) -> Answer | None:
    return next((way.answer for way in ways if not way.flaws), None)


def decided(claim: Claim, ways: Sequence[Way], why: CannotTell) -> JudgedClaim | None:
    """The verdict by the first way that gives the stated value: the right ones, then other conventions, then mistakes,
    of which the simplest."""
    by = _first_right(ways)
    for way in ways:
        if not way.flaws and matching.states(claim.stated, way.answer):
            said = f"it follows from the table itself; {why.reason}" if way.answer.rows else why.reason
            return right(claim, way.answer, said.removesuffix("; "))
    if by is not None and (prefix := matching.by_prefix(claim.stated, by)) is not None:
        return right_by(claim, by, prefix)
    flawed = [
        way
        for way in ways
        if way.flaws and (_is_telling(claim) or not way.is_wrong or "follows-from-its-rows" in way.finding.codes)
        if matching.states(claim.stated, way.answer)
    ]
    if (other := next((way for way in flawed if not way.is_wrong), None)) is not None:
        return right_by(claim, by or other.answer, other.finding)
    simplest = sorted(flawed, key=lambda way: len(way.flaws))
    if not simplest:
        return None
    if by is None:
        text = simplest[0].finding.text
        return unknown(claim, f"it follows from rows that are wrong, and nothing tells the right ones: {text}")
    because = _unlike([way.finding for way in simplest if len(way.flaws) == len(simplest[0].flaws)])
    return replace(wrong(claim, by, *because), ambiguous=len(because) > 1)


def _unlike(findings: Sequence[Finding]) -> list[Finding]:
    """Those that say something of their own: none that says all of another, and more."""
    by_codes: dict[frozenset[str], Finding] = {}
    for finding in sorted(findings, key=lambda finding: len(finding.codes)):
        if not any(codes <= frozenset(finding.codes) for codes in by_codes):
            by_codes[frozenset(finding.codes)] = finding
    return list(by_codes.values())[: matching.MOST]


def _is_telling(claim: Claim) -> bool:
    """A number of two digits is anybody's: no mistake is known by it."""
    return isinstance(claim.stated, Amount) and claim.stated.spread <= matching.MOST_SPREAD


def _not_following(claim: Claim, ways: Sequence[Way]) -> JudgedClaim | None:
    """Rows of one run that were counted and timed leave nothing open; of work by formula a speed may be another one,
    but not tenfold."""
    stated = claim.amount
    plain = [way.answer for way in ways if not way.flaws]
    if stated is None or not plain:
        return None
    counted = [way.answer for way in ways if not way.flaws and way.is_counted]
    by = (counted or plain)[0]
    if counted or (by.number and not Fraction(1, _FAR) < stated.value / by.number < _FAR):
        text = f"{by.how} gives {float(by.number):,.6g}, not this"
        slips = [Finding(code, f"{text}: {factor} times too {side}", by.value)
                 for code, factors in _SLIPS.items() for factor in factors
                 for side, times in (("large", factor), ("small", 1 / factor))
                 if stated.touches(*(Fraction(end or by.number) * times for end in (by.low, by.high)))]  # fmt: skip
        return wrong(claim, by, *(slips[:1] or [Finding("does-not-follow", text, by.value)]))
    return None


def _unknown(judge: ClaimsJudge, claim: Claim, why: CannotTell, ways: Sequence[Way]) -> JudgedClaim:
    reason, needs = why.reason, why.needs
    book = judge.book(claim)
    if claim.name == "time" and book.is_measured and device_of(claim) in (None, book.device):
        times = measured_answers.scopes_of_time(scope_of(book, claim, "wall_time"))
        if (time := next(matching.matching(claim.stated, times), None)) is not None:
            reason += f"; the value is that of {time.text}"
    found = limits(judge, claim) if claim.name in TIMES and isinstance(claim.stated, Amount) else None
    if found is not None and found.least_s and isinstance(claim.stated, Amount):
        least = seconds(float(found.least_s))
        is_below = claim.stated.value < found.least_s
        reason += f"; the figures of the device allow no less than {least}, and this is below it by less than what "
        reason += "higher clocks and rounding leave open" if is_below else ""
        if not is_below:
            reason = reason.rpartition(";")[0] + f"; it is possible: nothing does it in less than {least}"
    if (agrees := _agreeing(judge, claim)) is not None:
        reason += f"; it agrees with {agrees}"
    elif (by := _first_right(ways)) is not None:
        reason += f"; {by.how} gives {float(by.number):,.6g}: of other FLOPs or another time? Say it in a column kind"
    if claim.name in ("time", "throughput") and claim.kind is None:
        needs += f"{'; or ' if needs else ''}kind=estimated where it was computed as FLOPs / peak"
    return unknown(claim, reason, needs)


def _agreeing(judge: ClaimsJudge, claim: Claim) -> str | None:
    """Rows whose quotient is this time."""
    if claim.name not in TIMES:
        return None
    return next((time.how for time in _implied(judge, claim) if matching.states(claim.stated, time)), None)


def _implied(judge: ClaimsJudge, claim: Claim) -> Iterator[Answer]:
    """The time that other rows of the same run imply: work by a speed, bytes by a bandwidth."""
    table = judge.table
    for above, below in ((("executed_flops", "cuda_flops", "flops"), "performance"), (("dram_bytes",), "traffic")):
        over, under = table.find(above, claim), table.find((below,), claim)
        if over is not None and under is not None and under.ends[0] > 0:
            low, high = over.ends[0] / under.ends[1], over.ends[1] / under.ends[0]
            rows = (over.claim.row, under.claim.row)
            yield Answer(over.value / under.value, f"{over} / {under}", "the table", low, high, rows=rows)
    batch, rate = table.batch_of(claim), table.find(("throughput",), claim)
    if batch and rate is not None and rate.ends[0] > 0:
        low, high = (Fraction(int(batch)) / end for end in rate.ends[::-1])
        how = f"batch {batch} / {rate}"
        yield Answer(int(batch) / rate.value, how, "the table", low, high, rows=(rate.claim.row,))


def _outvoted(judge: ClaimsJudge, claim: Claim) -> JudgedClaim | None:
    """The only time of a run, that several of its speeds, which agree with each other, speak against. Speeds while the
    GPU is busy are no word against a time by the wall."""
    if claim.amount is None or judge.table.find_all(TIMES, claim, any_step=True):
        return None
    times = [time for time in _implied(judge, claim) if not matching.states(claim.stated, time)]
    for place, time in enumerate(times):
        alike = [other for other in times[place + 1 :] if _overlap(time, other)]
        may_be_busy = claim.name in ("wall_time", "time") and time.number < claim.amount.value
        if alike and not (may_be_busy and not any("batch" in other.how for other in (time, *alike))):
            text = f"{time.how} and {alike[0].how} give {seconds(float(time.number))}, not this"
            return wrong(claim, time, Finding("does-not-follow", text, time.value))
    return None


def _overlap(time: Answer, other: Answer) -> bool:
    assert None not in (time.low, time.high, other.low, other.high)
    return Fraction(time.low or 0) <= Fraction(other.high or 0) and Fraction(other.low or 0) <= Fraction(time.high or 0)


def _times(claim: Claim, by: Answer) -> str:
    stated = claim.amount
    return f"{float(stated.value / by.number):.3g}x" if stated is not None and by.number else "a lot"
