"""Why an op took longer on a CPU than its cores and its memory allow.

The least time is that of the useful FLOPs at the peak of all cores and of the compulsory bytes at the speed of a copy
of as many. Causes are seconds that follow from shapes, from the names, formats and sizes of oneDNN's primitives, from
the clock of reorders, from page faults that the kernel counted, and from what the processor was timed to do beside the
step (`machine/rates.py`); never from how long the op took.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from rooflight.analysis.cause import Account, Cause, CauseSum, Explained, kernels_of_ops
from rooflight.analysis.cpu_locality import Apart, calls_apart, locality_of
from rooflight.analysis.cpu_work import CpuStage, CpuWork
from rooflight.hardware.roofs import demand_of
from rooflight.ledger import Kernel, Ledger, Op, Value
from rooflight.machine.rates import FAULT, CpuRates, name_of
from rooflight.ops.primitive_names import primitive_of
from rooflight.summary.facts import op_values

REORDERS = "reorders"
CALL = "call of the op"
BEHIND = "call behind much data"
WAITED = "waited for a core"
FAULTS = "first touch of memory"
BETWEEN = "between ops (Python, autograd)"
WATCHED = "plain steps faster than watched ops"

_CAREFUL = 0.5
"""The part of what a call takes longer behind much data that is believed: a step leaves more of its code in the caches
than a benchmark that goes through as much memory on purpose. With all of it many small ops among random ones are
explained by too much, with half of it hardly any."""


def is_explicable(ledger: Ledger) -> bool:
    """Was it measured on a CPU, with what the processor does at best beside it?"""
    return bool(ledger.header.rates)


def explain_cpu_time(ledger: Ledger) -> list[Explained]:
    """Every op whose call was timed and whose work is known; empty where nothing tells how fast the processor is."""
    rates = CpuRates(ledger.header.rates)
    kernels, far = kernels_of_ops(ledger), locality_of(ledger)
    behind = calls_apart(ledger)
    rows = []
    for op, values in zip(ledger.ops, op_values(ledger), strict=True):
        demand = demand_of(op)
        if demand is None or "host_time_s" not in values:
            continue
        work = CpuWork(op, demand, [kernel for kernel in kernels[op.index] if kernel.kind == "primitive"], rates)
        workspace = values.get("workspace_bytes")
        stages = work.stages(far[op.index], 0.0 if workspace is None else workspace.value)
        if not stages:
            continue
        causes = (*_grown(stages), *_called(op, rates, behind[op.index]), *_beside(values, kernels[op.index], rates))
        rows.append(Explained(op, stages[0].seconds, values["host_time_s"].value, causes))
    return rows


def _grown(stages: Sequence[CpuStage]) -> Iterator[Cause]:
    """Each stage looks at one thing more than the one before: what it adds is that thing's."""
    for before, now in pairwise(stages):
        if not math.isclose(now.seconds, before.seconds, rel_tol=1e-9):
            yield Cause(now.name, now.seconds - before.seconds, now.evidence)


def _called(op: Op, rates: CpuRates, apart: Apart) -> Iterator[Cause]:
    call, late = rates.call_s(name_of(op)), rates.call_s(name_of(op), apart.own)
    if call is None or late is None:
        return
    yield Cause(CALL, call, f"what a call of {op.packet} takes here that has next to nothing to do")
    # What every call runs was run by the op before.
    behind = _CAREFUL * (late - call - (rates.any_call_s(apart.own) - rates.any_call_s(apart.any)))
    if behind > 0:
        evidence = f"{apart.own:,} bytes gone through since its code ran last: it has left the nearest caches"
        yield Cause(BEHIND, behind, evidence)


def _beside(values: dict[str, Value], kernels: Sequence[Kernel], rates: CpuRates) -> Iterator[Cause]:
    reorders = [kernel for kernel in kernels if _is_reorder(kernel)]
    spent = math.fsum(kernel.time_s or 0.0 for kernel in reorders)
    if spent:
        largest = max(reorders, key=lambda kernel: kernel.time_s or 0.0)
        formats = largest.name.rpartition(" ")[2].replace(">", " to ")
        yield Cause(REORDERS, spent, f"the clock of {len(reorders)}, the longest {formats}, {largest.label}")
    waited = values.get("core_wait_s")
    if waited is not None and waited.value:
        yield Cause(WAITED, waited.value, "other programs had the core of a thread, by the kernel's scheduler")
    faults, each = values.get("page_faults"), rates.of(FAULT)
    if faults is not None and faults.value and each:
        yield Cause(
            FAULTS,
            faults.value * each,
            f"{faults.value:,} page faults of {each * 1e6:.2g} µs, which the kernel counted",
        )


def _is_reorder(kernel: Kernel) -> bool:
    primitive = primitive_of(kernel.name) if kernel.kind == "primitive" else None
    return primitive is not None and primitive.kind == "reorder"


def with_between(of_ops: Account, wall_s: float) -> Account:
    """Up to the wall: what belongs to no op. Ops are timed in steps that are watched, which may take longer."""
    between = wall_s - of_ops.measured
    evidence = "wall time of plain steps less the clocks of all ops"
    more = CauseSum(BETWEEN if between >= 0 else WATCHED, between, of_ops.ops, evidence, None)
    causes = tuple(sorted((*of_ops.causes, more), key=lambda cause: -abs(cause.amount)))
    return replace(of_ops, measured=wall_s, causes=causes)
