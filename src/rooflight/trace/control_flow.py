"""`torch.cond` and `while_loop` as plain Python while a step is followed.

torch compiles them to keep both ways in one graph; a step takes one. Which, is a value that the step reads: known, or a
failure with its line as of any other branch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

_HOME = "torch._higher_order_ops"


@contextmanager
def control_flow_followed() -> Iterator[None]:
    """Wherever torch has them; who has taken the function itself before still has torch's."""
    with ExitStack() as stack:
        for place, name, plain in (
            ("torch", "cond", _cond),
            (_HOME, "cond", _cond),
            (f"{_HOME}.cond", "cond", _cond),
            (_HOME, "while_loop", _while_loop),
            (f"{_HOME}.while_loop", "while_loop", _while_loop),
        ):
            module = sys.modules.get(place)
            original = getattr(module, name, None)
            if callable(original):
                setattr(module, name, plain)
                stack.callback(setattr, module, name, original)
        yield


def _cond(
    pred: bool | torch.Tensor,
    true_fn: Callable[..., Any],
    false_fn: Callable[..., Any],
    operands: Sequence[Any] = (),
) -> Any:
    return (true_fn if pred else false_fn)(*operands)


def _while_loop(cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried_inputs: Sequence[Any]) -> Any:
    carried = tuple(carried_inputs)
    while cond_fn(*carried):
        carried = tuple(body_fn(*carried))
    return carried
