"""The `with` block and the decorator that a program writes, and what it may ask about its regions."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from rooflight.errors import BadInput
from rooflight.files import save
from rooflight.measurement.regions import scheduler
from rooflight.measurement.regions.ledger import ledger_of
from rooflight.measurement.regions.store import Region

if TYPE_CHECKING:
    from rooflight.ledger import Ledger

_P = ParamSpec("_P")
_T = TypeVar("_T")
When = Callable[[], object] | bool
_COMPILED = "inside torch.compile a region is not there: put it around the call of the compiled function"


def region(name: str, *, when: When = True) -> RegionScope:
    """Measure what runs inside `with rooflight.region(name) as r:`, or a function decorated with it.

    Executions under the same name belong together, wherever they are. `when`, a value or a function asked each time,
    chooses the executions: at the others nothing is done at all. Nothing that goes wrong with measuring is raised; it
    stands in `r.missing`.
    """
    if not isinstance(name, str) or not name.strip():
        raise BadInput("bad-name", f"a region needs a name, got {name!r}: write rooflight.region('conv2')")
    return RegionScope(name, when)


def regions() -> tuple[Region, ...]:
    """All regions of this process, in the order in which they were met."""
    return scheduler.process().all_regions()


def regions_ledger() -> Ledger:
    """What the regions of this process have measured so far, one measurement each."""
    return ledger_of(scheduler.process())


def save_regions(path: str | Path, *, force: bool = False) -> Path:
    """Write `regions_ledger()` to a file; `force` allows to replace an existing one."""
    return save(regions_ledger(), path, force=force)


class RegionScope:
    """One place in a program where a region is entered; may be used again and again, also as a decorator."""

    def __init__(self, name: str, when: When) -> None:
        self._name = name
        self._when = when
        self._entered: list[tuple[int, scheduler.RegionExecution | None]] = []
        """Thread and execution of every `with` that has not ended; `None`: nothing is done in it."""

    def __enter__(self) -> Region:
        compiled = _compiled(self._name)
        if compiled is not None:
            return compiled
        entered = scheduler.process().region(self._name)
        wanted = self._when() if callable(self._when) else self._when
        execution = scheduler.begin(entered) if wanted else None
        self._entered.append((threading.get_ident(), execution))
        return entered

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        entered = self._entered
        if not entered:
            return  # inside torch.compile
        thread = threading.get_ident()
        # The last one of this thread; a generator may also be closed in another thread than it was entered in.
        last = next((entry for entry in reversed(entered) if entry[0] == thread), entered[-1])
        entered.remove(last)
        if last[1] is not None:
            scheduler.end(last[1], failed=kind is not None)

    def __call__(self, function: Callable[_P, _T]) -> Callable[_P, _T]:
        if not callable(function) or inspect.isclass(function):
            raise BadInput("not-a-function", f"region {self._name!r} can decorate a function, not {function!r}")
        pauses = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
        if any(is_such(function) for is_such in pauses):
            raise BadInput(
                "not-a-function",
                f"region {self._name!r} cannot decorate {function.__qualname__}, which stops in between: "
                "write `with rooflight.region(...)` inside it",
            )
        scheduler.process().region(self._name)  # told as never executed if it is never called

        @functools.wraps(function)
        def measured(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            with RegionScope(self._name, self._when):
                return function(*args, **kwargs)

        return measured


def _compiled(name: str) -> Region | None:
    """The region where torch.compile is tracing it into a graph, in which it leaves no mark; else `None`.

    A compiled function must not fall back to eager because of a region. torch calls this while it compiles and takes
    the answer for a constant (see `torch.compiler.assume_constant_result`, which does no more than the line below).
    """
    if "torch._dynamo" not in sys.modules:
        return None
    guards: Any = sys.modules["torch._guards"]
    if guards.TracingContext.try_get() is None:
        return None
    traced = scheduler.process().region(name)
    traced.pieces.remarks[_COMPILED] = None
    return traced


_compiled._dynamo_marked_constant = True  # type: ignore[attr-defined]
