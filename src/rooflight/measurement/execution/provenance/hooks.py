"""How to listen to functions of torch for a while, and which graph Inductor is at."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rooflight.measurement.execution.provenance.graphs import Graph


def generating() -> Graph | None:
    """The graph whose code is being generated; to try out a choice, Inductor may generate another one in between."""
    from torch._inductor.virtualized import V

    lowering: Any = V.graph
    while lowering is not None:
        graph: Graph | None = getattr(lowering, "_rooflight_graph", None)
        if graph is not None:
            return graph
        lowering = getattr(lowering, "parent", None)
    return None


@contextmanager
def wrapped(owner: Any, name: str, *, before: Callable[..., None] | None = None,
             after: Callable[..., None] | None = None) -> Iterator[None]:  # fmt: skip
    """Call `before` with the arguments, or `after` with the result and the arguments, while this is open."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            before(*args, **kwargs)
        result = original(*args, **kwargs)
        if after is not None:
            after(result, *args, **kwargs)
        return result

    setattr(owner, name, call)
    try:
        yield
    finally:
        setattr(owner, name, original)
