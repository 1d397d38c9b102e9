"""Trends: series whose form is known give it back, noise and all; and what the points do not say is not told."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.study.cell import StudyCell, StudyRow
from rooflight.study.fitting import CurveFit, Knee, fit, knee
from rooflight.study.trends import against_batch, fronts, gains, ratios, scaling, trends
from tests.fixtures.paths import DATA

many = settings(max_examples=200, deadline=None, derandomize=True)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)


def noisy(values: list[float], spread: float, seed: int) -> list[float]:
    draw = random.Random(seed)
    return [value * math.exp(draw.gauss(0, spread)) for value in values]


def fitted(points: Sequence[tuple[int, float]]) -> CurveFit:
    found = fit(points)
    assert isinstance(found, CurveFit), found
    return found


# ---------------------------------------------------------------- forms


@many
@given(st.integers(1, 10**15), st.integers(0, 10**12), st.sets(st.integers(1, 4096), min_size=3, max_size=8))
def test_whole_numbers_on_a_line_are_told_to_be_exactly_there(b: int, a: int, batches: set[int]) -> None:
    found = fitted([(x, a + b * x) for x in batches])
    assert (found.exact, found.worst, found.form) == (True, 0.0, "linear" if a else "proportional")
    assert (found.a, found.b) == (a, b)
    largest = max(batches)
    off = fitted([(x, a + b * x + (1 if x == largest else 0)) for x in batches])
    assert not off.exact


@many
@given(
    st.floats(1e-6, 1e3), st.floats(1e-6, 1e3), st.lists(st.sampled_from(BATCHES), min_size=4, max_size=8, unique=True)
)
def test_a_line_without_noise_is_found(a: float, b: float, batches: list[int]) -> None:
    found = fitted([(x, a + b * x) for x in batches])
    assert found.worst < 0.01
    for x in batches:
        assert found.at(x) == pytest.approx(a + b * x, rel=0.01)
    if 0.05 < a / b < 50:
        assert found.form == "linear"
        assert (found.a, found.b) == (pytest.approx(a, rel=1e-3), pytest.approx(b, rel=1e-3))
        assert found.error < 1e-6


def test_the_parameters_of_a_noisy_line_are_near_and_its_error_is_the_noise() -> None:
    a, b = 2e-3, 1e-4  # 2 ms and 0.1 ms a sample: the knee is at 20
    errors, inside, names = [], 0, []
    for seed in range(400):
        points = list(zip(BATCHES, noisy([a + b * x for x in BATCHES], 0.03, seed), strict=True))
        found = fitted(points)
        names.append(found.form)
        if found.form != "linear":
            continue
        errors.append(found.error)
        assert found.a == pytest.approx(a, rel=0.15)
        assert found.b == pytest.approx(b, rel=0.3)
        bend = knee(found, points)
        assert isinstance(bend, Knee)
        assert bend.low <= bend.batch <= bend.high
        inside += bend.low <= a / b <= bend.high
    assert names.count("linear") >= 396
    assert sum(errors) / len(errors) == pytest.approx(0.03, rel=0.15)
    assert inside / len(errors) > 0.92  # 95% is promised


@pytest.mark.parametrize("points", [3, 4, 5])
def test_few_points_make_the_knee_less_certain_not_wrong(points: int) -> None:
    a, b, batches = 1.0, 1 / 16, (1, 8, 64, 256, 512)[:points]
    told = inside = 0
    for seed in range(300):
        series = list(zip(batches, noisy([a + b * x for x in batches], 0.05, seed), strict=True))
        bend = knee(fitted(series), series)
        if isinstance(bend, Knee):
            told += 1
            inside += bend.low <= 16 <= bend.high
    assert told == 0 or inside / told > 0.9
    assert points < 5 or told > 150


@pytest.mark.parametrize("spread", [0.0, 0.01, 0.05])
def test_what_does_not_grow_is_constant_and_has_no_knee(spread: float) -> None:
    forms = []
    for seed in range(200):
        points = list(zip(BATCHES, noisy([3e-4] * len(BATCHES), spread, seed), strict=True))
        found = fitted(points)
        forms.append(found.form)
        if found.form == "constant":
            assert found.a == pytest.approx(3e-4, rel=0.06)
            assert knee(found, points) == "flat up to batch 128: the knee lies beyond"
        else:
            assert not isinstance(knee(found, points), Knee)
    assert forms.count("constant") >= 180


@pytest.mark.parametrize("spread", [0.0, 0.01, 0.05])
def test_what_grows_with_the_batch_alone_is_proportional(spread: float) -> None:
    forms = []
    for seed in range(200):
        points = list(zip(BATCHES, noisy([1e-3 * x for x in BATCHES], spread, seed), strict=True))
        found = fitted(points)
        forms.append(found.form)
        assert not isinstance(knee(found, points), Knee) or found.form == "linear"
    assert forms.count("proportional") >= 180


@pytest.mark.parametrize("power", [0.5, 1.5, 2.0, 2.5])
def test_a_power_law_is_named_where_a_line_is_decidedly_worse(power: float) -> None:
    for seed in range(50):
        points = list(zip(BATCHES, noisy([1e-3 * x**power for x in BATCHES], 0.02, seed), strict=True))
        found = fitted(points)
        assert found.form == "power"
        assert found.power == pytest.approx(power, abs=0.05)
        assert knee(found, points) == "no flat part: it grows as a power of the batch"


def test_a_noisy_line_is_not_called_a_power_law() -> None:
    named = [
        fitted(list(zip(BATCHES, noisy([1 + 0.1 * x for x in BATCHES], 0.05, seed), strict=True))).form
        for seed in range(300)
    ]
    assert named.count("linear") >= 295


def test_three_points_name_no_power_law() -> None:
    assert fitted([(1, 1.0), (8, 64.0), (64, 4096.0)]).form != "power"
    assert fitted([(1, 1.0), (8, 64.0), (64, 4096.0), (128, 16384.0)]).form == "power"


def test_a_host_that_waits_for_nothing_makes_a_flat_part_with_an_edge() -> None:
    for seed in range(100):
        points = list(zip(BATCHES, noisy([max(4e-3, 2.5e-4 * x) for x in BATCHES], 0.01, seed), strict=True))
        found = fitted(points)
        assert found.form == "flat, then proportional"
        bend = knee(found, points)
        assert isinstance(bend, Knee)
        assert bend.batch == pytest.approx(16, rel=0.05)


def test_a_knee_outside_the_points_is_not_told() -> None:
    below = [(x, 1 + 10.0 * x) for x in BATCHES]
    assert knee(fitted(below), below) == "the knee lies below batch 1"
    beyond = [(x, 1000 + 1.0 * x) for x in BATCHES]
    assert knee(fitted(beyond), beyond) == "flat part up to batch 128: the knee lies beyond"


def test_what_no_form_describes_has_no_knee() -> None:
    points = [(1, 1.0), (2, 9.0), (4, 1.5), (8, 11.0), (16, 1.0)]
    found = fitted(points)
    assert not found.holds
    assert str(knee(found, points)).startswith("no form fits well enough")


@pytest.mark.parametrize(
    ("points", "why"),
    [
        ([(1, 2.0)], "1 batch size: a form needs 3"),
        ([(1, 2.0), (2, 3.0)], "2 batch sizes: a form needs 3"),
        ([(1, 2.0), (1, 2.0), (1, 2.0)], "1 batch size: a form needs 3"),
        ([(1, 0.0), (2, 1.0), (3, 2.0)], "values that are not above 0"),
        ([(1, 1.0), (2, math.inf), (3, 2.0)], "values that are not above 0"),
    ],
)
def test_too_little_gives_a_reason(points: list[tuple[int, float]], why: str) -> None:
    assert fit(points) == why


@many
@given(
    st.lists(
        st.tuples(st.integers(1, 10**6), st.floats(1e-12, 1e15)),
        min_size=3,
        max_size=8,
        unique_by=lambda point: point[0],
    )
)
def test_any_points_have_a_form_and_an_honest_error(points: list[tuple[int, float]]) -> None:
    found = fitted(points)
    off = [abs(found.at(x) / y - 1) for x, y in points]
    assert found.worst == pytest.approx(max(off), rel=1e-6, abs=1e-9)
    knee(found, points)


# ---------------------------------------------------------------- over rows


def made(model: str, batch: int, /, *, on: str | None = "a100", gpus: int = 1, dtype: Any = "fp32", parallel: str | None = None,
         fits: str | None = None, **values: float) -> StudyRow:  # fmt: skip
    named = {f"{name.rpartition('_')[0]}.{name.rpartition('_')[2]}": value for name, value in values.items()}
    cell = StudyCell(model=model, batch=batch, on=on, gpus=gpus, dtype=dtype, parallel=parallel)
    return StudyRow(cell=cell, state="done", values=named, facts={} if fits is None else {"fits": fits})


def test_each_series_is_of_one_side_and_one_of_everything_else() -> None:
    rows = [made(model, x, on=on, flops_estimated=x * scale, time_predicted=(1e-3 + 1e-4 * x) * scale)
            for model, scale in (("a", 1), ("b", 3)) for on in ("a100", "v100") for x in BATCHES]  # fmt: skip
    found = against_batch(rows)
    times = [one for one in found if one.quantity == "time"]
    assert [one.at for one in times] == [{"model": m, "on": on} for m in "ab" for on in ("a100", "v100")]
    assert all(one.knee is not None and one.knee.batch == pytest.approx(10) for one in times)
    # An estimate is of no device: one series a model.
    flops = [one for one in found if one.quantity == "flops"]
    assert [(one.at, one.fit.b if one.fit else None) for one in flops] == [({"model": "a"}, 1), ({"model": "b"}, 3)]
    assert all(one.fit is not None and one.fit.exact for one in flops)
    assert len(found) == 6


def test_throughput_says_when_more_gains_nothing() -> None:
    rates = {1: 100.0, 8: 700.0, 64: 960.0, 256: 1000.0}
    gain = gains([made("a", x, throughput_predicted=rate) for x, rate in rates.items()])[0]
    assert (gain.best, gain.enough) == (256, 64)
    rising = gains([made("a", x, throughput_predicted=float(x)) for x in BATCHES])[0]
    assert (rising.enough, rising.no_enough) == (None, "still gaining at 128")
    flat = gains([made("a", x, throughput_predicted=50.0) for x in BATCHES])[0]
    assert flat.enough == 1
    assert gains([made("a", 1, throughput_predicted=50.0)]) == []


def test_the_largest_batch_that_fits_is_told_where_a_prediction_says_so() -> None:
    rows = [made("a", x, throughput_predicted=float(x), fits="yes" if x <= 32 else "no") for x in BATCHES]
    assert (gains(rows)[0].fits, gains(rows)[0].fits_not) == (32, 64)
    assert (gains(rows)[0].best, gains(rows)[0].no_enough) == (32, "still gaining at 32")
    unknown = gains([made("a", x, throughput_predicted=float(x)) for x in BATCHES])[0]
    assert (unknown.fits, unknown.fits_not) == (None, None)


def test_time_against_space_keeps_what_nothing_beats() -> None:
    rows = [made("a", 1, time_predicted=1.0, memory_predicted=10.0), made("a", 2, time_predicted=1.0, memory_predicted=20.0),
            made("a", 4, time_predicted=2.4, memory_predicted=40.0),  # slower a sample than batch 2, and larger
            made("a", 4, dtype="bf16", time_predicted=1.0, memory_predicted=20.0)]  # fmt: skip
    front = fronts(rows)[0]
    assert [(point.at["batch"], point.at["dtype"], point.best) for point in front.points] == [
        (1, "fp32", True), (4, "bf16", True), (2, "fp32", False), (4, "fp32", False)]  # fmt: skip


def test_speed_up_and_efficiency_are_against_one_gpu() -> None:
    rows = [made("a", 8, throughput_predicted=100.0), made("a", 8, gpus=2, parallel="ddp", throughput_predicted=190.0),
            made("a", 8, gpus=4, parallel="ddp", throughput_predicted=360.0), made("b", 8, throughput_predicted=1.0)]  # fmt: skip
    (found,) = scaling(rows)
    assert [(point.gpus, point.speedup, point.efficiency) for point in found.points] == [
        (1, 1, 1), (2, pytest.approx(1.9), pytest.approx(0.95)), (4, pytest.approx(3.6), pytest.approx(0.9))]  # fmt: skip
    assert found.at == {"model": "a"}
    without_one = scaling([row for row in rows if row.cell.gpus > 1])
    assert [point.efficiency for point in without_one[0].points] == [1, pytest.approx(360 / 190 / 2)]


def test_devices_and_precisions_stand_beside_each_other_on_one_side() -> None:
    rows = [made("a", 8, on="a100", time_predicted=1.0, time_measured=9.0), made("a", 8, on="v100", time_predicted=3.0),
            made("a", 8, on="a100", dtype="bf16", time_predicted=0.5)]  # fmt: skip
    (devices,) = ratios(rows, "on")
    assert (devices.side, devices.ratios) == ("predicted", {"a100": 1, "v100": 3})
    (precisions,) = ratios(rows, "dtype")
    assert precisions.ratios == {"fp32": 1, "bf16": 0.5}
    assert ratios(rows, "batch") == []


def test_one_batch_makes_no_trend() -> None:
    found = trends(
        [made("a", 1, time_predicted=1.0, throughput_predicted=1.0, memory_predicted=1.0, flops_estimated=1)]
    )
    assert (found.against_batch, found.throughput, found.fronts, found.scaling, found.ratios) == ((), (), (), (), ())


def h200_rows() -> list[StudyRow]:
    lines = (DATA / "h200_open.jsonl").read_text().splitlines()
    rows = []
    for line in lines:
        one = json.loads(line)
        if "batch" in one and one["mode"] == "infer":
            values = {"flops.estimated": one["torch_flops"], "time.measured": one["seconds"], "gpu_time.measured": one["gpu_seconds"],
                      "memory.measured": one["peak_allocated"], "throughput.measured": one["batch"] / one["seconds"]}  # fmt: skip
            rows.append(
                StudyRow(
                    cell=StudyCell(model=one["model"], batch=one["batch"], dtype=one["dtype"], on="here"),
                    state="done",
                    values=values,
                )
            )
    return rows


def test_real_series_of_an_h200() -> None:
    rows = h200_rows()
    found = trends(rows)
    series = len({(row.cell.model, row.cell.dtype) for row in rows})
    assert series >= 20
    flops = [one for one in found.against_batch if one.quantity == "flops"]
    # FLOPs of inference grow with the batch and nothing else: exactly.
    assert len(flops) == series
    assert all(one.fit is not None and one.fit.exact and one.fit.form == "proportional" for one in flops)
    memory = [one for one in found.against_batch if one.quantity == "memory"]
    assert sum(one.fit is not None and one.fit.holds for one in memory) >= 0.9 * series
    for one in found.against_batch:
        assert (one.fit is None) != (one.no_fit == "")
        if one.knee is not None:
            assert 1 <= one.knee.batch <= 64
    # Three batches of wide-apart sizes: a GPU gains up to 64 for most models, and the table says so.
    assert len(found.throughput) == series
    assert any(gain.enough is None for gain in found.throughput)
    precisions = [one for one in found.ratios if one.axis == "dtype" and one.quantity == "time"]
    assert len(precisions) == len(rows) // 2
