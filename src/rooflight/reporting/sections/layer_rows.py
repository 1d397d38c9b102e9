"""Rows of layers: what they are called in a tree, and those that are alike shown as one (`layer1.[1-2]`), of an
estimate and of a measurement."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from functools import cache
from typing import Any

from msgspec.structs import replace

from rooflight.ledger import OUTSIDE, Totals
from rooflight.reporting.table import Label, cut
from rooflight.summary import By, SummaryRow, function_type
from rooflight.summary.functions import FUNCTIONAL, below, is_function
from rooflight.summary.measured import Measured
from rooflight.summary.measured_rows import NO_OP, SEVERAL, MeasuredRow, merged


def fold(rows: list[SummaryRow]) -> list[SummaryRow]:
    """Fold runs of consecutive siblings with numbers for names and the same subtree, and the functions of a module that
    calls many."""
    rows = _few_functions(rows)
    rows_by_name = {row.name: row for row in rows}
    children: dict[str, list[str]] = {}
    for row in rows:
        if row.depth:
            children.setdefault(row.name.rpartition(".")[0], []).append(row.name)
    signature = _signatures(rows_by_name, children)
    folded: list[SummaryRow] = []

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


MOST_FUNCTIONS = 6
"""A module that calls more functions than these has one row for all of them."""


def _few_functions(rows: list[SummaryRow]) -> list[SummaryRow]:
    functions: dict[str, list[SummaryRow]] = {}
    for row in rows:
        if row.kind == "function":
            functions.setdefault(row.name.rpartition(".")[0], []).append(row)
    shorter: list[SummaryRow] = []
    for row in rows:
        module = row.name.rpartition(".")[0]
        together = functions.get(module, []) if row.kind == "function" else []
        if len(together) <= MOST_FUNCTIONS:
            shorter.append(row)
        elif row is together[0]:
            one = replace(_merged(together, below(module, FUNCTIONAL)), output=None)
            calls = sum(function.calls for function in together)
            shorter.append(replace(one, calls=calls, type=f"{len(together)} functions"))
    return shorter


def _signatures(rows: dict[str, SummaryRow], children: dict[str, list[str]]) -> Callable[[str], Any]:
    @cache
    def signature(name: str) -> Any:
        row, sums = rows[name], rows[name].totals
        below = tuple((child.rpartition(".")[2], signature(child)) for child in children.get(name, []))
        return row.type, row.calls, row.output, row.params, sums.flops, sums.bytes, sums.other_flops, below

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


def _merged(rows: list[SummaryRow], label: str) -> SummaryRow:
    first = rows[0]
    if len(rows) == 1:
        return replace(first, name=label)

    def together(pick: Callable[[SummaryRow], Totals]) -> Totals:
        return sum((pick(row) for row in rows), Totals())

    return replace(
        first,
        name=label,
        type=_merged_type(rows),
        params=sum(row.params for row in rows),
        trainable_params=sum(row.trainable_params for row in rows),
        totals=together(lambda row: row.totals),
        forward=together(lambda row: row.forward),
        backward=together(lambda row: row.backward),
        share=None if first.share is None else sum(row.share or 0 for row in rows),
    )


def _merged_type(rows: list[SummaryRow]) -> str:
    first = rows[0]
    if first.kind == "function" and is_function(first.name) and first.forward.ops:
        return function_type(sum(row.calls for row in rows))
    return f"{len(rows)} × {first.type}"


_RUN = re.compile(r"\[(\d+)-(\d+)\]")


def fold_measured(measured: Measured, rows: list[MeasuredRow], depth: int | None = None) -> list[MeasuredRow]:
    """Fold runs of siblings that the estimate cannot tell apart; their figures are sums. No more levels than these."""
    by_name = {row.name: row for row in rows}
    folded = []
    for estimate in fold([row.estimate for row in rows]):
        if depth is not None and estimate.depth > depth:
            continue
        members = [by_name[name] for name in members_of(estimate.name, by_name)]
        folded.append(members[0] if members[0].name == estimate.name else merged(measured, members, estimate))
    return folded


def listed(
    measured: Measured, rows: list[MeasuredRow], by: By, *, depth: int | None, folded: bool
) -> list[MeasuredRow]:
    """Of modules no more levels than these, and equal blocks once."""
    if by != "module":
        return rows
    if folded:
        return fold_measured(measured, rows, depth)
    return [row for row in rows if depth is None or row.estimate.depth <= depth]


def members_of(label: str, names: Collection[str]) -> list[str]:
    """The rows that a folded one stands for: `h.[0-2].attn` is h.0.attn, h.1.attn and h.2.attn."""
    if label in names:
        return [label]
    parts = label.split(".")
    return [name for name in names if name.count(".") == len(parts) - 1 and _fits(name.split("."), parts)]


def _fits(name: list[str], label: list[str]) -> bool:
    for word, part in zip(name, label, strict=True):
        if word == part or (part == FUNCTIONAL and is_function(word)):
            continue
        run = _RUN.fullmatch(part)
        if run is None or not word.isdigit():
            return False
        low, high = sorted(map(int, run.groups()))
        if not low <= int(word) <= high:
            return False
    return True


NAME_WIDTH = 40
NO_LAYERS = (*OUTSIDE, SEVERAL, NO_OP)
"""Rows that are no layer of the model."""


def layer_label(name: str, depth: int, model: str) -> Label:
    """A row as a tree shows it: its last word, as far in as it is deep; the outermost is the model."""
    if name == "":
        return Label(model, model)
    if name in ("total", *NO_LAYERS) or not depth:
        return Label(name, cut(name, NAME_WIDTH))
    return Label(name, "  " * depth + name.rpartition(".")[2])
