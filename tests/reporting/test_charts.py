"""Charts of memory, lanes, shares, batches, devices, scaling and studies: their numbers, and that they can be drawn."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator
from typing import Any

import altair as alt
import msgspec
import pytest
import vl_convert
from jsonschema import ValidationError

import rooflight
from rooflight.formatting import whole_bytes
from rooflight.hardware.devices import find
from rooflight.ledger import Kernel, Ledger, Measurement, Value
from rooflight.prediction.result import Predictions
from rooflight.reporting.charts import vega_lite as vl
from rooflight.reporting.charts.chart import COLOURS, Chart, config
from rooflight.reporting.charts.charted_quantity import THROUGHPUT, TIME
from rooflight.reporting.charts.devices import devices_chart
from rooflight.reporting.charts.encodings import log_ticks
from rooflight.reporting.charts.lanes import lanes_chart
from rooflight.reporting.charts.lines import lines_of, study_charts
from rooflight.reporting.charts.memory import memory_chart, peak_tenants_table, predicted_memory
from rooflight.reporting.charts.region_times import course_chart, parts_chart
from rooflight.reporting.charts.roofline import roofline_chart
from rooflight.reporting.charts.scaling import scaling_chart
from rooflight.reporting.charts.shares import shares_chart
from rooflight.reporting.charts.step_lanes import LaneSlice, thinned
from rooflight.reporting.charts.sweep import sweep_chart
from rooflight.reporting.sections.op_families import family_of, family_of_all
from rooflight.study.api import load as load_study
from rooflight.study.cell import StudyCell, StudyRow
from tests.fixtures.measured_ledgers import compiled, toy
from tests.fixtures.paths import ROOT
from tests.fixtures.recordings import recording
from tests.fixtures.region_ledgers import nested_regions

HOSTILE = "</script><script>alert(1)</script>"


@pytest.fixture(scope="module")
def resnet() -> Ledger:
    return recording("h200/resnet50-train-fp32")


@pytest.fixture(scope="module")
def predictions() -> Predictions:
    return rooflight.predict("mnist-cnn", on="v100,h200", batch=[1, 64, 4096], step="train", advice=False)


@pytest.fixture(scope="module")
def scaled() -> Predictions:
    return rooflight.predict("mnist-cnn", on="h200", batch=64, step="train", gpus=8, parallel="ddp", advice=False)


def study_rows(model: str = "net") -> list[StudyRow]:
    """Two devices; measured on one of them, half of a batch of 4 failed."""
    return [
        StudyRow(
            cell=StudyCell(model=model, batch=1, on="h200"), values={"time.predicted": 2e-3, "time.measured": 1e-3}
        ),
        StudyRow(
            cell=StudyCell(model=model, batch=8, on="h200"), values={"time.predicted": 4e-3, "time.measured": 5e-3}
        ),
        StudyRow(
            cell=StudyCell(model=model, batch=1, on="a100"),
            values={"time.predicted": 3e-3, "throughput.predicted": 333.0},
        ),
        StudyRow(
            cell=StudyCell(model=model, batch=8, on="a100"), values={"time.predicted": 6e-3, "throughput.predicted": 0}
        ),
    ]


def hostile(ledger: Ledger) -> Ledger:
    """The same step of a model and modules whose names are code."""
    ops = tuple(msgspec.structs.replace(op, module=HOSTILE if op.module else "") for op in ledger.ops)
    kernels = tuple(msgspec.structs.replace(kernel, name=HOSTILE) for kernel in ledger.kernels)
    header = msgspec.structs.replace(ledger.header, model=HOSTILE)
    return msgspec.structs.replace(ledger, header=header, ops=ops, kernels=kernels)


def values_of(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Every row that is drawn."""
    return [row for rows in spec["datasets"].values() for row in rows]


def without_data(spec: dict[str, Any]) -> str:
    return json.dumps({key: value for key, value in spec.items() if key not in ("datasets", "$schema")})


def rows_with(spec: dict[str, Any], *fields: str) -> list[dict[str, Any]]:
    return [row for row in values_of(spec) if all(field in row for field in fields)]


# --- what holds for all of them ---


