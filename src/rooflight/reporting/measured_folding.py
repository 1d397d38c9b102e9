"""Folds equal siblings of a measured summary: equal by formula, as `folding` sees it, summed as measured."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rooflight.measured import Measured
from rooflight.measured.rows import MeasuredRow, merged
from rooflight.reporting.folding import fold

_RUN = re.compile(r"\[(\d+)-(\d+)\]")


def fold_measured(measured: Measured, rows: list[MeasuredRow]) -> list[MeasuredRow]:
    """Fold runs of siblings that the estimate cannot tell apart; their figures are sums."""
    by_name = {row.name: row for row in rows}
    folded = []
    for estimate in fold([row.estimate for row in rows]):
        members = [by_name[name] for name in members_of(estimate.name, list(by_name))]
        folded.append(members[0] if members[0].name == estimate.name else merged(measured, members, estimate))
    return folded


def members_of(label: str, names: Sequence[str]) -> list[str]:
    """The modules that a folded row stands for: `h.[0-2].attn` is h.0.attn, h.1.attn and h.2.attn."""
    if label in names:
        return [label]
    parts = label.split(".")
    return [name for name in names if name.count(".") == len(parts) - 1 and _fits(name.split("."), parts)]


def _fits(name: list[str], label: list[str]) -> bool:
    for own, part in zip(name, label, strict=True):
        if own == part:
            continue
        run = _RUN.fullmatch(part)
        if run is None or not own.isdigit():
            return False
        low, high = sorted(map(int, run.groups()))
        if not low <= int(own) <= high:
            return False
    return True
