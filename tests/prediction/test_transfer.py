"""Times carried over to another device, held back by its power, corrected by what was timed there."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rooflight.errors import BadInput
from rooflight.hardware.calibration import FORMAT_VERSION, Calibration, TimedPoints, published_name, shipped
from rooflight.hardware.device import Device, Figure
from rooflight.hardware.devices import find, known
from rooflight.hardware.power import is_held_back, sustained_flops_per_s
from rooflight.ops.kernel_task import Task
from rooflight.prediction.api import predict
from rooflight.prediction.calibrated.corrections import Corrections, PointsOf
from rooflight.prediction.resolve_devices import predictor_of
from rooflight.prediction.tiers import Predictor, corrected, predictor
from rooflight.step.cache_reuse import Array

POWER = Path(__file__).parents[2] / "benchmarks" / "h200" / "results" / "power.json"
PUBLISHED = [device.name for device in known() if shipped(published_name(device.name)) is not None]

size = st.integers(64, 4096)
gemms = st.builds(lambda m, n, k: Task.of("gemm", "fp32", m=m, n=n, k=k), size, size, size)
rows = st.builds(lambda r, c: Task("softmax-forward", "fp32", (r, c)), size, size)
plain = st.builds(lambda e: Task("plain", "fp32", (e, 4 * e, 4 * e)), st.integers(1 << 12, 1 << 26))
tasks = st.one_of(gemms, rows, plain)


def with_more(device: Device, times: float, *fields: str) -> Device:
    """The device with figures multiplied."""

    def more(value: object) -> object:
        if isinstance(value, dict):
            return {key: more(figure) for key, figure in value.items()}
        assert isinstance(value, Figure)
        return replace(value, value=times * value.value)

    return replace(device, **{field: more(getattr(device, field)) for field in fields})


def seconds_on(device: Device, some: list[Task]) -> Array:
    return predictor(device, "transferred").task_times(some).cold_s


@given(tasks, st.floats(1.0, 4.0), st.sampled_from(["v100", "rtx-4090", "t4", "mi300x"]))
def test_more_of_anything_is_never_slower(task: Task, times: float, name: str) -> None:
    device = find(name)
    before = seconds_on(device, [task])[0]
    for fields in (
        ("bandwidth_bytes_per_s",),
        ("core_flops_per_s", "tensor_flops_per_s", "tdp_w"),
        ("tdp_w",),
        ("clock_hz", "core_flops_per_s", "tensor_flops_per_s", "tdp_w"),
    ):
        assert seconds_on(with_more(device, times, *fields), [task])[0] <= before * (1 + 1e-9), fields


def test_twice_the_device_takes_half_the_time_for_large_work() -> None:
    twice = with_more(
        find("v100"), 2.0, "sms", "bandwidth_bytes_per_s", "core_flops_per_s", "tensor_flops_per_s", "tdp_w"
    )
    large = [
        Task.of("gemm", "fp32", m=8192, n=8192, k=4096),
        Task("plain", "fp32", (1 << 28, 1 << 30, 1 << 30)),
        Task("softmax-forward", "fp32", (1 << 18, 1024)),
    ]
    assert seconds_on(twice, large) == pytest.approx(seconds_on(find("v100"), large) / 2, rel=0.05)


def test_boards_with_few_watts_do_not_keep_their_peak_up() -> None:
    for name, precision in (("l4", "fp32"), ("l4", "bf16"), ("t4", "fp32"), ("l40s", "bf16")):
        assert is_held_back(find(name), precision), name
    for name, precision in (("v100", "fp32"), ("a100", "fp32"), ("a100-sxm-80", "bf16"), ("rtx-3090", "fp16")):
        assert not is_held_back(find(name), precision), name
    for device in known():
        peak = device.peak("fp32")
        assert peak is not None
        assert 0.05 * peak.value < sustained_flops_per_s(device, "fp32") <= peak.value, device.name


def test_the_h200_keeps_up_what_was_measured_on_it() -> None:
    measured = json.loads(POWER.read_text())["rows"]
    for precision in ("tf32", "bf16", "fp16"):  # fp32 products end before the power does
        assert sustained_flops_per_s(find("h200"), precision) == pytest.approx(
            measured[f"gemm.{precision}"]["rate"], rel=0.1
        )


def calibration_of(some: list[Task], seconds: Array, device: str = "NVIDIA A10") -> Calibration:
    groups: dict[tuple[str, str], list[list[int]]] = {}
    for task, taken in zip(some, seconds.tolist(), strict=True):
        ns = max(1, round(taken * 1e9))
        groups.setdefault((task.family, task.precision), []).append([*task.numbers, ns, ns, 1])
    points = tuple(TimedPoints(*key, rows, "a test") for key, rows in groups.items())
    return Calibration(
        format_version=FORMAT_VERSION, rooflight="0", torch="2.11", device=device, cuda="13", points=points, partial=True
    )  # fmt: skip


def test_points_correct_what_is_like_them_and_nothing_else() -> None:
    device = find("a10")
    some = [Task.of("gemm", "bf16", m=m, n=1024, k=k) for m in (512, 1024, 2048, 4096) for k in (512, 1024, 2048)]
    plain_ = predictor(device, "transferred")
    given_ = corrected(device, calibration_of(some, 2 * plain_.task_times(some).cold_s), "given")
    assert given_.tier == "partial" and not given_.looks_up
    near = [Task.of("gemm", "bf16", m=1500, n=1024, k=900), Task.of("gemm", "fp16", m=1500, n=1024, k=900)]
    ratio = given_.task_times(near).warm_s / plain_.task_times(near).warm_s
    assert (ratio > 1.8).all() and (ratio < 2.05).all()
    others = [Task.of("gemm", "fp32", m=1500, n=1024, k=900), Task("plain", "bf16", (1 << 20, 1 << 21, 1 << 21))]
    assert given_.task_times(others).warm_s == pytest.approx(plain_.task_times(others).warm_s)


def test_a_gradient_learns_a_part_from_its_forward_pass() -> None:
    device = find("a10")
    sizes = {"n": 16, "h": 28, "w": 28, "r": 3, "s": 3, "stride": 1, "pad": 1}
    some = [Task.of("conv-forward", "fp32", **sizes, c=c, k=k) for c in (64, 128, 256) for k in (64, 128, 256)]
    plain_ = predictor(device, "transferred")
    given_ = corrected(device, calibration_of(some, 2 * plain_.task_times(some).cold_s), "given")
    gradient = [Task.of("conv-wgrad", "fp32", **sizes, c=128, k=128)]
    ratio = float(given_.task_times(gradient).warm_s[0] / plain_.task_times(gradient).warm_s[0])
    assert 1.3 < ratio < 1.9


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_published_point_says_where_it_is_from(name: str) -> None:
    calibration = shipped(published_name(name))
    assert calibration is not None and calibration.partial
    known_sources = ("NeuSight 6945927", "aiconfigurator 095f58a", "LLMServingSim 5daddb2", "DeepBench da81ba7")
    assert all(group.source.startswith(known_sources) for group in calibration.points)


@pytest.mark.parametrize("name", PUBLISHED)
def test_points_that_are_left_out_are_predicted_better_than_by_transfer_alone(name: str) -> None:
    calibration = shipped(published_name(name))
    assert calibration is not None
    lots, device = random.Random(1), find(name)
    kept, asked, truth = [], [], []
    for group in calibration.points:
        out = set(lots.sample(range(len(group.rows)), len(group.rows) // 5))
        rows = [row for place, row in enumerate(group.rows) if place not in out]
        kept.append(replace(group, rows=rows, in_steps=True))
        chosen = sorted(out)[:40]
        asked += [group.tasks()[place] for place in chosen]
        truth += [group.rows[place][-3] * 1e-9 for place in chosen]
    plain_ = predictor(device, "transferred")
    points = PointsOf(replace(calibration, points=tuple(kept)), device)

    def transferred(some: Sequence[Task], on: Device) -> tuple[Array, Array]:
        times = Predictor(on, "transferred", plain_.model, "").task_times(some)
        return times.warm_s, times.cold_s

    there = np.clip(truth, *transferred(asked, device))
    here: Array = there * Corrections([points], transferred).of(asked).ratio
    errors = [np.abs(np.log(seconds / np.array(truth))) for seconds in (there, here)]
    assert np.median(errors[1]) < 0.7 * np.median(errors[0])
    assert np.mean(errors[1]) < 0.25


def test_some_works_of_one_gpu_say_nothing_of_another() -> None:
    some = [Task.of("gemm", "bf16", m=512, n=512, k=512)]
    calibration = calibration_of(some, np.array([1e-4]), device="NVIDIA L4")
    with pytest.raises(BadInput, match=r"some works of NVIDIA L4 only.*predict on l4"):
        predictor_of(find("a10"), None, calibration)
    with pytest.raises(BadInput, match="none can be transferred to m4"):
        corrected(find("m4"), calibration, "given")


def test_a_time_between_warm_and_cold_corrects_nothing() -> None:
    """Weights that a cache of 72 MB could hold were read from memory: that says nothing of the product."""
    device, some = find("rtx-4070"), [Task.of("gemm", "bf16", m=m, n=4096, k=4096) for m in (1, 2, 4, 8, 16)]
    times = predictor(device, "transferred").task_times(some)
    between = (times.warm_s + times.cold_s) / 2
    given_ = corrected(device, calibration_of(some, between, device="NVIDIA GeForce RTX 4070"), "given")
    assert given_.task_times(some).cold_s == pytest.approx(times.cold_s, rel=1e-6)


@pytest.mark.parametrize("name", ["rtx-4090", "l40s", "a100", "rtx-3090", "h100"])
def test_more_rows_against_the_same_weights_are_not_faster(name: str) -> None:
    some = [Task.of("gemm", "bf16", m=m, n=14336, k=4096, b_transposed=1) for m in (1, 2, 4, 8, 16, 32)]
    seconds = predictor(find(name)).task_times(some).cold_s
    assert (seconds[1:] > 0.93 * seconds[:-1]).all()
    assert seconds[0] < 2.5 * 2 * 14336 * 4096 / find(name).bandwidth_bytes_per_s.value


def test_convolutions_in_fp32_of_older_gpus_are_corrected_by_others_of_them() -> None:
    task = Task.of("conv-forward", "fp32", n=32, c=128, h=30, w=30, k=128, r=3, s=3, stride=1, pad=1)
    gemm = Task.of("gemm", "fp32", m=999, n=777, k=555)
    older = predictor(find("gtx-1080-ti"))
    assert older.tier == "transferred" and older.corrections is not None
    ratio = older.corrections.of([task, gemm]).ratio
    assert ratio[0] < 0.8 and ratio[1] == 1.0  # Winograd's way, which others of them took; of products nothing is said
    for name in ("h100-pcie", "b200", "mi300x"):  # as new, or of another vendor
        assert predictor(find(name)).corrections is None
    # What others of its chip took, it is not told twice
    told = predictor(find("titan-v"), "transferred").corrections
    assert told is not None
    names = {source.device.name for source in told.sources}
    assert names == {"p100-pcie"}


def test_who_has_the_calibrated_chip_is_transferred_from_it() -> None:
    assert predictor(find("gh200-144")).tier == "transferred"
    task = Task.of("gemm", "bf16", m=4096, n=4096, k=4096)
    here, kin = (predictor(find(name)).task_times([task]).warm_s[0] for name in ("h200", "gh200-144"))
    assert kin == pytest.approx(here, rel=0.02)


def test_what_power_leaves_open_widens_the_interval() -> None:
    task = Task.of("gemm", "fp32", m=2048, n=2048, k=2048)
    small, large = predictor(find("p4")), predictor(find("v100-pcie-32"))
    assert small.corrections is not None and large.corrections is not None
    assert small.corrections.left_open(task) > 0.3 and large.corrections.left_open(task) == 0.0
    # somebody's own softmax says nothing of products
    point = TimedPoints("softmax-forward", "fp32", [[4096, 1024, 300_000, 300_000, 1]], "a test", in_steps=True)
    mine = corrected(find("p4"), replace(shipped(published_name("p4")), points=(point,)), "mine").corrections
    assert mine is not None and mine.left_open(task) == small.corrections.left_open(task)


def test_a_gpu_of_a_few_numbers_is_less_sure() -> None:
    known_one = predict("resnet18", on="rtx-4070", batch=32, advice=False)[0].time_interval_s
    described = predict("resnet18", on="memory=12GB,bandwidth=504GB/s,fp32=29.1T", batch=32, advice=False)[0]
    told = described.time_interval_s
    assert told.high / told.low > 1.2 * known_one.high / known_one.low


def test_what_comes_along_is_read_once_however_many_devices_are_asked_for(monkeypatch, tmp_path) -> None:
    """And wherever the user's own calibrations would lie: a model remembers what it has found."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "one"))
    calibration, model = shipped("h200"), predictor(find("h200")).model
    for device in known():
        shipped(device.name)
        shipped(published_name(device.name))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "other"))
    assert shipped("h200") is calibration
    assert predictor(find("h200")).model is model
