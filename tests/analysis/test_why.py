"""`rooflight compare`: why two sides differ. Ops aligned, accounts that add up at every level, and the page in its forms."""

from __future__ import annotations

import csv
import importlib
import io
import json
import math
from functools import partial
from unittest.mock import patch

import msgspec
import pytest

import rooflight
from rooflight.analysis.comparison.align import align, family, names
from rooflight.analysis.comparison.sides import Comparison
from rooflight.analysis.comparison.why import MEDIANS, OVERLAP
from rooflight.analysis.flop_causes import NOT_COUNTED, PADDING, explain_flops
from rooflight.analysis.host_causes import ALL as HOST_CAUSES
from rooflight.analysis.time_causes import explain_time
from rooflight.analysis.traffic_causes import explain_traffic
from rooflight.commands.import_ import _read as read_log
from rooflight.ledger import LOSS, OPTIMIZER, Ledger, Value, is_inside
from rooflight.metrics import EXECUTED_FLOPS, TENSOR_FLOPS
from rooflight.reporting.sections import compare_tables, why_tables
from rooflight.reporting.sections.why_tables import amount_writer
from rooflight.reporting.writers.terminal import narrowed
from rooflight.summary.functions import row_names
from rooflight.summary.measured_rows import NO_OP, SEVERAL
from tests.fixtures.explained_ledgers import (
    CELLS,
    ENDING,
    OTHER_MODELS,
    RECORDINGS,
    STEPS,
    STUDIES,
    flops,
    ledger,
    recounted,
    time,
    traffic,
)
from tests.fixtures.measured_ledgers import OPS, compiled, cost, op, toy
from tests.fixtures.paths import ROOT

FP32, BF16 = ledger("recorded:h200/resnet50-infer-fp32"), ledger("recorded:h200/resnet50-infer-bf16")
MNIST = ledger("recorded:h200/mnist-cnn-infer-tf32")


def page_text(comparison):
    return compare_tables.compare_document(comparison, by="module", depth=3, folded=True).to_markdown()


@pytest.fixture(scope="module")
def estimated():
    return rooflight.estimate("mnist-cnn", batch=64)


@pytest.fixture(scope="module")
def against_estimate(estimated):
    return Comparison(estimated, MNIST)


@pytest.fixture(scope="module")
def precisions():
    return Comparison(FP32, BF16)


# --- ops of two ledgers, aligned ---


def test_batch_norms_of_two_precisions_are_one():
    """In fp32 cuDNN normalises, in bf16 torch does, and makes an empty tensor for it."""
    found = align(FP32, BF16)
    assert found.by_key == 121
    assert names(found.by_family) == {("aten::cudnn_batch_norm", "aten::native_batch_norm"): 53}
    assert all((a.module, a.call, a.phase) == (b.module, b.call, b.phase) for a, b in found.by_family)
    assert found.only_a == () and {one.name for one in found.only_b} == {"aten::empty.memory_format"}


def test_attention_of_two_precisions_is_one_forward_and_backward():
    found = align(ledger("recorded:h200/gpt2-train-fp32"), ledger("recorded:h200/gpt2-train-bf16"))
    kernel = "aten::_scaled_dot_product_{}_attention{}"
    assert names(found.by_family) == {
        (kernel.format("efficient", ""), kernel.format("cudnn", "")): 12,
        (kernel.format("efficient", "_backward"), kernel.format("cudnn", "_backward")): 12,
    }
    assert found.only_a == found.only_b == ()


@pytest.mark.parametrize("other", ["recorded:h200/resnet50-infer-bf16", "recorded:h200/resnet50-train-fp32"])
def test_every_op_is_somewhere_and_either_way_round(other):
    there, back = align(FP32, ledger(other)), align(ledger(other), FP32)
    counted = sum(one.kind != "view" for one in FP32.ops)
    assert there.by_key + len(there.by_family) + len(there.only_a) == counted
    assert {(a.index, b.index) for a, b in there.by_family} == {(b.index, a.index) for a, b in back.by_family}
    assert there.only_a == back.only_b and there.only_b == back.only_a


def changed(index, **what):
    """The toy step with one op that is another."""
    return toy(ops=tuple(msgspec.structs.replace(one, **what) if one.index == index else one for one in OPS))


