"""Predicted memory beside measured: the join by hand, and estimates against what an H200's allocator told."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache

import msgspec
import pytest

import rooflight
from rooflight.analysis.comparison.memory import Highest, JoinedMemory, Moment, SideMemory
from rooflight.analysis.comparison.sides import Comparison
from rooflight.hardware.devices import find
from rooflight.reporting.charts.memory_course import drawn
from rooflight.reporting.sections import compare_memory_tables, compare_tables
from tests.fixtures.measured_ledgers import OPS, compiled, toy
from tests.fixtures.recordings import recording

FIGURES = ("allocated before the step", "allocated at the peak", "reserved at the peak", "outside the allocator")


@cache
def recorded(name):
    return recording(f"h200/{name}")


@cache
def estimated(name):
    """The step of a recording, as nobody measured it."""
    header = recorded(name).header
    return rooflight.estimate(
        header.model, batch=header.batch, seq=header.sequence, dtype=header.dtype, step=header.step, loss=header.loss,
        optimizer=header.optimizer,
    )  # fmt: skip


@cache
def against(name):
    return Comparison(estimated(name), recorded(name))


def with_header(ledger, **changes):
    return msgspec.structs.replace(ledger, header=msgspec.structs.replace(ledger.header, **changes))


# --- the join, by hand ---


def side(kind, allocated, workspaces, *, peak=1000):
    """The ops of the toy that are no views, with these figures; `None`: the side has not asked around the op."""
    ops = [one for one in OPS if one.kind != "view"]
    moments = tuple(
        Moment(one, after, workspace)
        for one, after, workspace in zip(ops, allocated, workspaces, strict=True)
        if after is not None
    )
    return SideMemory(kind, 100, peak, 2000, None, Highest(ops[5], peak), moments)


def by_hand():
    # matmul, convolution, ReLU, add, loss, the convolution's backward, optimizer
    return JoinedMemory(
        side("predicted", (100, 300, 350, 400, 410, 250, 200), (0, 50, 0, 0, 0, 90, 0), peak=900),
        side("measured", (140, 340, None, 440, 470, 300, 240), (0, 10, 0, 0, 0, 90, 0)),
        "h200",
    )


def test_timelines_are_joined_by_op_and_what_differs_from_the_start_is_taken_off():
    memory = by_hand()
    assert [a.op.packet for a, _ in memory.joined] == [
        "aten::mm", "aten::convolution", "aten::add", "aten::mse_loss", "aten::convolution_backward",
        "aten::_foreach_add_",
    ]  # fmt: skip
    assert memory.offset_bytes == -40
    # After the loss A has 60 less, 20 less than from the start; the share is of what was measured.
    assert (memory.furthest[0].packet, memory.furthest[1]) == ("aten::mse_loss", -20)
    assert memory.furthest_share == 0.02
    turned = JoinedMemory(memory.b, memory.a, "h200")
    assert (turned.furthest[1], turned.furthest_share) == (20, 0.02)


def test_ops_are_ranked_by_what_they_leave_or_borrow_otherwise():
    found = [
        (one.op.packet, one.growth_a_bytes, one.growth_b_bytes, one.workspace_a_bytes, one.workspace_b_bytes)
        for one in by_hand().partings()
    ]
    # The ReLU is only in A: what it took is in the growth since the convolution. Backward and the add agree; the last
    # op frees 10 less.
    assert found == [
        ("aten::convolution", 200, 200, 50, 10), ("aten::mse_loss", 10, 30, 0, 0),
        ("aten::convolution_backward", -160, -170, 90, 90), ("aten::_foreach_add_", -50, -60, 0, 0),
    ]  # fmt: skip
    assert [one.op.packet for one in by_hand().partings(limit=1)] == ["aten::convolution"]


def test_two_runs_are_not_taken_apart():
    memory = by_hand()
    runs = replace(memory, a=replace(memory.a, kind="measured"))
    assert memory.partings() and runs.joined and not runs.partings()


def test_two_lines_have_one_scale():
    assert drawn([0, 4, 7], ["forward"] * 3, scale=(0, 7))[0] == "▁▅█"
    assert drawn([0, 4, 7], ["forward"] * 3, scale=(0, 14)) == ["▁▃▅", "▁ 0 B   █ 14 B"]
    lines = [row[0] for row in compare_memory_tables.timeline_table(by_hand()).rows]
    # 100 is the lowest block and 470 the highest, of either line.
    assert lines[0] == "A ▁▅▇▇▄▃" and lines[1] == "B ▂▆▇█▅▄"
    assert lines[-1] == "  ▁ 100 B   █ 470 B"


# --- what a measured ledger tells ---


def test_a_measured_peak_is_that_inside_an_op():
    memory = Comparison(toy(), toy()).memory.joined
    # 2,280 before the convolution's backward, 1,768 after it, and 4,096 borrowed in between.
    assert (memory.a.highest.op.index, memory.a.highest.allocated_bytes) == (6, 6376)
    assert memory.a.peak_allocated_bytes == 10_000 and memory.a.before_bytes is None
    assert [moment.allocated_bytes for moment in memory.a.moments] == [1256, 1768, 2280, 2024, 2536, 1768, 1512]
    assert memory.kinds == ("measured", "measured") and memory.device is None


def test_two_runs_show_totals_and_timelines():
    comparison = Comparison(recorded("resnet50-train-fp32"), recorded("resnet50-train-bf16"))
    found = {line.name: line for line in comparison.totals()}
    assert set(FIGURES) <= set(found)
    assert found["allocated before the step"].a == 392_792_064
    page = compare_tables.compare_document(comparison, by="module", depth=0, folded=True)
    assert not any(table.title.startswith("where memory differs") for table in page.tables)
    assert page.tables[-1].columns[0].name == "allocated after each of 305 ops of both: A measured, B measured"
    assert not any("is predicted for" in line for line in (*page.notes, *page.small_print))


# --- estimates against recordings ---

TRAINED = ("gpt2-train-fp32", "gpt2-train-bf16", "resnet50-train-fp32")


@pytest.mark.parametrize("name", TRAINED)
def test_the_predicted_peaks_stand_beside_the_measured(name):
    found = {line.name: line for line in against(name).totals()}
    lines = [found[f"{figure}: A predicted, B measured"] for figure in FIGURES]
    step = next(row.quantities for row in recorded(name).measurements if "peak_allocated_bytes" in row.quantities)
    assert lines[1].b == step["peak_allocated_bytes"].value and lines[2].b == step["peak_reserved_bytes"].value
    assert lines[1].ratio == pytest.approx(1, abs=0.02)
    assert lines[0].ratio == pytest.approx(1, abs=0.02)
    assert lines[2].ratio == pytest.approx(1, abs=0.08)
    assert lines[3].ratio == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("name", TRAINED)
def test_the_timelines_agree_at_every_op(name):
    memory = against(name).memory.joined
    assert len(memory.joined) > 400
    peak = memory.b.peak_allocated_bytes
    apart = [a.allocated_bytes - b.allocated_bytes - memory.offset_bytes for a, b in memory.joined]
    assert max(map(abs, apart)) < 0.01 * peak
    # A timeline that stood still would not pass: the step goes up and down by more than half of its peak.
    assert max(b.allocated_bytes for _, b in memory.joined) - memory.joined[0][1].allocated_bytes > 0.5 * peak


@pytest.mark.parametrize("name", ["gpt2-train-fp32", "gpt2-train-bf16"])
def test_the_peak_is_in_the_same_op(name):
    memory = against(name).memory.joined
    assert memory.a.highest.op.key == memory.b.highest.op.key
    assert memory.a.highest.op.packet == "aten::_log_softmax_backward_data"


def test_the_largest_differences_of_a_resnet_are_workspaces_of_convolutions():
    found = against("resnet50-train-fp32").memory.joined.partings()
    assert len(found) == 8 and {one.op.packet for one in found} <= {"aten::convolution", "aten::convolution_backward"}
    for one in found:
        assert one.nbytes == abs(one.workspace_a_bytes - one.workspace_b_bytes) > 5e6
    assert [one.nbytes for one in found] == sorted((one.nbytes for one in found), reverse=True)


def test_the_other_way_round_is_the_reciprocal():
    there = against("resnet50-train-fp32")
    back = Comparison(recorded("resnet50-train-fp32"), estimated("resnet50-train-fp32"))
    turned = {line.name: line for line in back.totals()}
    for line in there.totals():
        if line.name.endswith("A predicted, B measured"):
            other = turned[line.name.replace("A predicted, B measured", "A measured, B predicted")]
            assert (line.a, line.b) == (other.b, other.a)
    assert back.memory.joined.offset_bytes == -there.memory.joined.offset_bytes
    assert back.memory.joined.furthest_share == there.memory.joined.furthest_share


def test_a_compiled_step_has_totals_but_no_timeline():
    comparison = Comparison(estimated("resnet50-train-fp32"), recorded("resnet50-train-fp32-compiled"))
    memory = comparison.memory.joined
    assert memory.b.peak_allocated_bytes and memory.b.highest is None and not memory.joined
    page = compare_tables.compare_document(comparison, by="module", depth=0, folded=True)
    assert "memory of A is predicted for h200, as an eager step" in page.notes
    assert [table.rows[0][0] for table in page.tables if table.columns[0].name == "memory at the peak"] == [
        "A, predicted"
    ]


# --- for which device, and when not at all ---


def small(**changes):
    return rooflight.estimate("mnist-cnn", **{"batch": 64, "step": "train", **changes})


def test_predictions_are_for_the_device_that_was_measured():
    a, b = small(), recorded("mnist-cnn-train-tf32")
    here = Comparison(a, b).memory.joined
    there = Comparison(a, with_header(b, device="NVIDIA L4")).memory.joined
    assert (here.device, there.device) == ("h200", "l4")
    assert there.a.outside_bytes < 0.8 * here.a.outside_bytes
    assert there.b == here.b


@pytest.mark.parametrize(("changes", "said"), [
    ({"device": "NVIDIA Unheard-of 9000"}, "memory is left out: NVIDIA Unheard-of 9000 is no GPU that rooflight knows"),
    ({"device": "AMD EPYC 9654 96-Core Processor", "target": "cpu"}, "memory is left out: B is a step on a CPU"),
])  # fmt: skip
def test_memory_is_left_out_where_the_device_is_none_that_is_known(changes, said):
    comparison = Comparison(small(), with_header(recorded("mnist-cnn-train-tf32"), **changes))
    page = compare_tables.compare_document(comparison, by="module", depth=0, folded=True)
    assert comparison.memory.joined is None and page.notes.count(said) == 1
    assert compare_tables.compare_data(comparison)["memory"] == {"left_out": said}
    assert not any("predicted" in line.name for line in comparison.totals())


def test_memory_is_left_out_of_an_estimate_for_a_cpu_and_of_one_without_storages():
    b = recorded("mnist-cnn-train-tf32")
    assert Comparison(small(target="cpu"), b).memory.left_out == "memory is left out: A is a step on a CPU"
    bare = msgspec.structs.replace(small(), storages=())
    assert Comparison(b, bare).memory.left_out == "memory is left out: the ledger B has no storages"
    assert Comparison(small(), compiled()).memory.left_out == "memory is left out: it was not measured in B"


def test_of_two_runs_on_a_cpu_only_what_was_measured_is_said():
    one = with_header(toy(), target="cpu", device=None)
    comparison = Comparison(one, one)
    assert (comparison.memory.joined, comparison.memory.left_out) == (None, "")
    assert next(line for line in comparison.totals() if line.name == "allocated at the peak").a == 10_000
    assert compare_tables.compare_data(comparison)["memory"] is None


def test_two_estimates_are_predicted_for_one_device():
    comparison = Comparison(small(), small(batch=128))
    memory = comparison.memory.joined
    assert memory.kinds == ("predicted", "predicted") and memory.device == "h200"
    assert memory.b.peak_allocated_bytes > memory.a.peak_allocated_bytes
    assert len(memory.joined) == sum(one.kind != "view" for one in small().ops)
    # The ReLU after the second convolution: 64 channels of 24 x 24 in fp32 for every sample.
    grown = [(one.growth_a_bytes, one.growth_b_bytes) for one in memory.partings() if one.op.packet == "aten::relu"]
    assert (64 * 64 * 24 * 24 * 4, 128 * 64 * 24 * 24 * 4) in grown
    page = compare_tables.compare_document(comparison, by="module", depth=0, folded=True)
    assert "memory of A and B is predicted for h200" in page.notes


# --- the command ---


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return rooflight.save(estimated("gpt2-train-fp32"), tmp_path_factory.mktemp("memory") / "estimate.json.gz")


@pytest.fixture
def shown(run):
    def shown(*arguments):
        _, out, err = run(*arguments, columns=140)
        assert not err
        return out

    return shown


def test_the_command_shows_memory(shown, saved):
    out = shown("compare", saved, "recorded:h200/gpt2-train-fp32", "--depth", "0")
    lines = [line.strip() for line in out.splitlines()]
    peak = next(line for line in lines if line.startswith("allocated at the peak: A predicted, B measured"))
    assert peak.split()[-5:] == ["9.21", "GB", "9.20", "GB", "1.00"]
    highest = [line for line in lines if "_log_softmax_backward_data" in line and "<loss>" in line]
    assert [line.split()[:2] for line in highest[:2]] == [["A,", "predicted"], ["B,", "measured"]]
    start = lines.index("where memory differs most: A predicted, B measured")
    assert re.split("  +", lines[start + 2])[-4:] == ["growth A", "growth B", "workspace A", "workspace B"]
    blocks = [line for line in lines if line[:2] in ("A ", "B ") and set(line[2:]) <= set("▁▂▃▄▅▆▇█")]
    assert [line[0] for line in blocks] == ["A", "B"] and len(blocks[0]) == len(blocks[1]) == 74
    assert "memory of A is predicted for h200" in lines


def test_the_numbers_of_the_command_are_those_of_a_program(shown, saved):
    made = json.loads(shown("compare", saved, "recorded:h200/gpt2-train-fp32", "--json"))["memory"]
    memory = against("gpt2-train-fp32").memory.joined
    assert made["left_out"] is None and made["device"] == "h200"
    assert (made["a"]["kind"], made["b"]["kind"]) == ("predicted", "measured")
    # The estimate was saved and loaded: its file tells all that the prediction needs.
    assert made["a"]["peak_allocated_bytes"] == memory.a.peak_allocated_bytes
    assert made["b"]["outside_bytes"] == memory.b.outside_bytes
    assert made["ratios"]["peak_reserved_bytes"] == memory.b.peak_reserved_bytes / memory.a.peak_reserved_bytes
    assert made["a"]["highest"]["name"] == "aten::_log_softmax_backward_data"
    assert [row["allocated_bytes"] for row in made["timeline"]["b"]] == [b.allocated_bytes for _, b in memory.joined]
    assert made["joined_ops"] == len(made["timeline"]["a"]) == len(memory.joined)
    assert made["furthest"]["bytes"] == memory.furthest[1] and made["furthest"]["share_of_peak"] < 0.01
    first = memory.partings()[0]
    assert made["differences"][0]["module"] == first.op.module and len(made["differences"]) == 8
    assert made["differences"][0]["growth_bytes"] == {"a": first.growth_a_bytes, "b": first.growth_b_bytes}


def test_markdown_has_the_section_and_csv_only_the_rows(shown, saved):
    page = shown("compare", saved, "recorded:h200/gpt2-train-fp32", "--md", "--depth", "0")
    assert "## Where memory differs most: A predicted, B measured" in page and "| memory at the peak |" in page
    assert "memory" not in shown("compare", saved, "recorded:h200/gpt2-train-fp32", "--csv", "--depth", "0")


def test_nothing_is_predicted_before_it_is_asked_for():
    """Comparing two runs needs neither torch nor the model of its allocator."""
    script = (
        "import sys; from rooflight.analysis.comparison.sides import Comparison; import rooflight; "
        "one = rooflight.load('recorded:h200/mnist-cnn-infer-fp32'); assert Comparison(one, one).memory.joined; "
        "print([name for name in ('torch', 'rooflight.memory.predict') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_estimate_on_a_named_device_has_the_memory_that_predict_tells_of_it():
    found = rooflight.predict("resnet18", batch=16, on="t4", advice=False)[0].memory
    joined = Comparison(*[rooflight.estimate("resnet18", batch=16, target="cuda:75")] * 2, on=find("t4")).memory.joined
    assert joined is not None and found is not None and joined.device == "t4"
    told = joined.b.peak_allocated_bytes, joined.b.peak_reserved_bytes, joined.b.outside_bytes
    assert told == (found.peak_allocated_bytes, found.peak_reserved_bytes, found.outside_bytes)
