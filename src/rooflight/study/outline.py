"""What a study would do, in words, before it does anything."""

from __future__ import annotations

from collections import Counter

from rooflight.study.cell import Cell
from rooflight.study.commands import estimate_command, measure_command, predict_command
from rooflight.study.launch import units_of, wanted_here
from rooflight.study.machine import place_of
from rooflight.study.store import Store, key_of

_SHOWN = 12
"""Command lines that are written out."""


def outline(store: Store, *, elsewhere: bool = False) -> list[str]:
    """Cells, what they share, what is measured, and the commands that would do each alone. `elsewhere`: on the nodes of
    a cluster, whose devices nobody here knows."""
    cells = store.cells
    open_ = {side: {key_of(cell, side): cell for cell in cells
                    if side in store.sides(cell) and store.is_open(key_of(cell, side))}
             for side in ("estimated", "predicted")}  # fmt: skip
    possible = [cell for cell in cells if store.is_measurable(cell) and store.is_open((cell.id, "measured"))]
    here = [] if elsewhere else wanted_here(store, possible)
    traces = len(units_of(store, cells, ("estimated",)))
    lines = [f"{len(cells):,} cells into {store.folder}"]
    finished = sum(row.state != "waiting" for row in store.rows)
    lines += [f"{finished:,} of them are finished already"] if finished else []
    lines.append(f"{len(open_['estimated']):,} steps to be estimated, with {traces:,} traces for all their batches")
    devices = Counter(cell.on for cell in open_["predicted"].values())
    if devices:
        named = ", ".join(f"{count:,} on {device}" for device, count in devices.items())
        lines.append(f"{len(open_['predicted']):,} predictions: {named}")
    if elsewhere and possible:
        lines.append(f"up to {len(possible):,} measurements: of those cells whose device their node has")
    elif here:
        lines.append(f"{len(here):,} measurements here, one at a time on each device")
    elif store.plan.measure is not False and not elsewhere:
        lines.append("nothing to be measured: none of the devices is here")
    return lines + _commands(list(open_["estimated"].values()), list(open_["predicted"].values()), here)


def _commands(estimated: list[Cell], predicted: list[Cell], measured: list[Cell]) -> list[str]:
    lines = list(dict.fromkeys(map(estimate_command, estimated)))
    lines += map(predict_command, predicted)
    lines += [measure_command(cell, place_of(cell.on)) for cell in measured]
    if not lines:
        return ["nothing is left to do"]
    more = [f"... and {len(lines) - _SHOWN:,} more"] if len(lines) > _SHOWN else []
    return ["each by itself would be:", *(f"  {line}" for line in lines[:_SHOWN]), *(f"  {line}" for line in more)]
