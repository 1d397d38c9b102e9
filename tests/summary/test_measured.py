"""Sums over a measured ledger against sums on paper, and how they are shown in every form."""

from __future__ import annotations

import csv
import io
import json
import re
from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rooflight
from rooflight.formatting import quotient, seconds, share, signed_percent
from rooflight.ledger import FORMAT_VERSION, LOSS, OPTIMIZER, Kernel, Ledger, Measurement, Module, Tensor, Value, total
from rooflight.reporting.charts import memory_course
from rooflight.reporting.sections import measure_tables, measure_text
from rooflight.reporting.sections.kernel_groups import KernelGroup
from rooflight.reporting.sections.layer_rows import fold_measured, members_of
from rooflight.reporting.sections.ledger_data import ledger_data, measured_totals
from rooflight.reporting.table import kernel_name
from rooflight.reporting.writers.terminal import narrowed
from rooflight.summary.facts import facts
from rooflight.summary.measured import Measured
from rooflight.summary.measured_rows import NO_OP, SEVERAL, phases, rows
from rooflight.summary.measured_step import SelfCheck, is_host_bound, rates, self_check, time_parts, utilisation
from rooflight.summary.memory_growth import MemoryGrowth, MemoryMoment
from rooflight.summary.peak_rates import peak, unit_peak
from rooflight.summary.reliability import doubt
from tests.fixtures.measured_ledgers import HEADER, MODULES, OPS, compiled, cost, mnist, op, toy, values
from tests.fixtures.recordings import recording

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
    assert block.get("allocations") == 2 + 1 + 1 + 3
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
    assert eager.total.missing == {"dram_bytes_read": 1, "dram_bytes_written": 1, "workspace_bytes": 5}
    assert measure_text.coverage(eager) == [
        "time, executed FLOPs: every one of the 7 ops that launched something has a value",
        "DRAM bytes: missing for 1 of the 7 ops that launched something: aten::mse_loss (1×)",
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
    for name in ("kernel_time_s", "kernels", "tensor_flops_tf32", "dram_bytes_read"):
        known = [row.sums.get(name) for row in found if row.sums.get(name) is not None]
        if known:
            assert sum(known) == near(measured.total.get(name))
    assert sum(row.estimate.totals.flops for row in found) == total(measured.ledger.ops).flops


def test_a_module_is_its_children_and_itself(step):
    found = by_name(step)
    modules = [row for row in found.values() if row.estimate.kind == "module" and row.name]
    functions = [row for row in found.values() if row.estimate.kind == "function"]
    assert sum(row.sums.time_s for row in modules) + found[""].own_sums.time_s == near(found[""].sums.time_s)
    assert sum(row.sums.time_s for row in functions) == near(found[""].own_sums.time_s)


# --- facts ---


def test_no_kernel_is_counted_twice():
    kernels = (Kernel(name="gemm", ops=(0,), time_s=9e-6), Kernel(name="memset", time_s=5e-6))
    measured = Measured(toy(kernels=kernels))
    # Op 0 has a time of its own; the memset belongs to nobody and is added.
    assert measured.total.time_s == near(95 * US)
    assert by_name(measured)[NO_OP].sums.time_s == near(5 * US)
    assert measured.attributed[0] == near(5 * US)


def test_a_kernel_does_not_answer_for_an_op_that_moved_too_little():
    """Op 5 had a range of its own, and its bytes were under the floor: unknown they stay."""
    kernel = Kernel(name="loss", ops=(5,), time_s=1e-6, quantities=values(dram_bytes_read=7, cuda_flops_fp32=100))
    measured = Measured(toy(kernels=(kernel,)))
    assert measured.total.get("dram_bytes_read") == 450
    assert measured.total.get("cuda_flops_fp32") == 28
    assert measured.total.missing["dram_bytes_read"] == 1
    assert by_name(measured)[LOSS].sums.dram_bytes is None


def test_counters_of_a_kernel_count_where_its_op_was_not_counted():
    kernel = Kernel(name="loss", ops=(5,), time_s=1e-6, quantities=values(dram_bytes_read=7, cuda_flops_fp32=100))
    full = toy(kernels=(kernel,))
    bare = tuple(
        msgspec.structs.replace(row, quantities=values(kernel_time_s=1e-6, kernels=1)) if row.ops == (5,) else row
        for row in full.measurements
    )
    measured = Measured(msgspec.structs.replace(full, measurements=bare))
    assert measured.total.get("dram_bytes_read") == 457
    assert measured.total.get("cuda_flops_fp32") == 28 - 1 + 100


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
        "the kernels' time belongs 68.6% to one op, 30.0% to several fused ops, 1.4% to no known op"
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


@pytest.mark.parametrize(("low", "high", "spread"), [
    (None, None, None), (None, 510, None), (490, None, None), (500, 500, 0), (490, 515, 25 / 500), (0, 500, 1),
])  # fmt: skip
def test_the_spread_of_the_whole_step_is_that_of_its_repeats(low, high, spread):
    assert SelfCheck("dram_bytes_read", 450, 500, 1, low, high).spread == (None if spread is None else near(spread))


def test_repeats_that_count_nothing_have_no_spread_and_others_no_share_of_nothing():
    assert SelfCheck("l2_bytes", 0, 0, 0).spread is None
    assert SelfCheck("l2_bytes", 0, 0, 0, 0, 0).spread == 0
    assert SelfCheck("l2_bytes", 0, 0, 0, 0, 64).spread is None


def test_least_and_greatest_of_the_repeats_are_in_the_self_check():
    (whole,) = (row for row in toy().measurements if row.scope == "step")
    repeated = {**whole.quantities, "dram_bytes_read": Value(500, "cupti: range profiler", 490, 515)}
    others = [row for row in toy().measurements if row.scope != "step"]
    ledger = toy(measurements=(*others, Measurement(scope="step", quantities=repeated)))
    checks = {check.name: check for check in self_check(Measured(ledger))}
    assert (checks["dram_bytes_read"].low, checks["dram_bytes_read"].high) == (490, 515)
    assert {name: check.spread for name, check in checks.items() if check.spread is not None} == {
        "dram_bytes_read": near(0.05)
    }
    written = ledger_data(ledger)["totals"]["measured"]["self_check"]
    ends = {row["counter"]: (row["whole_step_low"], row["whole_step_high"]) for row in written}
    assert ends["dram_bytes_read"] == (490, 515)
    assert ends["dram_bytes_written"] == (None, None)


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
    assert used.mfu_causal is None
    # The range around the step saw 30 on CUDA cores, which have their own peak.
    assert used.hfu == near((14_000 / 494.5e12 + 30 / 67e12) / (200 * US))
    assert {name: roof.flops_per_s for name, roof in used.roofs.items()} == {
        "tensor_flops_tf32": 494.5e12, "cuda_flops_fp32": 67e12,
    }  # fmt: skip
    assert utilisation(eager, while_busy=True).mfu == near(13_000 / (86 * US * 494.5e12))
    assert utilisation(eager, flops_per_s=1e9).hfu == near(14_030 / (200 * US * 1e9))
    assert utilisation(eager, flops_per_s=1e9).mfu == near(13_000 / (200 * US * 1e9))
    assert "https://www.nvidia.com/en-us/data-center/h200/" in used.peak.source


def test_every_unit_is_judged_by_its_own_peak():
    assert peak("NVIDIA H200", "fp64").flops_per_s == 67e12  # matrix work runs on tensor cores
    assert unit_peak("NVIDIA H200", "cuda_flops_fp64").flops_per_s == 33.5e12
    # 132 SMs at 1,980 MHz, 128 lanes, two values in each, a multiply-add as 2.
    assert unit_peak("NVIDIA H200", "cuda_flops_fp16").flops_per_s == pytest.approx(
        132 * 1.98e9 * 128 * 2 * 2, rel=1e-3
    )
    strange = {"tensor_flops_int4": Value(5, "cupti")}
    rows_ = toy().measurements
    whole = msgspec.structs.replace(rows_[-1], quantities={**rows_[-1].quantities, **strange})
    used = utilisation(Measured(toy(measurements=(*rows_[:-1], whole))))
    assert used.mfu is not None and used.hfu is None  # no peak is known for what was executed


def test_mfu_says_what_a_causal_mask_leaves_out():
    halved = [msgspec.structs.replace(one.cost, flops_causal=one.cost.flops // 2) if one.index == 1 else one.cost
              for one in OPS]  # fmt: skip
    ops = tuple(msgspec.structs.replace(one, cost=made) for one, made in zip(OPS, halved, strict=True))
    measured = Measured(toy(ops=ops))
    assert utilisation(measured).mfu_causal == near(11_000 / (200 * US * 494.5e12))
    assert "(causal half: <0.1%) of 494.5 TFLOP/s tf32" in measure_text.speed(measured)


def test_a_unit_that_was_not_counted_makes_the_sum_unknown(fused):
    """CUDA cores are not counted inside a CUDA graph: what the tensor cores did is not all."""
    assert fused.total.tensor_flops == 14_000
    assert (fused.total.cuda_flops, fused.total.executed_flops) == (None, None)
    assert rates(fused).executed_flops_per_s is None
    assert utilisation(fused).hfu is None and utilisation(fused).mfu is not None
    assert ledger_data(fused.ledger)["totals"]["measured"]["executed_flops"] is None
    assert "HFU" not in measure_text.speed(fused)
    assert "executed 14.0 k tf32 on tensor cores; the other units were not counted" in measure_text.counted(fused)
    assert not measure_text.flop_count_line(fused)


@pytest.mark.parametrize(("gone", "known"), [
    ("cuda_flops_fp32", False), ("cuda_flops_fp64", False), ("tensor_flops_tf32", False), ("dram_bytes_read", True),
])  # fmt: skip
def test_all_units_must_be_known(gone, known):
    stripped = tuple(
        msgspec.structs.replace(row, quantities={n: v for n, v in row.quantities.items() if n != gone})
        for row in toy().measurements
    )
    measured = Measured(toy(measurements=stripped))
    assert (measured.total.executed_flops is not None) is known
    assert (measured.total.matrix_executed is not None) is known
    assert (utilisation(measured).hfu is not None) is known
    assert (measured.total.dram_bytes is None) is known


def test_sixteen_bit_flops_are_needed_only_where_there_are_such_tensors():
    half = msgspec.structs.replace(OPS[0], outputs=(Tensor(0, (4,), "bf16"),))
    assert Measured(toy()).total.executed_flops == 14_028
    assert Measured(toy(ops=(half, *OPS[1:]))).total.executed_flops is None


def test_what_nvprof_would_show_is_said(eager):
    assert measure_text.flop_count_line(eager) == "nvprof's flop_count_sp would show 30, 0.2% of what was executed"


@pytest.mark.parametrize(("since", "name"), [
    ("during the step", "process, most during the step"),
    ("since the process began", "process, most since the process began"), ("", "process, most ever"),
])  # fmt: skip
def test_the_process_peak_says_since_when(since, name):
    row = Measurement(scope="step", quantities={"peak_resident_bytes": Value(7, f"the kernel: most resident {since}")})
    assert [line[0] for line in measure_tables.memory_table(Measured(toy(measurements=(row,)))).rows] == [name]


# --- joined ranks ---


def joined(*, slower=1.0):
    """Two ranks of the toy; the second has no counters, and may be slower."""
    second = toy()
    stripped = tuple(
        msgspec.structs.replace(row, quantities={
            name: msgspec.structs.replace(value, value=value.value * slower) if name in ("wall_time_s", "gpu_busy_s") else value
            for name, value in row.quantities.items() if "flops" not in name and "dram" not in name
        })
        for row in second.measurements
    )  # fmt: skip
    header = msgspec.structs.replace(HEADER, rank=1, world=2)
    ops = tuple(msgspec.structs.replace(one, rank=1) for one in second.ops)
    first = toy(header=msgspec.structs.replace(HEADER, world=2))
    return Measured(
        rooflight.join([first, msgspec.structs.replace(second, header=header, ops=ops, measurements=stripped)])
    )


def test_counters_of_one_rank_are_judged_by_one_device(eager):
    both = joined()
    assert both.ranks == (0, 1)
    alone, found = rates(eager), rates(both)
    assert found.useful_flops_per_s == near(2 * alone.useful_flops_per_s)
    assert found.samples_per_s == near(2 * alone.samples_per_s)
    assert found.executed_flops_per_s == near(alone.executed_flops_per_s)
    assert found.dram_bytes_per_s == near(alone.dram_bytes_per_s)
    assert utilisation(both).hfu == near(utilisation(eager).hfu)
    assert utilisation(both).mfu == near(utilisation(eager).mfu)
    # Rows too: the FLOPs of one rank by its own time.
    assert both.total.executed_flops == 14_028
    assert both.total.executed_flops_per_s == near(eager.total.executed_flops_per_s)
    assert both.total.dram_bytes_per_s == near(eager.total.dram_bytes_per_s)
    assert by_name(both)["b"].sums.executed_flops_per_s == near(by_name(eager)["b"].sums.executed_flops_per_s)
    names = [row[0] for row in measure_tables.speed_table(both).rows]
    assert "executed TFLOP/s (rank 0 of 2)" in names and "useful TFLOP/s" in names


def test_counters_on_both_ranks_are_judged_by_both_devices(eager):
    ledgers = [
        toy(
            header=msgspec.structs.replace(HEADER, rank=rank, world=2),
            ops=tuple(msgspec.structs.replace(one, rank=rank) for one in OPS),
        )
        for rank in (0, 1)
    ]
    both = Measured(rooflight.join(ledgers))
    assert rates(both).executed_flops_per_s == near(2 * rates(eager).executed_flops_per_s)
    assert utilisation(both).hfu == near(utilisation(eager).hfu)


def test_times_of_ranks_are_not_mixed(eager):
    both = joined(slower=2.0)
    assert rates(both).executed_flops_per_s == near(rates(eager).executed_flops_per_s)  # by rank 0's own wall
    assert utilisation(both).hfu == near(utilisation(eager).hfu)
    assert utilisation(both).mfu == near(utilisation(eager).mfu / 2)  # both wait for the slowest
    assert [(part.name, part.time_s) for part in time_parts(both)] == [
        ("rank 0: GPU-busy", near(86 * US)), ("rank 0: GPU idle: launch gaps, host", near(114 * US)), ("rank 0: wall", near(200 * US)),
        ("rank 1: GPU-busy", near(172 * US)), ("rank 1: GPU idle: launch gaps, host", near(228 * US)), ("rank 1: wall", near(400 * US)),
    ]  # fmt: skip
    assert measure_text.verdict(both).startswith("400 µs a step (the slowest of 2 ranks); the GPU was busy for 172 µs")
    assert [row[3] for row in measure_tables.time_table(both).rows] == [
        "",
        "",
        "190 µs to 230 µs",
        "",
        "",
        "190 µs to 230 µs",
    ]


def test_no_peak_is_guessed():
    assert peak("NVIDIA H200 NVL", "bf16").flops_per_s == 835.5e12  # another board, with its own peaks
    assert peak("NVIDIA H20 NVL", "bf16") is None
    assert peak("NVIDIA H200", "int4") is None
    assert peak("Tesla V100-SXM2-16GB", "bf16") is None
    assert peak("Tesla V100-SXM2-16GB", "tf32") == unit_peak("Tesla V100-SXM2-16GB", "cuda_flops_fp32")
    assert peak("AMD EPYC 9654 96-Core Processor", "fp32") is None  # how many of its cores ran, the name does not say
    assert peak(None, "fp32") is None
    other = toy(header=msgspec.structs.replace(HEADER, device="NVIDIA H20 NVL"))
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
    plain = toy(measurements=(Measurement(scope="op", ops=(0,), quantities=values(kernel_time_s=1e-6)),))
    names = [column.name for column in measure_tables.main_table(Measured(plain)).columns]
    assert names == ["layer", "type", "kernel time", "share", "useful", "compulsory", "TFLOP/s"]
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
        measure_tables.main_table(step, by), measure_tables.phase_table(step), measure_tables.time_table(step),
        measure_tables.speed_table(step), measure_tables.check_table(step), measure_tables.kernel_table(step),
    ]  # fmt: skip
    for table in tables:
        narrow = narrowed(table, width)
        texts = [[column.name for column in narrow.columns], *narrow.written()]
        assert sum(max(len(row[i]) for row in texts) + 3 for i in range(len(narrow.columns))) <= width
    shown = {column.name for column in narrowed(tables[0], width).columns}
    assert {"kernel time", "useful", "tensor", "DRAM read", "written"} <= shown


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
    shown = {column.name for column in narrow.columns}
    assert narrow.left_out == tuple(name for name in place if name not in shown)
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
        Measurement(scope="op", ops=(i,), quantities=values(kernel_time_s=i * US, kernels=1)) for i in range(count + 1)
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
    table = measure_tables.kernel_table(step, limit=2)
    assert len(table.rows) == 3
    assert sum(row[1] for row in table.rows) == len(step.ledger.kernels)
    assert sum(row[2] for row in table.rows) == near(step.total.time_s)
    assert str(table.rows[-1][0]) == "16 more kernels"
    assert table.rows[0][0].full.startswith("void at::native::")


def test_growth_is_from_the_first_op_to_the_last_and_no_sum(eager):
    """What is freed between the ops of a row counts in it; what is freed between rows counts in the row around them."""
    found = {name: row.sums.get("growth_bytes") for name, row in by_name(eager).items()}
    # b runs twice: ops 1 to 3, from 1,256 to 2,024 bytes, and op 6, from 2,280 to 1,768.
    assert found.pop("b.add()") == 256  # it runs in b itself, after c and d
    assert found == {"": 1024 - 512, "a": 256, "b": 768 - 512, "b.c": 512 - 512, "b.d": 512, LOSS: 512, OPTIMIZER: 0}
    assert eager.total.get("growth_bytes") == 1512 - 1000
    assert [row.sums.get("growth_bytes") for row in phases(eager)] == [2536 - 1000, -512, 0]
    by_op = {row.name: row.sums.get("growth_bytes") for row in rows(eager, "op")}
    assert by_op["aten::convolution"] == 512
    assert sum(by_op.values()) == 1536 != eager.total.get("growth_bytes")
    assert "growth_bytes" not in Measured(compiled()).total.values


def test_growth_is_unknown_where_no_op_or_no_one_was_asked():
    kernels = (Kernel(name="memset", time_s=5e-6),)
    assert by_name(Measured(toy(kernels=kernels)))[NO_OP].sums.get("growth_bytes") is None
    without = tuple(row for row in toy().measurements if row.ops != (0,))
    measured = Measured(toy(measurements=without))
    assert by_name(measured)["a"].sums.get("growth_bytes") is None
    # Ops of two ranks are no run: the second begins with what its own device has.
    ranks = tuple(msgspec.structs.replace(one, rank=one.index // 3) for one in OPS)
    assert Measured(toy(ops=ranks)).total.get("growth_bytes") == (2280 - 1000) + (2536 - 1768) + (1512 - 2280)


@given(st.lists(st.tuples(st.integers(-50, 100), st.integers(0, 30), st.booleans()), min_size=1, max_size=30))
def test_the_growth_of_all_ops_is_the_last_minus_the_first(steps):
    """Each op grows by something, and something is freed before it; those of a row and the others make the whole with
    what is freed where the two meet.
    """
    moments, now = [], 1000
    for index, (growth, freed, _) in enumerate(steps):
        before = now - freed
        now = before + growth
        moments.append(MemoryMoment(index, 0, before, now))
    line = MemoryGrowth(tuple(moments), frozenset())
    row = {index for index, step in enumerate(steps) if step[2]}
    rest = set(range(len(steps))) - row
    assert line.growth_bytes({*row, *rest}) == moments[-1].after_bytes - moments[0].before_bytes
    met = [n for n in range(1, len(steps)) if steps[n][2] != steps[n - 1][2]]
    between = sum(steps[n][1] for n in met)
    assert line.growth_bytes(row) + line.growth_bytes(rest) - between == line.growth_bytes(range(len(steps)))


def test_the_timeline_shows_the_shape_of_a_step_and_names_the_peak(eager):
    line, marks, scale, most = [row[0] for row in memory_course.timeline_table(eager).rows]
    # 1,256 to 2,536 bytes in eight heights: 1,768 is 0.4, 2,280 is 0.8, 2,024 is 0.6, 1,512 is 0.2 of the way.
    assert line == "▁▄▇▅█▄▂"
    assert marks == "forw···"
    assert scale == "▁ 1,256 B   █ 2,536 B"
    assert most == "most after op 5 of 8, forward: aten::mse_loss in <loss>"
    assert not memory_course.timeline_table(Measured(compiled())).rows


@pytest.mark.parametrize("width", [1, 7, 20, 72])
def test_the_timeline_has_a_block_for_as_many_ops_as_there_is_room(step, width):
    table = memory_course.timeline_table(step, width)
    count = len(step.timeline.moments)
    assert len(table.rows[0][0]) == min(width, count)
    assert len(table.rows[1][0]) == min(width, count)
    assert table.rows[0][0].endswith("█")  # nothing is ever freed there


def test_the_allocators_view_has_increase_and_self(eager):
    table = measure_tables.operator_memory_table(eager, "module")
    names = [column.name for column in table.columns]
    assert names == ["layer", "calls", "growth", "self growth", "allocations", "workspace"]
    found = {row[0]: row[2:5] for row in table.rows}
    assert found["b"] == (256, 256, 7)  # its own op is the add
    assert found["b.d"] == (512, 512, 1)
    assert found["toy"] == (512, 0, 8)  # no op runs in the model itself: that is proven
    assert found["total"] == (512, 512, 9)
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
    counted = "tensor_flops_tf32, cuda_flops_fp32, dram_bytes_read, dram_bytes_written, cuda_flops_fp64"
    assert f"cupti: {counted} = range profiler" in lines
    peaks = next(line for line in lines if "the peaks of" in line)
    assert "NVIDIA H200 product page" in peaks and "67 TFLOP/s fp32 on CUDA cores" in peaks
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


def test_a_launch_without_a_count_makes_the_sum_unknown():
    """What one launch lacks is not 0, and one unit is not all units."""
    full = Kernel(name="a", quantities=values(tensor_flops_tf32=10, cuda_flops_fp32=2, cuda_flops_fp64=1))
    part = Kernel(name="b", quantities=values(tensor_flops_tf32=10, cuda_flops_fp32=2))
    only = Kernel(name="c", quantities=values(cuda_flops_fp32=2))
    one, two, three = KernelGroup("", [full]), KernelGroup("", [full, part]), KernelGroup("", [only])
    assert (one.tensor_flops, one.cuda_flops, one.flops) == (10, 3, 13)
    assert (two.tensor_flops, two.cuda_flops, two.flops) == (20, None, None)
    assert (three.tensor_flops, three.cuda_flops, three.flops) == (None, 2, None)


def test_a_log_that_tells_little_can_still_be_shown():
    log = imported()
    assert repr(log) == "log.csv\n1 kernels, no ops; rooflight 0"
    assert "<table" in log._repr_html_()
    assert ledger_data(log)["kernels"][0]["time_s"] == 1e-6


# --- documents ---


def test_the_json_document_has_values_with_their_origins():
    made = json.loads(msgspec.json.encode(ledger_data(toy())))
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
            "dram_bytes_read": 1,
            "dram_bytes_written": 1,
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
        "whole_step_low": None,
        "whole_step_high": None,
    }
    assert sums["host_bound"] is True
    assert sums["utilisation"]["peak"]["flops_per_s"] == 494.5e12
    assert next(row for row in made["modules"] if row["path"] == "b")["measured"]["values"]["kernels"] == 7
    json.dumps(made, allow_nan=False)


def test_a_compiled_document_keeps_what_belongs_to_no_module():
    made = ledger_data(compiled())
    assert [*made["totals"]["measured"]["of_no_module"]] == ["b.<fused>", SEVERAL, NO_OP]
    assert made["kernels"][1]["ops"] == (1, 2)


def test_an_estimates_document_is_as_it_was():
    ledger = toy(measurements=())
    assert "measured" not in ledger_data(ledger)["totals"]
    assert "kernels" not in ledger_data(ledger)


def test_pandas_has_a_column_for_every_measured_quantity():
    frame = toy().to_pandas()
    assert frame.tensor_flops_tf32.sum() == 14_000
    assert str(frame.tensor_flops_tf32.dtype) == "Int64"
    assert frame.dram_bytes_read.isna().tolist() == [False, False, False, False, True, True, False, False]
    assert frame.kernel_time_s.sum() == near(90 * US)


def test_a_notebook_shows_the_measurement_harmlessly():
    evil = "<script>alert(1)</script>"
    kernels = (Kernel(name=evil, ops=(0,), time_s=1e-6),)
    shown = toy(kernels=kernels, header=msgspec.structs.replace(HEADER, notes=(evil,)))._repr_html_()
    assert "<script>" not in shown
    assert "GPU-busy" in shown and "494.5 TFLOP/s" in shown


@pytest.fixture
def run(run):
    return partial(run, columns=160)


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
    assert "host-bound" in out and "self-check" in out and "allocated after each op" in out
    assert ("self growth" in out) == (by == "module")  # of ops and types it is their growth
    assert re.search(r"total\s+90\.0 µs\s+100\.0%", out)


def test_report_writes_every_form(run, saved):
    code, out, _ = run("report", saved["toy"], "--to", "csv")
    found = {row["layer"]: row for row in csv.DictReader(io.StringIO(out))}
    assert found["b.c"]["tensor_flops"] == "12800" and found["total"]["dram_bytes_read"] == "450"
    code, out, _ = run("report", saved["toy"], "--to", "json")
    assert json.loads(out)["totals"]["measured"]["tensor_flops"] == 14_000
    code, out, _ = run("report", saved["compiled"], "--to", "md")
    assert code == 0 and "| layer | type | kernel time |" in out and "to several fused ops" in out


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


def test_times_of_a_busy_machine_are_doubted():
    ledger = recording("h200/mnist-cnn-infer-tf32")
    assert doubt(Measured(ledger)) == ""

    def with_wall(low, high):
        rows = []
        for row in ledger.measurements:
            if row.scope == "step":
                wall = msgspec.structs.replace(row.quantities["wall_time_s"], low=low, high=high)
                row = msgspec.structs.replace(row, quantities={**row.quantities, "wall_time_s": wall})
            rows.append(row)
        return Measured(msgspec.structs.replace(ledger, measurements=tuple(rows)))

    assert doubt(with_wall(1e-3, 2.9e-3)) == ""
    assert "TIMES UNRELIABLE: the plain step took 1.00 ms to 3.10 ms" in doubt(with_wall(1e-3, 3.1e-3))

    def with_load(load):
        """The load counts where the ops themselves ran on the CPU."""
        header = msgspec.structs.replace(ledger.header, conditions={"cores": "2 usable", "load_average": load})
        rows = (
            Measurement(scope="step", quantities={"wall_time_s": Value(1e-3, "clock", 0.9e-3, 1.1e-3)}),
            Measurement(scope="op", ops=(0,), quantities={"host_time_s": Value(1e-4, "clock")}),
        )
        return Measured(msgspec.structs.replace(ledger, header=header, kernels=(), measurements=rows))

    def with_waiting(text):
        found = with_load("9.99, 0.10, 0.10").ledger
        conditions = {**found.header.conditions, "waited_for_a_core": text}
        return Measured(
            msgspec.structs.replace(found, header=msgspec.structs.replace(found.header, conditions=conditions))
        )

    # What the kernel says of the threads is sure; the load lags behind.
    assert doubt(with_waiting("9% of the time")) == ""
    assert "its threads waited 32% of the time" in doubt(with_waiting("32% of the time"))
    assert measured_totals(with_waiting("32% of the time"))["doubt"].startswith("TIMES UNRELIABLE")
    assert measured_totals(with_waiting("9% of the time"))["doubt"] is None
    assert measure_tables.time_table(with_waiting("32% of the time")).columns[0].name.endswith("(unreliable)")
    assert doubt(with_load("2.60, 0.10, 0.10")) == doubt(with_load("nonsense")) == ""
    assert "(load 2.61 on 2 cores)" in doubt(with_load("2.61, 0.10, 0.10"))
