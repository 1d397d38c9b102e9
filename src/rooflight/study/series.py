"""Rows put in order: those that differ in one axis only, and the values of one side that they have."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rooflight.study.cell import Row, Side

Place = tuple[tuple[str, str | int | bool], ...]
"""Coordinates that can be a key."""
At = dict[str, str | int | bool]
OF_THE_DEVICE = ("on", "gpus", "nodes", "parallel", "micro_batches", "pad")
"""What an estimate does not depend on."""


def place(row: Row, *, without: Collection[str] = ()) -> Place:
    return tuple(sorted((axis, value) for axis, value in row.cell.coordinates.items() if axis not in without))


def grouped(rows: Sequence[Row], *, without: Collection[str]) -> dict[Place, list[Row]]:
    """Rows that are equal but for these axes."""
    found: dict[Place, list[Row]] = {}
    for row in rows:
        found.setdefault(place(row, without=without), []).append(row)
    return found


def value(row: Row, quantity: str, side: Side) -> int | float | None:
    return row.values.get(f"{quantity}.{side}")


def varying(rows: Sequence[Row]) -> tuple[str, ...]:
    """The axes in which these rows differ; one that some of them do not have is one, too."""
    places = [row.cell.coordinates for row in rows]
    axes = dict.fromkeys(axis for one in places for axis in one)
    return tuple(axis for axis in axes if len({one.get(axis) for one in places}) > 1)


def shown(where: Place, axes: Collection[str]) -> At:
    """What of a place must be said to tell it from the others."""
    found = dict(where)
    return {axis: found[axis] for axis in axes if axis in found}
