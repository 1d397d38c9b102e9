"""What Slurm says of tasks. Only squeue is asked: clusters without accounting have no sacct."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Collection, Iterable, Sequence

import msgspec

from rooflight.errors import BadInput, RooflightError

_SECONDS = 120
"""A busy controller may take its time."""
_ENDED = frozenset(
    "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED REVOKED TIMEOUT".split()
)
MOST_IN_ARRAY = 1000
"""Where Slurm does not say: its own default is one more."""


class NoAnswer(RooflightError):
    """Slurm is there, but does not answer or refuses."""


class SlurmTask(msgspec.Struct, frozen=True):
    """One task as the queue shows it; names of states are Slurm's."""

    job: str
    state: str
    reason: str = ""
    node: str = ""

    @property
    def has_ended(self) -> bool:
        return self.state in _ENDED

    @property
    def is_broken(self) -> bool:
        """Ended before its time."""
        return self.has_ended and self.state != "COMPLETED"


def check_there() -> None:
    """Say it now if there is no Slurm."""
    missing = [name for name in ("sbatch", "squeue", "scancel", "srun") if shutil.which(name) is None]
    if missing:
        raise BadInput(
            "no-slurm",
            f"no Slurm on this machine ({', '.join(missing)} not found): run this where your cluster takes "
            "jobs, or add --dry-run to see what would be submitted",
        )


def tasks(jobs: Collection[str]) -> dict[str, SlurmTask]:
    """Those of these that Slurm knows, by id; ended ones are known for some minutes."""
    if not jobs:
        return {}
    listed = _squeue(["--states=all", f"--jobs={','.join(arrays_of(jobs))}"])
    return {task.job: task for task in listed if task.job in jobs}


def arrays_of(jobs: Iterable[str]) -> list[str]:
    """The jobs that these are tasks of."""
    return sorted({job.partition("_")[0] for job in jobs}, key=int)


def named(name: str) -> list[SlurmTask]:
    """Tasks of a job that have not ended, by its name."""
    return [task for task in _squeue([f"--name={name}"]) if not task.has_ended]


def cancel(jobs: Collection[str]) -> None:
    """Jobs, arrays or tasks of them. That one has ended meanwhile is no error."""
    if jobs:
        _run(["scancel", *sorted(jobs)])


def most_in_array() -> int:
    """How many tasks an array may have here."""
    try:
        configured = re.search(r"^MaxArraySize\s*=\s*(\d+)", _run(["scontrol", "show", "config"]), re.MULTILINE)
    except NoAnswer:
        return MOST_IN_ARRAY
    return max(1, int(configured[1]) - 1) if configured else MOST_IN_ARRAY


def _squeue(which: Sequence[str]) -> list[SlurmTask]:
    try:
        output = _run(["squeue", "--noheader", "--array", "--format=%i|%T|%r|%N", *which])
    except NoAnswer as error:
        if "Invalid job id" in str(error):  # it knows none of them
            return []
        raise
    return [SlurmTask(*line.split("|", 3)) for line in output.splitlines() if line.count("|") >= 3]


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise NoAnswer("no-slurm-answer", f"{command[0]} has not answered for {_SECONDS} s") from None
    except OSError as error:
        raise NoAnswer("no-slurm-answer", f"cannot run {command[0]}: {error.strerror or error}") from error
    if done.returncode:
        raise NoAnswer(
            "no-slurm-answer", last_line(done.stderr) or f"{command[0]} ended with exit code {done.returncode}"
        )
    return done.stdout


def last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
