"""A ledger for programs: its estimate and what was measured, raw values under their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rooflight import summary
from rooflight.ledger import QUANTITIES, Kernel, Ledger, Op, Totals, Value, total
from rooflight.summary import SummaryRow
from rooflight.summary.facts import op_values
from rooflight.summary.measured import Measured, is_measured
from rooflight.summary.measured_rows import phases, rows
from rooflight.summary.measured_step import busy_share, is_host_bound, rates, self_check, time_parts, utilisation
from rooflight.summary.reliability import doubt
from rooflight.summary.sums import Sums


def _values(quantities: Mapping[str, Value]) -> dict[str, Any]:
    """Each with its origin, and the least and greatest of the repeats where there were several."""
    return _with_old_names(
        {
            name: {"value": value.value, "origin": value.origin, "low": value.low, "high": value.high}
            for name, value in quantities.items()
        }
    )


def _measured_ops(measured: Measured) -> list[dict[str, Any] | None]:
    """For every op what was measured of it alone; null where nothing was."""
    return [_values(quantities) if quantities else None for quantities in op_values(measured.ledger)]


def _with_old_names(found: Mapping[str, Any]) -> dict[str, Any]:
    """The sum of kernels also by the name that it had, for who reads that."""
    old = {"gpu_time_s": found["kernel_time_s"]} if "kernel_time_s" in found else {}
    return {**found, **old}


def _measured_modules(measured: Measured) -> dict[str, dict[str, Any]]:
    """Sums by module path, with what belongs to no single module under its own name."""
    return {
        row.name: {**_measured_sums(row.sums), "share_of_time": row.share, "self": _with_old_names(row.own_sums.values)}
        for row in rows(measured)
    }


def _measured_sums(found: Sums) -> dict[str, Any]:
    return {
        "values": _with_old_names(found.values),
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


def measured_totals(measured: Measured) -> dict[str, Any]:
    """The whole step: sums over ops, what was measured over it at once, and how the two agree."""
    used = utilisation(measured)
    return {
        **_measured_sums(measured.total),
        "doubt": doubt(measured) or None,
        "step": _values(measured.step),
        "phases": {row.name: _measured_sums(row.sums) for row in phases(measured)},
        "self_check": [
            {
                "counter": check.name,
                "sum_of_ops": check.sum_of_ops,
                "whole_step": check.whole_step,
                "difference": check.difference,
                "relative": check.relative,
                "ops_without": check.missing,
                "whole_step_low": check.low,
                "whole_step_high": check.high,
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
    }


def _kernels(measured: Measured) -> list[dict[str, Any]]:
    return [_kernel(kernel) for kernel in measured.ledger.kernels]


def _kernel(kernel: Kernel) -> dict[str, Any]:
    return {
        "name": kernel.name,
        "kind": kernel.kind,
        "ops": kernel.ops,
        "grid": kernel.grid,
        "block": kernel.block,
        "tile": kernel.tile,
        "stream": kernel.stream,
        "start_s": kernel.start_s,
        "time_s": kernel.time_s,
        "label": kernel.label or None,
        "measured": _values(kernel.quantities),
    }


def ledger_data(ledger: Ledger, *, run_steps: int | None = None) -> dict[str, Any]:
    """Raw numbers under the names of the ledger; unknown is null."""
    sums = total(ledger.ops)
    totals: dict[str, Any] = {
        "params": summary.params(ledger),
        "trainable_params": summary.trainable_params(ledger),
        **_sums(sums),
        "bytes_step_min": summary.bytes_step_min(ledger),
        "uncounted": [{"op": row.op, "calls": row.calls} for row in sums.uncounted],
        "per_sample": _per(sums, summary.samples(ledger)),
        "per_token": _per(sums, summary.tokens(ledger)),
        "phases": {phase: _sums(value) for phase, value in summary.totals_by_phase(ledger).items()},
        "sizes": _sizes(ledger),
    }
    if run_steps is not None:
        totals["run"] = {
            "steps": run_steps,
            **{name: value * run_steps for name, value in _sums(sums).items() if name != "intensity"},
        }
    made: dict[str, Any] = {
        "header": msgspec.to_builtins(msgspec.structs.asdict(ledger.header)),
        "totals": totals,
        "modules": [_module(row) for row in summary.rows(ledger)],
        "ops": [_op(op) for op in ledger.ops],
    }
    if is_measured(ledger):
        _add_measured(made, Measured(ledger))
    return made


def _add_measured(made: dict[str, Any], measured: Measured) -> None:
    """The same document with the other side of every row."""
    made["totals"]["measured"] = measured_totals(measured)
    by_path = _measured_modules(measured)
    for row in made["modules"]:
        row["measured"] = by_path.pop(row["path"])
    made["totals"]["measured"]["of_no_module"] = by_path
    for row, known in zip(made["ops"], _measured_ops(measured), strict=True):
        row["measured"] = known
    made["kernels"] = _kernels(measured)


def _sums(sums: Totals) -> dict[str, Any]:
    return {**{name: getattr(sums, name) for name in QUANTITIES}, "bytes": sums.bytes, "intensity": sums.intensity}


def _per(sums: Totals, count: int | None) -> dict[str, float] | None:
    if not count:
        return None
    return {name: getattr(sums, name) / count for name in (*QUANTITIES, "bytes")}


def _sizes(ledger: Ledger) -> dict[str, Any]:
    sizes = summary.sizes(ledger)
    return {
        "input_bytes": sizes.input_bytes,
        "param_bytes": sizes.param_bytes,
        "buffer_bytes": sizes.buffer_bytes,
        "leaf_output_bytes": sizes.leaf_output_bytes,
        "parameterised_output_bytes": sizes.parameterised_output_bytes,
        "forward_backward_bytes": sizes.forward_backward_bytes,
        "kept_for_backward_bytes": sizes.kept_for_backward_bytes,
        "gradient_bytes": sizes.gradient_bytes,
        "optimizer_state_bytes": sizes.optimizer_state_bytes,
    }


def _module(row: SummaryRow) -> dict[str, Any]:
    return {
        "path": row.name,
        "type": row.type,
        "depth": row.depth,
        "calls": row.calls,
        "output": row.output,
        "params": row.params,
        "trainable_params": row.trainable_params,
        **_sums(row.totals),
        "share": row.share,
        "forward_flops": row.forward.flops,
        "backward_flops": row.backward.flops,
        "uncounted": [{"op": entry.op, "calls": entry.calls} for entry in row.totals.uncounted],
    }


def _op(op: Op) -> dict[str, Any]:
    cost = {name: getattr(op.cost, name) if op.cost is not None else None for name in QUANTITIES}
    return {
        "index": op.index,
        "phase": op.phase,
        "module": op.module,
        "call": op.call,
        "op": op.name,
        "ordinal": op.ordinal,
        "kind": op.kind,
        "precision": op.precision,
        "recompute": op.recompute,
        "inputs": [tensor.shape for tensor in op.inputs],
        "outputs": [tensor.shape for tensor in op.outputs],
        **cost,
        "origin": op.cost.origin if op.cost is not None else None,
    }
