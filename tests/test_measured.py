"""Sums over a measured ledger against sums on paper, and how they are shown in every form."""

from __future__ import annotations

import csv
import io
import json
import re
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured_ledgers import HEADER, MODULES, OPS, compiled, cost, mnist, op, toy, values

import rooflight
from rooflight.commands.main import main
from rooflight.ledger import FORMAT_VERSION, LOSS, OPTIMIZER, Kernel, Ledger, Measurement, Module, Value, total
from rooflight.measured import Measured, facts
from rooflight.measured_rows import NO_OP, SEVERAL, phases, rows
from rooflight.measured_step import is_host_bound, rates, self_check, time_parts, utilisation
from rooflight.peaks import peak
from rooflight.reporting import measure_tables, measure_text, step_tables
from rooflight.reporting.document import document
from rooflight.reporting.measured_folding import fold_measured, members_of
from rooflight.reporting.page import narrowed
from rooflight.reporting.written import kernel_name, quotient, seconds, share, signed_percent

US = 1e-6


def near(value):
    return pytest.approx(value, rel=1e-12)


@pytest.fixture(scope="module")
def eager():
    return Measured(toy())


@pytest.fixture(scope="module")
def fused():
    return Measured(compiled())


@pytest.fixture(scope="module")
def step():
    return Measured(mnist())


def by_name(measured, by="module"):
    return {row.name: row for row in rows(measured, by)}


# --- sums ---


def test_a_module_has_the_sums_of_all_that_runs_inside_it(eager):
    # b: ops 1, 2, 3 and 6.
    block = by_name(eager)["b"].sums
    assert block.time_s == near((20 + 3 + 4 + 50) * US)
    assert (block.tensor_flops, block.cuda_flops) == (4000 + 8800, 10 + 6 + 7)
    assert (block.get("dram_bytes_read"), block.get("dram_bytes_written")) == (90 + 30 + 100 + 150, 80 + 40 + 50 + 120)
    assert block.get("kernels") == 2 + 1 + 1 + 3
    assert block.get("growth_bytes") == 512 + 512 - 512
    assert block.get("allocations") == 2 + 1 + 3
    # Workspace is given back before the next op takes its own: the largest counts, not the sum.
    assert block.get("workspace_bytes") == 4096
    assert by_name(eager)["b"].share == near(77 / 90)
    assert by_name(eager)["b"].own_sums.time_s == near(4 * US)


def test_loss_and_optimizer_are_rows_and_no_part_of_the_model(eager):
    found = by_name(eager)
    assert found[""].sums.time_s == near(87 * US)
    assert found[LOSS].sums.time_s == near(1 * US)
    assert found[OPTIMIZER].sums.executed_flops == 4
    assert found[LOSS].sums.dram_bytes is None


def test_the_total_is_that_of_all_ops(eager):
    sums = eager.total
    assert sums.time_s == near(90 * US)
    assert (sums.tensor_flops, sums.cuda_flops, sums.executed_flops) == (14_000, 28, 14_028)
    assert (sums.get("dram_bytes_read"), sums.get("dram_bytes_written")) == (450, 330)
    # Ops with matrix work are 0, 1 and 6: 1,200 + 4,010 + 8,800 executed for 1,000 + 4,000 + 8,000 useful.
    assert sums.executed_per_useful == near(14_010 / 13_000)
    # Compulsory bytes of all but op 5, whose DRAM bytes are unknown: 60 + 160 + 120 + 180 + 260 + 60.
    assert sums.compulsory_bytes == 840
    assert sums.dram_per_compulsory == near(780 / 840)
    assert sums.executed_flops_per_s == near(14_028 / (90 * US))
    assert sums.dram_bytes_per_s == near(780 / (90 * US))


def test_what_is_missing_is_counted_and_named(eager):
    assert eager.total.ran == 7  # the view launched nothing
    assert eager.total.missing == {
        "dram_bytes_read": 1, "dram_bytes_written": 1, "growth_bytes": 4, "allocations": 4, "workspace_bytes": 5,
    }  # fmt: skip
    assert measure_text.coverage(eager) == [
        "time, executed FLOPs: every one of the 7 ops that ran has a value",
        "DRAM bytes: missing for 1 of the 7 ops that ran: aten::mse_loss (1×)",
    ]
    assert [found.name for found in eager.without(["dram_bytes_read"])] == ["aten::mse_loss"]


