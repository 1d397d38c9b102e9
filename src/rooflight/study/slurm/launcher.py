"""Follows the cells of a study through Slurm: submits those that nobody has, and waits until all have ended.

What is done is known from the study's journal alone; Slurm is asked only what became of the tasks whose cells are not.
Nothing is kept in memory that the folder does not hold: a launcher that is killed loses nothing, and the next one goes
on with the tasks that it finds.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rooflight.study.cell import StudyCell
from rooflight.study.journal import Progress
from rooflight.study.plan import StudyPlan
from rooflight.study.slurm import queue
from rooflight.study.slurm.follower import Follower, Status, is_alive, record_failure, why
from rooflight.study.slurm.options import SlurmOptions, asked
from rooflight.study.slurm.placement import CellGroup, SlurmPlacement, placement
from rooflight.study.slurm.queue import SlurmTask
from rooflight.study.slurm.records import LOCK, SubmissionRecords, begun
from rooflight.study.slurm.submission import check_installed, script, submit
from rooflight.study.store import Store, open_study

T = TypeVar("T")


class SlurmLauncher:
    """Every cell a task of its own, as many at once as the options allow.

    `given`: what was asked for, by the names of the command line; a plan's own options are joined with it."""

    def __init__(self, given: Mapping[str, Any], *, status: Status = lambda text: None) -> None:
        self.options = asked(given)
        self._given = given
        self._status = status

    def placement(self, plan: StudyPlan) -> SlurmPlacement:
        """The options of every cell of this plan."""
        return placement(plan.slurm, self._given, measures=plan.measure is not False)

    def run(self, folder: Path, waiting: list[StudyCell], progress: Progress) -> None:
        check_installed()
        queue.check_there()
        with open_study(folder.resolve()) as store:
            store.progress = progress
            with store.locks.holding(LOCK):
                followed = self._take_on(store, waiting)
            Follower(store, followed, self._status).follow()

    def dry_run(self, store: Store) -> str:
        check_installed()
        waiting, placed = store.waiting(), self.placement(store.plan)
        records = SubmissionRecords(store.folder.resolve())
        submitted = {cell for submission in records.read() for cell in submission.cells}
        cells = [cell for cell in waiting if cell.id not in submitted]
        lines = []
        for group, its_cells in placed.groups(cells).items():
            options = placed.options_of(group)
            for number, part in enumerate(_parts(its_cells, queue.MOST_IN_ARRAY)):
                text = script(records.logs, len(part), name="rooflight-TOKEN", options=options)
                at_once = min(len(part), options.max_parallel)
                what = f"{_cells(len(part))}{_where(group)}"
                after = ", after those before" if number else ""
                lines += [f"would submit {what} to Slurm, {at_once} at a time{after}, with this script:", ""]
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
        left = [cell for name, cell in wanted.items() if name not in alive and name not in broken]
        placed = self.placement(store.plan)
        new: dict[str, str] = {}
        for group, cells in placed.groups(left).items():
            ahead = [job for name, job in alive.items() if _is_of(store, name, group, placed)]
            names, options = [cell.id for cell in cells], placed.options_of(group)
            new |= self._submit(store, names, records, options=options, after=queue.arrays_of(ahead))
        return {name: job for name, job in alive.items() if name in wanted} | new

    def _submit(
        self,
        store: Store,
        cells: Sequence[str],
        records: SubmissionRecords,
        *,
        options: SlurmOptions,
        after: list[str],
    ) -> dict[str, str]:
        """Arrays that wait for one another: together they keep to the limit that each has. Those of another device,
        or of more GPUs, are another queue."""
        submitted: dict[str, str] = {}
        for part in _parts(cells, queue.most_in_array() if cells else 1):
            submission = begun(secrets.token_hex(4), part)
            records.write(submission)
            try:
                jobs = submit(records.logs, store.folder, part, name=submission.name, options=options, after=after)
            except Exception:
                records.remove(submission)
                raise
            submission = submission.with_jobs(jobs)
            records.write(submission)
            submitted |= submission.tasks
            after = queue.arrays_of(jobs)
            where = f" to {options.partition}" if options is not self.options and options.partition else ""
            self._status(f"Slurm: submitted {_cells(len(part))}{where} as job {after[0]}")
        return submitted


def _is_of(store: Store, cell_id: str, group: CellGroup, placed: SlurmPlacement) -> bool:
    """Does the cell go where cells of this group go? One that the plan no longer has goes with all others."""
    cell = store.by_id.get(cell_id)
    return group == (CellGroup("") if cell is None else placed.group_of(cell))


def _where(group: CellGroup) -> str:
    """` on v100`, ` on 2 x v100`, ` on 2 GPUs`."""
    if group.gpus == 1:
        return f" on {group.device}" if group.device else ""
    return f" on {group.gpus} x {group.device}" if group.device else f" on {group.gpus} GPUs"


def _parts(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _cells(count: int) -> str:
    return "1 cell" if count == 1 else f"{count} cells"