def test_only_the_same_call_of_the_same_module_is_aligned():
    other = changed(1, name="aten::cudnn_convolution")
    assert [(a.name, b.name) for a, b in align(toy(), other).by_family] == [
        ("aten::convolution", "aten::cudnn_convolution")
    ]
    for what in ({"module": "b.e"}, {"call": 1}, {"phase": "backward"}):
        found = align(toy(), changed(1, name="aten::cudnn_convolution", **what))
        assert not found.by_family
        assert ([one.index for one in found.only_a], [one.index for one in found.only_b]) == ([1], [1])


def test_in_place_is_the_same_and_backward_is_not():
    relu, add = op(0, "forward", "", "aten::relu_", cost()), op(0, "forward", "", "aten::add.Tensor", cost())
    assert family(relu) == "aten::relu" != family(add)
    forward, back = (op(0, "forward", "", f"aten::native_batch_norm{end}", cost()) for end in ("", "_backward"))
    assert (family(forward), family(back)) == ("batch_norm", "batch_norm.backward")
    assert family(op(0, "forward", "", "aten::addmm", cost())) == family(op(0, "forward", "", "aten::mm", cost()))


def test_unmatched_ops_are_shown():
    page = page_text(Comparison(toy(), changed(2, name="aten::gelu")))
    assert "| b.d | 1 | 1 | aten::relu | aten::gelu |" in page
    assert "6 ops, views apart, are in both; 1 only in A, 1 only in B" in page


def test_what_is_aligned_by_family_is_said(precisions):
    assert "(53 of them by what they do, under another name)" in page_text(precisions)


# --- accounts ---

PAIRS = {
    "estimate and measurement": ("estimate", "recorded:h200/mnist-cnn-infer-tf32"),
    "two precisions": ("recorded:h200/resnet50-infer-fp32", "recorded:h200/resnet50-infer-bf16"),
    "eager and compiled": ("recorded:h200/resnet50-train-fp32", "recorded:h200/resnet50-train-fp32-compiled"),
    "with TF32 and without": ("recorded:h200/mnist-cnn-infer-tf32", "recorded:h200/mnist-cnn-infer-fp32"),
    "two batches": ("mnist-conv2/mnist-cnn-b16-infer-fp32-h200-d94dcbb1",
                    "mnist-conv2/mnist-cnn-b128-infer-fp32-h200-65605960"),
    "two models": ("recorded:h200/vgg19-infer-fp32", "recorded:h200/resnet50-infer-fp32"),
}  # fmt: skip


@pytest.fixture(params=PAIRS)
def pair(request, estimated):
    return Comparison(*(estimated if place == "estimate" else ledger(place) for place in PAIRS[request.param]))


def test_what_was_asked_for_causes_and_the_rest_are_what_was_measured(pair):
    assert {one.quantity for one in pair.whys} >= {"time", "memory"}
    for one in pair.whys:
        for side in "ab":
            terms = [getattr(term, side) for term in (one.asked, *one.causes, one.unexplained)]
            measured = getattr(one.measured, side)
            if measured is not None:
                assert math.fsum(term or 0 for term in terms) == pytest.approx(measured, rel=1e-9)
        if one.measured.a is not None and one.measured.b is not None:
            differences = [term.difference for term in (one.asked, *one.causes, one.unexplained)]
            assert math.fsum(differences) == pytest.approx(one.measured.difference, rel=1e-6, abs=1e-9)


def test_an_estimate_has_nothing_but_what_is_asked_for(against_estimate):
    found = {one.quantity: one for one in against_estimate.whys}
    assert set(found) == {"FLOPs", "DRAM bytes", "time", "memory"}
    useful = sum(one.cost.flops for one in against_estimate.a.ledger.ops if one.cost is not None)
    assert found["FLOPs"].asked.a == found["FLOPs"].asked.b == useful
    for one in found.values():
        assert {term.a for term in one.causes} == {None}
        assert one.measured.a is one.unexplained.a is one.gross[0] is None


def test_a_ledger_against_itself_differs_in_nothing():
    for one in Comparison(MNIST, MNIST).whys:
        assert {term.difference for term in (one.asked, *one.causes, one.unexplained, one.measured)} == {0}


