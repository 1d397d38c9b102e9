"""The one reader of tables that profilers print, delimited or in columns below rules; `formats.toml` tells them apart.

What a program prints around and between quoted rows is passed over. A line that can be a piece of a row is refused: a
row that is left out makes a wrong sum.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache, cached_property
from importlib.resources import files
from itertools import pairwise
from typing import Literal

import msgspec

from rooflight.errors import BadFile
from rooflight.profiles.log import Dim3, LogText, NotCounted, cells_of, exact, shown
from rooflight.profiles.numbers import ENGLISH, PLAIN, NumberStyle, is_missing
from rooflight.units import Unit, printed_unit

_COLUMN = re.compile(r"(.*?)\s*(?:\(([^)]*)\)|\[([^\]]*)\]|_(s|ms|us|µs|ns))?")
_TIMES = frozenset({"start", "end", "time", "total", "mean"})
_DATA = re.compile(r'\s*"?-?\d')
_MESSAGE = re.compile(r"==|(NOTICE|WARNING|ERROR|FATAL ERROR|SKIPPED): ")
_NEXT_REPORT = re.compile(r"(Processing|Generating)\b")
_DATA_CELL = re.compile(r'(?:^\s*|,)"?-?\d')
_NAMES = re.compile("kernel|name", re.IGNORECASE)
_CONSOLE = ["Metric Name", "Metric Unit", "Metric Value"]
_LAST_CELL = re.compile(r',?"(?:[^"]|"")*"')
_PIECE = re.compile(r'",["\d]')
_UNQUOTED = re.compile(r"\d+,.+,\(\d+, \d+, \d+\),\(\d+, \d+, \d+\),")
_EMPTY_LINE = "an empty line above"
_PRINTED_INTO = "this is a piece of a row, or a program printed into it (--log-file keeps the two apart)"
_RULE = re.compile(r"\s*\+?-{2,}(?:[ +]{1,3}-{2,}){2,}\+?\s*")


Places = dict[str, list[tuple[int, Unit | None]]]
"""Columns and their units, by role."""


class Format(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One entry of `formats.toml`, which describes the fields."""

    tool: str
    about: str
    row: Literal["launch", "metric", "kernel"]
    needs: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    begins: str = ""
    columns: dict[str, tuple[str, ...]] = {}
    units: dict[str, str] = {}
    time: str = ""
    key: tuple[str, ...] = ()
    metrics: str = ""
    ignored: tuple[str, ...] = ()
    repeated: str = ""
    numbers: str = ""
    grid_in_threads: bool = False
    heading: str = ""
    line: str = ""
    context: tuple[str, ...] = ()

    def places(self, columns: Mapping[str, tuple[int, str]]) -> Places | None:
        """Return where the columns are and in which unit, by role; `None` if they are those of another table."""
        places: Places = {}
        for role, names in self.columns.items():
            known = [columns[name] for name in names if name in columns]
            present = [(place, printed_unit(text or self.units.get(role, ""))) for place, text in known]
            if role in _TIMES:
                present = [(place, unit) for place, unit in present if unit is not None and unit.base == "second"]
            if present:
                places[role] = present
        fits = all(any(role in places for role in need.split("|")) for need in self.needs)
        return places if fits and not any(name in columns for name in self.never) else None


def _columns(header: list[str]) -> dict[str, tuple[int, str]]:
    """Return places and units by name: `Start (ns)` is `start (ns)`, and `start` in ns. The first of a name counts."""
    columns: dict[str, tuple[int, str]] = {}
    for place, cell in enumerate(header):
        match = _COLUMN.fullmatch(cell)
        if match is not None:
            columns.setdefault(match[1].lower(), (place, match[2] or match[3] or match[4] or ""))
    return {cell.lower(): (place, "") for place, cell in reversed(list(enumerate(header)))} | columns


@cache
def formats() -> tuple[Format, ...]:
    text = files("rooflight.profiles").joinpath("formats.toml").read_text()
    return msgspec.convert(tomllib.loads(text)["format"], type=tuple[Format, ...])


@dataclass(frozen=True)
class LogTable:
    """A table of one format, and its rows."""

    source: LogText
    format: Format
    line: int
    header: list[str] = field(default_factory=list)
    places: Places = field(default_factory=dict)
    style: NumberStyle = PLAIN
    rows: list[LogRow] = field(default_factory=list)

    @cached_property
    def least(self) -> int:
        """Cells that a row must have: behind a metric's value there may be advice, or nothing."""
        whole = self.format.row != "metric" or not self.places
        return len(self.header) if whole else 1 + max(place for each in self.places.values() for place, _ in each)

    @cached_property
    def metrics(self) -> list[tuple[int, str]]:
        """The columns of metrics."""
        known = {place for role, each in self.places.items() if role != "device" for place, _ in each}
        return [
            (place, name)
            for place, name in enumerate(self.header)
            if name and place not in known and name.lower() not in self.format.ignored and "_Range:" not in name
        ]

    @cached_property
    def range_places(self) -> list[int]:
        """Columns of NVTX ranges."""
        return [place for place, name in enumerate(self.header) if "_Range:" in name]


