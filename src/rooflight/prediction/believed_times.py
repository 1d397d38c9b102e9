"""What is believed of times that somebody wrote down: what a device cannot have done is refused, what tells of the
launch alone is left out, and what is hard to believe is said.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rooflight.calibration.recorded_points import TimedTask
from rooflight.errors import BadFile
from rooflight.formatting import seconds as time_text
from rooflight.hardware.device import Device
from rooflight.ops.kernel_task import Task
from rooflight.prediction.possible_times import ALLOWANCE, LeastTime, least_time
from rooflight.prediction.tiers import predictor

_LAUNCH_S = 10e-6
"""What a call may take beside its work, and more, in a table."""
_FAR_BELOW, _FAR_ABOVE = 20.0, 300.0
"""Times off the roof, and off the roof and a launch: no op is, and a unit that is wrong by 1000 makes them all so."""
SHORT = "rows too short to tell more than a launch"
SHORT_S = 5e-6
"""Of a row in a table, what it must be transferred to at least. People time calls in a loop or between events, where
none takes less than its launch, 4 to 6 us: of shorter works that is most of what they wrote, and as a correction it
would make works of a hundred megabytes half as slow again. In traces and ledgers a time is that of the kernel alone,
however short it is: they keep all of theirs."""
_DOUBTED = 3.0
"""Times as long, or as short, as transferred, in the median of a family. Of what others timed on twelve GPUs and
published one is farther off: attention to a KV cache on the H100, in another library's kernels."""
_DIFFERENT = 2.0
"""Between two rows of one work."""


def refuse_impossible(work: TimedTask, device: Device, *, end: str = "") -> None:
    """A time below what the device can do."""
    least = least_time(work.task, device)
    if work.seconds >= ALLOWANCE * least.seconds:
        return
    hint = "is it of another device, or in another unit?"
    if work.task.precision == "fp32" and "tf32" in device.tensor_flops_per_s:
        tf32 = least_time(Task(work.task.family, "tf32", work.task.numbers), device)
        hint = "did it run in tf32?" if work.seconds >= ALLOWANCE * tf32.seconds else hint
    raise BadFile("impossible-time", f"{work.place}: {_faster(work, least, device)}{end}: {hint}")


def _faster(work: TimedTask, least: LeastTime, device: Device) -> str:
    return (
        f"{time_text(work.seconds)} is faster than {device.title} can be, which takes {time_text(least.seconds)} "
        f"at {least.roof}"
    )


def refuse_units(works: Sequence[TimedTask], device: Device, name: str) -> None:
    """All times far off the roofs to one side are in another unit."""
    timed = [(work.seconds, least_time(work.task, device).seconds) for work in works]
    large = [roof / spent for spent, roof in timed if roof > _LAUNCH_S]
    slow = [spent / (roof + _LAUNCH_S) for spent, roof in timed]
    for ratios, limit, which in ((large, _FAR_BELOW, "large works are below"), (slow, _FAR_ABOVE, "works are above")):
        if len(ratios) > 1 and min(ratios) > limit:
            factor = f"{statistics.median(ratios):,.0f} times in the median"
            raise BadFile(
                "wrong-unit",
                f"{name}: all {len(ratios):,} times of {which} what {device.title} takes, by {factor}: is the unit of "
                "the time column right?",
            )
    for work, ratio in zip(works, slow, strict=True):
        if ratio > _FAR_ABOVE:
            raise BadFile(
                "wrong-unit",
                f"{work.place}: {time_text(work.seconds)} is {ratio:,.0f} times what {device.title} takes at its "
                "roofs: is it in another unit?",
            )


def long_enough(works: Sequence[TimedTask], device: Device) -> tuple[list[TimedTask], list[TimedTask]]:
    """Rows of a table that tell more than a launch, and those that do not."""
    times = predictor(device, "transferred").task_times([work.task for work in works])
    both: tuple[list[TimedTask], list[TimedTask]] = [], []
    for work, spent in zip(works, times.cold_s.tolist(), strict=True):
        both[spent < SHORT_S].append(work)
    return both


def doubts(works: Sequence[TimedTask], device: Device, name: str) -> list[str]:
    """What is hard to believe of a table's rows, a line each."""
    file = Path(name).name
    return [*_far_off(works, device, file), *_different(works, file)]


def _far_off(works: Sequence[TimedTask], device: Device, file: str) -> list[str]:
    times = predictor(device, "transferred").task_times([work.task for work in works])
    spent = np.array([work.seconds for work in works])
    # A time between warm and cold tells where its inputs lay.
    ratios = spent / np.clip(spent, times.warm_s, times.cold_s)
    kinds: dict[tuple[str, str], dict[Task, list[float]]] = {}
    for work, ratio in zip(works, ratios.tolist(), strict=True):
        kinds.setdefault((work.task.family, work.task.precision), {}).setdefault(work.task, []).append(ratio)
    said = []
    for (family, precision), by_task in kinds.items():
        middle = statistics.median(statistics.median(ratios) for ratios in by_task.values())
        if 1 / _DOUBTED <= middle <= _DOUBTED:
            continue
        one = len(by_task) == 1
        which = f"{'this work' if one else f'these {len(by_task):,} works'} of {family} in {precision}"
        than = f"as transferred times say{'' if one else ' (median)'}"
        off, why = f"{_times(middle)} times as long", "summed over iterations, or with the launch in them?"
        if middle < 1:
            off, why = f"{_times(1 / middle)} times as short", "of other sizes, or in another precision?"
        said.append(f"{file}: {which} {'is' if one else 'are'} {off} {than}: {why}")
    return said


def _times(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio < 5 else f"{ratio:,.0f}"


def _different(works: Sequence[TimedTask], file: str) -> list[str]:
    """The two rows of one work that differ most, and how many other works have such."""
    by_task: dict[Task, list[TimedTask]] = {}
    for work in works:
        by_task.setdefault(work.task, []).append(work)
    ordered = [sorted(rows, key=lambda work: work.seconds) for rows in by_task.values()]
    pairs = [(rows[0], rows[-1]) for rows in ordered if rows[-1].seconds > _DIFFERENT * rows[0].seconds]
    if not pairs:
        return []
    pair = max(pairs, key=lambda pair: pair[1].seconds / pair[0].seconds)
    first, second = sorted(pair, key=works.index)
    others = len(pairs) - 1
    more = "" if not others else f", and so do rows of {others:,} other work{'s' * (others > 1)}"
    lines = " and ".join(work.place.rpartition(", ")[2] for work in (first, second))
    return [
        f"{file}, {lines}: the same work takes {time_text(first.seconds)} and {time_text(second.seconds)}{more}: the "
        "median counts; remove what is wrong"
    ]
