"""A table with a column for every quantity (`layer, FLOPs, params, output`), read as one claim a cell."""

from __future__ import annotations

from rooflight.claims.names import UnknownQuantity, named

FILE_ROW = "row of the file"
"""The remark that keeps where a cell stood: claims are numbered as if they had been written one below the other."""
_NOTHING = frozenset({"", "-", "–", "—", "/"})

Row = tuple[int, dict[str, str]]


def quantities(columns: list[str], known: tuple[str, ...]) -> list[str]:
    """The columns that are quantities themselves."""
    return [column for column in columns if column and column not in known and _is_quantity(column)]


def _is_quantity(column: str) -> bool:
    try:
        named(column)
    except UnknownQuantity:
        return False
    return True


def unfolded(rows: list[Row], columns: list[str]) -> list[Row]:
    """A row for every cell that states something, counted on from 2."""
    found: list[Row] = []
    for number, cells in rows:
        shared = {name: cell for name, cell in cells.items() if name not in columns}
        for column in columns:
            if (cell := cells.get(column, "")) not in _NOTHING:
                row = {**shared, "quantity": column, "value": cell, FILE_ROW: str(number)}
                found.append((len(found) + 2, row))
    return found
