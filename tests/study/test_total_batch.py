"""Strong scaling: one batch that all GPUs share, as an axis, in claims, in text and as a chart."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import rooflight
from rooflight.commands.main import cli
from rooflight.errors import BadInput
from rooflight.parallel.layout import replica_batch
from rooflight.reporting.charts.study_scaling import study_scaling_charts
from rooflight.reporting.sections.study_tables import cell_table
from rooflight.reporting.sections.study_trends import scaling_tables
from rooflight.study.api import prepare
from rooflight.study.cell import StudyCell, StudyRow
from rooflight.study.hypotheses import claims
from rooflight.study.plan import plan_of, to_toml
from rooflight.study.trends import scaling, trends
from rooflight.study.work import run_side

GRID = {"model": "mnist-cnn", "step": "train", "total_batch": 256, "gpus": [1, 2, 4], "on": "h200"}


def rows() -> list[StudyRow]:
    """Times by hand: two GPUs 1.6 times as fast as one, four 2.5 times."""
    plan = plan_of({"grid": GRID}, "the study")
    times = {1: 8e-3, 2: 5e-3, 4: 3.2e-3}
    return [
        StudyRow(
            cell=cell,
            state="done",
            values={
                "time.predicted": times[cell.gpus],
                "throughput.predicted": 256 / times[cell.gpus],
                "memory.predicted": 1000 * cell.batch,
            },
        )
        for cell in plan.cells
    ]


def test_each_gpu_has_its_part() -> None:
    assert [(row.cell.gpus, row.cell.batch, row.cell.total_batch) for row in rows()] == [
        (1, 256, 256), (2, 128, 256), (4, 64, 256)]  # fmt: skip
    assert replica_batch(256, parallel="2x1x4", gpus=8) == 64  # four replicas of two GPUs
    assert replica_batch(256, parallel="tp", gpus=8) == 256
    assert replica_batch(7, parallel=None, gpus=1) == 7


def test_a_plan_with_it_reads_back() -> None:
    import tomllib

    plan = plan_of({"grid": GRID}, "the study")
    again = plan_of(tomllib.loads(to_toml(plan)), "the file")
    assert again == plan and [cell.id for cell in again.cells] == [cell.id for cell in plan.cells]
    assert plan.cells[1].command("predict", on="h200") == (
        "rooflight predict mnist-cnn --step train --gpus 2 --total-batch 256 --on h200"
    )
    # An estimate is of one replica, and the same as without a total.
    assert plan.cells[1].alone == StudyCell(model="mnist-cnn", step="train", batch=128)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"total_batch": 255}, "255 cannot be divided evenly among 2 replicas"),
        ({"batch": 4}, "leave one of them out"),
        ({"total_batch": 0}, "must be from 1"),
    ],
)
def test_what_does_not_divide_is_refused(changed: dict[str, int], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        plan_of({"grid": {**GRID, **changed}}, "the study")


def test_scaling_by_hand() -> None:
    (strong,) = scaling(rows())
    assert (strong.kind, strong.total_batch, strong.side) == ("strong", 256, "predicted")
    assert [(point.gpus, point.batch, point.time_s) for point in strong.points] == [
        (1, 256, 8e-3), (2, 128, 5e-3), (4, 64, 3.2e-3)]  # fmt: skip
    assert [point.speedup for point in strong.points] == pytest.approx([1.0, 1.6, 2.5])
    assert [point.efficiency for point in strong.points] == pytest.approx([1.0, 0.8, 0.625])
    # Cells that share a total make no curve against the batch.
    assert trends(rows()).against_batch == () and trends(rows()).throughput == ()


def test_it_is_in_the_tables_and_drawn() -> None:
    (table,) = (table for table in scaling_tables(scaling(rows())) if table.rows)
    assert table.title.startswith("strong scaling")
    assert [column.name for column in table.columns][2:4] == ["total batch", "GPUs"]
    assert "total batch" in [column.name for column in cell_table(rows()).columns]
    (chart,) = study_scaling_charts(scaling(rows()))
    assert chart.name == "strong-scaling" and len(chart.spec["concat"]) == 3
    drawn = {row["gpus"]: row for some in chart.spec["datasets"].values() for row in some if "ideal_time" in row}
    assert {gpus: row["ideal_time"] for gpus, row in drawn.items()} == {1: 8e-3, 2: 4e-3, 4: 2e-3}


def test_claims_filter_by_it() -> None:
    """The batch of each GPU is no axis that must be equal: it follows."""
    judged = claims(
        [
            "time(gpus=2, total_batch=256) < time(gpus=1, total_batch=256)",
            "memory(gpus=2) = 0.5 * memory(gpus=1)",
            "throughput(gpus=4) > 4 * throughput(gpus=1)",
        ],
        rows(),
    )
    assert [claim.verdict for claim in judged] == ["held", "held", "refuted"]
    assert all(len(claim.points) == 1 for claim in judged)


def test_predict_takes_it_too() -> None:
    both = rooflight.predict("mnist-cnn", on="h200", step="train", total_batch=256, gpus=2)
    same = rooflight.predict("mnist-cnn", on="h200", step="train", batch=128, gpus=2)
    assert both[0].batch == 128 and both[0].time_s == same[0].time_s
    with pytest.raises(BadInput, match="cannot be divided evenly among 2 replicas"):
        rooflight.predict("mnist-cnn", on="h200", total_batch=25, gpus=2)
    with pytest.raises(BadInput, match="leave one of them out"):
        rooflight.predict("mnist-cnn", on="h200", total_batch=256, batch=8, gpus=2)
    with pytest.raises(BadInput, match="leave one of them out"):
        rooflight.predict("mnist-cnn", on="h200", total_batch=256, batch=1, gpus=2)


@pytest.mark.parametrize("verb", ["predict", "measure"])
def test_a_batch_beside_it_is_refused_even_where_it_is_the_usual_one(verb: str) -> None:
    line = [verb, "mnist-cnn", "--step", "train", "--gpus", "2", "--batch", "1", "--total-batch", "8"]
    done = CliRunner().invoke(cli, [*line, "--on", "h200" if verb == "predict" else "cpu"])
    assert isinstance(done.exception, BadInput) and "leave one of them out" in str(done.exception)


def test_an_outer_profiler_is_given_each_ones_part() -> None:
    done = CliRunner().invoke(
        cli, ["measure", "mnist-cnn", "--total-batch", "8", "--ncu-command", "conv2:aten::convolution"]
    )
    assert done.exit_code == 0, done.output
    assert "measure mnist-cnn --batch 8" in done.output


def test_a_study_predicts_it(tmp_path: Path) -> None:
    axes = {name: value for name, value in GRID.items() if name != "model"} | {"gpus": [1, 2]}
    with prepare("mnist-cnn", tmp_path / "s", axes) as store:
        for cell in store.cells:
            run_side(store, [cell], "predicted")
        one, two = store.rows
    assert two.values["throughput.predicted"] == pytest.approx(256 / two.values["time.predicted"])
    assert one.values["throughput.predicted"] == pytest.approx(256 / one.values["time.predicted"])
