"""Traces small live modules and finds rows in the ledger, for tests of the trace."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

import rooflight
from rooflight.ledger import Ledger, Op, Phase


def rows(ledger: Ledger, name: str = "", *, phase: Phase | None = None, module: str | None = None) -> list[Op]:
    """The ops of that name (without overload), phase and module; views only when they are asked for by name."""
    return [
        op
        for op in ledger.ops
        if (op.packet == f"aten::{name}" if name else op.kind == "compute")
        and phase in (None, op.phase)
        and module in (None, op.module)
    ]


def only(ledger: Ledger, name: str, *, phase: Phase | None = None, module: str | None = None) -> Op:
    """The one op of that name."""
    found = rows(ledger, name, phase=phase, module=module)
    assert len(found) == 1, [f"{op.phase} {op.module} {op.name}" for op in found]
    return found[0]


def names(ledger: Ledger, *, phase: Phase | None = None, module: str | None = None) -> list[str]:
    """Names of the ops that compute, without namespace and overload."""
    return [op.packet.removeprefix("aten::") for op in rows(ledger, phase=phase, module=module)]


def flops(ops: Iterable[Op]) -> int:
    """Matrix FLOPs; a row without a cost is a failure."""
    found = list(ops)
    assert all(op.cost is not None for op in found), [op.name for op in found if op.cost is None]
    return sum(op.cost.flops or 0 for op in found if op.cost is not None)


def infer(model: nn.Module, *inputs: Any, **options: Any) -> Ledger:
    return rooflight.estimate(model, *inputs, **options)


def train(model: nn.Module, *inputs: Any, **options: Any) -> Ledger:
    return rooflight.estimate(model, *inputs, step="train", **options)
