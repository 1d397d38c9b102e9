"""Which cells were submitted as which tasks, kept in the study's folder: whoever comes back finds them again.

A submission is written down before it is made, without its job's id, and again when Slurm has given it one. One that
has none was cut short: its job, if there is any, is found by its name.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from rooflight.errors import BadFile
from rooflight.files import UNDECODABLE, write_atomically

FOLDER = "slurm"
LOCK = "slurm"
"""The name of the lock that is held while records are changed."""


class SlurmSubmission(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One job: an array, or a single task."""

    token: str
    at: float
    """Seconds since 1970, for people."""
    cells: tuple[str, ...]
    jobs: tuple[str, ...] = ()
    """The task of each cell: `12_0`; nothing until Slurm has taken it."""

    @property
    def name(self) -> str:
        return f"rooflight-{self.token}"

    @property
    def tasks(self) -> dict[str, str]:
        """Job ids by cell."""
        return dict(zip(self.cells, self.jobs, strict=True)) if self.jobs else {}

    def with_jobs(self, jobs: Sequence[str]) -> SlurmSubmission:
        return replace(self, jobs=tuple(jobs))

    def without(self, cells: Collection[str]) -> SlurmSubmission:
        left = {cell: job for cell, job in self.tasks.items() if cell not in cells}
        return replace(self, cells=tuple(left), jobs=tuple(left.values()))


def begun(token: str, cells: Collection[str]) -> SlurmSubmission:
    return SlurmSubmission(token=token, at=time.time(), cells=tuple(cells))


class SubmissionRecords:
    """The submissions of one study. Whoever changes them holds the lock."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER / "jobs"
        self.logs = folder / FOLDER / "tasks"
        """Where submitit keeps scripts, and tasks what they print."""

    def read(self) -> list[SlurmSubmission]:
        submissions = []
        for path in sorted(self._folder.glob("*.json")):
            if path.name.startswith("."):
                continue  # half-written by somebody who was killed
            try:
                submissions.append(msgspec.json.decode(path.read_bytes(), type=SlurmSubmission))
            except OSError as error:
                raise BadFile(
                    "read-failed", f"cannot read {path}: {error.strerror or error}; may you read it?"
                ) from error
            except UNDECODABLE as error:
                raise BadFile(
                    "damaged-file", f"{path} is damaged ({error}): remove it when its job has ended"
                ) from None
        return sorted(submissions, key=lambda submission: submission.at)

    def write(self, submission: SlurmSubmission) -> None:
        """One without cells is no longer needed."""
        if not submission.cells:
            self.remove(submission)
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadFile(
                "write-failed", f"cannot make {self._folder}: {error.strerror or error}; may you write there?"
            ) from error
        write_atomically(self._path(submission), msgspec.json.encode(submission), force=True)

    def remove(self, submission: SlurmSubmission) -> None:
        self._path(submission).unlink(missing_ok=True)

    def drop(self, cells: Collection[str]) -> None:
        """These are no longer anybody's tasks."""
        for submission in self.read():
            left = submission.without(cells)
            if submission.jobs and left.cells != submission.cells:
                self.write(left)

    def last_words(self, job: str) -> str:
        """The last line that a task wrote to its error output, but for what Slurm's own programs say."""
        try:
            with (self.logs / f"{job}_0_log.err").open("rb") as file:
                file.seek(0, 2)
                file.seek(max(0, file.tell() - 4096))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        said = [line.strip() for line in lines if line.strip() and not line.startswith(("srun: ", "slurmstepd: "))]
        return said[-1] if said else ""

    def _path(self, submission: SlurmSubmission) -> Path:
        return self._folder / f"{submission.token}.json"
