"""What a hypothesis says: Python's own syntax tree, whose names stand for quantities, numbers and words.

Nodes are `and`, `or`, `not`, comparisons, arithmetic, and folds as calls. `A ~ B within 5%` is the chain
`A is B in _2`, `max(A over batch)` the call `max(A, _1)`; `Hypothesis.leaves` explains names. It is never executed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import msgspec

from rooflight.study.cell import FACTS, QUANTITIES, Side
from rooflight.units import DIMENSIONS, Dimension

SIGNS: Mapping[type[ast.cmpop], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "=",
    ast.NotEq: "!=",
    ast.Is: "~",
}
ARITHMETIC: Mapping[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
FOLDS = ("min", "max", "sum")


class StudyClaim(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A sentence to be judged by the rows: in the small grammar of claims, in words, where it is said, and why."""

    claim: str
    """In the grammar of claims."""
    says: str = ""
    """In words."""
    place: str = ""
    """Where that is said: document, section or table."""
    why: str = ""
    """What is to be known of it: how it came about, what is right."""
    source: str = ""
    """Who says so, in plans without `place`."""


@dataclass(frozen=True)
class AxisFilter:
    """`batch=64`; with no axis the value may be of any."""

    axis: str | None
    value: str

    def __str__(self) -> str:
        return self.value if self.axis is None else f"{self.axis}={self.value}"


@dataclass(frozen=True)
class NumberLiteral:
    text: str
    """As it was written, with its unit."""
    value: int | float
    dimension: Dimension | None
    """`None`: no unit was given, so it takes the one it is compared with."""


@dataclass(frozen=True)
class QuantityTerm:
    """A quantity of the cells that its filters choose; a fact is the same in words."""

    name: str
    """`time`, `share.Conv2d`, `bound`."""
    side: Side | None = None
    layer: str | None = None
    filters: tuple[AxisFilter, ...] = ()

    @property
    def is_fact(self) -> bool:
        return self.name in FACTS

    @property
    def dimension(self) -> Dimension:
        return DIMENSIONS[QUANTITIES[self.name.partition(".")[0]].unit]

    @property
    def sides(self) -> tuple[Side, ...]:
        """Those that know it."""
        return tuple(FACTS[self.name].keys if self.is_fact else QUANTITIES[self.name.partition(".")[0]].sides)


@dataclass(frozen=True)
class FactWord:
    """What a fact is compared with."""

    text: str


@dataclass(frozen=True)
class FoldAxes:
    """What a minimum, a maximum or a sum is taken over."""

    names: tuple[str, ...]


Leaf = NumberLiteral | QuantityTerm | FactWord | FoldAxes


@dataclass(frozen=True)
class Hypothesis:
    """A claim that could be read: its text as given, and what it says."""

    text: str
    tree: ast.expr
    """Of `and`, `or`, `not`, comparisons, arithmetic, folds as calls, and names."""
    leaves: Mapping[str, Leaf]
    """What the names stand for."""
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    """From places in the tree to places in the text."""

    def leaf(self, node: ast.expr) -> Leaf | None:
        return self.leaves.get(node.id) if isinstance(node, ast.Name) else None

    def start(self, node: ast.expr) -> int:
        return self.starts[node.col_offset]

    def end(self, node: ast.expr) -> int:
        return self.ends[node.end_col_offset or 0]

    def written(self, node: ast.expr) -> str:
        """A part as it stands in the text."""
        return " ".join(self.text[self.start(node) : self.end(node)].split())

    def terms(self, node: ast.expr) -> list[tuple[ast.expr, QuantityTerm]]:
        """The quantities of a part, those in folds too, in the order of the text."""
        named = sorted(
            (part for part in ast.walk(node) if isinstance(part, ast.Name)), key=lambda part: part.col_offset
        )
        return [(part, leaf) for part in named if isinstance(leaf := self.leaf(part), QuantityTerm)]

    def valued(self, node: ast.expr) -> Iterator[QuantityTerm | ast.Call]:
        """What has values of its own at a place of the grid: quantities, and folds as wholes."""
        leaf = self.leaf(node)
        if isinstance(leaf, QuantityTerm):
            yield leaf
        elif isinstance(node, ast.Call):
            yield node
        else:
            for part in ast.iter_child_nodes(node):
                if isinstance(part, ast.expr):
                    yield from self.valued(part)

    def axes(self, fold: ast.Call) -> tuple[str, ...]:
        return cast(FoldAxes, self.leaf(fold.args[1])).names


def fold_name(fold: ast.Call) -> str:
    """`min`, `max` or `sum`."""
    return cast(ast.Name, fold.func).id
