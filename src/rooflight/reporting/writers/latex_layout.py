"""How a table is set in a given width: its font, the widths of its columns, and in how many parts it stands."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from rooflight.reporting.writers.latex_signs import BOLD, text_width, widest_piece, words

INDENT = 0.35
"""Em for each space that a name in a tree is indented by."""
HANG = 0.8
"""Em by which the lines of a name are indented that follow its first."""
_DEEPEST = 6.0
"""Em that an indent takes at most."""
_WHOLE = 14.0
"""Em up to which a number, or what else is set to the right, is never wrapped."""
_HIGH, _HIGH_IN_PARTS = 2.0, 1.3
"""Lines that a row has at most, in the mean, before a smaller font is taken."""
_STEPS, _LOOKED_AT = 40, 200
"""In so many steps the room of a table is given away, looking at about so many of its rows."""
_KEYS = 6
"""So many columns at most are repeated in every part of a table, if they take not more than this share of its width."""
_SHARE = 0.55


@dataclass(frozen=True)
class Font:
    """One of the sizes that LaTeX has names for; sizes are those of a 10 pt document."""

    name: str
    size_pt: float
    line_pt: float
    sep_pt: float
    """Half of what is between two columns (tabcolsep)."""
    wider: float
    """How much wider a sign is than at 10 pt, in em: small fonts are drawn wider."""

    @property
    def em_pt(self) -> float:
        """Of a width that is reckoned in em at 10 pt."""
        return self.size_pt * self.wider


FONTS = (
    Font("normalsize", 10, 12, 6, 1.0),
    Font("small", 9, 11, 5, 1.028),
    Font("footnotesize", 8, 9.5, 4, 1.063),
    Font("scriptsize", 7, 8.2, 2.5, 1.139),
)


@dataclass(frozen=True)
class _Rule:
    """What columns are given at least."""

    most: float
    """Em up to which a text that wraps has room for its widest piece."""
    comfort: float
    """Em that it has in any case, if it is not shorter."""
    words: bool = True
    """Are words of headings left whole?"""


_COMFORT, _CLOSE, _TIGHT = _Rule(14, 8), _Rule(9, 6), _Rule(7, 4, words=False)


@dataclass(frozen=True)
class LatexGrid:
    """A table as text: what is laid out."""

    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[bool, ...]
    bold: frozenset[int] = frozenset()


@dataclass(frozen=True)
class PlacedColumn:
    """A column in its place."""

    number: int
    """Which of the table's."""
    body_pt: float
    """What its cells take: their widest, or the width at which they wrap."""
    head_pt: float
    """At which its heading wraps."""
    wraps: bool
    """Are its cells paragraphs?"""


@dataclass(frozen=True)
class TablePart:
    """Columns that stand side by side, all rows below them."""

    font: Font
    columns: tuple[PlacedColumn, ...]

    @property
    def width_pt(self) -> float:
        """As it is reckoned: what LaTeX makes of it is not wider."""
        return sum(max(column.body_pt, column.head_pt) for column in self.columns) + _seps(len(self.columns), self.font)


@dataclass(frozen=True)
class _ColumnWidths:
    """A column in em."""

    natural: float
    """Its widest cell in one line."""
    piece: float
    """The widest part of a word in it, with what is before it in its line."""
    head: float
    """Its heading in one line."""
    head_word: float
    """The widest word of its heading."""
    head_piece: float
    """The widest part of one."""
    right: bool
    cells: tuple[float, ...]
    """Each cell in one line; of many, some."""

    def least(self, rule: _Rule, cap: float) -> float:
        """What its cells need."""
        if self.right and self.natural <= min(_WHOLE, cap):
            return self.natural
        return min(self.natural, max(min(self.piece, rule.most), rule.comfort), cap)

    @property
    def two_line_head(self) -> float:
        """Its heading in two lines, about."""
        return min(self.head, (self.head + self.head_word) / 2)

    def head_least(self, rule: _Rule, cap: float) -> float:
        return min(self.head_word if rule.words else self.head_piece, max(rule.most, rule.comfort), cap)