@pytest.fixture(scope="module")
def charts(resnet: Ledger, predictions: Predictions, scaled: Predictions) -> dict[str, Chart]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a user's terminal would show them
        made = [
            *(chart(hostile(resnet)) for chart in (memory_chart, lanes_chart, shares_chart)),
            *(chart(nested_regions(step=HOSTILE)) for chart in (parts_chart, course_chart)),
            sweep_chart(predictions), devices_chart(predictions), scaling_chart(scaled),
            *study_charts([*study_rows(HOSTILE), study_rows(f"{HOSTILE}, too")[0]]),
        ]  # fmt: skip
        found = {chart.name: chart for chart in made if chart is not None}
        assert all(chart.spec for chart in found.values())
    return found


def test_every_chart_is_there(charts: dict[str, Chart]) -> None:
    steps = {"memory", "lanes", "shares", "sweep", "devices", "scaling", "batch-1-time", "cells"}
    assert set(charts) == steps | {"regions", "executions"}


def test_every_chart_can_be_drawn(charts: dict[str, Chart]) -> None:
    for chart in charts.values():
        svg = vl_convert.vegalite_to_svg(chart.spec, config=config("dark"))
        assert svg.count("<path") > 10, chart.name
        assert "NaN" not in svg and "undefined" not in svg, chart.name


def test_every_chart_is_vega_lite(charts: dict[str, Chart], resnet: Ledger) -> None:
    roofline = roofline_chart(resnet)
    assert roofline is not None
    for chart in (*charts.values(), roofline):
        alt.Chart.from_dict(chart.spec)  # raises where the schema has no such thing


def test_the_schema_finds_a_wrong_word() -> None:
    wrong = vl.view([{"a": 1}]).mark("dot").encode(x=vl.field("a:Q"))
    with pytest.raises(ValidationError, match="dot"):
        alt.Chart.from_dict(wrong.to_dict())


def test_rows_are_there_once_and_a_selection_names_its_view() -> None:
    rows, others = [{"a": 1}, {"a": 2}], [{"a": 3}]
    picked, hover = vl.picked("one", fields=["a"], bind="legend"), vl.picked("other", on="pointerover", empty=False)
    switch = vl.switch("all", False, {"input": "checkbox"})
    bars = vl.view(rows).mark("bar").encode(x=vl.field("a:Q"), opacity=vl.either(hover, 1, 0))
    made = vl.layer(bars, bars.add_params(picked, hover), vl.view([*rows]).mark("text").filter(picked),
                    vl.view(others, "named").mark("rule")).add_params(switch).to_dict()  # fmt: skip
    assert made["datasets"] == {"data-0": rows, "named": others}
    assert [part["data"]["name"] for part in made["layer"]] == ["data-0", "data-0", "data-0", "named"]
    (view,) = (part["name"] for part in made["layer"] if "name" in part)
    assert [(one["name"], one.get("views")) for one in made["params"]] == [
        ("one", [view]), ("other", [view]), ("all", None)
    ]  # fmt: skip
    assert made["layer"][0]["encoding"]["opacity"]["condition"] == {"param": "other", "empty": False, "value": 1}
    assert made["layer"][2]["transform"] == [{"filter": {"param": "one"}}]
    assert bars.params == () and bars.to_dict().get("params") is None


def test_names_are_data_and_nothing_is_loaded(charts: dict[str, Chart]) -> None:
    for chart in charts.values():
        assert HOSTILE not in without_data(chart.spec), chart.name
        assert "://" not in without_data(chart.spec) and '"url"' not in without_data(chart.spec), chart.name
    assert HOSTILE in json.dumps(charts["memory"].spec["datasets"])


def test_colours_are_those_of_the_theme(charts: dict[str, Chart]) -> None:
    for chart in charts.values():
        used = set(re.findall(r'"(#[0-9a-fA-F]{3,8}|black|white)"', without_data(chart.spec)))
        assert used <= set(COLOURS), chart.name


def test_every_chart_says_how_to_read_it_and_has_its_numbers_as_a_table(charts: dict[str, Chart]) -> None:
    for chart in charts.values():
        assert len(chart.caption) > 40 and chart.title, chart.name
        assert not re.search("click|drag|hollow", chart.caption, re.IGNORECASE), chart.name
        assert chart.table.rows and all(len(row) == len(chart.table.columns) for row in chart.table.rows), chart.name
        assert all(isinstance(text, str) for row in chart.table.written() for text in row), chart.name


