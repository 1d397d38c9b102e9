"""Hands over every dispatcher call below autograd, so that it can be written down and then run.

A `TorchDispatchMode` is the usual way, but torch looks whether one is active: autograd then adds up gradients into new
memory instead of in place, a linear layer adds its bias in a copy, saved tensors are detached, and the step that is
watched is not the one that runs plainly. `below_autograd` uses a place in the dispatcher's own order instead, which
nobody sees.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, _len_torch_dispatch_stack

Handler = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
"""Takes the operator and its arguments, runs it, and gives its result. What it calls itself is not handed over."""
Interception = Callable[[Handler], AbstractContextManager[None]]

# Below autograd, above all backends; torch keeps it for a fake mode in C++ that it does not have. It lies below the key
# of modes and subclasses since 2.13 and above it before, where torch can call nobody while a mode is open ("func !=
# nullptr"); so tensors that have a dispatch of their own, and steps that open a mode, take another way.
_KEY_NAME = "Fake"
_KNOWN_KEY = torch._C._parse_dispatch_key(_KEY_NAME)
_KEY = torch._C.DispatchKey.Undefined if _KNOWN_KEY is None else _KNOWN_KEY
_KEYS = torch._C.DispatchKeySet(_KEY)
_ABOVE_MODES = (_KEYS | torch._C.DispatchKeySet(torch._C.DispatchKey.Python)).highestPriorityTypeId() == _KEY
_handler: Handler | None = None  # one for all threads: backward runs on threads of its own


def below_autograd(handler: Handler) -> AbstractContextManager[None]:
    """Hand over the calls of this thread, and of autograd's threads while they work for it."""
    return _by_the_key(handler, _key_forced)


def below_autograd_for_now(handler: Handler) -> AbstractContextManager[None]:
    """The same for code that opens and closes contexts of its own across the beginning or the end of this one: only the
    one key is switched, and all that others have set stays."""
    return _by_the_key(handler, _key_switched)


@contextmanager
def _by_the_key(handler: Handler, key_on: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    global _handler
    if not _available() or (_ABOVE_MODES and _len_torch_dispatch_stack()):
        with as_a_mode(handler):
            yield
        return
    before, _handler = _handler, handler
    try:
        with _subclasses_are_made_unseen(), _fake_tensors_are_left_alone(), key_on():
            yield
    finally:
        _handler = before


@contextmanager
def _key_forced() -> Iterator[None]:
    # Also where somebody around this has switched it off for himself.
    include = torch._C._dispatch_tls_local_include_set() | _KEYS
    exclude = torch._C._dispatch_tls_local_exclude_set() - _KEYS
    with torch._C._ForceDispatchKeyGuard(include, exclude):
        yield


@contextmanager
def _key_switched() -> Iterator[None]:
    include, exclude = (
        torch._C._dispatch_tls_set_dispatch_key_included,
        torch._C._dispatch_tls_set_dispatch_key_excluded,
    )
    was_included = torch._C._dispatch_tls_is_dispatch_key_included(_KEY)
    was_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded(_KEY)
    exclude(_KEY, False)
    include(_KEY, True)
    try:
        yield
    finally:
        include(_KEY, was_included)
        exclude(_KEY, was_excluded)


def interception_for(tensors: Iterable[torch.Tensor]) -> Interception:
    """The way that sees the calls on such tensors."""
    python = torch._C.DispatchKey.Python
    return as_a_mode if any(torch._C._dispatch_keys(tensor).has(python) for tensor in tensors) else below_autograd


@contextmanager
def as_a_mode(handler: Handler) -> Iterator[None]:
    """For fake tensors and other subclasses with a dispatch of their own: only a mode sees calls before they do."""
    with _HandOverMode(handler):
        yield


@contextmanager
def nothing_handed_over() -> Iterator[None]:
    """For what is done meanwhile and is no part of the step."""
    with ExitStack() as stack:
        stack.enter_context(modes_off())
        stack.enter_context(torch._C._ExcludeDispatchKeyGuard(_KEYS))
        yield


def modes_off() -> AbstractContextManager[Any]:
    """Without modes around, of which there are seldom any: looking for them takes longer than an operator."""
    return _disable_current_modes() if _len_torch_dispatch_stack() else nullcontext()


@contextmanager
def _subclasses_are_made_unseen() -> Iterator[None]:
    """torch makes a Parameter, or another subclass, of a tensor that Python has never seen: none may be handed over."""
    with ExitStack() as stack:
        for name in ("_make_subclass", "as_subclass"):
            patched = torch.Tensor.__dict__.get(name)  # there only inside another of these: they are its base class's
            setattr(torch.Tensor, name, _unseen(getattr(torch.Tensor, name), is_static=name == "_make_subclass"))
            if patched is None:
                stack.callback(delattr, torch.Tensor, name)
            else:
                stack.callback(setattr, torch.Tensor, name, patched)
        yield


@contextmanager
def _fake_tensors_are_left_alone() -> Iterator[None]:
    """A model that opens a fake mode of its own: what is fake costs nothing, and torch cannot hand it over."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    enter, leave = FakeTensorMode.__enter__, FakeTensorMode.__exit__
    open_guards: list[Any] = []

    def enter_unseen(mode: FakeTensorMode) -> Any:
        guard = torch._C._ExcludeDispatchKeyGuard(_KEYS)
        guard.__enter__()
        open_guards.append(guard)
        return enter(mode)

    def leave_unseen(mode: FakeTensorMode, *failure: Any) -> Any:
        try:
            return leave(mode, *failure)
        finally:
            open_guards.pop().__exit__(None, None, None)

    FakeTensorMode.__enter__, FakeTensorMode.__exit__ = enter_unseen, leave_unseen  # type: ignore[method-assign]
    try:
        yield
    finally:
        FakeTensorMode.__enter__, FakeTensorMode.__exit__ = enter, leave  # type: ignore[method-assign]


def _unseen(original: Any, *, is_static: bool) -> Any:
    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            return original(*args, **kwargs)

    return staticmethod(make) if is_static else make


@functools.cache
def _available() -> bool:
    """Registered once in a process: torch works through all its operators for it."""
    if _KNOWN_KEY is None:
        return False
    try:
        _library.fallback(_handed_over, _KEY_NAME)
    except RuntimeError:  # a torch that has found a use for it
        return False
    return True


_library = torch.library.Library("_", "IMPL")


def _handed_over(function: Any, *args: Any, **kwargs: Any) -> Any:
    if torch.is_inference_mode_enabled():
        return _without_inference_mode(function, args, kwargs)
    with torch._C._ExcludeDispatchKeyGuard(_KEYS):
        assert _handler is not None
        return _handler(function, args, kwargs)


def _without_inference_mode(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Inference mode brings composite operators here whole; without it they come as the ops they are made of."""
    with torch.inference_mode(False), torch.no_grad():
        return function(*args, **kwargs)


class _HandOverMode(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch would import Dynamo (seconds) at the first op, to keep it from compiling this method. Compiled code
        # runs eagerly while it is watched, so there is nothing to keep off.
        return False

    def __init__(self, handler: Handler) -> None:
        super().__init__()
        self._handler = handler

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if torch.is_inference_mode_enabled():
            with self:
                return _without_inference_mode(func, args, kwargs or {})
        return self._handler(func, args, kwargs or {})
