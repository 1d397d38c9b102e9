"""Claims judged by rows: held everywhere, refuted by numbers, or not measured and why.

A claim is judged at every place of the grid that all its terms share. A quantity without side is the measured one
where every quantity of the comparison is measured at that place, else the predicted, else the estimated one: two
sides of a comparison are of one side, except where a quantity does not know it (useful FLOPs are only estimated, and
stand beside a predicted time). Which side was taken is part of the verdict.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Sequence

from rooflight.errors import BadInput
from rooflight.study.cell import FACTS, SIDES, Side, StudyRow
from rooflight.study.hypotheses.grid import At, Relation, RowGrid, join
from rooflight.study.hypotheses.hypothesis import (
    ARITHMETIC,
    SIGNS,
    FactWord,
    Hypothesis,
    NumberLiteral,
    QuantityTerm,
    StudyClaim,
    fold_name,
)
from rooflight.study.hypotheses.parser import parse, unit_of
from rooflight.study.hypotheses.verdict import ComparedValues, Gap, GapKind, JudgedHypothesis, JudgedPoint, Verdict

_BY_FORMULA = frozenset({"flops", "bytes", "intensity"})
_KINDS: tuple[GapKind, ...] = ("failed", "waiting", "arithmetic", "absent", "not asked")
"""Of several reasons the first says most."""
_LARGEST = 1 << 63


def claims(stated: Sequence[StudyClaim | str], rows: Sequence[StudyRow]) -> list[JudgedHypothesis]:
    """Every claim of a plan with its verdict."""
    grid = RowGrid(rows)
    judged = []
    for number, claim in enumerate(stated, start=1):
        claim = StudyClaim(claim=claim) if isinstance(claim, str) else claim
        hypothesis = parse(claim.claim, number=number)
        judged.append(judge(hypothesis, grid, number=number, says=claim.says, source=claim.source))
    return judged


def judge(
    hypothesis: Hypothesis, grid: RowGrid | Sequence[StudyRow], *, number: int = 1, says: str = "", source: str = ""
) -> JudgedHypothesis:
    """One claim. What it names and the study does not have leaves it not measured: a study may have been cut down."""
    grid = grid if isinstance(grid, RowGrid) else RowGrid(grid)
    points: list[JudgedPoint] = []
    gaps: list[Gap] = []
    reason = ""
    try:
        relations = grid.relations(hypothesis)
        places = join([relations[part] for part in dict.fromkeys(hypothesis.valued(hypothesis.tree))])
        if not places:
            reason = "no place of the grid has a cell for every term"
        for at in places:
            shown = {axis: at[axis] for axis in grid.varying if axis in at}
            judged = _PlaceJudge(hypothesis, relations, at).judged(shown)
            if isinstance(judged, JudgedPoint):
                points.append(judged)
            else:
                gaps.append(judged)
    except BadInput as error:
        reason = str(error)
    missing = [gap for gap in gaps if gap.kind != "not asked"]
    verdict: Verdict = "held"
    if any(not point.held for point in points):
        verdict = "refuted"
    elif not points or missing:
        verdict = "not measured"
    points.sort(key=lambda point: (point.held, -point.telling.margin))
    return JudgedHypothesis(
        number=number,
        claim=hypothesis.text,
        says=says,
        source=source,
        verdict=verdict,
        points=tuple(points),
        missing=tuple(missing),
        not_asked=tuple(gap for gap in gaps if gap.kind == "not asked"),
        reason=reason,
    )


def unknown_names(hypothesis: Hypothesis, rows: Sequence[StudyRow]) -> str | None:
    """What a claim names and the cells of a study do not have; a plan can say so before anything runs."""
    try:
        RowGrid(rows).relations(hypothesis)
    except BadInput as error:
        return str(error)
    return None


class _UnavailableValue(Exception):
    """A value is not there."""

    def __init__(self, why: str, kind: GapKind, *, cell: str = "") -> None:
        self.why = why
        self.kind = kind
        self.cell = cell


class _PlaceJudge:
    """A claim at one place of the grid."""

    def __init__(self, hypothesis: Hypothesis, relations: dict[QuantityTerm | ast.Call, Relation], at: At) -> None:
        self.hypothesis = hypothesis
        self.relations = relations
        self.at = at
        self.compared: list[ComparedValues] = []
        self.missing: list[_UnavailableValue] = []

    def judged(self, shown: At) -> JudgedPoint | Gap:
        truth = self._truth(self.hypothesis.tree)
        if truth is not None:
            return JudgedPoint(at=shown, held=truth, compared=tuple(self.compared))
        worst = min(self.missing, key=lambda missing: _KINDS.index(missing.kind))
        return Gap(at=shown, cell=worst.cell, why=worst.why, kind=worst.kind)

    def _truth(self, node: ast.expr) -> bool | None:
        """Three-valued: what is not known may not matter."""
        match node:
            case ast.BoolOp(op=op, values=parts):
                truths = [self._truth(part) for part in parts]
                decisive = isinstance(op, ast.Or)
                return decisive if decisive in truths else None if None in truths else not decisive
            case ast.UnaryOp(operand=denied):
                truth = self._truth(denied)
                return None if truth is None else not truth
            case ast.Compare():
                return self._compare(node)
            case _:
                raise AssertionError("the parser lets nothing else be a statement")

    def _compare(self, node: ast.Compare) -> bool | None:
        failed: list[_UnavailableValue] = []
        for side in _candidates([term for _, term in self.hypothesis.terms(node)]):
            used: dict[str, str] = {}
            try:
                left, right, *within = (
                    self._value(part, self.at, side, used) for part in (node.left, *node.comparators)
                )
            except _UnavailableValue as missing:
                failed.append(missing)
                continue
            sign = SIGNS[type(node.ops[0])]
            held, margin = _held(sign, left, right, *within)
            self.compared.append(
                ComparedValues(
                    text=self.hypothesis.written(node),
                    sign=sign,
                    left=_plain(left),
                    right=_plain(right),
                    unit=unit_of(self.hypothesis, node),
                    held=held,
                    margin=margin,
                    sides=used,
                )
            )
            return held
        worst = min(failed, key=lambda missing: _KINDS.index(missing.kind))
        if worst.kind == "not asked":
            # No side that all of them have: each is said.
            whys = dict.fromkeys(missing.why for missing in failed)
            worst = _UnavailableValue("; ".join(whys), worst.kind, cell=worst.cell)
        self.missing.append(worst)
        return None

    def _value(self, node: ast.expr, at: At, side: Side, used: dict[str, str]) -> int | float | str:
        match node:
            case ast.Name():
                leaf = self.hypothesis.leaf(node)
                if isinstance(leaf, QuantityTerm):
                    relation = self.relations[leaf]
                    return _looked_up(leaf, relation.rows[relation.key(at)], side, used)
                assert isinstance(leaf, NumberLiteral | FactWord)
                return leaf.value if isinstance(leaf, NumberLiteral) else leaf.text
            case ast.UnaryOp(operand=part):
                return -self._number(part, at, side, used)
            case ast.BinOp(left=left, op=op, right=right):
                values = (self._number(part, at, side, used) for part in (left, right))
                return _calculated(ARITHMETIC[type(op)], *values)
            case ast.Call(args=[part, _]):
                relation = self.relations[node]
                numbers = [self._number(part, place, side, used) for place in relation.inner[relation.key(at)]]
                return _FOLDED[fold_name(node)](numbers)
            case _:
                raise AssertionError("the parser lets nothing else be a number")

    def _number(self, node: ast.expr, at: At, side: Side, used: dict[str, str]) -> int | float:
        value = self._value(node, at, side, used)
        assert not isinstance(value, str), "the parser lets no word into arithmetic"
        return value


def _candidates(terms: Sequence[QuantityTerm]) -> list[Side]:
    """Sides to try for the quantities that name none: those that every one of them can stand beside."""
    unsaid = [_sides(term) for term in terms if term.side is None]
    candidates = [
        side
        for side in reversed(SIDES)
        if any(side in sides for sides in unsaid) and all(_taken(sides, side) for sides in unsaid)
    ]
    return candidates or ["measured"]  # where every term has its own, it does not matter


def _sides(term: QuantityTerm) -> tuple[Side, ...]:
    """Sides that a term may be taken from. What is useful and what is executed, compulsory and moved, are not one
    quantity: without a side the mathematics is meant, on every machine."""
    return ("estimated",) if term.side is None and term.name in _BY_FORMULA else term.sides


def _taken(sides: tuple[Side, ...], side: Side) -> Side | None:
    """The side of a quantity that stands beside this one: the same, or the estimate of what is only estimated."""
    return side if side in sides else "estimated" if "estimated" in sides else None


def _looked_up(term: QuantityTerm, row: StudyRow, side: Side, used: dict[str, str]) -> int | float | str:
    taken = term.side or _taken(_sides(term), side)
    if taken is None:
        raise _UnavailableValue(f"{term.name} is never {side}", "absent", cell=row.cell.id)
    of = "" if term.layer is None else f"{term.layer}/"
    value: int | float | str | None
    if term.is_fact:
        value = row.facts.get(f"{of}{FACTS[term.name].keys[taken]}")
    else:
        value = row.values.get(f"{of}{term.name}.{taken}")
    if value is None or (not isinstance(value, str) and not math.isfinite(value)):
        why, kind = _why_not(term, row, taken)
        raise _UnavailableValue(why, kind, cell=row.cell.id)
    used[term.name if term.side is None else f"{term.name}.{taken}"] = taken
    return value


_DONE = {"estimated": "estimate", "predicted": "prediction", "measured": "measurement"}


def _why_not(term: QuantityTerm, row: StudyRow, side: Side) -> tuple[str, GapKind]:
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
        value: int | float = _CALCULATE[sign](left, right)
        if math.isfinite(value):  # so that comparing and writing it stays possible
            return value
    except ZeroDivisionError:
        raise _UnavailableValue("division by zero", "arithmetic") from None
    except OverflowError:
        pass
    raise _UnavailableValue("the number is too large", "arithmetic")


_CALCULATE = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


def _sum(values: Sequence[int | float]) -> int | float:
    return sum(values) if all(isinstance(value, int) for value in values) else math.fsum(values)


_FOLDED: dict[str, Callable[[Sequence[int | float]], int | float]] = {"min": min, "max": max, "sum": _sum}


def _held(
    sign: str, left: int | float | str, right: int | float | str, within: int | float | str = 0
) -> tuple[bool, float]:
    """Whether a comparison holds, and how far it is on the wrong side."""
    if isinstance(left, str) or isinstance(right, str):
        return (str(left).casefold() == str(right).casefold()) == (sign == "="), 0.0
    off = left - right
    largest = max(abs(left), abs(right))
    apart = off / largest if largest else 0.0
    match sign:
        case "~":
            relative = abs(off) / abs(right) if right else math.inf if off else 0.0
            return relative <= float(within), min(relative, 1e9) - float(within)
        case "=":
            return left == right, abs(apart)
        case "!=":
            return left != right, -abs(apart)
        case "<" | "<=":
            return (left < right if sign == "<" else left <= right), apart
        case _:
            return (left > right if sign == ">" else left >= right), -apart


def _plain(value: int | float | str) -> int | float | str:
    """A whole number beyond 64 bits is written as a float: JSON has no others."""
    return float(value) if isinstance(value, int) and abs(value) >= _LARGEST else value
