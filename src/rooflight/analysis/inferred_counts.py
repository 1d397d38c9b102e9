"""What a step without counters executed and moved, op by op: inferred from kernel names, grids and shapes.

Executed FLOPs are what the mathematics asks for and the causes of `flop_causes` (tiles that are not full, fast
algorithms, masks, epilogues), DRAM bytes the compulsory ones and the causes of `traffic_causes` (the played L2). These
are the causes that explain counted steps, so that `benchmarks/inferred.py` tells how far off they are: counters are
taken out of recorded steps, and what is inferred is held against them. Nothing here is ever called counted: the numbers
have types and names of their own, and no table adds them to what counters saw.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rooflight.analysis.cause import Cause, kernels_of_ops
from rooflight.analysis.flop_causes import PADDING, OpWork, has_floats, work_of_ops
from rooflight.analysis.instruction_counts import Instructions, instructions
from rooflight.analysis.traffic_causes import traffic_of_ops
from rooflight.hardware.device import Device
from rooflight.hardware.devices import recognise_name
from rooflight.ledger import Kernel, Ledger, Op, Value
from rooflight.metrics import COUNTED, TENSOR_PRECISIONS, ratio, utilisation
from rooflight.ops.kernel_names import role_of
from rooflight.summary.facts import compulsory_bytes_of, useful_flops_of
from rooflight.summary.measured import Measured
from rooflight.summary.measured_step import busy_s, wall_s
from rooflight.summary.peak_rates import unit_peak

ORIGIN = "inferred"
"""How the origin of every such value begins."""
_COUNTED_ON = "h200"
"""Arithmetic outside matrix work is told from single ops that were counted; on this device, where not on the step's."""

_NEARLY_ALL = 0.99
"""Of the useful FLOPs, and of the compulsory bytes: with less of them in the sum, a part of the peak would say little,
and a sum of bytes would be taken for that of the step."""


@dataclass(frozen=True)
class InferredOp:
    """One op. `None`: its kernels' names say too little."""

    op: Op
    flops: Mapping[str, float] | None
    """By the name that the counter's quantity has: `tensor_flops_bf16`. The precisions of the CUDA cores are not told
    apart: their FLOPs are `cuda_flops_fp32`, or `fp64` of an op in that."""
    dram_bytes: float | None
    padding: float | None
    """FLOPs of tiles that are not full."""
    causes: tuple[Cause, ...]
    """Why the FLOPs are not those that the mathematics asks for."""

    @property
    def executed(self) -> float | None:
        return None if self.flops is None else math.fsum(self.flops.values())

    def values(self) -> dict[str, Value]:
        """Under their names, with an origin that says what they are."""
        if self.flops is None and self.dram_bytes is None:
            return {}
        why = ", ".join(dict.fromkeys(cause.name for cause in self.causes)) or "no cause of a difference"
        found = {name: Value(flops, f"{ORIGIN}: useful FLOPs and {why}") for name, flops in (self.flops or {}).items()}
        if self.dram_bytes is not None:
            found["dram_bytes"] = Value(self.dram_bytes, f"{ORIGIN}: compulsory bytes through a played L2")
        return found


@dataclass(frozen=True)
class InferredSum:
    """Ops together, with what the sum does not cover."""

    rows: tuple[InferredOp, ...]
    """Ops that launched something, told or not."""
    flops: Mapping[str, float]
    """By unit and precision, as of an op."""
    padding: float
    dram_bytes: float | None
    """`None` where the device's cache is not known, and where it would be the sum of some ops only."""
    bytes_covered: float
    """Part of the compulsory bytes that ops have whose DRAM bytes are told."""
    covered: float
    """Part of the useful FLOPs that the ops in the sum ask for."""
    strays: int
    """Kernels of no op, of which nothing is in the sum."""
    stray_time: float
    """Part of the kernels' time that they take."""
    like: str | None
    """The device that arithmetic outside matrix work was counted on, where it is not the step's."""

    @property
    def executed(self) -> float:
        return math.fsum(self.flops.values())

    @property
    def untold(self) -> tuple[Op, ...]:
        """Ops whose FLOPs are not in the sum."""
        return tuple(row.op for row in self.rows if row.flops is None)

    def of(self, ops: Container[int], pick: Callable[[InferredOp], float | None]) -> float | None:
        """Some of the ops together; `None` where matrix work of theirs is not told."""
        rows = [row for row in self.rows if row.op.index in ops]
        if not rows or any(pick(row) is None and useful_flops_of(row.op) for row in rows):
            return None
        return math.fsum(pick(row) or 0.0 for row in rows)


def inferred_ops(ledger: Ledger) -> list[InferredOp]:
    """Every op that launched something, and those with matrix work whose kernels nothing is known of."""
    table = _table(ledger)
    kernels = kernels_of_ops(ledger)
    shared = {index for kernel in ledger.kernels if len(kernel.ops) > 1 for index in kernel.ops}
    # A log does not tell which op reads what another wrote: nothing can be played.
    traffic = [] if ledger.header.traced_on == "import" else traffic_of_ops(ledger)
    rows = []
    for work in work_of_ops(ledger, table):
        op = work.op
        launched = [kernel for kernel in kernels[op.index] if kernel.kind == "kernel"]
        if not launched and op.index not in shared and not (op.kind == "compute" and useful_flops_of(op)):
            continue
        told = launched and op.index not in shared
        flops = _flops(work) if told else None
        moved = _bytes(op, traffic[op.index], launched) if told and traffic else None
        padding = math.fsum(cause.amount for cause in work.causes if cause.name == PADDING)
        rows.append(InferredOp(op, flops, moved, padding if flops is not None else None, work.causes))
    return rows