def tips(node: Any) -> Iterator[dict[str, Any]]:
    """Every field of every tooltip."""
    if isinstance(node, dict):
        found = node.get("tooltip", [])
        yield from (one for one in (found if isinstance(found, list) else [found]) if "field" in one)
        node = list(node.values())
    if isinstance(node, list):
        for one in node:
            yield from tips(one)


def test_tooltips_show_text_and_nothing_that_vega_would_write(charts: dict[str, Chart], resnet: Ledger) -> None:
    for chart in (*charts.values(), roofline_chart(resnet, on=find("h200"))):
        drawn = list(tips({key: value for key, value in chart.spec.items() if key != "datasets"}))
        assert drawn, chart.name
        for one in drawn:
            assert one["type"] == "nominal" and "format" not in one, (chart.name, one)
            values = [row[one["field"]] for row in values_of(chart.spec) if one["field"] in row]
            assert all(value is None or isinstance(value, str) for value in values), (chart.name, one)


def test_nothing_to_draw_is_none(predictions: Predictions) -> None:
    ledger = rooflight.estimate("mnist-cnn", batch=2)
    empty = msgspec.structs.replace(ledger, ops=(), storages=())
    assert lanes_chart(ledger) is None
    assert memory_chart(empty) is None
    assert shares_chart(empty) is None
    assert peak_tenants_table(empty).rows == ()
    assert scaling_chart(predictions) is None
    assert sweep_chart(msgspec.structs.replace(predictions, predictions=predictions.predictions[:1])) is None
    assert devices_chart(msgspec.structs.replace(predictions, predictions=())) is None
    assert study_charts([StudyRow(cell=StudyCell(model="net", batch=1, on="h200"))]) == []


# --- memory ---


def test_memory_adds_up_to_the_peak_and_to_what_is_allocated() -> None:
    ledger = rooflight.estimate("mnist-cnn", batch=64, step="train")
    memory = predicted_memory(ledger)
    assert memory is not None and memory.timeline is not None
    chart = memory_chart(ledger)
    assert chart is not None
    rows = rows_with(chart.spec, "parameters")
    layers = [key for key in rows[0] if key != "op"]
    assert "activations" in layers and "optimizer state" in layers
    sums = [sum(row[layer] for layer in layers) for row in rows]
    assert max(sums) == memory.peak_allocated_bytes
    assert len(rows) == len(ledger.ops) + 1
    for whole, row, told in zip(sums, rows, rows_with(chart.spec, "texts"), strict=False):
        assert told["texts"] == [whole_bytes(value) for value in (whole, *(row[layer] for layer in layers[::-1]))]
    # The parameters of mnist-cnn: 320 + 18,496 + 9216 x 128 + 128 + 1,290, four bytes each.
    assert {row["parameters"] for row in rows} == {4 * (320 + 18_496 + 9216 * 128 + 128 + 1_290)}
    *_, last = chart.table.rows
    assert last[1] == memory.peak_allocated_bytes


def test_who_lives_at_the_peak_adds_up() -> None:
    ledger = rooflight.estimate("mnist-cnn", batch=64, step="train")
    memory = predicted_memory(ledger)
    assert memory is not None
    *parts, whole = peak_tenants_table(ledger).rows
    assert sum(row[6] for row in parts) == whole[6] == memory.peak_allocated_bytes
    sizes = [row[6] for row in parts if row[0] != "everything else"]
    assert sizes == sorted(sizes, reverse=True)


def test_measured_memory_alone() -> None:
    """Without storages nothing is predicted; the allocator's own numbers are those of the toy."""
    chart = memory_chart(toy())
    assert chart is not None
    line = {row["op"]: row["bytes"] for row in rows_with(chart.spec, "side")}
    assert line == {0: 1256, 1: 1768, 2: 2280, 3: 2024, 5: 2536, 6: 1768, 7: 1512}
    names = [column.name for column in chart.table.columns]
    assert names == ["memory", "measured"]
    assert chart.table.rows[1:] == (("after forward", 2536), ("after backward", 1768), ("after optimizer", 1512))


