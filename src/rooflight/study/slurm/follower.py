"""Tasks of a study, followed to their end: the journal tells what is finished, Slurm what became of the rest."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from rooflight.study.cell import StudyCell
from rooflight.study.slurm import queue
from rooflight.study.slurm.queue import NoAnswer, SlurmTask
from rooflight.study.slurm.records import LOCK, SubmissionRecords
from rooflight.study.store import Store

Status = Callable[[str], None]
"""Told, in words, how the tasks stand."""
LOOK_S = 1.0
"""How often the journal is looked at."""
_ASK_MOST_S = 30.0
"""Slurm is asked as often at first, and ever less often, down to this."""
_LATE_S = 5.0
"""On a shared file system, what a task has written may be seen so much later than its end; what is seen later still
counts, and more than a failure that was recorded meanwhile."""


class Follower:
    """Knows from the journal what is finished, and asks Slurm about the rest."""

    def __init__(self, store: Store, followed: Mapping[str, str], status: Status) -> None:
        self._store = store
        self._records = SubmissionRecords(store.folder)
        self._left = dict(followed)
        """Job ids by cell, of cells that are not finished."""
        self._status = status
        self._told = ""
        self._seen: dict[str, SlurmTask] = {}
        """The last that Slurm said of each task."""
        self._ended: dict[str, float] = {}
        """Since when tasks are known to have ended, of cells that are not finished."""

    def follow(self) -> None:
        began = time.monotonic()
        ask_at = began
        while self._look():
            if time.monotonic() >= ask_at:
                self._ask()
                now = time.monotonic()
                pace = min(_ASK_MOST_S, max(LOOK_S, (now - began) / 20))
                ask_at = now + (LOOK_S if self._ended else pace)
            if self._left:
                time.sleep(LOOK_S)
        self._forget_all()

    def _look(self) -> bool:
        """Is anything left, by the journal?"""
        self._store.refresh()
        by_id = self._store.by_id
        self._left = {cell: job for cell, job in self._left.items() if self._store.open_sides(by_id[cell])}
        return bool(self._left)

    def _ask(self) -> None:
        try:
            tasks = queue.tasks(set(self._left.values()))
        except NoAnswer as error:
            self._say(f"Slurm does not answer, waiting for it ({error})")
            return
        words = _in_words([tasks[job] for job in self._left.values() if job in tasks])
        self._say(f"Slurm: {words}" if words else "")
        gone = {job for job in self._left.values() if not is_alive(tasks.get(job))}
        since = {job: self._ended.get(job, time.monotonic()) for job in gone}
        # What has ended may have finished its cell in its last moment, and a task on its way back into the queue may
        # seem to have ended: both are looked at once more.
        again, self._ended = gone & set(self._ended), since
        if again and self._look():
            for cell, job in [(cell, job) for cell, job in self._left.items() if job in again]:
                self._end(cell, job, tasks.get(job))
        self._seen |= tasks

    def _end(self, cell_id: str, job: str, task: SlurmTask | None) -> None:
        """A task has ended, and its cell is not finished: it never will be."""
        cell = self._store.by_id[cell_id]
        if task is not None and not task.is_broken:
            if time.monotonic() - self._ended[job] < _LATE_S:
                return
            if self._store.open_sides(cell) == ["measured"]:  # it only waits for a device
                del self._left[cell_id]
                return
        with self._store.locks.holding(LOCK):
            wanted = {name for submission in self._records.read() for name in submission.cells}
            self._records.drop([cell_id])
        del self._left[cell_id]
        if cell_id in wanted:  # else it was cancelled here, with rooflight, and waits
            others = [self._store.by_id[other] for other in self._left]
            record_failure(self._store, cell, self._reason(job, task), others=others)

    def _reason(self, job: str, task: SlurmTask | None) -> str:
        if task is not None:
            return why(task, self._records)
        before = self._seen.get(job)
        if before is not None and before.state == "PENDING":
            return f"Slurm: task {job} was cancelled before it began"
        return f"Slurm no longer knows task {job}, which left no result{_said(self._records, job)}"

    def _say(self, text: str) -> None:
        if text and text != self._told:
            self._told = text
            self._status(text)

    def _forget_all(self) -> None:
        """Submissions with nothing left to do are not looked for again."""
        with self._store.locks.holding(LOCK):
            by_id = self._store.by_id
            finished = [
                cell
                for submission in self._records.read()
                for cell in submission.cells
                if cell not in by_id or not self._store.open_sides(by_id[cell])
            ]
            self._records.drop(finished)


def is_alive(task: SlurmTask | None) -> bool:
    return task is not None and not task.has_ended


def record_failure(store: Store, cell: StudyCell, reason: str, *, others: Collection[StudyCell]) -> None:
    """All of a cell that is open has failed, but for what another task does for it as well or is at just now."""
    shared = {other.key(side) for other in others for side in store.sides(other)}
    for side in store.sides(cell):
        if cell.key(side) not in shared:
            store.fail(cell, side, reason)


def why(task: SlurmTask, records: SubmissionRecords) -> str:
    """Slurm's reason in one line."""
    where = f"task {task.job}" + (f" on {task.node}" if task.node else "")
    reason = f" ({task.reason})" if task.reason not in ("", "None", "NonZeroExitCode") else ""
    if task.state == "TIMEOUT":
        return f"Slurm: {where} reached its time limit: give more with --time"
    if task.state == "CANCELLED":
        return f"Slurm: {where} was cancelled" + ("" if task.node else " before it began")
    if task.state == "OUT_OF_MEMORY":
        return f"Slurm: {where} was out of memory: give more with --slurm mem=..."
    return f"Slurm: {where} ended as {task.state.replace('_', ' ').lower()}{reason}{_said(records, task.job)}"


def _said(records: SubmissionRecords, job: str) -> str:
    words = records.last_words(job)
    return f": {words[:200]}" if words else ""


def _in_words(tasks: Sequence[SlurmTask]) -> str:
    """`3 running on node1, node2; 9 pending (Priority)`."""
    parts = []
    for state, count in sorted(Counter(task.state for task in tasks if not task.has_ended).items(), reverse=True):
        alike = [task for task in tasks if task.state == state]
        nodes = sorted({task.node for task in alike if task.node})
        reasons = sorted({task.reason for task in alike} - {"", "None"})
        where = f" on {', '.join(nodes)}" if nodes else ""
        why = f" ({', '.join(reasons)})" if reasons and not nodes else ""
        parts.append(f"{count} {state.replace('_', ' ').lower()}{where}{why}")
    return "; ".join(parts)
