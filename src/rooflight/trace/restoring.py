"""Restore what a step changed: containers, names, attributes, hooks, random generators, settings.

Each function takes the state that was saved, and can be called again after an interruption.
"""

from __future__ import annotations

import signal
import threading
import types
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import nn

from rooflight.errors import NotPutBack

Restorer = tuple[str, Callable[[], object]]
"""A name for errors, and a function that can be called again after an interruption."""
STATE = ("_parameters", "_buffers")
_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
DEFINITIONS = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)


class _Absent:
    """The value of a name or slot that is not set."""


ABSENT = _Absent()


def restore(restorers: Sequence[Restorer]) -> None:
    """Call every restorer, a second time if the first call fails. Raise at the end: NotPutBack, or the interruption.

    Signals are handled afterwards, so that Ctrl-C leaves nothing half restored.
    """
    failed: list[str] = []
    stop: BaseException | None = None
    with _signals_deferred():
        for name, call in restorers:
            for last in (False, True):
                try:
                    call()
                    break
                except BaseException as error:
                    stop = stop or (None if isinstance(error, Exception) else error)
                    if last:
                        failed.append(f"{name} ({' '.join(str(error).split()) or type(error).__name__})")
    if failed:
        raise NotPutBack(failed) from stop
    if stop is not None:
        raise stop


@contextmanager
def _signals_deferred() -> Iterator[None]:
    """Only the main thread handles signals."""
    pending: list[tuple[int, FrameType | None]] = []
    handlers: dict[int, Callable[..., Any]] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in signal.valid_signals():
                if callable(handler := signal.getsignal(number)):
                    handlers[number] = handler
                    signal.signal(number, lambda *received: pending.append(received))
        yield
    finally:
        for deferred, handler in reversed(handlers.items()):  # Ctrl-C's comes late
            signal.signal(deferred, handler)
        for received in pending:
            handlers[received[0]](*received)


def _fill_ordered(held: OrderedDict[Any, Any], items: Any) -> None:
    OrderedDict.clear(held)
    for key, value in items:
        OrderedDict.__setitem__(held, key, value)


def _fill(clear: Callable[[Any], None], add: Callable[[Any, Any], None], held: Any, items: Any) -> None:
    clear(held)
    add(held, items)


CONTAINERS: dict[type, tuple[Callable[[Any], Any], Callable[[Any, Any], None]]] = {
    OrderedDict: (OrderedDict.items, _fill_ordered),
    dict: (dict.items, partial(_fill, dict.clear, dict.update)),
    list: (list.__iter__, lambda held, items: list.__setitem__(held, slice(None), items)),
    set: (set.__iter__, partial(_fill, set.clear, set.update)),
    deque: (deque.__iter__, partial(_fill, deque.clear, deque.extend)),
}
"""How containers are read and filled: by the methods of the built-in type, since a subclass may refuse or count."""


def kind_of(value: object) -> type | None:
    """Asks the type: a mock claims to be an instance of whatever it replaces."""
    return next((kind for kind in CONTAINERS if issubclass(type(value), kind)), None)


def contents(container: Any) -> tuple[Any, ...]:
    """Return the items of a dict, or the elements of another container, in order."""
    kind = kind_of(container)
    assert kind is not None
    return tuple(CONTAINERS[kind][0](container))


def refill(container: Any, before: tuple[Any, ...]) -> None:
    """Put these contents into the container unless it still holds the same objects."""
    kind, now = kind_of(container), contents(container)
    assert kind is not None
    if issubclass(kind, dict):
        same = all(a is c and b is d for (a, b), (c, d) in zip(now, before, strict=False))
    else:
        same = all(a is b for a, b in zip(now, before, strict=False))
    if not same or len(now) != len(before):
        CONTAINERS[kind][1](container, before)


def holds_tensors(value: Any) -> bool:
    """Whether tensors lie in a value, however deep in tuples and containers."""
    seen: set[int] = set()
    queue = [value]
    while queue:
        item = queue.pop()
        if issubclass(type(item), torch.Tensor):
            return True
        is_tuple = issubclass(type(item), tuple)
        if id(item) not in seen and (is_tuple or kind_of(item)):
            seen.add(id(item))
            items = tuple.__iter__(item) if is_tuple else contents(item)
            queue.extend([held for _, held in items] if issubclass(type(item), dict) else items)
    return False


