"""The roofline in letters, for a terminal, a log or a pipe: roofs as lines, the slowest ops by letter, the step as a
star. No colours; with `ascii` nothing but ASCII."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from string import ascii_uppercase
from textwrap import wrap

from rooflight import formatting
from rooflight.formatting import seconds, tera
from rooflight.hardware.device import Device
from rooflight.hardware.roofs import ridge
from rooflight.ledger import Ledger
from rooflight.metrics import percent_text
from rooflight.reporting.charts.roofline_frame import (
    Frame,
    decades,
    frame_of,
    left_out,
    lines_of,
    roof_labels,
    slope_labels,
    title_of,
)
from rooflight.reporting.charts.roofline_marks import Basis, NoRoofline, RooflineMark, RooflineMarks, marks_of
from rooflight.reporting.table import cut

_NAMED = 10
_MARGIN = 7
"""Letters left of the axis."""
_LEAST = (40, 8)
"""Columns and lines below which nothing can be read."""
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Of a Braille letter, by row and column: lines are drawn finer than letters are."""
_BRAILLE = 0x2800


@dataclass(frozen=True)
class Glyphs:
    star: str = "★"
    other: str = "•"
    axis: str = "│"
    tick: str = "┤"
    floor: str = "─"
    mark: str = "┬"
    corner: str = "└"


_PLAIN = str.maketrans({"µ": "u", "×": "x", "…": "~", "–": "-"})
_ASCII = Glyphs("*", "o", "|", "+", "-", "+", "+")


@dataclass(frozen=True)
class LetterGrid:
    """Where a point of a frame lies among letters, counted from the left and from the top."""

    frame: Frame
    columns: int
    rows: int

    def column(self, x: float, parts: int = 1) -> int:
        """The letter, or with `parts` the part of one."""
        return self._share(x, self.frame.x, self.columns * parts)

    def row(self, y: float, parts: int = 1) -> int:
        count = self.rows * parts
        return count - 1 - self._share(y, self.frame.y, count)

    @staticmethod
    def _share(value: float, ends: tuple[float, float], count: int) -> int:
        """Both ends lie in the middle of the first and the last of `count` cells."""
        low, high = math.log10(ends[0]), math.log10(ends[1])
        return round((math.log10(value) - low) / (high - low) * (count - 1))


def text_roofline(
    ledger: Ledger, *, on: Device | None = None, width: int = 100, height: int = 22, ascii: bool = False
) -> list[str]:
    """Lines of text, at most `width` wide; the plot is `height` lines high. Where there is no roofline, one that says
    why."""
    try:
        marks = marks_of(ledger, on=on)
    except NoRoofline as why:
        return [f"no roofline: {why}"]
    basis = marks.bases[0]
    marks = replace(marks, bases=(basis,))
    frame = frame_of(marks)
    grid = LetterGrid(frame, max(width, _LEAST[0]) - _MARGIN - 1, max(height, _LEAST[1]))
    look = _ASCII if ascii else Glyphs()
    ops = [mark for mark in marks.marks if mark.kind in ("op", "kernel", "region") and frame.holds(mark, basis)]
    letters = _letters(ops, grid, basis)
    points = [(look.other, mark) for mark in ops] + letters[::-1]
    if marks.step is not None and frame.holds(marks.step, basis):
        points.append((look.star, marks.step))
    cells = _ascii_lines(marks, grid) if ascii else _fine_lines(marks, grid)
    for sign, mark in points:
        row, column = _cell(mark, grid, basis)
        cells[row][column] = sign
    _write_roofs(cells, marks, grid)
    what = "executed FLOPs over DRAM bytes" if basis == "as counted" else "useful FLOPs over compulsory bytes"
    lines = [
        *wrap(f"roofline of {title_of(marks, ledger)}; times {marks.times}, {basis}: {what}", width),
        *_framed(cells, grid, look),
        "",
        *_legend(marks, letters, basis, look, width),
        *_foot(marks, frame, width),
    ]
    if ascii:
        lines = [line.translate(_PLAIN).encode("ascii", "replace").decode() for line in lines]
    return [line.rstrip() for line in lines]


def _letters(ops: Sequence[RooflineMark], grid: LetterGrid, basis: Basis) -> list[tuple[str, RooflineMark]]:
    """The slowest ops, each with its letter; those that share a cell share the letter."""
    at: dict[tuple[int, int], str] = {}
    return [(at.setdefault(_cell(mark, grid, basis), ascii_uppercase[len(at)]), mark) for mark in ops[:_NAMED]]


def _cell(mark: RooflineMark, grid: LetterGrid, basis: Basis) -> tuple[int, int]:
    place = mark.places[basis]
    assert place.intensity and place.flops_per_s
    return grid.row(place.flops_per_s), grid.column(place.intensity)


def _framed(cells: Sequence[Sequence[str]], grid: LetterGrid, look: Glyphs) -> list[str]:
    """With both axes."""
    ticks = {grid.row(value): _short(value) for value in decades(grid.frame.y)}
    rows = [
        f"{ticks.get(number, ''):>{_MARGIN - 1}} {look.tick if number in ticks else look.axis}{''.join(row)}"
        for number, row in enumerate(cells)
    ]
    return [f"{'FLOP/s':>{_MARGIN}}", *rows, *_x_axis(grid, look)]


