"""The report of several steps: all of them on one roofline, and what their points are made of."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

from rooflight.reporting.charts.bars import bars_chart, usual_amount
from rooflight.reporting.charts.roofline_marks import NoRoofline
from rooflight.reporting.charts.step_points import ReportedStep, points_file, points_of, points_table
from rooflight.reporting.charts.steps_roofline import shared_words, steps_roofline
from rooflight.reporting.document import Document, Fact, Section, filled
from rooflight.reporting.sections.study_tables import csv_table, records
from rooflight.reporting.table import Table
from rooflight.spec import shell

CONVENTIONS = (
    "by formula: FLOPs that must be computed (a multiply-add is 2; with other arithmetic and recomputation) and "
    "compulsory bytes, without reuse between ops; as counted: executed FLOPs and bytes of the DRAM",
    "GFLOP/s and GB/s are over the time in which the GPU works; % of roof: the least time that the roofs allow, op by "
    "op, over that time",
)


def steps_report(
    steps: Sequence[ReportedStep],
    *,
    of: str | None = None,
    notes: Sequence[str] = (),
    repeat: Sequence[str] = (),
    on: str | None = None,
) -> Document:
    """`of`: the quantity whose bars are drawn. `repeat`: commands that make it again. `on`: the devices that were asked
    for, as a command line names them; `None`: the usual ones."""
    models = list(dict.fromkeys(step.row.cell.model for step in steps))
    title = ", ".join(models) if len(models) <= 4 else f"{len(models)} models"
    devices = list(dict.fromkeys(step.place for step in steps))
    points = points_of(steps)
    values = points_file(points)
    return Document(
        title=title,
        subtitle=" · ".join([f"{len(steps)} steps on {', '.join(devices)}", *shared_words(steps)]),
        facts=tuple(_facts(steps)),
        sections=(
            # The numbers stand below the chart for everybody, and so not in it.
            replace(
                without_numbers(roofline_section(steps)), tables=filled(points_table(points)), small_print=CONVENTIONS
            ),
            bars_section(steps, of),
            *_alone(steps, repeat, on),
        ),
        notes=tuple(dict.fromkeys(notes)),
        rows=lambda: values if points else csv_table([step.row for step in steps]),
        data=lambda: {"steps": records([step.row for step in steps]), "points": _records(values)},
    )


def roofline_section(steps: Sequence[ReportedStep], title: str = "All on one roofline") -> Section:
    try:
        return Section("roofline", title, charts=(steps_roofline(steps),))
    except NoRoofline as error:
        return Section("roofline", title, missing=error.on_command_line)


def without_numbers(section: Section) -> Section:
    return replace(
        section, charts=tuple(replace(chart, table=replace(chart.table, rows=())) for chart in section.charts)
    )


def bars_section(steps: Sequence[ReportedStep], of: str | None) -> Section:
    chart = bars_chart(steps, of or usual_amount(steps))
    return Section("bars", "Side by side", charts=(chart,))


def _facts(steps: Sequence[ReportedStep]) -> list[Fact]:
    points = points_of(steps)
    if not points:
        return []
    fastest = max(points, key=lambda point: point.flops_per_s)
    nearest = max(points, key=lambda point: point.percent_of_roof or 0)
    return [
        Fact("most FLOP/s", f"{fastest.flops_per_s / 1e12:.3g} TFLOP/s", f"{fastest.name} on {fastest.device.name}"),
        Fact("nearest to its roof", f"{nearest.percent_of_roof or 0:.3g}%", f"{nearest.name} on {nearest.device.name}"),
    ]


def _alone(steps: Sequence[ReportedStep], repeat: Sequence[str], on: str | None) -> list[Section]:
    sources = dict.fromkeys(step.source for step in steps if step.source)
    each = [shell("report", *shlex.split(source), on=on, output="report.html") for source in sources]
    commands = (*repeat, *(each if len(each) > 1 else ()))
    return [Section("repeat", "How to repeat it, and each alone", commands=commands)] if commands else []


def _records(table: Table) -> list[dict[str, object]]:
    names = [column.raw or column.name for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in table.rows]
