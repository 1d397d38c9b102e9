"""What is behind the rows of the tree: how each op's estimate is derived, its kernels, and why it took what it took.

Ops that are alike share one text, so that eighty equal layers take the room of one.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from rooflight.comparison.why import Reasons
from rooflight.estimation.derivation import derive_each
from rooflight.explanation.cause import Explained
from rooflight.ledger import Kernel, Ledger
from rooflight.reporting.derivation import op_text
from rooflight.reporting.written import kernel_name

_QUANTITIES = ("FLOPs", "DRAM bytes", "time")


@dataclass(frozen=True)
class Details:
    """By op, in tables of what is distinct."""

    derivations: tuple[str, ...]
    """By pen and paper, as text."""
    derivation_of: dict[int, int]
    """By op: which of `derivations`."""
    kernel_names: tuple[tuple[str, str], ...]
    """Short, and in full."""
    kernels_of: dict[int, tuple[tuple[Any, ...], ...]]
    """Of each: which name, time in seconds, blocks in its grid, threads in a block, tile."""
    texts: tuple[str, ...]
    """Of causes and their evidence."""
    causes_of: dict[int, tuple[tuple[Any, ...], ...]]
    """Of each quantity: which, asked for, measured, and causes as (name, amount, evidence)."""


class _Distinct:
    """Values by number, each kept once."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def number(self, value: Hashable) -> int:
        return self._numbers.setdefault(value, len(self._numbers))

    def all(self) -> tuple[Any, ...]:
        return tuple(self._numbers)


def details_of(ledger: Ledger, reasons: Reasons | None) -> Details:
    derived, derivation_of = derive_each(ledger)
    names, texts = _Distinct(), _Distinct()
    kernels: dict[int, list[tuple[Any, ...]]] = {}
    for kernel in ledger.kernels:
        for index in kernel.ops[:1]:
            kernels.setdefault(index, []).append(_kernel(kernel, names))
    causes: dict[int, list[tuple[Any, ...]]] = {}
    if reasons is not None and reasons.is_measured:
        accounts: Sequence[Sequence[Explained]] = (reasons.flops, reasons.traffic, reasons.time)
        for which, rows in enumerate(accounts):
            for row in rows:
                causes.setdefault(row.op.index, []).append(_explained(which, row, texts))
    return Details(
        derivations=tuple(map(op_text, derived)), derivation_of=derivation_of, kernel_names=names.all(),
        kernels_of={index: tuple(found) for index, found in kernels.items()}, texts=texts.all(),
        causes_of={index: tuple(found) for index, found in causes.items()},
    )  # fmt: skip


def _kernel(kernel: Kernel, names: _Distinct) -> tuple[Any, ...]:
    label = kernel_name(kernel.name, 90)
    blocks = None if kernel.grid is None else kernel.grid[0] * kernel.grid[1] * kernel.grid[2]
    threads = None if kernel.block is None else kernel.block[0] * kernel.block[1] * kernel.block[2]
    tile = None if kernel.tile is None else "×".join(map(str, kernel.tile))
    return names.number((label.shown, label.full)), kernel.time_s, blocks, threads, tile


def _explained(which: int, row: Explained, texts: _Distinct) -> tuple[Any, ...]:
    causes = [(texts.number(one.name), one.amount, texts.number(one.evidence)) for one in row.causes]
    return which, row.asked, row.measured, causes
