"""What an op borrows: by aten name, a function from the op and the chip to the moments inside it."""

from __future__ import annotations

from collections.abc import Callable

from rooflight.ledger import Op
from rooflight.memory.moments import Chip, Moments

Describe = Callable[[Op, Chip], Moments]
Sizes = Callable[[Op, Chip], dict[int, int]]

_BORROWED: dict[str, Describe] = {}
_RESULTS: dict[str, Sizes] = {}


def borrows(*names: str) -> Callable[[Describe], Describe]:
    """Register what `aten::op`, all overloads, borrows; given without its namespace."""

    def register(function: Describe) -> Describe:
        for name in names:
            if name in _BORROWED:
                raise ValueError(f"{name} is described twice")
            _BORROWED[name] = function
        return function

    return register


def makes(*names: str) -> Callable[[Sizes], Sizes]:
    """Register results whose size tensors without data do not tell."""

    def register(function: Sizes) -> Sizes:
        for name in names:
            if name in _RESULTS:
                raise ValueError(f"the results of {name} are described twice")
            _RESULTS[name] = function
        return function

    return register


def moments(op: Op, chip: Chip) -> Moments:
    """The stretches of an op in which it holds more than its results; empty: it borrows nothing, or is not known."""
    describe = _BORROWED.get(op.packet.partition("::")[2])
    return describe(op, chip) if describe is not None else ()


def result_bytes(op: Op, chip: Chip) -> dict[int, int]:
    """Real bytes of those results, by position, that on a GPU are larger or smaller than the ledger says."""
    sizes = _RESULTS.get(op.packet.partition("::")[2])
    return sizes(op, chip) if sizes is not None else {}