def test_predicted_memory_names_its_device(resnet: Ledger) -> None:
    estimate = rooflight.estimate("mnist-cnn", batch=8)
    on_cpu = rooflight.estimate("mnist-cnn", batch=8, target="cpu")
    for ledger, on, said in (
        (resnet, "l4", "predicted for NVIDIA H200 SXM 141 GB"), (estimate, None, "predicted for NVIDIA H200 SXM 141 GB"),
        (estimate, "l4", "predicted for NVIDIA L4 24 GB"), (on_cpu, "l4", "predicted for a CPU"),
    ):  # fmt: skip
        device = find(on) if on else None
        chart = memory_chart(ledger, on=device)
        assert chart is not None and said in chart.caption
        assert chart.table.columns[1].name == f"allocated, {said}"
        assert peak_tenants_table(ledger, on=device).note == f"What is alive at the peak, {said}."


def test_of_several_ranks_each_row_names_its_own() -> None:
    """The toy's step twice, as two ranks joined."""
    one = toy()
    count = len(one.ops)
    ops = tuple(msgspec.structs.replace(op, index=op.index + count, rank=1) for op in one.ops)
    rows = tuple(
        msgspec.structs.replace(row, ops=tuple(index + count for index in row.ops))
        for row in one.measurements
        if row.scope == "op"
    )
    both = msgspec.structs.replace(one, ops=(*one.ops, *ops), measurements=(*one.measurements, *rows))
    chart = memory_chart(both)
    assert chart is not None and "first of 2 ranks" in chart.caption
    assert chart.table.rows == tuple(
        (f"rank {rank}: after {where}", bytes_)
        for rank in (0, 1)
        for where, bytes_ in (("the first op", 1256), ("forward", 2536), ("backward", 1768), ("optimizer", 1512))
    )


def test_long_steps_are_thinned_and_keep_their_peak(resnet: Ledger) -> None:
    memory = predicted_memory(resnet)
    chart = memory_chart(resnet, memory=memory)
    assert chart is not None and memory is not None
    rows = rows_with(chart.spec, "parameters")
    assert len(rows) == 301 < len(resnet.ops)
    assert max(sum(row.values()) - row["op"] for row in rows) == memory.peak_allocated_bytes
    assert "stretch of 1.9 ops" in chart.caption


# --- lanes ---


def kernels() -> tuple[Kernel, ...]:
    """Launched 20 µs before the first ran; 10 µs of work, a gap of 20, 30 µs of work."""
    return (
        Kernel(name="gemm", ops=(0,), stream=7, start_s=0.0, time_s=10e-6, launch_s=-20e-6, launch_time_s=5e-6),
        Kernel(name="conv", ops=(1,), stream=7, start_s=30e-6, time_s=30e-6, launch_s=-10e-6, launch_time_s=5e-6),
    )


def test_lanes_of_host_and_gpu() -> None:
    chart = lanes_chart(toy(kernels=kernels()))
    assert chart is not None
    rows = rows_with(chart.spec, "family")
    at = {(row["lane"], row["name"]): (round(row["start"] * 1e6), round(row["end"] * 1e6)) for row in rows}
    assert at == {
        ("launches", "gemm"): (0, 5), ("launches", "conv"): (10, 15),
        ("stream 7", "gemm"): (20, 30), ("stream 7", "conv"): (50, 80),
    }  # fmt: skip
    assert {row["name"]: row["family"] for row in rows} == {"gemm": "matrix product", "conv": "convolution"}
    assert "40.0 µs of the 80.0 µs shown (50.0%)" in chart.caption
    assert ("stream 7", "convolution", 1, pytest.approx(30e-6), pytest.approx(30 / 80)) in chart.table.rows
    assert chart.table.columns[2].name == "kernels, launches, stretches"
    # A quarter of the strip is the launches', then work, a gap, and work to the end.
    busy = [row["busy"] for row in rows_with(chart.spec, "busy")]
    assert [busy[place] for place in (0, 60, 100, -1)] == pytest.approx([0, 1, 0, 1])


def test_without_launches_the_caption_says_so() -> None:
    old = [msgspec.structs.replace(kernel, launch_s=None, launch_time_s=None) for kernel in kernels()]
    chart = lanes_chart(toy(kernels=tuple(old)))
    assert chart is not None
    assert {row["lane"] for row in rows_with(chart.spec, "family")} == {"stream 7"}
    assert "has no launch times" in chart.caption