@dataclass(frozen=True)
class LogRow:
    """A row: its cells by role, as `context` or the columns tell them."""

    table: LogTable
    line: int
    cells: list[str]
    context: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, role: str) -> str:
        """The first of the role's cells that holds something."""
        for place, _ in self.table.places.get(role, ()):
            if place < len(self.cells) and (cell := self.cells[place].strip()):
                return cell
        return self.context.get(role) or ""

    def bad(self, message: str) -> BadFile:
        return self.table.source.bad(self.line, message)

    def number(self, role: str) -> Decimal | None:
        """A number in its base unit; `None` where there is none."""
        if role not in self.table.places or (is_missing(text := self[role]) and role != "time"):
            return None
        place, unit = self.table.places[role][0]
        value = self.table.style.parse(text)
        name = self.table.header[place].partition(" (")[0]
        if value is None or unit is None or (value < 0 and role != "start"):
            raise self.bad(f"{name} is {shown(text)}, which is no number of this column, or in no unit of it")
        try:
            exact(value, may_be_negative=True)
        except NotCounted as problem:
            raise self.bad(f"{name} is {shown(text)}: {problem}") from None
        return unit.in_base(value)

    def sizes(self, role: str) -> Dim3 | None:
        """`(22, 1, 64)` of one cell or three; `None` where there are none."""
        places = self.table.places.get(role, ())
        text = ",".join([self.cells[place] for place, _ in places if place < len(self.cells)]) or self[role]
        sizes = re.fullmatch(r"[(\s]*(\d{1,10})[,\s]+(\d{1,10})[,\s]+(\d{1,10})[)\s]*", text)
        if sizes is None and text.strip(", "):
            raise self.bad(f"{role} is {shown(text)}, which are no three whole numbers")
        return None if sizes is None else (int(sizes[1]), int(sizes[2]), int(sizes[3]))

    def calls(self) -> int:
        """How many launches the row stands for; 1 where it does not say."""
        text = self["calls"] or "1"
        # Programs print for programs without marks: there `2.500` is no whole number.
        grouped = r"|\d{1,3}(?:[.,\s'’]\d{3}){1,2}" if self.table.style is ENGLISH or self.table.format.numbers else ""
        digits = re.sub(r"\D", "", text)
        if not re.fullmatch(rf"\d{{1,9}}{grouped}", text) or not int(digits):
            raise self.bad(f"{shown(text)} is no number of calls that rooflight can import")
        return int(digits)


def tables(source: LogText) -> list[LogTable]:
    """Return the tables of the format that stands first in `formats.toml`. Of sums by kernel the first alone: nsys
    prints the same launches in several reports."""
    present = [*_delimited(source), *_ruled(source), *_by_lines(source)]
    if not present:
        return []
    first = min(formats().index(table.format) for table in present)
    found = [table for table in present if table.format.about == formats()[first].about]
    return found[:1] if found[0].format.row == "kernel" else found


# --- delimited tables ---


def _delimited(source: LogText) -> Iterator[LogTable]:
    table: LogTable | None = None
    ended = False
    for number, line in source.numbered():
        if (opened := _header(source, number, line, first=table is None)) is not None:
            if table is not None and table.format.row == "kernel" and not ended:
                raise source.torn(number, "a second header among the rows")
            table, ended = opened, False
            yield opened
        elif table is None or _MESSAGE.match(line):
            continue
        elif not line.strip():
            ended = bool(table.rows) and not table.format.begins
        elif _NEXT_REPORT.match(line) and not table.format.begins:
            table = None
        else:
            cells = cells_of(line) or []
            fits = table.least <= len(cells) <= len(table.header)
            if fits and not ended and (line.startswith('"') or not table.format.begins):
                if number == len(source.lines) and table.format.row != "kernel" and not line.endswith('"'):
                    raise source.torn(number, "the last row has no line end")
                table.rows.append(LogRow(table, number, cells))
            elif _is_piece(line) if table.format.begins else not ended or (fits and _DATA_CELL.search(line)):
                counts = f"{len(cells)} cells where the header has {len(table.header)}"
                raise source.torn(number, counts if cells and not fits else _EMPTY_LINE if ended else _PRINTED_INTO)
            elif not table.format.begins:
                table = None


def _is_piece(line: str) -> bool:
    """Can the line be what is left of a quoted row? A row ends in a quote, the JSON of a program in a bracket."""
    if re.match(r'"\d*"', line) or _UNQUOTED.match(line) or (line.endswith('"') and line.count('"') % 2):
        return True
    return _LAST_CELL.fullmatch(line) is not None or (
        _PIECE.search(line) is not None and not line.rstrip().endswith(("}", "]"))
    )


