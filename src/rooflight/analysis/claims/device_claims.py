"""What is judged by a device. Its figures: peaks, bandwidths, ridges and links, each with its source. And conclusions:
which roof bounds a step, how far from it, which device to take, and work that counters cannot see.

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
from rooflight.analysis.claims.ledger_query import ClaimScope, LedgerBook, check_model, device_of, find_device, scope_of
from rooflight.analysis.claims.matching import states
from rooflight.analysis.claims.model_parts import same_model
from rooflight.analysis.claims.row_inference import COUNTED, TIMES, Ingredient
from rooflight.analysis.finding import Finding
from rooflight.analysis.sanity import Judgement, StatedRun, link_claim
from rooflight.analysis.sanity import judge as judge_run
from rooflight.analysis.sanity.checks import FAR, SAME
from rooflight.errors import BadInput
from rooflight.hardware import devices
from rooflight.hardware.device import Device
from rooflight.hardware.roofs import Roof, ridge, roofs_of, unit_name
from rooflight.metrics import Side
from rooflight.summary.measured_step import main_precision

if TYPE_CHECKING:
    from rooflight.analysis.claims.judging import ClaimsJudge

_FIGURES = ("peak", "bandwidth", "ridge", "gpu_link", "host_link")
_SLIPS = ("peak-of-another-precision", "peak-of-two", "peak-off-by-ten", "link-for-memory", "bandwidth-off-by-ten",
          "bits-for-bytes", "board-for-die")  # fmt: skip
_BOUNDS = {"memory": "memory", "bandwidth": "memory", "compute": "compute", "flop": "compute", "host": "host",
           "launch": "host", "overhead": "host", "latency": "host", "cpu": "host", "cache": "cache", "l2": "cache",
           "left": "memory", "right": "compute"}  # fmt: skip


# Figures.


def _figure_of(judge: ClaimsJudge, claim: Claim) -> JudgedClaim:
    assert isinstance(claim.stated, Amount)
    figures = _figures(claim)
    for answer in figures:
        if states(claim.stated, answer):
            return right(claim, answer)
    return wrong(claim, figures[0], *_slips(claim, float(claim.stated.value)))


def _named(claim: Claim) -> tuple[int, Device, tuple[Device, ...]]:
    """How many of which device a row is of, and the others that its name may mean: `A100` alone is any of them, and
    `2x K80` is a board, where there is one."""
    text = claim.device or claim.layer
    if not text:
        raise CannotTell(f"{claim.quantity} of which device? The row names none", "the column device")
    count, device = find_device(text)
    plain = text.lower().split()[-1] if count > 1 else text.lower()
    if count == 2 and f"{device.name}-board" in devices.names():
        return 1, devices.find(f"{device.name}-board"), ()
    if plain in devices.names():
        return count, device, ()
    alike = (other for other in devices.known() if other.name.startswith(f"{plain}-") and other is not device)
    return count, device, tuple(other for other in alike if not other.name.endswith("-board"))


def _figures(claim: Claim) -> list[Answer]:
    """The figure, and after it those that the row may mean as well: of another unit, of another board of that name."""
    count, device, others = _named(claim)
    figures = [
        answer for alike in (device, *others) for answer in _figures_of(alike, claim.name, claim.precision, count)
    ]
    if not figures:
        raise CannotTell(f"{device.title} has no such figure", "rooflight list devices")
    return figures


def _figures_of(device: Device, name: str, precision: str, count: int) -> list[Answer]:
    roofs = roofs_of(device)
    slope = roofs.slope()
    if name == "bandwidth":
        return [_figure(count * slope.bytes_per_s, f"memory of {device.title}", slope.source)]
    if name in ("gpu_link", "host_link"):
        return _links(device, name)
    wanted = [roof for roof in roofs.compute if roof.precision == (precision or "fp32")]
    if not precision:
        wanted += [roof for roof in roofs.compute if roof not in wanted]
    # Matrix work runs on tensor cores where they have its precision: that roof is named first.
    wanted.sort(key=lambda roof: roof.unit != "tensor" if precision else False)
    if name == "peak":
        return [_figure(count * roof.flops_per_s, _roof_text(device, roof), roof.source) for roof in wanted]
    by = f"/ {slope.bytes_per_s / 1e9:g} GB/s"
    texts = (f"{roof.flops_per_s / 1e12:g} TFLOP/s ({_roof_text(device, roof)}) {by}" for roof in wanted)
    return [_figure(ridge(roof, slope), text, roof.source) for roof, text in zip(wanted, texts, strict=True)]


def _links(device: Device, name: str) -> list[Answer]:
    return [
        _figure(ways * figure.value, f"{link} of {device.title}, {text}", figure.source)
        for link, figure in device.links_bytes_per_s.items()
        if (link in ("pcie", "nvlink-c2c")) == (name == "host_link")
        for ways, text in ((1, "one direction"), (2, "both directions together"))
    ]


def _roof_text(device: Device, roof: Roof) -> str:
    return f"{roof.precision} on the {unit_name(device, roof.unit)} of {device.title}"


def _figure(value: float, how: str, source: str) -> Answer:
    """Sources round the same figure differently."""
    return Answer(value, how, source, value * (1 - SAME), value * (1 + SAME))


def _slips(claim: Claim, value: float) -> list[Finding]:
    """What else the stated value is a figure of."""
    name, device, precision = claim.name, _named(claim)[1], claim.precision or "fp32"
    if name in ("gpu_link", "host_link"):
        slip = link_claim(device, value, "gpu-gpu" if name == "gpu_link" else "gpu-cpu")
        return [] if slip is None else [replace(slip, value=value)]
    if name not in ("peak", "bandwidth"):
        return _ridges(device, precision, value)
    given = StatedRun(
        device=device,
        precision=precision,
        peak_flops_per_s=value if name == "peak" else None,
        bandwidth_bytes_per_s=value if name == "bandwidth" else None,
    )
    findings = [replace(slip, value=value) for slip in judge_run(given).findings if slip.code in _SLIPS]
    # That a board is two dies is said beside a figure that is wrong, not instead of it.
    if any(finding.code != "board-for-die" for finding in findings):
        return findings
    return _of_others(device, name, precision, value)


def _of_others(device: Device, name: str, precision: str, value: float) -> list[Finding]:
    """The same figure of a device with a name that begins alike."""
    family = device.name.partition("-")[0]
    for other in devices.known():
        if other is not device and other.name.partition("-")[0] == family:
            for answer in _figures_of(other, name, precision, 1):
                assert isinstance(answer.value, float)
                if abs(value / answer.value - 1) <= SAME:
                    return [Finding("another-device", f"that is the figure of {other.title}", value)]
    return []


def _ridges(device: Device, precision: str, value: float) -> list[Finding]:
    roofs = roofs_of(device)
    for roof in roofs.compute:
        if roof.precision != precision and abs(value / ridge(roof, roofs.slope()) - 1) <= SAME:
            text = f"that is the ridge of {_roof_text(device, roof)}, not of {precision} work"
            return [Finding("peak-of-another-precision", text, value)]
    return []


# Runs.

_TIME_SCOPES: dict[str, Literal["gpu", "wall"] | None] = {"time": None, "wall_time": "wall"}


def run_of(judge: ClaimsJudge, like: Claim) -> tuple[Judgement, tuple[int, ...]] | None:
    """The run on a device that a row is of, put together from the table's rows, and which these are; `None` where they
    do not make one."""
    book, table = judge.book, judge.table
    try:
        device = device_of(like)
    except CannotTell:
        return None
    if device is None:
        return None
    work, once = table.find((*COUNTED, "flops"), like), table.find(("macs",), like)
    if work is None and once is not None:
        work = replace(once, value=2 * once.value)
    moved, time = table.find(("dram_bytes",), like), table.find(TIMES, like)
    # A figure of the device may stand in a row that is of no model.
    at_large = replace(like, layer="", model="", precision="")
    peak, bandwidth = (table.find((name,), like) or table.find((name,), at_large) for name in ("peak", "bandwidth"))
    used = [row for row in (work, moved, time) if row is not None]
    if not used:
        return None
    given = StatedRun(
        device=device,
        precision=like.precision or main_precision(book.ledger) or "fp32",
        flops=_float(work),
        counted="cuda-cores" if work is not None and work.claim.name in COUNTED else "formula",
        useful_flops=_useful(book, like),
        bytes=_float(moved),
        time_s=_float(time),
        time_scope=None if time is None else _TIME_SCOPES.get(time.claim.name, "gpu"),
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
    """Is a count on a device less than the work has, because that runs on tensor cores there?"""
    stated = claim.amount
    if claim.name != "executed_flops" or not claim.device or stated is None:
        return None
    try:
        scope = scope_of(judge.book, claim, "flops")
        _, device = find_device(claim.device)
        precision = claim.precision or _precision_of(scope)
        unit = roofs_of(device).matrix(precision).unit
    except (CannotTell, BadInput):
        return None
    useful = scope.flops
    if unit != "tensor" or stated.value >= Fraction(9, 10) * Fraction(useful):
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
    """Is it what cuDNN's Winograd keeps its transformed tensors in? Tiles of 4x4 outputs become 6x6 numbers."""
    try:
        scope = scope_of(judge.book, claim, "workspace_bytes")
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


