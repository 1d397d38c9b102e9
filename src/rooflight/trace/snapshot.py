"""Save what code can reach, and restore it.

A walk starts at a function with its arguments, at a model, an optimizer or a running frame. It follows closures, global
names in the code, defaults, attributes, slots and items. Each object registers its restorer when the walk meets it.
Classes and modules of libraries are not followed: they lead everywhere.
"""

from __future__ import annotations

import array
import copy
import functools
import logging
import random
import re
import sys
import threading
import types
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn

from rooflight.ledger import Note
from rooflight.trace.restoring import (
    ABSENT,
    DEFINITIONS,
    STATE,
    Restorer,
    clear_cache,
    contents,
    generator_state,
    holds_tensors,
    kind_of,
    refill,
    set_attributes,
    set_cell,
    set_class,
    set_class_attributes,
    set_filters,
    set_global,
    set_settings,
    set_slot,
    set_tensor_attributes,
    settings,
    tensor_attributes,
)

_MOST_OBJECTS = 200_000
"""A program may hold a data set in memory; the walk meets its models well before that."""
_TOO_MANY = Note(
    "too-many-objects",
    "the step reaches more objects than are looked at: what it changes in the others is not put back",
)
_MOST_ARRAY_BYTES = 2**26
"""A larger numpy array is a data set, which a step only reads."""
_ATOMS = (
    type(ABSENT),
    type(None),
    str,
    bytes,
    int,
    float,
    complex,
    bool,
    range,
    types.BuiltinFunctionType,
    Path,
    logging.Logger,
    logging.Handler,
    threading.Thread,
    torch.device,
    torch.dtype,
    torch.Size,
    torch.UntypedStorage,
    *weakref.ProxyTypes,
)
_DATA = (torch.utils.data.DataLoader, torch.utils.data.Dataset)
"""The walk saves their attributes and stops: a data set may fill the memory."""
_OF_MODULES = (torch.Tensor, torch.optim.Optimizer, tuple)
_CACHE = type(functools.cache(lambda: None))
_LIBRARIES = (
    "site-packages",
    "dist-packages",
    str(Path(torch.__file__).parent),
    str(Path(threading.__file__).parent),
    str(Path(__file__).parents[1]),
)


# --- the walk --------------------------------------------------------------------------------------------------------


