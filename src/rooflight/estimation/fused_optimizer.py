"""A training step whose optimizer is one op: what `fused=True` makes of the ops over lists of tensors."""

from __future__ import annotations

from msgspec.structs import replace

from rooflight.estimation.costs import cost_of
from rooflight.ledger import Ledger, Op, Tensor

_NAMES = {
    "sgd": "_fused_sgd_",
    "momentum": "_fused_sgd_",
    "adam": "_fused_adam_",
    "adamw": "_fused_adamw_",
    "adagrad": "_fused_adagrad_",
}
_STATES = {"_fused_sgd_": "momentum_buffer_list", "_fused_adagrad_": "state_sums"}


def with_fused_optimizer(ledger: Ledger) -> Ledger:
    """The ledger with one op for all of the optimizer's; the others keep their places, and do nothing. The same where
    the optimizer has no fused form, or nothing is trained."""
    ops = [op for op in ledger.ops if op.phase == "optimizer"]
    name = _NAMES.get((ledger.header.optimizer or "").lower())  # a caller's own goes by its class
    lists = [op for op in ops if any(isinstance(value, list) for value in op.args.values())]
    if name is None or not lists:
        return ledger
    categories = {storage.id: storage.category for storage in ledger.storages}
    held: dict[str, dict[int, Tensor]] = {"parameter": {}, "gradient": {}, "optimizer-state": {}}
    for op in ops:
        for tensor in op.inputs:
            category = categories.get(tensor.storage, "")
            if category in held and (category != "optimizer-state" or tensor.numel > 1):
                held[category].setdefault(tensor.storage, tensor)
    parameters, gradients, states = (list(tensors.values()) for tensors in held.values())
    of_states = _STATES.get(name, "exp_avgs")
    momentum = {"momentum": 0.9} if states and name == "_fused_sgd_" else {}
    fused = replace(
        lists[-1],
        name=f"aten::{name}",
        mutates=("self", of_states),
        outputs=(),
        kind="compute",
        args={"self": parameters, "grads": gradients, of_states: states, **momentum},
    )
    fused = replace(fused, cost=cost_of(fused, {storage.id: storage.nbytes for storage in ledger.storages}))
    return replace(ledger, ops=tuple(_or_nothing(op, fused) for op in ledger.ops))


def _or_nothing(op: Op, fused: Op) -> Op:
    if op.index == fused.index:
        return fused
    return doing_nothing(op) if op.phase == "optimizer" and op.kind == "compute" else op


def doing_nothing(op: Op) -> Op:
    """What is left of an op whose work another does."""
    idle = replace(op, kind="view")
    return replace(idle, cost=cost_of(idle, {}))
