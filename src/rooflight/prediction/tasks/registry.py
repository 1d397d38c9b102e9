"""Which tasks an op is made of: by aten name, a function from the op to them."""

from __future__ import annotations

from collections.abc import Callable

from rooflight.hardware.tasks import Task
from rooflight.ledger import DTYPE_BYTES, Op

Describe = Callable[[Op], list[Task]]

_DESCRIBED: dict[str, Describe] = {}


def tasks_for(*names: str) -> Callable[[Describe], Describe]:
    """Register a description for `aten::op`, all overloads, given without its namespace."""

    def register(function: Describe) -> Describe:
        for name in names:
            if name in _DESCRIBED:
                raise ValueError(f"{name} is described twice")
            _DESCRIBED[name] = function
        return function

    return register


def find(packet: str) -> Describe | None:
    return _DESCRIBED.get(packet.partition("::")[2])


def precision_of(dtype: str) -> str:
    """The precision that calibration knows memory-bound work of this dtype by: what counts is the width."""
    return "bf16" if DTYPE_BYTES[dtype] <= 2 else "fp32"