class Snapshot:
    """What code can reach, as it is now: Python's state. Values of tensors are saved elsewhere."""

    def __init__(
        self,
        *roots: tuple[str, object],
        saves: bool = True,
        on_data: bool = True,
        modules_only: bool = False,
        but_tensors: bool = False,
    ) -> None:
        """`saves=False` only finds models and tensors. `on_data`: results in caches of `functools` are real and stay.

        `modules_only`: the walk does not leave modules, optimizers and containers. `but_tensors`: attributes that hold
        tensors are left out, apart from parameters and buffers. Saving them would keep the memory of a result that a
        model holds until the next one.
        """
        self.modules: dict[str, nn.Module] = {}
        """Models that are part of no other, by the name the code has for them."""
        self.optimizers: list[torch.optim.Optimizer] = []
        self.tensors: list[torch.Tensor] = []
        """All but the parameters and buffers of modules, unless something else holds those too."""
        self.containers: list[Any] = []
        self.once: list[str] = []
        """Names of iterators: what they gave cannot be taken back."""
        self.notes: list[Note] = []
        self._saves, self._on_data, self._modules_only, self._but_tensors = saves, on_data, modules_only, but_tensors
        self._found: list[tuple[str, nn.Module]] = []
        self._state: list[Restorer] = []
        """Parameters and buffers are restored first: the rest can be made again."""
        self._others: list[Restorer] = []
        self._seen: dict[int, Any] = {}
        self._owned = False
        """Does a module or a class lead to what is visited? An iterator there is a leftover of a trainer."""
        self._queue: deque[tuple[str, Any, bool]] = deque((*root, False) for root in roots)
        self._walk()

    @classmethod
    def of_call(
        cls,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *more: tuple[str, object],
        **options: bool,
    ) -> Snapshot:
        """`more`: further roots."""
        names = _parameter_names(function)
        given = [(names[place] if place < len(names) else "", value) for place, value in enumerate(args)]
        return cls(("", function), *given, *kwargs.items(), *more, **options)

    @classmethod
    def of_frame(cls, frame: FrameType) -> Snapshot:
        """Find the models of a running program by its names for them."""
        names = [*frame.f_locals.items(), *frame.f_globals.items()]
        return cls(*(item for item in names if not item[0].startswith("__")), saves=False)

    @property
    def restorers(self) -> list[Restorer]:
        return [*self._state, *self._others]

    @property
    def device(self) -> torch.device:
        """A GPU if any tensor is on one; meta if all are."""
        in_modules = (tensor for model in self.modules.values() for tensor in (*model.parameters(), *model.buffers()))
        places = {tensor.device for tensor in (*in_modules, *self.tensors)}
        on_gpus = sorted((place for place in places if place.type == "cuda"), key=lambda place: place.index or 0)
        if on_gpus:
            return on_gpus[0]
        return torch.device("meta" if {place.type for place in places} == {"meta"} else "cpu")

    def _walk(self) -> None:
        self._save("a setting of torch", set_settings, settings())
        self._save("the filters of warnings", set_filters, tuple(warnings.filters))
        while self._queue:
            if len(self._seen) >= _MOST_OBJECTS:
                self.notes.append(_TOO_MANY)
                break
            name, value, owned = self._queue.popleft()
            if issubclass(type(value), _ATOMS) or id(value) in self._seen:
                continue
            self._seen[id(value)] = value
            self._owned = owned or issubclass(type(value), (nn.Module, type))
            if issubclass(type(value), nn.Module):
                self._model(name, value)
            else:
                with suppress(Exception):  # an object that raises when it is looked at is not followed
                    self._visit(name, value)
        children = {id(child) for _, module in self._found for child in module._modules.values()}
        for name, module in self._found:
            if id(module) not in children:
                self.modules[_unused(name or snake_case(type(module).__name__), self.modules)] = module

    def _follow(self, *items: tuple[str, Any]) -> None:
        self._queue.extend((*item, self._owned) for item in items)

    def _visit(self, name: str, value: Any) -> None:
        kind = type(value)  # a mock claims to be an instance of whatever it replaces
        if self._modules_only and not issubclass(kind, _OF_MODULES) and kind_of(value) is None:
            return
        if issubclass(kind, torch.Tensor):
            self._tensor(value)
            self.tensors.append(value)
        elif issubclass(kind, torch.optim.Optimizer):
            self.optimizers.append(value)
            self._attributes(value)
        elif issubclass(kind, _DATA):
            self._container("an attribute", value.__dict__)
        elif issubclass(kind, (torch.Generator, random.Random)) or _is_of_numpy(value, "Generator", "RandomState"):
            self._save("a random generator", *generator_state(value))
        elif issubclass(kind, tuple):
            self._members(name, tuple(tuple.__iter__(value)))
        elif kind_of(value) is not None:
            self._container(name, value)
            self._items(name, value)
        elif issubclass(kind, functools.partial):
            self._follow((name, value.func), ("", value.args), ("", value.keywords))
        elif issubclass(kind, types.MethodType):
            self._follow((name, value.__self__), (name, value.__func__))
        elif issubclass(kind, types.FunctionType):
            self._function(value)
        elif issubclass(kind, _CACHE):
            if not self._on_data:
                self._save("a cache", clear_cache, value, value.cache_info().misses)
            self._follow((name, value.__wrapped__))
        elif issubclass(kind, (type, types.ModuleType)):
            self._definition(value)
        elif issubclass(kind, (bytearray, array.array)) or _is_of_numpy(value, "ndarray"):
            self._buffer(value)
        elif hasattr(kind, "__next__"):
            if issubclass(kind, types.GeneratorType) and value.gi_frame is not None:
                self._follow(*value.gi_frame.f_locals.items())
            if not self._owned:
                self.once.append(name or kind.__name__)
        else:
            self._attributes(value)

    def _save(self, name: str, restorer: Callable[..., object], *args: Any) -> None:
        if self._saves:
            self._others.append((name, partial(restorer, *args)))

    # --- containers and attributes

    def _container(self, name: str, value: Any) -> None:
        self.containers.append(value)
        self._save(name or "a container", refill, value, contents(value))

    def _items(self, name: str, value: Any) -> None:
        if issubclass(type(value), dict):
            self._follow(*((key if isinstance(key, str) else name, held) for key, held in contents(value)))
        else:
            self._members(name, contents(value))

    def _members(self, name: str, held: tuple[Any, ...]) -> None:
        several = len(held) > 1
        self._follow(*((f"{name}.{place}" if several else name, member) for place, member in enumerate(held)))

    def _attributes(self, value: Any) -> None:
        attributes = _value(partial(object.__getattribute__, value, "__dict__"))  # past a __getattr__
        if isinstance(attributes, dict):
            self._seen[id(attributes)] = attributes
            self._container("an attribute", attributes)
            self._items("", attributes)
        self._slots(value)

    def _slots(self, value: Any) -> None:
        for kind in type(value).__mro__:
            for key, descriptor in tuple(vars(kind).items()) if "__slots__" in vars(kind) else ():
                if isinstance(descriptor, types.MemberDescriptorType):
                    held = _value(partial(descriptor.__get__, value))
                    self._save(f"the slot {key}", set_slot, descriptor, value, held)
                    self._follow((key, held))
        self._follow(("", type(value)))  # for the names in its code

    def _model(self, name: str, model: nn.Module) -> None:
        """All modules of it at once: however much the walk still finds, no parameter may be missed."""
        for module in model.modules():
            if module is not model and id(module) in self._seen:
                continue
            self._seen[id(module)] = module
            self._found.append((name, module))
            for state in (module._parameters, module._buffers):
                if kind_of(state) is not None:  # of a scripted module it is a view into C++
                    self._seen[id(state)] = state
                    self._state.append(("parameters and buffers", partial(refill, state, contents(state))))
            with suppress(Exception):
                self._module(module)

    def _module(self, module: nn.Module) -> None:
        self._save("the class of a module", set_class, module, type(module))
        attributes = contents(module.__dict__)
        if self._but_tensors:
            attributes = tuple(item for item in attributes if item[0] in STATE or not holds_tensors(item[1]))
        self.containers.append(module.__dict__)
        kind = type(module).__name__
        self._save(f"the attributes of a {kind}", set_attributes, module, attributes, self._but_tensors)
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None:
                self._tensor(tensor)
        for key, held in attributes:
            if issubclass(type(held), _ATOMS) or id(held) in self._seen:
                continue
            if kind_of(held) is None:
                self._follow((key, held))
                continue
            self._seen[id(held)] = held
            self._container(f"{kind}.{key}", held)
            self._items(key, held)
        self._slots(module)

    def _tensor(self, tensor: torch.Tensor) -> None:
        """What the program has set on it, and what its hooks hold."""
        if self._modules_only or id(tensor.__dict__) in self._seen:
            return
        saved = tensor_attributes(tensor)
        self._seen[id(tensor.__dict__)] = tensor.__dict__
        self.containers.append(tensor.__dict__)
        self._save("an attribute or hook of a tensor", set_tensor_attributes, tensor, saved)
        self._follow(*((str(name), held) for _, items in saved for name, held in items))

    def _buffer(self, value: Any) -> None:
        if not self._saves:
            return
        of_numpy = not isinstance(value, (bytearray, array.array))
        size = value.nbytes if of_numpy else len(value) * getattr(value, "itemsize", 1)
        if size <= _MOST_ARRAY_BYTES and (not of_numpy or value.flags.writeable):
            self._save("an array", value.__setitem__, ... if of_numpy else slice(None), copy.copy(value))

    # --- code

    def _definition(self, owner: Any) -> None:
        """A class or a module of the program."""
        if not _is_the_programs(owner):
            return
        self._save("the attributes of a class", set_class_attributes, owner, dict(vars(owner)))
        if isinstance(owner, type):
            self._follow(*(("", base) for base in owner.__mro__[1:]))
        for key, held in tuple(vars(owner).items()):
            plain = _function_of(held)
            if isinstance(owner, type) or not isinstance(plain, DEFINITIONS):
                self._follow((key, plain))

    def _function(self, function: types.FunctionType) -> None:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            held = _value(partial(getattr, cell, "cell_contents"))
            self._save(f"the variable {name}", set_cell, cell, held)
            self._follow((name, held))
        self._follow(*(("", value) for value in function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items())
        if any(part in function.__code__.co_filename for part in _LIBRARIES):
            return
        self._follow(("", function.__dict__))
        for name in sorted(set(_names(function.__code__))):
            value = function.__globals__.get(name, ABSENT)
            self._save(f"the name {name}", set_global, function.__globals__, name, value)
            self._follow((name, value))


# --- names and code --------------------------------------------------------------------------------------------------


def _value(get: Callable[[], Any]) -> Any:
    try:
        return get()
    except (AttributeError, ValueError):  # not set yet
        return ABSENT


def _function_of(held: object) -> object:
    """The function behind a class's attribute, found by its type: asking the object may run its own code."""
    if isinstance(held, (staticmethod, classmethod, types.MethodType)):
        return held.__func__
    return held.fget if isinstance(held, property) else held


def _is_the_programs(owner: Any) -> bool:
    """Whether a class or a module is written in the program, and not in a library."""
    module = sys.modules.get(str(owner.__module__)) if isinstance(owner, type) else owner
    if module is None:
        return False
    file = vars(module).get("__file__")
    if file is None:  # built in; or typed in, or made by hand
        return module.__name__ == "__main__" or vars(module).get("__spec__") is None
    return not any(part in str(file) for part in _LIBRARIES)


def _names(code: CodeType) -> Iterator[str]:
    """Global names in the code and in the functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _parameter_names(function: Any) -> tuple[str, ...]:
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if code is None:
        return ()
    names: tuple[str, ...] = code.co_varnames[: code.co_argcount]
    return names[1:] if isinstance(function, types.MethodType) else names


def _is_of_numpy(value: object, *names: str) -> bool:
    """Without importing numpy, which a program need not have."""
    return type(value).__name__ in names and type(value).__module__.partition(".")[0] == "numpy"


def _unused(name: str, taken: Mapping[str, Any]) -> str:
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}{number}"
    return free


def snake_case(name: str) -> str:
    """`ResNet` is `resnet`, `TextEncoder` is `text_encoder`."""
    words = re.findall(r"[A-Z]+[^A-Z]*|[^A-Z]+", name)
    return "_".join(words).lower() if all(len(word) > 3 for word in words) else name.lower()
