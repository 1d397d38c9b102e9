"""A table of times that somebody has: CSV with the columns op, dtype, a time with its unit, and shapes or numbers.

    op,shape,dtype,time_us
    linear,512x1024 4096x1024,fp16,38.1
    conv2d,16x64x56x56 64x64x3x3,fp32,412

What a row cannot mean is refused with its line and column; nothing is guessed.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rooflight.calibration.recorded_points import TimedTask
from rooflight.calibration.written_ops import NotAWork, Shape, WrittenOp, task_of
from rooflight.errors import BadFile, suggest
from rooflight.files import read_bytes
from rooflight.hardware.device import Device
from rooflight.ops.kernel_task import FAMILIES
from rooflight.profiles.log import LogText, decode, shown

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0}
_TIME = re.compile(r"(?:gpu_|cuda_|kernel_)?time(?:[ _]*[\[(]?([a-zµμ]+)[\])]?)?", re.IGNORECASE)
_ALIASES = {
    "padding": "pad",
    "shapes": "shape",
    "type": "dtype",
    "precision": "dtype",
    "family": "op",
    "calls": "count",
}
_DTYPES = {
    **dict.fromkeys(("fp64", "float64", "double"), "fp64"),
    **dict.fromkeys(("fp32", "float32", "float"), "fp32"),
    "tf32": "tf32",
    **dict.fromkeys(("bf16", "bfloat16"), "bf16"),
    **dict.fromkeys(("fp16", "float16", "half"), "fp16"),
}
_LAYOUTS = {"nchw": 0, "contiguous": 0, "nhwc": 1, "channels-last": 1}
_WORDS = {"true": 1, "yes": 1, "false": 0, "no": 0}
_TEXTS = ("op", "shape", "dtype", "device", "layout")
_NUMBERS = {"count", "kernels", "length", *(name for numbers in FAMILIES.values() for name in numbers)}
_MOST = 2**62
_SIDES = re.compile(r"[0-9]+(?:[x×*][0-9]+)*")


@dataclass(frozen=True)
class TimedRow:
    """A row of the table: its line, and what stands in it."""

    line: int
    op: WrittenOp
    seconds: float
    kernels: int
    device: str
    """Empty: the row names none."""


@dataclass(frozen=True)
class _TimesTable:
    source: LogText
    delimiter: str
    columns: list[str]
    time: str
    """The column of the time, as it is written."""
    unit_s: float


def is_table(content: bytes) -> bool:
    """Does the first line that says something name an op and a time?"""
    text = decode(content[:4096]) or ""
    head = next((line for line in text.split("\n") if line.strip() and not line.startswith("#")), "")
    names = [_plain(cell) for cell in re.split(r"[,;\t]", head)]
    return len(names) > 1 and ("op" in names or "family" in names)


def read_table(path: Path) -> list[TimedRow]:
    """The rows of a file; what is wrong with it is said with line and column."""
    content = read_bytes(path, what="table of times")
    text = decode(content)
    if not content.strip():
        raise BadFile("empty-table", f"{path} is empty: write a table of op, shape, dtype and time into it")
    if text is None:
        raise BadFile("not-text", f"{path} is no text: save the table as CSV")
    source = LogText(str(path), text)
    rows = list(_rows(source))
    if not rows:
        raise source.bad(len(source.lines), "there is a header and no row of times below it")
    return rows


def works_of(rows: list[TimedRow], device: Device, *, name: str) -> list[TimedTask]:
    """The works of a table, for the device it is of."""
    works = []
    for row in rows:
        op = row.op
        try:
            task = task_of(WrittenOp(op.op, op.dtype, op.shapes, op.numbers, device.capability))
        except NotAWork as problem:
            raise BadFile("bad-work", f"{name}, line {row.line}: {problem}") from None
        if max(task.numbers) >= _MOST:
            raise BadFile(
                "out-of-range", f"{name}, line {row.line}: the work is larger than any device holds: check its sizes"
            )
        works.append(TimedTask(task, row.seconds, row.kernels, f"{name}, line {row.line}"))
    return works


def _rows(source: LogText) -> Iterator[TimedRow]:
    table: _TimesTable | None = None
    for number, line in source.numbered():
        if not line.strip() or line.startswith("#"):
            continue
        if table is None:
            table = _table(source, number, line)
            continue
        cells = _cells(source, number, line, table.delimiter)
        if len(cells) != len(table.columns):
            raise source.torn(number, f"{len(cells)} cells where the header has {len(table.columns)}", again="save")
        yield _row(table, number, dict(zip(table.columns, cells, strict=True)))
    if table is None:
        raise source.bad(len(source.lines), "there is no header: write one such as op,shape,dtype,time_us")


def _cells(source: LogText, number: int, line: str, delimiter: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter, strict=True), [])]
    except csv.Error:
        raise source.torn(number, "this row breaks off inside a quoted cell", again="save") from None


def _plain(text: str) -> str:
    name = text.strip().strip('"').lower().replace(" ", "_")
    return _ALIASES.get(name, name)


def _table(source: LogText, number: int, line: str) -> _TimesTable:
    delimiter = max(",;\t", key=line.count)
    names = _cells(source, number, line, delimiter)
    times = [(name, match[1]) for name in names if (match := _TIME.fullmatch(name))]
    if len(times) != 1:
        which = f"{len(times)} columns hold times" if times else "no column holds times"
        raise source.bad(number, f"{which}: name one time_ns, time_us, time_ms or time_s")
    time, unit = times[0]
    if unit is None or unit not in _UNITS:
        wrong = "has no unit" if unit is None else f"is in {unit!r}, which is no unit of time here"
        raise source.bad(number, f"column {time} {wrong}: name it time_ns, time_us, time_ms or time_s")
    columns = ["time" if name == time else _plain(name) for name in names]
    known = {"time", *_TEXTS, *_NUMBERS}
    for name, column in zip(names, columns, strict=True):
        if column not in known:
            hint = suggest(column, known, otherwise="docs/calibrating.md lists the columns")
            raise source.bad(number, f"column {shown(name)} is not known: {hint}")
        if columns.count(column) > 1:
            raise source.bad(number, f"column {column} is there {columns.count(column)} times: leave one")
    missing = [name for name in ("op", "dtype") if name not in columns]
    if missing:
        raise source.bad(number, f"column {missing[0]} is missing: a row is an op, its dtype, its sizes and its time")
    return _TimesTable(source, delimiter, columns, time, _UNITS[unit])


def _row(table: _TimesTable, line: int, cells: dict[str, str]) -> TimedRow:
    def bad(column: str, message: str) -> BadFile:
        return table.source.bad(line, f"column {column}: {message}")

    op = cells["op"].lower().replace("_", "-").removeprefix("aten::")
    if not op:
        raise bad("op", "empty: say which op was timed")
    dtype = _DTYPES.get(cells["dtype"].lower().removeprefix("torch."))
    if dtype is None:
        raise bad("dtype", f"{shown(cells['dtype'])} is none of fp32, tf32, bf16, fp16, fp64")
    numbers = {name: _whole(cells[name], name, bad) for name in cells.keys() & _NUMBERS if cells[name]}
    layout = cells.get("layout", "").lower().replace("_", "-")
    if layout:
        if layout not in _LAYOUTS:
            raise bad("layout", f"{shown(layout)} is neither nchw nor nhwc")
        numbers.setdefault("channels_last", _LAYOUTS[layout])
    count, kernels = numbers.pop("count", 1), numbers.pop("kernels", 1)
    if not count or not kernels:
        raise bad("count" if not count else "kernels", "0 of them take no time")
    seconds = _seconds(table, cells["time"], bad) / count
    shapes = _shapes(cells.get("shape", ""), bad)
    return TimedRow(line, WrittenOp(op, dtype, shapes, numbers), seconds, kernels, cells.get("device", ""))


_Bad = Callable[[str, str], BadFile]


def _seconds(table: _TimesTable, text: str, bad: _Bad) -> float:
    try:
        value = float(text)
    except ValueError:
        hint = ": write decimals with a point" if re.fullmatch(r"[0-9]+,[0-9]+", text) else ""
        raise bad(table.time, f"{shown(text)} is no number{hint}") from None
    if not math.isfinite(value) or value <= 0:
        raise bad(table.time, f"{shown(text)} is no time that anything takes")
    seconds = value * table.unit_s
    if not 1e-9 <= seconds <= 1e5:
        raise bad(table.time, f"{shown(text)} is {seconds:.3g} s: is its unit right?")
    return seconds


def _whole(text: str, column: str, bad: _Bad) -> int:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise bad(column, f"{shown(text)} is no whole number")
    return int(text)


def _shapes(text: str, bad: _Bad) -> tuple[Shape, ...]:
    """`512x1024 1024x4096`, or `[512, 1024] [1024, 4096]`."""
    if not text:
        return ()
    if re.search(r"[\[(]", text):
        groups = [re.sub(r"\s*,\s*", "x", inside.strip(" ,")) for inside in re.findall(r"[\[(]([^\[\]()]*)[\])]", text)]
        rest = re.sub(r"[\[(][^\[\]()]*[\])]|[\[\](),\s]", "", text)
    else:
        groups, rest = re.split(r"[\s,;]+", text.strip()), ""
    if rest or not groups or not all(_SIDES.fullmatch(group) for group in groups):
        raise bad("shape", f"{shown(text)} is no list of shapes: write 512x1024 1024x4096")
    shapes = tuple(tuple(int(side) for side in re.split("[x×*]", group)) for group in groups)
    if any(not 0 < side < 2**40 for shape in shapes for side in shape):
        raise bad("shape", f"{shown(text)} has a side that no tensor has")
    return shapes
