"""Mistakes over several rows: a total that is no sum, two conventions in one table, one batch under another's label."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from rooflight.claims import estimated
from rooflight.claims.amounts import Amount
from rooflight.claims.book import scope_of
from rooflight.claims.claim import Claim
from rooflight.claims.concluding import run_of
from rooflight.claims.judging import Judge
from rooflight.claims.own import SUMMED, batches_between, is_total
from rooflight.claims.result import Candidate, CannotTell, Finding, Judged

_COVERED = 0.999
"""So much of the total the rows must be for it to be their sum."""
_RUN_FINDINGS = ("scopes-mixed", "peak-of-another-precision", "above-the-roof", "board-for-die")
_OF_A_RUN = ("performance", "traffic", "intensity", "throughput", "time", "bound", "roof_share")


def findings(judge: Judge, rows: list[Judged]) -> Iterator[Finding]:
    """What is wrong with several rows together."""
    yield from _totals(judge, rows)
    yield from _mixed_work(rows)
    yield from _same_macs(rows)
    yield from _mixed_units(rows)
    yield from _batches(rows)
    yield from _models(rows)
    yield from _replicas(rows)
    yield from _disagreeing(rows)
    yield from _runs(judge, rows)


def settled(judge: Judge, rows: list[Judged]) -> list[Judged]:
    """A total that is right only in a convention that its own rows do not share is wrong."""
    sums = {found.rows[0]: found for found in _totals(judge, rows)}
    return [_settled(row, sums.get(row.claim.row)) for row in rows]


def _settled(row: Judged, found: Finding | None) -> Judged:
    if found is None or row.verdict != "convention" or row.answer is None:
        return row
    candidate = Candidate(found.code, found.text, row.answer.value)
    return replace(row, verdict="wrong", because=(candidate, *row.because))


def _name(row: Judged | Claim) -> str:
    claim = row.claim if isinstance(row, Judged) else row
    return claim.named.quantity.name if claim.named is not None else ""


def _totals(judge: Judge, rows: list[Judged]) -> Iterator[Finding]:
    for row in rows:
        claim = row.claim
        if _name(claim) not in SUMMED or not is_total(claim) or not isinstance(claim.stated, Amount):
            continue
        made = judge.table.sum_of_rows(claim)
        if made is None or isinstance(made.value, (str, tuple)) or not made.value or _covered(judge, claim) is None:
            continue
        slack = sum((_half(part, claim) for part in judge.table.layers_of(claim)), Fraction(0))
        if claim.stated.touches(Fraction(made.value) - slack, Fraction(made.value) + slack):
            continue
        ratio = float(claim.stated.value / Fraction(made.value))
        text = (
            f"row {claim.row} is no sum of its rows: {made.how} is {float(made.value):,.12g}, {1 / ratio:.3g} times it"
        )
        yield Finding("total-not-the-sum", text, (claim.row, *made.rows))


def _half(part: Claim, total: Claim) -> Fraction:
    """By how much a rounded row may be off in the sum."""
    assert isinstance(part.stated, Amount)
    if part.stated.low is None or part.stated.high is None:
        return Fraction(0)
    return (part.stated.high - part.stated.low) / 2 * batches_between(part, total)


def _covered(judge: Judge, total: Claim) -> float | None:
    """Are the rows all that the total has, by the ledger? `None` where they are not, or it cannot tell."""
    name = _name(total)
    if name not in estimated.ANSWERS:
        return None
    try:
        whole = estimated.ANSWERS[name](scope_of(judge.book, replace(total, batch=None), name)).value
        parts = [
            estimated.ANSWERS[name](scope_of(judge.book, replace(claim, batch=None), name)).value
            for claim in judge.table.layers_of(total)
        ]
    except CannotTell:
        return None
    if isinstance(whole, (str, tuple)) or not whole:
        return None
    share = float(sum(Fraction(part) for part in parts if not isinstance(part, (str, tuple))) / Fraction(whole))
    return share if _COVERED < share < 2 - _COVERED else None


def _mixed_work(rows: list[Judged]) -> Iterator[Finding]:
    """FLOPs in some rows, multiply-adds under the same name in others."""
    work = [row for row in rows if _name(row) in ("flops", "ops") and row.answer is not None and row.answer.value]
    once = [row for row in work if row.says("macs-for-flops") or row.says("macs-and-bias")]
    twice = [row for row in work if row.verdict == "right" and not _is_mac(row) and _is_matrix_work(row)]
    if once and twice:
        text = (
            f"multiply-adds and FLOPs in one table: a multiply-add counts once in {_listed(once)}, and as 2, as peaks "
            f"count it, in {_listed(twice)}"
        )
        yield Finding("macs-and-flops-mixed", text, tuple(row.claim.row for row in (*once, *twice)))
    against = [row for row in rows if row.says("macs-against-a-peak")]
    if len(against) > 1:
        text = f"{_listed(against)}: multiply-adds against a peak that counts a multiply-add as 2: times come out half"
        yield Finding("macs-against-a-peak", text, tuple(row.claim.row for row in against))


def _is_matrix_work(row: Judged) -> bool:
    return row.answer is not None and row.answer.origin.startswith("formula ")


def _is_mac(row: Judged) -> bool:
    return isinstance(row.claim.stated, Amount) and row.claim.stated.unit.dimension == "mac"


def _same_macs(rows: list[Judged]) -> Iterator[Finding]:
    """One number as FLOPs and as multiply-adds of the same thing: whichever is meant, the other is wrong."""
    named: dict[tuple[object, ...], dict[str, list[Claim]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        claim = row.claim
        if _name(claim) in ("flops", "ops", "macs") and isinstance(claim.stated, Amount) and claim.stated.value:
            dimension = claim.stated.unit.dimension
            counted = dimension if claim.stated.unit.text else "mac" if _name(claim) == "macs" else "flop"
            if not claim.stated.bound:
                named[_subject(claim)][counted].append(claim)
    for kinds in named.values():
        for flops in kinds["flop"]:
            for macs in kinds["mac"]:
                if _overlap(flops, macs):
                    text = (
                        f"rows {flops.row} and {macs.row} state one number, {flops.value}, as FLOPs and as "
                        "multiply-adds: a multiply-add is 2 FLOPs, so one of them is wrong"
                    )
                    yield Finding("macs-equal-flops", text, (flops.row, macs.row))


def _subject(claim: Claim) -> tuple[object, ...]:
    """What a row is of, whatever it states of it."""
    assert claim.named is not None
    return (claim.layer.lower(), claim.named.per_sample, claim.batch, claim.step, claim.precision, claim.device.lower(),
            claim.model.lower())  # fmt: skip


def _mixed_units(rows: list[Judged]) -> Iterator[Finding]:
    """KB that are KiB in one row and KB in the other."""
    binary = [row for row in rows if row.says("binary-prefix")]
    decimal = [
        row
        for row in rows
        if row.verdict == "right"
        and isinstance(row.claim.stated, Amount)
        and row.claim.stated.unit.dimension in ("byte", "byte/s")
        and row.claim.stated.unit.power
        and not row.claim.stated.unit.binary
    ]
    if binary and decimal:
        text = f"powers of 1,000 and of 1,024 under one kind of unit: {_listed(binary)} against {_listed(decimal)}"
        yield Finding("units-mixed", text, tuple(row.claim.row for row in (*binary, *decimal)))


def _batches(rows: list[Judged]) -> Iterator[Finding]:
    """Rows that are right at one other batch."""
    found = [row for row in rows if row.says("batch-missing") or row.says("batch-mislabelled")]
    by_text: dict[str, list[Judged]] = defaultdict(list)
    for row in found:
        for candidate in row.because:
            if {"batch-missing", "batch-mislabelled"}.intersection(candidate.code.split("+")):
                by_text[candidate.text.partition(":")[0].partition(";")[0]].append(row)
    for group in by_text.values():
        if len(group) > 1:
            text = next(c.text for c in group[0].because if "batch" in c.code)
            yield Finding("batch-mislabelled", f"{_listed(group)}: {text}", tuple(row.claim.row for row in group))


def _models(rows: list[Judged]) -> Iterator[Finding]:
    found = [row for row in rows if row.says("another-model")]
    if len(found) > 1:
        text = next(candidate.text for candidate in found[0].because if "another-model" in candidate.code)
        yield Finding("another-model", f"{_listed(found)}: {text}", tuple(row.claim.row for row in found))


def _replicas(rows: list[Judged]) -> Iterator[Finding]:
    found = [row for row in rows if row.says("replicas-counted")]
    if len(found) > 1:
        text = f"{_listed(found)}: replicas hold copies, and a model's parameters are there once"
        yield Finding("replicas-counted", text, tuple(row.claim.row for row in found))


def _disagreeing(rows: list[Judged]) -> Iterator[Finding]:
    """Two values of one thing, which must not both stand without a word."""
    groups: dict[tuple[object, ...], list[Judged]] = defaultdict(list)
    for row in rows:
        claim = row.claim
        if isinstance(claim.stated, Amount) and claim.named is not None and not claim.stated.bound:
            key = (*_subject(claim), claim.named.quantity.name, claim.named.metric,
                   claim.quantity.lower() if claim.named.parts else "")  # fmt: skip
            groups[key].append(row)
    for group in groups.values():
        first, *others = group
        apart = [row for row in others if not _both_right(first, row) and not _overlap(first.claim, row.claim)]
        if apart:
            said = "; ".join(f"{_stated(row)}: {_why(row)}" for row in (first, *apart))
            yield Finding("disagreeing", f"two values of one thing: {said}", tuple(row.claim.row for row in group))


def _both_right(one: Judged, other: Judged) -> bool:
    """Then they are one value in two units, as FLOPs and the multiply-adds that a unit names."""
    return one.verdict == other.verdict == "right"


def _stated(row: Judged) -> str:
    note = f" by {row.claim.note}" if row.claim.note else ""
    return f"row {row.claim.row} says {row.claim.value}{note}"


def _why(row: Judged) -> str:
    if row.verdict == "right":
        return "right"
    return row.because[0].text if row.because else row.reason or "nothing explains it"


def _overlap(one: Claim, other: Claim) -> bool:
    assert isinstance(one.stated, Amount) and isinstance(other.stated, Amount)
    if other.stated.low is None or other.stated.high is None:
        return True
    return one.stated.touches(other.stated.low, other.stated.high)


def _runs(judge: Judge, rows: list[Judged]) -> Iterator[Finding]:
    """Numbers of one run that do not belong together."""
    said: dict[tuple[str, str], list[Judged]] = defaultdict(list)
    of: dict[tuple[str, str], set[int]] = defaultdict(set)
    for row in rows:
        claim = row.claim
        if _name(claim) not in _OF_A_RUN or not claim.device:
            continue
        run = run_of(judge.book, judge.table, claim)
        for found in run.judgement.findings if run is not None else ():
            if run is not None and found.code in _RUN_FINDINGS:
                said[found.code, found.text].append(row)
                of[found.code, found.text].update((claim.row, *run.rows))
    for (code, text), concerned in said.items():
        yield Finding(code, f"{_listed(concerned)}: {text}", tuple(sorted(of[code, text])))


def _listed(rows: list[Judged]) -> str:
    numbers = [str(row.claim.row) for row in rows]
    shown = ", ".join(numbers[:8]) + (", ..." if len(numbers) > 8 else "")
    return f"{'row' if len(numbers) == 1 else 'rows'} {shown}"
