"""Regions inside each other as people see them: the table, the page and its charts."""

from __future__ import annotations

import msgspec
import pytest

from rooflight.ledger import Measurement
from rooflight.reporting.charts.region_times import course_chart, parts_chart
from rooflight.reporting.report.api import log_report
from rooflight.reporting.sections.ledger_documents import log_document
from rooflight.reporting.sections.region_tables import covered_line, region_data, region_table, region_values
from rooflight.reporting.writers import write
from rooflight.summary.region_tree import UNCOVERED, region_tree
from tests.fixtures.region_ledgers import nested_regions


def test_the_table_shows_what_is_in_what_and_what_in_no_region():
    table = region_table(nested_regions())
    assert [(str(name), table.columns[1].text(share)) for name, share, *_ in table.rows] == [
        ("program", "–"),
        ("  epoch", "80.0%"),
        ("    step", "75.0%"),
        ("      layer", "40.0%"),
        (f"      {UNCOVERED}", "60.0%"),
        (f"    {UNCOVERED}", "25.0%"),
        ("  evaluate", "10.0%"),
        ("    layer", "50.0%"),
        (f"    {UNCOVERED}", "50.0%"),
        (f"  {UNCOVERED}", "10.0%"),
        ("loader", "–"),
    ]


def test_the_figures_of_a_region_stand_once():
    table = region_table(nested_regions())
    executions = [row[2] for row in table.rows if str(row[0]).strip() == "layer"]
    assert executions == [15, None]


def test_files_for_programs_name_the_region_around():
    rows = [row[:3] for row in region_values(nested_regions()).rows]
    assert rows == [
        ("epoch", "program", 0.8), ("step", "epoch", 0.75), ("layer", "step", 0.4), ("evaluate", "program", 0.1),
        ("layer", "evaluate", 0.5), ("loader", "", None),
    ]  # fmt: skip
    data = region_data(nested_regions())
    assert data["program"]["time_s"] == 100 and data["program"]["uncovered"] == pytest.approx(0.1)
    assert data["regions"][1]["parts"] == {"layer": 0.4} and data["regions"][4]["uncovered"] is None


def test_what_no_region_covers_of_the_program_is_said():
    assert covered_line(nested_regions()).startswith("10.0% of the 100 s from the first region to the last are not in")
    ledger = nested_regions()
    covered = msgspec.structs.replace(ledger.measurements[-1], parts={"epoch": 0.99})
    assert covered_line(msgspec.structs.replace(ledger, measurements=(*ledger.measurements[:-1], covered))) == ""


def test_regions_without_any_inside_are_a_plain_table():
    ledger = nested_regions()
    alone = msgspec.structs.replace(ledger, measurements=(ledger.measurements[4],))
    assert [str(row[0]) for row in region_table(alone).rows] == ["loader"]
    assert [column.name for column in region_table(alone).columns][:2] == ["region", "executions"]
    assert parts_chart(alone) is None and course_chart(alone) is None


def test_two_that_are_in_each_other_end():
    rows = (
        Measurement(scope="region", name="a", parts={"b": 0.5}),
        Measurement(scope="region", name="b", parts={"a": 0.5}),
    )
    nodes = region_tree(msgspec.structs.replace(nested_regions(), measurements=rows))
    assert [(node.name, node.depth) for node in nodes if node.row is not None] == [("a", 0), ("b", 1), ("a", 2)]


def test_bars_lie_in_the_bars_around_them():
    chart = parts_chart(nested_regions())
    assert chart is not None
    bars = [row for rows in chart.spec["datasets"].values() for row in rows]
    ends = {(row["name"], row["inside"]): (round(row["start"], 6), round(row["end"], 6)) for row in bars}
    # 100 s: epochs 0 to 80, steps 0 to 60 of them, the layer 0 to 24; evaluation 80 to 90, the layer 80 to 85.
    assert ends["epoch", "program"] == (0, 80) and ends["step", "epoch"] == (0, 60)
    assert ends["layer", "step"] == (0, 24) and ends["layer", "evaluate"] == (80, 85)
    assert ends[UNCOVERED, "program"] == (90, 100) and ends[UNCOVERED, "epoch"] == (60, 80)


def test_a_first_execution_that_would_dwarf_the_others_is_written():
    chart = course_chart(nested_regions())
    assert chart is not None
    rows = [row for rows in chart.spec["datasets"].values() for row in rows]
    assert {row["text"] for row in rows if "first" in row.get("text", "")} == {
        "↑ first: 60.0 s", "↑ first: 40.0 s", "↑ first: 4.00 s", "↑ first: 2.50 s",
    }  # fmt: skip
    assert len(chart.table.rows) == 3 + 12 + 3 + 15  # the loader has two


def test_the_page_has_both_charts():
    page = write(log_report(nested_regions(), source="run.json"), "html").decode()
    assert "Time of regions" in page and "Time from execution to execution" in page
    assert UNCOVERED in page
    assert "region,inside,share_of_parent" in write(log_document(nested_regions()), "csv").decode()
