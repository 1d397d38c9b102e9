"""Conclusions about a device: which roof bounds a step, how far from it, which device to take, and work that counters
cannot see.

A conclusion needs several numbers of one run: the ledger's own where it was measured on that device, else the table's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from rooflight.analysis.claims import estimated_answers, measured_answers
from rooflight.analysis.claims.claim import Amount, Answer, CannotTell, Claim, JudgedClaim, right, unknown, wrong
from rooflight.analysis.claims.device_figures import FIGURES, figure_of
from rooflight.analysis.claims.ledger_query import ClaimScope, LedgerBook, check_model, device_of, find_device, scope_of
from rooflight.analysis.claims.model_parts import same_model
from rooflight.analysis.claims.row_inference import COUNTED, TIMES, Ingredient
from rooflight.analysis.finding import Finding
from rooflight.analysis.sanity import Judgement, StatedRun
from rooflight.analysis.sanity import judge as judge_run
from rooflight.analysis.sanity.checks import FAR
from rooflight.errors import BadInput
from rooflight.hardware.device import Device
from rooflight.hardware.roofs import roofs_of
from rooflight.metrics import Side
from rooflight.summary.measured_step import main_precision

if TYPE_CHECKING:
    from rooflight.analysis.claims.judging import ClaimsJudge

_BOUNDS = {"memory": "memory", "bandwidth": "memory", "compute": "compute", "flop": "compute", "host": "host",
           "launch": "host", "overhead": "host", "latency": "host", "cpu": "host", "cache": "cache", "l2": "cache",
           "left": "memory", "right": "compute"}  # fmt: skip


WINOGRAD = 4
"""As much of its multiply-adds a 3x3 convolution saves at most: F(4x4, 3x3) has 36 for 144."""

# Runs.

_TIME_SCOPES: dict[str, Literal["gpu", "wall"] | None] = {"time": None, "wall_time": "wall"}


def run_of(judge: ClaimsJudge, like: Claim) -> tuple[Judgement, tuple[int, ...]] | None:
    """The run on a device that a row is of, put together from the table's rows, and which these are; `None` where they
    do not make one."""
    book, table = judge.book(like), judge.table
    try:
        device = device_of(like)
    except CannotTell:
        return None
    if device is None:
        return None
    work, once = table.find((*COUNTED, "flops"), like), table.find(("macs",), like)
    if work is None and once is not None:
        work = replace(once, amount=once.amount.times(Fraction(2)))
    moved, time, busy = (table.find(names, like) for names in (("dram_bytes",), TIMES, ("gpu_busy", "kernel_time")))
    # A figure of the device may stand in a row that is of no model.
    at_large = replace(like, layer="", model="", precision="")
    peak, bandwidth = (table.find((name,), like) or table.find((name,), at_large) for name in ("peak", "bandwidth"))
    used = [row for row in (work, moved, time) if row is not None]
    if not used:
        return None
    given = StatedRun(
        device=device,
        precision=like.precision or main_precision(book.ledger) or "fp32",
        flops=_work(judge, work),
        counted="cuda-cores" if work is not None and work.claim.name in COUNTED else "formula",
        useful_flops=_useful(book, like),
        bytes=_float(moved),
        time_s=_float(time),
        time_scope=None if time is None else _TIME_SCOPES.get(time.claim.name, "gpu"),
        gpu_busy_s=_float(busy),
        batch=like.batch,
        peak_flops_per_s=_float(peak),
        bandwidth_bytes_per_s=_float(bandwidth),
        bound=_side(like),
        near_roof=like.name == "roof_share",
    )
    try:
        return judge_run(given), tuple(row.claim.row for row in used)
    except BadInput:
        return None


def _float(row: Ingredient | None) -> float | None:
    return None if row is None else float(row.value)


def _work(judge: ClaimsJudge, row: Ingredient | None) -> float | None:
    """As the row states it or, where it is wrong, as it should."""
    if row is None or row.claim.row < 0:
        return _float(row)
    meant = judge.judged(row.claim)
    is_formula = meant.answer is not None and row.claim.name not in COUNTED
    return float(meant.right_value) if meant.right_value is not None and is_formula else _float(row)


def _said(claim: Claim) -> str | None:
    """`memory-bound`, `right: compute` and `latency` by their first word."""
    words = re.findall(r"[a-z0-9]+", claim.stated.lower()) if isinstance(claim.stated, str) else []
    return _BOUNDS.get(words[0]) if words else None


def _side(claim: Claim) -> Side | None:
    said = _said(claim)
    return "memory" if said == "memory" else "compute" if said == "compute" else None


def _useful(book: LedgerBook, like: Claim) -> float | None:
    """By the ledger's formulas, where it is of the same work."""
    try:
        check_model(book, like.model)
        scope = scope_of(book, like, "flops")
    except CannotTell:
        return None
    return float(scope.flops) or None


