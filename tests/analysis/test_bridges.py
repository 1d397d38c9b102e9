"""From A to B by cause: that it adds up, on all pairs of recordings of a model, and numbers worked out by hand."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
from msgspec.structs import replace

import rooflight
from rooflight.analysis.comparison import bridge as causes
from rooflight.analysis.comparison.align import align
from rooflight.analysis.comparison.factors import effects
from rooflight.analysis.comparison.fusion import kept_inside
from rooflight.analysis.comparison.matched_work import matched_work
from rooflight.analysis.comparison.sides import Comparison
from rooflight.files import load
from rooflight.ledger import Header, Kernel, Ledger, Op, Storage, Tensor
from rooflight.recordings import names
from rooflight.summary.measured import Measured

NAMES = [name for name in names() if name.startswith("h200/")]
PAIRS = [
    pair
    for pair in itertools.combinations(NAMES, 2)
    if pair[0].split("-infer")[0].split("-train")[0] == pair[1].split("-infer")[0].split("-train")[0]
]
FEW = [
    ("h200/resnet50-train-fp32", "h200/resnet50-train-fp32-compiled"),
    ("h200/gpt2-infer-bf16", "h200/gpt2-infer-bf16-compiled"),
    ("h200/gpt2-infer-fp32", "h200/gpt2-infer-bf16"),
    ("h200/mnist-cnn-infer-tf32", "h200/mnist-cnn-infer-fp32"),
]


def recorded(name: str) -> Ledger:
    return load(f"recorded:{name}")


def by_quantity(comparison: Comparison) -> dict[str, causes.Bridge]:
    return {one.quantity: one for one in comparison.bridges}


def check_sums(comparison: Comparison) -> None:
    assert {"FLOPs", "DRAM bytes", "time", "memory"} == set(by_quantity(comparison))
    totals = {line.name: line for line in comparison.totals()}
    for one in comparison.bridges:
        whole = math.fsum((one.a, *(cause.amount for cause in one.causes), one.unexplained))
        assert whole == pytest.approx(one.b, rel=1e-12)
        assert all(cause.evidence for cause in one.causes), one.quantity
    time, moved = by_quantity(comparison)["time"], by_quantity(comparison)["DRAM bytes"]
    assert (time.a, time.b) == (totals["wall time"].a, totals["wall time"].b)
    assert moved.a == totals["DRAM read"].a + totals["DRAM written"].a


@pytest.mark.parametrize("pair", FEW)
def test_causes_add_up(pair):
    check_sums(rooflight.compare(*map(recorded, pair)))


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS, ids=" to ".join)
def test_causes_add_up_on_all_pairs(pair):
    there, back = rooflight.compare(*map(recorded, pair)), rooflight.compare(*map(recorded, pair[::-1]))
    check_sums(there)
    for one, other in zip(there.bridges, back.bridges, strict=True):
        assert (one.a, one.b) == (other.b, other.a)
        assert one.unexplained == pytest.approx(-other.unexplained, rel=1e-6, abs=1e-9 * max(one.a, one.b))
        amounts = {cause.name: cause.amount for cause in other.causes}
        for cause in one.causes:
            assert amounts.get(cause.name, 0.0) == pytest.approx(-cause.amount, rel=1e-6, abs=1e-9 * max(one.a, one.b))


def test_the_way_back_is_the_way_with_other_signs():
    a, b = map(recorded, FEW[1])
    there, back = by_quantity(rooflight.compare(a, b)), by_quantity(rooflight.compare(b, a))
    for quantity, one in there.items():
        amounts = {cause.name: cause.amount for cause in back[quantity].causes}
        assert amounts == pytest.approx({cause.name: -cause.amount for cause in one.causes}, rel=1e-9)


def test_a_step_beside_itself_has_no_causes():
    same = recorded("h200/mnist-cnn-train-tf32")
    for one in rooflight.compare(same, same).bridges:
        assert (one.difference, one.causes, one.unexplained) == (0, (), 0.0)


def test_every_measured_value_is_in_one_work():
    a, b = map(recorded, FEW[0])
    sides = Measured(a), Measured(b)
    works = matched_work(*sides, align(a, b))
    for side, name in zip(sides, ("a", "b"), strict=True):
        for quantity in ("kernel_time_s", "dram_bytes_read", "tensor_flops_tf32"):
            in_works = math.fsum(getattr(work, name).values.get(quantity, 0) for work in works)
            assert in_works == pytest.approx(math.fsum(fact.values.get(quantity, 0) for fact in side.facts))


def test_what_nothing_explains_is_little_between_runs():
    for pair in FEW[:3]:
        comparison = by_quantity(rooflight.compare(*map(recorded, pair)))
        for quantity in ("FLOPs", "DRAM bytes", "time"):
            one = comparison[quantity]
            assert abs(one.unexplained) < 0.01 * max(one.a, one.b), (pair, quantity)


def test_eager_to_compiled():
    """The compiler pads GPT-2's vocabulary, so that its head runs in other kernels; activations stay inside kernels."""
    one = by_quantity(rooflight.compare(*map(recorded, FEW[1])))
    time = {cause.name: cause for cause in one["time"].causes}
    assert {causes.KERNELS, causes.LAUNCHES, causes.FUSION} <= {cause.name for cause in one["time"].causes[:3]}
    assert "cutlass" in time[causes.KERNELS].evidence and "→ nvjet" in time[causes.KERNELS].evidence
    assert "244 → 124 kernels" in time[causes.LAUNCHES].evidence
    moved = {cause.name: cause for cause in one["DRAM bytes"].causes}
    assert moved[causes.FUSION].how == "computed" and moved[causes.FUSION].amount < 0
    assert one["time"].largest is time[causes.KERNELS]