@pytest.mark.parametrize("by", ["type", "op"])
def test_types_and_ops_come_slowest_first_and_add_up(eager, by):
    found = rows(eager, by)
    times = [row.sums.time_s for row in found]
    assert times == sorted(times, reverse=True)
    assert sum(times) == near(90 * US)
    assert sum(row.sums.executed_flops for row in found) == 14_028
    assert sum(row.estimate.totals.flops for row in found) == 13_000
    assert sum(row.estimate.calls for row in found) == 7
    assert found[0].name == ("Conv2d" if by == "type" else "aten::convolution_backward")
    assert found[0].sums.time_s == near(70 * US if by == "type" else 50 * US)


def test_phases_add_up(eager):
    found = {row.name: row.sums for row in phases(eager)}
    assert [*found] == ["forward", "backward", "optimizer"]
    assert [sums.time_s for sums in found.values()] == near([38 * US, 50 * US, 2 * US])


@pytest.mark.parametrize("ledger", [toy, compiled, mnist])
@pytest.mark.parametrize("by", ["module", "type", "op"])
def test_rows_always_sum_to_the_total(ledger, by):
    measured = Measured(ledger())
    found = rows(measured, by)
    if by == "module":
        found = [row for row in found if row.name in ("", LOSS, OPTIMIZER, SEVERAL, NO_OP)]
    for name in ("gpu_time_s", "kernels", "tensor_flops_tf32", "dram_bytes_read"):
        known = [row.sums.get(name) for row in found if row.sums.get(name) is not None]
        if known:
            assert sum(known) == near(measured.total.get(name))
    assert sum(row.estimate.totals.flops for row in found) == total(measured.ledger.ops).flops


def test_a_module_is_its_children_and_itself(step):
    found = by_name(step)
    children = [row for name, row in found.items() if name and name not in (LOSS, OPTIMIZER)]
    assert sum(row.sums.time_s for row in children) + found[""].own_sums.time_s == near(found[""].sums.time_s)


# --- facts ---


def test_no_kernel_is_counted_twice():
    kernels = (Kernel(name="gemm", ops=(0,), time_s=9e-6), Kernel(name="memset", time_s=5e-6))
    measured = Measured(toy(kernels=kernels))
    # Op 0 has a time of its own; the memset belongs to nobody and is added.
    assert measured.total.time_s == near(95 * US)
    assert by_name(measured)[NO_OP].sums.time_s == near(5 * US)
    assert measured.attributed[0] == near(5 * US)


def test_counters_of_a_kernel_count_where_its_op_has_none():
    kernel = Kernel(name="loss", ops=(5,), time_s=1e-6, quantities=values(dram_bytes_read=7, cuda_flops_fp32=100))
    measured = Measured(toy(kernels=(kernel,)))
    assert measured.total.get("dram_bytes_read") == 457
    assert measured.total.get("cuda_flops_fp32") == 28


def test_a_cpu_librarys_work_is_part_of_its_ops_time():
    ledger = toy(
        header=msgspec.structs.replace(HEADER, target="cpu", device="a CPU"),
        kernels=(Kernel(name="convolution jit", kind="primitive", ops=(1,), time_s=2e-3),),
        measurements=(
            Measurement(scope="op", ops=(1,), quantities={"host_time_s": Value(3e-3, "range")}),
            Measurement(scope="op", ops=(2,), quantities={"host_time_s": Value(1e-3, "range")}),
            Measurement(scope="step", quantities={"wall_time_s": Value(5e-3, "clock")}),
        ),
    )
    measured = Measured(ledger)
    assert measured.total.time_s == near(4e-3)
    assert [fact.values for fact in facts(ledger)] == [{"host_time_s": 3e-3}, {"host_time_s": 1e-3}]
    # Without kernels, every op that computes is expected to have a time.
    assert measured.total.missing["host_time_s"] == 5
    assert [(part.name, part.time_s) for part in time_parts(measured)] == [
        ("ops, one after the other", near(4e-3)), ("between the ops: Python, autograd", near(1e-3)), ("wall", 5e-3),
    ]  # fmt: skip
    assert step_tables.kernel_table(measured).columns[0].name == "oneDNN primitive"


