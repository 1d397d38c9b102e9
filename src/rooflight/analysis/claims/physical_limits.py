"""What nothing beats: the least time of a step on a device, and the most FLOP/s and bytes a second.

It judges what was measured, so it may only count what must be done: FLOPs at the best peak that may apply, a
convolution with a fast algorithm at a quarter of its multiply-adds, and of bytes the parameters that no cache holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from rooflight.analysis.claims.claim import Amount, Answer, CannotTell, Claim, JudgedClaim, wrong
from rooflight.analysis.claims.device_claims import WINOGRAD
from rooflight.analysis.claims.device_figures import named_device
from rooflight.analysis.claims.ledger_query import ClaimScope, scope_of
from rooflight.analysis.claims.row_inference import TIMES
from rooflight.analysis.finding import Finding
from rooflight.formatting import count as count_text
from rooflight.formatting import seconds
from rooflight.hardware.device import Device
from rooflight.hardware.roofs import roofs_of
from rooflight.ledger import Op
from rooflight.summary.measured_step import main_precision

if TYPE_CHECKING:
    from rooflight.analysis.claims.judging import ClaimsJudge

_CLOCKS = Fraction(9, 10)
"""Cards may clock a little higher than their datasheets say."""
_FP32 = ("fp32", "tf32")


@dataclass(frozen=True)
class PhysicalLimits:
    """On the fastest card that a row may mean."""

    flops_per_s: Fraction
    """Of useful work: more than the peak, where convolutions may run by a fast algorithm."""
    bytes_per_s: Fraction
    least_s: Fraction | None
    """Of what the row is about; `None` where the ledger does not tell its work."""
    text: str


def limits(judge: ClaimsJudge, claim: Claim) -> PhysicalLimits | None:
    """`None` where no device is known, or none of its peaks."""
    book = judge.book(claim)
    try:
        if claim.device:
            number, device, others = named_device(claim)
            cards = (device, *others)
        else:
            number, cards = 1, (book.device,) if book.device is not None else ()
    except CannotTell:
        return None
    precision = claim.precision or main_precision(book.ledger) or "fp32"
    rates = [rate for card in cards if (rate := _rates(card, precision)) is not None]
    if not rates:
        return None
    peak, eased = (Fraction(number * max(rate[side] for rate in rates)) for side in (0, 1))
    bytes_per_s = Fraction(number * max(roofs_of(card).slope().bytes_per_s for card in cards))
    try:
        scope = scope_of(book, claim, "flops")
    except CannotTell:
        return PhysicalLimits(eased, bytes_per_s, None, "")
    if claim.kind == "estimated":  # nobody computes with an algorithm that a library may take
        eased = peak
    of_convolutions = _convolution_flops(scope)
    compute_s = of_convolutions / eased + (Fraction(scope.flops) - of_convolutions) / peak
    memory = _least_bytes(scope, cards[0])
    text = f"{count_text(float(scope.flops))}FLOP / {count_text(float(peak))}FLOP/s"
    if eased > peak and of_convolutions:
        text += f", and a fast algorithm for its convolutions, {count_text(float(eased))}FLOP/s"
    if memory / bytes_per_s > compute_s:
        text = f"{count_text(float(memory))}B of parameters / {count_text(float(bytes_per_s))}B/s"
    return PhysicalLimits(eased if of_convolutions else peak, bytes_per_s, max(compute_s, memory / bytes_per_s), text)


def _rates(device: Device, precision: str) -> tuple[float, float] | None:
    """The best peak, and what a fast algorithm on the CUDA cores may make of them; `None` without a peak."""
    asked = _FP32 if precision in _FP32 else (precision,)
    roofs = [roof for roof in roofs_of(device).compute if roof.precision in asked]
    if not roofs:
        return None
    best = max(roof.flops_per_s for roof in roofs)
    return best, max(best, *(WINOGRAD * roof.flops_per_s for roof in roofs if roof.unit == "core"), 0.0)


def _convolution_flops(scope: ClaimScope) -> Fraction:
    """Of those that a fast algorithm may run."""
    macs = sum((op.cost.macs or 0 for op in scope.matrix_ops if op.cost is not None and _is_eased(op)), 0)
    return 2 * Fraction(scope.scaled(macs))


def _is_eased(op: Op) -> bool:
    """A convolution over more than single positions may run as Winograd or FFT."""
    return "convolution" in op.packet and (not op.has("weight") or max(op.tensor("weight").shape[2:], default=1) > 1)


def _least_bytes(scope: ClaimScope, device: Device) -> Fraction:
    """Parameters are read once a step, unless a cache holds them from one to the next."""
    if scope.part.kind != "total" or device.l2_bytes is None:
        return Fraction(0)
    return Fraction(max(0, scope.of_modules("param_bytes") - int(device.l2_bytes.value)))


def broken(judge: ClaimsJudge, claim: Claim) -> JudgedClaim | None:
    """The verdict on a row that states what no device can do; `None` where it may be."""
    stated = claim.stated
    found = limits(judge, claim) if isinstance(stated, Amount) else None
    if found is None or not isinstance(stated, Amount):
        return None
    least = found.least_s
    if claim.name in TIMES and least and stated.high is not None and stated.high < least * _CLOCKS:
        text = f"faster than the roof allows: nothing does it in less than {seconds(float(least))}"
        return _wrong(claim, least, f"at least {found.text}", text)
    if stated.low is None:
        return None
    if claim.name == "performance" and stated.low * _CLOCKS > found.flops_per_s:
        text = "above the roof: more FLOP/s than the device has"
        return _wrong(claim, found.flops_per_s, "at most the peak", text)
    if claim.name == "traffic" and stated.low * _CLOCKS > found.bytes_per_s:
        text = "above the roof: more bytes a second than the memory has"
        return _wrong(claim, found.bytes_per_s, "at most the bandwidth of the memory", text)
    batch = claim.batch or judge.book(claim).ledger.header.batch
    if claim.name == "throughput" and least and batch and stated.low * _CLOCKS > batch / least:
        text = f"faster than the roof allows: a step of {batch} takes at least {seconds(float(least))}"
        return _wrong(claim, batch / least, f"at most batch {batch} / ({found.text})", text)
    return None


def _wrong(claim: Claim, value: Fraction, how: str, text: str) -> JudgedClaim:
    code = "above-the-roof" if text.startswith("above") else "faster-than-the-roof"
    return wrong(claim, Answer(value, how, "the device's figures"), Finding(code, text, value))
