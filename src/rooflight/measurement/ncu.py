"""Counters through Nsight Compute: slower than CUPTI in the process, but an independent witness, and a way out where
CUPTI's library is missing.

ncu replays every kernel by itself with caches and clocks left alone, so its FLOPs are those of the step, while its
bytes are those of each kernel run several times over on the same data.

The process that ncu looks at runs a step that is warmed up, then run once with the profiler switched on by
cudaProfilerStart (`--profile-from-start off` waits for that), each op in an NVTX range of its own, `rooflight:INDEX`,
on the thread that launches its kernels.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections import Counter as Counted
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import torch

from rooflight.errors import BadFile, BadInput, CannotMeasure
from rooflight.hardware import counter_tables
from rooflight.hardware.counter_tables import Counter
from rooflight.ledger import Kernel, Ledger, Measurement, Note, Op, Value
from rooflight.measurement.cupti.op_counters import tensor_types
from rooflight.measurement.options import MeasureOptions
from rooflight.metrics import QUANTITIES
from rooflight.models.workload import Workload
from rooflight.profiles import read
from rooflight.trace.options import TraceOptions
from rooflight.trace.stage import staged

RANGE = "rooflight:"
_SWITCHED = "--profile-from-start off --target-processes all"
_UNDISTURBED = "--nvtx --replay-mode kernel --cache-control none --clock-control none"
_AS_CSV = "--csv --page raw --print-units base --metrics"


def find_ncu() -> str | None:
    return shutil.which("ncu")


def command_line(step: Sequence[str], names: Sequence[str]) -> list[str]:
    """ncu around a process that runs the profiled step, with its counters as CSV on the output."""
    options = f"{_SWITCHED} {_UNDISTURBED} {_AS_CSV}".split()
    return [find_ncu() or "ncu", *options, ",".join(names), *step]


def open_op_command(step: Sequence[str], op: Op) -> str:
    """The line that opens one op in Nsight Compute: everything ncu knows of its kernels, in a report file."""
    options = f"{_SWITCHED} --set full --force-overwrite --export op{op.index}".split()
    return shlex.join(["ncu", *options, *step, "--profile-op", op_name(op)])


def counters_for(ledger: Ledger, options: MeasureOptions) -> tuple[Counter, ...]:
    """What to ask for: bytes, CUDA cores, and the tensor cores that the precisions of the step can reach."""
    chip = chip_of(ledger.header.target)
    used = {op.precision for op in ledger.ops} | tensor_types(ledger.ops)
    reach = {"fp8" if precision.startswith("fp8") else precision for precision in used}
    reach |= {"tf32"} if "fp32" in used else set()
    tensor = tuple(
        counter
        for counter in counter_tables.tensor_counters(chip)
        if counter.quantity.removeprefix("tensor_flops_") in reach
    )
    return (*counter_tables.byte_counters(options.levels, chip=chip), *tensor, *counter_tables.cuda_core_counters(chip))


def chip_of(target: str) -> str:
    """The chip of `cuda:80`; `cuda` is Hopper, as everywhere."""
    capability = int(target.partition(":")[2] or 90)
    return counter_tables.chip_of(f"{capability // 10}.{capability % 10}")


def check_can_count(target: str) -> None:
    if target == "cpu":
        raise BadInput(
            "option-needs-gpu",
            "ncu: only on an NVIDIA GPU, and the step is measured on the CPU; leave --counters ncu out",
        )
    if find_ncu() is None:
        raise CannotMeasure("no-ncu", "ncu is not on PATH: install Nsight Compute, or measure with --counters=cupti")
    chip_of(target)


def count(ledger: Ledger, step: Sequence[str], options: MeasureOptions) -> Ledger:
    """Run the step once more under ncu, and add its counters to the ops of the ledger."""
    check_can_count(ledger.header.target)
    counters = counters_for(ledger, options)
    names = [*(counter.metric for counter in counters), *options.metrics]
    with tempfile.TemporaryDirectory(prefix="rooflight-") as folder:
        log = Path(folder) / "ncu.csv"
        with log.open("wb") as output:
            ended = subprocess.run(
                command_line(step, names),
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                check=False,
                env={**os.environ, "LC_ALL": "C"},
            )
        try:
            kernels = read(log).kernels
        except BadFile as error:
            reason = str(error).replace(f"{log}", "ncu's output")
            raise CannotMeasure(
                "nothing-counted", f"ncu counted nothing (exit code {ended.returncode}): {reason}"
            ) from error
    counted = attributed(ledger, kernels)
    if not ended.returncode:
        return counted
    notes = (
        *counted.header.notes,
        Note("ended-early", f"ncu ended early (exit code {ended.returncode}): ops after that have no counters"),
    )
    return msgspec.structs.replace(counted, header=msgspec.structs.replace(counted.header, notes=notes))


def attributed(ledger: Ledger, kernels: Sequence[Kernel]) -> Ledger:
    """The counters of ncu's kernels, summed under the op whose range they were launched in."""
    by_op: dict[int, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        if (index := op_of(kernel)) is not None:
            by_op[index].append(kernel)
    here = {index: members for index, members in by_op.items() if index < len(ledger.ops)}
    notes = [Note("counters-by-ncu", f"counters by ncu: {len(kernels):,} kernels, each replayed by itself")]
    launched = Counted(index for kernel in ledger.kernels if (index := _op_alone(kernel)) is not None)
    # Ops with more or fewer kernels here than there: then it was not the same step.
    other = sum(launched[index] != len(by_op.get(index, ())) for index in {*launched, *by_op}) if launched else 0
    if other:
        notes.append(
            Note(
                "other-kernels-under-ncu",
                f"{other:,} ops launched another number of kernels under ncu than in the measured step",
            )
        )
    if lost := len(kernels) - sum(map(len, here.values())):
        notes.append(
            Note("kernels-without-op", f"{lost:,} of ncu's kernels lie in no op's range: their counts are in no row")
        )
    types = tensor_types(ledger.ops)
    rows = {row.ops[0]: row for row in ledger.measurements if row.scope == "op"}
    others = [row for row in ledger.measurements if row.scope != "op"]
    for index, members in here.items():
        row = rows.get(index) or Measurement(scope="op", ops=(index,))
        rows[index] = msgspec.structs.replace(row, quantities={**row.quantities, **_sums(members, types)})
    return msgspec.structs.replace(
        ledger,
        header=msgspec.structs.replace(ledger.header, notes=(*ledger.header.notes, *notes)),
        measurements=(*others, *(rows[index] for index in sorted(rows))),
        kernels=_with_counters(ledger.kernels, launched, by_op),
    )


def _op_alone(kernel: Kernel) -> int | None:
    """The op that a kernel of the timeline works for; `None` where that is not one, or it is a copy."""
    return kernel.ops[0] if kernel.kind == "kernel" and len(kernel.ops) == 1 else None


def _sums(kernels: Sequence[Kernel], types: frozenset[str]) -> dict[str, Value]:
    sums: dict[str, Value] = {}
    for kernel in kernels:
        for name, value in counter_tables.no_half_arithmetic(kernel.quantities, types).items():
            if _adds_up(name):
                before = sums[name].value if name in sums else 0
                sums[name] = Value(value.value + before, value.origin)
    return sums


def _adds_up(name: str) -> bool:
    """Counts and bytes; no rates, and no times: ncu's are those of single kernels at its own pace."""
    if name in QUANTITIES:
        return QUANTITIES[name].additive and QUANTITIES[name].unit != "second"
    return name.endswith(".sum") and "time" not in name


def _with_counters(
    kernels: Sequence[Kernel], launched: Mapping[int, int], counted: Mapping[int, Sequence[Kernel]]
) -> tuple[Kernel, ...]:
    """The timeline's kernels with their counters, where both saw the same number of kernels in every op."""
    same = {index: iter(members) for index, members in counted.items() if len(members) == launched.get(index)}
    joined = []
    for kernel in kernels:
        index = _op_alone(kernel)
        if index is not None and index in same:
            counts = next(same[index]).quantities
            kernel = msgspec.structs.replace(kernel, quantities={**counts, **kernel.quantities})
        joined.append(kernel)
    return tuple(joined)


def op_of(kernel: Kernel) -> int | None:
    """The op that an NVTX range of ours names."""
    match = re.search(rf"{RANGE}(\d+)", kernel.label)
    return int(match[1]) if match else None


def op_name(op: Op) -> str:
    """A name that finds the same op in another run: its key, as text."""
    return "/".join((op.phase, op.module, str(op.call), op.name, str(op.ordinal)))


def find_op(ops: Sequence[Op], text: str) -> Op:
    """The op a user means: its number, its name as `op_name` gives it, or MODULE or MODULE:NAME for the first there."""
    for op in ops:
        if op_name(op) == text:
            return op
    if not text:
        raise BadInput("unknown-op", "no op was named: give its number (`index` in --json), MODULE or MODULE:OP")
    if text.isdecimal():
        if int(text) >= len(ops):
            raise BadInput("unknown-op", f"there is no op {text}: the step has ops 0 to {len(ops) - 1}")
        return ops[int(text)]
    module, _, name = text.partition(":")
    computing = [op for op in ops if op.kind == "compute"]
    inside = [op for op in computing if op.module == module and (not name or name in op.name)]
    below = [op.module for op in computing if op.module.startswith(f"{module}.")]
    if not inside and below:
        raise BadInput(
            "ambiguous-op", f"{module} has no op of its own, but {len(below)} below it: name one, such as {below[0]}"
        )
    if not inside:
        near = difflib.get_close_matches(module, {op.module for op in computing}, n=3)
        hint = f"did you mean {', '.join(near)}?" if near else "give its number (`index` in --json) or MODULE:OP"
        raise BadInput("unknown-op", f"no op in {text!r}: {hint}")
    with_matrices = [op for op in inside if op.cost is not None and op.cost.flops]
    return (with_matrices or inside)[0]


# --- the step that ncu looks at ---


def run_profiled_step(workload: Workload, options: TraceOptions, *, only: str | None) -> None:
    """Run the step with every op in its range, or with the profiler on for the op `only` alone."""
    if options.on != "cuda":
        raise CannotMeasure("no-gpu", "an outer profiler is for a step on a GPU: there is none here")
    with staged(workload, options) as stage:
        stage.keep()
        stage.run()
        stage.put_back()
        ops = stage.record().ops  # also shows how this model can be watched, before the profiler sees anything
        stage.put_back()
        observer = _ProfilerSwitch(find_op(ops, only).index) if only is not None else _NvtxRanges()
        torch.cuda.synchronize()
        if only is None:
            torch.cuda.profiler.start()
        try:
            stage.record(observer)
            torch.cuda.synchronize()
        finally:
            torch.cuda.profiler.stop()


class _NvtxRanges:
    def before(self, index: int) -> None:
        torch.cuda.nvtx.range_push(f"{RANGE}{index}")

    def after(self, index: int) -> None:
        torch.cuda.nvtx.range_pop()


class _ProfilerSwitch:
    def __init__(self, only: int) -> None:
        self._only = only

    def before(self, index: int) -> None:
        if index == self._only:
            torch.cuda.synchronize()
            torch.cuda.profiler.start()

    def after(self, index: int) -> None:
        if index == self._only:
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()
