"""Activation checkpointing as an option of a step, for models that do not do it themselves.

The forward of chosen modules runs under `torch.utils.checkpoint`: what is made inside is not kept for backward, which
runs it again instead.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from rooflight.errors import BadInput
from rooflight.trace.autocast import autocast_as_now
from rooflight.trace.inputs import is_cache
from rooflight.trace.modules import original_name

BLOCKS = "blocks"
"""What stands for all repeated blocks of a model."""
_MISSING = object()
_NAMED = 4
"""Paths to name where nothing fits: more would hide the message."""
Opening = Callable[[], AbstractContextManager[Any]]


def chosen_paths(model: nn.Module, written: Iterable[str]) -> tuple[str, ...]:
    """The modules that are meant, in the model's order; of nested ones only the outermost.

    `layer1.0` is a path, `h.*` matches paths of as many parts, `blocks` stands for the repeated blocks.
    """
    modules = _by_path(model)
    chosen = {path for pattern in written for path in _matching(pattern, modules, model)}
    first = {id(module): path for path, module in reversed(modules.items())}  # a shared module has several
    return _outermost({first[id(modules[path])]: None for path in modules if path in chosen})


def _matching(pattern: str, modules: dict[str, nn.Module], model: nn.Module) -> list[str]:
    if pattern == BLOCKS:
        paths = _blocks(modules)
        if not paths:
            raise BadInput(
                "unknown-module", f"--checkpoint={BLOCKS}: {_name(model)} has no repeated blocks{_instead(modules)}"
            )
        return paths
    paths = [path for path in modules if path and _fits(path, pattern)]
    if not paths:
        raise BadInput(
            "unknown-module", f"--checkpoint={pattern}: {_name(model)} has no such module{_instead(modules)}"
        )
    called = [path for path in paths if _has_forward(modules[path])]
    if not called:
        kind = _name(modules[paths[0]])
        raise BadInput(
            "unknown-module", f"--checkpoint={pattern}: a {kind} is not called itself; its members are {pattern}.*"
        )
    return called


def _fits(path: str, pattern: str) -> bool:
    parts, wanted = path.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def _blocks(modules: dict[str, nn.Module]) -> list[str]:
    paths = [
        f"{path}.{name}".lstrip(".")
        for path, module in modules.items()
        if isinstance(module, (nn.ModuleList, nn.Sequential))
        for name in _repeated(module)
    ]
    return list(_outermost(dict.fromkeys(paths)))


def _repeated(container: nn.Module) -> list[str]:
    """The children that are blocks, and not the only one of their type there."""
    blocks = {name: type(child) for name, child in container._modules.items() if child is not None and _is_block(child)}
    counts = Counter(blocks.values())
    return [name for name, kind in blocks.items() if counts[kind] > 1]


def _is_block(module: nn.Module) -> bool:
    """A module with modules inside. A plain sequence of blocks is none itself: such are the stages of vision models."""
    is_stage = type(module) is nn.Sequential and bool(_repeated(module))
    return bool(module._modules) and _has_forward(module) and not is_stage


def _has_forward(module: nn.Module) -> bool:
    """A list of modules has none: it is never called."""
    return type(module).forward is not nn.Module.forward


def _outermost(paths: dict[str, None]) -> tuple[str, ...]:
    return tuple(path for path in paths if not any(above in paths for above in _above(path)))


def _above(path: str) -> Iterator[str]:
    while "." in path:
        path = path.rpartition(".")[0]
        yield path


def _by_path(model: nn.Module) -> dict[str, nn.Module]:
    """By the paths users know: without the wrappers of torch.compile. What they wrap comes later, and stays."""
    return {
        original_name(path).removesuffix("_orig_mod").rstrip("."): module
        for path, module in model.named_modules(remove_duplicate=False)
    }


def _name(module: nn.Module) -> str:
    return type(module).__name__


def _instead(modules: dict[str, nn.Module]) -> str:
    """Some that would do, blocks first."""
    blocks = (f"{path.rpartition('.')[0]}.*".lstrip(".") for path in _blocks(modules))
    others = (path for path, module in modules.items() if path and _has_forward(module))
    names = list(dict.fromkeys((*blocks, *others)))[:_NAMED]
    return f"; there are {', '.join(names)}" if names else ", nor any other"


class Checkpoints:
    """The checkpoints of a model, which are in place while `placed` is open."""

    def __init__(self, model: nn.Module, written: Sequence[str], *, keep_randomness: bool) -> None:
        self.paths = chosen_paths(model, written) if written else ()
        by_path = _by_path(model) if written else {}
        self._modules = [by_path[path] for path in self.paths]
        self._keep_randomness = keep_randomness
        """So that what runs again draws the same numbers: there are none without data."""
        self._inside: Callable[[nn.Module], AbstractContextManager[Any]] = lambda module: nullcontext()

    @contextmanager
    def placed(self) -> Iterator[None]:
        if not self._modules:
            yield
            return
        # The first checkpoint imports it, which takes seconds and must not happen in the middle of a watched step.
        importlib.import_module("torch._dynamo")
        with ExitStack() as undo:
            for module in self._modules:
                undo.callback(_put_back, module, module.__dict__.get("forward", _MISSING))
                module.forward = self._checkpointed(module)
            yield

    @contextmanager
    def followed(self, inside: Callable[[nn.Module], AbstractContextManager[Any]]) -> Iterator[None]:
        """`inside(module)` is open while the inside of a module runs again: that is no call of the module."""
        before, self._inside = self._inside, inside
        try:
            yield
        finally:
            self._inside = before

    def _checkpointed(self, module: nn.Module) -> Callable[..., Any]:
        plain = module.forward

        @functools.wraps(plain)
        def forward(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = _without_caches(module, args, kwargs)
            run = functools.partial(plain, **kwargs) if kwargs else plain  # their names may be those of options
            if torch.compiler.is_compiling():  # it follows no contexts here, and has its own way with random numbers
                return checkpoint(run, *args, use_reentrant=False)
            again = _Recomputation(autocast_as_now(), lambda: self._inside(module))
            return checkpoint(
                run,
                *args,
                use_reentrant=False,
                preserve_rng_state=self._keep_randomness,
                context_fn=functools.partial(_contexts, again),
            )

        return forward


def _contexts(again: AbstractContextManager[None]) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """What torch asks for: around forward, and around its second run."""
    return nullcontext(), again


@contextmanager
def checkpoints_of_the_model_followed() -> Iterator[None]:
    """Those that a model has itself run again in the autocast they ran in, and leave nothing open.

    On a GPU's tensors torch sees to autocast, not on tensors without data. Before 2.13 it leaves open what it opened
    for a checkpoint whose inside fails, as long as anybody holds the failure: selective ones open a mode.
    """
    module = torch.utils.checkpoint
    name = "_checkpoint_without_reentrant_generator"
    name = f"{name}_impl" if hasattr(module, f"{name}_impl") else name  # 2.14 has both
    original: Callable[..., Generator[None]] = getattr(module, name)
    signature = inspect.signature(original)
    opened: list[weakref.ref[Generator[None]]] = []
    tracing = threading.get_ident()

    def followed(*args: Any, **kwargs: Any) -> Generator[None]:
        if threading.get_ident() != tracing:  # others are at work for themselves
            return original(*args, **kwargs)
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        context_fn, autocast = given.arguments["context_fn"], autocast_as_now()
        if autocast is not nullcontext and getattr(context_fn, "func", None) is not _contexts:
            given.arguments["context_fn"] = functools.partial(_with_autocast, context_fn, autocast)
        generator = original(*given.args, **given.kwargs)
        opened.append(weakref.ref(generator))
        return generator

    setattr(module, name, followed)
    try:
        yield
    finally:
        setattr(module, name, original)
        for reference in reversed(opened):
            if (generator := reference()) is not None:
                generator.close()


def _with_autocast(
    context_fn: Callable[[], tuple[Any, Any]], autocast: Opening
) -> tuple[Any, AbstractContextManager[None]]:
    first, again = context_fn()
    return first, _Recomputation(autocast, lambda: again)


def _without_caches(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A KV cache would grow again in backward, and keep what is not to be kept: transformers leaves it out as well."""
    if getattr(module, "_can_checkpoint_with_cache", False) or not any(map(_is_theirs, (*args, *kwargs.values()))):
        return args, kwargs
    plain = {name: None if _is_theirs(value) else value for name, value in kwargs.items()}
    if "use_cache" in plain:
        plain["use_cache"] = False
    return tuple(None if _is_theirs(value) else value for value in args), plain


def _is_theirs(value: Any) -> bool:
    return is_cache(value) and type(value).__module__.startswith("transformers.")


def _put_back(module: nn.Module, forward: Any) -> None:
    module.__dict__.pop("forward", None)
    if forward is not _MISSING:
        module.__dict__["forward"] = forward


class _Recomputation(AbstractContextManager[None]):
    """What is open while a checkpoint runs again: in each backward, if there are several."""

    def __init__(self, *openings: Opening) -> None:
        self._openings = openings

    def __enter__(self) -> None:
        self._open = ExitStack()
        for opening in self._openings:
            self._open.enter_context(opening())

    def __exit__(self, *failure: object) -> None:
        self._open.close()
