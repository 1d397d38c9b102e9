"""Claims judged by rows: held everywhere, refuted by numbers, or not measured and why.

A claim is judged at every place of the grid that all its terms share. A quantity without side is the measured one
where every quantity of the comparison is measured at that place, else the predicted, else the estimated one: two
sides of a comparison are of one side, except where a quantity does not know it (useful FLOPs are only estimated, and
stand beside a predicted time). Which side was taken is part of the verdict.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Protocol

from rooflight.errors import BadInput
from rooflight.study.cell import QUANTITIES, Row, Side
from rooflight.study.hypotheses.checks import unit_of
from rooflight.study.hypotheses.facts import FACTS
from rooflight.study.hypotheses.grammar import parse
from rooflight.study.hypotheses.grid import At, Grid, Relation, join
from rooflight.study.hypotheses.tree import (
    Arithmetic,
    Claim,
    Comparison,
    Expression,
    Fold,
    Negative,
    Number,
    Statement,
    Term,
    Word,
    leaves,
    terms,
)
from rooflight.study.hypotheses.verdict import Compared, Gap, GapKind, Judged, Point, Verdict

_PREFERRED: tuple[Side, ...] = ("measured", "predicted", "estimated")
_BY_FORMULA = frozenset({"flops", "bytes", "intensity"})
_KINDS: tuple[GapKind, ...] = ("failed", "waiting", "arithmetic", "absent", "not asked")
"""Of several reasons the first says most."""
_LARGEST = 1 << 63


class Stated(Protocol):
    """A claim as a plan has it."""

    @property
    def claim(self) -> str: ...
    @property
    def says(self) -> str: ...
    @property
    def source(self) -> str: ...


def claims(stated: Sequence[Stated | str], rows: Sequence[Row]) -> list[Judged]:
    """Every claim of a plan with its verdict."""
    grid = Grid(rows)
    found = []
    for number, one in enumerate(stated, start=1):
        text, says, source = (one, "", "") if isinstance(one, str) else (one.claim, one.says, one.source)
        found.append(judge(parse(text, number=number), grid, number=number, says=says, source=source))
    return found


def judge(claim: Claim, grid: Grid | Sequence[Row], *, number: int = 1, says: str = "", source: str = "") -> Judged:
    """One claim. What it names and the study does not have leaves it not measured: a study may have been cut down."""
    grid = grid if isinstance(grid, Grid) else Grid(grid)
    points: list[Point] = []
    gaps: list[Gap] = []
    reason = ""
    try:
        relations = grid.relations(claim.says)
        places = join([relations[leaf] for leaf in dict.fromkeys(leaves(claim.says))])
        if not places:
            reason = "no place of the grid has a cell for every term"
        for at in places:
            shown = {axis: at[axis] for axis in grid.varying if axis in at}
            found = _Place(claim, relations, at).judged(shown)
            if isinstance(found, Point):
                points.append(found)
            else:
                gaps.append(found)
    except BadInput as error:
        reason = str(error)
    missing = [gap for gap in gaps if gap.kind != "not asked"]
    verdict: Verdict = "held"
    if any(not point.held for point in points):
        verdict = "refuted"
    elif not points or missing:
        verdict = "not measured"
    points.sort(key=lambda point: (point.held, -point.telling.margin))
    return Judged(number=number, claim=claim.text, says=says, source=source, verdict=verdict, points=tuple(points),
                  missing=tuple(missing), not_asked=tuple(gap for gap in gaps if gap.kind == "not asked"),
                  reason=reason)  # fmt: skip


def unknown_names(claim: Claim, rows: Sequence[Row]) -> str | None:
    """What a claim names and the cells of a study do not have; a plan can say so before anything runs."""
    try:
        Grid(rows).relations(claim.says)
    except BadInput as error:
        return str(error)
    return None


class _Unknown(Exception):
    """A value is not there."""

    def __init__(self, why: str, kind: GapKind, *, cell: str = "") -> None:
        self.why = why
        self.kind = kind
        self.cell = cell


class _Place:
    """A claim at one place of the grid."""

    def __init__(self, claim: Claim, relations: dict[Term | Fold, Relation], at: At) -> None:
        self.claim = claim
        self.relations = relations
        self.at = at
        self.compared: list[Compared] = []
        self.unknown: list[_Unknown] = []

    def judged(self, shown: At) -> Point | Gap:
        truth = self._truth(self.claim.says)
        if truth is not None:
            return Point(at=shown, held=truth, compared=tuple(self.compared))
        worst = min(self.unknown, key=lambda one: _KINDS.index(one.kind))
        return Gap(at=shown, cell=worst.cell, why=worst.why, kind=worst.kind)

    def _truth(self, node: Statement) -> bool | None:
        """Three-valued: what is not known may not matter."""
        if isinstance(node, Comparison):
            return self._compare(node)
        parts = [self._truth(part) for part in node.parts]
        if node.word == "not":
            return None if parts[0] is None else not parts[0]
        decisive = node.word == "or"
        if decisive in parts:
            return decisive
        return None if None in parts else not decisive

    def _compare(self, node: Comparison) -> bool | None:
        failed: list[_Unknown] = []
        for side in _candidates(node):
            used: dict[str, str] = {}
            try:
                left = self._value(node.left, self.at, side, used)
                right = self._value(node.right, self.at, side, used)
            except _Unknown as unknown:
                failed.append(unknown)
                continue
            made = _compared(node, left, right, used, self.claim.text)
            self.compared.append(made)
            return made.held
        worst = min(failed, key=lambda one: _KINDS.index(one.kind))
        if worst.kind == "not asked":
            # No side that all of them have: each is said.
            worst = _Unknown("; ".join(dict.fromkeys(one.why for one in failed)), worst.kind, cell=worst.cell)
        self.unknown.append(worst)
        return None

    def _value(self, node: Expression, at: At, side: Side, used: dict[str, str]) -> int | float | str:
        match node:
            case Number():
                return node.value
            case Word():
                return node.text
            case Term():
                relation = self.relations[node]
                return _looked_up(node, relation.rows[relation.key(at)], side, used)
            case Negative():
                return -self._number(node.of, at, side, used)
            case Arithmetic():
                return _calculated(node.sign, self._number(node.left, at, side, used),
                                   self._number(node.right, at, side, used))  # fmt: skip
            case Fold():
                relation = self.relations[node]
                values = [self._number(node.of, place, side, used) for place in relation.inner[relation.key(at)]]
                return min(values) if node.how == "min" else max(values) if node.how == "max" else _sum(values)

    def _number(self, node: Expression, at: At, side: Side, used: dict[str, str]) -> int | float:
        value = self._value(node, at, side, used)
        assert not isinstance(value, str), "the grammar lets no word into arithmetic"
        return value


def _candidates(node: Comparison) -> Iterator[Side]:
    """Sides to try for the quantities that name none: those that every one of them can stand beside."""
    open_ones = [_sides(term) for term in terms(node) if term.side is None]
    if not open_ones:
        yield "measured"  # every term has its own
        return
    some = False
    for side in _PREFERRED:
        if any(side in known for known in open_ones) and all(_taken(known, side) for known in open_ones):
            some = True
            yield side
    if not some:
        yield "measured"


def _sides(term: Term) -> tuple[Side, ...]:
    """Sides that a term may be taken from. What is useful and what is executed, compulsory and moved, are not one
    quantity: without a side the mathematics is meant, on every machine."""
    if term.side is None and term.name in _BY_FORMULA:
        return ("estimated",)
    return tuple(FACTS[term.name].keys if term.dimension is None else QUANTITIES[term.name.partition(".")[0]].sides)


def _taken(known: tuple[Side, ...], side: Side) -> Side | None:
    """The side of a quantity that stands beside this one: the same, or the estimate of what is only estimated."""
    if side in known:
        return side
    return "estimated" if side != "estimated" and "estimated" in known else None


def _looked_up(term: Term, row: Row, side: Side, used: dict[str, str]) -> int | float | str:
    known = _sides(term)
    taken = term.side or _taken(known, side)
    if taken is None:
        raise _Unknown(f"{term.name} is never {side}", "absent", cell=row.cell.id)
    value: int | float | str | None
    if term.dimension is None:
        of = "" if term.layer is None else f"{term.layer}/"
        value = row.facts.get(f"{of}{FACTS[term.name].keys[taken]}")
    else:
        value = row.values.get(f"{term.label}.{taken}")
    if value is None or (not isinstance(value, str) and not math.isfinite(value)):
        why, kind = _why_not(term, row, taken)
        raise _Unknown(why, kind, cell=row.cell.id)
    used[term.name if term.side is None else f"{term.name}.{taken}"] = taken
    return value


_DONE = {"estimated": "estimate", "predicted": "prediction", "measured": "measurement"}


def _why_not(term: Term, row: Row, side: Side) -> tuple[str, GapKind]:
    done = _DONE[side]
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


def _calculated(sign: str, left: int | float, right: int | float) -> int | float:
    try:
        if sign == "/":
            value = left / right
        else:
            value = left + right if sign == "+" else left - right if sign == "-" else left * right
        # So that comparing and writing it stays possible.
        finite = math.isfinite(value)
    except ZeroDivisionError:
        raise _Unknown("division by zero", "arithmetic") from None
    except OverflowError:
        finite = False
    if not finite:
        raise _Unknown("the number is too large", "arithmetic")
    return value


def _sum(values: Sequence[int | float]) -> int | float:
    return sum(values) if all(isinstance(value, int) for value in values) else math.fsum(values)


def _compared(node: Comparison, left: int | float | str, right: int | float | str, used: dict[str, str],
              text: str) -> Compared:  # fmt: skip
    if isinstance(left, str) or isinstance(right, str):
        held = (str(left).casefold() == str(right).casefold()) == (node.sign == "=")
        margin = 0.0
    else:
        off = left - right
        largest = max(abs(left), abs(right))
        apart = off / largest if largest else 0.0
        within = float(node.within.value) if node.within is not None else 0.0
        relative = abs(off) / abs(right) if right else math.inf if off else 0.0
        held = {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right, "=": left == right,
                "!=": left != right, "~": relative <= within}[node.sign]  # fmt: skip
        margin = {"<": apart, "<=": apart, ">": -apart, ">=": -apart, "=": abs(apart), "!=": -abs(apart),
                  "~": min(relative, 1e9) - within}[node.sign]  # fmt: skip
    return Compared(text=" ".join(text[slice(*node.place)].split()), sign=node.sign, left=_plain(left),
                    right=_plain(right), unit=unit_of(node), held=held, margin=margin, sides=dict(used))  # fmt: skip


def _plain(value: int | float | str) -> int | float | str:
    """A whole number beyond 64 bits is written as a float: JSON has no others."""
    return float(value) if isinstance(value, int) and abs(value) >= _LARGEST else value
