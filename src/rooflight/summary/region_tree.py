"""Regions inside each other, and what of each lies in none of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rooflight.ledger import Ledger, Measurement

UNCOVERED = "not in any region"
PROGRAM = "program"
_SEEN = 0.0005
"""A smaller part is nothing but the clock."""


@dataclass(frozen=True)
class RegionNode:
    """A region where it was executed, or what of one lies in no other."""

    name: str
    """As it is shown."""
    row: Measurement | None
    """`None`: what lies in no region."""
    depth: int
    inside: str | None
    """The region, or the program, that it is directly in; `None`: in none that was measured."""
    share: float | None
    """Of the time of that one."""
    start: float
    """Where it begins in the outermost one around it, and which part of that it takes: parts are laid end to end."""
    width: float
    again: bool = False
    """Its figures stand above, under another region that it is in, too."""


def regions_of(ledger: Ledger) -> tuple[Measurement, ...]:
    return tuple(row for row in ledger.measurements if row.scope == "region")


def region_tree(ledger: Ledger) -> list[RegionNode]:
    """The program first, then what is in no other; each with what is inside it below it."""
    rows = {row.name: row for row in regions_of(ledger)}
    programs = [row for row in ledger.measurements if row.scope == "program"]
    inside = {name for row in (*programs, *rows.values()) for name in row.parts}
    nodes: list[RegionNode] = []
    seen: set[str] = set()
    # Two that are in each other, and in nothing else, come last.
    for root in (*programs, *(row for row in rows.values() if row.name not in inside), *rows.values()):
        if root.scope == "program" or root.name not in seen:
            name = f"{PROGRAM} {root.name}".rstrip() if root.scope == "program" else root.name
            node = RegionNode(name, root, 0, None, None, 0.0, 1.0)
            nodes += _walk(node, rows, seen, ())
    return nodes


def uncovered(row: Measurement) -> float | None:
    """Which part of its time lies in no region inside it; `None` where it has none inside."""
    return max(1 - sum(row.parts.values()), 0.0) if row.parts else None


def _walk(
    node: RegionNode, rows: Mapping[str, Measurement], seen: set[str], path: tuple[str, ...]
) -> Iterator[RegionNode]:
    yield node
    if node.row is None or node.row.name in path:
        return
    if node.row.scope == "region":
        seen.add(node.row.name)
        path = (*path, node.row.name)
    start, rest = node.start, uncovered(node.row)
    for name, share in node.row.parts.items():
        if name in rows:
            width = share * node.width
            child = RegionNode(name, rows[name], node.depth + 1, node.name, share, start, width, name in seen)
            yield from _walk(child, rows, seen, path)
            start += width
    if rest is not None and rest >= _SEEN:
        yield RegionNode(UNCOVERED, None, node.depth + 1, node.name, rest, start, rest * node.width)
