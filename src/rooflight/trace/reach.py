"""What a piece of somebody's program can get at: its modules with the names they go by, its optimizers, and whatever
else it may change.

A function reaches what its closure, the global names in its code, its defaults and its arguments hold, and what those
hold in turn; an object also what the code of its class has names for. Nothing has to be declared; what is not found
here is found when it is called.
"""

from __future__ import annotations

import functools
import logging
import random
import sys
import threading
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn

from rooflight.trace.containers import contents


class _Absent:
    """Nothing has the name yet."""


ABSENT = _Absent()
_MOST = 200_000
"""Objects that are looked at. A program may hold a data set in memory; its models come well before that."""
_LEFT_ALONE = (
    _Absent,
    logging.Logger,
    logging.Handler,
    threading.Thread,
    Path,
    str,
    bytes,
    bytearray,
    int,
    float,
    complex,
    bool,
    range,
    types.BuiltinFunctionType,
    torch.device,
    torch.dtype,
    torch.Size,
    torch.UntypedStorage,
    *weakref.ProxyTypes,
)
_CONTAINERS = (dict, list, set, deque)
_DATA = (torch.utils.data.DataLoader, torch.utils.data.Dataset)
"""Of these only the attributes are kept, not what those hold: a data set may be all of the memory."""
_STATE = ("_parameters", "_buffers")
_CACHE = type(functools.cache(lambda: None))
_LIBRARIES = (
    "site-packages",
    "dist-packages",
    str(Path(torch.__file__).parent),
    str(Path(threading.__file__).parent),
    str(Path(__file__).parents[1]),
)


