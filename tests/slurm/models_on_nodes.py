"""Models that a cell is made of in these tests: one waits at a gate, so that a test decides when it ends."""

import os
import time
from pathlib import Path

import torch
from torch import nn


def gated(batch: int = 1):
    """Leaves a note of where it began, and goes on when the gate is open."""
    gate = Path(os.environ["ROOFLIGHT_TEST_GATE"])
    of_array = "SLURM_ARRAY_JOB_ID" in os.environ
    task = "{SLURM_ARRAY_JOB_ID}_{SLURM_ARRAY_TASK_ID}" if of_array else "{SLURM_JOB_ID}"
    note = f"{task}.{{SLURMD_NODENAME}}.{os.getpid()}.began".format(**os.environ)
    (gate / note).touch()
    while not (gate / "open").exists():
        time.sleep(0.05)
    return nn.Linear(4, 4), torch.zeros(batch, 4)


def broken():
    raise ValueError("this model cannot be built")