def test_the_wall_is_reached_by_what_the_gpu_waits_for(precisions):
    (one,) = (one for one in precisions.whys if one.quantity == "time")
    causes = {term.name: term for term in one.causes}
    for side, of in (("a", FP32), ("b", BF16)):
        step = next(row.quantities for row in of.measurements if row.scope == "step")
        assert getattr(one.measured, side) == step["wall_time_s"].value
        waited = sum(getattr(causes[name], side) or 0 for name in HOST_CAUSES if name in causes)
        assert waited == pytest.approx(step["wall_time_s"].value - step["gpu_busy_s"].value)
        kernels = math.fsum(kernel.time_s for kernel in of.kernels)
        # Kernels side by side make the union less than the sum; more it is only by clocks of different runs.
        beyond = sum(getattr(causes[name], side) or 0 for name in (OVERLAP, MEDIANS) if name in causes)
        assert beyond == pytest.approx(step["gpu_busy_s"].value - kernels, rel=0.05, abs=2e-6)


@pytest.mark.parametrize("by", ["type", "op"])
def test_rows_of_types_and_ops_sum_to_the_step(precisions, by):
    sums_to_step(precisions, precisions.rows(by))


def sums_to_step(comparison, rows):
    whole = comparison.reasons[1].whole("FLOPs")[0]
    known = [row.why for row in rows if row.why is not None and row.b is not None]  # else it is A's account
    assert sum(one.measured for one in known) == whole.measured
    assert math.fsum(one.unexplained for one in known) == pytest.approx(whole.unexplained, abs=1)
    for cause in whole.causes:
        there = math.fsum(one.amount for row in known for one in row.causes if one.name == cause.name)
        assert there == pytest.approx(cause.amount, rel=1e-9)


def test_rows_of_modules_sum_to_the_step_at_every_depth():
    comparison = Comparison(ledger("recorded:h200/resnet50-infer-fp32"), ledger("recorded:h200/resnet50-train-fp32"))
    rows = {row.name: row for row in comparison.rows("module")}
    outermost = [rows[name] for name in ("", LOSS, OPTIMIZER, SEVERAL, NO_OP) if name in rows]
    sums_to_step(comparison, outermost)
    # And every module is what runs in it and in its children.
    by_op = {row.op.index: row for row in comparison.reasons[1].flops}
    names = row_names(ledger("recorded:h200/resnet50-train-fp32"))
    for name, row in rows.items():
        if row.why is not None and name not in (LOSS, OPTIMIZER):
            inside = [found for found in by_op.values() if is_inside(names[found.op.index], name)]
            assert row.why.measured == sum(found.measured for found in inside)
            assert row.why.unexplained == pytest.approx(math.fsum(found.unexplained for found in inside), abs=1)


def test_shares_of_flops_are_of_the_useful_ones_of_time_of_the_wall(against_estimate):
    for one in against_estimate.whys:
        whole = one.asked if one.quantity in ("FLOPs", "DRAM bytes") else one.measured
        assert one.part(whole) == 1
        assert one.part(one.unexplained) == one.unexplained.b / whole.b


# --- what a page says ---


def test_a_small_page(against_estimate):
    """The step of the first document, batch 64: 1.51 GFLOP asked for, 1.54 executed."""
    (one,) = (one for one in against_estimate.whys if one.quantity == "FLOPs")
    table = why_tables.why_table(one)
    assert [column.name for column in table.columns] == ["why: FLOPs", "FLOPs", "share", "evidence"]
    lines = {row[0]: row for row in table.rows}
    written = {row[0]: row for row in table.written()}
    assert [*written][:1] + [*written][-2:] == ["useful FLOPs", "unexplained", "executed by all units"]
    # conv1 2 × 9 × 32 × 26² × 64, conv2 2 × 9 × 32 × 64 × 24² × 64, linears 2 × 64 × (9,216 × 128 + 128 × 10).
    assert lines["useful FLOPs"][1] == 24_920_064 + 1_358_954_496 + 2 * 64 * (9216 * 128 + 1280) == 1_535_033_344
    assert written["useful FLOPs"][1:3] == ["1.54 G", "100.0%"]
    assert written["executed by all units"][1:3] == ["1.57 G", "102.3%"]
    assert lines["executed by all units"][1] == 1_569_918_592
    assert "sum of the absolute values, op by op: 0." in written["unexplained"][3]
    assert all(row[3] for row in table.written()[1:-1])


def test_only_causes_have_a_sign(against_estimate):
    for one in against_estimate.whys:
        rows = why_tables.why_table(one).written()
        share = [column.raw for column in why_tables.why_table(one).columns].index("share")
        assert [row[share][0] for row in (rows[0], rows[-1]) if row[share][0] in "+−"] == []
        assert all(row[share][0] in "+−" for row in rows[1:-1]), one.quantity


