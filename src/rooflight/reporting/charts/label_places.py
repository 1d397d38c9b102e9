"""Where labels of points go so that they cover neither points nor each other: those that find no room are left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_LETTER = 6.0
"""Mean width of a letter and height of a line in pixels, at the size that labels have."""
_LINE = 13.0
_GAP = 3.0
_BELOW = 3
"""Its number among the places around a point."""


@dataclass(frozen=True)
class Box:
    """A rectangle in pixels, from its centre."""

    x: float
    y: float
    width: float
    height: float

    def meets(self, other: Box) -> bool:
        return (2 * abs(self.x - other.x) < self.width + other.width
                and 2 * abs(self.y - other.y) < self.height + other.height)  # fmt: skip


@dataclass(frozen=True)
class Point:
    """A point of some size, and what is to be written at it; nothing: it is only in the way."""

    x: float
    y: float
    radius: float
    text: str = ""
    always: bool = False
    """Its text stands below it where there is no room."""


def placed(points: Sequence[Point], *, width: float, height: float, taken: Iterable[Box] = ()) -> list[Box | None]:
    """A box for the text of every point, in their order; `None` where it has no text or there is no room for it."""
    dots = [Box(point.x, point.y, 2 * point.radius, 2 * point.radius) for point in points]
    held = list(taken)
    found: list[Box | None] = []
    for point in points:
        around = _around(point)
        box = next((one for one in around if _is_free(one, dots, held, width, height)), None)
        if box is None and point.always:
            box = around[_BELOW]
        found.append(box if point.text else None)
        if point.text and box is not None:
            held.append(box)
    return found


def _around(point: Point) -> list[Box]:
    """Right, left, above, below, then the corners."""
    wide, beside = _LETTER * len(point.text), point.radius + _GAP
    x, y = beside + wide / 2, beside + _LINE / 2
    places = ((x, 0.0), (-x, 0.0), (0.0, -y), (0.0, y), (x, -y), (x, y), (-x, -y), (-x, y))
    return [Box(point.x + dx, point.y + dy, wide, _LINE) for dx, dy in places]


def _is_free(box: Box, dots: Sequence[Box], held: Sequence[Box], width: float, height: float) -> bool:
    inside = box.width / 2 <= box.x <= width - box.width / 2 and box.height / 2 <= box.y <= height - box.height / 2
    return inside and not any(box.meets(other) for other in (*dots, *held))
