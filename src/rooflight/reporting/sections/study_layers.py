"""Tables of a study beside that of its cells: the layers that were asked for, and how fast every step was, as tables
under a roofline are read (time, bytes, GB/s, FLOPs, FLOP/B, GFLOP/s, percent of the roof, what bounds it)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rooflight import formatting
from rooflight.formatting import bytes_, count, giga, quotient, seconds, whole_bytes
from rooflight.metrics import percent_text, ratio
from rooflight.reporting.columns import column
from rooflight.reporting.table import Cells, Column, Table, table_of
from rooflight.study.cell import StudyRow

Axis = tuple[Column, Callable[[StudyRow], Any]]


def _word(value: str | None) -> str:
    return value or "–"


# --- layers ---

LayerLine = tuple[StudyRow, str]


def _of_layer(
    name: str, key: str, write: Callable[[Any], str], optional: int = 0
) -> tuple[Column, Callable[[LayerLine], Any]]:
    """One value of a layer, or one over another."""
    key, _, base = key.partition(" / ")

    def value(line: LayerLine) -> Any:
        row, layer = line
        if base:
            return ratio(row.values.get(f"{layer}/{key}"), row.values.get(f"{layer}/{base}"))
        return row.values.get(f"{layer}/{key}", row.facts.get(f"{layer}/{key}"))

    right = write is not _word
    return Column(name, write, optional=optional, right=right, raw=f"{key} / {base}" if base else key), value


_LAYER_COLUMNS: Cells[LayerLine] = [
    _of_layer("FLOPs", "flops.estimated", formatting.exact),
    _of_layer("FLOPs, measured", "executed.measured", formatting.exact, 1),
    _of_layer("of estimated", "executed.measured / flops.estimated", quotient, 4),
    _of_layer("memory", "footprint.estimated", whole_bytes),
    _of_layer("memory, predicted", "footprint.predicted", whole_bytes, 8),
    _of_layer("memory, measured", "footprint.measured", whole_bytes, 1),
    _of_layer("output", "output.estimated", whole_bytes, 11),
    _of_layer("parameters", "param_bytes.estimated", whole_bytes, 12),
    _of_layer("workspace, predicted", "workspace.predicted", whole_bytes, 13),
    _of_layer("workspace, measured", "workspace.measured", whole_bytes, 9),
    _of_layer("growth, measured", "growth.measured", whole_bytes, 14),
    _of_layer("bytes", "bytes.estimated", bytes_, 5),
    _of_layer("DRAM, measured", "bytes.measured", bytes_, 6),
    _of_layer("time, predicted", "kernel_time.predicted", seconds, 2),
    _of_layer("time, measured", "kernel_time.measured", seconds, 2),
    _of_layer("GFLOP/s, predicted", "flops_per_s.predicted", giga, 7),
    _of_layer("GFLOP/s, measured", "executed_per_s.measured", giga, 7),
    _of_layer("GB/s, measured", "bytes_per_s.measured", giga, 10),
    _of_layer("% of roof, predicted", "percent_of_roof.predicted", percent_text, 9),
    _of_layer("% of roof, measured", "percent_of_roof.measured", percent_text, 9),
    _of_layer("bound, predicted", "bound.predicted", _word, 10),
    _of_layer("bound, measured", "bound.measured", _word, 10),
]
_LAYER_NOTE = (
    "Memory of a layer: its parameters, what its ops put out and, predicted and measured, the largest workspace that "
    "one of them borrows. Times are its kernels' alone."
)


def layer_table(rows: Sequence[StudyRow], layers: Sequence[str], axes: Sequence[Axis]) -> Table:
    """A line for every layer that was asked for and every cell that has it; devices share what is by formula."""
    lines = [
        (row, layer)
        for layer in layers
        for row in rows
        if any(name.startswith(f"{layer}/") for name in (*row.values, *row.facts))
    ]
    columns: Cells[LayerLine] = [(column("layer"), lambda line: line[1])]
    columns += [(shown, _of_row(value)) for shown, value in axes]
    columns += [
        (shown, value) for shown, value in _LAYER_COLUMNS if any(value(line) not in (None, "") for line in lines)
    ]
    return replace(table_of(columns, lines, title=f"layers: {', '.join(layers)}"), note=_LAYER_NOTE)


def _of_row(value: Callable[[StudyRow], Any]) -> Callable[[LayerLine], Any]:
    return lambda line: value(line[0])


# --- speed ---

PREDICTED, MEASURED, COUNTED = "predicted", "measured", "counted"
SpeedLine = tuple[StudyRow, str]
_SPEED: tuple[tuple[str, Callable[[Any], str], dict[str, str], int], ...] = (
    ("time", seconds, {PREDICTED: "time.predicted", MEASURED: "time.measured", COUNTED: "time.measured"}, 0),
    ("bytes", whole_bytes, {PREDICTED: "bytes.estimated", COUNTED: "bytes.measured"}, 4),
    ("GB/s", giga, {PREDICTED: "bytes_per_s.predicted", COUNTED: "bytes_per_s.measured"}, 2),
    ("FLOPs", count, {PREDICTED: "flops.estimated", MEASURED: "flops.estimated", COUNTED: "executed.measured"}, 5),
    ("FLOP/B", formatting.ratio, {PREDICTED: "intensity.estimated", COUNTED: "intensity.measured"}, 3),
    (
        "GFLOP/s",
        giga,
        {PREDICTED: "flops_per_s.predicted", MEASURED: "flops_per_s.measured", COUNTED: "executed_per_s.measured"},
        0,
    ),
    (
        "% of roof",
        percent_text,
        {
            PREDICTED: "percent_of_roof.predicted",
            MEASURED: "percent_of_roof.measured",
            COUNTED: "percent_of_roof.measured",
        },
        0,
    ),
    (
        "bound",
        _word,
        {PREDICTED: "bound.predicted", MEASURED: "bound.measured", COUNTED: "bound.measured"},
        0,
    ),
)
"""A column, and which value it shows on each kind of line."""
_SPEED_NOTE = (
    "Predicted: useful FLOPs and compulsory bytes; counted: measured with counters, executed FLOPs and DRAM bytes; "
    "measured: without counters, useful FLOPs. GFLOP/s and GB/s are by the wall time; percent of roof is of the time "
    "in which the GPU is busy."
)


def speed_table(rows: Sequence[StudyRow], axes: Sequence[Axis]) -> Table:
    """A line for every cell and side that has a time: where it stands under the roofs of its device."""
    lines: list[SpeedLine] = []
    for row in rows:
        lines += [(row, PREDICTED)] if "time.predicted" in row.values else []
        if "time.measured" in row.values:
            lines.append((row, COUNTED if "executed.measured" in row.values else MEASURED))
    columns: Cells[SpeedLine] = [(shown, _of_row(value)) for shown, value in axes]
    columns.append((Column("by", right=False, whole=True), lambda line: line[1]))
    columns += [
        (Column(name, write, right=write is not _word, optional=optional), _by(keys))
        for name, write, keys, optional in _SPEED
    ]
    return replace(table_of(columns, lines, title="speed: every step under the roofs of its device"), note=_SPEED_NOTE)


def _by(keys: dict[str, str]) -> Callable[[SpeedLine], Any]:
    def value(line: SpeedLine) -> Any:
        row, by = line
        key = keys.get(by, "")
        return row.values.get(key, row.facts.get(key))

    return value
