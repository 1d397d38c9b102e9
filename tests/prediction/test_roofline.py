"""Roofs, ridges and points: by hand, on the recorded steps, and what is said about them."""

from __future__ import annotations

import json

import msgspec
import pytest

import rooflight
from rooflight import recordings
from rooflight.errors import BadInput
from rooflight.hardware import devices
from rooflight.hardware.roofs import Ceilings, attainable, place, ridge, roofs_of
from rooflight.ledger import FORMAT_VERSION, Kernel, Ledger, Measurement, Value
from rooflight.prediction import paleo
from rooflight.prediction.roofline import CONVENTIONS, NO_OP, RooflineTimes, plain_roofline_s, ridges, roofline
from tests.fixtures.measured_ledgers import HEADER, cost, op
from tests.fixtures.recordings import recording

A100, H200 = devices.find("a100-sxm-40"), devices.find("h200")
RIDGE = 156e12 / 1555e9


def book(*ops, kernels=(), wall_s=None, busy_s=None, dram=None) -> Ledger:
    quantities = {"wall_time_s": wall_s, "gpu_busy_s": busy_s}
    quantities |= dict.fromkeys(("dram_bytes_read", "dram_bytes_written"), dram)
    step = {name: Value(value, "by hand") for name, value in quantities.items() if value is not None}
    rows = (Measurement(scope="step", quantities=step),) if step else ()
    return Ledger(format_version=FORMAT_VERSION, header=HEADER, ops=ops, kernels=kernels, measurements=rows)


def conv(index=0, flops=156_000_000, moved=1_555_000):
    return op(index, "forward", "conv", "aten::convolution", cost(flops, moved - 1000, 1000))