def test_small_causes_are_in_the_document_only(against_estimate):
    (one,) = (one for one in against_estimate.whys if one.quantity == "FLOPs")
    shown = {row[0] for row in why_tables.why_table(one).rows}
    for term in one.causes:
        assert (term.name in shown) == (abs(one.part(term)) >= why_tables.SMALLEST)


def test_causes_that_the_counters_refute_are_not_told():
    """Half of all counts: less than the useful FLOPs, so nothing can have been executed beyond them."""

    def less(_, values):
        return {name: Value(value.value * 0.5, value.origin) if name in EXECUTED_FLOPS else value
                for name, value in values.items()}  # fmt: skip

    comparison = rooflight.compare(recounted(FP32, less))
    whole = comparison.reasons[1].whole("FLOPs")[0]
    assert whole.unexplained == pytest.approx(whole.gap, rel=0.01) and whole.gap < 0
    assert "of the useful FLOPs is unexplained" in page_text(comparison)
    rows = why_tables.why_table(comparison.whys[0]).written()
    assert rows[-2][0] == "unexplained" and rows[-2][1].startswith("−")
    assert "tile padding" not in {row[0] for row in rows}
    ops = why_tables.why_data(comparison)["ops"]["b"]
    flops = [op["flops"] for op in ops if "flops" in op]
    assert all(not (row["causes"] and row["refuted"]) for row in flops)
    assert any(cause["name"] == "tile padding" for row in flops for cause in row["refuted"])


def test_tensor_work_that_no_counter_saw_is_on_the_page():
    bare = recounted(FP32, lambda _, values: {name: value for name, value in values.items()
                                              if name not in TENSOR_FLOPS})  # fmt: skip
    page = page_text(Comparison(rooflight.estimate("resnet50", batch=16), bare))
    assert NOT_COUNTED in page and "no counter saw" in page


@pytest.mark.parametrize("width", [40, 60, 80, 100, 112, 160, 240])
def test_tables_fit_a_terminal(precisions, against_estimate, width):
    for comparison in (precisions, against_estimate):
        for one in comparison.whys:
            table = narrowed(why_tables.why_table(one), width)
            kept = narrowed(table, width)
            texts = [[column.name for column in kept.columns], *kept.written()]
            names = [column.name for column in kept.columns]
            assert names[0] == f"why: {one.quantity}" and (one.quantity in names[1:] or "B" in names)
            numbers = [i for i, column in enumerate(kept.columns) if column.right]
            assert all(len(row[i]) <= width for row in texts for i in numbers)
            if width >= 80:
                assert sum(max(len(row[i]) for row in texts) + 3 for i in range(len(names))) <= width
                assert "share" in names
            if width >= (160 if "B" in names else 100):
                assert "evidence" in names


# --- the command ---


@pytest.fixture
def run(run):
    return partial(run, columns=160)


@pytest.fixture(scope="module")
def sides(tmp_path_factory, estimated):
    path = tmp_path_factory.mktemp("why") / "estimate.json"
    rooflight.save(estimated, path)
    return path, "recorded:h200/mnist-cnn-infer-tf32"


def test_the_text(run, sides):
    code, out, err = run("compare", *sides)
    assert (code, err) == (0, "")
    for said in ("why: FLOPs: ", "why: DRAM bytes", "why: time", "why: memory", "tile padding", "unexplained",
                 "evidence", "L2 hits", "host: Python and dispatch", "CUDA context and libraries", "never from the gap"):  # fmt: skip
        assert said in out, said


@pytest.mark.parametrize("width", [50, 80])
def test_the_text_on_a_narrow_terminal(run, sides, width):
    code, out, err = run("compare", *sides, columns=width)
    assert (code, err) == (0, "")
    assert "unexplained" in out and "hidden columns:" in out


def test_markdown(run, sides):
    code, out, _ = run("compare", *sides, "--md")
    assert code == 0
    assert "| why: FLOPs | FLOPs | share | evidence |" in out
    for name in ("FLOPs", "DRAM bytes", "time", "memory"):
        _, _, table = out.partition(f"| why: {name} |")
        lines = table.split("\n\n")[0].splitlines()
        (rest,) = (line for line in lines if line.startswith("| unexplained |"))
        assert rest.count("%") == (1 if name == "memory" else 2)
        assert sum("%" in line for line in lines) == len(lines) - 2  # all but what is left of the head, and the rule


