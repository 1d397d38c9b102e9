"""Sums of gradients in place, for tensors without data.

A tensor that is used twice gets two gradients. Autograd's engine adds the second into the first if nobody else holds
it; a gradient of a parameter is always added in place. On meta tensors torch does neither and makes a new tensor each
time, so there the question is answered here.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from rooflight.trace.interception import below_autograd
from rooflight.trace.storages import storage_address

_ADD = torch.ops.aten.add.Tensor
IN_PLACE = torch.ops.aten.add_.Tensor
_is_dense = torch.ops.aten.is_non_overlapping_and_dense.default


class Accumulation:
    """Follows which node of autograd made which gradient, and tells the engine's sums from those in a node's formula."""

    def __init__(self) -> None:
        self._makers: dict[int, int] = {}

    def made(self, result: Any, node: Any) -> None:
        """Backward has made a tensor while `node` was running."""
        if node is not None:
            for tensor in result if isinstance(result, (list, tuple)) else (result,):
                if isinstance(tensor, torch.Tensor):
                    self._makers[tensor._cdata] = node._sequence_nr()

    def is_in_place(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], node: Any) -> bool:
        """Would the plain step write this sum, computed while `node` runs, into its first operand?"""
        if function is not _ADD or kwargs or node is None or torch.is_grad_enabled():
            return False
        if node.name() == "torch::autograd::AccumulateGrad":
            return True
        first = args[0]
        edges = node.next_functions
        by_the_engine = self._makers.get(first._cdata) != node._sequence_nr() or len(set(edges)) < len(edges)
        return by_the_engine and _holders(first) == _nobody_else() and _is_dense(first)


def _holders(tensor: torch.Tensor) -> tuple[int, int]:
    """How many references there are to a tensor and to its storage, from within a handler."""
    return tensor._use_count(), torch._C._storage_Use_Count(storage_address(tensor))


@functools.cache
def _nobody_else() -> tuple[int, int]:
    """The references to a gradient that only the engine holds; found out once by running such a case."""
    found: list[tuple[int, int]] = []

    def handler(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if function is _ADD:
            found.append(_holders(args[0]))
        return function(*args, **kwargs)

    with torch.inference_mode(False), torch.enable_grad():
        leaf = torch.ones(2, requires_grad=True, device="meta")
        used_twice = leaf.exp()
        total = used_twice.sin() * used_twice.cos()
        with below_autograd(handler):
            torch.autograd.backward(total, torch.ones(2, device="meta"), inputs=[leaf])
    return found[0] if found else (0, 0)
