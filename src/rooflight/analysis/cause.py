"""A measured quantity as a sum: what the mathematics asks for, named causes with their evidence, and what is left over.

A cause is computed from shapes, kernel names, tiles, grids and other counters, never from the gap it explains. So the
causes of an op may add up to more than its gap. Then the measurement refutes them, or what is left over is negative.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from rooflight.ledger import Kernel, Ledger, Op
from rooflight.metrics import Number


class Cause(msgspec.Struct, frozen=True):
    """Why something is more (or, negative, less) than the mathematics asks for."""

    name: str
    amount: float
    evidence: str


class Explained(msgspec.Struct, frozen=True):
    """One op: asked for, measured, and why the two differ."""

    op: Op
    asked: Number
    measured: Number
    computed: tuple[Cause, ...]
    """Every cause that the evidence suggests, whatever was measured."""
    most_over: float = math.inf
    """Part of the measured value that causes may exceed the gap by: small where they are exact."""

    @property
    def gap(self) -> float:
        return self.measured - self.asked

    @property
    def left(self) -> float:
        """The gap less the computed causes: negative where they exceed it."""
        return self.gap - math.fsum(cause.amount for cause in self.computed)

    @property
    def is_refuted(self) -> bool:
        """Do the computed causes leave more open than there is without them, or exceed the gap by more than they may?
        If so, no cause is shown, and the whole gap is unexplained."""
        is_over = self.gap > 0 and -self.left > self.most_over * self.measured
        return abs(self.left) > abs(self.gap) or is_over

    @property
    def causes(self) -> tuple[Cause, ...]:
        return () if self.is_refuted else self.computed

    @property
    def unexplained(self) -> float:
        """Negative where the causes explain too much."""
        return self.gap if self.is_refuted else self.left


@dataclass(frozen=True)
class CauseSum:
    """One cause over several ops."""

    name: str
    """As `tile padding`."""
    amount: float
    """Of all ops together."""
    ops: int
    """How many have it."""
    evidence: str
    """Of the op where it is largest."""
    largest: Op | None
    """The op with most of it."""


@dataclass(frozen=True)
class Account:
    """Several ops together."""

    asked: Number
    """By the mathematics."""
    measured: Number
    """By counters."""
    causes: tuple[CauseSum, ...]
    """The largest first, whatever their sign."""
    unexplained: float
    """What is left of all ops together: more here and less there cancel."""
    unexplained_gross: float
    """Each op's by itself, without signs."""
    ops: int
    """How many are covered."""

    @property
    def gap(self) -> float:
        """Measured less asked."""
        return self.measured - self.asked


def kernels_of_ops(ledger: Ledger) -> dict[int, list[Kernel]]:
    """By op: what ran for it alone, copies and fills too."""
    kernels: dict[int, list[Kernel]] = defaultdict(list)
    for kernel in ledger.kernels:
        if len(kernel.ops) == 1:
            kernels[kernel.ops[0]].append(_as_launched(kernel))
    return kernels


def _as_launched(kernel: Kernel) -> Kernel:
    """No kernel runs without blocks or threads: of one that somebody's file has so, neither is known."""
    if min(*(kernel.grid or (1, 1)), *(kernel.block or (1, 1))) > 0:
        return kernel
    return msgspec.structs.replace(kernel, grid=None, block=None)


def account(rows: Sequence[Explained]) -> Account:
    """Causes added up over ops, by name."""
    by_name: dict[str, list[tuple[Cause, Op]]] = defaultdict(list)
    for row in rows:
        for cause in row.causes:
            by_name[cause.name].append((cause, row.op))
    causes = []
    for name, held in by_name.items():
        largest, op = max(held, key=lambda pair: abs(pair[0].amount))
        amount = math.fsum(cause.amount for cause, _ in held)
        causes.append(CauseSum(name, amount, len(held), largest.evidence, op))
    unexplained = [row.unexplained for row in rows]
    return Account(
        asked=_total(row.asked for row in rows),
        measured=_total(row.measured for row in rows),
        causes=tuple(sorted(causes, key=lambda cause: -abs(cause.amount))),
        unexplained=math.fsum(unexplained),
        unexplained_gross=math.fsum(map(abs, unexplained)),
        ops=len(rows),
    )


def _total(values: Iterable[Number]) -> Number:
    terms = list(values)
    return sum(terms) if all(isinstance(term, int) for term in terms) else math.fsum(terms)