# --- compiled steps ---


def test_a_fused_kernel_counts_in_the_module_around_its_ops(fused):
    found = by_name(fused)
    assert found["b"].sums.time_s == near(58 * US)  # conv + relu, and wgrad
    assert found["b"].own_sums.time_s == near(18 * US)
    assert found["b.c"].sums.time_s == near(40 * US)
    assert found["b.d"].sums.time_s is None
    assert found[SEVERAL].sums.time_s == near(3 * US)  # an add of the model with the loss
    assert found[NO_OP].sums.time_s == near(1 * US)
    assert fused.attributed == {0: near(1 * US), 1: near(48 * US), 2: near(21 * US)}
    assert measure_text.attribution(fused) == (
        "of the kernels' time belong 68.6% to one op, 30.0% to several that were fused, 1.4% to none that is known"
    )


def test_fused_ops_are_a_type_of_their_own(fused):
    found = by_name(fused, "type")
    assert found["Conv2d + ReLU"].sums.time_s == near(18 * US)
    assert found["Conv2d + ReLU"].estimate.totals.flops == 4000
    assert found["Conv2d"].estimate.totals.flops == 8000
    assert "ReLU" not in found
    assert by_name(fused, "op")["aten::convolution + aten::relu"].estimate.calls == 2


def test_what_only_the_whole_step_knows_is_its_total(fused):
    assert fused.total.tensor_flops == 14_000
    assert fused.total.dram_bytes == 415
    assert by_name(fused)[""].sums.dram_bytes is None


def test_graphs_are_added_where_the_step_itself_was_not_counted():
    rows_ = tuple(
        Measurement(scope="graph", name=f"graph {n}", quantities=values(dram_bytes_read=100 + n)) for n in (0, 1)
    )
    measured = Measured(toy(measurements=rows_))
    assert measured.total.get("dram_bytes_read") == 201
    assert [row[0] for row in step_tables.graph_table(measured).rows] == ["graph 0", "graph 1"]


# --- the step ---


def test_the_gap_from_the_ops_to_the_wall_has_a_name(eager):
    parts = time_parts(eager)
    assert [(part.name, part.time_s) for part in parts] == [
        ("kernels of the ops", near(90 * US)), ("streams running side by side", near(-4 * US)), ("GPU-busy", near(86 * US)),
        ("GPU idle: launch gaps, host", near(114 * US)), ("wall", near(200 * US)),
    ]  # fmt: skip
    assert parts[0].time_s + parts[1].time_s == near(parts[2].time_s)
    assert parts[2].time_s + parts[3].time_s == near(parts[4].time_s)
    assert is_host_bound(eager)
    assert measure_text.verdict(eager) == (
        "200 µs a step; the GPU was busy for 86.0 µs and idle for 57% of the step: host-bound"
    )


@pytest.mark.parametrize(("busy", "bound"), [(0.79, True), (0.81, False), (1.02, False)])
def test_a_gpu_that_is_busy_is_not_host_bound(busy, bound):
    times = {"wall_time_s": Value(1.0, "clock"), "gpu_busy_s": Value(busy, "union")}
    measured = Measured(toy(measurements=(Measurement(scope="step", quantities=times),)))
    assert is_host_bound(measured) is bound
    assert ("host-bound" in measure_text.verdict(measured)) is bound
    if busy > 1:
        assert "the plain step was faster than the profiled one" in [part.name for part in time_parts(measured)]


def test_the_self_check_shows_every_counter_both_ways(eager):
    assert [(c.name, c.sum_of_ops, c.whole_step, c.difference, c.missing) for c in self_check(eager)] == [
        ("tensor_flops_tf32", 14_000, 14_000, 0, 0), ("cuda_flops_fp32", 28, 30, -2, 0),
        ("dram_bytes_read", 450, 500, -50, 1), ("dram_bytes_written", 330, 330, 0, 1),
    ]  # fmt: skip
    assert [c.relative for c in self_check(eager)] == [0, near(-2 / 30), near(-0.1), 0]


