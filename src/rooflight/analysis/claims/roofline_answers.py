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
from rooflight.errors import BadInput
from rooflight.hardware.device import Device
from rooflight.metrics import percent_text
from rooflight.prediction.roofline import roofline
from rooflight.summary.measured_rows import phases

_FAR_WORDS = {"short kernels": "host", "neither roof": "host", "L2 cache": "cache"}
"""What people call it: latency and launches are the words of `host`."""


def is_own(scope: ClaimScope, device: Device | None) -> bool:
    """Was it measured, on the device and at the batch that the row is of?"""
    return scope.book.is_measured and device in (None, scope.book.device) and scope.scale == 1


def verdicts_on(scope: ClaimScope, judge: Judge | None = None) -> list[Verdict]:
    """What `compare` says of the part, the first before the others: of a step, as a whole and as the sum of its ops.
    Empty for what it has no row of."""
    judge, part = judge or scope.book.roofs, scope.part
    if scope.step in ("forward", "backward", "optimizer"):
        if part.kind == "total":
            return [row for row in judge.of(phases(judge.measured)) if row.name == scope.step]
        if scope.ledger.header.step == "train":
            return []
    if part.kind == "total":
        step = judge.step().whole
        return [step, *(row for row in judge.verdicts() if not row.name and not step.reason and not row.reason)]
    return [row for row in judge.verdicts(part.kind) if row.name == part.name]


def _placed(scope: ClaimScope) -> list[Verdict]:
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
        for row in _placed(scope)
        if row.percent_of_roof is not None
    ]


def bound(scope: ClaimScope, device: Device | None) -> Answer:
    """Of the step, or of a part by where most of its time goes. What was measured has one verdict everywhere, and so
    has what is predicted; else the step is put under the roofs of its device, or of the one that a row names."""
    if is_own(scope, device) and verdicts_on(scope):
        return _bound(_placed(scope)[0], scope.book.roofs.step())
    if device is not None and (predicted := _bound_on(scope, device)) is not None:
        return predicted
    roofed = device or scope.book.device
    if roofed is None:
        raise CannotTell("no device is known: a bound is one of a device", "a row with a device")
    try:
        drawn = roofline(scope.ledger, roofed)
    except BadInput as error:
        raise CannotTell(error.on_command_line) from None
    if scope.is_step:
        return Answer(drawn.step.bound, drawn.step.verdict, f"times: {drawn.origin}")
    wanted = frozenset(op.index for op in scope.ops)
    points = [point for point in drawn.ops if wanted.issuperset(point.ops)]
    if not points:
        raise CannotTell(f"nothing in {scope.part.name} has FLOPs to put under a roof")
    slowest = max(points, key=lambda point: point.time_s or point.roof_time_s)
    return Answer(slowest.side, slowest.verdict, f"times: {drawn.origin}")


def _bound_on(scope: ClaimScope, device: Device) -> Answer | None:
    """As `rooflight predict` says of a step that was not measured there; `None` where it says nothing."""
    judge = scope.book.on(device)
    verdicts = [] if judge.step().reason or scope.scale != 1 else verdicts_on(scope, judge)
    return None if not verdicts or verdicts[0].reason else _bound(verdicts[0], judge.step())


def _bound(row: Verdict, step: StepVerdict) -> Answer:
    """Of a step compute, memory or host; of a part the roof that it lies under, compute or memory."""
    if row is step.whole:
        if step.bound is None:
            raise CannotTell(step.reason or "nothing tells what bounds the step")
        return Answer(step.bound, step.sentence, f"times: {step.times}")
    assert row.bound is not None
    return Answer(row.bound, f"{place_text(row)}; {row.evidence}", f"times: {step.times}")


def also_bound(scope: ClaimScope, step: Answer, *, by_name: bool) -> dict[str, str]:
    """What else is true of it, with the reason: why a part is far from its roof, and what `compare` shows in the row of
    the model's name of the kernels of a step, whatever it waits for."""
    first, *others = _placed(scope)
    also = {}
    if first.far:
        also[_FAR_WORDS[first.far]] = f"far from its roof ({first.far}), which is that of {first.bound}"
    for row in others:
        if by_name and row.bound is not None:
            also[row.bound] = f"of its kernels: as a whole it is bound by {step.value}"
    return also


def distance(scope: ClaimScope) -> str:
    """How far a part is from the roof that it lies under, where that is far."""
    verdicts = verdicts_on(scope)
    if not verdicts or not verdicts[0].far or verdicts[0] is scope.book.roofs.step().whole:
        return ""
    return f"but at {percent_text(verdicts[0].percent_of_roof)} of that roof: {verdicts[0].far}"


def side(scope: ClaimScope) -> tuple[Answer, tuple[str, ...]]:
    """Of the ridge, and, of a step, those that its kernels lie on."""
    row, *others = _placed(scope)
    assert row.side is not None
    return Answer(row.side, place_text(row), _origin(scope)), tuple(row.side for row in others if row.side is not None)


def intensities(scope: ClaimScope) -> Iterator[Answer]:
    """As the counters saw it, of a step also as the sum of its ops."""
    for row in verdicts_on(scope):
        if row.intensity is not None and row.flops is not None and row.bytes is not None:
            how = f"{row.flops:,.0f} {row.flops_basis} FLOP / {row.bytes:,.0f} {row.bytes_basis} bytes"
            yield Answer(row.intensity, how, "counters" if row.bytes_basis == "DRAM" else "counters and formulas")
