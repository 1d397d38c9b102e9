"""Claims judged by rows: held everywhere, refuted by numbers, undecided by predictions, or not measured and why.

A claim is judged at every place of the grid that all its terms share. A quantity without side is the measured one
where every quantity of the comparison is measured at that place, else the predicted, else the estimated one: two
sides of a comparison are of one side, except where a quantity does not know it (useful FLOPs are only estimated, and
stand beside a predicted time). Which side was taken is part of the verdict. What predictions say is decided where it
comes out the same all over their 90% intervals.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Sequence
from functools import partial
from typing import Literal

from rooflight.errors import BadInput
from rooflight.study.cell import Side, StudyRow
from rooflight.study.hypotheses.comparison import FOLDED, calculated, excesses, held, plain
from rooflight.study.hypotheses.doubt import ErrorSource, RowErrors, Turned, farthest
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
from rooflight.study.hypotheses.lookup import RowReading, UnavailableValue, candidates
from rooflight.study.hypotheses.parser import parse, unit_of
from rooflight.study.hypotheses.verdict import (
    ComparedValues,
    Gap,
    GapKind,
    JudgedHypothesis,
    JudgedPoint,
    Outcome,
    Verdict,
)

Relations = dict[QuantityTerm | ast.Call, Relation]
Truth = bool | Literal["undecided"] | None
"""`None`: a value is missing."""
_KINDS: tuple[GapKind, ...] = ("impossible", "failed", "waiting", "arithmetic", "absent", "not asked")
"""Of several reasons the first says most."""


def claims(stated: Sequence[StudyClaim | str], rows: Sequence[StudyRow]) -> list[JudgedHypothesis]:
    """Every claim of a plan with its verdict."""
    grid = RowGrid(rows)
    judged = []
    for number, claim in enumerate(stated, start=1):
        claim = StudyClaim(claim=claim) if isinstance(claim, str) else claim
        hypothesis = parse(claim.claim, number=number)
        judged.append(judge(hypothesis, grid, number=number, stated=claim))
    return judged


def judge(
    hypothesis: Hypothesis,
    grid: RowGrid | Sequence[StudyRow],
    *,
    number: int = 1,
    stated: StudyClaim | None = None,
) -> JudgedHypothesis:
    """One claim. What it names and the study does not have leaves it not measured: a study may have been cut down."""
    grid = grid if isinstance(grid, RowGrid) else RowGrid(grid)
    points: list[JudgedPoint] = []
    gaps: list[Gap] = []
    skipped: list[Gap] = []
    """Cells that a fold goes without."""
    reason = ""
    try:
        relations = grid.relations(hypothesis)
        places = join([relations[part] for part in dict.fromkeys(hypothesis.valued(hypothesis.tree))])
        if not places:
            reason = "no place of the grid has a cell for every term"
        for at in places:
            shown = {axis: at[axis] for axis in grid.varying if axis in at}
            place = _PlaceJudge(hypothesis, relations, at, grid.errors)
            judged = place.judged(shown)
            if isinstance(judged, JudgedPoint):
                points.append(judged)
            else:
                gaps.append(judged)
            skipped += (_gap(shown, missing) for missing in place.left_out)
    except BadInput as error:
        reason = str(error)
    points.sort(key=lambda point: (_SHOWN_FIRST.index(point.outcome), -point.telling.margin))
    left_out = [gap for gap in gaps if gap.kind == "impossible"]
    if left_out and len(left_out) == len(gaps) and not points:
        reason = f"impossible at every place: {', '.join(dict.fromkeys(gap.why for gap in left_out))}"
    left_out += {gap.cell: gap for gap in skipped if gap.cell not in {other.cell for other in left_out}}.values()
    missing = tuple(gap for gap in gaps if gap.kind not in ("not asked", "impossible"))
    return JudgedHypothesis(
        number=number,
        claim=hypothesis.text,
        says="" if stated is None else stated.says,
        place="" if stated is None else stated.place,
        why="" if stated is None else stated.why,
        source="" if stated is None else stated.source,
        verdict=_verdict(points, missing),
        points=tuple(points),
        missing=missing,
        not_asked=tuple(gap for gap in gaps if gap.kind == "not asked"),
        left_out=tuple(left_out),
        reason=reason,
    )


_SHOWN_FIRST: tuple[Outcome, ...] = ("refuted", "undecided", "held")


def _verdict(points: Sequence[JudgedPoint], missing: Sequence[Gap]) -> Verdict:
    """One counter-example is enough; what is held, is so everywhere."""
    outcomes = {point.outcome for point in points}
    if "refuted" in outcomes:
        return "refuted"
    if not points or missing:
        return "not measured"
    return "undecided" if "undecided" in outcomes else "held"


def _gap(at: At, missing: UnavailableValue) -> Gap:
    return Gap(at=at, cell=missing.cell, why=missing.why, kind=missing.kind)


def unknown_names(hypothesis: Hypothesis, rows: Sequence[StudyRow]) -> str | None:
    """What a claim names and the cells of a study do not have; a plan can say so before anything runs."""
    try:
        RowGrid(rows).relations(hypothesis)
    except BadInput as error:
        return str(error)
    return None


class _PlaceJudge:
    """A claim at one place of the grid."""

    def __init__(self, hypothesis: Hypothesis, relations: Relations, at: At, errors: RowErrors) -> None:
        self.hypothesis = hypothesis
        self.errors = errors
        self.relations = relations
        self.at = at
        self.compared: list[ComparedValues] = []
        self.missing: list[UnavailableValue] = []
        self.left_out: list[UnavailableValue] = []

    def judged(self, shown: At) -> JudgedPoint | Gap:
        truth = self._truth(self.hypothesis.tree)
        if truth is not None:
            compared = tuple(self.compared)
            return JudgedPoint(at=shown, held=truth is True, undecided=truth == "undecided", compared=compared)
        worst = min(self.missing, key=lambda missing: _KINDS.index(missing.kind))
        return _gap(shown, worst)

    def _truth(self, node: ast.expr) -> Truth:
        """What is not known, or not decided, may not matter."""
        match node:
            case ast.BoolOp(op=op, values=parts):
                truths = [self._truth(part) for part in parts]
                decisive = isinstance(op, ast.Or)
                if decisive in truths:
                    return decisive
                return None if None in truths else "undecided" if "undecided" in truths else not decisive
            case ast.UnaryOp(operand=denied):
                truth = self._truth(denied)
                return not truth if isinstance(truth, bool) else truth
            case ast.Compare():
                return self._compare(node)
            case _:
                raise AssertionError("the parser lets nothing else be a statement")

    def _compare(self, node: ast.Compare) -> Truth:
        failed: list[UnavailableValue] = []
        for side in candidates([term for _, term in self.hypothesis.terms(node)]):
            reading = RowReading(side, self.errors)
            try:
                left, right, *within = self._read(node, reading)
            except UnavailableValue as missing:
                failed.append(missing)
                continue
            sign = SIGNS[type(node.ops[0])]
            is_held, margin = held(sign, left, right, *within)
            self.left_out += reading.left_out
            sources = list(reading.sources)
            in_words = isinstance(left, str)
            is_open = self._may_differ(node, reading) if in_words else self._is_open(node, side, is_held, sources)
            low, high = self._ratios(node, side, sources) if is_open and not in_words else (None, None)
            self.compared.append(
                ComparedValues(
                    text=self.hypothesis.written(node),
                    sign=sign,
                    left=plain(left),
                    right=plain(right),
                    unit=unit_of(self.hypothesis, node),
                    held=is_held,
                    undecided=is_open,
                    ratio_low=low,
                    ratio_high=high,
                    margin=margin,
                    sides=reading.used,
                )
            )
            return "undecided" if is_open else is_held
        worst = min(failed, key=lambda missing: _KINDS.index(missing.kind))
        if worst.kind == "not asked":
            # No side that all of them have: each is said.
            whys = dict.fromkeys(missing.why for missing in failed)
            worst = UnavailableValue("; ".join(whys), worst.kind, cell=worst.cell)
        self.missing.append(worst)
        return None

    def _read(self, node: ast.Compare, reading: RowReading) -> list[int | float | str]:
        return [self._value(part, self.at, reading) for part in (node.left, *node.comparators)]

    def _is_open(self, node: ast.Compare, side: Side, is_held: bool, sources: Sequence[ErrorSource]) -> bool:
        """Could the comparison come out otherwise inside the 90% intervals of what was predicted?"""
        sign = SIGNS[type(node.ops[0])]
        wanted = is_held != (sign == "!=")

        def over(which: int, turned: Turned) -> float:
            return excesses(sign, *self._numbers(node, side, turned))[which]

        count = len(excesses(sign, 0.0, 0.0)) if sources else 0
        ends = [farthest(partial(over, which), sources, 1 if wanted else -1) for which in range(count)]
        return bool(ends) and (any(end > 0 for end in ends) if wanted else all(end <= 0 for end in ends))

    def _may_differ(self, node: ast.Compare, reading: RowReading) -> bool:
        """Could a word be another, so that the comparison comes out otherwise?"""
        words = [self._words(part, reading) for part in (node.left, *node.comparators)]
        return len({held(SIGNS[type(node.ops[0])], *pair)[0] for pair in itertools.product(*words)}) > 1

    def _words(self, node: ast.expr, reading: RowReading) -> frozenset[str]:
        leaf = self.hypothesis.leaf(node) if isinstance(node, ast.Name) else None
        if not isinstance(leaf, QuantityTerm):
            return frozenset({str(self._value(node, self.at, reading))})
        relation = self.relations[leaf]
        return reading.words(leaf, relation.rows[relation.key(self.at)])

    def _ratios(self, node: ast.Compare, side: Side, sources: Sequence[ErrorSource]) -> tuple[float | None, ...]:
        """From where to where left over right may be."""

        def ratio(turned: Turned) -> float:
            left, right, *_ = self._numbers(node, side, turned)
            return left / right if right else math.nan

        ends = [farthest(ratio, sources, sign) for sign in (-1, 1)]
        return tuple(end if math.isfinite(end) else None for end in ends)

    def _numbers(self, node: ast.Compare, side: Side, turned: Turned) -> list[float]:
        """The two sides, and what they may differ by, with errors turned; where that divides by 0 nothing is told."""
        try:
            values = self._read(node, RowReading(side, self.errors, turned))
        except UnavailableValue:
            return [math.nan] * (1 + len(node.comparators))
        return [float(value) for value in values]

    def _value(self, node: ast.expr, at: At, reading: RowReading) -> int | float | str:
        match node:
            case ast.Name():
                leaf = self.hypothesis.leaf(node)
                if isinstance(leaf, QuantityTerm):
                    relation = self.relations[leaf]
                    return reading.value(leaf, relation.rows[relation.key(at)])
                assert isinstance(leaf, NumberLiteral | FactWord)
                return leaf.value if isinstance(leaf, NumberLiteral) else leaf.text
            case ast.UnaryOp(operand=part):
                return -self._number(part, at, reading)
            case ast.BinOp(left=left, op=op, right=right):
                values = (self._number(part, at, reading) for part in (left, right))
                return calculated(ARITHMETIC[type(op)], *values)
            case ast.Call(args=[part, _]):
                relation = self.relations[node]
                return self._folded(fold_name(node), part, relation.inner[relation.key(at)], reading)
            case _:
                raise AssertionError("the parser lets nothing else be a number")

    def _folded(self, name: str, part: ast.expr, places: Sequence[At], reading: RowReading) -> int | float:
        """Over all places that can be."""
        numbers: list[int | float] = []
        for place in places:
            try:
                numbers.append(self._number(part, place, reading))
            except UnavailableValue as missing:
                if missing.kind != "impossible" or (place is places[-1] and not numbers):
                    raise
                reading.left_out.append(missing)
        return FOLDED[name](numbers)

    def _number(self, node: ast.expr, at: At, reading: RowReading) -> int | float:
        value = self._value(node, at, reading)
        assert not isinstance(value, str), "the parser lets no word into arithmetic"
        return value
