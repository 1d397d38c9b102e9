"""Which way a grouped convolution goes: thresholds found again, doubt said, and better than interpolation alone."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.random import Generator

from rooflight.hardware.devices import find
from rooflight.prediction.calibrated import ways
from rooflight.prediction.calibrated.baseline import baseline_seconds
from rooflight.prediction.calibrated.features import features
from rooflight.prediction.calibrated.interpolation import KrigingField
from rooflight.prediction.calibrated.model import _NOISE, _REACH, _FamilyModel
from rooflight.prediction.calibrated.ways import Ways
from rooflight.prediction.tiers import predictor
from rooflight.step.cache_reuse import Array

FAMILY, PRECISION = "conv-forward", "tf32"
LARGE = 4_000_000
"""Elements from which on the library made up here runs group by group."""


def convolutions(chance: Generator, count: int, window: int = 3) -> Array:
    """Their numbers: 16 to 64 channels a group."""
    groups, width = chance.integers(3, 33, count), 16 * chance.integers(1, 5, count)
    batch, side = chance.integers(1, 65, count), chance.integers(7, 113, count)
    ones = np.ones(count, dtype=np.int64)
    channels, pad = groups * width, ones * (window // 2)
    return np.stack(
        [batch, channels, side, side, channels, window * ones, window * ones, ones, pad, ones, groups, 0 * ones], axis=1
    ).astype(np.float64)


def elements(numbers: Array) -> Array:
    return numbers[:, 0] * numbers[:, 1] * numbers[:, 2] ** 2


def timed(numbers: Array) -> Array:
    """By a library that takes ten times as long where it runs group by group, three kernels each."""
    work = elements(numbers) * numbers[:, 1] / numbers[:, 10]
    slow = elements(numbers) > LARGE
    nanoseconds = 5_000 + work / 50 * np.where(slow, 10, 1)
    return np.column_stack([numbers, nanoseconds, nanoseconds, np.where(slow, 3 * numbers[:, 10], 5)])


@pytest.fixture(scope="module")
def speed():
    return predictor(find("h200")).model.speed


def test_a_threshold_is_found_and_nothing_lies_between_its_sides(speed):
    chance = np.random.default_rng(0)
    points, asked = timed(convolutions(chance, 1500)), timed(convolutions(chance, 400))
    away = np.abs(np.log(elements(asked) / LARGE)) > 0.3
    asked = asked[away]
    found = _FamilyModel(FAMILY, PRECISION, points, speed).times(asked[:, :-3], PRECISION, speed)
    off = np.abs(np.log(found[0] / (1e-9 * asked[:, -3])))
    assert len(off) > 200 and np.quantile(off, 0.95) < 0.4
    grouped = elements(asked) > LARGE
    assert np.median(found[4][grouped] / asked[grouped, 10]) == pytest.approx(3, rel=0.1)
    assert np.median(found[4][~grouped]) == pytest.approx(5, rel=0.1)


def test_next_to_a_threshold_the_interval_holds_both_ways(speed):
    chance = np.random.default_rng(1)
    points, asked = timed(convolutions(chance, 1500)), convolutions(chance, 3000)
    model = _FamilyModel(FAMILY, PRECISION, points, speed)
    distance = np.abs(np.log(elements(asked) / LARGE))
    deviation = model.times(asked, PRECISION, speed)[2]
    assert np.mean(deviation[distance < 0.02]) > 3 * np.mean(deviation[distance > 0.5])


def test_left_out_points_of_the_h200_are_told_better_and_their_intervals_hold(speed):
    rows = predictor(find("h200")).model._family(FAMILY, PRECISION).rows
    grouped = np.flatnonzero(ways._grouped(FAMILY, rows[:, :-3]))
    out = np.random.default_rng(2).choice(grouped, 600, replace=False)
    kept = np.delete(rows, out, axis=0)
    truth = 1e-9 * rows[out, -3]
    found = _FamilyModel(FAMILY, PRECISION, kept, speed).times(rows[out, :-3], PRECISION, speed)
    off = np.log(found[0] / truth)
    base = baseline_seconds(FAMILY, PRECISION, rows[:, :-3], speed)
    placed = features(FAMILY, PRECISION, rows[:, :-3])
    values = np.log(1e-9 * rows[:, -3] / base)
    remain = np.delete(np.arange(len(rows)), out)
    alone = KrigingField(placed[remain], values[remain], _REACH, _NOISE).at(placed[out]).value - values[out]
    assert np.mean(np.abs(off)) < 0.75 * np.mean(np.abs(alone))
    assert np.mean(np.abs(off) > np.log(2)) < 0.6 * np.mean(np.abs(alone) > np.log(2))
    assert 0.8 < np.mean(np.abs(off) < 1.645 * found[2]) < 0.97
    assert found[0].sum() == pytest.approx(truth.sum(), rel=0.15)
    assert (
        base[out] * np.exp(alone + values[out])
    ).sum() < 0.8 * truth.sum()  # what is in between adds up to too little


def test_ways_do_not_depend_on_what_was_asked_before():
    chance = np.random.default_rng(3)
    points, asked = timed(convolutions(chance, 600)), convolutions(chance, 40)
    together = Ways(FAMILY, points).likely(asked)
    one_by_one = Ways(FAMILY, points)
    backwards = np.vstack([one_by_one.likely(asked[place : place + 1]) for place in reversed(range(len(asked)))])[::-1]
    assert together.shape == (40, 2)
    np.testing.assert_array_equal(together, backwards)
    np.testing.assert_allclose(together.sum(1), 1)


def test_what_takes_no_way_is_told_as_if_there_were_none(speed, monkeypatch):
    rows = predictor(find("h200")).model._family(FAMILY, PRECISION).rows
    asked = convolutions(np.random.default_rng(5), 60, window=5)
    asked[:20, 10], asked[20:40, 10] = 1, asked[20:40, 1]  # dense, depthwise, and of a window that no point has
    found = _FamilyModel(FAMILY, PRECISION, rows, speed).times(asked, PRECISION, speed)
    monkeypatch.setattr(ways, "_FEWEST", len(rows))
    none = _FamilyModel(FAMILY, PRECISION, rows, speed)
    assert not none.ways.taken.size
    np.testing.assert_allclose(found, none.times(asked, PRECISION, speed), rtol=1e-12)


def test_where_nothing_tells_the_way_none_is_taken():
    chance = np.random.default_rng(4)
    points = timed(convolutions(chance, 600))
    known = Ways(FAMILY, points)
    assert not known.likely(convolutions(chance, 5, window=1)).any()  # no point has such a window
    dense, depthwise = convolutions(chance, 5), convolutions(chance, 5)
    dense[:, 10], depthwise[:, 10] = 1, depthwise[:, 1]
    assert not known.likely(np.vstack([dense, depthwise])).any()
    assert Ways(FAMILY, points[:100]).likely(convolutions(chance, 5)).shape == (5, 0)  # too few points
    assert Ways("gemm", np.ones((500, 10))).taken.shape == (500, 0)
