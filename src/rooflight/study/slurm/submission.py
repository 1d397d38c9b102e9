"""Arrays of cells for Slurm, made by submitit: the script as it would be submitted, its submission, and the task that
runs on a node: one cell. torch is imported only if there is something to do."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Any

from rooflight.errors import BadInput
from rooflight.study.machine import can_measure
from rooflight.study.slurm.options import NAMED, WARNED_S, SlurmOptions, minutes
from rooflight.study.slurm.queue import last_line
from rooflight.study.store import open_study


def check_installed() -> None:
    try:
        import submitit  # noqa: F401
    except ImportError:
        raise BadInput(
            "package-missing", "--launcher slurm needs submitit, which is not installed: pip install 'rooflight[slurm]'"
        ) from None


def script(logs: Path, count: int, *, name: str, options: SlurmOptions) -> str:
    """What sbatch would be given for so many cells; Slurm need not be here."""
    from submitit import SlurmExecutor

    class OnPaper(SlurmExecutor):
        @classmethod
        def affinity(cls) -> int:
            return 1  # as if srun were there

    executor = OnPaper(logs, python=options.python)
    executor.update_parameters(**_parameters(name, options, ()))
    if count > 1:
        executor.parameters["map_count"] = count
    text: str = executor._make_submission_file_text(executor._submitit_command_str, "")
    return text


def submit(
    logs: Path, folder: Path, cells: Sequence[str], *, name: str, options: SlurmOptions, after: Sequence[str]
) -> list[str]:
    """The task of each cell. `after`: jobs that must have ended before, so that limits hold for all together."""
    from submitit import SlurmExecutor
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    executor = SlurmExecutor(logs, max_num_timeout=0, python=options.python)
    executor.update_parameters(**_parameters(name, options, after))
    try:
        with redirect_stderr(StringIO()):  # submitit prints there what it raises as well
            jobs = executor.map_array(run_task, [str(folder)] * len(cells), cells)
    except (FailedJobError, FailedSubmissionError) as error:
        said = last_line(str(error)).removeprefix("sbatch: error: ").removeprefix("Batch job submission failed: ")
        raise BadInput("submission-refused", f"Slurm did not take the job: {said}") from None
    except OSError as error:
        raise BadInput(
            "submission-refused",
            f"cannot submit to Slurm: {error.strerror or error}; --dry-run shows what would be submitted",
        ) from error
    return [job.job_id for job in jobs]


def _parameters(name: str, options: SlurmOptions, after: Sequence[str]) -> dict[str, Any]:
    """As submitit calls them. What is not given is left to the cluster."""
    more = dict(options.more)
    depends = [str(more.pop("dependency"))] if "dependency" in more else []
    depends += [f"afterany:{':'.join(after)}"] if after else []
    parameters: dict[str, Any] = {key: value for key in NAMED if (value := getattr(options, key)) is not None}
    parameters |= {
        "job_name": name,
        "time": minutes(options.time),
        "signal_delay_s": WARNED_S,
        "array_parallelism": options.max_parallel,
        "wckey": None,  # submitit's own name for it is refused where such names are checked
        "additional_parameters": {"requeue": True, **more},
    }
    if depends:
        parameters["dependency"] = ",".join(depends)
    if options.setup:
        parameters["setup"] = list(options.setup)
    if "cpus-per-task" in more:
        parameters["srun_args"] = [f"--cpus-per-task={more['cpus-per-task']}"]  # srun no longer takes it from sbatch
    return parameters


# --- on a node ---

OUT_OF_TIME = "the time limit was reached: give more with --time"


def run_task(folder: str, cell_id: str) -> str:
    """What became of the cell. A task that is requeued after its cell was finished finds that, and ends."""
    if _is_finished(Path(folder), cell_id):
        return "done before"
    _end_at_once_when_told()
    from rooflight.study.work import run_cell

    return run_cell(Path(folder), cell_id).state


def _is_finished(folder: Path, cell_id: str) -> bool:
    with open_study(folder) as store:
        cell = store.by_id.get(cell_id)
        if cell is None:
            return False  # run_cell says what is wrong
        could_measure = "measured" not in store.sides(cell) and store.is_measurable(cell) and can_measure(cell)
        return not could_measure and not store.open_sides(cell)


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
