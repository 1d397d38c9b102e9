"""Several steps on one roofline, bars of any quantity, and the kernels of a log under the roofs of their device."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

import rooflight
from rooflight.errors import BadInput
from rooflight.hardware.devices import find
from rooflight.ledger import Ledger
from rooflight.profiles import read
from rooflight.reporting.charts.bars import bars_chart
from rooflight.reporting.charts.encodings import colours, series
from rooflight.reporting.charts.pictures import picture
from rooflight.reporting.charts.roofline_marks import marks_of
from rooflight.reporting.charts.step_points import ReportedStep, names_of, points_of, points_table
from rooflight.reporting.charts.steps_roofline import steps_roofline
from rooflight.reporting.charts.sweep import sweep_chart
from rooflight.reporting.report.api import make, named_report
from rooflight.reporting.report.step_rows import steps_of_ledger
from rooflight.reporting.writers import write
from rooflight.reporting.writers.terminal import narrowed
from rooflight.study.cell import StudyCell, StudyRow
from rooflight.study.hypotheses.amount import amount
from tests.fixtures.paths import DATA, ROOT

V100, A100, H200 = (find(name) for name in ("v100-sxm2-16", "a100-sxm-40", "h200"))
CONV2 = 1_358_954_496
"""FLOPs of the second convolution of the MNIST net at batch 64: 2 x 64 x 24 x 24 x 64 x (32 x 3 x 3)."""


@pytest.fixture(scope="module")
def ledgers() -> list[Ledger]:
    return [
        rooflight.estimate("mnist-cnn", batch=64),
        rooflight.estimate("mnist-cnn", batch=256),
        rooflight.estimate("mnist-cnn-5x5", batch=64),
    ]


@pytest.fixture(scope="module")
def steps(ledgers: list[Ledger]) -> list[ReportedStep]:
    return [step for ledger in ledgers for step in steps_of_ledger(ledger, "", [V100, A100])[0]]


def values_of(drawn: dict[str, Any]) -> list[dict[str, Any]]:
    datasets = drawn["datasets"]
    assert isinstance(datasets, dict)
    return [row for rows in datasets.values() for row in rows]


def test_a_point_is_the_star_of_the_steps_own_roofline(ledgers: list[Ledger], steps: list[ReportedStep]) -> None:
    """FLOPs, bytes, FLOP/B, FLOP/s and the percent of the roof are told once."""
    points = {(point.name, point.device.name): point for point in points_of(steps)}
    for ledger, name in zip(
        ledgers, ("mnist-cnn, batch 64", "mnist-cnn, batch 256", "mnist-cnn-5x5, batch 64"), strict=True
    ):
        for device in (V100, A100):
            point, star = points[name, device.name], marks_of(ledger, on=device).step
            assert star is not None
            place = star.places["by formula"]
            assert (point.flops, point.bytes) == (place.flops, place.bytes)
            assert point.intensity == pytest.approx(place.intensity)
            assert point.flops_per_s == pytest.approx(place.flops_per_s)
            assert point.percent_of_roof == pytest.approx(place.percent_of_roof)
            assert point.bytes_per_s == pytest.approx(point.flops_per_s / point.intensity)


def test_the_order_of_devices_changes_no_point(ledgers: list[Ledger]) -> None:
    """A V100 runs in fp32 what an A100 runs in TF32: who comes first is nothing to the other."""
    one = steps_of_ledger(ledgers[0], "", [A100])[0][0]
    after = steps_of_ledger(ledgers[0], "", [V100, A100])[0][1]
    assert after.row.values == one.row.values and after.work == one.work
    assert set(one.work) == {"tf32", "fp32"}


def test_points_are_named_by_what_tells_them_apart(steps: list[ReportedStep]) -> None:
    assert names_of(steps[::2]) == ["mnist-cnn, batch 64", "mnist-cnn, batch 256", "mnist-cnn-5x5, batch 64"]
    assert names_of([steps[0], steps[4]]) == ["mnist-cnn", "mnist-cnn-5x5"]


def test_columns_for_programs_have_names_of_their_own(ledgers: list[Ledger]) -> None:
    """The kind of step is a column, and the model another."""
    trained = rooflight.estimate("mnist-cnn", batch=64, step="train")
    document = make([ledgers[0], ledgers[2], trained], on="v100-sxm2-16")
    header, *rows = write(document, "csv").decode().splitlines()
    names = header.split(",")
    assert names[:3] == ["model", "batch", "step"] and len(set(names)) == len(names)
    assert [row.split(",")[:3] for row in rows] == [
        ["mnist-cnn", "64", "infer"],
        ["mnist-cnn-5x5", "64", "infer"],
        ["mnist-cnn", "64", "train"],
    ]
    points = json.loads(write(document, "json"))["points"]
    assert [(point["model"], point["step"]) for point in points] == [
        ("mnist-cnn", "infer"),
        ("mnist-cnn-5x5", "infer"),
        ("mnist-cnn", "train"),
    ]


def test_a_flag_that_only_one_step_has_tells_it_apart() -> None:
    def step(model: str, **given: Any) -> ReportedStep:
        values = {"intensity.estimated": 10.0, "bytes.estimated": 10**9, "gpu_busy.predicted": 0.01}
        return ReportedStep(StudyRow(cell=StudyCell(model=model, on="h200", **given), values=values), H200)

    steps = [step("net"), step("net", compile=True), step("net", graphs=True), step("other", seq=8)]
    assert names_of(steps) == ["net", "net, compile=true", "net, graphs=true", "other"]
    assert [row[0] for row in points_table(points_of(steps)).rows] == names_of(steps)
    narrow = narrowed(points_table(points_of(steps)), 80)
    assert {"FLOP/B", "GFLOP/s"} <= {column.name for column in narrow.columns}


def test_a_device_that_runs_none_of_it_is_named(ledgers: list[Ledger]) -> None:
    halves = [rooflight.estimate(model, dtype="bf16") for model in ("mnist-cnn", "mnist-cnn-5x5")]
    with pytest.raises(BadInput, match=r"mnist-cnn.*K80.*bf16|mnist-cnn.*bf16.*K80"):
        named_report(halves, ["mnist-cnn", "mnist-cnn-5x5"], on="k80", together=True)


def test_a_panel_for_every_device_with_its_roofs(steps: list[ReportedStep]) -> None:
    chart = steps_roofline(steps)
    drawn = picture(chart, "svg").decode()
    for text in (
        "mnist-cnn, batch 64",
        "mnist-cnn-5x5",
        V100.title,
        A100.title,
        "fp32 CUDA 15.7 T",
        "tf32 tensor 156 T",
    ):
        assert text in drawn
    # 15.7 TFLOP/s over 900 GB/s, and 19.5 over 1,555.
    assert "ridge 17.4 FLOP/B" in drawn and "ridge 12.5 FLOP/B" in drawn
    points = [row for row in values_of(chart.spec) if "rate" in row]
    assert len(points) == len(steps) and {row["kind"] for row in points} == {"predicted"}


def test_many_models_have_a_colour_each_and_no_name_is_cut() -> None:
    names = [f"model-{number}-with-a-name-that-is-rather-long-for-a-legend" for number in range(20)]
    steps = [
        ReportedStep(
            StudyRow(
                cell=StudyCell(model=name, batch=16, on="v100-sxm2-16"),
                values={"intensity.estimated": 10.0 + place, "bytes.estimated": 10**9, "gpu_busy.predicted": 0.01},
            ),
            V100,
            work={"fp32": 1},
        )
        for place, name in enumerate(names)
    ]
    chart = steps_roofline(steps)
    drawn = picture(chart, "svg").decode()
    assert all(f">{name}<" in drawn for name in names)  # in the legend, whole
    assert {row["model"] for row in values_of(chart.spec) if "rate" in row} == set(names)
    assert len(set(colours(24))) == 24
    looks = series("device", names, chart="x")
    pairs = zip(looks.color["scale"]["range"], looks.shape["scale"]["range"], strict=True)
    assert len(set(pairs)) == 20


def test_no_device_is_left_out_of_a_sweep() -> None:
    on = ["h200", "a100", "v100", "t4", "a10", "l40s", "k80", "p100-sxm2", "a30", "a40"]
    predictions = rooflight.predict("mnist-cnn", on=on, batch=[1, 64], advice=False)
    chart = sweep_chart(predictions)
    assert chart is not None
    drawn = {row["device"] for row in values_of(chart.spec)}
    assert len(on) == 10 and {prediction.device for prediction in predictions} <= drawn


def test_what_was_measured_stands_where_it_ran_beside_predictions(ledgers: list[Ledger]) -> None:
    recorded = "recorded:h200/mnist-cnn-infer-tf32"
    document = make([recorded, ledgers[0], ledgers[1]], on="h200")
    chart = next(chart for chart in document.charts if chart.name == "roofline")
    kinds = {row["kind"] for row in values_of(chart.spec) if "rate" in row}
    assert kinds == {"recorded", "recorded, as counted", "predicted"}
    text = write(document, "csv").decode()
    assert text.startswith("model,batch,") and "flops_per_s" in text and "percent_of_roof" in text
    assert b"roofline" in write(document, "html") and "GFLOP/s" in write(document, "md").decode()


def test_a_studys_cells_are_on_one_roofline() -> None:
    document = make(ROOT / "studies" / "recorded" / "h200" / "vgg-roofline")
    chart = next(chart for chart in document.charts if chart.name == "roofline")
    assert {row["model"] for row in values_of(chart.spec) if "rate" in row} == {"vgg11", "vgg13", "vgg19"}


# --- bars ---


def test_bars_of_parameters_and_of_a_ratio(steps: list[ReportedStep]) -> None:
    """The two nets have 1,199,882 and 21,840 parameters, whatever the batch and the device."""
    chart = bars_chart([steps[0], steps[1], steps[4]], "params")
    assert [(row["name"], row["amount"]) for row in values_of(chart.spec)] == [
        ("mnist-cnn", 1_199_882),
        ("mnist-cnn-5x5", 21_840),
    ]
    size = bars_chart([steps[0]], "params * 4 B")
    assert [row["amount"] for row in values_of(size.spec)] == [4 * 1_199_882]
    # Four times the batch is four times the FLOPs.
    rows = {row["name"]: row["amount"] for row in values_of(bars_chart(steps, "flops").spec)}
    assert rows["mnist-cnn, batch 256"] == 4 * rows["mnist-cnn, batch 64"]
    # Both nets have the same parameters at every batch: a bar for each.
    assert [row["name"] for row in values_of(bars_chart(steps, "params").spec)] == ["mnist-cnn", "mnist-cnn-5x5"]
    per_byte = bars_chart(steps[:1], "flops / bytes")
    assert values_of(per_byte.spec)[0]["text"].endswith(" FLOP/B")
    times = values_of(bars_chart(steps, "time").spec)
    assert {row["device"] for row in times} == {V100.name, A100.name} and len(times) == 6


def test_a_ratio_of_measured_and_estimated() -> None:
    row = StudyRow(
        cell=StudyCell(model="net", on="h200"),
        values={"flops.measured": 30, "flops.estimated": 20, "conv2/flops.estimated": 7, "time.predicted": 2.0},
    )
    asked = amount("flops.measured / flops.estimated")
    assert asked.of(row, None) == 1.5 and asked.is_quotient and asked.sides == (None,)
    assert amount("flops(layer=conv2)").of(row, "estimated") == 7
    assert amount("time").sides == ("measured", "predicted")
    assert amount("flops.estimated / time").of(row, "predicted") == 10
    assert amount("memory").of(row, "measured") is None
    chart = bars_chart([ReportedStep(row, H200)], "flops.measured / flops.estimated")
    assert [bar["text"] for bar in values_of(chart.spec)] == ["1.50"]


def test_names_that_differ_at_their_ends_stay_apart() -> None:
    cells = [
        StudyCell(model=f"a-net-with-a-name-that-is-much-too-long-for-its-row-{number:02}") for number in range(24)
    ]
    steps = [ReportedStep(StudyRow(cell=cell, values={"params.estimated": 7}), None) for cell in cells]
    rows = values_of(bars_chart(steps, "params").spec)
    assert [row["name"] for row in rows] == [cell.model for cell in cells]
    labels = [row["label"] for row in rows]
    assert len(set(labels)) == 24 and max(map(len, labels)) * 6 < 300


def test_a_recording_is_called_one_everywhere() -> None:
    document = make(["recorded:h200/mnist-cnn-infer-tf32"], chart="bars")
    chart = next(chart for chart in document.charts if chart.name == "bars")
    assert {row["side"] for row in values_of(chart.spec)} == {"recorded"}
    assert "recorded" in str(chart.table.rows)


@pytest.mark.parametrize(
    "text", ["parms", "time > 1 s", "time + flops", "bound", "", "max(time over batch)", "3", "flops/0"]
)
def test_what_is_no_quantity_is_answered_with_those_that_are(text: str) -> None:
    with pytest.raises(BadInput, match=r"quantities are flops, macs, .*params"):
        amount(text)


def test_what_nothing_here_knows_is_said(steps: list[ReportedStep]) -> None:
    with pytest.raises(BadInput, match=r"nothing here knows it; known are .*params.estimated"):
        bars_chart(steps, "flops.measured")


# --- logs ---


def test_kernels_of_a_log_are_points_under_the_roofs_of_its_device() -> None:
    """The kernel of the convolution: its tensor and CUDA FLOPs over 5,674,240 bytes of DRAM in 22.304 us."""
    ledger = read(DATA / "ncu" / "mnist_conv2_64_tf32.csv.gz")
    marks = marks_of(ledger)
    kernel = max((mark for mark in marks.marks if mark.kind == "kernel"), key=lambda mark: mark.time_s)
    place = kernel.places["as counted"]
    assert place.flops == CONV2 + 4_718_592 and place.bytes == 5_674_240
    assert place.intensity == pytest.approx((CONV2 + 4_718_592) / 5_674_240)
    assert place.flops_per_s == pytest.approx((CONV2 + 4_718_592) / 22.304e-6)
    assert marks.device.name == "h200" and kernel.family == "convolution"
    whole = marks.step
    assert whole is not None and whole.places["as counted"].bytes == 20_756_480
    chart = next(chart for chart in make(ledger).charts if chart.name == "roofline")
    assert "sm80_xmma_fprop" in picture(chart, "svg").decode()
    (step,), _ = steps_of_ledger(ledger, "log.csv", [V100])
    (point,) = points_of([step])
    assert (point.kind, point.device.name, point.bytes) == ("measured, as counted", "h200", 20_756_480)
    assert names_of([step, step]) == ["mnist_conv2_64_tf32 (log.csv)"] * 2


def test_a_log_without_a_known_device_takes_the_one_that_is_named() -> None:
    ledger = read(DATA / "ncu" / "mnist_conv2_64_tf32.csv.gz")
    unnamed = replace(ledger, header=replace(ledger.header, device=None))
    with pytest.raises(BadInput, match="its roofs are not known"):
        write(make(unnamed, chart="roofline"), "svg", chart="roofline")
    chart = next(iter(make(unnamed, on="h200").charts))
    assert "H200" in chart.title


def test_no_point_of_a_log_is_above_the_roofs_of_the_units_that_did_its_work() -> None:
    """Three VGGs whose convolutions ran on tensor cores: their roof is drawn, and is above them all."""
    logs = [
        read(DATA / "vgg_logs" / f"{name}.ncu.csv.gz", DATA / "vgg_logs" / f"{name}.trace.json.gz")
        for name in ("vgg11", "vgg13", "vgg19")
    ]
    steps = [step for log in logs for step in steps_of_ledger(log, "", [])[0]]
    tf32 = H200.tensor_flops_per_s["tf32"].value
    assert H200.core_flops_per_s["fp32"].value < min(point.flops / point.time_s for point in points_of(steps))
    assert max(point.flops / point.time_s for point in points_of(steps)) < tf32
    assert "tf32 tensor 494" in picture(steps_roofline(steps), "svg").decode()
