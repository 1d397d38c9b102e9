"""Keeps torch.compile out of what rooflight does. Dynamo takes seconds to import: nothing here loads it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch

_Function = TypeVar("_Function", bound=Callable[..., Any])


def eagerly() -> AbstractContextManager[Any]:
    """Compiled parts of a model run as they were written; only who has loaded Dynamo can have some."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


@contextmanager
def scripts_as_written() -> Iterator[None]:
    """Functions that `torch.jit.script` made run as they were written: torch looks at their first calls and changes
    them then, so that the ops of a step would depend on what ran before it."""
    optimized = torch._C._get_graph_executor_optimize()
    torch._C._set_graph_executor_optimize(False)
    try:
        yield
    finally:
        torch._C._set_graph_executor_optimize(optimized)


def outside_compiled_code(function: _Function) -> _Function:
    """Called in a compiled function, it runs between the function's graphs, and nothing of it is compiled.

    What `torch.compiler.disable` does by a wrapper, and by importing Dynamo, is said here of the code itself.
    """
    marked: Any = function
    marked._torchdynamo_disable = True
    marked._torchdynamo_disable_msg = (
        f"rooflight.{function.__name__} cannot be a part of a graph: call it outside, or without fullgraph=True"
    )
    frames: Any = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):  # not in every torch: an older one compiles what it can of it
        skip = frames._FrameAction.SKIP  # for its own frame, and for those of all that it calls
        frames.set_code_exec_strategy(marked.__code__, frames._FrameExecStrategy(skip, skip))
    return function
