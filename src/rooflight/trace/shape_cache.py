"""Remembers what operators make of given shapes, so that equal layers do not compute it again.

Working out an output's shape, strides and type without data runs Python code that takes far longer than all the rest of
a trace; a deep model asks the same question for every layer. On meta tensors only operators that neither alias nor
write their inputs are remembered, and only results that are plain fresh tensors; on fake ones also views of an
argument, and the argument itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager

from rooflight.trace.storages import span, storage_address

_UNKNOWN = object()
_MOST_RESULTS = 100_000
_Form = tuple[Any, ...]
"""What tells tensors without data apart, but for their storages."""
_Recipe = tuple[_Form | None, int | None]
"""The form of a result, and which of the arguments' tensors it lies in, if any; without a form it is that one."""


class ShapeCache:
    """Runs pure operators on meta tensors, by memory where it has one."""

    def __init__(self, *state: object) -> None:
        """`state`: what else forms depend on."""
        backends = torch.backends.cudnn.enabled, torch.backends.mkldnn.enabled
        self._results = _results_of_all_traces(torch.get_default_dtype(), backends, *state)
        if len(self._results) > _MOST_RESULTS:
            self._results.clear()

    def run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            exact = self._depends_on_numbers(func)
            key = (func, self._key(args, exact), self._key(kwargs.items(), exact) if kwargs else None)
            recipes = self._results.get(key, _UNKNOWN)
        except TypeError:  # an argument that cannot be remembered
            return self._computed(func, args, kwargs)
        if recipes is None:  # tried before: this result cannot be remembered
            return self._computed(func, args, kwargs)
        if recipes is not _UNKNOWN:
            return self._made_again(recipes, args, kwargs)
        result = self._computed(func, args, kwargs)
        new = self._results[key] = self._recipes(func, result, args, kwargs)
        # Looking at a storage leaves a reference to it behind; a fresh result has none.
        return result if new is None else self._made_again(new, args, kwargs)

    def _computed(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return func(*args, **kwargs)

    def _depends_on_numbers(self, func: Any) -> bool:
        return True

    def _key(self, values: Any, exact: bool) -> tuple[Any, ...]:
        """What the result depends on. A tensor counts by its form, not by its identity; a number by its type, unless
        `exact`."""
        parts: list[Any] = []
        for value in values:
            if isinstance(value, torch.Tensor):
                parts.append(self._form(value))
            elif isinstance(value, (list, tuple)):
                parts.append(self._key(value, exact))
            elif isinstance(value, float) and not exact:
                parts.append(float)
            elif isinstance(value, torch.Generator):
                raise TypeError
            else:
                # 1, 1.0 and True are equal as keys but not as arguments.
                parts.append((type(value), value))
        return tuple(parts)

    def _form(self, tensor: Any) -> _Form:
        """Raises `TypeError` where a tensor is more than can be told by its form."""
        plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.is_meta
        if not plain or tensor.layout is not torch.strided:
            raise TypeError
        return tensor.shape, tensor.stride(), tensor.dtype

    def _recipes(self, func: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """How to make the result again, of one tensor or several, or `None` when that cannot be."""
        given, fresh = tensors_of(args, kwargs), set[int]()
        try:
            if isinstance(result, (list, tuple)):
                return type(result), [self._recipe(output, given, fresh) for output in result]
            return None, [self._recipe(result, given, fresh)]
        except TypeError:
            return None

    def _recipe(self, output: Any, given: list[torch.Tensor], fresh: set[int]) -> _Recipe | None:
        """`fresh`: the storages of other outputs."""
        if output is None:
            return None
        form, address = self._form(output), storage_address(output)
        owners = [place for place, tensor in enumerate(given) if storage_address(tensor) == address]
        if owners:
            place = next((place for place in owners if given[place] is output), owners[0])
            return self._shared(output, given[place]), place
        whole = output.untyped_storage().nbytes() == span(output) * output.element_size()
        if output.storage_offset() or address in fresh or not whole:
            raise TypeError
        fresh.add(address)
        return form, None

    def _shared(self, output: torch.Tensor, owner: torch.Tensor) -> _Form | None:
        raise TypeError

    def _made_again(self, recipes: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        several, outputs = recipes
        made = [None if recipe is None else self._made(recipe, args, kwargs) for recipe in outputs]
        return made[0] if several is None else several(made)

    def _made(self, recipe: _Recipe, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        form, _ = recipe
        assert form is not None
        return torch.empty_strided(form[0], form[1], dtype=form[2], device="meta")


class FakeShapeCache(ShapeCache):
    """Runs operators on fake tensors, those that write into their arguments too: there is nothing to write."""

    def __init__(self, mode: FakeTensorMode, kernels: Mapping[Any, Callable[..., Any]]) -> None:
        """`kernels` run in the place of an operator's own shape function."""
        super().__init__(id(kernels))
        mode.cache_enabled = False  # torch's own takes longer to look up than this one
        self._mode = mode
        self._kernels = kernels
        self.patterns: dict[torch.device, tuple[torch.device, dict[str, Any]]] = {}
        """By device, what a fake tensor there has for attributes; they hold the mode."""

    def fake(self, form: torch.Tensor, device: torch.device) -> FakeTensor:
        """Their own constructor works through all that it can be given, every time: it makes the first on a device, and
        the others are made alike."""
        if device not in self.patterns:
            first = FakeTensor(self._mode, form, device)
            self.patterns[device] = first.fake_device, dict(vars(first))
            return first
        where, attributes = self.patterns[device]
        fake: FakeTensor = torch.Tensor._make_subclass(
            FakeTensor, form, form.requires_grad, dispatch_device=True, device_for_backend_keys=where
        )
        if self._mode._allow_unsafe_data_ptr_access:
            torch._C._set_warn_deprecated_on_mutable_data_ptr(fake)
        else:
            torch._C._set_throw_on_mutable_data_ptr(fake)
        vars(fake).update(attributes)
        return fake

    def _computed(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self._mode:
            return self._kernels.get(func, func)(*args, **kwargs)

    def _depends_on_numbers(self, func: Any) -> bool:
        """What is written into has its form already, and an optimizer has other numbers in every step."""
        return not _is_mutable(func)

    def _form(self, tensor: Any) -> _Form:
        if type(tensor) is not FakeTensor or tensor.constant is not None or tensor.dtype.is_complex:
            raise TypeError
        if tensor.layout is not torch.strided:
            raise TypeError
        return tensor.shape, tensor.stride(), tensor.dtype, tensor.fake_device, tensor.storage_offset()

    def _recipes(self, func: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What changes the form of an argument has to do so every time."""
        if torch.Tag.inplace_view in func.tags or any(argument.is_out for argument in func._schema.arguments):
            return None
        return super()._recipes(func, result, args, kwargs)

    def _shared(self, output: torch.Tensor, owner: torch.Tensor) -> _Form | None:
        if output is owner:
            return None
        if output.dtype != owner.dtype:
            raise TypeError
        return self._form(output)

    def _made(self, recipe: _Recipe, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        form, place = recipe
        if place is None:
            assert form is not None
            return self.fake(super()._made(recipe, args, kwargs), form[3])
        owner = tensors_of(args, kwargs)[place]
        if form is None:
            return owner
        with in_kernel_invocation_manager(self._mode):
            view = torch.as_strided(owner, form[0], form[1], form[4])
        return self.fake(view, form[3])


@functools.lru_cache(maxsize=8)
def _results_of_all_traces(*state: object) -> dict[Any, Any]:
    """Shared while all else that forms depend on is the same: steps of a program are looked at again and again, models
    in more than one precision and batch."""
    return {}


@functools.cache
def _is_mutable(func: Any) -> bool:
    return bool(func._schema.is_mutable)


def tensors_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """In the order of `tree_flatten`."""
    found: list[torch.Tensor] = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += [member for member in value if isinstance(member, torch.Tensor)]
    return found