@dataclass(frozen=True)
class _Setting:
    """A way to set the columns of a table."""

    measured: Sequence[_ColumnWidths]
    """All of its columns."""
    width_pt: float
    font: Font
    rule: _Rule = _COMFORT

    def least(self, columns: Sequence[int]) -> list[float]:
        """Em that each of these columns needs, if it asks for no more than leaves room for a second one."""
        cap = (self.width_pt - _seps(2, self.font)) / self.font.em_pt / (1 if len(columns) == 1 else 2)
        of = (self.measured[number] for number in columns)
        return [max(widths.least(self.rule, cap), widths.head_least(self.rule, cap)) for widths in of]

    def needed_pt(self, columns: Sequence[int]) -> float:
        return sum(self.least(columns)) * self.font.em_pt + _seps(len(columns), self.font)

    def part(self, columns: Sequence[int]) -> TablePart:
        """Room that is left goes to the cells that wrap, where it saves most lines, then to headings."""
        room = (self.width_pt - _seps(len(columns), self.font)) / self.font.em_pt
        of = [self.measured[number] for number in columns]
        least = self.least(columns)
        if self.rule is _COMFORT and of[0].natural <= min(room * 0.4, room - sum(least[1:])):
            least[0] = max(least[0], of[0].natural)  # names in one line are found faster
        two_lines = [max(em, widths.two_line_head) for em, widths in zip(least, of, strict=True)]
        if sum(two_lines) - sum(least) <= (room - sum(least)) / 2:
            least = two_lines
        bodies = _fewest_lines(of, least, room)
        heads = [max(em, widths.head) for em, widths in zip(bodies, of, strict=True)]
        if sum(heads) > room:
            heads = [max(em, widths.two_line_head) for em, widths in zip(bodies, of, strict=True)]
        placed = zip(columns, of, _filled(bodies, heads, room), strict=True)
        return TablePart(self.font, tuple(_placed(number, widths, em, self.font) for number, widths, em in placed))

    def divided(self, keys: Sequence[int]) -> list[TablePart]:
        """The columns in as few parts as there can be, all about as wide; none where a column has no room."""
        fewest = self._groups(keys, self.width_pt)
        if any(self.needed_pt(columns) > self.width_pt for columns in fewest):
            return []
        tries = (self._groups(keys, self.width_pt * (share / 50)) for share in range(1, 51))
        evenly = next(groups for groups in tries if len(groups) == len(fewest))
        return [self.part(columns) for columns in evenly]

    def _groups(self, keys: Sequence[int], most_pt: float) -> list[tuple[int, ...]]:
        groups: list[tuple[int, ...]] = []
        for number in range(len(keys), len(self.measured)):
            if groups and self.needed_pt((*groups[-1], number)) <= most_pt:
                groups[-1] = (*groups[-1], number)
            else:
                groups.append((*keys, number))
        return groups


def laid_out(grid: LatexGrid, width_pt: float) -> list[TablePart]:
    """The table in parts that are not wider than `width_pt`: one, in the largest font in which it fits and its rows are
    not too high; several, one below the other and each with the first column, if it fits in none."""
    columns = range(len(grid.names))
    measured = [_measured(grid, number) for number in columns]
    settings = [_Setting(measured, width_pt, font) for font in FONTS]
    settings += [_Setting(measured, width_pt, FONTS[-1], rule) for rule in (_CLOSE, _TIGHT)]
    fitting = [[setting.part(columns)] for setting in settings if setting.needed_pt(columns) <= width_pt]
    return _best(fitting, measured, _HIGH) if fitting else _in_parts(grid, measured, width_pt)


def _best(ways: Sequence[list[TablePart]], measured: Sequence[_ColumnWidths], high: float) -> list[TablePart]:
    """The first whose rows are not too high; else the first in small print."""
    low = (parts for parts in ways if max(_lines_a_row(part, measured) for part in parts) <= high)
    small = (parts for parts in ways if parts[0].font in FONTS[2:])
    return next(low, None) or next(small, ways[-1])


def _lines_a_row(part: TablePart, measured: Sequence[_ColumnWidths]) -> float:
    wrapped = [column for column in part.columns if column.wraps]
    rows = list(zip(*(measured[column.number].cells for column in wrapped), strict=True))
    widths = [column.body_pt / part.font.em_pt for column in wrapped]
    return sum(max(map(_lines, row, widths)) for row in rows) / len(rows) if rows else 1.0


def _lines(cell: float, width: float) -> int:
    """How many a text takes, about: some room is left at the end of each."""
    return 1 if cell <= width else math.ceil(cell / width + 0.2)


def _in_parts(grid: LatexGrid, measured: Sequence[_ColumnWidths], width_pt: float) -> list[TablePart]:
    keys = _keys(grid, _Setting(measured, width_pt, FONTS[-1], _CLOSE))
    ways = [_Setting(measured, width_pt, font, rule).divided(keys) for rule in (_CLOSE, _TIGHT) for font in FONTS[2:]]
    if not any(ways):
        ways = [_Setting(measured, width_pt, FONTS[-1], _TIGHT).divided(keys[:1])]
    fewest = min(len(parts) for parts in ways if parts)
    return _best([parts for parts in ways if len(parts) == fewest], measured, _HIGH_IN_PARTS)


