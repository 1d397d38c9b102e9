"""Tensors without data that the program hands to numpy, to a list, to a format or as a number: what it logs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn

import torch
from torch._subclasses.fake_tensor import FakeTensor

from rooflight.errors import TraceFailed
from rooflight.trace.interception import modes_off
from rooflight.trace.python_line import python_line
from rooflight.trace.replacements import replaced

_Number = bool | int | float | complex


class UnknownNumber(float):
    """A number that depends on data. So does what is computed from it, and a branch that it decides may go another way:
    `decides` is told of those."""

    decides: Callable[[], object]

    def __new__(cls, value: float, decides: Callable[[], object]) -> UnknownNumber:
        number = super().__new__(cls, value)
        number.decides = decides
        return number

    __hash__ = float.__hash__


def _computing(name: str) -> Callable[..., Any]:
    plain = getattr(float, name)

    def compute(self: UnknownNumber, *others: Any) -> Any:
        result = plain(self, *others)
        return UnknownNumber(result, self.decides) if type(result) is float else result

    return compute


def _deciding(name: str) -> Callable[..., Any]:
    plain = getattr(float, name)

    def decide(self: UnknownNumber, *others: Any) -> Any:
        self.decides()
        return plain(self, *others)

    return decide


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    for _way in (f"__{_name}__", f"__r{_name}__"):
        setattr(UnknownNumber, _way, _computing(_way))
for _name in ("neg", "pos", "abs"):
    setattr(UnknownNumber, f"__{_name}__", _computing(f"__{_name}__"))
for _name in ("eq", "ne", "lt", "le", "gt", "ge", "bool"):
    setattr(UnknownNumber, f"__{_name}__", _deciding(f"__{_name}__"))


class NumberThatDataDecides(UnknownNumber):
    """A whole one, such as how many were right. It can be added up and logged; a size or a branch would be a guess."""

    def _refuse(self, *_: object) -> NoReturn:
        raise TraceFailed(
            "data-dependent",
            f"{python_line()}: the step decides by a number of its data here, which a trace without data does not "
            "have; run it once on its own data with real_data=True, or measure it",
        )

    __index__ = __bool__ = __int__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __round__ = _refuse
    __hash__ = float.__hash__


@contextmanager
def values_handed_out(
    known: Callable[[torch.Tensor], torch.Tensor | None],
    read: Callable[[torch.Tensor], _Number],
    count: Callable[[torch.Tensor], float],
    decides: Callable[[], object],
) -> Iterator[None]:
    """As copies: values that are `known`, else each as a number that is `read`; one whole number that is not known as
    what `count` says. `decides`: told where a number that is not known decides a branch."""
    original, thread = torch.Tensor.numpy, threading.get_ident()
    items, lists = torch.Tensor.item, torch.Tensor.tolist

    def values(tensor: torch.Tensor) -> torch.Tensor:
        found = known(tensor)
        number = read(tensor) if found is None else 0
        with modes_off():
            return (
                torch.full(tensor.shape, number, dtype=tensor.dtype) if found is None else found.detach().cpu().clone()
            )

    def numpy(tensor: torch.Tensor, *, force: bool = False) -> Any:
        if threading.get_ident() != thread:
            return original(tensor, force=force)
        if tensor.device.type != "cpu" and not force:
            raise TypeError(f"can't convert {tensor.device} device type tensor to numpy. Use Tensor.cpu() first.")
        row = tensor.detach()  # torch takes one, too
        if force:
            row.cpu()
        made = values(tensor)
        with modes_off():  # which says in torch's words where that is not possible
            return original(made.requires_grad_(tensor.requires_grad and not force))

    def item(tensor: torch.Tensor) -> _Number:
        if threading.get_ident() != thread or known(tensor) is not None:
            return items(tensor)
        if _counts(tensor):
            return NumberThatDataDecides(count(tensor), decides)
        number = items(tensor)
        return UnknownNumber(number, decides) if type(number) is float else number

    def tolist(tensor: torch.Tensor) -> Any:
        if threading.get_ident() != thread:
            return lists(tensor)
        made = values(tensor.cpu())
        with modes_off():
            return lists(made)

    with ExitStack() as stack:
        stack.enter_context(replaced(torch.Tensor, "numpy", numpy))
        stack.enter_context(replaced(torch.Tensor, "item", item))
        for kind in (torch.Tensor, FakeTensor):
            stack.enter_context(replaced(kind, "tolist", tolist))
        stack.enter_context(replaced(FakeTensor, "__dlpack__", lambda tensor, **how: values(tensor).__dlpack__(**how)))
        yield


def _counts(tensor: torch.Tensor) -> bool:
    return (
        tensor.numel() == 1
        and not tensor.is_floating_point()
        and tensor.dtype != torch.bool
        and not tensor.is_complex()
    )
