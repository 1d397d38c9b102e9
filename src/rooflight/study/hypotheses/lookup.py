"""The value that a term has in a row: of which side, and why there is none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from rooflight.study.cell import FACTS, SIDES, Side, StudyRow
from rooflight.study.hypotheses.doubt import ErrorSource, RowErrors, Turned
from rooflight.study.hypotheses.hypothesis import QuantityTerm
from rooflight.study.hypotheses.verdict import GapKind

_BY_FORMULA = frozenset({"flops", "bytes", "intensity"})
_DONE = {"estimated": "estimate", "predicted": "prediction", "measured": "measurement"}


class UnavailableValue(Exception):
    """A value is not there."""

    def __init__(self, why: str, kind: GapKind, *, cell: str = "") -> None:
        self.why = why
        self.kind = kind
        self.cell = cell


@dataclass
class RowReading:
    """Values read for one comparison: of which side, and with which errors of predictions turned."""

    side: Side
    errors: RowErrors
    turned: Turned = field(default_factory=dict)
    used: dict[str, str] = field(default_factory=dict)
    """Of every quantity: which side its value is of."""
    sources: dict[ErrorSource, None] = field(default_factory=dict)
    """Of the errors that predicted values may have; in the order in which they were met."""

    left_out: list[UnavailableValue] = field(default_factory=list)
    """Of a fold: cells that cannot be."""

    def words(self, term: QuantityTerm, row: StudyRow) -> frozenset[str]:
        """All that a word may be inside the intervals of what it was told by."""
        word = str(self.value(term, row))
        if term.name != "bound" or term.layer is not None or self.used.get(_said(term, "predicted")) != "predicted":
            return frozenset({word})
        return self.errors.words(row, word)

    def value(self, term: QuantityTerm, row: StudyRow) -> int | float | str:
        taken = term.side or _taken(_sides(term), self.side)
        if taken is None:
            raise UnavailableValue(f"{term.name} is never {self.side}", "absent", cell=row.cell.id)
        of = "" if term.layer is None else f"{term.layer}/"
        value: int | float | str | None
        if term.is_fact:
            value = row.facts.get(f"{of}{FACTS[term.name].keys[taken]}")
        else:
            value = row.values.get(f"{of}{term.name}.{taken}")
        if value is None or (not isinstance(value, str) and not math.isfinite(value)):
            why, kind = _why_not(term, row, taken)
            raise UnavailableValue(why, kind, cell=row.cell.id)
        self.used[_said(term, taken)] = taken
        if isinstance(value, str) or taken != "predicted":
            return value
        self.sources.update(dict.fromkeys(self.errors.sources(term.name, row)))
        return self.errors.shifted(term.name, value, row, self.turned)


def _said(term: QuantityTerm, taken: Side) -> str:
    return term.name if term.side is None else f"{term.name}.{taken}"


def candidates(terms: Sequence[QuantityTerm]) -> list[Side]:
    """Sides to try for the quantities that name none: those that every one of them can stand beside."""
    unsaid = [_sides(term) for term in terms if term.side is None]
    possible = [
        side
        for side in reversed(SIDES)
        if any(side in sides for sides in unsaid) and all(_taken(sides, side) for sides in unsaid)
    ]
    return possible or ["measured"]  # where every term has its own, it does not matter


def _sides(term: QuantityTerm) -> tuple[Side, ...]:
    """Sides that a term may be taken from. What is useful and what is executed, compulsory and moved, are not one
    quantity: without a side the mathematics is meant, on every machine."""
    return ("estimated",) if term.side is None and term.name in _BY_FORMULA else term.sides


def _taken(sides: tuple[Side, ...], side: Side) -> Side | None:
    """The side of a quantity that stands beside this one: the same, or the estimate of what is only estimated."""
    return side if side in sides else "estimated" if "estimated" in sides else None


def _why_not(term: QuantityTerm, row: StudyRow, side: Side) -> tuple[str, GapKind]:
    done = _DONE[side]
    if why := row.cell.impossible:
        return why, "impossible"
    if side in row.failures:
        return f"{done} failed: {row.failures[side]}", "failed"
    if row.state == "waiting":
        return "not run yet", "waiting"
    if any(key.endswith(f".{side}") for key in (*row.values, *row.facts)):
        of = f" of the layer {term.layer!r}" if term.layer is not None else ""
        small = " (there is none under 0.1%)" if term.name.startswith("share.") else ""
        return f"the {done} has no {term.name}{of}{small}", "absent"
    if side != "estimated" and row.cell.on is None:
        return f"no {done}: the cell names no device", "not asked"
    return f"no {done}" + (f" on {row.cell.on}" if side != "estimated" else ""), "not asked"
