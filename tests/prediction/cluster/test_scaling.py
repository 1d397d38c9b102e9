"""Weak and strong scaling, and the published runs on many GPUs."""

from __future__ import annotations

import json
from dataclasses import replace

import predict_parallel as script
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.errors import BadInput
from rooflight.hardware.devices import find
from rooflight.parallel.fabric import Fabric
from rooflight.parallel.layout import DataMode, Layout, ParallelOptions
from rooflight.prediction.cluster.scaling import Kind, ScalingCurve, curve, paleo_times
from rooflight.prediction.cluster.step import TimedStep
from tests.fixtures.notes import note_texts
from tests.fixtures.parallel_steps import GB, chain_step, device, plain_fabric, tiny_step
from tests.fixtures.paths import DATA

FREE = plain_fabric().without_cost()
PUBLISHED = json.loads((DATA / "published_parallel.json").read_text())


def step_at(batch: int) -> TimedStep:
    return chain_step(4, forward_s=0.001 * batch, backward_s=0.002 * batch, update_s=0.0, batch=batch)


def scaled(
    kind: Kind, fabric: Fabric = FREE, *, batch: int = 64, layout: Layout | None = None, **options
) -> ScalingCurve:
    return curve(
        kind,
        step_at,
        lambda count: replace(layout or Layout(), data=count),
        lambda _: fabric,
        batch=batch,
        device=device(),
        **options,
    )


def test_a_curve_doubles_up_to_thousands_of_gpus() -> None:
    result = scaled("weak")
    assert [point.gpus for point in result.points] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
    assert [step.layout.nodes for step in result.steps[-2:]] == [256, 512]


def test_weak_scaling_over_free_links_is_perfect() -> None:
    for point in scaled("weak").points:
        assert (point.speedup, point.efficiency) == (pytest.approx(point.gpus), pytest.approx(1))
        assert point.global_batch == 64 * point.gpus