# Work that the counters did not see.


def tensor_work(judge: ClaimsJudge, claim: Claim) -> tuple[Answer, Finding] | None:
    """Is a count on a device so much less than the work has that no fast algorithm saves it, because that runs on
    tensor cores there?"""
    stated = claim.amount
    if claim.name not in COUNTED or not claim.device or stated is None:
        return None
    try:
        scope = scope_of(judge.book(claim), claim, "flops")
        _, device = find_device(claim.device)
        precision = claim.precision or _precision_of(scope)
        unit = roofs_of(device).matrix(precision).unit
    except (CannotTell, BadInput):
        return None
    useful = scope.flops
    if unit != "tensor" or stated.value >= Fraction(useful) / WINOGRAD:
        return None
    flops, by_formula = float(stated.value), float(useful)
    given = StatedRun(device=device, precision=precision, flops=flops, counted="cuda-cores", useful_flops=by_formula)
    finding = next(row for row in judge_run(given).findings if row.code == "tensor-work-not-counted")
    return estimated_answers.ANSWERS["flops"](scope), replace(finding, value=stated.value)


def _precision_of(scope: ClaimScope) -> str:
    """That most of its matrix work runs in."""
    work: Counter[str] = Counter()
    for op in scope.matrix_ops:
        work[op.precision] += op.cost.macs or 0 if op.cost is not None else 0
    return max(work, key=lambda name: work[name], default="fp32")


