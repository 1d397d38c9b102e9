"""Writes one `Op` for every dispatcher call below autograd.

It runs each call as it comes: on meta or fake tensors this costs nothing, on real ones it is the real step. It keeps
no tensor alive, so that storages die when they would without it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from copy import copy
from typing import Any, Protocol, Self

import torch
from torch._C import _current_autograd_node
from torch.utils._pytree import tree_map_only

from rooflight.ledger import OPTIMIZER, OTHER, Arg, Category, MathModes, Note, Op, Phase, Scalar, Tensor, tensors_in
from rooflight.models.dtypes import DTYPE_NAMES
from rooflight.trace.assumed_values import UNKNOWN, AssumedValues
from rooflight.trace.checkpointing import checkpoints_of_the_model_followed
from rooflight.trace.in_place import InPlaceCalls
from rooflight.trace.interception import Interception, below_autograd
from rooflight.trace.modules import ModuleTracker
from rooflight.trace.plain_attention import call_of
from rooflight.trace.precision import effective_precision
from rooflight.trace.python_line import COPYING, WAITING, python_line
from rooflight.trace.shape_cache import ShapeCache
from rooflight.trace.sparse_tensors import is_sparse, parts_of, refuse_unless_made_of_parts, result_without_data
from rooflight.trace.step import StepFollower, only_writes, value_or_one
from rooflight.trace.storages import Storages

_VALUE = torch.ops.aten._local_scalar_dense.default
_RESHAPED = "aten::_reshape_alias"
_OUR_NAMESPACES_TO_DROP = ("profiler", "prim")
_NO_MODULE: dict[Phase, str] = {"optimizer": OPTIMIZER, "other": OTHER}


class _OpSignature:
    """What an operator's schema says, read once."""

    __slots__ = ("arguments", "dropped", "mutated", "name", "packet", "pure")

    def __init__(self, function: Any) -> None:
        schema = function._schema
        overload = schema.overload_name
        self.packet: str = schema.name
        self.name = f"{schema.name}.{overload}" if overload else schema.name
        self.arguments = [argument.name for argument in schema.arguments]
        if schema.name == _RESHAPED:  # what a view is called when it comes of `reshape`; on meta it is a plain view
            self.packet = self.name = "aten::view"
            self.arguments = ["self", "size"]
        self.mutated = tuple(a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write)
        self.pure = all(a.alias_info is None for a in (*schema.arguments, *schema.returns))
        self.dropped = schema.name.partition("::")[0] in _OUR_NAMESPACES_TO_DROP

    def of_sparse(self, count: int) -> _OpSignature:
        """Rename the operator by its count of sparse arguments: `sparse::mm`, `sparse_sparse::mm`."""
        sparse, namespace = copy(self), "sparse_sparse" if count > 1 else "sparse"
        sparse.packet, sparse.name = (f"{namespace}::{name.partition('::')[2]}" for name in (self.packet, self.name))
        return sparse


class Observer(Protocol):
    """Told when each op begins and ends, on the thread it runs on: the place for a hardware range or a clock.

    `after` comes also when the op raises.
    """

    def before(self, index: int) -> None: ...

    def after(self, index: int) -> None: ...


