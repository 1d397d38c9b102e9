"""Where the steps of somebody's program end: after its optimizers' steps, or, where it trains nothing, the calls of its
models.

Both are seen from outside, by a function around every optimizer's `step` and one around the outermost call of a module.
torch's own hooks for optimizers will not do: nothing can be hooked or unhooked while they run.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

_OURS = "_rooflight_follows"


class Cycle:
    """Which of several takes turns ends a step: the one that comes most rarely, or of such the last to come.

    A critic may step five times for each step of its generator; two optimizers may share the parameters of a model.
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._since: set[int] = set()
        self._length = self._longest = self._turns = 0

    def knows(self, one: object) -> bool:
        return id(one) in self._counts

    def closes(self, one: object) -> bool:
        """Whether the turn that it has taken now ends a step."""
        if len(self._counts) == 1 and not self.knows(one):  # so often the first comes before the second
            self._longest = max(self._longest, self._turns)
        self._turns += 1
        self._counts[id(one)] = self._counts.get(id(one), 0) + 1
        self._since.add(id(one))
        self._length += 1
        if self._length > 3 * (self._longest + 1):  # some have stopped coming: the program is in another part
            self._counts = dict.fromkeys(self._since, 1)
        fewest = min(self._counts.values())
        last = [key for key, count in self._counts.items() if count == fewest][-1]
        if last != id(one):
            return False
        self._longest, self._length = max(self._longest, self._length), 0
        self._since.clear()
        return True


@dataclass
class _SeenOptimizer:
    one: weakref.ref[torch.optim.Optimizer]
    is_late: bool
    """Others had stepped when it was made."""
    has_stepped: bool = False
    """Itself, or inside another."""


@dataclass
class Optimizers:
    """Those that the program has made; none is kept alive by it."""

    _seen: dict[int, _SeenOptimizer] = field(default_factory=dict)
    _begun: bool = False

    def made(self, one: torch.optim.Optimizer) -> None:
        """Also told where its state is loaded."""
        if self._of(one) is None:
            self._seen[id(one)] = _SeenOptimizer(weakref.ref(one), is_late=self._begun)

    def stepped(self, one: torch.optim.Optimizer) -> None:
        self.made(one)
        self._seen[id(one)].has_stepped = self._begun = True

    def is_late(self, one: object) -> bool:
        """Was it made when others had stepped already? It takes their place then, and else turns with them."""
        seen = self._of(one)
        return seen is not None and seen.is_late

    def waiting(self) -> list[str]:
        """Kinds of those that may be a part of a step and have not stepped yet: none of their parameters is one that
        another has stepped."""
        done = {id(p) for one in self._living(stepped=True) for p in _parameters(one)}
        yet = [one for one in self._living(stepped=False) if done.isdisjoint(map(id, _parameters(one)))]
        return sorted({type(one).__name__ for one in yet if any(True for _ in _parameters(one))})

    def any(self) -> bool:
        return any(seen.one() is not None for seen in self._seen.values())

    def _of(self, one: object) -> _SeenOptimizer | None:
        seen = self._seen.get(id(one))
        return seen if seen is not None and seen.one() is one else None

    def _living(self, *, stepped: bool) -> list[torch.optim.Optimizer]:
        living = (seen.one() for seen in self._seen.values() if seen.has_stepped == stepped)
        return [one for one in living if one is not None]


def _parameters(one: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in getattr(one, "param_groups", ()):  # not there while it is made
        yield from group["params"]


class StepFinder:
    """Tells of every optimizer that stepped and every model that was called, while it is open."""

    def __init__(self, stepped: Callable[[torch.optim.Optimizer], None], called: Callable[[nn.Module], None]) -> None:
        self._stepped = stepped
        self._called = called
        self._looks = False
        self._in_optimizer = 0
        self._in_model = False
        self._classes: list[tuple[type[torch.optim.Optimizer], Any, Any]] = []
        self.optimizers = Optimizers()

    def open(self) -> None:
        self._looks = True
        optimizers: Any = torch.optim.Optimizer
        self._patch = optimizers._patch_step_function

        # torch does this for every new optimizer, to have its own hooks called.
        @functools.wraps(self._patch)
        def patch(optimizer: torch.optim.Optimizer) -> None:
            self._patch(optimizer)
            if self._looks:
                self._follow(type(optimizer))
                self.optimizers.made(optimizer)

        optimizers._patch_step_function = patch
        self.open_models()

    def close(self) -> None:
        """What is held elsewhere (a scheduler holds its optimizer's step) goes straight through from now on."""
        if not self._looks:
            return
        self._looks = False
        optimizers: Any = torch.optim.Optimizer
        optimizers._patch_step_function = self._patch
        for kind, ours, own in self._classes:
            if kind.__dict__.get("step") is ours:
                if own is None:  # it is that of a class above
                    del kind.step
                else:
                    kind.step = own  # type: ignore[method-assign]
        self.close_models()

    def open_models(self) -> None:
        if not getattr(nn.Module.__call__, _OURS, False):
            self._call = nn.Module.__call__
            nn.Module.__call__ = self._followed_call(self._call)  # type: ignore[method-assign]

    def close_models(self) -> None:
        if getattr(nn.Module.__call__, _OURS, False):
            nn.Module.__call__ = self._call  # type: ignore[method-assign]

    def _follow(self, kind: type[torch.optim.Optimizer]) -> None:
        original: Any = kind.step
        if getattr(original, _OURS, False):
            return

        @functools.wraps(original)
        def step(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            if not self._looks or torch.compiler.is_compiling():
                return original(optimizer, *args, **kwargs)
            self._in_optimizer += 1
            try:
                result = original(optimizer, *args, **kwargs)
            finally:
                self._in_optimizer -= 1
            self.optimizers.stepped(optimizer)
            if not self._in_optimizer:  # one that works by another is one
                self._stepped(optimizer)
            return result

        setattr(step, _OURS, True)
        self._classes.append((kind, step, kind.__dict__.get("step")))
        kind.step = step  # type: ignore[method-assign, assignment]

    def _followed_call(self, original: Any) -> Any:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            # Asked first: what is compiled has nothing of this in it, and need not be compiled again without it.
            if torch.compiler.is_compiling() or self._in_model or not self._looks:
                return original(module, *args, **kwargs)
            self._in_model = True
            try:
                result = original(module, *args, **kwargs)
            finally:
                self._in_model = False
            self._called(module)
            return result

        setattr(call, _OURS, True)
        return call
