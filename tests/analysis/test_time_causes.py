"""Why kernels took longer than the roofs allow: a path of limits, by hand and on an H200's steps."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import msgspec
import pytest

from rooflight.analysis.device_speed import DeviceSpeed
from rooflight.analysis.kernel_rates import KernelRate, KernelWork, convolution_works, make_of, rates_of
from rooflight.analysis.time_causes import (
    BESIDE,
    CACHED,
    CLOCK,
    FLIGHT,
    LAUNCH,
    PADDED,
    SUCH,
    SUSTAINED,
    WAVE,
    explain_time,
)
from rooflight.hardware.devices import find
from rooflight.hardware.roofs import roofs_of
from rooflight.ledger import Kernel
from rooflight.ops.kernel_names import role_of
from rooflight.prediction.resolve_devices import ceilings_of
from tests.analysis.test_traffic_time_memory_causes import MB, by_name, chain
from tests.fixtures.explained_ledgers import RECORDINGS, ledger, plus, recounted, time

H200 = find("h200")


def clocked(source, clock):
    header = msgspec.structs.replace(source.header, conditions={"sm_clock": clock})
    return msgspec.structs.replace(source, header=header)


# --- by hand ---


def test_least_time_and_start_by_hand():
    """10 MB read and 10 MB written at 4.8 TB/s: 4.17 µs. The path ends at 95% of what such a kernel took alone."""
    source = chain(10 * MB)
    first, second, third = explain_time(source)
    assert first.asked == pytest.approx(20 * MB / 4.8e12)
    like = DeviceSpeed.of(source, H200).like_s
    assert first.asked + sum(by_name(first).values()) == pytest.approx(0.95 * like[0])
    assert 0 < by_name(first)[LAUNCH] <= 1.6e-6 + 1e-12
    assert CACHED not in by_name(first) and by_name(second)[CACHED] < 0
    # 1 GB at 4.24 TB/s, and the start.
    sustained = roofs_of(H200, ceilings_of(H200, None)).slope(measured=True).bytes_per_s
    assert by_name(third)[SUSTAINED] == pytest.approx(1e9 / sustained - 1e9 / 4.8e12, rel=1e-6)
    assert by_name(third)[LAUNCH] == pytest.approx(1.6e-6)


def on_another(source):
    """A GPU of which no micro-benchmarks come along: nothing ends the path."""
    header = msgspec.structs.replace(source.header, device="NVIDIA A100-SXM4-80GB")
    return msgspec.structs.replace(source, header=header)


def test_few_threads_do_not_keep_the_memory_busy():
    """100 MB each way. One block of 128 threads with 16 bytes each: 2 kB move in the time of a load, 650 ns."""
    source = on_another(chain(100 * MB))
    kernels = tuple(msgspec.structs.replace(kernel, grid=(1, 1, 1), block=(128, 1, 1)) for kernel in source.kernels)
    row = explain_time(msgspec.structs.replace(source, kernels=kernels))[0]
    assert row.asked + by_name(row)[FLIGHT] == pytest.approx(200 * MB / (128 * 16 / 0.65e-6), rel=1e-6)
    assert "128 threads run at once" in next(cause.evidence for cause in row.computed if cause.name == FLIGHT)
    assert FLIGHT not in by_name(explain_time(on_another(chain(100 * MB)))[0])  # no block is known of its kernels


def test_a_partial_wave_and_kernels_beside_by_hand():
    """vgg11's second layer of 56 × 56: the last round of tiles is not full, and five kernels copy, fill and add."""
    place = "vgg-roofline/vgg11-b16-infer-fp32-h200-dfb4e346"
    row = next(row for row in time(place) if row.op.module == "features.8")
    # 50,176 × 256 results in tiles of 64 × 256: 784, on a grid of 30 × 4 = 120 blocks: 6.53 rounds, in 7; in which 132
    # multiprocessors could have done 924, 140 more.
    wave = next(cause for cause in row.causes if cause.name == WAVE)
    tile_s = 2 * 64 * 256 * 2304 / roofs_of(H200, ceilings_of(H200, None)).matrix("tf32", measured=True).flops_per_s
    assert 0 < wave.amount <= 140 * tile_s * (1 + 1e-9)
    assert wave.evidence.startswith("784 tiles") and "6.53 rounds, in 7" in wave.evidence
    beside = [kernel.time_s for kernel in ledger(place).kernels
              if kernel.ops == (row.op.index,) and not kernel.name.startswith("sm90_xmma")]  # fmt: skip
    assert len(beside) == 5
    assert by_name(row)[BESIDE] == pytest.approx(sum(beside))


def test_padding_takes_time():
    """vgg11's first layer of 14 × 14: 104 tiles run for 98."""
    row = next(row for row in time("vgg-roofline/vgg11-b16-infer-fp32-h200-9c8bc4ed") if row.op.module == "features.16")
    found = by_name(row)
    # 0.906 G of 14.8 G more, at what the device sustains of TF32's 494.5 TFLOP/s.
    assert 905_969_664 / 494.5e12 < found[PADDED] < 905_969_664 / 250e12


