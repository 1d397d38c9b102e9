"""Times of a study that should not be relied on, why, and what was recorded of the same step on the same device.

A step that waits for its host takes as long as the host of that day does: a prediction of it has a wide interval, and
two measurements of it may lie far apart, while the GPU's own work hardly differs.
"""

from __future__ import annotations

from functools import cache

from rooflight import recordings
from rooflight.files import load
from rooflight.spec import StepSpec, parse
from rooflight.study.cell import Side, StudyCell, StudyRow, device_of
from rooflight.summary.measured import Measured
from rooflight.summary.measured_step import wall_s
from rooflight.summary.reliability import UNRELIABLE

WIDE = 2.0
"""A 90% interval whose ends are further apart than this factor leaves open which of two steps is faster."""
HOST = "host-bound: the time is that of the host's Python, which differs from machine to machine and from day to day"
WIDE_INTERVAL = f"the ends of its 90% interval are more than {WIDE:g} times apart"
BUSY = "measured while the machine was busy with other things"


def time_doubt(row: StudyRow, side: Side) -> str:
    """Why the time of a cell is not to be relied on; empty where it is."""
    if side == "measured" and any(note.code == UNRELIABLE for note in row.notes):
        return BUSY
    if row.facts.get(f"bound.{side}") == "host":
        return HOST
    low, high = row.values.get("time_low.predicted"), row.values.get("time_high.predicted")
    if side == "predicted" and low is not None and high is not None and high > WIDE * low:
        return WIDE_INTERVAL
    return ""


def recorded_time_s(cell: StudyCell) -> float | None:
    """Of the same step on the same device, where a recording of it comes with rooflight."""
    device = device_of(cell.on) if cell.is_on_one_device else None
    if device is None:  # this machine's, or a file that is not here
        return None
    step = cell.at([cell.batch])
    same = StepSpec(**{name: getattr(step, name) for name in StepSpec.__struct_fields__} | {"batch": cell.batch})
    return _recorded(device.name, cell.model).get(same.command("measure"))


@cache
def _recorded(device: str, model: str) -> dict[str, float]:
    """Wall times of the recordings of a model, by the command that measures the step again."""
    times = {}
    for name in recordings.names():
        if name.startswith(f"{device}/{model}-"):
            ledger = load(recordings.PREFIX + name)
            time = wall_s(Measured(ledger))
            if time is not None and ledger.header.model == model:
                step = StepSpec(model=model, **parse(ledger.header.command)[0])
                times[step.command("measure")] = float(time)
    return times