def _header(source: LogText, number: int, line: str, *, first: bool) -> LogTable | None:
    """The table that begins with this line. A program that does not end its last line shares it with the header."""
    if "," not in line or not _NAMES.search(line) or _DATA.match(line) or (not first and _DATA_CELL.search(line)):
        return None
    for format in formats():
        begin = (re.search if first else re.match)(format.begins, line)
        if format.context or begin is None:
            continue
        header = [cell.strip() for cell in cells_of(line[begin.start() :]) or []]
        places = format.places(_columns(header)) if len(header) > 1 else None
        if places is not None:
            return LogTable(source, format, number, header, places)
        if format.begins and "kernel" not in _columns(header) and "kernel name" not in _columns(header):
            raise source.torn(number, "the header row breaks off")
    return None


# --- tables in columns, as they are printed for people ---


def _is_rule(line: str) -> bool:
    return line.lstrip(" +").startswith("--") and _RULE.fullmatch(line) is not None


def _ruled(source: LogText) -> Iterator[LogTable]:
    """Tables with rules of dashes: of Nsight Compute below the heading of their kernel, and of Nsight Systems."""
    console = next(format for format in formats() if format.context and not format.line)
    heading: dict[str, str] = {}
    end = -1
    for number, line in enumerate(source.lines):
        if number > end and _is_rule(line):
            table, end = _ruled_table(source, number, heading, console)
            if table is not None:
                yield table
        elif number > end and ", " in line and (match := re.fullmatch(console.context[0], line)) is not None:
            heading = {"line": str(number), **{role: text for role, text in match.groupdict().items() if text}}
    if heading and re.match(r"  \S", source.lines[-1]):
        raise source.torn(len(source.lines), "the heading of a kernel has no line end", again="record")


def _ruled_table(source: LogText, rule: int, heading: dict[str, str], console: Format) -> tuple[LogTable | None, int]:
    """The table with this rule, counted from 0, and its last line. The names of columns are between two rules, or
    above the only one; Nsight Compute before 2022 has none."""
    lines = source.lines
    spans = [match.span() for match in re.finditer("-{2,}", lines[rule])]
    boxed = rule + 2 < len(lines) and _is_rule(lines[rule + 2])
    names = rule + 1 if boxed else rule - 1
    header = _CONSOLE if heading and not boxed else [lines[names][start:end].strip() for start, end in spans]
    known = (console,) if heading else [format for format in formats() if format.tool == "nsys"]
    fitting = [(format, places) for format in known if (places := format.places(_columns(header))) is not None]
    if not fitting:
        return None, rule
    table = LogTable(source, fitting[0][0], names + 1, header, fitting[0][1], ENGLISH)
    end = rule + 3 if boxed else rule + 1
    while end < len(lines) and lines[end].strip() and not _is_rule(lines[end]):
        table.rows.append(LogRow(table, end + 1, _ruled_cells(source, end, spans), heading))
        end += 1
    if heading and not (end < len(lines) and lines[end].strip()):
        raise source.torn(rule + 1, "the table of this section has no end", again="record")
    return table, end


def _ruled_cells(source: LogText, number: int, spans: list[tuple[int, int]]) -> list[str]:
    """The cells below their rules. The last may be longer; a name too long for its column pushes the others on."""
    line = re.sub(r"\(!\) (\S+)$", r"\1", source.lines[number].rstrip())
    gaps = "".join(line[end:start] for (_, end), (start, _) in pairwise(spans))
    if len(line) > spans[-1][0] and not gaps.strip(" |"):
        ends = [*(end for _, end in spans[:-1]), None]
        return [line[start:end].strip(" |") for (start, _), end in zip(spans, ends, strict=True)]
    name, *rest = re.split(r"\s{2,}", line.strip())
    cells = [name, *([""] if len(rest) == len(spans) - 2 else []), *rest]
    if len(cells) != len(spans):
        raise source.torn(number + 1, "the cells of this row do not stand below their columns")
    return cells


def _by_lines(source: LogText) -> Iterator[LogTable]:
    """Tables of which every line is told by a pattern: nvprof's."""
    (format,) = (format for format in formats() if format.line)
    table: LogTable | None = None
    context: dict[str, str] = {}
    for number, line in source.numbered():
        if re.fullmatch(format.heading, line):
            table = LogTable(source, format, number)
            yield table
        elif line.startswith("==") or "Event Name" in line:
            table = None
        elif table is not None and line.strip():
            if (match := next(filter(None, (re.fullmatch(each, line) for each in format.context)), None)) is not None:
                context |= match.groupdict()
            elif (match := re.fullmatch(format.line, line)) is not None and number < len(source.lines):
                table.rows.append(LogRow(table, number, [], context | match.groupdict()))
            elif line[0].isspace():
                raise source.torn(number, "this is no row of the table above", again="record")