def _x_axis(grid: LetterGrid, look: Glyphs) -> list[str]:
    ticks = {grid.column(value): _plain(value) for value in decades(grid.frame.x, most=max(2, grid.columns // 9))}
    rule = "".join(look.mark if column in ticks else look.floor for column in range(grid.columns))
    labels = [" "] * (grid.columns + 12)
    for column, text in ticks.items():
        start = max(0, min(column - len(text) // 2, grid.columns - len(text)))
        labels[start : start + len(text)] = text
    title = "FLOP/B"
    return [
        " " * _MARGIN + look.corner + rule,
        " " * (_MARGIN + 1) + "".join(labels).rstrip(),
        " " * (_MARGIN + 1 + max(0, grid.columns - len(title))) + title,
    ]


def _fine_lines(marks: RooflineMarks, grid: LetterGrid) -> list[list[str]]:
    """Peaks in Braille, two dots wide and four high in every letter."""
    dots = [[0] * grid.columns for _ in range(grid.rows)]
    for column, row in _traced(marks, grid, (2, 4)):
        dots[row // 4][column // 2] |= _DOTS[row % 4][column % 2]
    return [[chr(_BRAILLE + held) if held else " " for held in row] for row in dots]


def _ascii_lines(marks: RooflineMarks, grid: LetterGrid) -> list[list[str]]:
    cells = [[" "] * grid.columns for _ in range(grid.rows)]
    traced = set(_traced(marks, grid, (1, 1)))
    for column, row in traced:
        flat = (column - 1, row) in traced and (column + 1, row) in traced
        cells[row][column] = "-" if flat else "/"
    return cells


def _traced(marks: RooflineMarks, grid: LetterGrid, parts: tuple[int, int]) -> list[tuple[int, int]]:
    """Every cell, or part of one, that a peak of the step runs through."""
    cells = []
    for line in lines_of(marks, grid.frame):
        if line.sustained or not line.used:
            continue
        first, last = (grid.column(x, parts[0]) for x in line.x)
        begin, end = (grid.row(y, parts[1]) for y in line.y)
        for column in range(first, last + 1):
            share = (column - first) / (last - first) if last > first else 0.0
            row = round(begin + share * (end - begin))
            if 0 <= row < grid.rows * parts[1]:
                cells.append((column, row))
    return cells


def _write_roofs(cells: list[list[str]], marks: RooflineMarks, grid: LetterGrid) -> None:
    """Names at the roofs, above or below, as far right as nothing is in the way."""
    apart = (grid.frame.y[1] / grid.frame.y[0]) ** (1.01 / grid.rows)
    for label in roof_labels(marks, grid.frame, every=False, apart=apart):
        text, line = label.lines[1], grid.row(label.y)
        first = grid.column(label.y / marks.roofs.slope().bytes_per_s)
        for row in (line - 1, line + 1):
            free = [
                start
                for start in range(first, grid.columns - len(text) + 1)
                if 0 <= row < grid.rows and set(cells[row][start : start + len(text)]) == {" "}
            ]
            if free:
                cells[row][free[-1] : free[-1] + len(text)] = text
                break


def _legend(
    marks: RooflineMarks, letters: Sequence[tuple[str, RooflineMark]], basis: Basis, look: Glyphs, width: int
) -> list[str]:
    """The slowest ops and the step, with their numbers."""
    step = [(look.star, marks.step)] if marks.step is not None and basis in marks.step.places else []
    table = [("", "", "time", "share", "FLOP/B", "TFLOP/s", "% of roof", "bound")]
    for letter, mark in [*step, *letters]:
        place = mark.places[basis]
        table.append(
            (
                letter,
                "the whole step" if mark.kind == "step" else _name(mark),
                seconds(mark.time_s),
                formatting.percent(mark.share),
                formatting.ratio(place.intensity),
                tera(place.flops_per_s),
                "-" if place.percent_of_roof is None else percent_text(place.percent_of_roof),
                place.bound or "",
            )
        )
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    widths[1] = min(widths[1], max(12, width - sum(widths) + widths[1] - 2 * (len(widths) - 1)))
    lines = []
    for letter, name, *numbers, bound in table:
        figures = (number.rjust(size) for number, size in zip(numbers, widths[2:-1], strict=True))
        cells = (letter.ljust(widths[0]), cut(name, widths[1]).ljust(widths[1]), *figures, bound.ljust(widths[-1]))
        lines.append("  ".join(cells)[:width])
    return lines


def _name(mark: RooflineMark) -> str:
    """`mm ×12 backward  h.[0-11].attn`."""
    count = f" ×{mark.count}" if mark.count > 1 else ""
    phase = " backward" if mark.phase == "backward" and not mark.name.endswith("backward") else ""
    return f"{cut(mark.name, 28)}{count}{phase}  {mark.module}"


def _foot(marks: RooflineMarks, frame: Frame, width: int) -> list[str]:
    slope = marks.roofs.slope()
    ridges = ", ".join(f"{roof.precision} {formatting.ratio(ridge(roof, slope))}" for roof in marks.used)
    roofs = ", ".join(label.lines[0] for label in roof_labels(marks, frame, every=False, apart=1.0))
    lasting = " (sustained)" if any(roof.measured for roof in marks.roofs.compute) else ""
    slopes = ", ".join(slope_labels(marks.roofs))
    texts = [f"roofs{lasting}: {roofs} FLOP/s; slope: {slopes}; ridges at {ridges} FLOP/B"]
    texts += [marks.how, left_out(marks, frame, marks.marks)]
    return [line for text in texts for line in wrap(text, width)]


def _short(value: float) -> str:
    """`100 T`; units.count has more digits."""
    number, _, prefix = formatting.count(value).partition(" ")
    plain = number.rstrip("0").rstrip(".") if "." in number else number
    return f"{plain} {prefix}".strip()


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"
