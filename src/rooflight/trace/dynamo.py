"""Keeps Dynamo out of traces that compile nothing: torch imports it, which takes a second, to leave functions alone.

The constructors of optimizers, and operators that are written in Python, are marked as not to be compiled, and an
optimizer's step ends the graph around it. Where nobody has loaded Dynamo there is no graph, and the marks mean nothing.
So a stand-in answers for it; whatever else is asked of it, by a model that compiles a part of itself, loads Dynamo.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any

import torch

from rooflight.trace.interception import nothing_handed_over

_NAME = "torch._dynamo"


def is_loaded() -> bool:
    """Is there a Dynamo that may have compiled something?"""
    return not isinstance(sys.modules.get(_NAME), _StandIn | None)


@contextmanager
def kept_out() -> Iterator[None]:
    """Dynamo is loaded inside only by what compiles, and then runs it as it was written."""
    if _NAME in sys.modules:
        yield
        return
    with ExitStack() as undo:
        stand_in = _StandIn(lambda: undo.enter_context(torch.compiler.set_stance("force_eager")))
        sys.modules[_NAME] = stand_in
        sys.meta_path.insert(0, stand_in)
        undo.callback(stand_in.leave)
        yield


class _StandIn(ModuleType):
    """The module, and the finder of its parts: those are imported from the real one."""

    __path__ = []  # noqa: RUF012

    def __init__(self, on_loading: Callable[[], object]) -> None:
        super().__init__(_NAME)
        self._on_loading = on_loading
        self._unmarked: list[Any] = []
        self.disable, self.graph_break = self._disable, lambda msg="": None

    def _disable(self, function: Any, recursive: bool = True, **_: Any) -> Any:
        self._unmarked.append(function)
        return function

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # whoever goes through all modules asks for `__file__`
            raise AttributeError(name)
        return getattr(self._loaded(), name)

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith(f"{_NAME}."):
            return None
        self._loaded()
        there = importlib.import_module(name)
        found = spec_from_loader(name, _There(there))
        there.__spec__ = found  # Python takes the one that it sees there
        return found

    def _loaded(self) -> ModuleType:
        """The real one. Who got hold of this one meanwhile, and keeps it, is always answered by that."""
        if self.leave():
            with nothing_handed_over():
                importlib.import_module(_NAME)
            self._on_loading()
        return importlib.import_module(_NAME)

    def leave(self) -> bool:
        """Make way; was it still here?"""
        if sys.modules.get(_NAME) is not self:
            return False
        sys.meta_path.remove(self)
        del sys.modules[_NAME], self.disable, self.graph_break
        for function in self._unmarked:  # torch remembers the answer there
            vars(function).pop("__dynamo_disable", None)
        return True


class _There(Loader):
    """Of a module that is there already: it must not be run a second time."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
