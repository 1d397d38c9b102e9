"""Allocated memory over a step as one line of blocks, with the op after which most was allocated."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rooflight.measured import Measured
from rooflight.reporting.table import Column, Table
from rooflight.reporting.written import cut
from rooflight.units import whole_bytes

WIDTH = 72
_BLOCKS = "▁▂▃▄▅▆▇█"


def timeline_table(measured: Measured, width: int = WIDTH) -> Table:
    """One block for each op, or for several: the most after any of them. Between two ops it may have been more."""
    rank = next((moment.rank for moment in measured.timeline.moments), 0)
    moments = [moment for moment in measured.timeline.moments if moment.rank == rank]
    if not moments:
        return Table("", (), ())
    ops = measured.ledger.ops
    most = max(moments, key=lambda moment: moment.after_bytes)
    peak = ops[most.index]
    where = peak.module or measured.ledger.header.model
    lines = drawn([moment.after_bytes for moment in moments], [ops[moment.index].phase for moment in moments], width)
    lines.append(cut(f"most after op {peak.index:,} of {len(ops):,}, {peak.phase}: {peak.name} in {where}", WIDTH))
    of_rank = f", rank {rank}" if len(measured.ranks) > 1 else ""
    return Table("", (Column(f"allocated after each op{of_rank}", right=False),), tuple((line,) for line in lines))


def drawn(values: Sequence[float], phases: Sequence[str], width: int = WIDTH, *,
          scale: tuple[float, float] | None = None) -> list[str]:  # fmt: skip
    """The blocks, the phases below them, and what the lowest and the highest block stand for.

    `scale`: these two, where several lines are to be read together; else the least and the most of the values.
    """
    count = min(width, len(values))
    edges = [len(values) * n // count for n in range(count + 1)]
    parts = list(pairwise(edges))
    least, most = scale or (min(values), max(values))
    lines = [_blocks([max(values[start:end]) for start, end in parts], least, most)]
    if len(set(phases)) > 1:
        lines.append(_phases([phases[start] for start, _ in parts]))
    lines.append(f"{_BLOCKS[0]} {whole_bytes(least)}   {_BLOCKS[-1]} {whole_bytes(most)}")
    return lines


def _blocks(heights: Sequence[float], least: float, most: float) -> str:
    """From the least to the most: what was there before the step would flatten the line."""
    high = len(_BLOCKS) - 1
    return "".join(_BLOCKS[round(high * (one - least) / (most - least)) if most > least else 0] for one in heights)


def _phases(firsts: Sequence[str]) -> str:
    """The name of each phase where it begins, as much of it as there is room for."""
    line, start = "", 0
    for place in range(1, len(firsts) + 1):
        if place == len(firsts) or firsts[place] != firsts[start]:
            line += firsts[start][: place - start - 1].ljust(place - start, "·")
            start = place
    return line
