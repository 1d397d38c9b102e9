"""Arrays of cells for Slurm, made by submitit: the script as it would be submitted, and its submission."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

from rooflight.errors import BadInput
from rooflight.study.slurm.options import WARNED_S, SlurmOptions, minutes
from rooflight.study.slurm.queue import last_line
from rooflight.study.slurm.task import run_task


def check_installed() -> None:
    try:
        import submitit  # noqa: F401
    except ImportError:
        raise BadInput(
            "--launcher slurm needs submitit, which is not installed: pip install 'rooflight[slurm]'"
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
        raise BadInput(f"Slurm did not take the job: {said}") from None
    except OSError as error:
        raise BadInput(
            f"cannot submit to Slurm: {error.strerror or error}; --dry-run shows what would be submitted"
        ) from error
    return [job.job_id for job in jobs]


def _parameters(name: str, options: SlurmOptions, after: Sequence[str]) -> dict[str, Any]:
    """As submitit calls them. What is not given is left to the cluster."""
    more = dict(options.more)
    depends = [str(more.pop("dependency"))] if "dependency" in more else []
    depends += [f"afterany:{':'.join(after)}"] if after else []
    given = {key: getattr(options, key) for key in ("partition", "gres", "account", "qos", "constraint", "nodelist")}
    found: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    found |= {
        "job_name": name,
        "time": minutes(options.time),
        "signal_delay_s": WARNED_S,
        "array_parallelism": options.max_parallel,
        "wckey": None,  # submitit's own name for it is refused where such names are checked
        "additional_parameters": {"requeue": True, **more},
    }
    if depends:
        found["dependency"] = ",".join(depends)
    if options.setup:
        found["setup"] = list(options.setup)
    if "cpus-per-task" in more:
        found["srun_args"] = [f"--cpus-per-task={more['cpus-per-task']}"]  # srun no longer takes it from sbatch
    return found
