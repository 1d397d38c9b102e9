"""Why two sides differ: every quantity as what was asked for, causes with their evidence, and what nothing explains.

An estimate is what was asked for and nothing else; a measurement has causes. The difference of two sides is the sum of
the differences of their terms, so that two measurements are explained by the same account as an estimate and one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from rooflight.analysis.cause import Account, CauseSum, Explained, account
from rooflight.analysis.comparison.bridge import OVERLAP as OVERLAP
from rooflight.analysis.cpu_causes import is_explicable, with_between
from rooflight.analysis.flop_causes import explain_flops
from rooflight.analysis.host_causes import explain_host
from rooflight.analysis.memory_causes import explain_memory
from rooflight.analysis.time_causes import explain_time
from rooflight.analysis.traffic_causes import explain_traffic
from rooflight.errors import BadInput
from rooflight.hardware.devices import recognise_name
from rooflight.hardware.roofs import demand_of, roofs_of
from rooflight.ledger import Ledger, total
from rooflight.metrics import ratio
from rooflight.summary import has_formulas
from rooflight.summary.facts import Number
from rooflight.summary.measured import Measured, is_measured
from rooflight.summary.measured_step import busy_s, wall_s

Quantity = Literal["FLOPs", "DRAM bytes", "time", "memory"]
MEDIANS = "difference of medians"


@dataclass(frozen=True)
class Term:
    """One line of an account on both sides; `None` where a side does not know it."""

    name: str
    """In words."""
    a: Number | None
    """Of side A."""
    b: Number | None
    """Of side B."""
    evidence: str = ""
    """What it was computed from."""

    @property
    def difference(self) -> Number:
        """B less A; unknown counts as nothing."""
        return (self.b or 0) - (self.a or 0)


@dataclass(frozen=True)
class Why:
    """One quantity of the whole step."""

    quantity: Quantity
    """What is accounted for."""
    unit: Literal["flop", "byte", "second"]
    """Of all its terms."""
    asked: Term
    """What the mathematics asks for."""
    causes: tuple[Term, ...]
    """Why it is more or less, each with its evidence."""
    unexplained: Term
    """What no cause accounts for."""
    measured: Term
    """What was measured: the sum of all of the above."""
    gross: tuple[Number | None, Number | None]
    """What is unexplained of each op, added up without signs."""
    covered: tuple[float | None, float | None] = (None, None)
    """The part of what the step asks for that its counted ops ask for; the rest was not counted."""

    @property
    def side(self) -> str:
        """Whose account this is, where there is one."""
        return "B" if self.measured.b is not None else "A"

    @property
    def is_comparable(self) -> bool:
        """Do both sides account for the same? Else differences of their terms say nothing."""
        a, b = self.covered
        return a is None or b is None or abs(a - b) < 0.01

    @property
    def reference(self) -> Term:
        """What shares are parts of: FLOPs and bytes of what was asked for, time and memory of what was taken."""
        return self.asked if self.quantity in ("FLOPs", "DRAM bytes") else self.measured

    @property
    def is_over(self) -> bool:
        """Do the causes exceed what there is to explain?"""
        asked, measured, left = (
            term.a if self.side == "A" else term.b for term in (self.asked, self.measured, self.unexplained)
        )
        return ((measured or 0) - (asked or 0)) * (left or 0) < 0

    def part(self, term: Term) -> float | None:
        """Of the reference; on B, or on A where B has none."""
        whole, value = (self.reference.b, term.b) if term.b is not None else (self.reference.a, term.a)
        return value / whole if whole and value is not None else None


class Reasons:
    """The accounts of one side, made when they are asked for."""

    def __init__(self, measured: Measured) -> None:
        self._measured = measured
        self.ledger: Ledger = measured.ledger
        self.is_measured = is_measured(self.ledger)

    @cached_property
    def flops(self) -> list[Explained]:
        return explain_flops(self.ledger) if self.is_measured else []

    @cached_property
    def traffic(self) -> list[Explained]:
        return explain_traffic(self.ledger) if self.is_measured else []

    @cached_property
    def time(self) -> list[Explained]:
        return explain_time(self.ledger, self.traffic) if self.is_measured else []

    def flops_of(self, ops: Sequence[int]) -> Account | None:
        """Of some of the ops, by index."""
        rows = [self._flops_by_op[index] for index in sorted(set(ops)) if index in self._flops_by_op]
        return account(rows) if rows else None

    @cached_property
    def _flops_by_op(self) -> dict[int, Explained]:
        return {row.op.index: row for row in self.flops}

    def whole(self, quantity: Quantity) -> tuple[Account | None, Number | None]:
        """The account of the step, and what is asked for where there is none. Ranks share neither clock nor memory:
        of several together only FLOPs are accounted for."""
        if len(self._measured.ranks) > 1 and quantity != "FLOPs":
            return None, None
        if quantity == "memory":
            return explain_memory(self.ledger, self._measured) if self.is_measured else None, None
        rows = {"FLOPs": self.flops, "DRAM bytes": self.traffic, "time": self.time}[quantity]
        of_step = account(rows) if rows else None
        if quantity == "time":
            of_step = of_step or self._of_kernels()
            of_step = None if of_step is None else self._with_host(of_step)
        sums = total(self.ledger.ops)
        asked = {"FLOPs": sums.flops, "DRAM bytes": sums.bytes, "time": self._least_s}[quantity]
        return of_step, asked if has_formulas(self.ledger) else None

    def _of_kernels(self) -> Account | None:
        """Of a log without shapes: what they waited for is explained, what its kernels took is not."""
        spent = self._measured.total.get("kernel_time_s")
        if self.ledger.header.traced_on != "import" or spent is None or wall_s(self._measured) is None:
            return None
        return Account(0.0, spent, (), spent, spent, len(self.ledger.kernels))

    @cached_property
    def _least_s(self) -> float | None:
        """By the roofs, of all ops that have a formula; `None` where the device is not known."""
        device = recognise_name(self.ledger.header.device)
        if device is None or device.kind != "gpu":
            return None
        roofs = roofs_of(device)
        try:
            demands = [demand for op in self.ledger.ops if (demand := demand_of(op)) is not None]
            return math.fsum(demand.roof_s(roofs) for demand in demands)
        except BadInput:
            return None

    def _with_host(self, of_ops: Account) -> Account:
        """Up to the wall: what the GPU waits for, which belongs to no op."""
        wall, busy = wall_s(self._measured), busy_s(self._measured)
        if wall is not None and is_explicable(self.ledger):
            return with_between(of_ops, wall)
        if wall is None or busy is None:
            return of_ops
        kernels = self._measured.total.get("kernel_time_s")
        more = explain_host(self.ledger, wall - busy)
        in_no_gap = wall - busy - math.fsum(cause.amount for cause in more)
        if kernels is not None and abs(busy - kernels) > 1e-9:
            name = OVERLAP if busy < kernels else MEDIANS
            more.append(CauseSum(name, busy - kernels, of_ops.ops, "union of the kernels less their sum", None))
        untold = (kernels - of_ops.measured) if kernels is not None else 0.0
        untold += in_no_gap
        return replace(
            of_ops,
            measured=wall,
            causes=tuple(sorted((*of_ops.causes, *more), key=lambda cause: -abs(cause.amount))),
            unexplained=of_ops.unexplained + untold,
            unexplained_gross=of_ops.unexplained_gross + abs(untold),
        )


_WORDS: dict[Quantity, tuple[Literal["flop", "byte", "second"], str, str]] = {
    "FLOPs": ("flop", "useful FLOPs", "executed by all units"),
    "DRAM bytes": ("byte", "compulsory bytes", "bytes read and written"),
    "time": ("second", "least time by the roofs", "wall time"),
    "memory": ("byte", "tensors alive at the peak", "memory in use on the device"),
}
"""Of every quantity: its unit, what is asked for, and what is measured."""


def why(a: Reasons, b: Reasons, quantity: Quantity) -> Why | None:
    """`None` where neither side has an account of it."""
    (of_a, asked_a), (of_b, asked_b) = a.whole(quantity), b.whole(quantity)
    if of_a is None and of_b is None:
        return None
    names = dict.fromkeys(cause.name for side in (of_b, of_a) if side is not None for cause in side.causes)
    causes = [_term(name, of_a, of_b) for name in names]

    def both(name: str, pick: Callable[[Account], Number], unless: tuple[Number | None, Number | None]) -> Term:
        known_a, known_b = (
            pick(side) if side is not None else other for side, other in zip((of_a, of_b), unless, strict=True)
        )
        return Term(name, known_a, known_b)

    unit, asked, measured = _WORDS[quantity]
    return Why(
        quantity=quantity,
        unit=unit,
        asked=both(asked, lambda side: side.asked, (asked_a, asked_b)),
        causes=tuple(sorted(causes, key=lambda term: -max(abs(term.a or 0), abs(term.b or 0)))),
        unexplained=both("unexplained", lambda side: side.unexplained, (None, None)),
        measured=both(measured, lambda side: side.measured, (None, None)),
        gross=(None if of_a is None else of_a.unexplained_gross, None if of_b is None else of_b.unexplained_gross),
        covered=(_covered(of_a, asked_a), _covered(of_b, asked_b)),
    )


def _covered(side: Account | None, asked: Number | None) -> float | None:
    return None if side is None else ratio(side.asked, asked)


def _term(name: str, a: Account | None, b: Account | None) -> Term:
    of_a, of_b = ({cause.name: cause for cause in side.causes}.get(name) if side else None for side in (a, b))
    cause = of_b or of_a
    assert cause is not None
    where = ""
    if cause.largest is not None and cause.ops > 1:
        where = f" (in {cause.largest.module or cause.largest.name}, the largest of {cause.ops:,} ops)"
    amount_a, amount_b = (None if side is None else side.amount for side in (of_a, of_b))
    return Term(name, amount_a, amount_b, cause.evidence + where)
