"""From A to B by cause: that it adds up, on all pairs of recordings of a model, and numbers worked out by hand."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
from msgspec.structs import replace

import rooflight
from rooflight.analysis import traffic_causes
from rooflight.analysis.cause import Cause, Explained
from rooflight.analysis.comparison import bridge as causes
from rooflight.analysis.comparison.align import align
from rooflight.analysis.comparison.factors import effects
from rooflight.analysis.comparison.fusion import kept_inside
from rooflight.analysis.comparison.matched_work import MatchedWork, SideWork, matched_work
from rooflight.analysis.comparison.memory_bridge import OTHER_TENSORS
from rooflight.analysis.comparison.sides import Comparison
from rooflight.analysis.comparison.work_causes import WorkContext, contributions, other_attention
from rooflight.analysis.device_speed import clock_mhz
from rooflight.files import load
from rooflight.ledger import Header, Kernel, Ledger, Op, Storage, Tensor
from rooflight.metrics import DRAM_BYTES, EXECUTED_FLOPS
from rooflight.recordings import names
from rooflight.reporting.charts.waterfall import waterfall_chart
from rooflight.reporting.sections.bridge_tables import bridge_sentences, signed
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
    """Of bytes more than of the rest: what the same kernel on the same sizes moves otherwise has no evidence, unless
    the played caches differ."""
    for pair in FEW[:3]:
        comparison = by_quantity(rooflight.compare(*map(recorded, pair)))
        for quantity, most in {"FLOPs": 0.01, "DRAM bytes": 0.03, "time": 0.01}.items():
            one = comparison[quantity]
            assert abs(one.unexplained) < most * max(one.a, one.b), (pair, quantity)


def test_what_caches_do_is_computed_never_what_is_left():
    for pair in FEW:
        for one in rooflight.compare(*map(recorded, pair)).bridges:
            assert all(cause.how == "computed" for cause in one.causes if cause.name == causes.CACHES), pair


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


def test_what_only_training_keeps_is_not_due_to_the_precision():
    """Parameters double from bf16 to fp32; activations and gradients of inference are none at all."""
    one = by_quantity(rooflight.compare(*map(recorded, ("h200/vgg19-infer-bf16", "h200/vgg19-train-fp32"))))["memory"]
    memory = {cause.name: cause for cause in one.causes}
    parameters = 143_667_240 * 2  # of VGG-19, two bytes more each
    assert memory[causes.PRECISION].amount == pytest.approx(parameters, rel=0.03)  # and the images
    assert memory[OTHER_TENSORS].amount > 2e9
    assert memory[OTHER_TENSORS].evidence.startswith("activations at the peak: 0 B → ")
    assert memory[OTHER_TENSORS].evidence.endswith(f"(the largest of {memory[OTHER_TENSORS].ops} parts)")


def test_attention_of_another_model_is_no_other_algorithm():
    for one in rooflight.compare(*map(recorded, ("h200/gpt2-infer-bf16", "h200/vgg19-infer-bf16"))).bridges:
        assert causes.ALGORITHM not in {cause.name for cause in one.causes}, one.quantity


def attending(name: str, module: str, attention: int = 0) -> Op:
    return Op(index=0, phase="forward", module=module, call=0, name=name, ordinal=0, args={}, attention=attention)


def test_attention_in_another_way():
    """As one op on one side and as products on the other, in one module; elsewhere, other ops."""
    whole = attending("aten::_scaled_dot_product_flash_attention", "h.0.attn")
    product, softmax = attending("aten::bmm", "h.0.attn", 1), attending("aten::_softmax", "h.0.attn", 1)
    assert other_attention([whole], [product, softmax]) == {("forward", "h.0.attn")}
    assert (
        other_attention([whole], [attending("aten::bmm", "h.0.attn"), attending("aten::bmm", "h.1.attn", 1)]) == set()
    )


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


def test_what_sizes_and_types_change_together_is_told_apart():
    """The evidence has the whole change of the tensors, and how much of it is due to this cause."""
    larger = rooflight.estimate("mnist-cnn", batch=128, dtype="bf16")
    one = by_quantity(rooflight.compare(recorded("h200/mnist-cnn-infer-tf32"), larger, on="h200"))["memory"]
    memory = {cause.name: cause for cause in one.causes}
    assert memory[causes.SIZES].amount > 0 > memory[causes.PRECISION].amount
    assert " of it by batch and sizes" in memory[causes.SIZES].evidence


def test_another_type_of_an_operand_is_named_where_results_have_the_same():
    """A table of indices in int64, then in int32; the results are bf16 on both sides."""
    a, b = (
        Op(index=0, phase="forward", module="", call=0, name="aten::embedding", ordinal=0,
           args={"indices": Tensor(0, (8,), dtype)}, outputs=(Tensor(1, (8, 4), "bf16"),))
        for dtype in ("int64", "int32")
    )  # fmt: skip
    rows = Explained(a, 96, 1000, ()), Explained(b, 64, 900, ())
    (one,) = one_op(("k", "k"), *rows).causes
    assert (one.name, one.amount) == (causes.PRECISION, -100.0)
    assert one.evidence == "int64 → int32 operands"


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


def test_a_clock_that_fell_while_the_device_waited_is_no_other_clock():
    step = recorded("h200/gpt2-infer-fp32")
    spans = {**step.header.conditions, "sm_clock": "345 to 1980 MHz."}
    waited = changed(step, {"conditions": spans}, kernel_times=1.01)
    time = by_quantity(rooflight.compare(step, waited))["time"]
    assert causes.CLOCK not in {cause.name for cause in time.causes}


@pytest.mark.parametrize(
    ("said", "mhz"),
    [
        ("1980 MHz", 1980),
        ("345 to 1980 MHz", 1980),
        ("1,980 MHz.", 1980),
        ("1980.5 MHz", 1980.5),
        ("", None),
        ("0", None),
    ],
)
def test_the_clock_is_the_highest_that_was_seen(said, mhz):
    assert clock_mhz(replace(HEADER, conditions={"sm_clock": said})) == mhz


def counted_otherwise(ledger: Ledger, names: tuple[str, ...], times: int) -> Ledger:
    """With some counters multiplied: of ops, of the step, of the kernels."""

    def more(row):
        values = {
            name: replace(value, value=value.value * times, low=None, high=None) if name in names else value
            for name, value in row.quantities.items()
        }
        return replace(row, quantities=values)

    return replace(ledger, measurements=tuple(map(more, ledger.measurements)), kernels=tuple(map(more, ledger.kernels)))


@pytest.mark.parametrize(("quantity", "names"), [("DRAM bytes", DRAM_BYTES), ("FLOPs", EXECUTED_FLOPS)])
def test_the_same_kernels_that_count_otherwise_are_unexplained(quantity, names):
    step = recorded("h200/resnet50-infer-bf16")
    one = by_quantity(rooflight.compare(step, counted_otherwise(step, names, 3)))[quantity]
    assert one.b == 3 * one.a and one.causes == () and one.unexplained == 2 * one.a


# --- one op, by hand ---


def one_op(kernels: tuple[str, str], a: Explained, b: Explained) -> causes.Bridge:
    """One op on both sides, in these kernels."""
    of_a, of_b = (
        SideWork((row.op,), {"": row.measured}, (Kernel(name=name, ops=(row.op.index,)),))
        for name, row in zip(kernels, (a, b), strict=True)
    )
    explained = ({a.op.index: a}, {b.op.index: b})
    context = WorkContext("DRAM bytes", lambda work: work.values.get("", 0), (HEADER, HEADER), explained)
    parts = contributions(MatchedWork("same", of_a, of_b), context)
    return causes.bridge("DRAM bytes", "byte", "", (a.measured, b.measured), parts)


def test_the_cache_explains_what_the_played_caches_differ_by():
    """On A 200 of 1,000 bytes are found in the L2, on B none, and 50 of others leave it: 250 more. Measured: 280."""
    op = chain().ops[0]
    a = Explained(op, 1000, 820, (Cause(traffic_causes.HITS, -200.0, "still there"),))
    b = Explained(op, 1000, 1100, (Cause(traffic_causes.EARLIER, 50.0, "left"),))
    one = one_op(("k", "k"), a, b)
    assert [(cause.name, cause.amount, cause.how) for cause in one.causes] == [(causes.CACHES, 250.0, "computed")]
    assert one.unexplained == 30.0


def test_rules_that_do_not_fit_an_op_explain_nothing_of_it():
    op = chain().ops[0]
    a = Explained(op, 1000, 820, (Cause(traffic_causes.HITS, -200.0, "still there"),))
    one = one_op(("k", "k"), a, Explained(op, 1000, 3000, (Cause(traffic_causes.EARLIER, 50.0, "left"),)))
    assert (one.causes, one.unexplained) == ((), 2180.0)


def test_other_kernels_have_what_their_causes_leave():
    """Of 280 bytes more the played caches tell 250: the other 30 are the other kernel's, as observed."""
    op = chain().ops[0]
    a = Explained(op, 1000, 820, (Cause(traffic_causes.HITS, -200.0, "still there"),))
    b = Explained(op, 1000, 1100, (Cause(traffic_causes.EARLIER, 50.0, "left"),))
    one = one_op(("k", "other"), a, b)
    amounts = {cause.name: (cause.amount, cause.how) for cause in one.causes}
    assert amounts == {causes.CACHES: (250.0, "computed"), causes.KERNELS: (30.0, "observed")}
    assert one.unexplained == 0.0


# --- on a CPU, and how it is written ---


def test_bytes_that_nothing_counted_are_not_called_those_of_dram():
    folder = Path(__file__).parents[1] / "data" / "cpu_versions"
    comparison = rooflight.compare(*(folder / f"resnet18-{step}-torch-2.13.json.gz" for step in ("infer", "train")))
    one = by_quantity(comparison)
    assert "DRAM bytes" not in one and one["bytes by formula"].is_by_formula
    assert waterfall_chart(comparison) is not None


def test_the_times_of_two_busy_machines_are_said_to_be_unreliable():
    folder = Path(__file__).parents[1] / "data" / "cpu_versions"
    comparison = rooflight.compare(*(folder / f"resnet18-train-torch-2.{minor}.json.gz" for minor in (12, 13)))
    (line,) = (line for line in bridge_sentences(comparison) if line.startswith("time "))
    assert "TIMES UNRELIABLE in A and B" in line


def test_what_rounding_leaves_is_written_as_nought():
    one = causes.bridge("time", "second", "wall time", (0.01, 0.02), [causes.Contribution(causes.KERNELS, 0.01)])
    assert signed(one, -5e-13) == signed(one, 5e-11) == "0 s" and signed(one, 5e-9) == "+5.00 ns"


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
