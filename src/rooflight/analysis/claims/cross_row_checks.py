"""Mistakes over several rows: a total that is no sum, two conventions in one table, one batch under another's label."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from rooflight.analysis.claims import matching
from rooflight.analysis.claims.claim import Amount, Answer, CannotTell, Claim, JudgedClaim, number_of, unknown
from rooflight.analysis.claims.device_claims import run_of
from rooflight.analysis.claims.estimated_answers import ANSWERS
from rooflight.analysis.claims.judging import ClaimsJudge, times_batch
from rooflight.analysis.claims.ledger_query import scope_of
from rooflight.analysis.finding import Finding

_COVERED = 0.999
"""So much of the total the rows must be for it to be their sum."""
_RUN_FINDINGS = ("scopes-mixed", "peak-of-another-precision", "above-the-roof", "board-for-die")
_OF_A_ROOF, _UNDER_A_ROOF = "peak-of-another-precision", ("bound", "roof_share")
"""A peak that a table has for reference is no mistake: only what is concluded from it."""
_OF_A_RUN = ("performance", "traffic", "intensity", "throughput", "time", "bound", "roof_share")


def findings(judge: ClaimsJudge, rows: list[JudgedClaim]) -> Iterator[Finding]:
    """What is wrong with several rows together."""
    yield from _totals(judge, rows)
    yield from _mixed_work(rows)
    text = "multiply-adds against a peak that counts a multiply-add as 2: times come out half"
    yield from _shared(rows, "macs-against-a-peak", text)
    yield from _same_macs(rows)
    yield from _mixed_units(rows)
    yield from _batches(rows)
    yield from _shared(rows, "another-model")
    yield from _shared(rows, "replicas-counted", "replicas hold copies, and a model's parameters are there once")
    yield from _disagreeing(rows)
    yield from _runs(judge, rows)


def settled(judge: ClaimsJudge, rows: list[JudgedClaim]) -> list[JudgedClaim]:
    """A total that is right only in a convention that its own rows do not share is wrong."""
    sums = {finding.rows[0]: finding for finding in _totals(judge, rows)}
    rows = list(rows)
    for place, row in enumerate(rows):
        if row.claim.row in sums and row.verdict == "convention" and row.answer is not None:
            no_sum = replace(sums[row.claim.row], value=row.answer.value, rows=())
            rows[place] = replace(row, verdict="wrong", because=(no_sum, *row.because))
    return _of_another_batch(judge, _swapped(rows))


def _swapped(rows: list[JudgedClaim]) -> list[JudgedClaim]:
    """FLOPs that are the multiply-adds beside multiply-adds that are the FLOPs: no convention has half as many FLOPs as
    multiply-adds."""
    once = {_subject(row.claim) for row in rows if row.verdict == "convention" and row.says("macs-for-flops")}
    twice = {_subject(row.claim) for row in rows if row.verdict == "convention" and row.says("flops-for-macs")}
    text = "FLOPs and multiply-adds are swapped: a multiply-add is 2 FLOPs, so that there are twice as many FLOPs"
    return [
        replace(row, verdict="wrong", because=(Finding("macs-and-flops-swapped", text),))
        if _subject(row.claim) in once & twice and (row.says("macs-for-flops") or row.says("flops-for-macs"))
        else row
        for row in rows
    ]


def _of_another_batch(judge: ClaimsJudge, rows: list[JudgedClaim]) -> list[JudgedClaim]:
    """A row that is right as multiply-adds at its batch, and as FLOPs at another one: what the other rows count tells
    which, and where they do not, nothing does."""
    work = [row for row in rows if row.claim.name in ("flops", "ops") and row.claim.amount is not None]
    others = {row.claim.row: _batch_it_fits(judge, row, work) for row in work if row.says("macs-for-flops")}
    doubtful = {number: batch for number, batch in others.items() if batch is not None}
    is_once = any(row.says("macs-for-flops") and row.claim.row not in doubtful for row in work)
    is_twice = any(row.verdict == "right" for row in work)
    return [
        _doubted(row, doubtful[row.claim.row], is_twice=is_twice)
        if row.claim.row in doubtful and row.verdict == "convention" and not (is_once and not is_twice)
        else row
        for row in rows
    ]


def _batch_it_fits(judge: ClaimsJudge, row: JudgedClaim, work: list[JudgedClaim]) -> int | None:
    """Another batch, of the ledger or of the table, at which a row that names its batch states the FLOPs."""
    claim, right_value = row.claim, None if row.answer is None else number_of(row.answer.value)
    if claim.batch is None or not right_value or claim.amount is None:
        return None
    for other in dict.fromkeys((judge.book(claim).ledger.header.batch, *(row.claim.batch for row in work))):
        if other not in (None, claim.batch) and claim.amount.holds(right_value * Fraction(other or 1, claim.batch)):
            return other
    return None


def _doubted(row: JudgedClaim, batch: int, *, is_twice: bool) -> JudgedClaim:
    text = f"these are the FLOPs of batch {batch}, and the row says {row.claim.batch}"
    if is_twice:
        return replace(row, verdict="wrong", because=(Finding("batch-mislabelled", text), *row.because), ambiguous=True)
    reason = f"either {text}; or multiply-adds at batch {row.claim.batch}, called FLOPs: nothing in the table tells"
    return unknown(row.claim, reason, "GMAC or GFLOP behind the value")


def _over(code: str, text: str, *rows: JudgedClaim) -> Finding:
    return Finding(code, text, rows=tuple(row.claim.row for row in rows))


def _shared(rows: list[JudgedClaim], code: str, text: str = "") -> Iterator[Finding]:
    """One mistake that several rows have; without a text, those of which the same is said."""
    groups: dict[str, list[JudgedClaim]] = defaultdict(list)
    for row in rows:
        if (found := next((finding for finding in row.because if code in finding.codes), None)) is not None:
            groups[text or found.text].append(row)
    for said, concerned in groups.items():
        if len(concerned) > 1:
            yield _over(code, f"{_listed(concerned)}: {said}", *concerned)


def _totals(judge: ClaimsJudge, rows: list[JudgedClaim]) -> Iterator[Finding]:
    for row in rows:
        claim = row.claim
        if not isinstance(claim.stated, Amount) or (added := judge.table.sum_of_rows(claim)) is None:
            continue
        if not added.number or not _covers(judge, claim):
            continue
        if matching.states(claim.stated, added):
            continue
        text = f"row {claim.row} is no sum of its rows: {added.how} is {float(added.number):,.12g}"
        if claim.stated.value:
            text += f", {float(added.number / claim.stated.value):.3g} times it"
        if (batch := _batch_between(judge, claim, added)) is not None:
            text += f": {batch}"
        yield Finding("total-not-the-sum", text, rows=(claim.row, *added.rows))


def _batch_between(judge: ClaimsJudge, claim: Claim, added: Answer) -> str | None:
    """Is the total that of a batch, and its rows of one sample, or the other way round?"""
    for batch in judge.batches(claim):
        if matching.states(claim.stated, times_batch(added, Fraction(batch))):
            if batch == 2 and claim.name in ("flops", "ops", "macs"):
                return "it is twice them, as if a multiply-add counted once in them and as 2 in it"
            return f"it is {batch} times them, as if they were of one sample and it of batch {batch}"
        if matching.states(claim.stated, times_batch(added, Fraction(1, batch))):
            if batch == 2 and claim.name in ("flops", "ops", "macs"):
                return "it is half of them, as if a multiply-add counted as 2 in them and once in it"
            return f"it is 1/{batch} of them, as if they were of batch {batch} and it of one sample"
    return None


def _covers(judge: ClaimsJudge, total: Claim) -> bool:
    """Are the rows all that the total has, by the ledger? Not where it cannot tell."""
    if total.name not in ANSWERS:
        return False
    try:
        right, *parts = (
            number_of(ANSWERS[total.name](scope_of(judge.book(total), replace(claim, batch=None), total.name)).value)
            for claim in (total, *judge.table.layers_of(total))
        )
    except CannotTell:
        return False
    return right is not None and right != 0 and _COVERED < float(sum(filter(None, parts)) / right) < 2 - _COVERED


def _mixed_work(rows: list[JudgedClaim]) -> Iterator[Finding]:
    """FLOPs in some rows, multiply-adds under the same name in others."""
    work = [row for row in rows if row.claim.name in ("flops", "ops") and row.answer is not None and row.answer.value]
    once = [row for row in work if row.says("macs-for-flops") or row.says("macs-and-bias")]
    of_matrices = (row for row in work if row.answer is not None and row.answer.origin.startswith("formula "))
    twice = [row for row in of_matrices if row.verdict == "right" and not row.claim.counts_macs]
    if once and twice:
        text = (
            f"multiply-adds and FLOPs in one table: a multiply-add counts once in {_listed(once)}, and as 2, as peaks "
            f"count it, in {_listed(twice)}"
        )
        yield _over("macs-and-flops-mixed", text, *once, *twice)


def _same_macs(rows: list[JudgedClaim]) -> Iterator[Finding]:
    """One number as FLOPs and as multiply-adds of the same thing: whichever is meant, the other is wrong."""
    named: dict[tuple[object, ...], dict[str, list[Claim]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.claim.name in ("flops", "ops", "macs") and row.claim.amount is not None and row.claim.amount.value:
            named[_subject(row.claim)][row.claim.amount.unit.base].append(row.claim)
    for kinds in named.values():
        for flops in kinds["flop"]:
            for macs in kinds["mac"]:
                if _overlap(flops, macs):
                    text = (
                        f"rows {flops.row} and {macs.row} state one number, {flops.value}, as FLOPs and as "
                        "multiply-adds: a multiply-add is 2 FLOPs, so one of them is wrong"
                    )
                    yield Finding("macs-equal-flops", text, rows=(flops.row, macs.row))


def _subject(claim: Claim) -> tuple[object, ...]:
    """What a row is of, whatever it states of it."""
    words = (claim.layer, claim.precision, claim.device, claim.model)
    return (*map(str.lower, words), claim.per_sample, claim.batch, claim.step)


def _mixed_units(rows: list[JudgedClaim]) -> Iterator[Finding]:
    """KB that are KiB in one row and KB in the other."""
    binary = [row for row in rows if row.says("binary-prefix")]
    decimal = [
        row
        for row in rows
        if row.verdict == "right"
        and isinstance(row.claim.stated, Amount)
        and row.claim.stated.unit.base in ("byte", "byte/second")
        and row.claim.stated.unit.power
        and not row.claim.stated.unit.binary
    ]
    if binary and decimal:
        text = f"powers of 1,000 and of 1,024 under one kind of unit: {_listed(binary)} against {_listed(decimal)}"
        yield _over("units-mixed", text, *binary, *decimal)


def _batches(rows: list[JudgedClaim]) -> Iterator[Finding]:
    """Rows that are right at one other batch."""
    by_text: dict[str, list[JudgedClaim]] = defaultdict(list)
    for row in rows:
        for finding in row.because:
            if {"batch-missing", "batch-mislabelled"}.intersection(finding.codes):
                group = by_text[finding.text.partition(":")[0].partition(";")[0]]
                if row not in group:
                    group.append(row)
    for group in by_text.values():
        if len(group) > 1:
            text = next(c.text for c in group[0].because if "batch" in c.code)
            yield _over("batch-mislabelled", f"{_listed(group)}: {text}", *group)


def _disagreeing(rows: list[JudgedClaim]) -> Iterator[Finding]:
    """Two values of one thing, which must not both stand without a word. Two that are both right are one value in two
    units, as FLOPs and the multiply-adds that a unit names."""
    groups: dict[tuple[object, ...], list[JudgedClaim]] = defaultdict(list)
    for row in rows:
        claim = row.claim
        if claim.amount is not None and claim.named is not None:
            written = claim.quantity.lower() if claim.named.parts else ""
            groups[*_subject(claim), claim.name, claim.named.metric, written].append(row)
    for group in groups.values():
        first, *others = group
        apart = [
            row
            for row in others
            if not first.verdict == row.verdict == "right" and not _overlap(first.claim, row.claim)
        ]
        if apart:
            said = "; ".join(map(_stated, (first, *apart)))
            yield _over("disagreeing", f"two values of one thing: {said}", *group)


def _stated(row: JudgedClaim) -> str:
    note = f" by {row.claim.note}" if row.claim.note else ""
    why = row.because[0].text if row.because else row.reason or "nothing explains it"
    return f"row {row.claim.row} says {row.claim.value}{note}: {'right' if row.verdict == 'right' else why}"


def _overlap(claim: Claim, other: Claim) -> bool:
    assert isinstance(claim.stated, Amount) and isinstance(other.stated, Amount)
    if other.stated.low is None or other.stated.high is None:
        return True
    return claim.stated.touches(other.stated.low, other.stated.high)


def _runs(judge: ClaimsJudge, rows: list[JudgedClaim]) -> Iterator[Finding]:
    """Numbers of one run that do not belong together."""
    concerned: dict[tuple[str, str], list[JudgedClaim]] = defaultdict(list)
    numbers: dict[tuple[str, str], set[int]] = defaultdict(set)
    for row in rows:
        claim = row.claim
        run = run_of(judge, claim) if claim.name in _OF_A_RUN and claim.device else None
        if run is None:
            continue
        for finding in run[0].findings:
            is_by_wall = finding.code == "scopes-mixed" and claim.name == "throughput"  # samples come by the wall
            is_told = finding.code != _OF_A_ROOF or claim.name in _UNDER_A_ROOF
            if finding.code in _RUN_FINDINGS and is_told and not is_by_wall:
                concerned[finding.code, finding.text].append(row)
                numbers[finding.code, finding.text].update((claim.row, *run[1]))
    for (code, text), group in concerned.items():
        yield Finding(code, f"{_listed(group)}: {text}", rows=tuple(sorted(numbers[code, text])))


def _listed(rows: list[JudgedClaim]) -> str:
    numbers = [str(row.claim.row) for row in rows]
    shown = ", ".join(numbers[:8]) + (", ..." if len(numbers) > 8 else "")
    return f"{'row' if len(numbers) == 1 else 'rows'} {shown}"
