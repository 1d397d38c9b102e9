"""Mistakes inside a rate of a run that was measured: multiply-adds, a forward, the CUDA cores alone or another batch
above the line; another time, or half of the bytes, below it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from rooflight.analysis.claims import estimated_answers, formula_mistakes, measured_answers
from rooflight.analysis.claims.claim import CannotTell, number_of
from rooflight.analysis.claims.conventions import ClaimCase, Trial, conventions, only_for, tried
from rooflight.analysis.finding import Finding
from rooflight.summary.measured_step import dram_bytes

_WORK = ("flops", "executed_flops")
_CLOCKS = {"wall_time": "by the wall", "gpu_busy": "by the GPU-busy time", "kernel_time": "by the sum of the kernels"}
_USUAL = tuple(2**power for power in range(13))
"""Batches that somebody may have had in mind."""


def _part(case: ClaimCase, name: str) -> ClaimCase:
    """The same row, had it been of one side of its quotient."""
    answers = estimated_answers.ANSWERS if name in estimated_answers.ANSWERS else measured_answers.ANSWERS
    scope = case.scope.of(name)
    return replace(case, scope=scope, answer=answers[name](scope))


def _mistaken(case: ClaimCase, names: tuple[str, ...], trials: tuple[Trial, ...]) -> Iterator[Finding]:
    """What may stand above the line in place of what is right."""
    for name in names:
        try:
            part = _part(case, name)
        except CannotTell:
            continue
        for finding in (*conventions(part), *tried(trials, part)):
            if number_of(finding.value):
                yield finding


def rate_mistakes(trials: tuple[Trial, ...]) -> tuple[Trial, ...]:
    """Of rates and intensities: `trials` are those of the counts that they are made of."""

    @only_for("performance", "traffic")
    def in_a_rate(case: ClaimCase) -> Iterator[Finding]:
        names = _WORK if case.name == "performance" else ("dram_bytes",)
        above = list(_mistaken(case, names, trials))
        for clock, text in _CLOCKS.items():
            try:
                time = _part(case, clock).number
            except CannotTell:
                continue
            for finding in above:
                value = number_of(finding.value)
                assert value is not None
                yield Finding(finding.code, f"{finding.text}; {text}", value / time)
            if clock == "kernel_time":
                for name in names:
                    yield Finding("time-scopes-mixed", text, _part(case, name).number / time)

    @only_for("intensity")
    def in_an_intensity(case: ClaimCase) -> Iterator[Finding]:
        counted = dram_bytes(case.scope.book.measured) if case.scope.book.is_measured else None
        if not counted or not case.scope.is_step:
            return
        for finding in _mistaken(case, _WORK, trials):
            value = number_of(finding.value)
            assert value is not None
            yield Finding(finding.code, f"{finding.text}; by DRAM bytes", value / Fraction(counted))
        work = _part(case, "executed_flops").number
        for finding in tried(trials, _part(case, "dram_bytes")):
            if value := number_of(finding.value):
                yield Finding(finding.code, f"executed FLOPs by mistaken bytes: {finding.text}", work / value)

    @only_for("throughput")
    def in_a_throughput(case: ClaimCase) -> Iterator[Finding]:
        right = case.scope.ledger.header.batch
        for other in _USUAL if right is not None else ():
            if other not in (1, right):
                text = f"right for a batch of {other}: the step has {right}"
                yield Finding("batch-mislabelled", text, case.number * Fraction(other, right or 1))

    return in_a_rate, in_an_intensity, in_a_throughput


def share_with_others(case: ClaimCase) -> Iterator[Finding]:
    """One layer too many in a share, by any way to count it: what a filter by name did not leave out."""
    if case.name != "share" or case.scope.part.kind != "type":
        return
    for text, code, count in formula_mistakes.WAYS:
        whole = Fraction(count(case.scope.whole()))
        if not whole:
            continue
        layers: dict[Fraction, list[str]] = {}
        for scope in formula_mistakes.other_layers(case):
            if more := Fraction(count(scope)):
                share = (Fraction(count(case.scope)) + more) / whole
                layers.setdefault(share, []).append(scope.part.name)
        for share, names in layers.items():
            among = names[0] + (f" (or one of {len(names) - 1} like it)" if len(names) > 1 else "")
            said = f"{among} is in the sum, and is no {case.scope.part.name}{text}"
            yield Finding("+".join(filter(None, ("another-layer-included", code))), said, share)
