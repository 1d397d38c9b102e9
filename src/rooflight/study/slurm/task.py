"""What runs on a node: one cell. torch is imported only if there is something to do."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from rooflight.errors import RooflightError
from rooflight.study.machine import is_here
from rooflight.study.store import key_of, open_study


class OutOfTime(RooflightError):
    """The job's time limit is near, and it will not be started again."""


def run_task(folder: str, cell_id: str) -> str:
    """What became of the cell. A task that is requeued after its cell was finished finds that, and ends."""
    if _is_finished(Path(folder), cell_id):
        return "done before"
    _tell_of_time_in_our_words()
    from rooflight.study.work import run_cell

    return run_cell(Path(folder), cell_id).state


def _is_finished(folder: Path, cell_id: str) -> bool:
    store = open_study(folder)
    try:
        cell = store.by_id.get(cell_id)
        if cell is None:
            return False  # run_cell says what is wrong
        sides = store.sides(cell)
        could_measure = "measured" not in sides and store.is_measurable(cell) and is_here(cell.on)
        return not could_measure and not any(store.is_open(key_of(cell, side)) for side in sides)
    finally:
        store.close()


def _tell_of_time_in_our_words() -> None:
    """submitit requeues a task that is preempted, and raises an error of its own in one whose time is over."""
    from submitit.core.utils import UncompletedJobError

    theirs = signal.getsignal(signal.SIGUSR2)
    if not callable(theirs):
        return
    handle: Callable[[int, FrameType | None], object] = theirs

    def ours(number: int, frame: FrameType | None) -> None:
        try:
            handle(number, frame)
        except UncompletedJobError:
            raise OutOfTime("Slurm's time limit for the task was reached: give more with --time") from None

    signal.signal(signal.SIGUSR2, ours)
