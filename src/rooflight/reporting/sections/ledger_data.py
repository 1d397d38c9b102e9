"""A ledger for programs: its estimate and what was measured, raw values under their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import msgspec

from rooflight import summary
from rooflight.analysis.inferred_counts import inferred_step
from rooflight.ledger import QUANTITIES, Kernel, Ledger, Op, Totals, Value, total
from rooflight.reporting.sections.inferred_text import inferred_data
from rooflight.reporting.sections.layer_columns import estimate_fields, sum_fields
from rooflight.summary.facts import op_values
from rooflight.summary.measured import Measured, is_measured
from rooflight.summary.measured_rows import phases, rows
from rooflight.summary.measured_step import busy_share, is_host_bound, rates, self_check, time_parts, utilisation
from rooflight.summary.reliability import doubt
from rooflight.summary.sums import Sums


def _values(quantities: Mapping[str, Value]) -> dict[str, Any]:
    """Each with its origin, and the least and greatest of the repeats where there were several."""
    fields = ("value", "origin", "low", "high")
    return _with_old_names(
        {name: {field: getattr(value, field) for field in fields} for name, value in quantities.items()}
    )


def _with_old_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """The sum of kernels also by the name that it had, for who reads that."""
    old = {"gpu_time_s": values["kernel_time_s"]} if "kernel_time_s" in values else {}
    return {**values, **old}


def _measured_modules(measured: Measured) -> dict[str, dict[str, Any]]:
    """Sums by module path, with what belongs to no single module under its own name."""
    return {
        row.name: {**_measured_sums(row.sums), "share_of_time": row.share, "self": _with_old_names(row.own_sums.values)}
        for row in rows(measured)
    }


_SUMS = (
    "time_s",
    "executed_flops",
    "tensor_flops",
    "cuda_flops",
    "dram_bytes",
    "executed_per_useful",
    "dram_per_compulsory",
    "executed_flops_per_s",
    "dram_bytes_per_s",
)


def _measured_sums(sums: Sums) -> dict[str, Any]:
    return {
        "values": _with_old_names(sums.values),
        **{name: getattr(sums, name) for name in _SUMS},
        "coverage": {"ops": sums.ran, "without": dict(sums.missing)},
    }


def measured_totals(measured: Measured) -> dict[str, Any]:
    """The whole step: sums over ops, what was measured over it at once, and how the two agree."""
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
        "utilisation": msgspec.to_builtins(utilisation(measured)),
        "inferred": inferred_data(measured),
        "attributed_time_s": {
            name: measured.attributed[n] for n, name in ((1, "one_op"), (2, "several_ops"), (0, "no_op"))
        },
    }


def _kernel(kernel: Kernel) -> dict[str, Any]:
    fields = ("name", "kind", "ops", "grid", "block", "tile", "stream", "start_s", "time_s")
    return {
        **{name: getattr(kernel, name) for name in fields},
        "label": kernel.label or None,
        "measured": _values(kernel.quantities),
    }


def ledger_data(ledger: Ledger, *, run_steps: int | None = None) -> dict[str, Any]:
    """Raw numbers under the names of the ledger; unknown is null."""
    sums = total(ledger.ops)
    totals: dict[str, Any] = {
        "params": summary.params(ledger),
        "trainable_params": summary.trainable_params(ledger),
        **sum_fields(sums),
        "bytes_step_min": summary.bytes_step_min(ledger),
        "uncounted": msgspec.to_builtins(sums.uncounted),
        "per_sample": _per(sums, summary.samples(ledger)),
        "per_token": _per(sums, summary.tokens(ledger)),
        "phases": {phase: sum_fields(value) for phase, value in summary.totals_by_phase(ledger).items()},
        "sizes": _sizes(ledger),
    }
    if run_steps is not None:
        totals["run"] = {
            "steps": run_steps,
            **{name: value * run_steps for name, value in sum_fields(sums).items() if name != "intensity"},
        }
    data: dict[str, Any] = {
        "header": msgspec.to_builtins(msgspec.structs.asdict(ledger.header)),
        "totals": totals,
        "modules": [estimate_fields(row) for row in summary.rows(ledger)],
        "ops": [_op(op) for op in ledger.ops],
    }
    if is_measured(ledger):
        _add_measured(data, Measured(ledger))
    return data


def _add_measured(data: dict[str, Any], measured: Measured) -> None:
    """The same document with the other side of every row; of an op nothing (null) where nothing was measured of it
    alone."""
    data["totals"]["measured"] = measured_totals(measured)
    by_path = _measured_modules(measured)
    for row in data["modules"]:
        row["measured"] = by_path.pop(row["path"])
    data["totals"]["measured"]["of_no_module"] = by_path
    for row, quantities in zip(data["ops"], op_values(measured.ledger), strict=True):
        row["measured"] = _values(quantities) if quantities else None
    sums = inferred_step(measured)
    for inferred in sums.rows if sums is not None else ():
        data["ops"][inferred.op.index]["inferred"] = _values(inferred.values())
    data["kernels"] = [_kernel(kernel) for kernel in measured.ledger.kernels]


def _per(sums: Totals, count: int | None) -> dict[str, float] | None:
    if not count:
        return None
    return {name: getattr(sums, name) / count for name in (*QUANTITIES, "bytes")}


def _sizes(ledger: Ledger) -> dict[str, Any]:
    sizes = summary.sizes(ledger)
    fields = asdict(sizes)
    trained = {
        name: fields.pop(name)
        for name in (
            "kept_for_backward_bytes",
            "activation_gradient_bytes",
            "live_activation_gradient_bytes",
            "gradient_bytes",
            "optimizer_state_bytes",
        )
    }
    return {**fields, "forward_backward_bytes": sizes.forward_backward_bytes, **trained}


def _op(op: Op) -> dict[str, Any]:
    return {
        "index": op.index,
        **op_fields(op),
        **{name: getattr(op.cost, name, None) for name in QUANTITIES},
        "origin": getattr(op.cost, "origin", None),
    }


def op_fields(op: Op) -> dict[str, Any]:
    """What an op is, for programs."""
    return {
        "phase": op.phase,
        "module": op.module,
        "call": op.call,
        "op": op.name,
        **{name: getattr(op, name) for name in ("ordinal", "kind", "precision", "recompute")},
        "inputs": [tensor.shape for tensor in op.inputs],
        "outputs": [tensor.shape for tensor in op.outputs],
    }
