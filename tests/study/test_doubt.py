"""What predictions leave undecided: intervals that overlap, errors that steps share. Numbers are worked out by hand."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import rooflight
from rooflight.prediction.checked_steps import CheckedStep, shipped_steps
from rooflight.prediction.deviations import ratio_noise
from rooflight.reporting.sections.study_claims import counted, held_in, open_table, telling
from rooflight.study import values
from rooflight.study.cell import StudyCell, StudyRow
from rooflight.study.hypotheses import JudgedHypothesis, claims
from rooflight.study.hypotheses.doubt import RowErrors, Turned, farthest

many = settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
Ends = tuple[float, float, float]
ERRORS = RowErrors()


def row(time: Ends, *, on: str = "a100-sxm-40", tier: str = "published", bound: str = "compute", measured: float | None = None,
        gpu: Ends | None = None, host: Ends | None = None, **cell: object) -> StudyRow:  # fmt: skip
    """A predicted cell: a time and its interval in milliseconds, and those of its two clocks."""
    cell = {"model": "resnet18", **cell}
    named = {"time": time, "gpu_busy": gpu or time, "host": host}
    numbers: dict[str, int | float] = {}
    for name, ends in named.items():
        if ends is not None:
            value, low, high = (1e-3 * end for end in ends)
            named_value = "host_time" if name == "host" else name
            numbers |= {f"{named_value}.predicted": value}
            if name != "gpu_busy" or gpu is not None:
                numbers |= {f"{name}_low.predicted": low, f"{name}_high.predicted": high}
    made = StudyCell(on=on, **cell)  # type: ignore[arg-type]
    numbers["throughput.predicted"] = made.batch / numbers["time.predicted"]
    if measured is not None:
        numbers["time.measured"] = 1e-3 * measured
    facts = {"tier": tier, "bound.predicted": bound}
    return StudyRow(cell=made, state="done", values=numbers, facts=facts)


def judged(claim: str, *rows: StudyRow) -> JudgedHypothesis:
    return claims([claim], rows)[0]


# ---------------------------------------------------------------- one value, two devices


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        ("time < 13 ms", "held"), ("time < 11 ms", "undecided"), ("time < 9 ms", "undecided"), ("time < 7 ms", "refuted"),
        ("time > 7 ms", "held"), ("time >= 9 ms", "undecided"), ("time > 13 ms", "refuted"),
        ("time ~ 10 ms within 30%", "held"), ("time ~ 10 ms within 5%", "undecided"),
        ("time ~ 12 ms within 5%", "undecided"), ("time ~ 20 ms within 5%", "refuted"),
        ("time = 11 ms", "undecided"), ("time = 13 ms", "refuted"), ("time != 13 ms", "held"), ("time != 11 ms", "undecided"),
        ("not time < 11 ms", "undecided"), ("not time < 13 ms", "refuted"),
        # 1 sample by 8 to 12.5 ms is 80 to 125 a second.
        ("throughput > 79 /s", "held"), ("throughput > 90 /s", "undecided"), ("throughput > 126 /s", "refuted"),
        # What is decided decides.
        ("time < 11 ms and time < 7 ms", "refuted"), ("time < 11 ms or time < 13 ms", "held"),
        ("time < 11 ms or time < 7 ms", "undecided"), ("time < 11 ms and time < 13 ms", "undecided"),
    ],
)  # fmt: skip
def test_a_number_inside_the_interval_is_not_decided(claim: str, verdict: str) -> None:
    assert judged(claim, row((10, 8, 12.5))).verdict == verdict


def test_intervals_of_two_devices_that_overlap_leave_it_open():
    slow, fast = row((12, 10, 14.4), on="v100-sxm2-16"), row((10, 8, 12.5))
    found = judged("time(on=a100-sxm-40) < time(on=v100-sxm2-16)", slow, fast)
    assert (found.verdict, found.held, found.undecided, found.counter_examples) == ("undecided", 0, 1, ())
    (point,) = found.points
    assert point.outcome == "undecided" and point.telling.held
    assert point.telling.ratio_low == pytest.approx(8 / 14.4)
    assert point.telling.ratio_high == pytest.approx(12.5 / 10)
    assert telling(found)[0].full == "10.0 ms may not be < 12.0 ms (0.83×, 90%: 0.56× to 1.25×)"
    apart = row((16, 12.6, 20), on="v100-sxm2-16")
    assert judged("time(on=a100-sxm-40) < time(on=v100-sxm2-16)", apart, fast).verdict == "held"
    assert judged("time(on=a100-sxm-40) >= time(on=v100-sxm2-16)", apart, fast).verdict == "refuted"


def test_a_measurement_has_no_interval_and_is_held_against_a_prediction_that_has():
    found = row((10, 8, 12.5), measured=12)
    assert judged("time.measured > time.predicted", found).verdict == "undecided"
    assert judged("time.measured < 1.6 * time.predicted", found).verdict == "held"
    assert judged("time < 12.1 ms", found).verdict == "held"  # the measured one


def test_rows_of_earlier_versions_are_judged_as_before():
    kept = {"time.predicted": 0.010, "gpu_busy.predicted": 0.010}
    old = StudyRow(cell=StudyCell(model="resnet18", on="h200"), state="done", values=kept)
    assert judged("time < 11 ms", old).verdict == "held"
    assert judged("time < 9 ms", old).verdict == "refuted"


# ---------------------------------------------------------------- errors that steps share


def test_one_model_at_two_batches_shares_all_but_the_noise_of_a_ratio():
    """Calibrated: 1.645 * 5% either way, whatever the intervals are."""
    base, nearer, farther = (row((ms, ms / 1.5, ms * 1.5), batch=batch, tier="calibrated", on="h200")
                             for ms, batch in ((10, 1), (10.5, 2), (11.2, 4)))  # fmt: skip
    assert judged("time(batch=2) > time(batch=1)", base, nearer).verdict == "undecided"
    assert judged("time(batch=4) > time(batch=1)", base, farther).verdict == "held"
    (point,) = judged("time(batch=2) > time(batch=1)", base, nearer).points
    assert point.telling.ratio_high == pytest.approx(1.05 * math.exp(1.645 * 0.05))
    assert point.telling.ratio_low == pytest.approx(1.05 * math.exp(-1.645 * 0.05))
    # Carried over from another device: twice as much, and 11.2 by 10 is open too.
    moved = [row((ms, ms / 1.5, ms * 1.5), batch=b) for ms, b in ((10, 1), (11.2, 4))]
    assert judged("time(batch=4) > time(batch=1)", *moved).verdict == "undecided"
    # The absolute time is as uncertain as its interval says.
    assert judged("time(batch=4) < 16 ms", *moved).verdict == "undecided"


def test_of_two_models_on_one_gpu_the_ratio_is_as_uncertain_as_one_of_them():
    small, large = row((10, 10 / 1.4, 14)), row((25, 25 / 1.4, 35), model="resnet50")
    found = judged("time(resnet50) / time(resnet18) > 1.8", small, large)
    assert found.verdict == "undecided"
    assert found.points[0].telling.ratio_low == pytest.approx(2.5 / 1.4 / 1.8)
    assert judged("time(resnet50) / time(resnet18) > 1.7", small, large).verdict == "held"


def test_the_same_step_on_two_gpus_shares_all_but_the_noise_of_a_ratio():
    """What GPUs tell each other is predicted too: 1.645 * 10% either way, as of two batches of one model."""
    one = row((10, 10 / 1.4, 14), batch=64)
    two = row((10.1, 10.1 / 1.4, 14.14), batch=64, gpus=2)
    found = judged("time(gpus=2) < 1.05 * time(gpus=1)", one, two)
    assert found.verdict == "undecided"
    high = found.points[0].telling.ratio_high
    assert high == pytest.approx(1.01 / 1.05 * math.exp(ratio_noise(looks_up=False)))
    assert judged("time(gpus=2) < 1.25 * time(gpus=1)", one, two).verdict == "held"
    assert judged("time(gpus=2) < 0.8 * time(gpus=1)", one, two).verdict == "refuted"
    # The same cell by its total batch is the same step.
    by_total = row((10.1, 10.1 / 1.4, 14.14), batch=64, gpus=2, total_batch=128)
    assert set(ERRORS.sources("time", by_total)) == set(ERRORS.sources("time", two))


def test_two_gpus_that_wait_share_their_host():
    """10 ms of a host that may be anything from 4 to 25, on one GPU and on two, which keeps no interval of its host: the
    ratio is not off by 6 times, as that of two hosts is, but by what a timed host is."""
    one = row((10, 4, 25), bound="host", gpu=(2, 1.5, 3), host=(10, 4, 25), batch=2)
    two = row((10, 4, 25), gpu=(2, 1.5, 3), batch=2, gpus=2)
    several = replace(two, facts={"tier": "published"})
    assert judged("time(gpus=2) < 2 * time(gpus=1)", one, several).verdict == "held"
    assert judged("time(gpus=2) < 0.5 * time(gpus=1)", one, several).verdict == "refuted"
    assert judged("time(gpus=2) < 1.01 * time(gpus=1)", one, several).verdict == "undecided"


def test_the_later_of_two_clocks_is_taken():
    """64 images wait for a host that may be 2.5 times as fast; then the GPU, as wrong here as with 512, is the later."""
    host: Ends = (0.44, 0.18, 1.09)
    small = row((0.44, 0.21, 1.09), gpu=(0.29, 0.21, 0.41), host=host, batch=64, bound="host")
    large = row((1.87, 1.34, 2.62), gpu=(1.87, 1.34, 2.62), host=host, batch=512)
    claim = "throughput(batch=512) > throughput(batch=64)"
    # Of the walls alone the intervals overlap: 196 to 382 thousand a second, and 59 to 305.
    found = judged(claim, small, large)
    assert found.verdict == "held"
    # At best for the claim's denial the host takes no time: (1.87 / 512) / (0.29 / 64) of the GPU's, and the noise.
    assert math.exp(ratio_noise(looks_up=False)) < (0.29 / 64) / (1.87 / 512)


@pytest.mark.parametrize(
    ("gpu", "host"),
    [((1.0, 0.7, 1.4), (1.0, 0.7, 1.4)), ((1.0, 0.7, 1.4), (1.01, 0.7, 1.45)), ((1.0, 0.8, 1.25), (0.99, 0.6, 1.5)),
     ((0.9, 0.6, 1.5), (1.0, 0.8, 1.25))],
)  # fmt: skip
def test_no_end_of_the_interval_is_out_of_reach(gpu: Ends, host: Ends) -> None:
    """A step that ends with two clocks can be as early and as late as its interval says."""
    low, high = max(gpu[1], host[1]), max(gpu[2], host[2])
    one = row((max(gpu[0], host[0]), low, high), gpu=gpu, host=host)
    sources = list(dict.fromkeys(ERRORS.sources("time", one)))

    def time_ms(turned: Turned) -> float:
        return 1e3 * ERRORS.shifted("time", one.values["time.predicted"], one, turned)

    assert farthest(time_ms, sources, -1) == pytest.approx(low)
    assert farthest(time_ms, sources, 1) == pytest.approx(high)
    assert judged(f"time < {1.05 * low} ms", one).verdict == "undecided"
    assert judged(f"time < {0.95 * low} ms", one).verdict == "refuted"
    assert judged(f"time > {0.95 * high} ms", one).verdict == "undecided"


def test_what_a_step_waits_for_is_as_uncertain_as_its_clocks():
    """The host is what a step waits for where the GPU is busy for less than 80% of it: here for 1.5 / 3 to 3 / 3."""
    waits = row((3.0, 2.0, 5.0), gpu=(2.0, 1.5, 3.0), host=(3.0, 2.0, 5.0), bound="host")
    for claim in ("bound.predicted = host", "bound = host", "bound = memory", "bound != host"):
        assert judged(claim, waits).verdict == "undecided", claim
    assert telling(judged("bound = host", waits))[0].full == "host may not be = host"
    surely = row((9.0, 6.0, 15.0), gpu=(2.0, 1.5, 3.0), host=(9.0, 6.0, 15.0), bound="host")
    assert judged("bound = host", surely).verdict == "held"
    assert judged("bound = memory", surely).verdict == "refuted"
    works = row((3.0, 2.5, 4.0), gpu=(3.0, 2.5, 4.0), host=(2.4, 2.0, 3.5), bound="memory")
    assert judged("bound = memory", works).verdict == "undecided"  # 2.5 of 3.5 ms
    assert judged("bound = compute", works).verdict == "refuted"
    assert judged("bound = memory", row((3.0, 2.5, 4.0), bound="memory")).verdict == "held"  # no intervals of clocks


def test_the_hosts_time_has_an_interval_too():
    one = row((5.0, 4.0, 7.0), gpu=(1.0, 0.8, 1.3), host=(5.0, 4.0, 7.0), bound="host")
    assert judged("host_time < 6 ms", one).verdict == "undecided"
    assert judged("host_time < 7.1 ms", one).verdict == "held"


def test_hosts_of_two_devices_have_nothing_in_common():
    """Two images wait for hosts that nobody described: which GPU they are on does not matter."""
    old = row((14.0, 5.7, 34.7), on="v100-sxm2-16", gpu=(4.3, 3.1, 5.9), host=(14.0, 5.7, 34.7), bound="host", batch=2)
    new = row((11.7, 4.7, 28.9), gpu=(2.8, 2.0, 4.0), host=(11.7, 4.7, 28.9), bound="host", batch=2)
    claim = "time(on=a100-sxm-40) < time(on=v100-sxm2-16)"
    assert judged(claim, old, new).verdict == "undecided"
    assert judged("gpu_busy(on=v100-sxm2-16) < 1.1 * gpu_busy(on=a100-sxm-40)", old, new).verdict == "undecided"
    assert judged("gpu_busy(on=v100-sxm2-16) > 2.0 ms", old, new).verdict == "held"


def test_steps_that_were_timed_say_how_much_errors_share():
    """The ratio of one model at two batches is predicted far better than either time; of two models it is not."""
    single: list[float] = []
    batches: list[float] = []
    models: list[float] = []
    groups: dict[tuple[str, str], list[CheckedStep]] = defaultdict(list)
    for one in shipped_steps().rows:
        if one.is_step and not one.host_bound and "published" in one.predictions:
            groups[one.device, one.source].append(one)
    for group in groups.values():
        off = [math.log(one.predictions["published"][0] / one.published_s) for one in group]
        single += map(abs, off[:60])
        for (i, one), (j, other) in itertools.combinations(enumerate(group[:60]), 2):
            if (one.step, one.precision) == (other.step, other.precision):
                same = (one.model, one.size) == (other.model, other.size) and one.batch != other.batch
                (batches if same else models).append(abs(off[i] - off[j]))

    def ninetieth(errors: list[float]) -> float:
        return sorted(errors)[int(0.9 * len(errors))]

    assert len(batches) > 10 and ninetieth(batches) < ratio_noise(looks_up=False)
    assert 0.7 * ninetieth(single) < ninetieth(models) < 1.4 * ninetieth(single)


# ---------------------------------------------------------------- many places


def test_a_claim_over_many_places_counts_each():
    steps = [row((ms, 0.8 * ms, 1.25 * ms), batch=batch) for ms, batch in ((1, 1), (9, 2), (11, 4), (2, 8), (3, 16))]
    found = judged("time < 10 ms", *steps)
    assert (found.verdict, found.held, found.undecided, len(found.points)) == ("undecided", 3, 2, 5)
    assert held_in(found) == "3 of 5, 2 undecided"
    assert [point.outcome for point in found.points] == ["undecided"] * 2 + ["held"] * 3
    assert [line[0] for line in open_table([found]).rows] == [1, 1]
    assert counted([found]) == "1 claim: 1 undecided"
    refuted = judged("time < 10 ms", *steps, row((30, 24, 40), batch=32))
    assert (refuted.verdict, refuted.held, refuted.undecided, len(refuted.counter_examples)) == ("refuted", 3, 2, 1)


# ---------------------------------------------------------------- what always holds

lengths = st.floats(0.1, 1000)
widths = st.floats(1, 4)


@many
@given(a=lengths, b=lengths, wide=widths, wider=widths, same=st.booleans())
def test_wider_intervals_decide_no_more(a: float, b: float, wide: float, wider: float, same: bool) -> None:
    def verdict(width: float) -> str:
        other = {"batch": 2} if same else {"on": "v100-sxm2-16", "batch": 2}
        rows = row((a, a / width, a * width), batch=1), row((b, b / width, b * width), **other)
        left = "time(batch=1)" if same else "time(on=a100-sxm-40, batch=1)"
        right = "time(batch=2)" if same else "time(on=v100-sxm2-16, batch=2)"
        return judged(f"{left} < {right}", *rows).verdict

    if verdict(wide) == "undecided":
        assert verdict(wide * wider) == "undecided"
    if a != b:
        assert verdict(1.0) == ("held" if a < b else "refuted")


@many
@given(value=lengths, low=widths, high=widths, data=st.data())
def test_no_error_leaves_the_interval(value: float, low: float, high: float, data: st.DataObject) -> None:
    one = row((value, value / low, value * high), bound=data.draw(st.sampled_from(["host", "compute"])))
    turned = {source: data.draw(st.sampled_from([-1, 0, 1])) for source in ERRORS.sources("time", one)}
    time_s = one.values["time.predicted"]
    moved = ERRORS.shifted("time", time_s, one, turned)
    assert time_s / low * (1 - 1e-9) <= moved <= time_s * high * (1 + 1e-9)
    for end, ratio in ((-1, 1 / low), (1, high)):
        assert ERRORS.shifted("time", time_s, one, dict.fromkeys(turned, end)) == pytest.approx(ratio * time_s)


clocks = st.tuples(st.floats(0.5, 2), widths, widths)


@settings(many, max_examples=25)
@given(numbers=st.tuples(clocks, clocks, clocks, clocks), other=st.sampled_from(["batch", "on", "model"]))
def test_the_farthest_ratio_is_that_of_all_that_can_be_turned(
    numbers: tuple[Ends, Ends, Ends, Ends], other: str
) -> None:
    """Of two steps, by trying all ends of all sources."""
    ends = [(value, value / low, value * high) for value, low, high in numbers]
    apart: dict[str, object] = {other: {"batch": 2, "on": "v100-sxm2-16", "model": "resnet50"}[other]}
    one, two = (
        row((max(gpu[0], host[0]), max(gpu[1], host[1]), max(gpu[2], host[2])), gpu=gpu, host=host, **more)  # type: ignore[arg-type]
        for gpu, host, more in ((ends[0], ends[1], {}), (ends[2], ends[3], apart))
    )
    sources = list(dict.fromkeys([*ERRORS.sources("time", one), *ERRORS.sources("time", two)]))

    def ratio(turned: Turned) -> float:
        left, right = (ERRORS.shifted("time", each.values["time.predicted"], each, turned) for each in (one, two))
        return left / right

    every = [
        ratio(dict(zip(sources, turned, strict=True))) for turned in itertools.product((-1, 1), repeat=len(sources))
    ]
    assert farthest(ratio, sources, -1) <= min(every) * (1 + 1e-9)
    assert farthest(ratio, sources, 1) >= max(every) * (1 - 1e-9)


def test_a_prediction_keeps_the_intervals_of_both_clocks():
    prediction = rooflight.predict("mnist-cnn", on="v100-sxm2-16", advice=False)[0]
    found, facts = values.predicted(prediction)
    assert found["host_low.predicted"] < found["host_time.predicted"] < found["host_high.predicted"]
    assert found["gpu_busy_low.predicted"] < found["gpu_busy.predicted"] < found["gpu_busy_high.predicted"]
    one = StudyRow(cell=StudyCell(model="mnist-cnn", on="v100-sxm2-16"), state="done", values=found, facts=facts)
    for end, name in ((-1, "time_low"), (1, "time_high")):
        turned = dict.fromkeys(ERRORS.sources("time", one), end)
        assert ERRORS.shifted("time", found["time.predicted"], one, turned) == pytest.approx(
            found[f"{name}.predicted"], rel=1e-6
        )
