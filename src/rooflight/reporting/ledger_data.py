"""A ledger as one JSON document: header, totals, modules, ops; and what was measured of each, where something was."""

from __future__ import annotations

from typing import Any

import msgspec

from rooflight import summary
from rooflight.ledger import QUANTITIES, Ledger, Op, Totals, total
from rooflight.measured import Measured, is_measured
from rooflight.reporting import measure_data
from rooflight.summary import Row


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
    made["totals"]["measured"] = measure_data.totals(measured)
    by_path = measure_data.modules(measured)
    for row in made["modules"]:
        row["measured"] = by_path.pop(row["path"])
    made["totals"]["measured"]["of_no_module"] = by_path
    for row, values in zip(made["ops"], measure_data.ops(measured), strict=True):
        row["measured"] = values
    made["kernels"] = measure_data.kernels(measured)


def _sums(sums: Totals) -> dict[str, Any]:
    return {**{name: getattr(sums, name) for name in QUANTITIES}, "bytes": sums.bytes, "intensity": sums.intensity}


def _per(sums: Totals, count: int | None) -> dict[str, float] | None:
    if not count:
        return None
    return {name: getattr(sums, name) / count for name in (*QUANTITIES, "bytes")}


def _sizes(ledger: Ledger) -> dict[str, Any]:
    sizes = summary.sizes(ledger)
    return {
        "input_bytes": sizes.input_bytes, "param_bytes": sizes.param_bytes, "buffer_bytes": sizes.buffer_bytes,
        "leaf_output_bytes": sizes.leaf_output_bytes, "parameterised_output_bytes": sizes.parameterised_output_bytes,
        "forward_backward_bytes": sizes.forward_backward_bytes,
        "kept_for_backward_bytes": sizes.kept_for_backward_bytes,
        "gradient_bytes": sizes.gradient_bytes, "optimizer_state_bytes": sizes.optimizer_state_bytes,
    }  # fmt: skip


def _module(row: Row) -> dict[str, Any]:
    return {
        "path": row.name, "type": row.type, "depth": row.depth, "calls": row.calls, "output": row.output,
        "params": row.params, "trainable_params": row.trainable_params, **_sums(row.totals), "share": row.share,
        "forward_flops": row.forward.flops, "backward_flops": row.backward.flops,
        "uncounted": [{"op": entry.op, "calls": entry.calls} for entry in row.totals.uncounted],
    }  # fmt: skip


def _op(op: Op) -> dict[str, Any]:
    cost = {name: getattr(op.cost, name) if op.cost is not None else None for name in QUANTITIES}
    return {
        "index": op.index, "phase": op.phase, "module": op.module, "call": op.call, "op": op.name,
        "ordinal": op.ordinal, "kind": op.kind, "precision": op.precision, "recompute": op.recompute,
        "inputs": [tensor.shape for tensor in op.inputs], "outputs": [tensor.shape for tensor in op.outputs], **cost,
        "origin": op.cost.origin if op.cost is not None else None,
    }  # fmt: skip