def test_strong_scaling_over_free_links_is_perfect_where_work_is_proportional() -> None:
    result = scaled("strong")
    assert [point.gpus for point in result.points] == [1, 2, 4, 8, 16, 32, 64]
    for point in result.points:
        assert point.speedup == pytest.approx(point.gpus)
        assert (point.global_batch, point.batch) == (64, 64 // point.gpus)
    assert note_texts(result.notes) == (
        "the curve ends where a global batch of 64 has no sample left for another replica",
    )


def test_a_curve_that_leaves_sizes_out_says_the_one_that_is_too_many() -> None:
    result = scaled("strong", batch=32, replicas=[1, 16, 64])
    assert [point.gpus for point in result.points] == [1, 16]
    assert note_texts(result.notes) == (
        "the curve ends before 64 replicas, for which a global batch of 32 has too few samples",
    )


def test_a_batch_that_does_not_divide_is_rounded_up_and_said_so() -> None:
    result = scaled("strong", batch=6, replicas=[1, 4])
    assert result.points[1].batch == 2
    assert note_texts(result.notes) == ("4 replicas do not divide 6: each takes 2, as many as the fullest",)


def test_micro_batches_are_those_of_the_run_where_the_batch_has_as_many() -> None:
    result = scaled("strong", batch=16, options=ParallelOptions(micro_batches=4))
    assert [(step.batch, step.micro_batches) for step in result.steps] == [
        (16, 4), (8, 4), (4, 4), (2, 1), (1, 1),
    ]  # fmt: skip
    said = (
        "a batch of {} cannot be cut into 4 micro-batches: that row of the strong curve is as without --micro-batches"
    )
    assert note_texts(result.notes)[:2] == (said.format(2), said.format(1))


def test_real_links_cost_efficiency() -> None:
    efficiencies = [point.efficiency for point in scaled("weak", plain_fabric()).points]
    assert efficiencies[0] == 1
    assert all(0 < later <= 1 for later in efficiencies)
    assert scaled("weak", plain_fabric(10 * GB, GB)).points[-1].efficiency < efficiencies[-1]


@settings(deadline=None)
@given(st.sampled_from(["weak", "strong"]), st.floats(0.01, 1000), st.sampled_from(["ddp", "zero1", "fsdp"]))
def test_no_curve_is_better_than_perfect(kind: Kind, speed: float, mode: DataMode) -> None:
    result = scaled(kind, plain_fabric(speed * GB, speed / 10 * GB), layout=Layout(mode=mode), replicas=[1, 2, 8, 64])
    for point, step in zip(result.points, result.steps, strict=True):
        assert 0 < point.efficiency <= 1 + 1e-9
        assert step.parameters == 4 * 25 * 2**20  # those of the model, however many replicas


def test_a_model_over_several_gpus_starts_at_one_replica() -> None:
    points = curve(
        "weak", tiny_step, lambda count: Layout(2, 2, count), lambda _: plain_fabric(), batch=8, device=device()
    ).points
    assert [point.gpus for point in points][:3] == [4, 8, 16]
    assert points[-1].gpus == 4096
    assert points[0].efficiency == 1


def test_each_batch_is_asked_for_once() -> None:
    asked: list[int] = []

    def counting(batch: int) -> TimedStep:
        asked.append(batch)
        return step_at(batch)

    curve("weak", counting, lambda count: Layout(data=count), lambda _: FREE, batch=8, device=device())
    assert asked == [8]


def test_paleo_stands_beside() -> None:
    # 400 MiB of gradients over 100 GB/s: t = 4.19 ms; the step 64 x 12 ms.
    t, step = 400 * 2**20 / (100 * GB), 64 * 0.012
    result = scaled("weak", plain_fabric())
    point = result.points[2]
    assert paleo_times(result.steps[2], plain_fabric()) == {
        "one-to-all": pytest.approx(step + 6 * t),
        "tree": pytest.approx(step + 4 * t),
        "butterfly": pytest.approx(step + 2 * t),
    }
    assert point.paleo_speedup["tree"] == pytest.approx(4 * step / (step + 4 * t))
    assert point.speedup > point.paleo_speedup["butterfly"]


def test_between_nodes_paleos_link_is_the_network() -> None:
    t = 400 * 2**20 / (10 * GB)
    times = paleo_times(scaled("weak", plain_fabric()).steps[4], plain_fabric())
    assert times["butterfly"] == pytest.approx(64 * 0.012 + 4 * t)


def test_no_replicas_are_refused() -> None:
    with pytest.raises(BadInput, match="no runs of at least one replica"):
        scaled("weak", replicas=[])


# --- published runs ---


def test_every_published_row_has_a_source_and_a_known_device() -> None:
    assert len(PUBLISHED["steps"]) == 19
    for row in PUBLISHED["steps"]:
        assert PUBLISHED["sources"][row["set"]]
        assert row["model"] in PUBLISHED["models"]
        assert find(row["device"]).links_bytes_per_s["nvlink"].value > 0
        assert row["time_s"] > 0


def test_megatrons_times_agree_with_the_utilisation_it_publishes() -> None:
    """72 B s l h^2 (1 + s/6h + V/16lh) FLOP an iteration (Narayanan et al. 2021), over GPUs, time and 312 TFLOP/s."""
    published = {"GPT 22B": 0.415, "GPT 175B": 0.514, "GPT 530B": 0.560, "GPT 1T": 0.563}
    for row in PUBLISHED["steps"]:
        if row.get("recompute") == "selective":
            shape = PUBLISHED["models"][row["model"]]
            s, l, h, V = (shape[key] for key in ("sequence", "layers", "hidden", "vocabulary"))  # noqa: E741
            flops = 72 * row["global_batch"] * s * l * h**2 * (1 + s / (6 * h) + V / (16 * l * h))
            gpus = row["tensor"] * row["pipeline"] * row["data"]
            assert flops / (gpus * row["time_s"] * 312e12) == pytest.approx(published[row["model"]], abs=0.003)


def test_paleos_firecaffe_figures_come_out() -> None:
    """PALEO's code gives 25x on 32 GPUs and 52x on 128; its tree over our count of the same network."""
    after, beside = script.firecaffe()
    for case, point in zip(PUBLISHED["firecaffe"]["speedups"], after.points[1:], strict=True):
        assert point.paleo_speedup["tree"] == pytest.approx(case["paleo"], rel=0.05)
    assert all(a.speedup <= b.speedup for a, b in zip(after.points, beside.points, strict=True))


def test_from_one_gpu_as_measured_four_come_out() -> None:
    """What is left is the error of the parallel part."""
    rows = [row for row in PUBLISHED["steps"] if row.get("one_gpu_s")]
    errors = [run.error(run.from_measured) for run in map(script.run, rows)]
    assert len(errors) == 4
    assert max(abs(error) for error in errors) < 0.12


def test_a_megatron_run_comes_out() -> None:
    row = next(row for row in PUBLISHED["steps"] if row["model"] == "GPT 22B" and row["recompute"] == "full")
    run = script.run(row)
    assert abs(run.error(run.predicted)) < 0.25
    assert run.predicted.parameters == pytest.approx(22e9, rel=0.01)


def test_options_have_defaults_that_are_torchs() -> None:
    assert ParallelOptions() == ParallelOptions(None, 1, False, "none", True, 2**20, 25 * 2**20)
