"""Folds equal siblings into one row, so that eighty equal blocks read as one: `layers.[0-79]`.

The figures of a folded row, and of all rows below it, are sums over the siblings: rows still add up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rooflight.ledger import Totals
from rooflight.summary import Row


def fold(rows: list[Row]) -> list[Row]:
    """Fold runs of consecutive siblings with numbers for names and the same subtree."""
    rows_by_name = {row.name: row for row in rows}
    children: dict[str, list[str]] = {}
    for row in rows:
        if row.depth:
            children.setdefault(row.name.rpartition(".")[0], []).append(row.name)
    signature = _signatures(rows_by_name, children)
    folded: list[Row] = []

    def emit(names: list[str], label: str) -> None:
        """One row for a group of equal modules, then their children, group by group."""
        folded.append(_merged([rows_by_name[name] for name in names], label))
        for run in _runs(children.get(names[0], []), signature):
            first, last = (name.rpartition(".")[2] for name in (run[0], run[-1]))
            short = first if len(run) == 1 else f"[{first}-{last}]"
            positions = [children[names[0]].index(name) for name in run]
            members = [children[name][position] for name in names for position in positions]
            emit(members, f"{label}.{short}" if label else short)

    for row in rows:
        if row.depth == 0:
            emit([row.name], row.name)
    return folded


def _signatures(rows: dict[str, Row], children: dict[str, list[str]]) -> Callable[[str], Any]:
    known: dict[str, Any] = {}

    def signature(name: str) -> Any:
        if name not in known:
            row = rows[name]
            sums = row.totals
            below = tuple((child.rpartition(".")[2], signature(child)) for child in children.get(name, []))
            known[name] = (row.type, row.calls, row.output, row.params, sums.flops, sums.bytes, sums.other_flops, below)
        return known[name]

    return signature


def _runs(names: list[str], signature: Callable[[str], Any]) -> list[list[str]]:
    runs: list[list[str]] = []
    for name in names:
        numbered = name.rpartition(".")[2].isdigit()
        if runs and numbered and runs[-1][0].rpartition(".")[2].isdigit() and signature(runs[-1][0]) == signature(name):
            runs[-1].append(name)
        else:
            runs.append([name])
    return runs


def _merged(rows: list[Row], label: str) -> Row:
    first = rows[0]
    if len(rows) == 1:
        return replace(first, name=label)

    def together(pick: Callable[[Row], Totals]) -> Totals:
        return sum((pick(row) for row in rows), Totals())

    return replace(
        first,
        name=label,
        type=f"{len(rows)} × {first.type}",
        params=sum(row.params for row in rows),
        trainable_params=sum(row.trainable_params for row in rows),
        totals=together(lambda row: row.totals),
        forward=together(lambda row: row.forward),
        backward=together(lambda row: row.backward),
        share=None if first.share is None else sum(row.share or 0 for row in rows),
    )
