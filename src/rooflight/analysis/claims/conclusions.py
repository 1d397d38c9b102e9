"""Conclusions: which roof bounds a step, how far from it, which device to take; and work that counters cannot see.

Each needs several numbers of one run: the ledger's own where it was measured on that device, else the table's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction

from rooflight.analysis.claims import counts, estimated_answers, measured_answers, roofline_answers
from rooflight.analysis.claims.case import Judging
from rooflight.analysis.claims.claim import Amount, Claim, StatedWord
from rooflight.analysis.claims.ledger_query import ClaimScope, LedgerBook, check_model, device_of, find_device, scope_of
from rooflight.analysis.claims.matching import states
from rooflight.analysis.claims.model_parts import same_model
from rooflight.analysis.claims.result import Answer, CannotTell, JudgedClaim, right, unknown, wrong
from rooflight.analysis.claims.row_inference import COUNTED, TIMES, ClaimTable, Ingredient
from rooflight.analysis.finding import Finding
from rooflight.analysis.sanity import Judgement, StatedRun
from rooflight.analysis.sanity import judge as judge_run
from rooflight.analysis.sanity.checks import FAR
from rooflight.errors import BadInput
from rooflight.hardware.device import Device
from rooflight.hardware.roofs import roofs_of
from rooflight.ledger import Ledger
from rooflight.metrics import Side
from rooflight.summary.measured_step import main_precision

_BOUNDS = {"memory": "memory", "bandwidth": "memory", "compute": "compute", "flop": "compute", "host": "host",
           "launch": "host", "overhead": "host", "latency": "host", "cpu": "host", "cache": "cache", "l2": "cache",
           "left": "memory", "right": "compute"}  # fmt: skip


@dataclass(frozen=True)
class TableRun:
    """What the table itself says of one run on a device."""

    judgement: Judgement
    rows: tuple[int, ...]


def run_of(book: LedgerBook, table: ClaimTable, like: Claim) -> TableRun | None:
    """The run that a row is of, put together from the table's rows; `None` where they do not make one."""
    if not like.device:
        return None
    try:
        _, device = find_device(like.device)
    except CannotTell:
        return None
    work, once = table.find((*COUNTED, "flops"), like), table.find(("macs",), like)
    if work is None and once is not None:
        work = replace(once, value=2 * once.value)
    moved, time = table.find(("dram_bytes",), like), table.find(TIMES, like)
    peak, bandwidth = (table.find((name,), like) or _of_device(table, name, like) for name in ("peak", "bandwidth"))
    used = [row for row in (work, moved, time) if row is not None]
    if not used:
        return None
    stated = like.stated
    given = StatedRun(
        device=device,
        precision=_precision(book.ledger, like),
        flops=_float(work),
        counted="cuda-cores" if work is not None and work.name in COUNTED else "formula",
        useful_flops=_useful(book, like),
        bytes=_float(moved),
        time_s=_float(time),
        time_scope=None if time is None or time.name == "time" else "wall" if time.name == "wall_time" else "gpu",
        batch=like.batch,
        peak_flops_per_s=_float(peak),
        bandwidth_bytes_per_s=_float(bandwidth),
        bound=_side(stated.text) if isinstance(stated, StatedWord) else None,
        near_roof=like.name == "roof_share",
    )
    try:
        return TableRun(judge_run(given), tuple(row.claim.row for row in used))
    except BadInput:
        return None


def _of_device(table: ClaimTable, name: str, like: Claim) -> Ingredient | None:
    """A figure of the device, in a row that is of no model."""
    return table.find((name,), replace(like, layer="", model="", precision=""))


def _float(row: Ingredient | None) -> float | None:
    return None if row is None else float(row.value)


def _side(text: str) -> Side | None:
    sides: dict[str | None, Side] = {"memory": "memory", "compute": "compute"}
    return sides.get(_said(text))


