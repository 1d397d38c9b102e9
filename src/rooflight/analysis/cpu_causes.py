"""Why an op took longer on a CPU than its FLOPs ask for.

The least time is that of the matrix FLOPs at the peak of all cores; no file tells how fast the memory is. Causes are
seconds that follow from threads, page faults and waits for a core, which the kernel counts; never from how long the op
took.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from rooflight.analysis.cause import Account, Cause, CauseSum, Explained
from rooflight.hardware.roofs import demand_of
from rooflight.ledger import Ledger, Op, Value
from rooflight.summary.facts import op_values

THREADS = "fewer threads than cores"
FAULTS = "first touch of memory"
WAITED = "waited for a core"
BETWEEN = "between ops (Python, autograd)"
WATCHED = "plain steps faster than watched ops"


def is_explicable(ledger: Ledger) -> bool:
    """Was it measured on a CPU, with a description of the processor?"""
    return bool(ledger.header.rates)


def explain_cpu_time(ledger: Ledger) -> list[Explained]:
    """Explain every op with a time of its own."""
    rates = {name: float(value.value) for name, value in ledger.header.rates.items()}
    rows = []
    for op, values in zip(ledger.ops, op_values(ledger), strict=True):
        if "host_time_s" in values:
            least = _least_s(op, rates)
            rows.append(Explained(op, least, values["host_time_s"].value, tuple(_causes(values, least, rates))))
    return rows


def _least_s(op: Op, rates: Mapping[str, float]) -> float:
    """Return the seconds that all cores need at their peak; 0, a sure bound, if no peak of the precision is known."""
    demand = demand_of(op)
    peak = None if demand is None else rates.get(f"peak.{demand.precision}")
    return demand.matrix_flops / peak if demand is not None and peak else 0.0


def _causes(values: Mapping[str, Value], least_s: float, rates: Mapping[str, float]) -> Iterator[Cause]:
    threads, cores = rates.get("threads", 1.0), rates.get("cores", 1.0)
    if least_s and threads < cores:
        yield Cause(THREADS, least_s * (cores / threads - 1), f"{threads:g} on {cores:g} cores")
    waited = values.get("core_wait_s")
    if waited is not None and waited.value:
        yield Cause(WAITED, waited.value, "other programs had the core of a thread, by the kernel's scheduler")
    faults, each = values.get("page_faults"), rates.get("page_fault")
    if faults is not None and faults.value and each:
        evidence = f"{faults.value:,} page faults of {each * 1e6:.2g} µs, which the kernel counted"
        yield Cause(FAULTS, faults.value * each, evidence)


def with_between(of_ops: Account, wall_s: float) -> Account:
    """Return the account up to the wall time. Ops are timed in steps that are watched, which may take longer."""
    between = wall_s - of_ops.measured
    evidence = "wall time of plain steps less the clocks of all ops"
    more = CauseSum(BETWEEN if between >= 0 else WATCHED, between, of_ops.ops, evidence, None)
    causes = tuple(sorted((*of_ops.causes, more), key=lambda cause: -abs(cause.amount)))
    return replace(of_ops, measured=wall_s, causes=causes)
