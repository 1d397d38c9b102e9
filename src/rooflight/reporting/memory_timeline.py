"""Allocated memory over a step as one line of blocks, with the op after which most was allocated."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rooflight.ledger import Op
from rooflight.measured import Measured
from rooflight.measured.memory import Moment
from rooflight.reporting.table import Column, Table
from rooflight.reporting.written import cut, whole_bytes

WIDTH = 72
_BLOCKS = "▁▂▃▄▅▆▇█"


def timeline_table(measured: Measured, width: int = WIDTH) -> Table:
    """One block for each op, or for several: the most after any of them. Between two ops it may have been more."""
    rank = next((moment.rank for moment in measured.timeline.moments), 0)
    moments = [moment for moment in measured.timeline.moments if moment.rank == rank]
    if not moments:
        return Table("", (), ())
    ops = measured.ledger.ops
    parts = _parts(moments, width)
    most, least = (pick(moments, key=lambda moment: moment.after_bytes) for pick in (max, min))
    peak = ops[most.index]
    where = peak.module or measured.ledger.header.model
    lines = [_blocks(parts, least.after_bytes, most.after_bytes)]
    if len({ops[moment.index].phase for moment in moments}) > 1:
        lines.append(_phases([ops[part[0].index] for part in parts]))
    lines.append(f"{_BLOCKS[0]} {whole_bytes(least.after_bytes)}   {_BLOCKS[-1]} {whole_bytes(most.after_bytes)}")
    lines.append(cut(f"most after op {peak.index:,} of {len(ops):,}, {peak.phase}: {peak.name} in {where}", WIDTH))
    of_rank = f", rank {rank}" if len(measured.ranks) > 1 else ""
    return Table("", (Column(f"allocated after each op{of_rank}", right=False),), tuple((line,) for line in lines))


def _parts(moments: Sequence[Moment], width: int) -> list[Sequence[Moment]]:
    count = min(width, len(moments))
    edges = [len(moments) * n // count for n in range(count + 1)]
    return [moments[start:end] for start, end in pairwise(edges)]


def _blocks(parts: Sequence[Sequence[Moment]], least: float, most: float) -> str:
    """From the least to the most: what was there before the step would flatten the line."""
    high = len(_BLOCKS) - 1
    heights = [max(moment.after_bytes for moment in part) - least for part in parts]
    return "".join(_BLOCKS[round(high * height / (most - least)) if most > least else 0] for height in heights)


def _phases(firsts: Sequence[Op]) -> str:
    """The name of each phase where it begins, as much of it as there is room for."""
    line, start = "", 0
    for place in range(1, len(firsts) + 1):
        if place == len(firsts) or firsts[place].phase != firsts[start].phase:
            line += firsts[start].phase[: place - start - 1].ljust(place - start, "·")
            start = place
    return line