def _keys(grid: LatexGrid, setting: _Setting) -> range:
    """The columns that every part begins with: the first; or as many of the first texts and whole numbers as tell the
    rows apart. A tree's rows are told apart by their order."""
    keys, apart = range(1), len({row[:1] for row in grid.rows})
    if any(row[0].startswith(" ") for row in grid.rows):
        return keys
    for count in range(2, min(_KEYS, len(grid.names) - 1) + 1):
        last = count - 1
        counts = all(row[last].replace(",", "").isdecimal() for row in grid.rows)
        narrow = setting.needed_pt(range(count)) <= setting.width_pt * _SHARE
        if not narrow or (grid.right[last] and not counts):
            break
        distinct = len({row[:count] for row in grid.rows})
        if distinct > apart:
            keys, apart = range(count), distinct
    return keys


def _seps(columns: int, font: Font) -> float:
    return 2 * font.sep_pt * max(columns - 1, 0)


def _placed(number: int, of: _ColumnWidths, em: float, font: Font) -> PlacedColumn:
    """Widths that are written are cut to tenths of a point: their sum must not be more than there is."""
    wraps, broken = of.natural > em + 1e-9, of.head > em + 1e-9
    cut = math.floor(em * font.em_pt * 10) / 10
    return PlacedColumn(
        number, cut if wraps else of.natural * font.em_pt, cut if broken else of.head * font.em_pt, wraps
    )


def _filled(least: Sequence[float], most: Sequence[float], room: float) -> list[float]:
    """Widths between least and most that fill the room: all that get more than their least get as much."""
    if sum(most) <= room:
        return list(most)
    low, high = 0.0, max(most)
    for _ in range(40):
        level = (low + high) / 2
        filled = sum(max(have, min(full, level)) for have, full in zip(least, most, strict=True))
        low, high = (level, high) if filled <= room else (low, level)
    return [max(have, min(full, low)) for have, full in zip(least, most, strict=True)]


def _fewest_lines(of: Sequence[_ColumnWidths], least: Sequence[float], room: float) -> list[float]:
    """Widths of at least so much, so that the rows together are as low as they can be."""
    most = [max(need, column.natural) for need, column in zip(least, of, strict=True)]
    if sum(most) <= room:
        return most
    widths = list(least)
    step = (room - sum(least)) / _STEPS
    wrapped = [number for number, full in enumerate(most) if full > least[number]]
    rows = list(zip(*(of[number].cells for number in wrapped), strict=True))

    def height_with(wider: int) -> float:
        return _height(rows, [widths[number] + (step if number == wider else 0) for number in wrapped])

    for _ in range(_STEPS):
        widths[min((number for number in wrapped if widths[number] < most[number]), key=height_with)] += step
    return [min(width, full) for width, full in zip(widths, most, strict=True)]


def _height(rows: Sequence[Sequence[float]], widths: Sequence[float]) -> float:
    """Lines of all rows; what does not make a row higher counts a little, too."""
    lines = ([max(cell / width, 1.0) for cell, width in zip(row, widths, strict=True)] for row in rows)
    return sum(max(row) + 0.05 * sum(row) for row in lines)


def indent(text: str) -> float:
    """Em before a name in a tree."""
    return min(INDENT * (len(text) - len(text.lstrip(" "))), _DEEPEST)


def _measured(grid: LatexGrid, number: int) -> _ColumnWidths:
    piece, cells = 0.0, []
    for at, row in enumerate(grid.rows):
        wider = BOLD if at in grid.bold else 1.0
        before = indent(row[number])
        cells.append(wider * text_width(row[number]) + before)
        piece = max(piece, wider * widest_piece(row[number]) + before + (HANG if number == 0 else 0))
    some = tuple(cells[:: max(len(cells) // _LOOKED_AT, 1)])
    name = grid.names[number]
    head = (text_width(name), _head_word(name), widest_piece(name))
    return _ColumnWidths(max(cells, default=0.0), piece, *head, grid.right[number], some)


def _head_word(name: str) -> float:
    """A heading wraps at its spaces, and behind a stroke or a hyphen between two words."""
    widths = [0.0]
    for word in words(name):
        parts = re.findall(r"[^/-]*[/-]?", word)[:-1]
        widths += [text_width(part) for part in (parts if all(len(part) > 2 for part in parts) else [word])]
    return max(widths)