def test_csv(run, sides):
    code, out, _ = run("compare", *sides, "--csv")
    rows = {row["layer"]: row for row in csv.DictReader(io.StringIO(out))}
    assert code == 0
    assert float(rows["conv2"]["unexplained FLOPs"]) == pytest.approx(0, abs=1e-6)
    assert rows["fc1"]["mainly because of"]
    assert rows["conv2"]["FLOPs B executed, matrix ops"] and rows["conv2"]["FLOPs A useful"]


def test_json(run, sides):
    code, out, _ = run("compare", *sides, "--json")
    why = json.loads(out)["why"]
    assert code == 0
    assert [one["quantity"] for one in why["step"]] == ["FLOPs", "DRAM bytes", "time", "memory"]
    for one in why["step"]:
        parts = [one["asked"]["b"], one["unexplained"]["b"], *(cause["b"] for cause in one["causes"])]
        assert math.fsum(parts) == pytest.approx(one["measured"]["b"])
        assert all(cause["evidence"] and cause["a"] is None for cause in one["causes"])
        assert one["unexplained_gross"]["a"] is None and one["unexplained_gross"]["b"] >= 0
    assert set(why["ops"]) == {"b"}
    counted = [entry for entry in why["ops"]["b"] if "flops" in entry]
    assert sum(entry["flops"]["measured"] for entry in counted) == 1_569_918_592
    for entry in counted:
        one = entry["flops"]
        causes = math.fsum(cause["amount"] for cause in one["causes"])
        assert one["asked"] + causes + one["unexplained"] == pytest.approx(one["measured"])
        assert all(cause["evidence"] for cause in one["causes"])
    rows = {row["name"]: row for row in json.loads(out)["rows"]}
    assert set(rows["conv2"]["causes"]) and rows["conv2"]["unexplained_flops"] == pytest.approx(0, abs=1e-6)


# --- any two ledgers ---


def of_another_device(name):
    return msgspec.structs.replace(FP32, header=msgspec.structs.replace(FP32.header, device=name))


def on_this_cpu():
    return rooflight.measure("mnist-cnn", batch=2, device="cpu", repeat=1)


def a_region():
    import torch

    from rooflight.measurement.regions import scheduler

    with patch.object(scheduler, "_process", scheduler.RegionProcess()):  # no region of anybody else's
        with rooflight.region("why"):
            torch.zeros(4, 4) @ torch.zeros(4, 4)
        return rooflight.regions_ledger()


LEDGERS = {
    "estimate": lambda: rooflight.estimate("mnist-cnn", batch=64),
    "training estimate": lambda: rooflight.estimate("mnist-cnn", batch=8, step="train"),
    "tf32": lambda: MNIST,
    "no tf32": lambda: ledger("recorded:h200/mnist-cnn-infer-fp32"),
    "training": lambda: ledger("recorded:h200/mnist-cnn-train-tf32"),
    "an A100": lambda: of_another_device("NVIDIA A100-SXM4-80GB"),
    "nobody's": lambda: of_another_device("Nobody's GPU"),
    "no device": lambda: of_another_device(None),
    "compiled": lambda: ledger("recorded:h200/gpt2-infer-bf16-compiled"),
    "cpu": on_this_cpu,
    "region": a_region,
    "toy": toy,
    "toy, compiled": compiled,
    "ncu": lambda: read_log((ROOT / "tests" / "data" / "ncu" / "h200_mnist_raw.csv.gz",)),
    "ncu's console": lambda: read_log((ROOT / "tests" / "data" / "ncu" / "h200_mnist_console.log.gz",)),
    "trace": lambda: read_log((ROOT / "tests" / "data" / "timeline" / "resnet18_plain.json.gz",)),
}
MADE: dict[str, Ledger] = {}


def made(name):
    if name not in MADE:
        MADE[name] = LEDGERS[name]()
    return MADE[name]


@pytest.mark.parametrize("b", LEDGERS)
def test_any_two_ledgers_can_be_compared(b):
    """With whatever is unknown: a page, and a document that is JSON. Each is A once, B once, and beside an estimate."""
    names = list(LEDGERS)
    for pair in ((names[names.index(b) - 1], b), ("estimate", b) if names.index(b) % 2 else (b, "tf32")):
        comparison = Comparison(*map(made, pair))
        page = compare_tables.compare_document(comparison, by="op", depth=None, folded=True)
        assert page.to_markdown().startswith("# A against B")
        document = json.loads(msgspec.json.encode(why_tables.why_data(comparison)))
        assert [found["quantity"] for found in document["step"]] == [found.quantity for found in comparison.whys]