def test_kernels_of_a_log_without_starts_follow_each_other() -> None:
    chart = lanes_chart(compiled())
    assert chart is not None
    assert "laid end to end" in chart.caption and "100.0%" not in chart.caption
    assert "profiler saw them run" not in chart.caption
    assert not rows_with(chart.spec, "busy")
    assert chart.table.columns[2].name == "kernels, stretches"
    named = {row["name"]: row for row in rows_with(chart.spec, "family")}
    assert named["triton_conv_relu"]["op"] == "convolution + 1 more"
    assert named["memset"]["family"] == "copies, other"


def test_a_step_on_a_cpu_is_its_ops_end_to_end() -> None:
    rows = [
        Measurement(scope="op", ops=(index,), quantities={"host_time_s": Value(time, "clock")})
        for index, time in ((0, 1e-3), (1, 3e-3))
    ]
    chart = lanes_chart(toy(measurements=tuple(rows)))
    assert chart is not None
    assert [(row["lane"], row["op"], row["end"]) for row in rows_with(chart.spec, "family")] == [
        ("ops", "mm", pytest.approx(1e-3)), ("ops", "convolution", pytest.approx(4e-3)),
    ]  # fmt: skip


def test_ranks_are_not_laid_over_each_other() -> None:
    """Of two ranks' kernels at the same time the first rank's are drawn."""
    ledger = toy(kernels=kernels())
    ops = tuple(msgspec.structs.replace(op, rank=1 if op.index else 0) for op in ledger.ops)
    chart = lanes_chart(msgspec.structs.replace(ledger, ops=ops))
    assert chart is not None
    assert {row["name"] for row in rows_with(chart.spec, "family")} == {"gemm"}
    assert "first of 2 ranks" in chart.caption