def _bound(judge: ClaimsJudge, claim: Claim) -> JudgedClaim:
    """The side of the ridge, and whether any roof is near at all."""
    assert isinstance(claim.stated, str)
    said = _said(claim)
    if said is None:
        return unknown(claim, f"{claim.stated!r} is no bound: write compute, memory or host")
    book, device = judge.book, device_of(claim)
    run = run_of(judge, claim)
    if run is None or (book.is_measured and device in (None, book.device)):
        return _bound_by_ledger(claim, said, scope_of(book, claim, "bound"), device)
    judged, rows = run
    if judged.side is None:
        return unknown(claim, "a bound needs FLOPs and bytes", "rows of FLOPs, DRAM bytes and time of the same run")
    far = judged.percent_of_roof is not None and judged.percent_of_roof < FAR
    origin = "the table and the device's roofs"
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
    said, scope = _side(claim), scope_of(judge.book, claim, "side")
    if said is None:
        return unknown(claim, f"{claim.stated!r} is no side of a ridge: write memory (left) or compute (right)")
    if not measured_answers.is_own(scope, device_of(claim)):
        raise CannotTell("a side of the ridge is that of a measured part on its own device", "rooflight measure")
    answer, of_kernels = measured_answers.side(scope)
    by_name = same_model(claim.layer, scope.ledger.header.model)
    if said == answer.value or (by_name and said in of_kernels):
        return right(claim, replace(answer, value=said))
    return wrong(claim, answer, Finding("wrong-side", f"it lies on the {answer.value} side", answer.value))


def _roof_share(judge: ClaimsJudge, claim: Claim) -> JudgedClaim:
    book, device = judge.book, device_of(claim)
    if book.is_measured and device in (None, book.device):
        scope = scope_of(book, claim, "roof_share")
        measured_answers.check_run(book, claim, device)
        shares = measured_answers.shares(scope)
        answer = next((share for share in shares if states(claim.stated, share)), shares[0])
    else:
        run = run_of(judge, claim)
        if run is None or run[0].percent_of_roof is None:
            raise CannotTell(
                "a share of the roof needs FLOPs, bytes and a time on a device",
                "rows of FLOPs, DRAM bytes and time with their device",
            )
        judged, rows = run
        answer = Answer(run[0].percent_of_roof / 100, judged.text[0], "the table and the device", rows=rows)
    return right(claim, answer) if states(claim.stated, answer) else wrong(claim, answer)


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
    **dict.fromkeys(_FIGURES, _figure_of),
    "bound": _bound,
    "side": _side_of,
    "preferred": _preferred,
    "roof_share": _roof_share,
}
