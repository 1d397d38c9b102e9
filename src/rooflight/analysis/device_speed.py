"""How fast the device of a measured step was: its roofs, its clock while it ran, what micro-benchmarks took on it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from rooflight.analysis.instruction_counts import Instructions, instructions
from rooflight.analysis.kernel_rates import KernelRate, rates_of
from rooflight.errors import BadInput, RooflightError
from rooflight.hardware.device import Device
from rooflight.hardware.roofs import Roofs, roofs_of
from rooflight.ledger import Header, Ledger
from rooflight.prediction.resolve_devices import ceilings_of
from rooflight.prediction.tiers import predictor
from rooflight.step.costed_step import own_step


@dataclass(frozen=True)
class DeviceSpeed:
    """What is known of the device, and of all ops on it."""

    device: Device
    roofs: Roofs
    slower: float
    """How many times longer a cycle was than the data sheet has it."""
    clock: str
    """In words."""
    rates: Mapping[tuple[str, str], KernelRate]
    like_s: Mapping[int, float]
    """By op: what micro-benchmarks of such ops take."""
    instructions: Instructions | None

    @classmethod
    def of(cls, ledger: Ledger, device: Device) -> DeviceSpeed:
        roofs = roofs_of(device, ceilings_of(device, None))
        nominal_mhz = device.clock_hz.value / 1e6
        seen_mhz = clock_mhz(ledger.header) or nominal_mhz
        slower = max(1.0, nominal_mhz / seen_mhz)
        said = f"{seen_mhz:,.0f} of {nominal_mhz:,.0f} MHz while it ran"
        return cls(device, roofs, slower, said, rates_of(device.name), _like(ledger, device), instructions(device.name))


def clock_mhz(header: Header) -> float | None:
    """The highest clock of the multiprocessors that was seen: a device that waits lowers it, and that slows no kernel.
    `None` where nothing positive was written down."""
    seen = re.findall(r"\d+(?:\.\d+)?", header.conditions.get("sm_clock", "").replace(",", ""))
    return max(map(float, seen), default=0.0) or None


def _like(ledger: Ledger, device: Device) -> dict[int, float]:
    """Where the device itself was calibrated; ops that nothing like them was timed of are left out."""
    try:
        by = predictor(device)
    except BadInput:
        return {}
    if not by.looks_up:
        return {}
    try:
        step = own_step(ledger)
    except RooflightError:  # ops whose arguments are not there, in a ledger that somebody edited
        return {}
    seconds, guessed, of = by.op_times(step).seconds, step.guessed, step.kind_of
    return {
        op.index: float(seconds[place])
        for place, op in enumerate(ledger.ops)
        if not guessed[of[place]] and seconds[place] > 0
    }
