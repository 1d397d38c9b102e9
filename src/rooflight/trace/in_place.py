"""The calls that a plain step makes in place, for tensors without data.

Where torch writes into a tensor that nobody else holds, it makes a new one on meta tensors: when autograd's engine adds
up two gradients of the same tensor, in the formulas of some backward nodes, for the mask of plain attention. A trace
on meta tensors would have other ops, more memory and more bytes than the step that runs, so here such a call becomes
the one that the plain step makes. What the rules below do not know stays as it is: a new tensor instead of none.
"""

from __future__ import annotations

import functools
import sys
from contextlib import ExitStack
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from rooflight.trace import plain_attention
from rooflight.trace.interception import as_a_mode, below_autograd, nothing_handed_over
from rooflight.trace.storages import storage_address

aten = torch.ops.aten
Call = tuple[Any, tuple[Any, ...], dict[str, Any]]
_ADD, _ADD_IN_PLACE = aten.add.Tensor, aten.add_.Tensor
PARAMETER_NODE = "torch::autograd::AccumulateGrad"
_IN_A_NODE = {
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.scatter.src: aten.scatter_.src,
    aten.index_add.default: aten.index_add_.default,
    aten.index_fill.int_Tensor: aten.index_fill_.int_Tensor,
    aten.put.default: aten.put_.default,
}
"""Filling a tensor of zeros that a node's formula has just made."""
_IN_THIS_NODE = {
    "BinaryCrossEntropyWithLogitsBackward0": {aten.sub.Tensor: aten.sub_.Tensor, aten.mul.Tensor: aten.mul_.Tensor},
}
_SELECTING = {f"{name}Backward0" for name in ("Max", "Min", "Sort", "Topk", "Kthvalue", "Mode")} | {"MedianBackward1"}
"""Nodes whose zeros are `zeros`, and `new_zeros` without data."""
_MAY_BE_IN_PLACE = {
    _ADD,
    aten.new_zeros.default,
    aten.index_put.default,
    *_IN_A_NODE,
    *(function for own in _IN_THIS_NODE.values() for function in own),
}
_is_dense = aten.is_non_overlapping_and_dense.default


class InPlaceCalls:
    """Follows which node of autograd made which tensor, to tell the engine's sums from those in a node's formula."""

    def __init__(self, *, fake: bool = False) -> None:
        self._makers: dict[int, int] = {}
        self._fake = fake
        self._nobody_else = _nobody_else(fake)

    def made(self, result: Any, node: Any) -> None:
        """Backward has made something while `node` was running."""
        for tensor in result if isinstance(result, (list, tuple)) else (result,):
            if isinstance(tensor, torch.Tensor):
                self._makers[tensor._cdata] = node._sequence_nr()

    def plainly(self, call: Call, node: Any) -> Call:
        """The call that the plain step makes in its place; `node` runs in backward, `None` in forward."""
        function, args, kwargs = call
        if function is _ADD and plain_attention.is_inside():
            scores, mask = args[:2]
            fits = torch.broadcast_shapes(scores.shape, mask.shape) == scores.shape
            return (_ADD_IN_PLACE, args, kwargs) if fits else call
        if node is None or torch.is_grad_enabled() or function not in _MAY_BE_IN_PLACE or not called_by_engine():
            return call  # backward that is to be differentiated itself writes nothing in place, nor do users' own sums
        if function is _ADD and not kwargs and self._engine_adds_in_place(args[0], node):
            return _ADD_IN_PLACE, args, kwargs
        if function is aten.new_zeros.default and node.name() in _SELECTING:
            like = {"dtype": args[0].dtype, "layout": args[0].layout, "device": args[0].device}
            return aten.zeros.default, (args[1],), like | kwargs
        if function is aten.index_put.default and node.name() == "IndexBackward0":
            return aten._index_put_impl_.default, (*(*args, False)[:4], True), kwargs
        other = _IN_A_NODE.get(function) or _IN_THIS_NODE.get(node.name(), {}).get(function)
        return (other, args, kwargs) if other is not None and self._is_nodes_own(args[0], node) else call

    def _engine_adds_in_place(self, first: torch.Tensor, node: Any) -> bool:
        if node.name() == PARAMETER_NODE:
            return True
        edges = [edge for edge in node.next_functions if edge[0] is not None]
        in_the_formula = self._made_by(first, node) and len(set(edges)) == len(edges)
        return not in_the_formula and self._is_alone(first) and bool(_is_dense(first))

    def _is_nodes_own(self, tensor: torch.Tensor, node: Any) -> bool:
        return self._made_by(tensor, node) and self._is_alone(tensor)

    def _is_alone(self, tensor: torch.Tensor) -> bool:
        return _holders(tensor, self._fake) == self._nobody_else

    def _made_by(self, tensor: torch.Tensor, node: Any) -> bool:
        return bool(self._makers.get(tensor._cdata) == node._sequence_nr())


def called_by_engine() -> bool:
    """Does C++ make this call: the engine, or the formula of one of torch's own nodes? Not a hook, not a user's
    backward: then there is a Python frame between the engine and here.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("rooflight."):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name == "_engine_run_backward"


def _holders(tensor: torch.Tensor, fake: bool) -> tuple[int, int]:
    """How many references there are to a tensor and to its storage, from within a handler."""
    if fake:
        tensor.untyped_storage()  # Python has looked at some and not at others, which counts: now it has at all
    count: int = tensor._use_count()  # type: ignore[attr-defined]
    address = storage_address(tensor)
    return count, torch._C._storage_Use_Count(address) if address else 0


@functools.cache
def _nobody_else(fake: bool) -> tuple[int, int]:
    """The references to a tensor that only C++ holds, once; found out by running such a case."""
    counts: list[tuple[int, int]] = []

    def handler(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if function is _ADD:
            counts.append(_holders(args[0], fake))
        return function(*args, **kwargs)

    with ExitStack() as stack:
        for context in (nothing_handed_over(), torch.inference_mode(False), torch.enable_grad()):
            stack.enter_context(context)
        if fake:
            stack.enter_context(FakeTensorMode())
        leaf = torch.ones(2, requires_grad=True, device="meta" if not fake else "cpu")
        used_twice = leaf.exp()
        total = used_twice.sin() * used_twice.cos()
        gradient = torch.ones_like(total)
        stack.enter_context(as_a_mode(handler) if fake else below_autograd(handler))
        torch.autograd.backward(total, gradient, inputs=[leaf])
    return counts[0] if counts else (0, 0)
