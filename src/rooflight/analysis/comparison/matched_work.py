"""What two steps did, put together: the work of the same ops on both sides, ops that run together on one side only, and
ops that the other side does not have.

A measured value belongs to a set of ops: to one, or to several that run as one fused kernel. Where both sides have
values of the same set these stand beside each other. Where they do not, the sets that share ops are taken together,
until both sides hold the same ops: what a compiler fused stands beside all that it was fused from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from rooflight.analysis.comparison.align import Alignment
from rooflight.ledger import Kernel, Op
from rooflight.summary.facts import Number, useful_flops_of
from rooflight.summary.measured import Measured

MatchedKind = Literal["same", "fused", "gone", "only A", "only B", "no op"]
"""`same`: one set of ops on both sides; `fused`: other sets of the same ops; `gone`: ops of both that only one side has
work of; `no op`: kernels that nothing tells the op of."""
_Node = tuple[str, int]
_Nodes = frozenset[_Node]


@dataclass(frozen=True)
class SideWork:
    """What one side did of it."""

    ops: tuple[Op, ...] = ()
    values: Mapping[str, Number] = field(default_factory=dict)
    kernels: tuple[Kernel, ...] = ()

    @property
    def kernel_names(self) -> tuple[str, ...]:
        """Of its kernels, in alphabetical order: copies and fills are of every kernel's company."""
        return tuple(sorted(kernel.name for kernel in self.kernels if kernel.kind in ("kernel", "primitive")))

    @property
    def op(self) -> Op | None:
        """The op, where it is one."""
        return self.ops[0] if len(self.ops) == 1 else None


@dataclass(frozen=True)
class MatchedWork:
    """Work of the same ops on both sides, as far as each has it."""

    kind: MatchedKind
    a: SideWork
    b: SideWork

    @property
    def op(self) -> Op | None:
        """To name it by: B's first op, or A's."""
        ops = self.b.ops or self.a.ops
        return ops[0] if ops else None

    @property
    def has_other_kernels(self) -> bool:
        """Do both sides tell their kernels, and are they others?"""
        names = self.a.kernel_names, self.b.kernel_names
        return all(names) and names[0] != names[1]


def matched_work(a: Measured, b: Measured, alignment: Alignment) -> list[MatchedWork]:
    """Every value that was measured of ops is in just one of them."""
    sides = _WorkSide(a, alignment, "a"), _WorkSide(b, alignment, "b")
    left, right = (set(side.sets) for side in sides)
    loose = [nodes for nodes in left ^ right if len(nodes) > 1 and any(kind == "ab" for kind, _ in nodes)]
    touched = frozenset().union(*loose)
    groups = _Groups(loose)
    works = []
    for nodes in sorted(left | right, key=_order):
        one = next(iter(nodes)) if len(nodes) == 1 else None
        on_both = nodes in left and nodes in right
        # A matrix product keeps kernels of its own beside those that are fused around it.
        apart = one is not None and on_both and any(side.is_matrix(one) for side in sides)
        if not nodes:
            works.append(_work("no op", [nodes], sides))
        elif (nodes in groups.loose) or (one in touched and not apart):
            groups.add(nodes)
        elif on_both:
            works.append(_work("same", [nodes], sides))
        elif any(kind == "ab" for kind, _ in nodes):
            works.append(_work("gone", [nodes], sides))
        else:
            works.append(_work("only A" if nodes in left else "only B", [nodes], sides))
    return [*works, *(_work("fused", sets, sides) for sets in groups.sets())]


class _WorkSide:
    """A side's values by the sets of ops, in names that both sides share."""

    def __init__(self, measured: Measured, alignment: Alignment, name: str) -> None:
        self._ops = measured.ledger.ops
        back = {b: a for a, b in alignment.partners.items()} if name == "b" else {a: a for a in alignment.partners}
        self._node = {op.index: ("ab", back[op.index]) if op.index in back else (name, op.index) for op in self._ops}
        self._index = {node: index for index, node in self._node.items()}
        self.sets: dict[_Nodes, dict[str, Number]] = defaultdict(dict)
        for ops, values in measured.by_ops.items():
            held = self.sets[self._nodes(ops)]
            for quantity, value in values.items():
                held[quantity] = held.get(quantity, 0) + value
        self._kernels: dict[_Nodes, list[Kernel]] = defaultdict(list)
        for kernel in measured.ledger.kernels:
            self._kernels[self._nodes(kernel.ops)].append(kernel)

    def _nodes(self, ops: Iterable[int]) -> _Nodes:
        """Views move nothing: a set is told by its other ops, where it has some."""
        working = [index for index in ops if self._ops[index].kind != "view"] or ops
        return frozenset(self._node[index] for index in working)

    def is_matrix(self, node: _Node) -> bool:
        return node in self._index and useful_flops_of(self._ops[self._index[node]]) > 0

    def work(self, sets: Iterable[_Nodes]) -> SideWork:
        there = [nodes for nodes in sets if nodes in self.sets]
        values: dict[str, Number] = {}
        for nodes in there:
            for quantity, value in self.sets[nodes].items():
                values[quantity] = values.get(quantity, 0) + value
        indices = sorted({self._index[node] for nodes in there for node in nodes})
        kernels = tuple(kernel for nodes in there for kernel in self._kernels.get(nodes, ()))
        return SideWork(tuple(self._ops[index] for index in indices), values, kernels)


def _work(kind: MatchedKind, sets: list[_Nodes], sides: tuple[_WorkSide, _WorkSide]) -> MatchedWork:
    return MatchedWork(kind, sides[0].work(sets), sides[1].work(sets))


def _order(nodes: _Nodes) -> list[_Node]:
    return sorted(nodes)


class _Groups:
    """Sets that share ops, one after the other made one."""

    def __init__(self, loose: Iterable[_Nodes]) -> None:
        self.loose = frozenset(loose)
        self._root: dict[_Node, _Node] = {}
        self._held: list[_Nodes] = []

    def add(self, nodes: _Nodes) -> None:
        self._held.append(nodes)
        first, *others = sorted(nodes)
        for other in others:
            self._root[self._find(other)] = self._find(first)

    def sets(self) -> list[list[_Nodes]]:
        groups: dict[_Node, list[_Nodes]] = defaultdict(list)
        for nodes in self._held:
            groups[self._find(min(nodes))].append(nodes)
        return list(groups.values())

    def _find(self, node: _Node) -> _Node:
        while (above := self._root.get(node, node)) != node:
            node = above
        return node
