"""Layers of a study, and speeds: FLOPs, bytes, memory and time of a layer on every side, GFLOP/s and GB/s of every cell,
in rows, tables, CSV, claims and charts."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

import rooflight
from rooflight.commands.main import cli
from rooflight.errors import BadInput
from rooflight.reporting.charts.charted_quantity import charted
from rooflight.reporting.charts.lines import batch_chart, lines_of, study_charts
from rooflight.reporting.sections.study_layers import layer_table, speed_table
from rooflight.reporting.sections.study_tables import csv_table, place_columns, summary_document
from rooflight.reporting.table import Table
from rooflight.reporting.writers.csv import document_csv
from rooflight.reporting.writers.terminal import drawn
from rooflight.study.api import Study, load, prepare
from rooflight.study.cell import StudyCell, StudyRow
from rooflight.study.hypotheses import claims
from rooflight.study.rates import with_rates
from rooflight.study.values import measured
from rooflight.study.work import run_side
from tests.study.test_shipped_studies import RECORDED

CONV2 = 1_358_954_496
"""FLOPs of conv2 at batch 64: 2 x 3 x 3 x 32 for every one of 64 x 64 x 24 x 24 outputs."""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """In this process: workers of their own would import torch again."""
    axes = {"batch": [1, 64], "on": "v100-sxm2-16", "layers": ["conv2"]}
    with prepare("mnist-cnn", tmp_path_factory.mktemp("layers") / "s", axes) as store:
        run_side(store, store.cells, "estimated")
        run_side(store, store.cells, "predicted")
        store.write_index()
        return Study(store.folder, store.plan, store.rows)


@pytest.fixture(scope="module")
def recorded() -> Study:
    return load(RECORDED / "mnist-conv2")


def at(rows: Sequence[StudyRow], **coordinates: object) -> StudyRow:
    (row,) = (
        row for row in rows if all(row.cell.coordinates.get(axis) == value for axis, value in coordinates.items())
    )
    return row


def text_of(table: Table, width: int) -> str:
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width)
    console.print(drawn(table, width))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_layer_has_the_numbers_of_pen_and_paper(study: Study) -> None:
    values = at(study.rows, batch=64).values
    assert values["conv2/flops.estimated"] == CONV2
    # 64 images of 64 channels of 24 x 24, in fp32; 32 x 64 kernels of 3 x 3 and 64 biases.
    assert values["conv2/output.estimated"] == 64 * 64 * 24 * 24 * 4 == 9_437_184
    assert values["conv2/param_bytes.estimated"] == (32 * 64 * 9 + 64) * 4 == 73_984
    assert values["conv2/footprint.estimated"] == 9_511_168
    assert values["conv2/footprint.predicted"] == 9_511_168 + values["conv2/workspace.predicted"]
    assert at(study.rows, batch=1).values["conv2/footprint.estimated"] == 221_440


def test_rates_are_work_over_time(study: Study) -> None:
    row = at(study.rows, batch=64)
    values = row.values
    assert values["flops_per_s.predicted"] == values["flops.estimated"] / values["time.predicted"]
    assert values["bytes_per_s.predicted"] == values["bytes.estimated"] / values["time.predicted"]
    assert values["conv2/flops_per_s.predicted"] == CONV2 / values["conv2/kernel_time.predicted"]
    # No faster than the roof: 15.7 TFLOP/s in fp32, of which it reaches so many percent.
    assert values["conv2/flops_per_s.predicted"] < 15.7e12
    share = values["conv2/flops_per_s.predicted"] / 15.7e12
    assert values["conv2/percent_of_roof.predicted"] == pytest.approx(100 * share, rel=2e-3)
    assert row.facts["conv2/bound.predicted"] == "compute"


def test_several_gpus_have_no_rate() -> None:
    """FLOPs are those of one replica, the time that of all."""
    values = {"flops.estimated": 10, "time.predicted": 2.0}
    assert "flops_per_s.predicted" not in with_rates(StudyCell(model="m", on="h200", gpus=2), values)
    assert with_rates(StudyCell(model="m", on="h200"), values)["flops_per_s.predicted"] == 5.0


def test_rows_of_earlier_versions_have_what_follows_from_theirs() -> None:
    old = {"flops.estimated": 8, "time.measured": 2.0, "executed.measured": 12, "conv2/flops.estimated": 4}
    found = with_rates(StudyCell(model="m", on="h200"), old)
    assert found == {**old, "flops_per_s.measured": 4.0, "executed_per_s.measured": 6.0}


def test_a_measured_layer_beside_the_formula(recorded: Study) -> None:
    """The recorded H200: the output as the allocator rounds it, and a workspace of the layer's input and a little."""
    row = at(recorded.rows, model="mnist-cnn", batch=64, step="infer", on="h200", tf32=None, channels=None)
    values = row.values
    assert values["conv2/flops.estimated"] == CONV2
    assert values["conv2/flops.measured"] == 1_369_794_560
    assert values["conv2/output.measured"] == 9_437_184
    assert values["conv2/workspace.measured"] == 5_612_032
    assert values["conv2/footprint.measured"] == 73_984 + 9_437_184 + 5_612_032
    assert values["conv2/executed_per_s.measured"] == values["conv2/executed.measured"] / values[
        "conv2/kernel_time.measured"
    ]  # fmt: skip
    assert row.facts["conv2/bound.measured"] == "compute"


