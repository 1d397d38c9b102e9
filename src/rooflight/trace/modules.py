"""Which module runs: paths and call numbers, for forward ops and, through their autograd nodes, for backward ops."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.autograd import _get_sequence_nr
from torch.utils._pytree import tree_leaves

from rooflight.ledger import LOSS, Dtype, Module
from rooflight.models.dtypes import dtype_name
from rooflight.trace.sparse_tensors import parts_of

Place = tuple[str, int]
"""Path of a module, and which call of it."""


_Shapes = tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...], tuple[Dtype, ...]]
"""Shapes that a call got and gave, and the types of the latter."""


class ModuleTracker:
    """Follows the calls of a model's modules while `watch` is open.

    Every autograd node carries the number it was made with. Noting that number whenever the running module changes is
    enough to find, later, in which module a node was made: no hooks on the model, nothing per op.
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        self._modules: list[nn.Module] = []
        self._parameters: list[nn.Parameter] = []
        self._paths: dict[int, str] = {}
        self._calls: Counter[str] = Counter()
        self._forward_calls: Counter[str] = Counter()
        self._stack: list[Place] = [("", 0)]
        self._thread = threading.get_ident()
        self._known: set[str] = set()
        self._marks: list[tuple[int, Place]] = []
        self._shapes: dict[str, _Shapes] = {}
        self._owners: dict[int, str] = {}
        if model is not None:
            self._know(model)

    def _know(self, model: nn.Module, prefix: str = "") -> None:
        """Its modules as they are before the step: a forward may add some and drop others. What is known by its id is
        held here, so that the id stays its own."""
        self._modules += model.modules()
        self._parameters += model.parameters()
        for path, module in model.named_modules(prefix=prefix):
            self._paths.setdefault(id(module), _path(path))
        self._known = set(self._paths.values())
        for path, parameter in model.named_parameters(prefix=prefix):
            self._owners.setdefault(id(parameter), original_name(path).rpartition(".")[0])

    def found(self, module: nn.Module) -> str | None:
        """The path of a module that is called and was not known; `None`: what it does belongs to where it is called."""
        return None

    def _is_forward(self) -> bool:
        """In backward the loss is still open: a call is made again there."""
        return len(self._stack) == 1 or self._stack[1][0] != LOSS

    @property
    def place(self) -> Place:
        return self._stack[-1]

    @property
    def inside_a_module(self) -> bool:
        """Is a module being called, as opposed to the model as a whole or a place entered by hand?"""
        return self._stack[-1][0] in self._known

    def enter(self, path: str) -> None:
        """Run in a place that is no module of the model, such as the loss."""
        self._stack.append((path, self._calls[path]))
        self._calls[path] += 1
        self._mark()

    def leave(self) -> None:
        self._stack.pop()
        self._mark()

    @contextmanager
    def again(self, module: nn.Module) -> Iterator[None]:
        """Run the inside of a call once more, in backward: the same place, under a number of its own."""
        self.enter(self._paths.get(id(module), self.place[0]))
        try:
            yield
        finally:
            self.leave()

    def _mark(self) -> None:
        # Autograd counts in each thread by itself; what another thread makes (a checkpoint recomputed on a GPU's own
        # thread) is no node of this step's forward.
        if threading.get_ident() == self._thread:
            self._marks.append((_get_sequence_nr(), self._stack[-1]))

    def place_of_node(self, node: Any) -> Place | None:
        """Where the forward op of an autograd node ran; for the accumulation of a gradient, its parameter's owner."""
        if node is None:
            return None
        number = node._sequence_nr()
        if number >= 1 << 62:  # AccumulateGrad nodes all carry the highest number
            owner = self._owners.get(id(getattr(node, "variable", None)))
            return None if owner is None else (owner, 0)
        index = bisect_right(self._marks, number, key=lambda mark: mark[0]) - 1
        return self._marks[index][1] if index >= 0 else None

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Wrap `nn.Module.__call__`: hooks would be seen by the model, and miss a module that raises."""
        original = nn.Module.__call__
        paths, calls, stack, tracker = self._paths, self._calls, self._stack, self

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            path = paths.get(id(module))
            if path is None and (path := tracker.found(module)) is None:
                return original(module, *args, **kwargs)
            number = calls[path]
            calls[path] = number + 1
            if tracker._is_forward():
                tracker._forward_calls[path] += 1
            stack.append((path, number))
            tracker._mark()
            try:
                result = original(module, *args, **kwargs)
            finally:
                stack.pop()
                tracker._mark()
            if number == 0:
                tracker._note_shapes(path, (args, kwargs), result)
            return result

        nn.Module.__call__ = call  # type: ignore[method-assign]
        self._mark()
        try:
            yield
        finally:
            nn.Module.__call__ = original  # type: ignore[method-assign]

    def _note_shapes(self, path: str, inputs: Any, result: Any) -> None:
        got = tuple(tuple(leaf.shape) for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor))
        given = [leaf for leaf in tree_leaves(_plain(result)) if isinstance(leaf, torch.Tensor)]
        self._shapes[path] = got, tuple(tuple(t.shape) for t in given), tuple(dtype_name(t.dtype) for t in given)

    def modules(self) -> tuple[Module, ...]:
        """The rows of the module tree. A shared parameter counts at its first owner and is named as tied elsewhere."""
        seen: set[int] = set()
        rows = []
        for module in self._modules:
            path = self._paths[id(module)]
            if type(module).__name__ == "OptimizedModule":
                continue
            rows.append(self._row(path, module, seen))
        return tuple(rows)

    def _row(self, path: str, module: nn.Module, seen: set[int]) -> Module:
        params = trainable = param_bytes = buffer_bytes = 0
        tied = []
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            if id(parameter) in seen:
                tied.append(name)
                continue
            seen.add(id(parameter))
            params += parameter.numel()
            trainable += parameter.numel() if parameter.requires_grad else 0
            param_bytes += parameter.numel() * parameter.element_size()
        for buffer in module._buffers.values():
            if buffer is not None and id(buffer) not in seen:
                seen.add(id(buffer))
                buffer_bytes += sum(part.numel() * part.element_size() for part in parts_of(buffer))
        inputs, outputs, dtypes = self._shapes.get(path, ((), (), ()))
        return Module(
            path=path,
            type=type(module).__name__,
            params=params,
            trainable_params=trainable,
            param_bytes=param_bytes,
            buffer_bytes=buffer_bytes,
            tied=tuple(tied),
            calls=self._forward_calls[path],
            inputs=inputs,
            outputs=outputs,
            output_dtypes=dtypes,
        )


def original_name(name: str) -> str:
    """The name without the wrappers that `torch.compile` puts around modules."""
    return name.replace("_orig_mod.", "")


def _path(name: str) -> str:
    """A compiled module wraps the original; users know the original's paths."""
    return original_name(name).removesuffix("_orig_mod").rstrip(".")


def _plain(value: Any) -> Any:
    """Outputs of Hugging Face models are ordered dicts that pytree may not know."""
    if isinstance(value, dict) and type(value) is not dict:
        return dict(value)
    return value