def test_two_precisions():
    one = by_quantity(rooflight.compare(*map(recorded, FEW[2])))
    for quantity in ("DRAM bytes", "time", "memory"):
        assert one[quantity].causes[0].name == causes.PRECISION, quantity
    # fp32 attention multiplies every product as three in TF32: bf16 spares two thirds.
    assert one["FLOPs"].causes[0].name == causes.PRECISION


def test_why_a_step_would_be_slower_elsewhere():
    comparison = rooflight.compare(recorded("h200/resnet50-infer-fp32"), on="t4")
    time = by_quantity(comparison)["time"]
    amounts = {cause.name: cause.amount for cause in time.causes}
    assert amounts[causes.BANDWIDTH] > 0 and amounts[causes.PEAK] + amounts.get(causes.PRECISION, 0.0) > 0
    assert {"A": comparison.a.origin, "B": comparison.b.origin} == {"A": "recorded", "B": "predicted"}
    assert abs(time.unexplained) < 0.01 * time.b


def test_another_batch():
    """Useful FLOPs and bytes of activations double with the batch; the predicted side has no counters."""
    measured = recorded("h200/mnist-cnn-infer-tf32")
    one = by_quantity(rooflight.compare(measured, rooflight.estimate("mnist-cnn", batch=128), on="h200"))
    assert set(one) == {"time", "memory"}
    larger = {cause.name: cause.amount for cause in one["memory"].causes}
    assert larger[causes.SIZES] > 0 and causes.PRECISION not in larger


def test_estimates_are_no_runs():
    small, large = (rooflight.estimate("mnist-cnn", batch=batch) for batch in (16, 32))
    assert rooflight.compare(small, large).bridges == []


# --- several things at once ---


def test_effects_of_a_product():
    """2 × 3 → 5 × 7: the first factor is worth 3 × (3 + 7) / 2, the second 4 × (2 + 5) / 2; together 29."""
    values = {False: (2, 3), True: (5, 7)}
    assert effects(lambda mixture: values[mixture[0]][0] * values[mixture[1]][1], 2) == [15.0, 14.0]
    three = effects(lambda mixture: math.prod(2 if on else 1 for on in mixture), 3)
    assert sum(three) == pytest.approx(7) and three[0] == pytest.approx(three[2])


# --- what stays inside a kernel ---

HEADER = Header(rooflight="0", torch="2.13", model="m", step="infer", target="cuda", batch=1, dtype="fp32", math=None)


