"""The numbers of a tensor without data, where the ops that made it can be run again on the host.

Places, counts and marks come of a few ops on constants (`arange`, `one_hot`, `cumsum`), whose rows tell all that is
needed to repeat them. Which experts a token goes to is decided by data: where only the marks of such choices are looked
at (where they are, how many), each expert is taken to be chosen as often as the others, of as many as are reached by
chance. The first token has the first experts, the second the next ones, and so around.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Any

import torch

from rooflight.ledger import Arg, Op, Tensor
from rooflight.metrics import distinct_experts
from rooflight.models.dtypes import DTYPE_NAMES, torch_dtype
from rooflight.trace.interception import nothing_handed_over
from rooflight.trace.storages import Storages

ROUTED = "tokens choose all experts equally often"

_MARKING = frozenset("eq scatter histc bincount".split())
"""Of chosen numbers these make marks and counts; a number itself stays unknown, and a mark of one alone."""
_REPEATED = _MARKING | frozenset(
    """_to_copy clone copy arange zeros zeros_like new_zeros ones ones_like new_ones full full_like new_full fill
    zero scalar_tensor ne lt le gt ge add sub rsub mul floor_divide remainder logical_and logical_or logical_not
    bitwise_and bitwise_or bitwise_not where masked_fill clamp minimum maximum sum prod cumsum any all max min amax
    amin cat stack flip nonzero index index_select repeat""".split()
)
_CHOOSING = {"topk": 1, "max": 1, "argmax": 0}
"""Which of their results are the numbers of what was chosen."""
_OF_PLACE = ("device", "layout", "memory_format", "pin_memory", "non_blocking")
_LARGEST = 1 << 24
"""Elements that are worth being computed."""
_KEPT = 32
"""Results at a time: the experts of a layer all look at the same marks."""

Known = Callable[[Tensor, int], tuple[int | float | bool | None, Collection[str]]]
Writer = Callable[[Tensor, int], Op | None]


class ReplayedValues:
    """Of one recording. `writer`: the last op before an index that wrote to a tensor; `known`: the value that all of
    its elements had then, and what was assumed for it."""

    def __init__(self, storages: Storages, writer: Writer, known: Known) -> None:
        self._storages = storages
        self._writer = writer
        self._known = known
        self._found: OrderedDict[tuple[int, bool], tuple[torch.Tensor, frozenset[str]]] = OrderedDict()
        """By the index of an op, and whether chosen numbers may be looked at: the storage that it wrote to, as it was
        then, and what was assumed for it."""
        self._decided_by_data: set[tuple[int, bool]] = set()
        self._given: dict[int, tuple[int, torch.Tensor]] = {}
        """By storage, what was in it before the op of an index."""
        self._leaned_on: set[str] = set()

    def give(self, tensor: Tensor, before: int, numbers: torch.Tensor) -> None:
        """What a tensor holds before the op of that index: an input, or one of the host."""
        with nothing_handed_over():
            self._given[tensor.storage] = before, self._laid_out(numbers, tensor)

    def numbers(self, tensor: Tensor, before: int) -> tuple[torch.Tensor | None, list[str]]:
        """What the tensor held before the op of that index, and what was assumed for it; `None`: that depends on
        data."""
        self._leaned_on = set()
        try:
            with nothing_handed_over():
                return self._numbers(tensor, before, choices=False), sorted(self._leaned_on)
        except RecursionError:  # it comes from too far away
            return None, []

    def _numbers(self, tensor: Tensor, before: int, *, choices: bool) -> torch.Tensor | None:
        if tensor.numel > _LARGEST:
            return None
        value, leaned_on = self._known(tensor, before)
        if value is not None:
            self._leaned_on.update(leaned_on)
            return torch.full(tensor.shape, value, dtype=torch_dtype(tensor.dtype))
        op = self._writer(tensor, before)
        since, whole = self._given.get(tensor.storage, (0, None))
        if op is not None and (whole is None or op.index >= since):
            whole = self._storage(op, choices=choices)
        if whole is None or DTYPE_NAMES[whole.dtype] != tensor.dtype:
            return None
        return _view(whole, tensor)

    def _storage(self, op: Op, *, choices: bool) -> torch.Tensor | None:
        """All that was in the storage when an op had written to it: found once."""
        key = op.index, choices
        if key in self._decided_by_data:
            return None
        if key not in self._found:
            outside, self._leaned_on = self._leaned_on, set()
            whole = self._repeated(op, choices=choices)
            leaned_on, self._leaned_on = self._leaned_on, outside
            if whole is None:
                self._decided_by_data.add(key)
                return None
            self._found[key] = whole, frozenset(leaned_on)
            if len(self._found) > _KEPT:
                self._found.popitem(last=False)
        self._found.move_to_end(key)
        whole, assumed = self._found[key]
        self._leaned_on |= assumed
        return whole

    def _repeated(self, op: Op, *, choices: bool) -> torch.Tensor | None:
        name = op.packet.removeprefix("aten::")
        func = getattr(getattr(torch.ops.aten, name, None), op.name.partition(".")[2] or "default", None)
        name = name.removesuffix("_") if op.mutates else name
        if name in _CHOOSING and (name == "topk" or op.has("dim")):
            return self._chosen(op, op.outputs[_CHOOSING[name]]) if choices else None
        if func is None or name not in _REPEATED or len(op.outputs) != 1 or op.outputs[0].numel > _LARGEST:
            return None
        looks = (name in _MARKING and op.outputs[0].numel > 1) or (choices and name == "_to_copy")
        given: dict[str, Any] = {}
        written: torch.Tensor | None = None
        for argument, told in op.args.items():
            if argument in _OF_PLACE:
                continue
            if argument in op.mutates and isinstance(told, Tensor):
                written = self._before(told, op.index)
                value: Any = None if written is None else _view(written, told)
            else:
                value = self._argument(told, op.index, choices=looks)
            if value is None:
                return None
            given[argument] = torch_dtype(value) if argument == "dtype" else value
        result = func(**given)
        return self._laid_out(result, op.outputs[0]) if written is None else written

    def _argument(self, value: Arg, before: int, *, choices: bool) -> Any:
        if isinstance(value, Tensor):
            return self._numbers(value, before, choices=choices)
        if isinstance(value, list):
            parts = [self._argument(part, before, choices=choices) for part in value]
            return None if any(part is None is not told for part, told in zip(parts, value, strict=True)) else parts
        return float(value) if value in ("inf", "-inf") else value

    def _before(self, written: Tensor, before: int) -> torch.Tensor | None:
        """All of the storage that an op in place writes to, to be written to."""
        elements = self._storages.nbytes_of(written.storage) // written.itemsize
        whole = self._numbers(Tensor(written.storage, (elements,), written.dtype), before, choices=False)
        return None if whole is None else whole.clone()

    def _chosen(self, op: Op, places: Tensor) -> torch.Tensor | None:
        """The numbers of what was chosen along a dimension, in turn."""
        among, dim = op.tensor("self"), op.args.get("dim", -1)
        if places.numel > _LARGEST or not isinstance(dim, int):
            return None
        self._leaned_on.add(ROUTED)
        choices = places.shape[dim] if op.packet == "aten::topk" else 1
        reached = distinct_experts(places.numel // choices, choices=choices, experts=among.shape[dim])
        turns = torch.arange(places.numel) % max(reached, 1)
        if op.packet == "aten::topk":
            others = [size for place, size in enumerate(places.shape) if place != dim % len(places.shape)]
            turns = turns.view(*others, places.shape[dim]).movedim(-1, dim)
        return self._laid_out(turns.reshape(places.shape), places)

    def _laid_out(self, result: torch.Tensor, like: Tensor) -> torch.Tensor:
        """Flat, as it lies in memory."""
        whole = torch.zeros(self._storages.nbytes_of(like.storage) // like.itemsize, dtype=result.dtype)
        _view(whole, like).copy_(result)
        return whole


def _view(whole: torch.Tensor, tensor: Tensor) -> torch.Tensor:
    if tensor.strides is None:
        return whole[tensor.offset : tensor.offset + tensor.numel].view(tensor.shape)
    return whole.as_strided(tensor.shape, tensor.strides, tensor.offset)