def test_counters_by_their_own_name_are_checked_when_they_are_sums():
    name, rate = "lts__t_sectors.sum", "dram__throughput.avg.pct_of_peak_sustained_elapsed"
    rows_ = [
        Measurement(scope="op", ops=(i,), quantities={name: Value(10, "cupti"), rate: Value(50.0, "cupti")})
        for i in (0, 1)
    ]
    whole = Measurement(scope="step", quantities={name: Value(21, "cupti"), rate: Value(50.0, "cupti")})
    measured = Measured(toy(measurements=(*rows_, whole)))
    assert [(c.name, c.sum_of_ops) for c in self_check(measured)] == [(name, 20)]
    assert rate not in measured.total.values


def test_utilisation_is_of_the_peak_of_the_precision_used(eager):
    used = utilisation(eager)
    assert (used.precision, used.peak.flops_per_s) == ("tf32", 494.5e12)
    assert used.mfu == near(13_000 / (200 * US * 494.5e12))
    assert used.hfu == near(14_030 / (200 * US * 494.5e12))  # the range around the step saw 30 on CUDA cores
    assert utilisation(eager, flops_per_s=1e9).mfu == near(13_000 / (200 * US * 1e9))
    assert "datasheet" in used.peak.source


def test_no_peak_is_guessed():
    assert peak("NVIDIA H200 NVL", "bf16") is None
    assert peak("NVIDIA H200", "int4") is None
    assert peak(None, "fp32") is None
    other = toy(header=msgspec.structs.replace(HEADER, device="NVIDIA A100-SXM4-40GB"))
    assert utilisation(Measured(other)) is None
    assert "MFU" not in repr(other)


def test_rates_are_by_the_wall(eager):
    found = rates(eager)
    assert found.samples_per_s == near(8 / (200 * US))
    assert found.tokens_per_s is None
    assert found.useful_flops_per_s == near(13_000 / (200 * US))
    assert found.executed_flops_per_s == near(14_030 / (200 * US))
    assert found.dram_bytes_per_s == near(830 / (200 * US))
    text = toy(header=msgspec.structs.replace(HEADER, sequence=128))
    assert rates(Measured(text)).tokens_per_s == near(8 * 128 / (200 * US))


# --- tables ---


def test_columns_that_nothing_was_measured_for_are_left_out(eager):
    plain = toy(measurements=(Measurement(scope="op", ops=(0,), quantities=values(gpu_time_s=1e-6)),))
    names = [column.name for column in measure_tables.main_table(Measured(plain)).columns]
    assert names == ["layer", "type", "GPU time", "share", "useful", "compulsory", "TFLOP/s"]
    full = [column.name for column in measure_tables.main_table(eager).columns]
    assert {
        "tensor",
        "CUDA core",
        "DRAM read",
        "written",
        "exec/useful",
        "DRAM/comp.",
        "GB/s",
        "growth",
        "workspace",
    } < {*full}
    assert "CPU time" not in full


@pytest.mark.parametrize("width", [80, 120, 160])
@pytest.mark.parametrize("by", ["module", "type", "op"])
def test_tables_fit_a_terminal(step, width, by):
    tables = [
        measure_tables.main_table(step, by), measure_tables.phase_table(step), step_tables.time_table(step),
        step_tables.speed_table(step), step_tables.check_table(step), step_tables.kernel_table(step),
    ]  # fmt: skip
    for table in tables:
        narrow = narrowed(table, width)
        texts = [[column.name for column in narrow.columns], *narrow.written()]
        assert sum(max(len(row[i]) for row in texts) + 3 for i in range(len(narrow.columns))) <= width
    shown = {column.name for column in narrowed(tables[0], width).columns}
    assert {"GPU time", "useful", "tensor", "DRAM read", "written"} <= shown