def chain(*kernels: tuple[int, ...], dies: int | None = 3) -> Ledger:
    """x → a → b → y, each of 256 values of 4 bytes: 1,024 bytes."""
    tensors = [Tensor(storage, (256,), "fp32") for storage in range(4)]
    ops = tuple(
        Op(index=i, phase="forward", module="", call=0, name="aten::relu", ordinal=i, args={"self": tensors[i]},
           outputs=(tensors[i + 1],))
        for i in range(3)
    )  # fmt: skip
    storages = (
        Storage(0, 1024, "input"),
        Storage(1, 1024, "temporary", born=0, dies=2),
        Storage(2, 1024, "temporary", born=1, dies=dies),
        Storage(3, 1024, "output", born=2),
    )
    launched = tuple(Kernel(name=f"k{place}", ops=indices) for place, indices in enumerate(kernels))
    return Ledger(format_version=4, header=HEADER, storages=storages, ops=ops, kernels=launched)


def test_what_fused_kernels_keep_inside():
    assert kept_inside(chain((0,), (1,), (2,))).bytes == 0
    both = kept_inside(chain((0, 1), (2,)))
    assert (both.reads, both.writes, both.unstored) == (1024, 1024, frozenset({1}))
    assert kept_inside(chain((0, 1, 2))).bytes == 4 * 1024


def test_what_outlives_the_step_is_written():
    kept = kept_inside(chain((0, 1, 2), dies=None))
    assert (kept.reads, kept.writes, kept.unstored) == (2048, 1024, frozenset({1}))


# --- one thing changed at a time, on a recording ---


def changed(ledger: Ledger, header: dict | None = None, kernel_times: float = 1.0) -> Ledger:
    """With another header, and all times of kernels multiplied: of ops, of the step, of the kernels themselves."""
    scaled = frozenset({"kernel_time_s", "gpu_busy_s", "wall_time_s"})

    def longer(row):
        values = {
            name: replace(value, value=value.value * kernel_times, low=None, high=None) if name in scaled else value
            for name, value in row.quantities.items()
        }
        return replace(row, quantities=values)

    return replace(
        ledger,
        header=replace(ledger.header, **(header or {})),
        measurements=tuple(map(longer, ledger.measurements)),
        kernels=tuple(replace(kernel, time_s=(kernel.time_s or 0.0) * kernel_times) for kernel in ledger.kernels),
    )


def test_another_clock():
    """At half the clock kernels that wait for the units take twice as long; the others' doubling is unexplained."""
    step = recorded("h200/gpt2-infer-fp32")
    slow = changed(step, {"conditions": {**step.header.conditions, "sm_clock": "990 MHz"}}, kernel_times=2.0)
    comparison = rooflight.compare(step, slow)
    time = by_quantity(comparison)["time"]
    clock = next(cause for cause in time.causes if cause.name == causes.CLOCK)
    assert "1,980 → 990 MHz" in clock.evidence and clock.how == "computed"
    assert 0.5 * time.a < clock.amount < time.a
    host = next(cause for cause in time.causes if cause.name == causes.LAUNCHES)
    assert host.amount == pytest.approx(time.a - comparison.a.step["gpu_busy_s"].value)  # the wall doubled, too
    assert time.unexplained == pytest.approx(time.a - clock.amount - host.amount, rel=0.05)
    assert {cause.name for cause in time.causes} <= {causes.CLOCK, causes.LAUNCHES, causes.OVERLAP}


def test_the_same_kernels_that_take_longer_are_unexplained():
    step = recorded("h200/mnist-cnn-infer-tf32")
    time = by_quantity(rooflight.compare(step, changed(step, kernel_times=1.5)))["time"]
    assert {cause.name for cause in time.causes} <= {causes.LAUNCHES, causes.OVERLAP}
    assert time.unexplained > 0


def test_two_versions_of_torch_on_a_cpu():
    folder = Path(__file__).parents[1] / "data" / "cpu_versions"
    files = [folder / f"resnet18-train-torch-2.{minor}.json.gz" for minor in (12, 13)]
    comparison = rooflight.compare(*files)
    assert [difference.name for difference in comparison.differences()] == ["torch"]
    time = by_quantity(comparison)["time"]
    kernels = next(cause for cause in time.causes if cause.name == causes.KERNELS)
    before, after = kernels.evidence.partition(" (in ")[0].split(" → ")
    assert before.startswith("reorder jit:uni") and after.startswith("reorder brgemm_matmul_copy")
    assert math.fsum((time.a, *(cause.amount for cause in time.causes), time.unexplained)) == pytest.approx(time.b)