def test_a_lower_clock_is_a_cause_of_compute_and_not_of_memory():
    """At half the clock a product takes twice its least time, as far as such products go; a copy takes no longer."""
    place = "recorded:h200/vgg19-infer-bf16"
    full, half = (explain_time(clocked(ledger(place), text)) for text in ("1980 MHz", "345 to 990 MHz"))
    assert not any(CLOCK in by_name(row) for row in full)
    slowed = {row.op.index: by_name(row)[CLOCK] for row in half if CLOCK in by_name(row)}
    assert slowed
    for row in half:
        if row.op.index in slowed:
            assert 0 < slowed[row.op.index] <= row.asked * (1 + 1e-9)
            assert row.op.cost.flops or row.op.cost.other_flops
    assert "990 of 1,980 MHz" in next(c.evidence for row in half for c in row.causes if c.name == CLOCK)


def test_limits_of_a_kernel_by_hand():
    """1 ms of FLOPs at half the peak, 6 GB at 6 TB/s, 1,000 steps of 100 ns, 1 GB at 4 TB/s: the longest leads."""
    rate = KernelRate("k", "m", 3e-6, 0.5, 6e12, 1e-7, 4e12, 1e-6, 0.5, 10)
    work = KernelWork("k", "m", 1e-3, 6e9, 1000.0, 1e9, 2)
    assert work.limits_s(rate) == pytest.approx((2e-3, 1e-3, 1e-4, 0.25e-3))
    together = (2e-3**4 + 1e-3**4 + 1e-4**4 + 0.25e-3**4) ** 0.25
    assert work.seconds(rate) == pytest.approx(3e-6 + 2e-6 + together)
    # Tiles of a quarter of the results keep the units half as busy.
    assert replace(work, tile=4096.0).limits_s(rate)[0] == pytest.approx(4e-3)


def test_work_of_a_convolutions_kernel_by_hand():
    """vgg11, 16 × 256 × 56 × 56: tiles of 64 × 256 × 32 over 128 × 9 channels: 7 rounds of 36 steps."""
    place = "vgg-roofline/vgg11-b16-infer-fp32-h200-dfb4e346"
    source = ledger(place)
    op = next(op for op in source.ops if op.module == "features.8" and op.packet == "aten::convolution")
    kernel = next(k for k in source.kernels if k.ops == (op.index,) and k.name.startswith("sm90_xmma"))
    name = role_of(kernel.name)
    assert name.tile == (64, 256, 32) and math.prod(kernel.grid) == 120
    (work,) = convolution_works(op, [kernel], [name], H200)
    depth = op.tensor("weight").shape[1] * 9
    assert work.rounds == 7 and work.steps == pytest.approx(7 * depth / 32)
    assert work.l2_bytes == pytest.approx(784 * depth * (64 + 256) * 4)
    assert work.compute_s == pytest.approx(7 * 2 * 64 * 256 * depth * 132 / 494.5e12)
    assert (work.kind, work.make) in rates_of("h200")
    assert convolution_works(msgspec.structs.replace(op, name="aten::mm"), [kernel], [name], H200) == [None]


def test_names_of_one_make_differ_in_their_sizes_only():
    name = (
        "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize{}_stage3_warpsize2x2x1_g1_x"
    )
    assert make_of(name.format("128x64x32")) == make_of(name.format("64x64x16")) != make_of("sm80_xmma_dgrad")
    assert rates_of("no such device") == {}


def test_rates_that_were_learned_are_possible():
    for rate in rates_of("h200").values():
        assert 0 < rate.start_s < 100e-6 and 0 < rate.step_s < 1e-4 and rate.points > 0
        assert rate.busy > 0 and rate.l2_bytes_per_s > 0 and rate.dram_bytes_per_s > 0


# --- on an H200 ---


def test_the_path_only_goes_up_but_for_the_l2():
    for place in RECORDINGS:
        for row in time(place):
            assert all(cause.amount > 0 or cause.name in (CACHED, BESIDE) for cause in row.causes)
            assert all(cause.evidence for cause in row.causes)
            assert len({cause.name for cause in row.causes}) == len(row.causes)


def test_a_device_that_nobody_timed_has_no_micro_benchmarks_among_its_causes():
    source = ledger("recorded:h200/resnet50-infer-bf16")
    rows = explain_time(on_another(source))
    assert rows and not any(cause.name == SUCH for row in rows for cause in row.causes)


@pytest.mark.parametrize("seed", range(3))
def test_causes_of_time_do_not_look_at_how_long_the_op_took(seed):
    """By design the clock of kernels beside the product is evidence; that of the op, and of the product, is not."""
    place = "recorded:h200/resnet50-infer-bf16"
    draw = random.Random(seed)
    added = {}

    def change(index, values):
        if index is None or "kernel_time_s" not in values:
            return values
        added[index] = draw.uniform(-1e-3, 1e-3)
        return {**values, "kernel_time_s": plus(values["kernel_time_s"], added[index])}

    after = explain_time(recounted(ledger(place), change))
    assert len(after) == len(time(place)) and added
    for old, new in zip(time(place), after, strict=True):
        assert new.computed == old.computed and new.asked == old.asked
        assert new.gap - old.gap == pytest.approx(added[new.op.index], abs=1e-12)


def test_the_clock_of_the_product_is_no_evidence():
    place = "recorded:h200/resnet50-infer-bf16"
    source = ledger(place)

    def slower(kernel: Kernel) -> Kernel:
        name = role_of(kernel.name)
        if name is None or name.role != "matrix":
            return kernel
        return msgspec.structs.replace(kernel, time_s=2 * kernel.time_s)

    other = msgspec.structs.replace(source, kernels=tuple(map(slower, source.kernels)))
    assert [row.causes for row in explain_time(other)] == [row.causes for row in time(place)]
