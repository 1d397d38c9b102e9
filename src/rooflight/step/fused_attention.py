"""A step as it would be traced in another precision, where other ops run: attention that has a fused kernel there.

In fp32, grouped queries have no fused kernel, and attention runs as plain matrix products; in 16 bits one kernel does
all of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from msgspec.structs import replace

from rooflight.ledger import Ledger, Op, Tensor
from rooflight.trace.target import AttentionCall, attention_kernel, parse_target  # its room imports torch


def with_fused_attention(ledger: Ledger, dtype: str) -> tuple[Ledger, frozenset[int]]:
    """The ledger with one op for each call of plain attention that is one kernel in `dtype`, and the ops that it
    spares: they keep their places, and do nothing."""
    calls: dict[int, list[Op]] = defaultdict(list)
    for op in ledger.ops:
        if op.attention:
            calls[op.attention].append(op)
    fused: dict[int, Op] = {}
    for number, ops in calls.items():
        if number > 0 and (replaced := _fused(ops, calls.get(-number, ()), ledger, dtype)) is not None:
            fused |= replaced
    spared = frozenset(
        op.index
        for ops in calls.values()
        for op in ops
        if calls[abs(op.attention)][-1].index in fused and op.index not in fused
    )
    changed = (replace(op, kind="view") if op.index in spared else fused.get(op.index, op) for op in ledger.ops)
    return (replace(ledger, ops=tuple(changed)) if fused else ledger), spared


def _fused(forward: Sequence[Op], backward: Sequence[Op], ledger: Ledger, dtype: str) -> dict[int, Op] | None:
    """By the index of the op that it stands in the place of: one for forward and, where there is one, for backward."""
    given = _given(forward)
    if len(given) < 3 or any(len(tensor.shape) != 4 for tensor in given[:3]):
        return None
    query, key, value = given[:3]
    causal, last = any(op.packet == "aten::tril" for op in forward), forward[-1]
    call = AttentionCall(
        dtype,
        query.shape[1],
        key.shape[1],
        query.shape[2],
        key.shape[2],
        query.shape[3],
        value.shape[3],
        len(given) > 3,
        0.0,
        causal,
    )
    kernel = attention_kernel(call, parse_target(ledger.header.target))
    if kernel not in ("cudnn", "flash", "efficient"):
        return None
    name = f"aten::_scaled_dot_product_{kernel}_attention"
    shape = (*query.shape[:3], value.shape[3])
    output = replace(last.outputs[0], shape=shape, strides=None)
    args = {"query": query, "key": key, "value": value, "is_causal": causal, "compute_log_sumexp": bool(backward)}
    kinds = {"kind": "compute", "precision": query.dtype, "mutates": (), "cost": None}
    replaced = {last.index: replace(last, name=name, args=args, outputs=(output,), **kinds)}
    if backward:
        end = backward[-1]
        replaced[end.index] = replace(
            end,
            name=f"{name}_backward",
            outputs=(query, key, value),
            **kinds,
            args={"grad_out": output, "query": query, "key": key, "value": value, "out": output, "is_causal": causal},
        )
    return replaced


def _given(ops: Sequence[Op]) -> list[Tensor]:
    """What a call was given, in the order in which it is looked at: query, key, value, and a mask."""
    produced = {tensor.storage for op in ops for tensor in op.outputs if op.kind != "view"}
    given: dict[int, Tensor] = {}
    for op in ops:
        for tensor in op.inputs:
            if tensor.storage not in produced:
                given.setdefault(tensor.storage, tensor)
    return list(given.values())
