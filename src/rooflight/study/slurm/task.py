"""Where tasks that an older rooflight has queued look for what they run."""

from rooflight.study.slurm.submission import run_task

__all__ = ["run_task"]
