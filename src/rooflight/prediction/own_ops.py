"""Ops that nothing like them was timed of, in a step that was measured: their own times, carried to another device.

Where an op has a formula its time changes as the roofs of both devices say, else as their bandwidths do: most ops that
nobody has a formula for move data.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rooflight.hardware.device import Device
from rooflight.hardware.devices import recognise_name
from rooflight.ledger import Ledger, Note, Op
from rooflight.ops.op_tasks import is_guess
from rooflight.ops.registry import TASKS
from rooflight.prediction.least_times import Limits, floor_seconds, limits_of
from rooflight.step.cache_reuse import Array
from rooflight.step.costed_step import Step
from rooflight.summary.measured import Measured, is_measured

if TYPE_CHECKING:
    from rooflight.prediction.result import Prediction


@dataclass(frozen=True)
class CarriedTimes:
    """Seconds on a device of the ops that were timed on another."""

    places: npt.NDArray[np.intp]
    """Which ops."""
    seconds: Array
    same_device: bool
    """Were they timed on the device itself?"""
    beyond: npt.NDArray[np.bool_]
    """Which of them took less than nothing beats, by what their formulas count: those count more than is done."""


def is_own(op: Op) -> bool:
    """Is its time, without a measurement, that of something else?"""
    return op.kind == "compute" and (is_guess(op) or (TASKS.find(op) is None and not op.name.startswith("aten::")))


def carried_times(step: Step, device: Device) -> CarriedTimes | None:
    """`None`: the step was not measured, or somewhere that says nothing of this device, or has no such ops."""
    timed = own_times(step)
    origin = recognise_name(step.ledger.header.device or "") if timed else None
    if origin is None or origin.kind != device.kind:
        return None
    places = np.array(list(timed), dtype=np.intp)
    here, there = (limits_of(step, where).roof_s[step.kind_of[places]] for where in (device, origin))
    slower = origin.bandwidth_bytes_per_s.value / device.bandwidth_bytes_per_s.value
    ratio = np.divide(here, there, out=np.full(len(places), slower), where=(here > 0) & (there > 0))
    seconds = ratio * np.array(list(timed.values()))
    least_s = floor_seconds(step, device)[places]
    same_device = origin.name == device.name
    if not same_device:  # a measurement is believed; what is made of it elsewhere obeys physics
        seconds = np.maximum(seconds, least_s)
    return CarriedTimes(places, seconds, same_device, seconds < least_s)


def least_of_ops(step: Step, device: Device) -> Limits:
    """For every op, the least seconds at the roofs: no more than one took on the device, if that is beyond them."""
    limits = limits_of(step, device)
    of_ops = Limits(*(values[step.kind_of] for values in (limits.compute_s, limits.memory_s, limits.matrix_s)))
    if step.is_compiled:  # what stays in registers is no traffic
        of_ops = replace(of_ops, memory_s=of_ops.memory_s * step.moves)
    own = carried_times(step, device)
    if own is not None and own.beyond.any():
        places = own.places[own.beyond]
        part = own.seconds[own.beyond] / of_ops.roof_s[places]
        for values in (of_ops.compute_s, of_ops.memory_s, of_ops.matrix_s):
            values[places] *= part
    return of_ops


def own_times(step: Step) -> dict[int, float]:
    """By place: measured seconds of the step's own ops, where they have kernels to themselves."""
    timed = step.once(_timed_ops)
    own = [is_own(op) for op in step.kinds] if timed else []
    return {place: time_s for place, time_s in timed.items() if own[step.kind_of[place]]}


def _timed_ops(ledger: Ledger) -> dict[int, float]:
    if not is_measured(ledger):
        return {}
    found = {}
    for ops, values in Measured(ledger).by_ops.items():
        time_s = values.get("kernel_time_s") or values.get("host_time_s")
        if len(ops) == 1 and time_s:
            found[ops[0]] = float(time_s)
    return found


def carried_note(step: Step, rows: Iterable[Prediction]) -> tuple[Note, ...]:
    """Which ops, from where, and what part of each device's time they are."""
    places = list(own_times(step))
    origin = recognise_name(step.ledger.header.device or "") if places else None
    if origin is None:
        return ()
    shares = [f"{_share(row.op_times_s, places):.0%} on {row.device}" for row in rows]
    carried = Note(
        "carried-times",
        f"taken from what {step.ledger.header.device} needed for them, by the roofs of both devices or else their "
        f"bandwidths: {_names(step, places)}; of the device's time {', '.join(shares)}",
    )
    own = carried_times(step, origin)
    if own is None or not own.beyond.any():
        return (carried,)
    return carried, (
        Note(
            "faster-than-formula",
            f"{step.ledger.header.device} was faster than it can move what the formulas of these count, so they count "
            f"too much, and its roof is taken from the measurement: {_names(step, own.places[own.beyond].tolist())}",
        )
    )


def _names(step: Step, places: Iterable[int]) -> str:
    return ", ".join(sorted({step.ledger.ops[place].packet.removeprefix("aten::") for place in places}))


def _share(seconds: Sequence[float], places: Sequence[int]) -> float:
    return sum(seconds[place] for place in places) / (sum(seconds) or 1.0)
