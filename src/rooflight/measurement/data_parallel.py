"""A training step on several GPUs of this machine, really run: a process for each, joined by DistributedDataParallel.

Every process measures its own step (time, memory, kernels), and their ledgers are put together, one rank beside the
other. Hardware counters repeat a step on one rank alone, which one that talks to the others does not survive: none are
taken.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from rooflight.errors import BadInput, CannotMeasure
from rooflight.files import load
from rooflight.ledger import Ledger, Measurement, Note, Op, Value
from rooflight.machine import Machine
from rooflight.measurement.findings import Progress, silent
from rooflight.measurement.options import MeasureOptions
from rooflight.measurement.replicas import run_replicas
from rooflight.profiles.joined_ranks import join
from rooflight.spec import StepSpec
from rooflight.spec.fields import is_own

NO_COUNTERS = "hardware counters not taken: they repeat the step on one rank alone, and its collectives would never end"
TIMEOUT_S = 3600.0
ALL_REDUCED = "all_reduced_bytes"
_ALL_REDUCE = ("c10d::allreduce_", "_c10d_functional::all_reduce")
_DDP = "module"
"""The name under which DistributedDataParallel holds the model."""


class ReplicaJob(msgspec.Struct, frozen=True, kw_only=True):
    """What every process of a run is to do."""

    spec: StepSpec
    on: str
    """`cuda` or `cpu`."""
    repeat: int
    command: str
    timeout_s: float


def refuse_for_several(*, live: bool, options: MeasureOptions, device: str | None = None) -> None:
    """What has no meaning where several processes run the step."""
    if live:
        raise BadInput(
            "needs-a-model-name",
            "--gpus is for a model by name: wrap your module into DistributedDataParallel yourself, and measure it "
            "under torchrun",
        )
    if device is not None and ":" in device:
        raise BadInput(
            "wrong-device",
            f"{device} is one device, and --gpus takes several from the first on: write "
            f"--on={device.partition(':')[0]} (CUDA_VISIBLE_DEVICES says which are there)",
        )
    usual = MeasureOptions(repeat=options.repeat, execution=options.execution, compile_mode=options.compile_mode)
    if options.counters not in ("auto", "none") or replace(options, counters="auto") != usual:
        raise BadInput("option-conflict", f"{NO_COUNTERS}: leave what is asked of them out, or --gpus")


def measure_replicas(
    spec: StepSpec,
    *,
    on: str,
    repeat: int = 20,
    command: str = "",
    timeout_s: float = TIMEOUT_S,
    progress: Progress = silent,
) -> Ledger:
    """The step of a model by name on `spec.gpus` GPUs, or as so many processes on the CPU; all ranks in one ledger."""
    check_replicas(spec, on)
    spec = StepSpec(**{name: getattr(spec, name) for name in StepSpec.__struct_fields__})  # not what it is a cell of
    with tempfile.TemporaryDirectory(prefix="rooflight-replicas-") as name:
        folder = Path(name)
        job = ReplicaJob(spec=spec, on=on, repeat=repeat, command=command, timeout_s=timeout_s)
        (folder / "job.json").write_bytes(msgspec.json.encode(job))

        def look() -> None:
            progress(f"{spec.gpus} processes", len(list(folder.glob("rank*.json"))), spec.gpus)

        run_replicas(
            # -P: a file of the user's called queue.py is none of ours.
            [sys.executable, "-P", "-m", "rooflight.measurement.replica", name],
            spec.gpus,
            folder,
            timeout_s=timeout_s,
            environment=_threads(spec.gpus) if on == "cpu" else None,
            look=look,
        )
        return joined([load(folder / f"rank{rank}.json") for rank in range(spec.gpus)])


def check_replicas(spec: StepSpec, on: str) -> None:
    """All that can be refused before a process is started."""
    if spec.step != "train":
        raise BadInput(
            "not-a-training-step",
            "--gpus measures a training step, whose gradients are shared: inference on several GPUs is as many times "
            "that on one; add --step=train, or leave --gpus out",
        )
    if spec.graphs or spec.compile:
        raise BadInput("option-conflict", "--gpus measures the eager step: leave --compile and --graphs out")
    if own := [name for name in ("loss", "optimizer") if is_own(getattr(spec, name))]:
        raise BadInput(
            "needs-a-name", f"--gpus takes the {own[0]} by its name: your own is not there in the other processes"
        )
    if on != "cuda":
        return
    import torch

    there = torch.cuda.device_count()
    if there < spec.gpus:
        raise CannotMeasure(
            "too-few-gpus",
            f"{spec.gpus} GPUs are asked for, and torch sees {there}: `{spec.command('predict', on='DEVICE')}` "
            f"predicts it, and --device=cpu runs {spec.gpus} processes on the processor",
        )


def _threads(count: int) -> dict[str, str]:
    """Processes that share a processor: each gets its part of the cores."""
    machine = Machine()
    cores = machine.usable_cores() or machine.online_cores() or count
    return {"OMP_NUM_THREADS": str(max(1, cores // count))}


def joined(ledgers: Sequence[Ledger]) -> Ledger:
    """The ledgers of all ranks as one, each with the bytes that its gradients were shared in."""
    ledger = join([_of_the_model(ledger) for ledger in ledgers])
    header = msgspec.structs.replace(
        ledger.header, parallel="ddp", notes=(*ledger.header.notes, Note("no-counters", NO_COUNTERS), _said(ledgers))
    )
    return msgspec.structs.replace(ledger, header=header)


def _said(ledgers: Sequence[Ledger]) -> Note:
    backend = "nccl" if ledgers[0].header.device and ledgers[0].header.target != "cpu" else "gloo"
    return Note(
        "data-parallel",
        f"{len(ledgers)} processes, a replica of the model each, gradients averaged by DistributedDataParallel "
        f"({backend})",
    )


def _of_the_model(ledger: Ledger) -> Ledger:
    """Modules by their names in the model, not in what DDP wraps around it; with the bytes that were all-reduced."""
    modules = tuple(
        msgspec.structs.replace(module, path=_path(module.path)) for module in ledger.modules if module.path != ""
    )
    ops = tuple(msgspec.structs.replace(op, module=_path(op.module)) for op in ledger.ops)
    storages = tuple(
        msgspec.structs.replace(storage, name=storage.name.removeprefix(f"{_DDP}.")) for storage in ledger.storages
    )
    step = {ALL_REDUCED: Value(all_reduced_bytes(ops), "tensors of the step's all-reduce calls")}
    row = Measurement(scope="step", quantities=step)
    rows = (*ledger.measurements, row)
    return msgspec.structs.replace(ledger, modules=modules, ops=ops, storages=storages, measurements=_merged(rows))


def _path(path: str) -> str:
    return "" if path == _DDP else path.removeprefix(f"{_DDP}.")


def _merged(rows: Sequence[Measurement]) -> tuple[Measurement, ...]:
    """One row of the whole step."""
    quantities = {name: value for row in rows if row.scope == "step" for name, value in row.quantities.items()}
    return (Measurement(scope="step", quantities=quantities), *(row for row in rows if row.scope != "step"))


def all_reduced_bytes(ops: Sequence[Op]) -> int:
    """Bytes of the tensors that a rank gave to its all-reduce calls: its gradients once, in buckets."""
    return sum(tensor.nbytes for op in ops if op.name.startswith(_ALL_REDUCE) for tensor in op.inputs)