def test_a_measurement_without_memory_has_no_footprint(recorded: Study) -> None:
    row = next(row for row in recorded.rows if "measured" in row.ledgers)
    ledger = rooflight.load(RECORDED / "mnist-conv2" / row.ledgers["measured"])
    without = [
        msgspec.structs.replace(one, quantities={k: v for k, v in one.quantities.items() if k != "workspace_bytes"})
        for one in ledger.measurements
    ]
    values, _ = measured(msgspec.structs.replace(ledger, measurements=tuple(without)), ("conv2",))
    assert "conv2/footprint.measured" not in values and "conv2/kernel_time.measured" in values


def test_layers_are_in_the_text_and_nothing_is_lost_in_silence(study: Study) -> None:
    assert "layers" in [section.name for section in summary_document(study.rows, study.plan).sections]
    table = layer_table(study.rows, study.plan.layers, place_columns(study.rows))
    wide = {column.name for column in table.columns}
    for width in (80, 120):
        text = text_of(table, width)
        assert "conv2" in text and "1,358,954,496" in text
        assert all(name in " ".join(text.split()) for name in wide), width
    speeds = text_of(speed_table(study.rows, place_columns(study.rows)), 120)
    for heading in ("time", "bytes", "GB/s", "FLOPs", "FLOP/B", "GFLOP/s", "% of roof", "bound"):
        assert heading in speeds
    assert "hidden" not in speeds


def test_speeds_of_what_was_counted_are_the_counters(recorded: Study) -> None:
    row = at(recorded.rows, model="mnist-cnn", batch=64, step="infer", on="h200", tf32=None, channels=None)
    lines = speed_table([row], []).rows
    predicted, counted = (dict(zip(("by", "time", "bytes", "rate", "flops"), line, strict=False)) for line in lines)
    assert (predicted["by"], predicted["flops"]) == ("predicted", row.values["flops.estimated"])
    assert (counted["by"], counted["flops"]) == ("counted", row.values["executed.measured"])
    assert counted["rate"] == row.values["bytes.measured"] / row.values["time.measured"]


def test_the_csv_has_layers_rates_and_words(study: Study) -> None:
    table = csv_table(study.rows)
    names = [column.name for column in table.columns]
    line = dict(zip(names, table.rows[-1], strict=True))
    assert line["conv2/flops.estimated"] == CONV2 and line["bound.predicted"] == "host"
    assert line["flops_per_s.predicted"] and line["percent_of_roof.predicted"] and line["conv2/bound.predicted"]
    assert str(CONV2) in document_csv(study.page())


