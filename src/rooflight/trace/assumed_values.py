"""What a tensor without data would say, where its value is known or can be taken as usual.

A step reads few values: whether a mask has padding, whether everything is finite, whether a layer is dropped. The rows
written so far tell where a value comes from: ones stay ones however they are sliced and compared. Beyond what follows
from them only this is assumed, and noted with the line that asked: results are finite, masks among the inputs hide
nothing, a number drawn between 0 and 1 is 0.5, tokens are spread evenly over experts, and a check that would end the
step passes. Everything else is unknown, and the step fails there: a guess would be of another step.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from rooflight.ledger import Arg, Note, Op, Tensor
from rooflight.models.dtypes import FLOATS
from rooflight.trace.python_line import python_line
from rooflight.trace.raising_checks import outcome_without_error
from rooflight.trace.replayed_values import ReplayedValues
from rooflight.trace.storages import Storages

aten = torch.ops.aten
UNKNOWN: Any = object()
_Number = int | float | bool
_Values = frozenset[_Number]
"""Those that elements of a tensor can have; empty: any."""
_ANY: _Values = frozenset()
_MOST = 4
_TABLE = 1 << 20
"""Elements that are worth being kept when they are moved."""

FINITE = "results are finite"
UNMASKED = "the inputs' masks hide nothing"
DRAWN = "a number drawn between 0 and 1, as for LayerDrop, is 0.5"
PASSED = "checks that would raise an error pass"
MARKED = "a mask that is assigned to marks every place"
SEEN = "images and sound among the inputs are no padding of zeros"
ONE = "a number that the step reads is 1"
DECIDES = "a number that a branch depends on is 1 (real_data=True shows which way it really goes)"
DENSE = "padding is computed with, not taken out by nested tensors"

_SAME = frozenset(
    """_to_copy clone contiguous copy expand repeat index index_select gather cat stack flip roll
    upsample_nearest1d upsample_nearest2d amin amax min max""".split()
)
"""Give elements of what they get, and no others."""
_OF_EQUALS = {
    **dict.fromkeys(("all", "any", "_is_all_true", "_is_any_true"), bool),
    **dict.fromkeys(("mean", "upsample_bilinear2d"), float),
}
"""Of elements that are all the same."""
_BY_ELEMENT = frozenset({"logical_not", "bitwise_not", "clamp", "constant_pad_nd", "sum"})
_MASKS = ("attention_mask", "pixel_mask", "padding_mask")
"""How inputs are called that say where there is something to look at."""
_MAIN = ("src", "tensors", "self", "input")
"""The arguments that these are taken from, by name; of `copy_` not what is copied to."""
_FILLED = {"ones": 1, "ones_like": 1, "new_ones": 1, "zeros": 0, "zeros_like": 0, "new_zeros": 0, "zero": 0}
_GIVEN = {
    "full": "fill_value",
    "full_like": "fill_value",
    "new_full": "fill_value",
    "fill": "value",
    "scalar_tensor": "s",
}
_PAIRS: Mapping[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "mul": operator.mul,
    "add": operator.add,
    "sub": operator.sub,
    "logical_and": lambda a, b: bool(a and b),
    "bitwise_and": operator.and_,
    "logical_or": lambda a, b: bool(a or b),
    "bitwise_or": operator.or_,
    "maximum": max,
    "minimum": min,
    "rsub": lambda a, b: b - a,
}

_CHOOSING = {
    "where": ("condition", "self", "other"),
    "masked_fill": ("mask", "value", "self"),
    "index_put": ("indices", "values", "self"),
}
"""By what they choose, and between which."""
_ASSIGNING = ("IndexPutBackward", "CopySlices")
"""Nodes of autograd that read, in backward, the places that were assigned to; the second where they are of a view."""


class AssumedValues:
    """Of one recording: `ops` are its rows so far."""

    def __init__(self, ops: Sequence[Op], storages: Storages) -> None:
        self._ops = ops
        self._storages = storages
        self._lines: dict[str, dict[str, None]] = {}
        """By assumption, the lines that asked."""
        self._leaned_on: set[str] = set()
        self._found: dict[int, tuple[_Values, frozenset[str]]] = {}
        """By the index of an op: what it gives, and what was assumed for it."""
        self._writers: dict[int, list[int]] = {}
        """By storage, the ops that wrote to it, of the first `_looked_at` ops."""
        self._looked_at = 0
        self._replayed = ReplayedValues(storages, self._writer, self._same)
        self._answers: Mapping[Any, Callable[..., Any]] = {
            aten._local_scalar_dense.default: self._scalar,
            aten._to_copy.default: self._moved,
            aten.nonzero.default: self._nonzero,
            aten.index.Tensor: self._index,
            aten.index_put_.default: self._index_put,
            aten.index_put.default: self._index_put,
            aten.rand.default: self._rand,
            aten._nested_tensor_from_mask_left_aligned.default: self._left_aligned,
        }

    @property
    def notes(self) -> tuple[Note, ...]:
        return tuple(
            Note(
                "assumed-values",
                f"a trace without data takes it that {assumed}: {', '.join([*lines][:3])}"
                + (f" and {len(lines) - 3} more" if len(lines) > 3 else ""),
            )
            for assumed, lines in self._lines.items()
        )

    def answer(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], node: Any) -> Any:
        """The result of a call that needs values, or `UNKNOWN`. `node`: of autograd, that runs in backward."""
        answer = self._answers.get(func)
        return UNKNOWN if answer is None else answer(func, args, kwargs, node)

    def give(self, tensor: torch.Tensor, numbers: torch.Tensor) -> None:
        """What a tensor holds now."""
        self._replayed.give(self._storages.describe(tensor), len(self._ops), numbers)

    def note(self, *assumed: str) -> None:
        """Something was taken to be so by the line that runs now."""
        for one in assumed:
            self._lines.setdefault(one, {})[python_line() or "torch"] = None

    # --- the calls ---------------------------------------------------------------------------------------------------

    def _scalar(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], node: Any) -> Any:
        (tensor,) = args
        value, leaned_on = self._known(tensor)
        if _has_data(tensor):  # drawn on the host: the number is there
            self.note(*leaned_on)
            return UNKNOWN
        if value is None and (numbers := self._numbers(tensor)) is not None:
            return numbers.item()
        if (value is None or leaned_on) and (passing := outcome_without_error()) is not None:
            value, leaned_on = passing, [PASSED]
        if value is None:
            return UNKNOWN
        self.note(*leaned_on)
        kind = bool if tensor.dtype is torch.bool else float if tensor.is_floating_point() else int
        return kind(value)

    def _rand(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], node: Any) -> Any:
        """One number on the host is drawn to decide something: the same in every trace."""
        made = func(*args, **kwargs)
        return made.fill_(0.5) if made.numel() == 1 and made.device.type == "cpu" else made

    def _moved(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], node: Any) -> Any:
        """Numbers of the host are known where they are sent to; and `x.cpu()` or `x.tolist()` asks for them."""
        tensor, device = args[0], kwargs.get("device")
        if device is None or tensor.is_floating_point() or tensor.numel() > _TABLE:
            return UNKNOWN
        if _has_data(tensor) and device.type == "meta":
            self.give(tensor, tensor)
        numbers = self._numbers(tensor) if tensor.is_meta and device.type != "meta" else None
        return UNKNOWN if numbers is None else numbers.to(kwargs.get("dtype"))

    def _nonzero(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], node: Any) -> Any:
        (tensor,) = args
        number = None if _has_data(tensor) else self._marked(tensor)
        return UNKNOWN if number is None else tensor.new_empty((number, tensor.dim()), dtype=torch.int64)

    def _index(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], node: Any) -> Any:
        tensor, indices = args
        if not any(_is_mask(index) for index in indices):
            return UNKNOWN
        whole = node is not None and node.name().removeprefix("torch::autograd::").startswith(_ASSIGNING)
        places: list[Any] = []
        for index in indices:
            if not _is_mask(index):
                places.append(index)
                continue
            number = self._marked(index)
            if number is None:
                if not whole:
                    return UNKNOWN
                number = index.numel()
            places += [index.new_empty((number,), dtype=torch.int64)] * index.dim()
        return func(tensor, places)

    def _index_put(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], node: Any) -> Any:
        tensor, indices, values, *_ = args
        masks = [index for index in indices if _is_mask(index)]
        if not masks:
            return UNKNOWN
        # One value fills, whatever is marked.
        if node is None and values.numel() > 1 and any(self._marked(mask) is None for mask in masks):
            self.note(MARKED)
        return tensor if func is aten.index_put_.default else torch.empty_like(tensor)

    def _left_aligned(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], node: Any) -> Any:
        self.note(DENSE)
        return False

    # --- where a value comes from ------------------------------------------------------------------------------------

    def _known(self, tensor: torch.Tensor) -> tuple[_Number | None, list[str]]:
        """The one value that all elements have now, and what was assumed for it."""
        return self._same(self._storages.describe(tensor), len(self._ops))

    def _same(self, tensor: Tensor, before: int) -> tuple[_Number | None, list[str]]:
        self._leaned_on = set()
        try:
            values = self._values(tensor, before)
        except RecursionError:  # it comes from too far away
            values = _ANY
        return (next(iter(values)), sorted(self._leaned_on)) if len(values) == 1 else (None, [])

    def _numbers(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """All elements as they are now, noted what was assumed for them."""
        numbers, leaned_on = self._replayed.numbers(self._storages.describe(tensor), len(self._ops))
        if numbers is not None:
            self.note(*leaned_on)
        return numbers

    def _marked(self, tensor: torch.Tensor) -> int | None:
        """How many elements are not zero."""
        value, leaned_on = self._known(tensor)
        if value is None:
            numbers = self._numbers(tensor)
            return None if numbers is None else int(numbers.count_nonzero())
        self.note(*leaned_on)
        return tensor.numel() if value else 0

    def _values(self, tensor: Tensor, before: int) -> _Values:
        op = self._writer(tensor, before)
        if op is None:
            category, name = self._storages.filed_as(tensor.storage)
            if category == "input" and name.endswith(_MASKS) and not name.startswith("global"):
                self._leaned_on.add(UNMASKED)
                return frozenset({"key_padding" not in name})  # torch's own marks what to leave out
            return _ANY
        written = self._written(op)
        if not op.mutates or self._is_whole(op):
            return written
        kept = self._values(tensor, op.index)
        return _few(written | kept) if written and kept else _ANY

    def _written(self, op: Op) -> _Values:
        """What an op gives: found once."""
        if op.index not in self._found:
            outside, self._leaned_on = self._leaned_on, set()
            name = op.packet.removeprefix("aten::")
            values = self._given(name.removesuffix("_") if op.mutates else name, op) if len(op.outputs) == 1 else _ANY
            self._found[op.index] = values, frozenset(self._leaned_on)
            self._leaned_on = outside
        values, leaned_on = self._found[op.index]
        self._leaned_on |= leaned_on
        return values

    def _given(self, name: str, op: Op) -> _Values:
        if name in _FILLED:
            return frozenset({_FILLED[name]})
        if name in _GIVEN:
            return self._operand(op.args.get(_GIVEN[name]), op.index)
        if name == "rand" and op.outputs[0].numel == 1:
            self._leaned_on.add(DRAWN)
            return frozenset({0.5})
        if name in ("isnan", "isinf", "isfinite"):
            self._leaned_on.add(FINITE)
            return frozenset({name == "isfinite"})
        if name in _PAIRS:
            return self._of_two(name, op)
        if name in _CHOOSING:
            return self._chosen(name, op)
        return self._of_one(name, op)

    def _of_one(self, name: str, op: Op) -> _Values:
        if name not in _SAME and name not in _OF_EQUALS and name not in _BY_ELEMENT:
            return _ANY
        named = next((named for named in _MAIN if op.has(named)), "")
        given = [self._values(tensor, op.index) for tensor in op.tensors(named)] if named else []
        if not given or not all(given):
            return _ANY
        values = frozenset[_Number]().union(*given)
        if name in ("logical_not", "bitwise_not") and op.outputs[0].dtype == "bool":
            return frozenset({not value for value in values})
        if name == "_to_copy" and op.outputs[0].dtype == "bool":
            return frozenset({bool(value) for value in values})
        if name == "clamp":
            least, most = _number(op.args.get("min", -math.inf)), _number(op.args.get("max", math.inf))
            return _ANY if least is None or most is None else frozenset(min(max(v, least), most) for v in values)
        if name == "constant_pad_nd":
            return values | {_number(op.args.get("value", 0)) or 0}
        if name in _SAME:
            return values
        if len(values) > 1:
            return _ANY  # how many there are of each is not known
        (value,) = values
        if name == "sum":
            return frozenset({value * (op.tensor("self").numel // max(1, op.outputs[0].numel))})
        return frozenset({_OF_EQUALS[name](value)}) if name in _OF_EQUALS else _ANY

    def _of_two(self, name: str, op: Op) -> _Values:
        mine, other = op.args.get("self"), op.args.get("other")
        if op.args.get("alpha", 1) != 1:
            return _ANY
        left = self._operand(mine, op.index)
        if name in ("eq", "ne") and not left and (mine == other or _number(other) in (math.inf, -math.inf)):
            # Only NaN differs from itself: how torch asks for NaN and infinity.
            self._leaned_on.add(FINITE)
            return frozenset({(name == "eq") is (mine == other)})
        if name in ("eq", "ne") and _number(other) == 0 and self._is_float_input(mine, op.index):
            self._leaned_on.add(SEEN)
            return frozenset({name == "ne"})
        right = self._operand(other, op.index) if left else _ANY
        if name in ("lt", "le", "gt", "ge") and right and (max(right) <= 0 or min(right) >= 1):
            self._leaned_on.discard(DRAWN)  # whatever is drawn is on the same side
        return _few({_PAIRS[name](a, b) for a in left for b in right})

    def _is_float_input(self, value: Arg | None, before: int) -> bool:
        if not isinstance(value, Tensor) or value.dtype not in FLOATS:
            return False
        made = self._writer(value, before)
        if made is not None and made.packet == "aten::_to_copy":
            return self._is_float_input(made.args["self"], made.index)
        return made is None and self._storages.filed_as(value.storage)[0] == "input"

    def _chosen(self, name: str, op: Op) -> _Values:
        mask, true, false = _CHOOSING[name]
        by = op.args.get(mask)
        if isinstance(by, list):  # of `x[mask] = value` the mask, not numbers of places
            by = by[0] if len(by) == 1 and isinstance(by[0], Tensor) and by[0].dtype == "bool" else None
        wanted = self._operand(by, op.index) or {True, False}
        ways = [self._operand(op.args.get(true if way else false), op.index) for way in {bool(one) for one in wanted}]
        made = self._writer(by, op.index) if isinstance(by, Tensor) else None
        if made is not None and made.packet == "aten::_to_copy" and made.args["self"] == op.args.get(false):
            # `x.masked_fill(x.bool(), value)`: of x itself only zeros are left
            ways = [frozenset({0}), self._operand(op.args.get(true), op.index)]
        return _few(frozenset[_Number]().union(*ways)) if all(ways) else _ANY

    def _operand(self, value: Arg | None, before: int) -> _Values:
        if isinstance(value, Tensor):
            return self._values(value, before)
        number = _number(value)
        return _ANY if number is None else frozenset({number})

    def _writer(self, tensor: Tensor, before: int) -> Op | None:
        """The last op that wrote to the tensor's storage."""
        for op in self._ops[self._looked_at :]:
            for output in op.outputs if op.kind != "view" else ():
                self._writers.setdefault(output.storage, []).append(op.index)
        self._looked_at = len(self._ops)
        writers = self._writers.get(tensor.storage, ())
        place = bisect_left(writers, before)
        return self._ops[writers[place - 1]] if place else None

    def _is_whole(self, op: Op) -> bool:
        """Does an op in place write all of the storage?"""
        written = op.outputs[0]
        return written.nbytes == self._storages.nbytes_of(written.storage)


def _few(values: set[_Number] | _Values) -> _Values:
    return frozenset(values) if len(values) <= _MOST else _ANY


def _number(value: object) -> _Number | None:
    if isinstance(value, str) and value in ("inf", "-inf"):
        return float(value)
    return value if isinstance(value, (bool, int, float)) else None


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8) and not _has_data(index)


def _has_data(tensor: torch.Tensor) -> bool:
    return not tensor.is_meta and type(tensor) in (torch.Tensor, torch.nn.Parameter)
