"""What decides which way a step goes, as plain Python while it is followed.

torch compiles `torch.cond` and `while_loop` to keep both ways in one graph; a step takes one. Which, is a value that
the step reads: known, or a failure with its line as of any other branch. Layers are also looked up by a number in their
name, `layers[f"expert_{number}"]`: torch does not ask for the value of a number without data there, as it does of
others.
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
            ("torch.Tensor", "__format__", _formatted),
        ):
            module = torch.Tensor if place == "torch.Tensor" else sys.modules.get(place)
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


_PLAIN_FORMAT = torch.Tensor.__format__


def _formatted(number: torch.Tensor, spec: str) -> str:
    if number.dim() == 0:
        try:
            return format(number.detach().item(), spec)
        except (RuntimeError, TypeError):  # not known: the text is for somebody to read
            pass
    return str(_PLAIN_FORMAT(number, spec))