@pytest.mark.parametrize("width", [60, 80, 120, 160])
def test_names_are_cut_before_columns_go_and_numbers_never(step, width):
    table = measure_tables.main_table(step, "op")
    narrow = narrowed(table, width)
    texts = [[column.name for column in narrow.columns], *narrow.written()]
    assert sum(max(len(row[i]) for row in texts) + 3 for i in range(len(narrow.columns))) <= width
    place = {column.name: i for i, column in enumerate(table.columns)}
    for row, cells in zip(table.written(), narrow.written(), strict=True):
        for column, cell in zip(narrow.columns, cells, strict=True):
            full = row[place[column.name]]
            assert cell == full or (not column.right and cell.endswith("…") and full.startswith(cell[:-1]))
    assert (width < 80) or "written" in {column.name for column in narrow.columns}
    assert narrowed(table, 1000) == table


def layered(count=3):
    """Equal layers that took different times: 1, 2, ... µs, and one matmul before them."""
    modules = [Module(path="", type="Net"), Module(path="first", type="Linear"), Module(path="layers", type="Stack")]
    ops = [op(0, "forward", "first", "aten::mm", cost(10))]
    for n in range(count):
        modules += [Module(path=f"layers.{n}", type="Block"), Module(path=f"layers.{n}.fc", type="Linear")]
        ops.append(op(n + 1, "forward", f"layers.{n}.fc", "aten::mm", cost(100)))
    measured = [
        Measurement(scope="op", ops=(i,), quantities=values(gpu_time_s=i * US, kernels=1)) for i in range(count + 1)
    ]
    return Ledger(
        format_version=FORMAT_VERSION,
        header=HEADER,
        modules=tuple(modules),
        ops=tuple(ops),
        measurements=tuple(measured),
    )


def test_equal_layers_are_folded_and_their_times_added():
    measured = Measured(layered())
    folded = {row.name: row for row in fold_measured(measured, rows(measured))}
    assert [*folded] == ["", "first", "layers", "layers.[0-2]", "layers.[0-2].fc"]
    assert folded["layers.[0-2].fc"].sums.time_s == near(6 * US)
    assert folded["layers.[0-2]"].share == near(1.0)
    assert folded["layers.[0-2]"].estimate.type == "3 × Block"
    assert len(measure_tables.main_table(measured, folded=False).rows) == 3 + 6 + 1


@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 40))
def test_a_folded_name_stands_for_its_siblings(low, high, count):
    names = ["", "h", *(f"h.{n}" for n in range(count)), *(f"h.{n}.fc" for n in range(count)), "h.x.fc"]
    expected = [f"h.{n}.fc" for n in range(count) if low <= n <= high]
    assert members_of(f"h.[{low}-{high}].fc", names) == (
        expected if low <= high else members_of(f"h.[{high}-{low}].fc", names)
    )


def test_the_kernel_table_adds_equal_names_and_sums_the_rest(step):
    table = step_tables.kernel_table(step, limit=2)
    assert len(table.rows) == 3
    assert sum(row[1] for row in table.rows) == len(step.ledger.kernels)
    assert sum(row[2] for row in table.rows) == near(step.total.time_s)
    assert str(table.rows[-1][0]) == "16 more kernels"
    assert table.rows[0][0].full.startswith("void at::native::")


def test_the_allocators_view_has_increase_and_self(eager):
    table = measure_tables.operator_memory_table(eager, "module")
    names = [column.name for column in table.columns]
    assert names[:5] == ["layer", "calls", "size increase", "self", "allocations"]
    found = {row[0]: row[2:5] for row in table.rows}
    assert found["b"] == (512, None, 6)
    assert found["b.d"] == (512, 512, 1)
    assert not measure_tables.operator_memory_table(Measured(compiled())).rows


# --- words and units ---


@pytest.mark.parametrize(("value", "text"), [
    (None, "–"), (0, "0 s"), (1, "1.00 s"), (0.99999, "1.00 s"), (22.94e-3, "22.9 ms"), (5.126e-6, "5.13 µs"),
    (9.996e-6, "10.0 µs"), (3e-9, "3.00 ns"), (-30e-6, "-30.0 µs"), (1234.0, "1,234 s"),
])  # fmt: skip
def test_times_are_written_with_three_digits(value, text):
    assert seconds(value) == text


