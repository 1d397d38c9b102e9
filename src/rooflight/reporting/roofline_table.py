"""The marks of a roofline as a table: the same numbers for readers who do not see the picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rooflight import units
from rooflight.reporting.columns import column
from rooflight.reporting.roofline_marks import Mark
from rooflight.reporting.table import Column, Table
from rooflight.units import tera

_TELLING = 20
"""Rows for who has no picture: what takes the most time."""


def marks_table(marks: Sequence[Mark], note: str = "") -> Table:
    """Of each what counters saw where they ran, else what formulas say; the slowest first."""
    columns = (
        column("what"), Column("op or layer", right=False), Column("where", right=False),
        column("phase", optional=3), Column("count", units.exact, optional=4),
        column("time_s", heading="time"), column("share", optional=1),
        Column("basis", right=False, whole=True), column("flops", optional=2),
        column("bytes", optional=2), column("intensity"),
        column("flops_per_s", heading="TFLOP/s", write=tera), column("percent_of_roof"), column("bound"),
    )  # fmt: skip
    rows = tuple(_row(mark) for mark in marks)
    whole = frozenset(i for i, mark in enumerate(marks) if mark.kind == "step")
    return Table("", columns, rows, whole, note=note, telling=_TELLING)


def _row(mark: Mark) -> tuple[Any, ...]:
    told = mark.told
    what = "whole step" if mark.kind == "step" else mark.kind
    return (what, mark.name, mark.module, mark.phase, mark.count, mark.time_s, mark.share, mark.basis, told.flops,
            told.bytes, told.intensity, told.flops_per_s, told.percent_of_roof, told.bound)  # fmt: skip