def test_another_known_gpu_is_explained_by_tiles_but_not_by_the_tables_of_an_h200():
    other = Comparison(FP32, of_another_device("NVIDIA A100-SXM4-80GB"))
    flops = next(one for one in other.whys if one.quantity == "FLOPs")
    causes = {term.name: term for term in flops.causes}
    assert causes[PADDING].a == causes[PADDING].b
    assert flops.unexplained.b > flops.unexplained.a  # what was counted of single ops is the H200's


def test_a_step_of_an_unknown_gpu_has_no_account_of_bytes_time_or_memory():
    found = {one.quantity for one in Comparison(made("estimate"), made("nobody's")).whys}
    assert found == {"FLOPs"}


def test_two_estimates_and_two_logs_have_no_reasons():
    assert Comparison(made("estimate"), made("training estimate")).whys == []
    assert Comparison(made("ncu"), made("trace")).whys == []


def test_the_cells_of_a_study_are_ledgers_like_any_other(run):
    paths = sorted((STUDIES / "mnist-conv2" / "ledgers").glob("mnist-cnn-b*-infer-fp32-h200-*.gz"))[:2]
    code, out, err = run("compare", *paths)
    assert (code, err) == (0, "") and "from A to B: FLOPs" in out and "batch and sizes" in out


HOSTILE = [
    "sdpa_sm90_flash_fprop_x_0x0x0_", "fmha_cutlassF_f32_aligned_0x0_k0", f"fmha_cutlassF_f32_aligned_{'9' * 5000}x1",
    "winogradForward0x0_0x0", "winogradForward9999x9999_1x1", "fft2d_r2c_0x0", "regular_fft_pad<0, 0, 0",
    "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize0x0x0_warpgroupsize1x1x1_g0_execute_kernel",
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize0x0x0_stage3_warpsize2x2x1_ffma_execute_kernel",
    "conv_depthwise2d_forward_kernel<0, 1, float, int>", "cunn_SoftMaxForward<4,", "tensorTransformGeneric<float>",
]  # fmt: skip


@pytest.mark.parametrize("grid", [(0, 0, 0), (1, 1, 1), (120, 1, 1), None])
@pytest.mark.parametrize(
    "source", [MNIST, ledger("recorded:h200/transformer-infer-bf16")], ids=["mnist", "transformer"]
)
def test_no_name_and_no_grid_makes_an_account_fail(source, grid):
    """All kernels are called so, in a file that somebody made: products of nothing, blocks of nothing."""
    for name in HOSTILE:
        kernels = tuple(msgspec.structs.replace(one, name=name, grid=grid, block=grid) for one in source.kernels)
        changed = msgspec.structs.replace(source, kernels=kernels)
        for explain in (explain_flops, explain_traffic, explain_time):
            rows = explain(changed)
            assert rows and all(math.isfinite(row.unexplained) for row in rows)


# --- the page of documentation ---


def test_the_tables_of_the_page_are_what_its_script_writes():
    script = importlib.import_module("why")

    def place_of(path):
        if isinstance(path, str):
            return path
        if path.is_relative_to(STEPS):
            return f"steps/{path.parent.name}/{path.name.removesuffix('.json.gz')}"
        return f"{path.parts[-3]}/{path.name.removesuffix(ENDING)}"

    steps = [
        script.Step(
            one, ledger(place).header, flops(place), traffic(place), time(place), script.memory_of(one, ledger(place))
        )
        for one, place in ((one, place_of(one.place)) for one in script.recorded_steps())
    ]
    page = script.PAGE.read_text()
    now = script.written(page, script.sections(steps, flops, ledger))
    for old, new in zip(page.splitlines(), now.splitlines(), strict=True):
        assert old == new, "run python benchmarks/why.py --write"


def test_every_cause_is_on_the_page():
    text = (ROOT / "docs" / "why.md").read_text()
    known = {cause.name for place in (*RECORDINGS, *CELLS, *OTHER_MODELS) for rows in (flops, traffic, time)
             for row in rows(place) for cause in row.causes} | {NOT_COUNTED, OVERLAP, *HOST_CAUSES}  # fmt: skip
    assert [name for name in sorted(known) if f"| {name} |" not in text] == []


def test_seconds_of_an_account_are_not_rounded_to_whole_ones():
    seconds, flops = amount_writer("second"), amount_writer("flop")
    assert (seconds(1.44), seconds(-12.345), seconds(0.00104)) == ("1.44 s", "−12.3 s", "1.04 ms")
    assert flops(1000.4) == "1,000"