def test_layers_and_rates_in_claims(study: Study) -> None:
    judged = claims(
        [
            "footprint.estimated(layer=conv2, batch=64) = 9511168 B",
            "flops_per_s(layer=conv2, batch=64) > 1 TFLOP/s and bound(layer=conv2, batch=64) = compute",
            "bytes_per_s < 900 GB/s",
            "kernel_time(layer=conv2, batch=64) < 1 ms",
        ],
        study.rows,
    )
    assert [claim.verdict for claim in judged] == ["held"] * 4


def test_the_chart_of_a_layer_has_both_sides_of_every_batch(recorded: Study) -> None:
    chart = batch_chart(recorded.rows, "flops", "conv2", layers=recorded.plan.layers)
    assert chart.title == "FLOPs of conv2: mnist-cnn"
    points = {(row[1], row[2]): row[3] for row in chart.table.rows if str(row[0]).startswith("infer")}
    batches = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    assert [points["estimated", batch] for batch in batches] == [CONV2 // 64 * batch for batch in batches]
    assert points["measured", 64] == 1_369_794_560 and all(("measured", batch) in points for batch in batches)
    memory = batch_chart(recorded.rows, "memory", "conv2", layers=recorded.plan.layers)
    assert {row[1] for row in memory.table.rows} == {"estimated", "predicted", "measured"}


def test_no_series_is_dropped_however_many_devices() -> None:
    """Twenty devices and two steps: more than there are colours, so panels of eight."""
    rows = [
        StudyRow(
            cell=StudyCell(model="net", batch=batch, step=step, on=f"d{number}"),
            values={"time.predicted": number + batch, "time_low.predicted": 1.0, "time_high.predicted": 99.0},
        )
        for number in range(20)
        for step in ("infer", "train")
        for batch in (1, 2)
    ]
    chart = batch_chart(rows, "time")
    drawn_rows = [row for some in chart.spec["datasets"].values() for row in some if "series" in row]
    assert {row["series"] for row in drawn_rows} == {f"d{number}" for number in range(20)}
    assert len(chart.spec["concat"]) == 6 and len(chart.table.rows) == 80
    assert all((row["low"], row["high"]) == (1.0, 99.0) for row in drawn_rows)


def test_a_page_has_charts_of_its_layers(recorded: Study) -> None:
    names = [chart.name for chart in study_charts(recorded.rows, ("conv2",))]
    assert names[:4] == ["batch-1-time", "batch-1-throughput", "batch-1-memory", "batch-1-flops"]
    assert names[4:7] == ["batch-1-conv2-flops", "batch-1-conv2-memory", "batch-1-conv2-time"]


def test_what_cannot_be_drawn_is_one_line(study: Study) -> None:
    for of, layer, said in (
        ("flosp", "", "did you mean flops?"),
        ("flops", "conv3", "it has conv2"),
        ("hfu", "", "no cell has HFU"),
    ):
        with pytest.raises(BadInput, match=said.replace("?", r"\?")):
            batch_chart(study.rows, of, layer, layers=study.plan.layers)
    one = [row for row in study.rows if row.cell.batch == 1]
    with pytest.raises(BadInput, match="no two cells differ in their batch alone"):
        batch_chart(one, "time")
    assert lines_of(one, charted("time")) == []


def test_a_chart_of_a_layer_by_one_command(study: Study, tmp_path: Path) -> None:
    picture = tmp_path / "x.svg"
    asked = ["report", str(study.folder), "--chart", "batch", "--of", "flops", "--layer", "conv2", "-o", str(picture)]
    assert CliRunner().invoke(cli, asked).exit_code == 0
    assert "FLOPs of conv2" in picture.read_text()
    refused = CliRunner().invoke(cli, ["report", str(study.folder), "--of", "flops", "-o", str(tmp_path / "y.png")])
    assert refused.exit_code != 0


def test_a_layer_that_no_model_has_is_told_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no layer 'conv9' in mnist-cnn: did you mean conv2 or conv1\?"):
        prepare("mnist-cnn", tmp_path / "s", {"layers": ["conv2", "conv9"]})
    assert not (tmp_path / "s").exists()
    # One that some of the models have is no slip.
    prepare(["mnist-cnn", "alexnet"], None, {"layers": ["conv2"]}, dry=True)