def copy(index=1, moved=15_550_000):
    return op(index, "forward", "", "aten::copy_", cost(0, moved // 2, moved // 2), precision="fp32")


def kernel(*ops, time_s):
    return Kernel(name="k", ops=ops, time_s=time_s, start_s=0.0)


def test_a_point_by_hand():
    # 156 MFLOP at 156 TFLOP/s and 1.555 MB at 1,555 GB/s take 1 microsecond each: it lies on the ridge.
    found = roofline(book(conv(), kernels=(kernel(0, time_s=4e-6),)), A100)
    (point,) = found.ops
    assert point.intensity == pytest.approx(RIDGE)
    assert point.ridge == pytest.approx(RIDGE)
    assert (point.precision, point.unit) == ("tf32", "tensor")
    assert point.attainable_flops_per_s == pytest.approx(156e12)
    assert point.flops_per_s == pytest.approx(39e12)
    assert point.percent_of_roof == pytest.approx(25)
    half = roofline(book(conv(moved=3_110_000), kernels=(kernel(0, time_s=4e-6),)), A100).ops[0]
    assert half.side == "memory"
    assert half.percent_of_roof == pytest.approx(50)
    assert half.verdict == (
        "memory side: 50.2 FLOP/byte is left of the ridge at 100; 50% of the attainable 78.0 TFLOP/s"
    )
    right = roofline(book(conv(moved=155_500)), A100).ops[0]
    assert right.side == "compute"
    assert right.verdict == (
        "compute side: 1,003 FLOP/byte is right of the ridge at 100; the attainable 156 TFLOP/s is the roof, no time is "
        "known"
    )


def test_attainable():
    roofs = roofs_of(A100)
    roof, slope = roofs.matrix("tf32"), roofs.slope()
    assert attainable(0, roof, slope) == 0
    assert attainable(1, roof, slope) == 1555e9
    assert attainable(1e9, roof, slope) == 156e12
    assert ridge(roof, slope) == pytest.approx(RIDGE)
    assert place(RIDGE * 2, roof, slope).side == "compute"
    assert place(RIDGE / 2, roof, slope).side == "memory"


def test_ops_without_flops_are_listed_by_time():
    step = book(
        conv(0), copy(1), copy(2), kernels=(kernel(0, time_s=4e-6), kernel(1, time_s=2e-5), kernel(2, time_s=4e-5))
    )
    found = roofline(step, A100)
    assert [row.ops for row in found.zero_flop_ops] == [(2,), (1,)]
    assert found.zero_flop_ops[0].percent_of_bandwidth == pytest.approx(25)
    # Copies take most of the time: the step is bound by memory, whatever the convolution's intensity.
    assert found.step.bound == "memory"
    assert found.step.memory_share == pytest.approx(60 / 64)
    assert found.step.verdict.startswith("memory-bound: 94% of the ops' time is on the memory side; as a whole memory")


def test_a_step_of_several_precisions_has_the_mix_of_their_roofs():
    linear = op(1, "forward", "fc", "aten::addmm", cost(19_500_000, 1000, 1000), precision="fp32")
    found = roofline(book(conv(0), linear), A100).step.point
    # 1 microsecond each: 175.5 MFLOP in 2.
    assert found.ridge == pytest.approx(175.5e6 / 2e-6 / 1555e9)
    assert found.attainable_flops_per_s == pytest.approx(175.5e6 / 2e-6)


def test_host_bound_by_the_share_of_the_wall():
    busy = roofline(book(conv(), wall_s=10e-6, busy_s=8.1e-6), A100).step
    assert busy.bound == "compute"
    host = roofline(book(conv(), wall_s=10e-6, busy_s=7.9e-6), A100).step
    assert host.bound == "host"
    assert host.verdict.startswith("host-bound: the GPU is busy 79% of the wall time; while it is, ")
    assert host.point.time_s == 7.9e-6


def test_dram_bytes_stand_beside_the_compulsory():
    found = roofline(book(conv(), busy_s=4e-6, dram=1_555_000), A100).step.point
    assert found.dram_bytes == 3_110_000
    assert found.dram_intensity == pytest.approx(RIDGE / 2)
    assert found.percent_of_roof == pytest.approx(25)
    assert found.percent_of_dram_roof == pytest.approx(50)


def test_fused_ops_are_one_point_and_counted_once():
    step = book(
        conv(0), conv(1), conv(2), kernels=(kernel(0, 1, time_s=4e-6), kernel(1, time_s=1e-6), kernel(time_s=9e-6))
    )
    found = roofline(step, A100)
    assert [(row.ops, row.time_s) for row in found.ops] == [((0, 1), pytest.approx(5e-6)), ((2,), None)]
    assert found.ops[0].flops == 2 * conv().cost.flops
    assert [(row.name, row.time_s, row.bytes) for row in found.zero_flop_ops] == [(NO_OP, 9e-6, None)]


def test_measured_ceilings_stand_beside_the_datasheet():
    ceilings = Ceilings("calibrated", {"tf32": 78e12}, dram_bytes_per_s=1244e9, l2_bytes_per_s=4e12)
    found = roofline(book(conv(moved=1000), kernels=(kernel(0, time_s=4e-6),)), A100, ceilings=ceilings)
    assert found.ops[0].percent_of_roof == pytest.approx(25)
    assert found.ops[0].percent_of_sustained == pytest.approx(50)
    rows = {(row["precision"], row["level"]): row["flops_per_byte"] for row in ridges(found.roofs) if row["measured"]}
    assert rows == {("tf32", "dram"): pytest.approx(78e12 / 1244e9), ("tf32", "l2"): pytest.approx(19.5)}
    assert plain_roofline_s(book(conv(moved=1000)), A100, ceilings=ceilings) == pytest.approx(2e-6)
    with pytest.raises(BadInput, match=r"bandwidth of the L2 of .* is not known"):
        roofs_of(A100).slope("l2")


def test_the_roof_of_memory_is_no_link():
    slopes = roofs_of(H200).memory
    assert [slope.bytes_per_s for slope in slopes] == [H200.bandwidth_bytes_per_s.value]
    assert all(slope.bytes_per_s != link.value for slope in slopes for link in H200.links_bytes_per_s.values())
    assert any("not a link" in line for line in CONVENTIONS)


@pytest.mark.parametrize("name", recordings.names())
def test_recorded_steps(name):
    ledger = recording(name)
    found = roofline(ledger, H200)
    document = json.loads(json.dumps(found.to_dict()))
    assert document["times"] == "recorded"
    assert {
        key: value
        for key, value in document["ridges"][-1 - _last(document["ridges"], "tf32")].items()
        if key != "flops_per_byte"
    } == {"precision": "tf32", "unit": "tensor", "level": "dram", "measured": False}
    listed = [index for row in (*found.ops, *found.zero_flop_ops) for index in row.ops]  # type: ignore[attr-defined]
    assert len(listed) == len(set(listed))
    assert {row.index for row in ledger.ops if row.kind == "compute"} <= set(listed)
    step = found.step
    assert step.percent_of_op_roofs == pytest.approx(step.point.percent_of_roof) and step.percent_of_op_roofs > 0
    assert step.bound == ("host" if step.busy_share < 0.8 else "compute" if step.memory_share <= 0.5 else "memory")
    assert sum(row.flops for row in found.ops) == step.point.flops
    times = [row.time_s for row in found.zero_flop_ops if row.time_s is not None]
    assert times == sorted(times, reverse=True)
    if "compiled" not in name:
        assert step.op_roofs_time_s == pytest.approx(plain_roofline_s(ledger, H200))
        # What DRAM moved and units did cannot take longer than it took.
        assert step.point.percent_of_dram_roof is None or step.point.percent_of_dram_roof < 100


def _last(rows, precision):
    return next(n for n, row in enumerate(reversed(rows)) if row["precision"] == precision)


def test_every_tier_has_one():
    step = rooflight.estimate("resnet18", batch=8, step="train")
    spec = paleo.spec_time(step, A100)
    found = roofline(step, A100, times=RooflineTimes.of_ops("spec", spec.op_times_s))
    assert found.to_dict()["times"] == "spec"
    assert found.step.gpu_busy_s == pytest.approx(spec.time_s)
    # Read + compute + write is never shorter than the longest of them.
    assert found.step.percent_of_op_roofs < 62
    bare = roofline(step, A100)
    assert bare.origin == "none: only what the roofs allow"
    assert bare.step.point.percent_of_roof is None
    assert bare.step.op_roofs_time_s == pytest.approx(plain_roofline_s(step, A100))


def test_what_cannot_be_drawn():
    with pytest.raises(BadInput, match="no op of toy has FLOPs"):
        roofline(book(copy(0)), A100)
    two = book(conv(0), msgspec.structs.replace(conv(1), rank=1), kernels=(kernel(0, time_s=1e-6),))
    with pytest.raises(BadInput, match="holds 2 ranks"):
        roofline(two, A100)