def workspace(judge: ClaimsJudge, claim: Claim) -> Answer | None:
    """What cuDNN's Winograd keeps its transformed tensors in: tiles of 4x4 outputs become 6x6 numbers."""
    try:
        scope = scope_of(judge.book(claim), claim, "workspace_bytes")
    except CannotTell:
        return None
    convolutions = [op for op in scope.ops if op.phase == "forward" and "convolution" in op.packet]
    if len(convolutions) != 1 or not isinstance(claim.stated, Amount):
        return None
    (op,) = convolutions
    if op.tensor("weight").shape[-2:] != (3, 3):
        return None
    batch, channels_out, height, width = op.outputs[0].shape
    channels_in = op.tensor("input").shape[1]
    tiles = int(batch * scope.scale) * -(-height // 4) * -(-width // 4)
    nbytes = 4 * 36 * (tiles * (channels_in + channels_out) + channels_in * channels_out)
    how = (
        f"4 B × 36 × ({tiles:,} tiles × ({channels_in} + {channels_out}) + {channels_in} × {channels_out}): a Winograd "
        "F(4x4, 3x3) that is not fused; which engine runs only a measurement tells"
    )
    return Answer(nbytes, how, "closed form of cuDNN's workspace")


# Verdicts.


def _bound(judge: ClaimsJudge, claim: Claim) -> JudgedClaim:
    """The side of the ridge, and whether any roof is near at all."""
    assert isinstance(claim.stated, str)
    said = _said(claim)
    if said is None:
        return unknown(claim, f"{claim.stated!r} is no bound: write compute, memory or host")
    book, device = judge.book(claim), device_of(claim)
    run = run_of(judge, claim)
    if run is None or (book.is_measured and device in (None, book.device)):
        return _bound_by_ledger(claim, said, scope_of(book, claim, "bound"), device)
    judged, rows = run
    if judged.side is None:
        return unknown(claim, "a bound needs FLOPs and bytes", "rows of FLOPs, DRAM bytes and time of the same run")
    far = judged.percent_of_roof is not None and judged.percent_of_roof < FAR
    origin = f"the table and the roofs of {judged.given.device.title}"
    answer = Answer("host" if far else judged.side, judged.text[0], origin, rows=rows)
    if answer.value == said:
        return right(claim, answer)
    codes = ("wrong-side", "far-from-the-roof", "tensor-work-not-counted", "peak-of-another-precision")
    because = (replace(finding, value=answer.value) for finding in judged.findings if finding.code in codes)
    return wrong(claim, answer, *because)


def _bound_by_ledger(claim: Claim, said: str, scope: ClaimScope, device: Device | None) -> JudgedClaim:
    answer = measured_answers.bound(scope, device)
    is_own = measured_answers.is_own(scope, device)
    if answer.value == said:
        # A verdict without the distance to the roof says little: it is said.
        return right(claim, answer, measured_answers.distance(scope) if is_own else "")
    if is_own:
        by_name = same_model(claim.layer, scope.ledger.header.model)
        also = measured_answers.also_bound(scope, answer, by_name=by_name)
        if said in also:
            return right(claim, replace(answer, value=said), also[said])
    if answer.value == "host":
        text = "no roof is the limit: most of the wall time the device waits for the host"
        return wrong(claim, answer, Finding("host-bound", text, answer.value))
    text = f"most of its time goes to ops on the {answer.value} side of their ridge"
    return wrong(claim, answer, Finding("wrong-side", text, answer.value))


def _side_of(judge: ClaimsJudge, claim: Claim) -> JudgedClaim:
    """Left or right of the ridge, however far from the roof."""
    assert isinstance(claim.stated, str)
    said, scope = _side(claim), scope_of(judge.book(claim), claim, "side")
    if said is None:
        return unknown(claim, f"{claim.stated!r} is no side of a ridge: write memory (left) or compute (right)")
    if not measured_answers.is_own(scope, device_of(claim)):
        return _side_by_rows(judge, claim, said)
    answer, of_kernels = measured_answers.side(scope)
    by_name = same_model(claim.layer, scope.ledger.header.model)
    if said == answer.value or (by_name and said in of_kernels):
        return right(claim, replace(answer, value=said))
    return wrong(claim, answer, Finding("wrong-side", f"it lies on the {answer.value} side", answer.value))


def _side_by_rows(judge: ClaimsJudge, claim: Claim, said: Side) -> JudgedClaim:
    run = run_of(judge, claim)
    if (by_ridge := _side_by_ridge(judge, claim, said)) is not None and (run is None or run[0].side is None):
        return by_ridge
    if run is None or run[0].side is None:
        raise CannotTell(
            "a side of the ridge is that of a measured part on its own device",
            "rows of FLOPs and DRAM bytes of one run",
        )
    judged, rows = run
    answer = Answer(run[0].side, judged.text[0], f"the table and the roofs of {judged.given.device.title}", rows=rows)
    if said == judged.side:
        return right(claim, answer)
    return wrong(claim, answer, Finding("wrong-side", f"it lies on the {judged.side} side", answer.value))


def _side_by_ridge(judge: ClaimsJudge, claim: Claim, said: Side) -> JudgedClaim | None:
    """By an intensity and a ridge that the table states; `None` where it has not both, or they are too near to tell."""
    intensity, ridge = (judge.table.find((name,), claim) for name in ("intensity", "ridge"))
    if intensity is None or ridge is None:
        return None
    meant = [judge.judged(row.claim).right_value for row in (intensity, ridge)]
    (low, high), (under, over) = (
        row.ends if value is None else (value, value) for row, value in zip((intensity, ridge), meant, strict=True)
    )
    if low <= over and under <= high:
        return None
    side: Side = "compute" if low > over else "memory"
    how = f"intensity {intensity} against the ridge {ridge}"
    answer = Answer(side, how, "the table", rows=(intensity.claim.row, ridge.claim.row))
    if said == side:
        return right(claim, answer)
    return wrong(claim, answer, Finding("wrong-side", f"it lies on the {side} side", answer.value))


def _preferred(judge: ClaimsJudge, claim: Claim) -> JudgedClaim:
    """The faster device, by times of the same work."""
    assert isinstance(claim.stated, str)
    _, said = find_device(claim.stated)
    times: dict[str, tuple[Fraction, Claim]] = {}
    for row in judge.table.claims:
        is_alike = row.name in TIMES and row.device and row.model.lower() == claim.model.lower()
        if is_alike and isinstance(row.stated, Amount):
            times[find_device(row.device)[1].name] = (row.stated.value, row)
    if len(times) < 2 or said.name not in times:
        raise CannotTell(
            "which device is faster only times of the same work on both tell",
            f"rows of the time on {said.title} and on the other",
        )
    best = min(times, key=lambda name: times[name][0])
    (time, faster), (other_time, slower) = times[best], times[said.name]
    how = f"{faster.value} on {faster.device} against {slower.value} on {slower.device}"
    answer = Answer(faster.device, how, "the table", rows=(faster.row, slower.row))
    if best == said.name:
        return right(claim, answer)
    text = (
        f"{faster.device} was {float(other_time / time):.3g} times as fast: time decides, not a balance of FLOPs and "
        "bytes, nor the place of a point on a plot"
    )
    return wrong(claim, answer, Finding("preferred-by-balance", text, answer.value))


JUDGES: dict[str, Callable[[ClaimsJudge, Claim], JudgedClaim]] = {
    **dict.fromkeys(FIGURES, lambda judge, claim: figure_of(claim)),
    "bound": _bound,
    "side": _side_of,
    "preferred": _preferred,
}