def set_attributes(module: nn.Module, before: tuple[Any, ...], but_tensors: bool) -> None:
    if but_tensors:
        now = contents(module.__dict__)
        left = {name: value for name, value in now if name not in STATE and holds_tensors(value)}
        before = tuple({**dict(before), **left}.items())
    refill(module.__dict__, before)


def set_global(names: dict[str, Any], name: str, value: Any) -> None:
    if value is ABSENT:
        names.pop(name, None)
    elif names.get(name) is not value:
        names[name] = value


def set_cell(cell: types.CellType, value: Any) -> None:
    if value is not ABSENT:
        cell.cell_contents = value
    elif cell != types.CellType():
        del cell.cell_contents


def set_slot(descriptor: Any, owner: Any, value: Any) -> None:
    """By the descriptor: a frozen object refuses to be set."""
    if value is not ABSENT:
        descriptor.__set__(owner, value)
    else:
        with suppress(AttributeError):  # still not set
            descriptor.__delete__(owner)


def set_class(module: nn.Module, kind: type[nn.Module]) -> None:
    """Parametrizations give a module a class of its own."""
    if type(module) is not kind:
        module.__class__ = kind


def set_class_attributes(owner: Any, attributes: dict[str, Any]) -> None:
    """Functions and classes that the step defined or imported there stay."""
    change, remove = (type.__setattr__, type.__delattr__) if isinstance(owner, type) else (setattr, delattr)
    for name, value in tuple(vars(owner).items()):
        if name not in attributes and not name.startswith("__") and not isinstance(value, DEFINITIONS):
            remove(owner, name)
    for name, value in attributes.items():
        if vars(owner).get(name, ABSENT) is not value and not name.startswith("__"):
            change(owner, name, value)


def tensor_attributes(tensor: torch.Tensor) -> tuple[tuple[Any, tuple[Any, ...]], ...]:
    """Return its `__dict__` and its hooks, each with the items in it."""
    held = tensor.__dict__, *(getattr(tensor, name, None) for name in _HOOKS)
    return tuple((one, contents({} if one is None else one)) for one in held)


def set_tensor_attributes(tensor: torch.Tensor, before: Any) -> None:
    for held, items in before:
        if held is not None:
            refill(held, items)
    for name, (hooks, _) in zip(_HOOKS, before[1:], strict=True):
        if getattr(tensor, name, None) is not hooks:
            setattr(tensor, name, hooks)


def clear_cache(cache: Any, misses: int) -> None:
    """Results that a function of the program cached without data are wrong for real data."""
    if cache.cache_info().misses != misses:
        cache.cache_clear()


def generator_state(generator: Any) -> tuple[Any, ...]:
    if hasattr(generator, "bit_generator"):
        return setattr, generator.bit_generator, "state", generator.bit_generator.state
    if hasattr(generator, "set_state"):  # torch's, and numpy's RandomState
        return generator.set_state, generator.get_state()
    return generator.setstate, generator.getstate()


def settings() -> tuple[Any, ...]:
    cudnn = torch.backends.cudnn
    deterministic = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    switches = cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32
    return torch.get_default_dtype(), deterministic, switches, torch.get_float32_matmul_precision()


def set_settings(before: tuple[Any, ...]) -> None:
    if settings() == before:
        return
    dtype, (deterministic, warn_only), cudnn, matmul = before
    torch.set_default_dtype(dtype)
    torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
    for name, value in zip(("enabled", "benchmark", "deterministic", "allow_tf32"), cudnn, strict=True):
        setattr(torch.backends.cudnn, name, value)
    torch.set_float32_matmul_precision(matmul)


def set_filters(before: tuple[Any, ...]) -> None:
    if tuple(warnings.filters) != before:
        warnings.resetwarnings()  # forgets which filter matched
        warnings.filters[:] = before  # type: ignore[index]
