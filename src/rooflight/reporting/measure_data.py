"""The measured part of the JSON document: values with their origins for ops, sums for modules, the step, kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rooflight.ledger import Kernel, Value
from rooflight.measured import Measured, Sums
from rooflight.measured.facts import op_values
from rooflight.measured.rows import phases, rows
from rooflight.measured.step import busy_share, is_host_bound, rates, self_check, time_parts, utilisation
from rooflight.reporting.measure_text import doubt


def values(quantities: Mapping[str, Value]) -> dict[str, Any]:
    """Each with its origin, and the least and greatest of the repeats where there were several."""
    return with_old_names({
        name: {"value": value.value, "origin": value.origin, "low": value.low, "high": value.high}
        for name, value in quantities.items()
    })  # fmt: skip


def ops(measured: Measured) -> list[dict[str, Any] | None]:
    """For every op what was measured of it alone; null where nothing was."""
    return [values(quantities) if quantities else None for quantities in op_values(measured.ledger)]


def with_old_names(found: Mapping[str, Any]) -> dict[str, Any]:
    """The sum of kernels also by the name that it had, for who reads that."""
    old = {"gpu_time_s": found["kernel_time_s"]} if "kernel_time_s" in found else {}
    return {**found, **old}


def modules(measured: Measured) -> dict[str, dict[str, Any]]:
    """Sums by module path, with what belongs to no single module under its own name."""
    return {
        row.name: {**sums(row.sums), "share_of_time": row.share, "self": with_old_names(row.own_sums.values)}
        for row in rows(measured)
    }


def sums(found: Sums) -> dict[str, Any]:
    return {
        "values": with_old_names(found.values),
        "time_s": found.time_s,
        "executed_flops": found.executed_flops,
        "tensor_flops": found.tensor_flops,
        "cuda_flops": found.cuda_flops,
        "dram_bytes": found.dram_bytes,
        "executed_per_useful": found.executed_per_useful,
        "dram_per_compulsory": found.dram_per_compulsory,
        "executed_flops_per_s": found.executed_flops_per_s,
        "dram_bytes_per_s": found.dram_bytes_per_s,
        "coverage": {"ops": found.ran, "without": dict(found.missing)},
    }


def totals(measured: Measured) -> dict[str, Any]:
    """The whole step: sums over ops, what was measured over it at once, and how the two agree."""
    used = utilisation(measured)
    return {
        **sums(measured.total),
        "doubt": doubt(measured) or None,
        "step": values(measured.step),
        "phases": {row.name: sums(row.sums) for row in phases(measured)},
        "self_check": [
            {
                "counter": check.name, "sum_of_ops": check.sum_of_ops, "whole_step": check.whole_step,
                "difference": check.difference, "relative": check.relative, "ops_without": check.missing,
                "whole_step_low": check.low, "whole_step_high": check.high,
            }
            for check in self_check(measured)
        ],
        "time": [
            {"part": part.name, "time_s": part.time_s, "share_of_wall": part.share, "sum": part.is_sum}
            for part in time_parts(measured)
        ],
        "busy_share": busy_share(measured),
        "host_bound": is_host_bound(measured),
        "rates": msgspec.to_builtins(rates(measured)),
        "utilisation": None if used is None else msgspec.to_builtins(used),
        "attributed_time_s": {
            name: measured.attributed[n] for n, name in ((1, "one_op"), (2, "several_ops"), (0, "no_op"))
        },
    }  # fmt: skip


def kernels(measured: Measured) -> list[dict[str, Any]]:
    return [_kernel(kernel) for kernel in measured.ledger.kernels]


def _kernel(kernel: Kernel) -> dict[str, Any]:
    return {
        "name": kernel.name, "kind": kernel.kind, "ops": kernel.ops, "grid": kernel.grid, "block": kernel.block,
        "tile": kernel.tile, "stream": kernel.stream, "start_s": kernel.start_s, "time_s": kernel.time_s,
        "label": kernel.label or None, "measured": values(kernel.quantities),
    }  # fmt: skip