def _said(text: str) -> str | None:
    """`memory-bound`, `right: compute` and `latency` by their first word."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    return _BOUNDS.get(words[0]) if words else None


def _precision(ledger: Ledger, like: Claim) -> str:
    return like.precision or main_precision(ledger) or "fp32"


def _useful(book: LedgerBook, like: Claim) -> float | None:
    """By the ledger's formulas, where it is of the same work."""
    try:
        check_model(book, like.model)
        scope = scope_of(book, like, "flops")
    except CannotTell:
        return None
    return float(counts.flops(scope)) or None


# Work that the counters did not see.


def tensor_work(judging: Judging, claim: Claim) -> tuple[Answer, Finding] | None:
    """Is a count on a device less than the work has, because that runs on tensor cores there?"""
    stated = claim.amount
    if claim.name != "executed_flops" or not claim.device or stated is None:
        return None
    try:
        scope = scope_of(judging.book, claim, "flops")
        _, device = find_device(claim.device)
        unit = roofs_of(device).matrix(_main(scope, claim)).unit
    except (CannotTell, BadInput):
        return None
    useful = counts.flops(scope)
    if unit != "tensor" or stated.value >= Fraction(9, 10) * Fraction(useful):
        return None
    given = StatedRun(
        device=device,
        precision=_main(scope, claim),
        flops=float(stated.value),
        counted="cuda-cores",
        useful_flops=float(useful),
    )
    finding = next(row for row in judge_run(given).findings if row.code == "tensor-work-not-counted")
    return estimated_answers.ANSWERS["flops"](scope), replace(finding, value=stated.value)


def _main(scope: ClaimScope, claim: Claim) -> str:
    work: dict[str, int] = {}
    for op in counts.matrix_ops(scope.ops):
        work[op.precision] = work.get(op.precision, 0) + (op.cost.macs or 0 if op.cost is not None else 0)
    return claim.precision or max(work, key=lambda name: work[name], default="fp32")


def workspace(judging: Judging, claim: Claim) -> Answer | None:
    """Is it what cuDNN's Winograd keeps its transformed tensors in? Tiles of 4x4 outputs become 6x6 numbers."""
    try:
        scope = scope_of(judging.book, claim, "workspace_bytes")
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
    answer = Answer(nbytes, how, "closed form of cuDNN's workspace")
    return answer if states(claim.stated, answer) else None


# Verdicts.


def judge(judging: Judging, claim: Claim) -> JudgedClaim:
    conclude = {"bound": _bound, "side": _side_of, "preferred": _preferred, "roof_share": _roof_share}
    return conclude[claim.name](judging, claim)


def _bound(judging: Judging, claim: Claim) -> JudgedClaim:
    """The side of the ridge, and whether any roof is near at all."""
    assert isinstance(claim.stated, StatedWord)
    said = _said(claim.stated.text)
    if said is None:
        return unknown(claim, f"{claim.stated.text!r} is no bound: write compute, memory or host")
    book, device = judging.book, device_of(claim)
    own = run_of(book, judging.table, claim)
    if own is None or (book.is_measured and device in (None, book.device)):
        return _bound_by_ledger(claim, said, scope_of(book, claim, "bound"), device)
    judged = own.judgement
    if judged.side is None:
        return unknown(claim, "a bound needs FLOPs and bytes", "rows of FLOPs, DRAM bytes and time of the same run")
    far = judged.percent_of_roof is not None and judged.percent_of_roof < FAR
    origin = "the table and the device's roofs"
    answer = Answer("host" if far else judged.side, judged.text[0], origin, rows=own.rows)
    if answer.value == said:
        return right(claim, answer)
    codes = ("wrong-side", "far-from-the-roof", "tensor-work-not-counted", "peak-of-another-precision")
    because = (replace(finding, value=answer.value) for finding in judged.findings if finding.code in codes)
    return wrong(claim, answer, *because)