def test_what_is_not_equal_never_reads_so():
    assert signed_percent(0.0) == "0"
    assert signed_percent(1e-9) == "+1e-09"
    assert signed_percent(-0.0123) == "-1.23%"
    assert (quotient(1.0), quotient(None), quotient(0.0), quotient(0.001)) == ("1.00", "–", "0.00", "0.001")
    assert (share(-0.02), share(0.5)) == ("-2.0%", "50.0%")


@pytest.mark.parametrize(("name", "shown"), [
    ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >(int, float)",
     "CUDAFunctor_add in vectorized_elementwise_kernel"),
    ("void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::BUnaryFunctor<float, float, float, "
     "at::native::binary_internal::MulFunctor<float> > >(at::TensorIteratorBase&)::{lambda(int)#1}>(int)", "MulFunctor in elementwise_kernel"),
    ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::TensorListMetadata<1>, "
     "at::native::(anonymous namespace)::BinaryOpScalarFunctor<float, 1, 1, 0>, std::multiplies<float>, float>(int)",
     "BinaryOpScalarFunctor in multi_tensor_apply_ker…"),
    ("_ZN17cutlass__5x_cudnn6KernelINS_4conv6kernel23ImplicitGemmConvolutionINS1_11threadblock22ImplicitGemmMultistageINS_4gemm9"
     "GemmShapeILi64ELi128ELi16EEENS4_52Conv2dWgradOutputGradientTileAccessIterator", "ImplicitGemmConvolution Conv2dWgrad 64x128x16"),
    ("gemm", "gemm"),
])  # fmt: skip
def test_kernels_are_named_by_their_work(name, shown):
    label = kernel_name(name)
    assert (label.shown, label.full) == (shown, name)


def test_repr_shows_what_was_measured():
    lines = repr(toy()).splitlines()
    assert lines[0].endswith("mse loss, sgd · NVIDIA H200")
    assert "200 µs a step; the GPU was busy for 86.0 µs and idle for 57% of the step: host-bound" in lines
    assert "executed 14.0 k tf32 on tensor cores + 30 fp32 on CUDA cores; DRAM 500 B read + 330 B written" in lines
    assert "compiled" in repr(compiled()).splitlines()[0]


def test_where_each_number_comes_from_is_said(eager):
    lines = measure_text.provenance(eager)
    assert "cupti: tensor_flops_tf32, cuda_flops_fp32, dram_bytes_read, dram_bytes_written = range profiler" in lines
    assert "clock: wall_time_s = perf_counter" in lines
    assert measure_text.conditions(eager.ledger) == "SM clock 1,980 MHz; other processes none"


def imported(**changes):
    header = msgspec.structs.replace(
        HEADER,
        model="log.csv",
        step=None,
        batch=None,
        dtype=None,
        math=None,
        torch=None,
        loss=None,
        optimizer=None,
        device=None,
    )
    return Ledger(format_version=FORMAT_VERSION, header=header, kernels=(Kernel(name="gemm", time_s=1e-6),), **changes)


def test_a_log_that_tells_little_can_still_be_shown():
    log = imported()
    assert repr(log) == "log.csv\n1 kernels, no ops; rooflight 0"
    assert "<table" in log._repr_html_()
    assert document(log)["kernels"][0]["time_s"] == 1e-6


# --- documents ---


def test_the_json_document_has_values_with_their_origins():
    made = json.loads(msgspec.json.encode(document(toy())))
    assert made["ops"][1]["measured"]["tensor_flops_tf32"] == {
        "value": 4000,
        "origin": "cupti: range profiler",
        "low": None,
        "high": None,
    }
    assert made["ops"][4]["measured"] is None
    assert made["ops"][1]["flops"] == 4000
    sums = made["totals"]["measured"]
    assert sums["step"]["wall_time_s"] == {
        "value": 200e-6,
        "origin": "clock: perf_counter",
        "low": 190e-6,
        "high": 230e-6,
    }
    assert sums["executed_flops"] == 14_028
    assert sums["coverage"] == {
        "ops": 7,
        "without": {
            "allocations": 4,
            "dram_bytes_read": 1,
            "dram_bytes_written": 1,
            "growth_bytes": 4,
            "workspace_bytes": 5,
        },
    }
    assert sums["self_check"][1] == {
        "counter": "cuda_flops_fp32",
        "sum_of_ops": 28,
        "whole_step": 30,
        "difference": -2,
        "relative": near(-2 / 30),
        "ops_without": 0,
    }
    assert sums["host_bound"] is True
    assert sums["utilisation"]["peak"]["flops_per_s"] == 494.5e12
    assert next(row for row in made["modules"] if row["path"] == "b")["measured"]["values"]["kernels"] == 7
    json.dumps(made, allow_nan=False)