def thin(count: int) -> Iterator[LaneSlice]:
    """10 ns each, 2 ns apart, two families in turn by five."""
    for place in range(count):
        start = 12 * place
        yield LaneSlice("GPU", "k", start, start + 10, family="ab"[place // 5 % 2], module="m", busy_ns=10)


def test_thin_slices_are_joined_and_lose_nothing() -> None:
    every = list(thin(1000))
    kept = thinned(every, 250, 20)
    assert len(kept) <= 250
    assert sum(one.count for one in kept) == 1000 and sum(one.busy_ns for one in kept) == 10_000
    assert [one.start_ns for one in kept] == sorted(one.start_ns for one in kept)
    assert (kept[0].start_ns, kept[-1].end_ns) == (0, every[-1].end_ns)
    assert thinned(every, 1000, 20) == every
    assert len(thinned(every, 1, 20)) == 1


def test_a_step_of_many_kernels_has_few_marks(resnet: Ledger) -> None:
    many = tuple(
        msgspec.structs.replace(kernel, start_s=(kernel.start_s or 0) + turn, launch_s=turn + 1e-5 * place,
                                launch_time_s=5e-6)
        for turn in range(8) for place, kernel in enumerate(resnet.kernels)
    )  # fmt: skip
    chart = lanes_chart(msgspec.structs.replace(resnet, kernels=many))
    assert chart is not None and len(many) == 5_824
    assert len(rows_with(chart.spec, "lane")) <= 3_000
    assert f"{len(many):,} slices are drawn as" in chart.caption


def test_families_of_ops(resnet: Ledger) -> None:
    found = {op.packet: family_of(op) for op in resnet.ops}
    assert found["aten::convolution_backward"] == "convolution"
    assert found["aten::cudnn_batch_norm"] == "normalisation"
    assert found["aten::threshold_backward"] == "element by element"
    assert found["aten::_foreach_add_"] == "optimizer"
    mine = msgspec.structs.replace(resnet.ops[0], name="mine::thing")
    assert family_of(mine) == "copies, other" and family_of_all([]) == "copies, other"
    assert family_of_all([mine, resnet.ops[0]]) == "convolution"


# --- shares ---


def test_shares_by_hand() -> None:
    """Times 10 (Linear), 20 + 50 (Conv2d), 3, 4, 1 and 2 of 90 µs; FLOPs 1,000 and 12,000 of 13,000."""
    chart = shares_chart(toy())
    assert chart is not None
    share = {(row["type"], row["quantity"]): row["share"] for row in values_of(chart.spec)}
    assert share["Conv2d", "time"] == pytest.approx(70 / 90)
    assert share["Linear", "FLOPs"] == pytest.approx(1 / 13)
    assert share["Conv2d", "FLOPs"] == pytest.approx(12 / 13)
    assert share["ReLU", "DRAM bytes"] == pytest.approx(70 / 780)
    for quantity in ("time", "FLOPs", "compulsory bytes", "DRAM bytes"):
        assert sum(value for (_, name), value in share.items() if name == quantity) == pytest.approx(1)
    assert chart.table.rows[0][0] == "Conv2d" and chart.table.rows[-1][0] == "total"


def test_what_is_not_known_of_a_type_is_left_out_and_said() -> None:
    """The loss was too small for the DRAM counters: that is no 0%."""
    chart = shares_chart(toy())
    assert chart is not None
    assert {row["quantity"] for row in values_of(chart.spec) if row["type"] == "<loss>"} == {
        "time", "FLOPs", "compulsory bytes"
    }  # fmt: skip
    (loss,) = (row for row in chart.table.rows if row[0] == "<loss>")
    told = dict(zip((column.name for column in chart.table.columns), loss, strict=True))
    assert (told["DRAM bytes"], told["of DRAM bytes"]) == (None, None)
    assert (told["FLOPs"], told["of FLOPs"]) == (0, 0)
    assert "Not known, and in no sum: DRAM bytes of <loss>." in chart.caption
    ops = tuple(msgspec.structs.replace(op, cost=None) if op.module == "b.d" else op for op in toy().ops)
    chart = shares_chart(msgspec.structs.replace(toy(), ops=ops))
    assert chart is not None and "; FLOPs of ReLU; compulsory bytes of ReLU" in chart.caption.replace("sum: ", "; ")


def test_the_rest_of_many_types_is_one_row() -> None:
    chart = shares_chart(rooflight.estimate("gpt2", batch=1, step="train"))
    assert chart is not None
    types = {row["whole"] for row in values_of(chart.spec)}
    assert len(types) == 11
    assert len([name for name in types if name.startswith("the rest: ")]) == 1
    assert sum(row["share"] for row in values_of(chart.spec) if row["quantity"] == "FLOPs") == pytest.approx(1)


# --- predictions ---


def too_large(found: Predictions) -> Predictions:
    """As if its largest batch did not fit."""
    changed = tuple(
        msgspec.structs.replace(one, memory=msgspec.structs.replace(one.memory, fits=one.batch != 4096))
        for one in found
        if one.memory is not None
    )
    return msgspec.structs.replace(found, predictions=changed)


def test_the_sweep_has_what_was_predicted(predictions: Predictions) -> None:
    chart = sweep_chart(too_large(predictions))
    assert chart is not None
    rows = {(row["device"], row["batch"]): row for row in rows_with(chart.spec, "throughput", "memory", "fits")}
    for one in predictions:
        row = rows[one.device, one.batch]
        assert (row["time"], row["throughput"], row["high"]) == (one.time_s, one.throughput, one.time_interval_s.high)
        assert row["memory"] == one.memory.device_bytes
        assert row["fits"] == ("does not fit" if one.batch == 4096 else "fits")
    capacities = {row["device"]: row["memory"] for row in rows_with(chart.spec, "text", "memory")}
    assert capacities == {one.device: one.memory.usable_bytes for one in predictions}
    assert len(chart.table.rows) == 6


def test_devices_are_compared_at_the_largest_batch_that_fits(predictions: Predictions) -> None:
    for found, batch in ((predictions, 4096), (too_large(predictions), 64)):
        chart = devices_chart(found)
        assert chart is not None and f"at batch {batch:,}" in chart.caption
        rows = {row["device"]: row["time"] for row in rows_with(chart.spec, "time")}
        assert rows == {one.device: one.time_s for one in found if one.batch == batch}
    chart = devices_chart(too_large(predictions), batch=4096)
    assert chart is not None
    assert all(row["memory_text"].endswith("does not fit") for row in rows_with(chart.spec, "memory_text"))


def test_scaling_beside_the_ideal(scaled: Predictions) -> None:
    chart = scaling_chart(scaled)
    many = scaled[0].many
    assert chart is not None and many is not None
    rows = rows_with(chart.spec, "ideal")
    assert len(rows) == len(many.weak) + len(many.strong) == len(chart.table.rows)
    for point, row in zip((*many.weak, *many.strong), rows, strict=True):
        assert row["throughput"] == point.throughput
        assert row["throughput"] / row["ideal"] == pytest.approx(point.efficiency)


# --- studies ---


def test_lines_of_a_study() -> None:
    """Measured first; a series needs two batches and values above 0."""
    found = [(line.series, line.side, line.points) for line in lines_of(study_rows(), TIME)]
    assert found == [
        ("h200", "measured", ((1, 1e-3), (8, 5e-3))),
        ("h200", "predicted", ((1, 2e-3), (8, 4e-3))),
        ("a100", "predicted", ((1, 3e-3), (8, 6e-3))),
    ]
    assert lines_of(study_rows(), THROUGHPUT) == []
    chart, cells = study_charts([*study_rows("one"), study_rows("two")[0]])
    assert (chart.name, chart.title) == ("batch-1-time", "Time of a step: one")
    assert len(values_of(chart.spec)) == 6
    assert (cells.name, [row[0] for row in cells.table.rows]) == ("cells", ["two"])


def test_a_study_of_one_batch_has_its_cells_side_by_side() -> None:
    rows = [row for model in ("one", "two") for row in study_rows(model) if row.cell.batch == 8]
    (chart,) = study_charts(rows)
    assert chart.name == "cells" and "at batch 8" in chart.caption
    drawn = {(row["group"], row["device"], row["side"]): row["amount"] for row in values_of(chart.spec)}
    assert drawn == {
        (model, device, side): time
        for model in ("one", "two")
        for device, side, time in (("h200", "measured", 5e-3), ("h200", "predicted", 4e-3), ("a100", "predicted", 6e-3))
    }
    assert [column.name for column in chart.table.columns] == ["cell", "device", "time, measured", "time, predicted"]
    assert chart.table.rows[:2] == (("one", "h200", 5e-3, 4e-3), ("one", "a100", None, 6e-3))
    assert chart.table.written()[1][2] == "–"
    svg = vl_convert.vegalite_to_svg(chart.spec, config=config("light"))
    assert "predicted" in svg and "5.00 ms" in svg


def test_a_study_that_was_only_estimated_shows_what_it_costs() -> None:
    rows = [
        StudyRow(cell=StudyCell(model=name), values={"flops.estimated": 10**9 * n}) for n, name in enumerate("ab", 1)
    ]
    (chart,) = study_charts(rows)
    assert {row["group"]: row["amount"] for row in values_of(chart.spec)} == {"a": 1e9, "b": 2e9}
    assert "By formula" in chart.caption


def test_charts_of_many_models_say_which_are_left_out() -> None:
    """One chart a model, 24 at most; and of 26 cells with one batch all are drawn."""
    names = [f"m{number}" for number in range(26)]
    found = study_charts([row for name in names for row in study_rows(name)])
    assert len(found) == 24 and found[-1].title == "Time of a step: m23"
    assert "2 more charts are not shown here, of m24, m25" in found[-1].caption
    found = study_charts([*(row for name in names for row in study_rows(name)), study_rows("last")[0]])
    assert len(found) == 24 and found[-1].name == "cells"
    assert "3 more charts are not shown here, of m23, m24, m25" in found[-1].caption
    (cells,) = study_charts([study_rows(name)[0] for name in names])
    assert {row["group"] for row in values_of(cells.spec)} == set(names) and len(cells.table.rows) == 26


def test_every_recorded_study_has_a_chart_of_every_model() -> None:
    folder = ROOT / "studies" / "recorded" / "h200"
    for name in ("paleo-k80", "vgg-roofline"):
        rows = load_study(folder / name).rows
        said = " ".join(chart.title + str(chart.table.rows) for chart in study_charts(rows))
        assert all(row.cell.model in said for row in rows), name


def test_ticks_of_logarithmic_axes() -> None:
    assert log_ticks(1, 20) == [1, 2, 5, 10, 20]
    assert log_ticks(0.0008, 0.3) == [0.001, 0.003, 0.01, 0.03, 0.1, 0.3]
    assert len(log_ticks(1e-9, 1e9)) <= 7
