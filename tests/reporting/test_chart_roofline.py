"""The roofline as a chart, as pictures and in letters: where points lie by hand, what is merged, filtered and said."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from functools import cache
from itertools import pairwise

import msgspec
import pytest
import vl_convert

import rooflight
from rooflight.analysis.verdicts import Judge
from rooflight.errors import BadInput
from rooflight.hardware.devices import find
from rooflight.ledger import FORMAT_VERSION, Kernel, Ledger, Measurement, Module, Value
from rooflight.reporting.charts import roofline as charts
from rooflight.reporting.charts.chart import COLOURS
from rooflight.reporting.charts.pictures import picture, themed
from rooflight.reporting.charts.roofline import roofline_chart
from rooflight.reporting.charts.roofline_frame import Frame, decades, frame_of, lines_of, roof_labels
from rooflight.reporting.charts.roofline_layers import LabelBox, LabelledPoint, placed
from rooflight.reporting.charts.roofline_marks import NoRoofline, marks_of, place_of
from rooflight.reporting.charts.text_roofline import LetterGrid, text_roofline
from rooflight.reporting.sections.op_families import FAMILIES
from tests.fixtures.measured_ledgers import HEADER, cost, op, values
from tests.fixtures.recordings import recording

H200 = find("h200")
EVIL = "</script><script>alert(1)</script>datum"


def step_of(*names: str) -> Ledger:
    """Two equal convolutions and a product on an H200 (tf32 494.5 TFLOP/s, 4.8 TB/s).

    By hand, a convolution: 480 MFLOP by formula over 4.8 MB, 500 MFLOP counted over 2.5 MB, 10 µs. The product: 2 MFLOP
    both ways, 2 MB by formula, 1 MB counted, 10 µs.
    """
    first, second, third = names or ("h.0", "h.1", "head")
    ops = (
        op(0, "forward", first, "aten::convolution", cost(480_000_000, 4_000_000, 800_000)),
        op(1, "forward", second, "aten::convolution", cost(480_000_000, 4_000_000, 800_000)),
        op(2, "forward", third, "aten::mm", cost(2_000_000, 1_000_000, 1_000_000)),
    )
    counted = {"cuda_flops_fp32": 0, "cuda_flops_fp64": 0, "kernels": 1, "kernel_time_s": 10e-6}
    conv = values(**counted, tensor_flops_tf32=500_000_000, dram_bytes_read=2_000_000, dram_bytes_written=500_000)
    product = values(**counted, tensor_flops_tf32=2_000_000, dram_bytes_read=500_000, dram_bytes_written=500_000)
    rows = [Measurement(scope="op", ops=(i,), quantities=found) for i, found in enumerate((conv, conv, product))]
    step = {"wall_time_s": Value(40e-6, "by hand"), "gpu_busy_s": Value(30e-6, "by hand")}
    modules = (Module(path="", type="Toy"), Module(path=first, type="Conv2d"), Module(path=second, type="Conv2d"),
               Module(path=third, type="Linear"))  # fmt: skip
    return Ledger(format_version=FORMAT_VERSION, header=HEADER, modules=modules, ops=ops,
                  measurements=(*rows, Measurement(scope="step", quantities=step)))  # fmt: skip


@cache
def recorded(name: str) -> Ledger:
    return recording(f"h200/{name}")


@cache
def chart_of(name: str):
    return roofline_chart(recorded(name))


# --- marks ---


def test_equal_ops_are_one_mark_by_formula_and_as_counted():
    found = marks_of(step_of())
    step, conv, product = found.marks
    assert (step.kind, conv.kind, product.kind) == ("step", "op", "op")
    assert (conv.name, conv.module, conv.count, conv.family) == ("convolution", "h.[0-1]", 2, "convolution")
    assert conv.time_s == pytest.approx(20e-6)
    assert conv.share == pytest.approx(2 / 3)
    counted, formula = conv.places["as counted"], conv.places["by formula"]
    assert (counted.flops, counted.bytes, counted.intensity) == (1_000_000_000, 5_000_000, 200)
    assert counted.flops_per_s == pytest.approx(50e12)
    assert counted.percent_of_roof == pytest.approx(100 * 50 / 494.5)
    assert (formula.flops, formula.bytes, formula.intensity) == (960_000_000, 9_600_000, 100)
    # 100 FLOP/B is left of the ridge at 103: 480 TFLOP/s are attainable, 48 were reached.
    assert formula.percent_of_roof == pytest.approx(10)
    assert step.places["as counted"].intensity == pytest.approx(1002 / 6)
    assert step.places["as counted"].flops_per_s == pytest.approx(1002e6 / 30e-6)
    assert [(roof.precision, roof.unit) for roof in found.used] == [("tf32", "tensor")]
    assert found.without_flops == {"as counted": (0, 0), "by formula": (0, 0)}


def test_ops_of_kernels_that_share_them_have_no_place_by_formula():
    ledger = step_of()
    kernels = (Kernel(name="a", ops=(0,), time_s=1e-6), Kernel(name="b", ops=(0, 1), time_s=1e-6),
               Kernel(name="c", ops=(2,), time_s=1e-6))  # fmt: skip
    shared = msgspec.structs.replace(ledger, kernels=kernels, measurements=ledger.measurements[-1:])
    found = marks_of(shared)
    assert [mark.name for mark in found.marks if mark.kind == "op"] == ["mm"]
    assert found.without_flops["by formula"] == (2, pytest.approx(2 / 3))


def with_relu(**counted: float) -> Ledger:
    """And a ReLU of 48 MFLOP over 48 MB by formula in 10 µs: 100% of what 4.8 TB/s move in that time."""
    ledger = step_of()
    found = values(tensor_flops_tf32=0, cuda_flops_fp32=0, cuda_flops_fp64=0, kernels=1, kernel_time_s=10e-6, **counted)
    relu = op(3, "forward", "act", "aten::relu", cost(48_000_000, 24_000_000, 24_000_000), precision="fp32")
    rows = (Measurement(scope="op", ops=(3,), quantities=found), *ledger.measurements)
    return msgspec.structs.replace(ledger, ops=(*ledger.ops, relu), measurements=rows)


def told_of_relu(ledger: Ledger) -> dict[str, object]:
    table = roofline_chart(ledger).table
    (row,) = (row for row in table.rows if row[1] == "relu")
    return dict(zip((column.name for column in table.columns), row, strict=True))


def test_an_op_that_executed_no_flops_is_judged_by_the_bytes_that_were_counted():
    """It moved 4.8 MB of its 48: a tenth of what the memory could; the cache gave the rest."""
    ledger = with_relu(dram_bytes_read=2_400_000, dram_bytes_written=2_400_000)
    told = told_of_relu(ledger)
    assert (told["basis"], told["FLOPs"], told["bytes"], told["FLOP/B"]) == ("as counted", 0, 4_800_000, 0)
    assert (told["% of roof"], told["bound"]) == (pytest.approx(10), "memory")
    (point,) = (row for row in roofline_chart(ledger).spec["datasets"]["points"] if row["name"] == "relu")
    assert (point["basis"], point["roof"], point["bound"]) == ("by formula", "10%, as counted", "memory, as counted")


def test_where_counters_saw_too_little_nothing_is_judged_by_formula():
    told = told_of_relu(with_relu(dram_bytes_read=0, dram_bytes_written=0))
    assert (told["basis"], told["bytes"], told["% of roof"], told["bound"]) == ("by formula", 48_000_000, None, None)


def test_what_was_counted_in_part_says_so():
    told = told_of_relu(with_relu())
    assert (told["basis"], told["FLOPs"], told["bytes"]) == ("FLOPs counted, bytes by formula", 0, 48_000_000)


def test_the_table_of_a_step_agrees_with_the_verdicts_on_its_layers():
    """In `layer2` of ResNet-50 the cache holds what a ReLU reads: by formula it would be above the roof."""
    table = chart_of("resnet50-train-fp32").table
    found = [dict(zip((column.name for column in table.columns), row, strict=True)) for row in table.rows]
    assert {row["basis"] for row in found} == {"as counted"}
    (relu,) = (row for row in found if row["op or layer"] == "relu_" and row["where"] == "layer2.[0-3].relu")
    assert relu["FLOPs"] == 0
    assert relu["bytes"] < 0.2 * 257e6
    assert relu["% of roof"] < 20
    assert relu["bound"] == "memory"
    assert max(row["% of roof"] for row in found) <= 100


def test_where_merged_marks_are():
    assert place_of(["h.0.attn", "h.1.attn", "h.2.attn"]) == "h.[0-2].attn"
    assert place_of(["h.0.attn", "h.2.attn"]) == "h.0.attn and 1 more"
    assert place_of(["a", "b.c", "d"]) == "a and 2 more"
    assert place_of(["fc", "fc"]) == "fc"
    assert place_of(["h.0.l.1", "h.1.l.0"]) == "h.0.l.1 and 1 more"


def test_shares_of_all_ops_add_up_with_what_is_not_shown():
    for name in ("resnet50-train-fp32", "gpt2-train-bf16", "vgg19-infer-fp32"):
        found = marks_of(recorded(name))
        for basis in found.bases:
            shown = sum(mark.share for mark in found.marks if mark.kind == "op" and basis in mark.places)
            assert shown + found.without_flops[basis][1] == pytest.approx(1)


def test_equal_blocks_are_few_marks():
    ledger = rooflight.estimate("gpt2", batch=1, seq=64, dtype="bf16")
    found = marks_of(ledger, on=H200)
    assert sum(row.kind == "compute" for row in ledger.ops) > 200
    assert len(found.marks) < 50
    assert [mark.count for mark in found.marks if mark.module == "transformer.h.[0-11].mlp.c_fc"] == [12]


# --- which device ---


def test_an_estimate_needs_a_device_and_a_measured_step_has_one():
    estimate = rooflight.estimate("mnist-cnn", batch=8)
    with pytest.raises(NoRoofline, match="name a device"):
        marks_of(estimate)
    assert roofline_chart(estimate) is None
    on_l4 = roofline_chart(estimate, on=find("l4"))
    assert on_l4.title == "Roofline of mnist-cnn, inference on NVIDIA L4 24 GB: times predicted"
    assert "Times are predicted for NVIDIA L4 24 GB (transferred: " in on_l4.caption
    measured = roofline_chart(step_of(), on=find("l4"))
    assert measured.title == "Roofline of toy, training step on NVIDIA H200 SXM 141 GB: times measured"


def test_a_step_that_ran_on_a_cpu_is_predicted_where_it_is_asked_for():
    estimate = rooflight.estimate("mnist-cnn", batch=8, target="cpu")
    took = Measurement(scope="op", ops=(0,), quantities=values(host_time_s=1e-3))
    ran = msgspec.structs.replace(
        estimate, measurements=(took,), header=msgspec.structs.replace(estimate.header, device="a processor")
    )
    assert roofline_chart(ran) is None
    found = roofline_chart(ran, on=H200)
    assert found.title.endswith("on NVIDIA H200 SXM 141 GB: times predicted")
    assert "The step ran on a CPU" in found.caption


def test_the_judge_of_a_step_that_ran_on_a_cpu_is_used_where_there_is_one():
    """One of a larger batch tells that it was: what its marks are of is not looked at a second time."""
    step = rooflight.estimate("mnist-cnn", batch=2, target="cpu")
    took = Measurement(scope="op", ops=(0,), quantities=values(host_time_s=1e-3))
    ran = msgspec.structs.replace(step, measurements=(took,))
    twice = Judge(rooflight.estimate("mnist-cnn", batch=4, target="cpu"), on=find("h200"))
    own, given = marks_of(ran, on=find("h200")), marks_of(ran, on=find("h200"), judge=twice)
    assert own.step is not None and given.step is not None
    assert given.step.verdict.flops > 1.9 * own.step.verdict.flops
    assert own.how == given.how and own.how.startswith("The step ran on a CPU")
    other = marks_of(ran, on=find("h200"), judge=Judge(step, on=find("a100")))
    assert other.device.name == "h200"


def test_a_precision_that_a_device_lacks_is_said():
    estimate = rooflight.estimate("gpt2", batch=1, seq=32, dtype="bf16")
    assert roofline_chart(estimate, on=find("k80")) is None
    (line,) = text_roofline(estimate, on=find("k80"))
    assert line.startswith("no roofline: ")
    assert "no units for bf16" in line
    with pytest.raises(BadInput, match="no units for bf16"):
        estimate.roofline("k80")
    assert "is a CPU" in text_roofline(estimate, on=find("epyc-9654"))[0]


# --- the frame ---


def test_the_frame_by_hand():
    frame = frame_of(marks_of(step_of()))
    # The product by formula is the lowest: 1 FLOP/B, 0.2 TFLOP/s; three times the ridge is 309 FLOP/B.
    assert frame.x == (1, 1000)
    assert frame.y == (1e11, pytest.approx(494.5e12 * 1.6))
    assert frame.y_of_all == pytest.approx(1979e12 * 1.6)


def test_an_op_of_no_time_does_not_stretch_the_axes():
    ledger = step_of()
    tiny = op(3, "forward", "", "aten::add", cost(2, 400_000, 0))
    quick = Measurement(scope="op", ops=(3,), quantities=values(kernel_time_s=1e-7, kernels=1))
    with_it = msgspec.structs.replace(ledger, ops=(*ledger.ops, tiny), measurements=(quick, *ledger.measurements))
    found = marks_of(with_it)
    assert frame_of(found).x == (1, 1000)
    chart = roofline_chart(with_it)
    assert "by formula, 1 more beyond its edges (0.3%)" in chart.caption


def test_roofs_are_where_they_are_in_the_data_sheet():
    found = marks_of(step_of())
    frame = frame_of(found)
    shown = {(line.name, line.sustained): line for line in lines_of(found, frame) if line.used}
    roof = shown["tf32 on tensor cores", False]
    assert roof.x == (pytest.approx(494.5 / 4.8), 1000)
    assert roof.y == (494.5e12, 494.5e12)
    slope = shown["DRAM", False]
    assert slope.x == (1, pytest.approx(494.5 / 4.8))
    assert slope.y == (4.8e12, pytest.approx(494.5e12))
    assert ("tf32 on tensor cores", True) in shown  # a calibration comes along
    assert ("L2", True) in shown
    assert all(line.source for line in shown.values())


def test_names_of_roofs_are_apart_or_shared():
    found = marks_of(step_of())
    frame = frame_of(found)
    (only,) = roof_labels(found, frame, every=False, apart=1.3)
    assert only.lines == ("tf32 tensor 494.5 T (345 T)", "tf32 tensor 494.5 T")
    every = roof_labels(found, frame, every=True, apart=1.3)
    heights = [said.y for said in every]
    assert all(high >= 1.3 * low for high, low in pairwise(heights))
    assert any(said.lines[1] == "fp32 CUDA, fp64 tensor 67 T" for said in every)


def test_ticks_are_powers_of_ten():
    assert decades((0.01, 1000)) == [0.01, 0.1, 1, 10, 100, 1000]
    assert decades((3e9, 7.9e14)) == [1e10, 1e11, 1e12, 1e13, 1e14]
    assert len(decades((1e-9, 1e9), most=6)) <= 6


def test_labels_meet_neither_points_nor_each_other():
    points = [LabelledPoint(100, 100, 10, "first"), LabelledPoint(125, 100, 10, "second"), LabelledPoint(20, 100, 5)]
    found = placed(points, width=300, height=200)
    assert found[2] is None
    boxes = [box for box in found if box is not None]
    assert len(boxes) == 2
    dots = [LabelBox(point.x, point.y, 2 * point.radius, 2 * point.radius) for point in points]
    assert not any(box.meets(dot) for box in boxes for dot in dots)
    assert not boxes[0].meets(boxes[1])
    everywhere = [LabelBox(150, 100, 300, 200)]
    assert placed(points[:1], width=300, height=200, taken=everywhere) == [None]
    forced = placed([LabelledPoint(100, 100, 10, "step", always=True)], width=300, height=200, taken=everywhere)
    assert forced[0] is not None
    assert forced[0].y > 110


# --- the chart ---


def test_points_of_the_chart_are_the_marks_that_it_holds():
    chart = roofline_chart(step_of())
    rows = chart.spec["datasets"]["points"]
    assert {(row["basis"], row["name"], row["x"], row["y"]) for row in rows} == {
        ("as counted", "convolution", 200, 5e13), ("by formula", "convolution", 100, 4.8e13),
        ("as counted", "mm", 2, 2e11), ("by formula", "mm", 1, 2e11),
    }  # fmt: skip
    row = next(row for row in rows if row["name"] == "convolution" and row["basis"] == "as counted")
    assert (row["module"], row["phase"], row["count"], row["time"], row["share_said"]) == (
        "h.[0-1]", "forward", "2", "20.0 µs", "66.7%")  # fmt: skip
    assert (row["flops"], row["bytes"], row["intensity"], row["rate"], row["roof"], row["units"]) == (
        "1.00 G executed", "5.00 MB of DRAM", "200", "50.0 TFLOP/s", "10.1% of 494 TFLOP/s",
        "100.0% tf32 on tensor cores")  # fmt: skip
    assert [cells[0] for cells in chart.table.rows] == ["whole step", "op", "op"]
    assert "Click" in chart.hint
    assert "lick" not in chart.caption


def test_the_spec_is_whole_and_loads_nothing():
    for name in ("resnet50-train-fp32", "gpt2-train-bf16", "mnist-cnn-infer-fp32"):
        spec = chart_of(name).spec
        vl_convert.vegalite_to_vega(spec, show_warnings=False)
        text = json.dumps({key: value for key, value in spec.items() if key != "$schema"})
        assert '"url"' not in text  # sources of peaks are only words
        assert "href" not in text
        families = {row["family"] for row in spec["datasets"]["points"]}
        assert families <= set(FAMILIES)
    assert len(COLOURS) == len(FAMILIES)


def test_names_of_modules_are_only_data():
    ledger = step_of(EVIL, "b", "c")
    spec = json.loads(json.dumps(roofline_chart(ledger).spec))
    assert EVIL in json.dumps(spec["datasets"])

    def without_data(node):
        if isinstance(node, dict):
            return {key: without_data(value) for key, value in node.items() if key not in ("values", "datasets")}
        return [without_data(one) for one in node] if isinstance(node, list) else node

    assert "alert" not in json.dumps(without_data(spec))
    assert b"<script" not in picture(roofline_chart(ledger), "svg")


def test_at_most_so_many_points_the_slowest_and_the_step(monkeypatch):
    monkeypatch.setattr(charts, "MOST_POINTS", 20)
    found = marks_of(recorded("resnet50-train-fp32"))
    chart = charts.chart_of(found, recorded("resnet50-train-fp32"))
    assert [cells[1] for cells in chart.table.rows] == [mark.name for mark in found.marks[:10]]
    ops = sum(mark.count for mark in found.marks if mark.kind == "op" and "as counted" in mark.places)
    kept = sum(mark.count for mark in found.marks[:10] if mark.kind == "op")
    assert f"and {ops - kept} more beyond its edges" in chart.caption


def symbols(spec: dict) -> list[str]:
    """What every point that is drawn says to a screen reader."""
    svg = vl_convert.vegalite_to_svg(spec, show_warnings=False)
    return [
        one.get("aria-label")
        for one in ElementTree.fromstring(svg).iter()
        if one.get("aria-roledescription") == "point"
    ]


def test_readers_switch_between_counted_and_formula_and_filter_by_the_legend():
    spec = json.loads(json.dumps(roofline_chart(step_of()).spec))
    counted = symbols(spec)
    assert len(counted) == 2
    assert any("FLOP/B: 200" in label for label in counted)
    by_name = {param["name"]: param for param in spec["params"]}
    by_name["basis"]["value"] = "by formula"
    assert any("FLOP/B: 100" in label for label in symbols(spec))
    by_name["family"]["value"] = [{"family": "convolution"}]
    assert [("convolution" in label) for label in symbols(spec)] == [True]
    assert by_name["basis"]["bind"]["options"] == ["as counted", "by formula"]
    assert by_name["all_roofs"]["bind"]["input"] == "checkbox"
    assert by_name["kind"]["bind"] == "legend"


# --- pictures ---


def test_pictures_of_every_form_and_mode_are_the_same_every_time():
    chart = roofline_chart(step_of())
    png = picture(chart, "png", scale=1)
    assert png.startswith(b"\x89PNG")
    assert png == picture(chart, "png", scale=1)
    assert picture(chart, "pdf").startswith(b"%PDF")
    light, dark = picture(chart, "svg"), picture(chart, "svg", mode="dark")
    assert light == picture(chart, "svg")
    assert b'fill="#ffffff"' in light
    assert b'fill="#ffffff"' not in dark
    assert chart.title.encode() in light
    assert "config" not in chart.spec
    assert themed(chart, "light")["title"]["text"] == chart.title


# --- in letters ---


def test_a_point_lies_in_its_cell():
    grid = LetterGrid(Frame((0.1, 1000), (1e9, 1e14), 1e14), columns=81, rows=11)
    assert (grid.column(0.1), grid.column(10), grid.column(1000)) == (0, 40, 80)
    assert (grid.row(1e14), grid.row(1e12), grid.row(1e9)) == (0, 4, 10)
    assert (grid.column(10, 2), grid.row(1e14, 4)) == (80, 0)  # of 162 and 44 parts


def test_the_text_by_hand():
    lines = text_roofline(step_of(), width=100, height=22)
    top = lines.index(" FLOP/s") + 1
    plot = [line.ljust(100)[8:] for line in lines[top : top + 22]]
    # 92 columns from 1 to 1,000 FLOP/B, 22 rows from 0.1 to 791.2 TFLOP/s. As counted:
    # A, the convolutions: 2.301/3 × 91 = 70; 2.699/3.898 × 21 = 15 from below.
    # B, the product: 0.301/3 × 91 = 9; 0.301/3.898 × 21 = 2. The step: 2.223/3 × 91 = 67; 2.524/3.898 × 21 = 14.
    assert plot[6][70] == "A"
    assert plot[19][9] == "B"
    assert plot[7][67] == "★"
    assert sum(line.count("A") + line.count("B") for line in plot) == 2
    assert any(line.endswith("tf32 tensor 494.5 T") for line in lines)
    legend = [line.split() for line in lines if line[:2] in ("A ", "B ", "★ ")]
    assert legend[0][1:4] == ["the", "whole", "step"]
    assert legend[1] == "A convolution ×2 h.[0-1] 20.0 µs 66.7% 200 50.0 10% compute".split()
    assert legend[2][:3] == ["B", "mm", "head"]
    ticks = {line[:7].strip() for line in lines[top : top + 22]}
    assert {"100 T", "10 T", "1 T", "100 G"} <= ticks
    assert lines[top + 23].split() == ["1", "10", "100", "1,000"]


def test_text_fits_its_width_and_may_be_ascii():
    for name in ("resnet50-train-fp32", "gpt2-train-bf16", "mnist-cnn-infer-fp32"):
        for width in (60, 80, 110):
            lines = text_roofline(recorded(name), width=width, height=16, ascii=True)
            assert max(map(len, lines)) <= width
            assert all(line.isascii() for line in lines)
            assert any("*" in line for line in lines[2:20])


def test_ops_in_one_cell_share_a_letter():
    lines = text_roofline(recorded("gpt2-train-bf16"))
    letters = [line[0] for line in lines if len(line) > 3 and line[1:3] == "  " and line[0].isupper()]
    assert len(letters) == 10
    assert len(set(letters)) < 10
    assert letters[0] == "A"
    assert set(letters) == {chr(ord("A") + i) for i in range(len(set(letters)))}


def test_regions_of_a_program_are_points_too():
    """By hand: 1 GFLOP over 2 MB in 100 µs, 500 FLOP/B and 10 TFLOP/s."""
    counted = {"cuda_flops_fp32": 0, "cuda_flops_fp64": 0, "kernels": 3}
    region = Measurement(
        scope="region", name="conv2",
        quantities=values(**counted, gpu_span_s=1e-4, tensor_flops_tf32=10**9, dram_bytes_read=10**6, dram_bytes_written=10**6),
    )  # fmt: skip
    header = msgspec.structs.replace(HEADER, step=None)
    program = Ledger(format_version=FORMAT_VERSION, header=header, measurements=(region,))
    chart = roofline_chart(program)
    (row,) = chart.spec["datasets"]["points"]
    assert (row["kind"], row["name"], row["x"], row["y"], row["share_said"]) == ("region", "conv2", 500, 1e13, "–")
    assert any(line.startswith("A  conv2") for line in text_roofline(program))
