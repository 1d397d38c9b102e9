"""`python -m rooflight.measurement.replica FOLDER`: one rank of a step that several processes run together."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from rooflight.errors import RooflightError
from rooflight.files import save
from rooflight.ledger import Ledger
from rooflight.machine.conditions import Conditions
from rooflight.measurement.api import measure_workload, placed_workload, trace_options
from rooflight.measurement.data_parallel import ReplicaJob
from rooflight.measurement.findings import first_line
from rooflight.measurement.options import MeasureOptions
from rooflight.measurement.ranks import process_rank
from rooflight.measurement.replicas import end_with_parent, error_file

_SILENCE_S = 600.0
"""So long one waits for another at most."""


def main(name: str) -> int:
    folder, here = Path(name), process_rank()
    end_with_parent(folder)
    try:
        job = msgspec.json.decode((folder / "job.json").read_bytes(), type=ReplicaJob)
        save(_measured(job, folder), folder / f"rank{here.rank}.json")
    except RooflightError as error:
        error_file(folder, here.rank).write_text(error.text)
        return 3
    except Exception as error:
        error_file(folder, here.rank).write_text(f"{type(error).__name__}: {first_line(error)}")
        return 1
    return 0


def _measured(job: ReplicaJob, folder: Path) -> Ledger:
    here, on_gpu = process_rank(), job.on == "cuda"
    where = torch.device("cuda", here.local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(where)
    conditions = Conditions(str(where))
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=here.rank,
        world_size=here.world,
        timeout=timedelta(seconds=min(_SILENCE_S, job.timeout_s)),
    )
    try:
        torch.manual_seed(0)  # DDP gives all ranks the first one's weights: the same from the start is no other step
        workload = placed_workload(job.spec, job.spec, (), None, where)
        model = DistributedDataParallel(workload.model, device_ids=[where.index] if on_gpu else None)
        options = MeasureOptions(counters="none", repeat=job.repeat, together=True)
        tracing = trace_options(job.spec, where, job.command)
        ledger = measure_workload(replace(workload, model=model), tracing, options, conditions)
        dist.barrier()  # nobody leaves while another is still at work
        return ledger
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
