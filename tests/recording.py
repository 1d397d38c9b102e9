"""One dispatcher call as the ledger's `Op`, for tests of formulas."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from rooflight.estimation.costs import cost_of
from rooflight.ledger import Cost, MathModes, Op
from rooflight.trace.modules import ModuleTracker
from rooflight.trace.recorder import Recorder


def record(function: Any, *args: Any, **kwargs: Any) -> Op:
    """Call an aten overload, such as `torch.ops.aten.add.Tensor`, and give its row."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    device = tensors[0].device.type if tensors else "meta"
    recorder = Recorder(ModuleTracker(nn.Identity()), device=device, modes=MathModes(False, False))
    recorder.record(function, args, kwargs)
    return recorder.ops[-1]


class Pretended:
    """An overload that no kernel of this machine runs: it has the real schema and hands back the given result."""

    def __init__(self, function: Any, result: Any) -> None:
        self._schema = function._schema
        self._result = result

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._result


def cost(function: Any, *args: Any, **kwargs: Any) -> Cost:
    """Call an aten overload and give what it costs."""
    found = cost_of(record(function, *args, **kwargs), {})
    assert found is not None, f"{function} has no formula"
    return found


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor without data."""
    return torch.empty(shape, dtype=dtype, device="meta")


def numbers(*shape: int) -> torch.Tensor:
    """Indices without data."""
    return meta(*shape, dtype=torch.int64)
