"""Names that are written for two things: `TFLOPS` is work to some and a speed to others. A row is right where one
reading is, and wrong only where all are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rooflight.analysis.claims.claim import Amount, Claim
from rooflight.analysis.claims.quantities import QUANTITIES

if TYPE_CHECKING:
    from rooflight.analysis.claims.judging import ClaimsJudge

_FINE = ("right", "convention")


def settled_readings(judge: ClaimsJudge, claims: Sequence[Claim]) -> list[Claim]:
    """The rows, each as what it is most sensibly of."""
    return [_as_meant(judge, claim) for claim in claims]


def _as_meant(judge: ClaimsJudge, claim: Claim) -> Claim:
    speeds = list(_speeds(claim))
    if not speeds:
        return claim
    judged = judge.judged(claim)
    if judged.verdict in _FINE:
        return claim
    verdicts = [judge.judged_anew(speed).verdict for speed in speeds]
    for speed, verdict in zip(speeds, verdicts, strict=True):
        if verdict in _FINE:
            return speed
    # Written as speeds are: not wrong as work where it may be a speed that nothing here tells.
    is_speed = "FLOPS" in claim.quantity and claim.quantity.strip() != "FLOPS"
    return speeds[0] if is_speed and verdicts[0] == "unknown" and not judged.because else claim


def _speeds(claim: Claim) -> Iterator[Claim]:
    """The row, had it been of FLOP/s: those of a run or, beside a device, those it has at most."""
    stated = claim.stated
    if claim.named is None or not claim.named.may_be_a_speed or not isinstance(stated, Amount):
        return
    if stated.unit.base != "flop":
        return
    unit = replace(stated.unit, base="flop/second")
    for name in ("performance", "peak") if claim.device else ("performance",):
        yield replace(
            claim, named=replace(claim.named, quantity=QUANTITIES[name], unit=""), stated=replace(stated, unit=unit)
        )
