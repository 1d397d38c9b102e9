"""Tensors without data in the place of a program's real ones, taken at the moment they are used.

Somebody's step works on live tensors that cannot all be replaced beforehand: they lie in closures, lists and
optimizers. So each real tensor that an op gets is exchanged for a fake one of the same form and device, and what the op
gives is fake: nothing is written into what is real, no memory is taken, no work is done.

Values are followed as far as they are small and known (the step count of an optimizer, lengths, masks, a coin that is
tossed): what the program asks of them is answered, and shapes that they decide are right. Of what it asks of anything
else it is only said that it is unknown.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils.weak import WeakIdKeyDictionary

from rooflight.errors import TraceFailed
from rooflight.ledger import Note
from rooflight.trace.assumed_values import UNKNOWN
from rooflight.trace.interception import modes_off
from rooflight.trace.leftovers import Leftovers
from rooflight.trace.python_line import python_line
from rooflight.trace.replacements import replaced
from rooflight.trace.shape_cache import FakeShapeCache, tensors_of
from rooflight.trace.sparse_tensors import is_sparse, without_data
from rooflight.trace.storages import storage_address

_MOST, _MOST_INTEGERS = 2**12, 2**20
"""Elements of a tensor whose values are followed: whole numbers and truths decide shapes, and are few."""
_KEEPS_VALUES = {"aten::_amp_foreach_non_finite_check_and_unscale_"}
"""Write into a small tensor what they find in large ones: that nothing is infinite, as is usual."""
_VALUE = "_rooflight_value"
aten = torch.ops.aten
_INDEXING = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default}
_DECIDED_BY_VALUES = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
_DATA: Any = torch._C.TensorBase.__dict__["data"]


class _FakeMode(FakeTensorMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # compiled code runs eagerly while it is watched: there is nothing to keep off

    def __reduce__(self) -> Any:
        """Every fake tensor holds it: what pickles one comes here."""
        raise TraceFailed(
            "pickled-tensor",
            f"{python_line()}: the step pickles a tensor, and a trace without data has nothing to write: copy it with "
            "copy.deepcopy, or run the step once on its own data with --real-data",
        )


class StandIns:
    """The fake tensors of one trace, by the real ones that they stand for."""

    def __init__(self, kernels: Mapping[Any, Callable[..., Any]]) -> None:
        """`kernels` run in the place of an operator's own shape function."""
        self.mode = _FakeMode(allow_non_fake_inputs=True)
        self._shapes = FakeShapeCache(self.mode, kernels)
        self._leftovers = Leftovers(self.mode)
        self._twins: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._elsewhere: WeakIdKeyDictionary = WeakIdKeyDictionary()
        """Real tensors whose `data` the program has set, and what they hold now."""
        self._storages: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        """By the address of the real one, which is held so that the address stays its own."""
        self._copies: dict[int, torch.UntypedStorage] = {}
        """What real storages hold, on the host, by their addresses: several tensors may look at one."""
        self._written: set[int] = set()
        """Storages of twins that the step has written into: the real ones hold what was there before."""
        self._changed: dict[int, torch.Tensor] = {}
        """Values that something unknown was written into, by where they lie."""

    def exchanged(self, value: Any) -> Any:
        """With fake tensors for all real ones."""
        if isinstance(value, torch.Tensor):
            return value if type(value) is FakeTensor else self.twin(value)
        if isinstance(value, (tuple, list)):
            made = [self.exchanged(held) for held in value]
            return made if isinstance(value, list) else tuple(made)
        return {key: self.exchanged(held) for key, held in value.items()} if isinstance(value, dict) else value

    def knows(self, tensor: torch.Tensor) -> bool:
        """Is it part of the trace?"""
        return isinstance(tensor, FakeTensor) or tensor in self._twins

    def twin(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, FakeTensor):
            return tensor
        found: torch.Tensor | None = self._twins.get(tensor)
        if found is None:
            found = self._made(tensor)
            self._twins[tensor] = found
        return found

    def _made(self, tensor: torch.Tensor) -> torch.Tensor:
        if is_sparse(tensor):
            with modes_off():
                return self._fake(without_data(tensor, self._form_of), tensor.device)
        if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
            kind = "nested" if tensor.is_nested else "quantized" if tensor.is_quantized else str(tensor.layout)[6:]
            raise TraceFailed(
                "unsupported-tensor", f"the step uses a {kind} tensor, which cannot be followed: use dense ones"
            )
        with modes_off():
            twin = self._fake(self._form_of(tensor), tensor.device)
            address, real = storage_address(tensor), tensor.untyped_storage()
            if not tensor.is_meta and _may_be_followed(tensor):
                if real.nbytes() <= 8 * _MOST_INTEGERS and address not in self._copies:
                    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(real)
                    self._copies[address] = whole.cpu().clone().untyped_storage()
                kept = self._copies.get(address)
                value = tensor.detach().cpu().clone() if kept is None else _form(tensor, kept)
                setattr(twin, _VALUE, value)
        return twin

    def _form_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor on meta like the real one, and in the same storage as others of the same storage."""
        address, real = storage_address(tensor), tensor.untyped_storage()
        if address not in self._storages:
            self._storages[address] = real, _nothing(real.nbytes())
        return _form(tensor, self._storages[address][1])

    def _fake(self, form: torch.Tensor, device: torch.device) -> torch.Tensor:
        with modes_off():
            return self._shapes.fake(form, device)

    def _of_value(self, value: torch.Tensor, device: torch.device) -> torch.Tensor:
        """A fake tensor of which all is known."""
        form = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        fake = self._fake(form, device)
        setattr(fake, _VALUE, value)
        return fake

    def leftovers(self) -> Note | None:
        """When the trace is over: what the program still holds of it."""
        held_here = self._twins, self._elsewhere, self._storages, self._copies, self._changed, self._written
        for held in (*held_here, self._shapes.patterns):
            held.clear()
        return self._leftovers.note()

    # What is no op.

    @contextmanager
    def data_followed(self) -> Iterator[None]:
        """What the program sets as the data of a real tensor is its twin's: the real one keeps what it has. Copies are
        fake, and a real tensor is never swapped with a fake one."""

        def get(tensor: torch.Tensor) -> torch.Tensor:
            held = self._elsewhere.get(tensor)
            return _DATA.__get__(tensor) if held is None else self._alias(held)

        def set_(tensor: torch.Tensor, other: torch.Tensor) -> None:
            if isinstance(tensor, FakeTensor):
                _DATA.__set__(tensor, self.twin(other))
                setattr(tensor, _VALUE, getattr(self.twin(other), _VALUE, None))
                return
            if tensor.shape != other.shape or tensor.dtype != other.dtype:
                raise TraceFailed(
                    "unsupported-tensor",
                    "the step sets data of another form, which cannot be followed: make a new tensor",
                )
            self._elsewhere[tensor] = self._twins[tensor] = self._alias(self.twin(other))

        with (
            replaced(torch.Tensor, "data", property(get, set_)),
            replaced(torch.Tensor, "__deepcopy__", _deep_copied),
            replaced(torch.utils, "swap_tensors", _swapped),
            replaced(torch._tensor, "_convert", _of_no_class),
        ):
            yield

    def _alias(self, twin: torch.Tensor) -> torch.Tensor:
        with modes_off():
            alias = self._fake(_form(twin, twin.untyped_storage()), twin.device)
        setattr(alias, _VALUE, getattr(twin, _VALUE, None))
        return alias

    # Ops.

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the operator gives, or `UNKNOWN` where values decide that are not known; `args` have been exchanged."""
        tensors = tensors_of(args, kwargs)
        values = [self._value(tensor) for tensor in tensors]
        known = all(value is not None for value in values)
        if func is aten._local_scalar_dense.default:
            return values[0].item() if values[0] is not None else UNKNOWN
        if func is aten._pack_padded_sequence.default:
            return self._packed(*args)
        if func in _INDEXING:
            args = (args[0], self._places(args[1]), *args[2:])
            if any(map(_is_mask, args[1])):
                return UNKNOWN
        elif _is_decided_by_values(func):
            return self._computed(func, args, kwargs, values) if known else UNKNOWN
        result = self._shapes.run(func, args, kwargs)
        written = _written(func, args, kwargs)
        self._written.update(map(storage_address, written))
        given = [leaf for leaf in _leaves(result) if isinstance(leaf, torch.Tensor)]
        if known and all(_may_be_followed(tensor) for tensor in given):
            self._follow(func, args, kwargs, values, given)
        elif written and func._schema.name not in _KEEPS_VALUES:
            self._forget(written)
        return result

    def current(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """What a tensor holds at this point of the step, if that is known."""
        if not isinstance(tensor, FakeTensor):
            twin = self._twins.get(tensor)
            if twin is None or storage_address(twin) not in self._written:
                return tensor
            tensor = twin
        return self._value(tensor)

    def _value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        value: torch.Tensor | None = getattr(tensor, _VALUE, None)
        return None if value is None or storage_address(value) in self._changed else value

    def _computed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], values: list[Any]) -> Any:
        """By an operator whose result has the form that values give it."""
        device = tensors_of(args, kwargs)[0].device
        result = _with_values(func, args, kwargs, values)
        made = [self._of_value(leaf, device) if isinstance(leaf, torch.Tensor) else leaf for leaf in _leaves(result)]
        return type(result)(made) if isinstance(result, (list, tuple)) else made[0]

    def _places(self, indices: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """A mask that is known as the places that it marks."""
        places: list[torch.Tensor | None] = []
        for index in indices:
            value = self._value(index) if index is not None and _is_mask(index) else None
            if value is None or index is None:
                places.append(index)
                continue
            with modes_off():
                marked = value.nonzero(as_tuple=True)
            places += [self._of_value(place, index.device) for place in marked]
        return places

    def _packed(self, data: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> Any:
        """Torch looks into the sizes in C++, so these are real; they are on the host wherever the data is."""
        value = self._value(lengths)
        if value is None:
            return UNKNOWN
        with modes_off():
            _, sizes = aten._pack_padded_sequence(torch.zeros(*data.shape[:2], 1), value, batch_first)
            count = int(value.sum())
        with self.mode:
            return data.new_empty(count, *data.shape[2:]), sizes

    def _follow(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], values: list[Any], given: list[torch.Tensor]
    ) -> None:
        """Do it with the values too: they are few."""
        if func.namespace not in ("aten", "prims"):
            return
        try:
            results = _leaves(_with_values(func, args, kwargs, values))
        except (RuntimeError, NotImplementedError):
            return
        for tensor, value in zip(given, (leaf for leaf in results if isinstance(leaf, torch.Tensor)), strict=False):
            if tensor.shape == value.shape:
                setattr(tensor, _VALUE, value)

    def _forget(self, written: list[torch.Tensor]) -> None:
        for tensor in written:
            value = getattr(tensor, _VALUE, None)
            if value is not None:
                self._changed[storage_address(value)] = value


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The arguments that the operator writes into."""
    places = _places_written(func)
    return tensors_of(tuple(args[i] if i < len(args) else kwargs.get(name) for i, name in places), {}) if places else []


@functools.cache
def _places_written(func: Any) -> tuple[tuple[int, str], ...]:
    arguments = enumerate(func._schema.arguments)
    return tuple((place, argument.name) for place, argument in arguments if argument.is_write)


def _swapped(tensor: torch.Tensor, other: torch.Tensor) -> None:
    """How a module that has been moved to another device or type, and is fake since then, is moved again."""
    if not isinstance(tensor, FakeTensor) or not isinstance(other, FakeTensor):
        raise RuntimeError("a real tensor and one without data cannot be swapped")
    _DATA.__set__(tensor, other)
    tensor.fake_device = other.fake_device


def _of_no_class(result: Any, cls: type) -> Any:
    """Torch makes what an op gives of a tensor of a class of the program's own one of that class; a tensor without data
    has a class already."""
    return result


def _deep_copied(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    """Torch copies storages; there is none to copy from."""
    if id(tensor) not in memo:
        copied = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        copied.grad = copy.deepcopy(tensor.grad, memo)
        memo[id(tensor)] = copied
    found: torch.Tensor = memo[id(tensor)]
    return found


def _is_mask(index: torch.Tensor | None) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def _nothing(nbytes: int) -> torch.UntypedStorage:
    return torch.empty(nbytes, dtype=torch.uint8, device="meta").untyped_storage()


def _form(tensor: torch.Tensor, storage: torch.UntypedStorage) -> torch.Tensor:
    """A tensor like it in another storage."""
    form = torch.empty(0, dtype=tensor.dtype, device=storage.device)
    return form.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def _may_be_followed(tensor: torch.Tensor) -> bool:
    whole = not tensor.is_floating_point() and not tensor.is_complex()
    return tensor.numel() <= (_MOST_INTEGERS if whole else _MOST)


@functools.cache
def _is_decided_by_values(func: Any) -> bool:
    return not _DECIDED_BY_VALUES.isdisjoint(func.tags)


def _with_values(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], values: list[Any]) -> Any:
    """The same call on the host, with real tensors."""
    of_tensors = iter(values)

    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return next(of_tensors)
        if isinstance(value, (list, tuple)):
            return list(map(plain, value))
        return torch.device("cpu") if isinstance(value, torch.device) else value

    with modes_off():
        return func(*map(plain, args), **{name: plain(value) for name, value in kwargs.items()})


def _leaves(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (list, tuple)) else [result]
