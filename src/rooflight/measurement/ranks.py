"""Several processes of one step: which one this is, and what it may not do alone."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rooflight.errors import BadInput, CannotMeasure
from rooflight.ledger import Op


@dataclass(frozen=True)
class ProcessRank:
    """Which of several processes this is."""

    rank: int
    world: int
    local_rank: int
    """Among those on this machine; the rank where the launcher does not say."""


ALONE = ProcessRank(rank=0, world=1, local_rank=0)

# torchrun runs inside a step of Slurm, and so does what mpirun starts: who is nearest to the program is asked first.
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
_OPEN_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")
_SLURM = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")
_SLURM_STEP, _SLURM_STEP_TASKS = "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"
"""Only what srun starts has a step: in a batch script the other three are those of the whole job. The shell that salloc
opens may be a step too, of one task.
"""


def process_rank(environment: Mapping[str, str] = os.environ) -> ProcessRank:
    """Rank and number of processes as the launcher says (torchrun, Open MPI, Slurm's srun); alone where none does."""
    for names in (_TORCHRUN, _OPEN_MPI, _SLURM):
        rank_name, world_name, local_name = names
        # Empty is unset: that is how a shell script takes a variable away.
        if not environment.get(rank_name) or not environment.get(world_name):
            continue
        if names is _SLURM and (not environment.get(_SLURM_STEP) or environment.get(_SLURM_STEP_TASKS) == "1"):
            continue
        world = _number(environment, world_name)
        if names is _SLURM and world < 2:
            continue
        rank = _number(environment, rank_name)
        if rank >= world:
            raise BadInput(
                "bad-rank", f"{rank_name}={rank} is no rank of {world_name}={world}: ranks are counted from 0"
            )
        return ProcessRank(rank, world, _number(environment, local_name) if environment.get(local_name) else rank)
    return ALONE


def shared_store() -> Any:
    """What the processes of torch's default group share; `None`: there is no such group."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return None
    return dist.distributed_c10d._get_default_store()


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment[name]
    if not (text.isascii() and text.isdecimal()):
        raise BadInput(
            "not-a-number",
            f"{name}={text!r} is no number: unset it, or let the launcher (torchrun, mpirun, srun) set it",
        )
    return int(text)


def refuse_collectives(ops: Sequence[Op]) -> None:
    """Counters repeat the step on one rank, and slow it down: the others would wait for it, or it for them for ever."""
    collective = next((op for op in ops if op.name.startswith(("c10d::", "_c10d_functional::"))), None)
    if collective is not None:
        raise CannotMeasure(
            "step-with-collectives",
            f"the step talks to other ranks ({collective.name}), and a rank cannot repeat that alone: measure the "
            "model without DDP or FSDP around it, or put a rooflight.region into the training loop",
        )
