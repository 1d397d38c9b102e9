"""Ops that nothing like them was timed of, in a step that was measured: their own times, carried to another device.

Where an op has a formula its time changes as the roofs of both devices say, else as their bandwidths do: most ops that
nobody has a formula for move data.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rooflight.hardware.device import Device
from rooflight.hardware.devices import recognise_name
from rooflight.ledger import Ledger, Op
from rooflight.ops.op_tasks import is_guess
from rooflight.ops.registry import TASKS
from rooflight.prediction.least_times import limits_of
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
    return CarriedTimes(places, ratio * np.array(list(timed.values())), origin.name == device.name)


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


def carried_note(step: Step, rows: Iterable[Prediction]) -> tuple[str, ...]:
    """Which ops, from where, and what part of each device's time they are."""
    places = list(own_times(step))
    if not places or recognise_name(step.ledger.header.device or "") is None:
        return ()
    names = sorted({step.ledger.ops[place].packet.removeprefix("aten::") for place in places})
    shares = [f"{_share(row.op_times_s, places):.0%} on {row.device}" for row in rows]
    return (
        f"taken from what {step.ledger.header.device} needed for them, by the roofs of both devices or else their "
        f"bandwidths: {', '.join(names)}; of the device's time {', '.join(shares)}",
    )


def _share(seconds: Sequence[float], places: Sequence[int]) -> float:
    return sum(seconds[place] for place in places) / (sum(seconds) or 1.0)