class Recorder(StepFollower):
    """Records ops while it is entered. `phase` is set by whoever runs the step."""

    _filed_as: Category | None = None
    """What an op gets and no op has made: with a model of one's own, something made unseen."""

    def __init__(
        self,
        tracker: ModuleTracker,
        *,
        device: str,
        modes: MathModes,
        rank: int = 0,
        meta_kernels: Mapping[Any, Callable[..., Any]] | None = None,
        observer: Observer | None = None,
        interception: Interception = below_autograd,
    ) -> None:
        self.ops: list[Op] = []
        self.phase: Phase = "forward"
        self.storages = Storages(self.ops.__len__, device)
        self._tracker = tracker
        self._device = device
        self._modes = modes
        self._rank = rank
        self._ordinals: Counter[tuple[str, str, int, str]] = Counter()
        self._choices: dict[int, int] = {}
        self._signatures: dict[Any, _OpSignature] = {}
        self._meta_kernels = meta_kernels or {}
        self._values = AssumedValues(self.ops, self.storages) if meta_kernels is not None else None
        self._shapes = ShapeCache()
        self._in_place = InPlaceCalls() if device == "meta" else None
        self._sparse = 0
        """Sparse tensors among the arguments of the op that is recorded."""
        self._observer = observer
        self._interception = interception
        self._entered = ExitStack()

    def __enter__(self) -> Self:
        self._entered.enter_context(self._interception(self.record))
        self._entered.enter_context(checkpoints_of_the_model_followed())
        return self

    def __exit__(self, *failure: Any) -> None:
        self._entered.close()

    @property
    def _without_data(self) -> bool:
        return self._values is not None

    @property
    def notes(self) -> tuple[Note, ...]:
        """What was taken to be so, for want of data."""
        return () if self._values is None else self._values.notes

    def give(self, tensor: torch.Tensor, numbers: torch.Tensor) -> None:
        """What an input without data stands for: the step may read it."""
        if self._values is not None:
            self._values.give(tensor, numbers)

    def record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        node = _current_autograd_node() if self.phase == "backward" else None
        asked = func
        if self._in_place is not None:
            func, args, kwargs = self._in_place.plainly((func, args, kwargs), node)
        signature = self._signatures.get(func)
        if signature is None:
            signature = self._signatures[func] = _OpSignature(func)
        if signature.dropped:
            return func(*args, **kwargs)
        # Inputs are described before the call: an op in place may change their shape or storage.
        self._sparse = 0
        described = self._arguments(signature, args, kwargs)
        sparse = self._sparse
        observer = self._observer
        if func is not asked and signature.mutated:
            result = args[0]  # there is no data to write, and the shape is not in question
        elif sparse and self._without_data:
            result = result_without_data(func, args)
        elif observer is None:
            result = UNKNOWN if self._values is None else self._values.answer(func, args, kwargs, node)
            if result is UNKNOWN:
                result = self._run(func, args, kwargs, pure=signature.pure)
        else:
            index = len(self.ops)
            observer.before(index)
            try:
                result = func(*args, **kwargs)
            finally:
                observer.after(index)
        if is_sparse(result) and not sparse:
            sparse = 1
            if self._without_data:
                refuse_unless_made_of_parts(func)
        self._write(signature.of_sparse(sparse) if sparse else signature, described, result, node)
        if self._in_place is not None and node is not None:
            self._in_place.made(result, node)
        return result

    def _run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, pure: bool) -> Any:
        if self.phase == "optimizer" and func is _VALUE:
            return value_or_one(func, args, kwargs)
        if not pure and only_writes(func, args, kwargs):
            return None
        func = self._meta_kernels.get(func, func)
        try:
            if pure and self._device == "meta":
                return self._shapes.run(func, args, kwargs)
            return func(*args, **kwargs)
        except (RuntimeError, NotImplementedError):
            # Constants that live on the CPU (masks, tables) meet tensors without data: give up their data too.
            if self._device != "meta" or not _mixes_devices((args, kwargs)):
                raise
            args, kwargs = tree_map_only(torch.Tensor, _to_meta, (args, kwargs))
            return func(*args, **kwargs)

    def _arguments(self, signature: _OpSignature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Arg]:
        given = (*zip(signature.arguments, args, strict=False), *kwargs.items())
        return {name: self._argument(value) for name, value in given if value is not None}

    def enter(self, path: str) -> None:
        self._tracker.enter(path)

    def leave(self) -> None:
        self._tracker.leave()

    def forward_done(self, leaves: list[torch.Tensor]) -> None:
        for leaf in leaves:
            self.storages.mark(leaf, "output")

    def loss_made(self, loss: torch.Tensor) -> None:
        self.storages.mark(loss, "output", "loss")
        self.storages.mark_alive("activation")

    def labels_made(self, labels: torch.Tensor) -> None:
        self.storages.id_of(labels, "input", "labels")

    def _argument(self, value: Any) -> Arg:
        if isinstance(value, torch.Tensor):
            if is_sparse(value):
                self._sparse += 1
                return [*self.storages.parts(value, self._filed_as)]
            return self.storages.describe(value, self._filed_as)
        if isinstance(value, (list, tuple)):
            described, unmade = self.storages.describe, self._filed_as
            if any(map(is_sparse, value)):
                value = [part for one in value for part in parts_of(one)]
            return [described(one, unmade) if isinstance(one, torch.Tensor) else _scalar(one) for one in value]
        return _scalar(value)

    def _is_forward_again(self) -> bool:
        """Forward work done again in backward (checkpointing) runs with grad mode on, which backward does not, or
        inside the call of a module, which backward never makes."""
        return torch.is_grad_enabled() or self._tracker.inside_a_module

    def _write(self, signature: _OpSignature, described: dict[str, Arg], result: Any, node: Any) -> None:
        phase = self.phase
        self.storages.saved_by_autograd = phase != "backward" or torch.is_grad_enabled()
        outputs = self._outputs(result)
        if phase == "backward" and signature.packet == "aten::detach":
            self.storages.detached(result)
        inputs = list(tensors_in(described.values()))
        recompute = False
        place = self._tracker.place
        if phase == "backward":
            recompute = node is not None and self._is_forward_again()
            if not recompute:
                place = self._tracker.place_of_node(node) or place
        elif phase in _NO_MODULE:
            place = (_NO_MODULE[phase], 0)
        module, call = place
        name = signature.name
        key = (phase, module, call, name)
        ordinal = self._ordinals[key]
        self._ordinals[key] = ordinal + 1
        self.ops.append(
            Op(
                index=len(self.ops),
                phase=phase,
                module=module,
                call=call,
                name=name,
                ordinal=ordinal,
                rank=self._rank,
                kind=self._kind(signature, inputs, outputs),
                precision=effective_precision(signature.packet, inputs or outputs, self._modes),
                args=described,
                outputs=outputs,
                mutates=signature.mutated,
                recompute=recompute,
                attention=call_of(node),
                routed=self._routed(signature.packet, inputs, outputs),
                line=python_line() if self._waits(signature, inputs, outputs) else "",
            )
        )

    def _routed(self, packet: str, inputs: list[Tensor], outputs: tuple[Tensor, ...]) -> int:
        """Return the choices of a token, which the last `topk` among as many as the product has experts made."""
        if packet == "aten::topk":
            self._choices[inputs[0].shape[-1]] = outputs[0].shape[-1]
        if packet != "aten::_grouped_mm":
            return 0
        return self._choices.get(next(row.shape[0] for row in (*inputs, *outputs) if len(row.shape) == 3), 0)

    def _waits(self, signature: _OpSignature, inputs: list[Tensor], outputs: tuple[Tensor, ...]) -> bool:
        """Does the host need its result before it goes on?"""
        if signature.packet not in WAITING:
            return False
        on_host = self.storages.is_host
        if signature.packet in COPYING:
            return (
                bool(outputs)
                and all(on_host(row.storage) for row in outputs)
                and not all(on_host(row.storage) for row in inputs)
            )
        return not all(on_host(row.storage) for row in inputs)

    def _outputs(self, result: Any) -> tuple[Tensor, ...]:
        if isinstance(result, torch.Tensor):
            return tuple(self.storages.parts(result)) if is_sparse(result) else (self.storages.describe(result),)
        items = result if isinstance(result, (list, tuple)) else ()
        opened = (tensor for item in items for tensor in (item if isinstance(item, (list, tuple)) else (item,)))
        tensors = (tensor for tensor in opened if isinstance(tensor, torch.Tensor))
        return tuple(part for tensor in tensors for part in self.storages.parts(tensor))

    def _kind(self, signature: _OpSignature, inputs: list[Tensor], outputs: tuple[Tensor, ...]) -> Any:
        touched = [*inputs, *outputs]
        if touched and all(self.storages.is_host(tensor.storage) for tensor in touched):
            return "host"
        if outputs and not signature.mutated:
            storages = {tensor.storage for tensor in inputs}
            if all(tensor.storage in storages for tensor in outputs):
                return "view"
        return "compute"


def _scalar(value: Any) -> Scalar:
    """A value as JSON can hold it: no infinities, no torch objects."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, torch.dtype):
        return DTYPE_NAMES.get(value, str(value))
    if isinstance(value, torch.Generator):
        return "generator"
    if isinstance(value, (torch.UntypedStorage, torch.TypedStorage)):
        return "storage"  # its text is all of its numbers, brought from the device one by one
    return str(value)


def _to_meta(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.is_meta else tensor.detach().to("meta")


def _mixes_devices(arguments: Any) -> bool:
    devices: set[bool] = set()
    tree_map_only(torch.Tensor, lambda tensor: devices.add(tensor.is_meta), arguments)
    return len(devices) == 2