def _table(ledger: Ledger) -> Instructions | None:
    device = recognise_name(ledger.header.device)
    return instructions(device.name if device is not None else None) or instructions(_COUNTED_ON)


def _flops(work: OpWork) -> dict[str, float] | None:
    if not has_floats(work.op):
        return {}
    if work.untold or work.op.cost is None:
        return None
    total = useful_flops_of(work.op) + math.fsum(cause.amount for cause in work.causes)
    flops: dict[str, float] = defaultdict(float)
    for kernel, done in work.on_tensor_cores:
        precision = _precision(work.op, kernel)
        if precision is None:
            return None
        flops[f"tensor_flops_{precision}"] += done
    rest = total - sum(flops.values())
    if rest > 0:
        flops[f"cuda_flops_{'fp64' if work.op.precision == 'fp64' else 'fp32'}"] += rest
    return dict(flops)


def _precision(op: Op, kernel: Kernel) -> str | None:
    """Of tensor cores: as the kernel's name says, else as the op runs."""
    role = role_of(kernel.name)
    named = role.precision if role is not None else None
    return next((one for one in (named, op.precision) if one in TENSOR_PRECISIONS), None)


def _bytes(op: Op, causes: Sequence[Cause], kernels: Sequence[Kernel]) -> float | None:
    if op.cost is None or (useful_flops_of(op) and any(role_of(kernel.name) is None for kernel in kernels)):
        return None
    return max(compulsory_bytes_of(op) + math.fsum(cause.amount for cause in causes), 0.0)


def infer(ledger: Ledger) -> InferredSum | None:
    """The whole step; `None` where nothing can be inferred: a CPU's, one without kernels or without formulas."""
    device = recognise_name(ledger.header.device)
    if not ledger.kernels or _is_other(ledger.header.device or "", device):
        return None
    rows = inferred_ops(ledger)
    if not any(row.flops for row in rows):
        return None
    flops: dict[str, float] = defaultdict(float)
    for row in rows:
        for name, done in (row.flops or {}).items():
            flops[name] += done
    moved = [row.dram_bytes for row in rows if row.dram_bytes is not None]
    asked = sum(compulsory_bytes_of(op) for op in ledger.ops if op.cost is not None)
    of_told = sum(compulsory_bytes_of(row.op) for row in rows if row.dram_bytes is not None)
    bytes_covered = of_told / asked if asked else 0.0
    useful = sum(useful_flops_of(op) for op in ledger.ops)
    told = sum(useful_flops_of(row.op) for row in rows if row.flops is not None)
    strays = [kernel for kernel in ledger.kernels if not kernel.ops and kernel.kind == "kernel"]
    table = _table(ledger)
    elsewhere = table is not None and (device is None or table.device != device.name)
    return InferredSum(
        rows=tuple(rows),
        flops=dict(flops),
        padding=math.fsum(row.padding or 0.0 for row in rows),
        dram_bytes=math.fsum(moved) if bytes_covered >= _NEARLY_ALL else None,
        bytes_covered=bytes_covered,
        covered=told / useful if useful else 1.0,
        strays=len(strays),
        stray_time=(ratio(_seconds(strays), _seconds(ledger.kernels)) or 0.0),
        like=table.device if table is not None and elsewhere else None,
    )


def _is_other(name: str, device: Device | None) -> bool:
    """Is it no GPU of NVIDIA's? The names of other makers' kernels are not read."""
    if device is None:
        return any(word in name.casefold() for word in ("amd", "instinct", "radeon", "intel", "apple", "cpu"))
    return device.kind != "gpu" or device.vendor.casefold() != "nvidia"


def _seconds(kernels: Iterable[Kernel]) -> float:
    return math.fsum(kernel.time_s or 0.0 for kernel in kernels)


def inferred_step(measured: Measured) -> InferredSum | None:
    """Of a step on one GPU of which nothing was counted; else `None`: the two never stand in one table."""
    if measured.origin == "predicted" or len(measured.ranks) > 1 or COUNTED & (measured.known | measured.step.keys()):
        return None
    return measured.once(infer)


def inferred_hfu(measured: Measured, sums: InferredSum, *, while_busy: bool = False) -> float | None:
    """HFU of what was inferred; `None` without a peak, and where less than nearly all of the step is told."""
    time = (busy_s if while_busy else wall_s)(measured)
    if sums.covered < _NEARLY_ALL or sums.stray_time > 1 - _NEARLY_ALL:
        return None
    peaks = {name: unit_peak(measured.ledger.header.device, name) for name, done in sums.flops.items() if done}
    if not peaks or any(peak is None for peak in peaks.values()):
        return None
    return utilisation(
        math.fsum(sums.flops[name] / peak.flops_per_s for name, peak in peaks.items() if peak is not None), time
    )
