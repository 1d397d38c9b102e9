"""Follows the cells of a study through Slurm: submits those that nobody has, and waits until all have ended.

What is done is known from the study's journal alone; Slurm is asked only what became of the tasks whose cells are not.
Nothing is kept in memory that the folder does not hold: a launcher that is killed loses nothing, and the next one goes
on with the tasks that it finds.
"""

from __future__ import annotations

import secrets
import shlex
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from rooflight.study.cell import StudyCell
from rooflight.study.journal import Progress
from rooflight.study.slurm import queue
from rooflight.study.slurm.options import SlurmOptions
from rooflight.study.slurm.queue import NoAnswer, SlurmTask
from rooflight.study.slurm.records import LOCK, SubmissionRecords, begun
from rooflight.study.slurm.submission import check_installed, script, submit
from rooflight.study.store import Store, open_study

T = TypeVar("T")
Status = Callable[[str], None]
"""Told, in words, how the tasks stand."""
LOOK_S = 1.0
"""How often the journal is looked at."""
_ASK_MOST_S = 30.0
"""Slurm is asked as often at first, and ever less often, down to this."""
_LATE_S = 5.0
"""On a shared file system, what a task has written may be seen so much later than its end; what is seen later still
counts, and more than a failure that was recorded meanwhile."""


class SlurmLauncher:
    """Every cell a task of its own, as many at once as `options` allow."""

    def __init__(self, options: SlurmOptions, *, status: Status = lambda text: None) -> None:
        self.options = options
        self._status = status

    def run(self, folder: Path, waiting: list[StudyCell], progress: Progress) -> None:
        check_installed()
        queue.check_there()
        with open_study(folder.resolve()) as store:
            store.progress = progress
            with store.locks.holding(LOCK):
                followed = self._take_on(store, waiting)
            Follower(store, followed, self._status).follow()

    def dry_run(self, folder: Path, waiting: list[StudyCell]) -> str:
        check_installed()
        folder = folder.resolve()
        records = SubmissionRecords(folder)
        submitted = {cell for submission in records.read() for cell in submission.cells}
        cells = [cell for cell in waiting if cell.id not in submitted]
        lines = []
        for number, part in enumerate(_parts(cells, queue.MOST_IN_ARRAY)):
            text = script(records.logs, len(part), name="rooflight-TOKEN", options=self.options)
            at_once = min(len(part), self.options.max_parallel)
            after = ", after those before" if number else ""
            lines += [f"would submit {_cells(len(part))} to Slurm, {at_once} at a time{after}, with this script:", ""]
            lines += [*text.strip().splitlines(), "", "one cell a task:"]
            lines += [f"{task:5}  {cell.id}" for task, cell in enumerate(part)]
        if len(cells) < len(waiting):
            lines.append(
                f"{_cells(len(waiting) - len(cells))} submitted before would not be submitted again while "
                "Slurm has them"
            )
        return "\n".join(lines or ["nothing waits: nothing would be submitted"]) + "\n"

    def cancel(self, folder: Path) -> int:
        """Take all of the study's tasks from Slurm; how many there were. Their cells wait as before."""
        queue.check_there()
        with open_study(folder.resolve()) as store, store.locks.holding(LOCK):
            records = SubmissionRecords(store.folder)
            submissions = records.read()
            tasks = queue.tasks({job for submission in submissions for job in submission.jobs})
            alive = {job for job, task in tasks.items() if is_alive(task)}
            for submission in submissions:
                alive |= set() if submission.jobs else {task.job for task in queue.named(submission.name)}
            for submission in submissions:
                records.remove(submission)  # first: who follows these tasks sees that nobody wants them
            queue.cancel(alive)
            return len(alive)

    def command(self, folder: Path) -> str:
        """How to come back to a study."""
        return self.options.command(folder)

    def when_interrupted(self, folder: Path) -> str:
        """How to come back, and how not to."""
        jobs = queue.arrays_of(job for submission in SubmissionRecords(folder).read() for job in submission.jobs)
        again = self.command(folder)
        if not jobs:
            return f"nothing was submitted, go on with: {again}"
        go_on = f"job {jobs[0]} goes on" if len(jobs) == 1 else f"jobs {', '.join(jobs)} go on"
        cancel = shlex.join(["rooflight", "study", str(folder), "--launcher", "slurm", "--cancel"])
        return f"{go_on} in Slurm; come back with: {again}; take them from Slurm with: {cancel}"

    def _take_on(self, store: Store, waiting: Sequence[StudyCell]) -> dict[str, str]:
        """The task of every cell that waits: one that Slurm has already, or a new one."""
        records = SubmissionRecords(store.folder)
        for submission in [earlier for earlier in records.read() if not earlier.jobs]:
            # Whoever submitted it was killed before it was complete: its tasks wait for files that nobody will write.
            queue.cancel(queue.arrays_of(task.job for task in queue.named(submission.name)))
            records.remove(submission)
        submissions = records.read()
        tasks = queue.tasks({job for submission in submissions for job in submission.jobs})
        store.refresh()
        wanted = {cell.id: cell for cell in waiting if store.open_sides(cell)}
        alive: dict[str, str] = {}
        broken: dict[str, SlurmTask] = {}
        for submission in submissions:
            jobs = submission.tasks
            broken |= {cell: tasks[job] for cell, job in jobs.items() if job in tasks and tasks[job].is_broken}
            records.write(submission.without({cell for cell, job in jobs.items() if not is_alive(tasks.get(job))}))
            alive |= {cell: job for cell, job in jobs.items() if is_alive(tasks.get(job))}
        # What Slurm has forgotten, or what did all that it could, is free to be submitted again.
        broken = {name: task for name, task in broken.items() if name in wanted and name not in alive}
        others = [cell for name, cell in wanted.items() if name not in broken]
        for name, task in broken.items():
            record_failure(store, wanted[name], why(task, records), others=others)
        left = [name for name in wanted if name not in alive and name not in broken]
        new = self._submit(store, left, records, after=queue.arrays_of(alive.values()))
        return {name: job for name, job in alive.items() if name in wanted} | new

    def _submit(
        self, store: Store, cells: Sequence[str], records: SubmissionRecords, *, after: list[str]
    ) -> dict[str, str]:
        """Arrays that wait for one another: together they keep to the limit that each has."""
        submitted: dict[str, str] = {}
        for part in _parts(cells, queue.most_in_array() if cells else 1):
            submission = begun(secrets.token_hex(4), part)
            records.write(submission)
            try:
                jobs = submit(records.logs, store.folder, part, name=submission.name, options=self.options, after=after)
            except Exception:
                records.remove(submission)
                raise
            submission = submission.with_jobs(jobs)
            records.write(submission)
            submitted |= submission.tasks
            after = queue.arrays_of(jobs)
            self._status(f"Slurm: submitted {_cells(len(part))} as job {after[0]}")
        return submitted


def _parts(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _cells(count: int) -> str:
    return "1 cell" if count == 1 else f"{count} cells"


# --- following tasks to their end ---


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
