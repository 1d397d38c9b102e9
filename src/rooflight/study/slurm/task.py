"""What runs on a node: one cell. torch is imported only if there is something to do."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from rooflight.study.machine import is_here
from rooflight.study.store import key_of, open_study

OUT_OF_TIME = "the time limit was reached: give more with --time"


def run_task(folder: str, cell_id: str) -> str:
    """What became of the cell. A task that is requeued after its cell was finished finds that, and ends."""
    if _is_finished(Path(folder), cell_id):
        return "done before"
    _end_at_once_when_told()
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


def _end_at_once_when_told() -> None:
    """submitit's handler requeues a task that is preempted and exits, and raises an error in one whose time is over.

    Either would come out in the middle of a model's code, which may catch it: the process ends here instead.
    """
    from submitit.core.utils import UncompletedJobError

    theirs = signal.getsignal(signal.SIGUSR2)
    if not callable(theirs):
        return
    handle: Callable[[int, FrameType | None], object] = theirs

    def ours(number: int, frame: FrameType | None) -> None:
        try:
            handle(number, frame)
        except SystemExit:
            pass  # requeued
        except UncompletedJobError:
            sys.stderr.write(f"{OUT_OF_TIME}\n")
        except Exception as error:
            sys.stderr.write(f"cannot be requeued, and goes on until it is stopped: {error}\n")
            return
        sys.stderr.flush()
        os._exit(1)

    signal.signal(signal.SIGUSR2, ours)