def _bound_by_ledger(claim: Claim, said: str, scope: ClaimScope, device: Device | None) -> JudgedClaim:
    answer = measured_answers.bound(scope, device)
    own = roofline_answers.is_own(scope, device)
    if answer.value == said:
        # A verdict without the distance to the roof says little: it is said.
        return right(claim, answer, roofline_answers.distance(scope) if own else "")
    also = roofline_answers.also_bound(scope, by_name=same_model(claim.layer, scope.ledger.header.model)) if own else {}
    if said in also:
        return right(claim, replace(answer, value=said), also[said])
    if answer.value == "host":
        text = "no roof is the limit: most of the wall time the device waits for the host"
        return wrong(claim, answer, Finding("host-bound", text, answer.value))
    text = f"most of its time goes to ops on the {answer.value} side of their ridge"
    return wrong(claim, answer, Finding("wrong-side", text, answer.value))


def _side_of(judging: Judging, claim: Claim) -> JudgedClaim:
    """Left or right of the ridge, however far from the roof."""
    assert isinstance(claim.stated, StatedWord)
    said, scope = _side(claim.stated.text), scope_of(judging.book, claim, "side")
    if said is None:
        return unknown(claim, f"{claim.stated.text!r} is no side of a ridge: write memory (left) or compute (right)")
    if not roofline_answers.is_own(scope, device_of(claim)):
        raise CannotTell("a side of the ridge is that of a measured part on its own device", "rooflight measure")
    answer = roofline_answers.side(scope)
    by_name = same_model(claim.layer, scope.ledger.header.model)
    if said in (answer.value, *(roofline_answers.sides_of_model(scope) if by_name else ())):
        return right(claim, replace(answer, value=said))
    return wrong(claim, answer, Finding("wrong-side", f"it lies on the {answer.value} side", answer.value))


def _roof_share(judging: Judging, claim: Claim) -> JudgedClaim:
    assert claim.stated is not None
    book, device = judging.book, device_of(claim)
    if book.is_measured and device in (None, book.device):
        scope = scope_of(book, claim, "roof_share")
        measured_answers.check_run(book, claim, device)
        shares = roofline_answers.shares(scope)
        answer = next((share for share in shares if states(claim.stated, share)), shares[0])
    else:
        own = run_of(book, judging.table, claim)
        if own is None or own.judgement.percent_of_roof is None:
            raise CannotTell(
                "a share of the roof needs FLOPs, bytes and a time on a device",
                "rows of FLOPs, DRAM bytes and time with their device",
            )
        said = own.judgement.text[0]
        answer = Answer(own.judgement.percent_of_roof / 100, said, "the table and the device", rows=own.rows)
    if states(claim.stated, answer):
        return right(claim, answer)
    return wrong(claim, answer)


def _preferred(judging: Judging, claim: Claim) -> JudgedClaim:
    """The faster device, by times of the same work."""
    assert isinstance(claim.stated, StatedWord)
    _, said = find_device(claim.stated.text)
    times: dict[str, tuple[Fraction, Claim]] = {}
    for row in judging.table.claims:
        is_alike = row.name in TIMES and row.device and row.model.lower() == claim.model.lower()
        if is_alike and isinstance(row.stated, Amount):
            times[find_device(row.device)[1].name] = (row.stated.value, row)
    if len(times) < 2 or said.name not in times:
        raise CannotTell(
            "which device is faster only times of the same work on both tell",
            f"rows of the time on {said.title} and on the other",
        )
    best = min(times, key=lambda name: times[name][0])
    faster, slower = times[best], times[said.name]
    rows = (faster[1].row, slower[1].row)
    speed = float(slower[0] / faster[0])
    how = f"{faster[1].value} on {faster[1].device} against {slower[1].value} on {slower[1].device}"
    answer = Answer(faster[1].device, how, "the table", rows=rows)
    if best == said.name:
        return right(claim, answer)
    text = (
        f"{faster[1].device} was {speed:.3g} times as fast: time decides, not a balance of FLOPs and bytes, nor the "
        "place of a point on a plot"
    )
    return wrong(claim, answer, Finding("preferred-by-balance", text, answer.value))