class Reach:
    """All that can be reached from a function with its arguments, or from a place in a running program."""

    def __init__(self) -> None:
        self.modules: dict[str, nn.Module] = {}
        """Those that are part of no other, by the name they go by."""
        self.optimizers: list[torch.optim.Optimizer] = []
        self.tensors: list[torch.Tensor] = []
        """Outside of modules and optimizers too."""
        self.holders: list[Any] = []
        """Containers, and the attributes of objects."""
        self.names: list[tuple[dict[str, Any], str, Any]] = []
        """Global names that the code uses, where they are, and what they stand for: `ABSENT` if nothing yet."""
        self.cells: list[tuple[types.CellType, Any]] = []
        """Variables of functions around; what is in them may be `ABSENT` too."""
        self.slots: list[tuple[Any, Any, Any]] = []
        """Descriptors, the objects they belong to, and what they give."""
        self.owners: list[Any] = []
        """Classes and modules of the program, whose attributes are its variables."""
        self.arrays: list[Any] = []
        """Of numpy."""
        self.caches: list[Any] = []
        """Of `functools`."""
        self.generators: list[Any] = []
        """Of torch, Python and numpy."""
        self.once: list[str] = []
        """What gives something else each time, and cannot be taken back."""
        self._found: list[tuple[str, nn.Module]] = []
        self._seen: dict[int, Any] = {}
        self._left: deque[tuple[str, Any]] = deque()
        self.ended_early = False
        """Was there more than is looked at?"""
        self._aside: set[int] = set()
        """What is reached through a module or a class alone: an iterator there is what a trainer has left behind."""

    @classmethod
    def of_call(cls, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Reach:
        reach = cls()
        reach._left.append(("", function))
        names = _parameter_names(function)
        reach._left.extend((names[place] if place < len(names) else "", value) for place, value in enumerate(args))
        reach._left.extend(kwargs.items())
        return reach._walk()

    @classmethod
    def of(cls, value: object) -> Reach:
        """All that a model or an optimizer holds."""
        reach = cls()
        reach._left.append(("", value))
        return reach._walk()

    @classmethod
    def of_frame(cls, frame: FrameType) -> Reach:
        """What the code that runs there has names for: of interest are what its modules are called."""
        reach = cls()
        reach._left.extend((name, value) for name, value in frame.f_locals.items() if not name.startswith("__"))
        reach._left.extend((name, value) for name, value in frame.f_globals.items() if not name.startswith("__"))
        return reach._walk()

    def look_again(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """A run may have put other objects in the place of some; models and optimizers keep their names."""
        now = Reach.of_call(function, args, kwargs)
        self.tensors, self.holders, self.generators = now.tensors, now.holders, now.generators
        self.names, self.cells, self.slots = now.names, now.cells, now.slots
        self.owners, self.arrays, self.caches = now.owners, now.arrays, now.caches

    @property
    def device(self) -> torch.device:
        """Where its tensors are: on a GPU if any is; on meta if all are."""
        in_modules = (tensor for model in self.modules.values() for tensor in (*model.parameters(), *model.buffers()))
        places = {tensor.device for tensor in (*in_modules, *self.tensors)}
        on_gpus = sorted((place for place in places if place.type == "cuda"), key=lambda place: place.index or 0)
        if on_gpus:
            return on_gpus[0]
        return torch.device("meta" if {place.type for place in places} == {"meta"} else "cpu")

    def _walk(self) -> Reach:
        while self._left:
            if len(self._seen) >= _MOST:
                self.ended_early = True
                break
            name, value = self._left.popleft()
            if value is None or isinstance(value, _LEFT_ALONE) or id(value) in self._seen:
                continue
            self._seen[id(value)] = value
            known = len(self._left)
            self._look_at(name, value)
            if isinstance(value, (nn.Module, type)) or id(value) in self._aside:
                self._aside.update(id(held) for _, held in islice(self._left, known, None))
        inner = {id(child) for _, module in self._found for child in module._modules.values()}
        for name, module in self._found:
            if id(module) not in inner:
                self.modules[_unused(name or snake_case(type(module).__name__), self.modules)] = module
        return self

    def _look_at(self, name: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            self.tensors.append(value)
            self._attributes_of_tensor(value)
        elif isinstance(value, nn.Module):
            self._found.append((name, value))
            self._attributes(name, value, but=_STATE)
            for held in (*value._parameters.values(), *value._buffers.values()):
                if held is not None:
                    self._attributes_of_tensor(held)
        elif isinstance(value, torch.optim.Optimizer):
            self.optimizers.append(value)
            self._attributes(name, value)
        elif isinstance(value, _DATA):
            self.holders.append(value.__dict__)
        elif isinstance(value, (torch.Generator, random.Random)) or _is_of_numpy(value, "Generator", "RandomState"):
            self.generators.append(value)
        elif issubclass(type(value), (*_CONTAINERS, tuple)):  # a mock calls itself whatever it stands for
            self._members(name, value)
        elif isinstance(value, functools.partial):
            self._left.extend(((name, value.func), ("", value.args), ("", value.keywords)))
        elif isinstance(value, types.MethodType):
            self._left.extend(((name, value.__self__), (name, value.__func__)))
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, _CACHE):
            self.caches.append(value)
            self._left.append((name, value.__wrapped__))
        elif isinstance(value, (type, types.ModuleType)):
            self._owner(value)
        elif _is_of_numpy(value, "ndarray"):
            self.arrays.append(value)
        elif hasattr(type(value), "__next__"):
            if id(value) not in self._aside:
                self.once.append(name or type(value).__name__)
        else:
            self._attributes(name, value)

    def _attributes(self, name: str, value: Any, but: tuple[str, ...] = ()) -> None:
        attributes = _held(
            partial(object.__getattribute__, value, "__dict__")
        )  # past a __getattr__ that makes things up
        if isinstance(attributes, dict):
            self.holders.append(attributes)
            self._seen[id(attributes)] = attributes
            items = [(key, held) for key, held in tuple(dict.items(attributes)) if key not in but]
            self._left.extend(filter(_may_hold, items) if isinstance(value, nn.Module) else items)
        for kind in type(value).__mro__:
            for key, descriptor in tuple(vars(kind).items()) if "__slots__" in vars(kind) else ():
                if isinstance(descriptor, types.MemberDescriptorType):
                    held = _held(partial(descriptor.__get__, value))
                    self.slots.append((descriptor, value, held))
                    self._left.append((key, held))
        self._left.append(("", type(value)))  # its code, and what it has names for

    def _attributes_of_tensor(self, tensor: torch.Tensor) -> None:
        """What the program has hung on it."""
        if id(tensor.__dict__) not in self._seen:
            self._seen[id(tensor.__dict__)] = tensor.__dict__
            self.holders.append(tensor.__dict__)
            self._left.extend(tensor.__dict__.items())

    def _owner(self, owner: Any) -> None:
        """A class or a module. Those of libraries are left alone: they reach everything."""
        if not _is_the_programs(owner):
            return
        self.owners.append(owner)
        if isinstance(owner, type):
            self._left.extend(("", base) for base in owner.__mro__[1:])
        for key, held in tuple(vars(owner).items()):
            plain = _function_of(held)
            if isinstance(owner, type) or not isinstance(plain, (type, types.ModuleType, types.FunctionType)):
                self._left.append((key, plain))

    def _members(self, name: str, value: Any) -> None:
        """Past the methods of a subclass, which may do anything."""
        if isinstance(value, tuple):
            held = tuple(tuple.__iter__(value))
        else:
            self.holders.append(value)
            held = contents(value)
        if isinstance(value, dict):
            self._left.extend((key if isinstance(key, str) else name, member) for key, member in held)
        else:
            several = len(held) > 1
            self._left.extend((f"{name}.{place}" if several else name, member) for place, member in enumerate(held))

    def _function(self, function: types.FunctionType) -> None:
        """A library's own functions are left alone: their names reach everything the library has."""
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            held = _held(partial(getattr, cell, "cell_contents"))
            self.cells.append((cell, held))
            self._left.append((name, held))
        self._left.extend(("", value) for value in function.__defaults__ or ())
        self._left.extend((function.__kwdefaults__ or {}).items())
        if any(part in function.__code__.co_filename for part in _LIBRARIES):
            return
        self._left.append(("", function.__dict__))
        for name in sorted(set(_names(function.__code__))):
            value = function.__globals__.get(name, ABSENT)
            self.names.append((function.__globals__, name, value))
            self._left.append((name, value))


def _held(get: Callable[[], Any]) -> Any:
    try:
        return get()
    except (AttributeError, ValueError):  # not filled yet
        return ABSENT


def _function_of(held: object) -> object:
    """What a class's attribute runs. By its kind: asking any object for a name may run code of its own."""
    if isinstance(held, (staticmethod, classmethod, types.MethodType)):
        return held.__func__
    return held.fget if isinstance(held, property) else held


def _may_hold(item: tuple[str, object]) -> bool:
    """Of the many attributes of a module most are numbers, and hooks that nobody has set."""
    value = item[1]
    return value is not None and not isinstance(value, _LEFT_ALONE) and not (type(value) in _EMPTY and not value)


_EMPTY = (dict, OrderedDict, list, tuple, set)


def _is_the_programs(owner: Any) -> bool:
    """Is it written in the program, and not in a library?"""
    module = sys.modules.get(str(owner.__module__)) if isinstance(owner, type) else owner
    if module is None:
        return False
    file = vars(module).get("__file__")
    if file is None:  # built in; or typed in, or made by hand
        return module.__name__ == "__main__" or vars(module).get("__spec__") is None
    return not any(part in str(file) for part in _LIBRARIES)


def _names(code: CodeType) -> Iterator[str]:
    """Global names in the code and in the functions written inside it."""
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
    """Without numpy, which a program need not have."""
    return type(value).__name__ in names and type(value).__module__.partition(".")[0] == "numpy"


def _unused(name: str, taken: Mapping[str, Any]) -> str:
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}{number}"
    return free


def snake_case(name: str) -> str:
    """`ResNet` is `resnet`, `TextEncoder` is `text_encoder`."""
    words = ["".join(word) for word in _words(name)]
    return "_".join(words).lower() if all(len(word) > 3 for word in words) else name.lower()


def _words(name: str) -> Iterator[list[str]]:
    word: list[str] = []
    for letter in name:
        if letter.isupper() and word and not word[-1].isupper():
            yield word
            word = []
        word.append(letter)
    if word:
        yield word
