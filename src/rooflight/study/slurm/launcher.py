"""Follows the cells of a study through Slurm: submits those that nobody has, and waits until all have ended.

What is done is known from the study's journal alone; Slurm is asked only what became of the tasks whose cells are not.
Nothing is kept in memory that the folder does not hold: a launcher that is killed loses nothing, and the next one goes
on with the tasks that it finds.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from rooflight.study.cell import Cell
from rooflight.study.launch import Progress
from rooflight.study.slurm import queue
from rooflight.study.slurm.follower import Follower, Status, is_alive, is_open, record_failure, why
from rooflight.study.slurm.options import SlurmOptions
from rooflight.study.slurm.queue import Task
from rooflight.study.slurm.records import LOCK, Records, Submission, begun
from rooflight.study.slurm.submission import check_installed, script, submit
from rooflight.study.store import Store, open_study

T = TypeVar("T")


class SlurmLauncher:
    """Every cell a task of its own, as many at once as `options` allow."""

    def __init__(self, options: SlurmOptions, *, status: Status = lambda text: None) -> None:
        self.options = options
        self._status = status

    def run(self, folder: Path, waiting: list[Cell], progress: Progress) -> None:
        check_installed()
        queue.check_there()
        store = open_study(folder.resolve())
        try:
            store.heard = lambda entry: progress(entry) if entry.state in ("done", "failed") else None
            with store.locks.holding(LOCK):
                followed = self._take_on(store, waiting)
            Follower(store, followed, self._status).follow()
        finally:
            store.close()

    def dry_run(self, folder: Path, waiting: list[Cell]) -> str:
        check_installed()
        folder = folder.resolve()
        records = Records(folder)
        known = {cell for submission in records.read() for cell in submission.cells}
        cells = [cell for cell in waiting if cell.id not in known]
        lines = []
        for number, some in enumerate(_parts(cells, queue.MOST_IN_ARRAY)):
            text = script(records.logs, len(some), name="rooflight-TOKEN", options=self.options)
            at_once = min(len(some), self.options.max_parallel)
            after = ", after those before" if number else ""
            lines += [f"would submit {_cells(len(some))} to Slurm, {at_once} at a time{after}, with this script:", ""]
            lines += [*text.strip().splitlines(), "", "one cell a task:"]
            lines += [f"{task:5}  {cell.id}" for task, cell in enumerate(some)]
        if len(cells) < len(waiting):
            lines.append(f"{_cells(len(waiting) - len(cells))} submitted before would not be submitted again while "
                         "Slurm has them")  # fmt: skip
        return "\n".join(lines or ["nothing waits: nothing would be submitted"]) + "\n"

    def cancel(self, folder: Path) -> int:
        """Take all of the study's tasks from Slurm; how many there were. Their cells wait as before."""
        queue.check_there()
        store = open_study(folder.resolve())
        try:
            with store.locks.holding(LOCK):
                records = Records(store.folder)
                submissions = records.read()
                alive = _alive_in(submissions)
                for submission in submissions:
                    records.remove(submission)  # first: who follows these tasks sees that nobody wants them
                queue.cancel(alive)
                return len(alive)
        finally:
            store.close()

    def when_interrupted(self, folder: Path) -> str:
        """How to come back, and how not to."""
        jobs = _arrays(job for one in Records(folder).read() for job in one.jobs)
        again = self.options.command(folder)
        if not jobs:
            return f"nothing was submitted, go on with: {again}"
        go_on = f"job {jobs[0]} goes on" if len(jobs) == 1 else f"jobs {', '.join(jobs)} go on"
        cancel = shlex.join(["rooflight", "study", str(folder), "--launcher", "slurm", "--cancel"])
        return f"{go_on} in Slurm; come back with: {again}; take them from Slurm with: {cancel}"

    def _take_on(self, store: Store, waiting: Sequence[Cell]) -> dict[str, str]:
        """The task of every cell that waits: one that Slurm has already, or a new one."""
        records = Records(store.folder)
        for submission in [one for one in records.read() if not one.jobs]:
            _undo(submission)
            records.remove(submission)
        submissions = records.read()
        known = queue.tasks({job for one in submissions for job in one.jobs})
        store.refresh()
        wanted = {cell.id: cell for cell in waiting if is_open(store, cell)}
        alive: dict[str, str] = {}
        broken: dict[str, Task] = {}
        for submission in submissions:
            tasks = submission.tasks
            alive |= (here := {cell: job for cell, job in tasks.items() if is_alive(known.get(job))})
            broken |= {cell: known[job] for cell, job in tasks.items() if job in known and known[job].is_broken}
            records.write(submission.without(set(tasks) - set(here)))
        # What Slurm has forgotten, or what did all that it could, is free to be submitted again.
        broken = {name: task for name, task in broken.items() if name in wanted and name not in alive}
        others = [cell for name, cell in wanted.items() if name not in broken]
        for name, task in broken.items():
            record_failure(store, wanted[name], why(task, records), others=others)
        left = [name for name in wanted if name not in alive and name not in broken]
        new = self._submit(store, left, records, after=_arrays(alive.values()))
        return {name: job for name, job in alive.items() if name in wanted} | new

    def _submit(self, store: Store, cells: Sequence[str], records: Records, *, after: list[str]) -> dict[str, str]:
        """Arrays that wait for one another: together they keep to the limit that each has."""
        submitted: dict[str, str] = {}
        for some in _parts(cells, queue.most_in_array() if cells else 1):
            submission = begun(secrets.token_hex(4), some)
            records.write(submission)
            try:
                jobs = submit(records.logs, store.folder, some, name=submission.name, options=self.options,
                              after=after)  # fmt: skip
            except Exception:
                records.remove(submission)
                raise
            submission = submission.with_jobs(jobs)
            records.write(submission)
            submitted |= submission.tasks
            after = _arrays(jobs)
            self._status(f"Slurm: submitted {_cells(len(some))} as job {after[0]}")
        return submitted


def _undo(submission: Submission) -> None:
    """Whoever submitted it was killed before it was complete: its tasks wait for files that nobody will write."""
    queue.cancel(_arrays(task.job for task in queue.named(submission.name)))


def _alive_in(submissions: Sequence[Submission]) -> set[str]:
    known = queue.tasks({job for one in submissions for job in one.jobs})
    found = {job for job, task in known.items() if is_alive(task)}
    for submission in submissions:
        if not submission.jobs:
            found |= {task.job for task in queue.named(submission.name)}
    return found


def _arrays(jobs: Iterable[str]) -> list[str]:
    return sorted({job.partition("_")[0] for job in jobs}, key=int)


def _parts(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _cells(count: int) -> str:
    return "1 cell" if count == 1 else f"{count} cells"