def test_a_compiled_document_keeps_what_belongs_to_no_module():
    made = document(compiled())
    assert [*made["totals"]["measured"]["of_no_module"]] == [SEVERAL, NO_OP]
    assert made["kernels"][1]["ops"] == (1, 2)


def test_an_estimates_document_is_as_it_was():
    ledger = toy(measurements=())
    assert "measured" not in document(ledger)["totals"]
    assert "kernels" not in document(ledger)


def test_pandas_has_a_column_for_every_measured_quantity():
    frame = toy().to_pandas()
    assert frame.tensor_flops_tf32.sum() == 14_000
    assert str(frame.tensor_flops_tf32.dtype) == "Int64"
    assert frame.dram_bytes_read.isna().tolist() == [False, False, False, False, True, True, False, False]
    assert frame.gpu_time_s.sum() == near(90 * US)


def test_a_notebook_shows_the_measurement_harmlessly():
    evil = "<script>alert(1)</script>"
    kernels = (Kernel(name=evil, ops=(0,), time_s=1e-6),)
    shown = toy(kernels=kernels, header=msgspec.structs.replace(HEADER, notes=(evil,)))._repr_html_()
    assert "<script>" not in shown
    assert "GPU-busy" in shown and "494.5 TFLOP/s" in shown


@pytest.fixture
def run(monkeypatch, capfd):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["rooflight", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "160")
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        return code, *capfd.readouterr()

    return run


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ledgers")
    return {
        make.__name__: rooflight.save(make(), folder / f"{make.__name__}.json.gz") for make in (toy, compiled, imported)
    }


@pytest.mark.parametrize("by", ["module", "type", "op"])
def test_report_shows_a_measurement(run, saved, by):
    code, out, _ = run("report", saved["toy"], "--by", by, "--memory")
    assert code == 0
    assert "host-bound" in out and "self-check" in out and "size increase" in out
    assert re.search(r"total\s+90\.0 µs\s+100\.0%", out)


def test_report_writes_every_form(run, saved):
    code, out, _ = run("report", saved["toy"], "--to", "csv")
    found = {row["layer"]: row for row in csv.DictReader(io.StringIO(out))}
    assert found["b.c"]["tensor"] == "12800" and found["total"]["DRAM read"] == "450"
    code, out, _ = run("report", saved["toy"], "--to", "json")
    assert json.loads(out)["totals"]["measured"]["tensor_flops"] == 14_000
    code, out, _ = run("report", saved["compiled"], "--to", "md")
    assert code == 0 and "| layer | type | GPU time |" in out and "to several that were fused" in out


@pytest.mark.parametrize("form", ["text", "md", "csv", "json"])
def test_report_shows_an_imported_log(run, saved, form):
    code, out, err = run("report", saved["imported"], "--to", form)
    assert (code, err) == (0, "")
    assert "gemm" in out


@pytest.mark.parametrize("form", ["text", "md", "csv", "json"])
def test_report_shows_the_regions_of_a_program(run, tmp_path, form):
    region = Measurement(
        scope="region",
        name="conv2",
        quantities={"wall_time_s": Value(2e-3, "clock"), "executions": Value(3, "counted")},
    )
    path = rooflight.save(
        msgspec.structs.replace(imported(measurements=(region,)), kernels=()), tmp_path / "regions.json"
    )
    code, out, err = run("report", path, "--to", form)
    assert (code, err) == (0, "")
    assert "conv2" in out


def test_the_toy_is_what_its_comment_says():
    assert [module.path for module in MODULES] == ["", "a", "b", "b.c", "b.d"]
    assert total(OPS).flops == 13_000
    assert total(OPS).bytes == 904
