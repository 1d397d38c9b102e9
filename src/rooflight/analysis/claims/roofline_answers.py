"""A part of a step under the roofs of a device: the verdicts that `rooflight compare` shows, and no others.

What was measured lies under those of its own device. Of what was only estimated, or is asked of another device, only
the bound is told, with predicted times.
"""

from __future__ import annotations

from collections.abc import Iterator

from rooflight.analysis.claims.ledger_query import ClaimScope
from rooflight.analysis.claims.result import Answer, CannotTell
from rooflight.analysis.verdict_text import place as place_text
from rooflight.analysis.verdicts import Judge, StepVerdict, Verdict
from rooflight.hardware.device import Device
from rooflight.metrics import percent_text
from rooflight.summary import By
from rooflight.summary.measured_rows import phases

_BY: dict[str, By] = {"module": "module", "type": "type", "op": "op"}


def is_own(scope: ClaimScope, device: Device | None) -> bool:
    """Was it measured, on the device and at the batch that the row is of?"""
    return scope.book.is_measured and device in (None, scope.book.device) and scope.scale == 1


def verdicts_on(scope: ClaimScope, judge: Judge | None = None) -> list[Verdict]:
    """What `compare` says of the part, the first before the others: of a step, as a whole and as the sum of its ops.
    Empty for what it has no row of."""
    judge, part = judge or scope.book.roofs, scope.part
    if scope.step in ("forward", "backward", "optimizer") and part.kind == "total":
        return [row for row in judge.of(phases(judge.measured)) if row.name == scope.step]
    if scope.step in ("forward", "backward", "optimizer") and scope.ledger.header.step == "train":
        return []
    if part.kind == "total":
        whole = judge.step().whole
        return [whole, *(row for row in judge.verdicts() if not row.name and not whole.reason and not row.reason)]
    return [row for row in judge.verdicts(_BY[part.kind]) if row.name == part.name]


def placed(scope: ClaimScope) -> list[Verdict]:
    """The same, where it lies under the roofs; raises `CannotTell` with the reason where it does not."""
    verdicts = verdicts_on(scope)
    if not verdicts:
        raise CannotTell(f"no verdict is made on {scope.part.name} in that phase", "a row of the whole layer or step")
    if verdicts[0].reason:
        raise CannotTell(f"{scope.part.name}: {verdicts[0].reason}")
    return verdicts


def _origin(scope: ClaimScope) -> str:
    return f"the {scope.book.roofs.times} step, as `rooflight compare` shows it"


def shares(scope: ClaimScope) -> list[Answer]:
    """Percent of the roof."""
    return [
        Answer(row.percent_of_roof / 100, place_text(row), _origin(scope))
        for row in placed(scope)
        if row.percent_of_roof is not None
    ]


def bound(scope: ClaimScope) -> Answer:
    """Of a step compute, memory or host; of a part the roof that it lies under, compute or memory."""
    return _bound(placed(scope)[0], scope.book.roofs.step())


def bound_on(scope: ClaimScope, device: Device) -> Answer | None:
    """The same as `rooflight predict` says of a step that was not measured there; `None` where it says nothing."""
    judge = scope.book.on(device)
    verdicts = [] if judge.step().reason or scope.scale != 1 else verdicts_on(scope, judge)
    return None if not verdicts or verdicts[0].reason else _bound(verdicts[0], judge.step())


def _bound(row: Verdict, step: StepVerdict) -> Answer:
    if row is step.whole:
        if step.bound is None:
            raise CannotTell(step.reason or "nothing tells what bounds the step")
        return Answer(step.bound, step.sentence, f"times: {step.times}")
    assert row.bound is not None
    return Answer(row.bound, f"{place_text(row)}; {row.evidence}", f"times: {step.times}")


def also_bound(scope: ClaimScope, *, by_name: bool) -> dict[str, str]:
    """What else is true of it, with the reason: why a part is far from its roof, and what `compare` shows in the row of
    the model's name of the kernels of a step, whatever it waits for."""
    verdicts = verdicts_on(scope)
    far = {
        FAR_WORDS[row.far]: f"far from its roof ({row.far}), which is that of {row.bound}"
        for row in verdicts[:1]
        if row.far
    }
    whole = bound(scope).value
    return far | {
        row.bound: f"of its kernels: as a whole it is bound by {whole}"
        for row in verdicts[1:]
        if by_name and row.bound is not None
    }


def distance(scope: ClaimScope) -> str:
    """How far a part is from the roof that it lies under, where that is far."""
    verdicts = verdicts_on(scope)
    if not verdicts or not verdicts[0].far or verdicts[0] is scope.book.roofs.step().whole:
        return ""
    return f"but at {percent_text(verdicts[0].percent_of_roof)} of that roof: {verdicts[0].far}"


FAR_WORDS = {"short kernels": "host", "neither roof": "host", "L2 cache": "cache"}
"""What people call it: latency and launches are the words of `host`."""


def sides_of_model(scope: ClaimScope) -> tuple[str, ...]:
    return tuple(row.side for row in verdicts_on(scope)[1:] if row.side is not None)


def side(scope: ClaimScope) -> Answer:
    row = placed(scope)[0]
    assert row.side is not None
    return Answer(row.side, f"{place_text(row)}", _origin(scope))


def intensities(scope: ClaimScope) -> Iterator[Answer]:
    """As the counters saw it, of a step also as the sum of its ops."""
    for row in verdicts_on(scope):
        if row.intensity is not None and row.flops is not None and row.bytes is not None:
            how = f"{row.flops:,.0f} {row.flops_basis} FLOP / {row.bytes:,.0f} {row.bytes_basis} bytes"
            yield Answer(row.intensity, how, "counters" if row.bytes_basis == "DRAM" else "counters and formulas")
