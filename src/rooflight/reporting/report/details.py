"""What is behind the rows of the tree: how each op's estimate is derived, its kernels, and why it took what it took.

Ops that are alike share one text, so that eighty equal layers take the room of one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rooflight import units
from rooflight.comparison.why import Reasons
from rooflight.estimation.derivation import derive_each
from rooflight.explanation.cause import Explained
from rooflight.ledger import Kernel, Ledger
from rooflight.reporting.derivation import op_text
from rooflight.reporting.why_tables import Unit, amount_writer
from rooflight.reporting.written import kernel_name


@dataclass(frozen=True)
class Details:
    """By op, in tables of what is distinct."""

    derivations: tuple[str, ...]
    """By pen and paper, as text."""
    derivation_of: dict[int, int]
    """By op: which of `derivations`."""
    texts: tuple[str, ...]
    """Of cells."""
    lines: tuple[tuple[int, ...], ...]
    """Of tables: for each cell, which of `texts`. Kernels first, the longest before all others: name, time, blocks in
    the grid, threads in a block, tile."""
    kernels_of: dict[int, tuple[int, ...]]
    """By op: which of `lines`."""
    causes_of: dict[int, tuple[tuple[int, ...], ...]]
    """By op, a table for each quantity, of `lines`: head, asked for, causes with evidence, unexplained, measured."""


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
    texts, lines = _Distinct(), _Distinct()

    def line(*cells: str) -> int:
        return lines.number(tuple(map(texts.number, cells)))

    kernels: dict[int, list[int]] = {}
    for kernel in sorted(ledger.kernels, key=lambda kernel: -(kernel.time_s or 0)):
        for index in kernel.ops[:1]:
            kernels.setdefault(index, []).append(line(*_kernel(kernel)))
    causes: dict[int, list[tuple[int, ...]]] = {}
    if reasons is not None and reasons.is_measured:
        accounts: Sequence[tuple[str, Unit, Sequence[Explained]]] = (
            ("FLOPs", "flop", reasons.flops), ("DRAM bytes", "byte", reasons.traffic), ("time", "second", reasons.time),
        )  # fmt: skip
        for name, unit, rows in accounts:
            for row in rows:
                found = tuple(line(*cells) for cells in _account(name, row, amount_writer(unit)))
                causes.setdefault(row.op.index, []).append(found)
    return Details(
        derivations=tuple(map(op_text, derived)), derivation_of=derivation_of, texts=texts.all(), lines=lines.all(),
        kernels_of={index: tuple(found) for index, found in kernels.items()},
        causes_of={index: tuple(found) for index, found in causes.items()},
    )  # fmt: skip


def _kernel(kernel: Kernel) -> tuple[str, ...]:
    blocks, threads = (None if dims is None else math.prod(dims) for dims in (kernel.grid, kernel.block))
    tile = "" if kernel.tile is None else units.shape(kernel.tile)
    name, time = kernel_name(kernel.name, 90).shown, units.seconds(kernel.time_s)
    return name, time, units.exact(blocks), units.exact(threads), tile


def _account(name: str, row: Explained, write: Callable[[float], str]) -> Iterator[tuple[str, ...]]:
    yield name, "", "evidence"
    yield "asked for", write(row.asked)
    for one in row.causes:
        yield one.name, write(one.amount), one.evidence
    yield "unexplained", write(row.unexplained)
    yield "measured", write(row.measured)
