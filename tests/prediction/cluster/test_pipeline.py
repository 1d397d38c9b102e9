"""Pipeline stages, micro-batches, the bubble; and all kinds of parallelism together."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rooflight
from rooflight.errors import BadInput
from rooflight.parallel.blocks import model_of
from rooflight.parallel.fabric import Fabric
from rooflight.parallel.layout import Layout, ParallelOptions
from rooflight.prediction.cluster.combined import ParallelStep, predict
from rooflight.prediction.cluster.communication import NOTHING, Transfer
from rooflight.prediction.cluster.pipeline import PipelineStage, _balanced, micro_batches_for, schedule, stages_of
from tests.fixtures.parallel_steps import GB, chain_step, device, plain_fabric, tiny_step, total

FREE = plain_fabric().without_cost()


def run(layout: Layout, fabric: Fabric = FREE, *, batch: int = 8, layers: int = 8, **options) -> ParallelStep:
    def step_at(size: int):
        # A layer's time is that of its samples: 1 ms forward, 2 ms backward each.
        return chain_step(
            layers,
            forward_s=0.001 * size,
            backward_s=0.002 * size,
            update_s=0.008,
            batch=size,
            output_bytes=4000 * size,
        )

    return predict(step_at, layout, fabric, batch=batch, device=device(), options=ParallelOptions(**options))


def stage(forward: float, backward: float = 0.0) -> PipelineStage:
    return PipelineStage((), forward, backward, 0.0, 0.0)


# --- the schedule ---


def test_equal_stages_have_a_bubble_of_p_minus_1_over_m() -> None:
    plan = schedule([stage(1, 2)] * 4, 8, NOTHING)
    assert (plan.time_s, plan.bubble_s) == ((8 + 3) * 3, 3 * 3)
    assert plan.bubble_s / (8 * 3) == (4 - 1) / 8


def test_the_slowest_stage_sets_the_pace() -> None:
    plan = schedule([stage(1, 1), stage(2, 2), stage(1, 2)], 4, NOTHING)
    assert plan.time_s == 4 * 4 + (2 + 3)


def test_interleaving_shortens_the_bubble_and_sends_more() -> None:
    once, thrice = (schedule([stage(1, 2)] * 4, 8, Transfer(0.1, ""), interleave=v) for v in (1, 3))
    assert thrice.bubble_s == once.bubble_s / 3
    assert (once.transfers, thrice.transfers) == (16, 48)
    # There and back: 3 hops of the first micro-batch, one more for each of the other 7; with 3 chunks 11 and 7 x 3.
    assert once.exposed_s == pytest.approx(2 * (3 + 7) * 0.1)
    assert thrice.exposed_s == pytest.approx(2 * (11 + 7 * 3) * 0.1)


def test_one_stage_is_no_pipeline() -> None:
    plan = schedule([stage(1, 2)], 4, Transfer(0.1, ""))
    assert (plan.time_s, plan.bubble_s, plan.exposed_s, plan.transfers) == (12, 0, 0, 0)


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=8), st.integers(1, 64), st.integers(1, 4))
def test_a_pipeline_takes_at_least_its_slowest_stage_and_at_most_everything(
    seconds: list[float], m: int, v: int
) -> None:
    plan = schedule([stage(one, one) for one in seconds], m, NOTHING, interleave=v)
    assert m * 2 * max(seconds) <= plan.time_s * (1 + 1e-9)
    assert plan.time_s <= m * 2 * sum(seconds) * (1 + 1e-9)
    assert plan.bubble_s >= 0


# --- stages ---


def test_blocks_are_shared_out_evenly_and_the_ends_keep_embedding_and_head() -> None:
    step = tiny_step()
    stages = stages_of(step, model_of(step.ledger), 2)
    assert [one.units for one in stages] == [(0, 1, 2), (3, 4, 5, 6)]
    assert sum(one.weight_share for one in stages) == pytest.approx(1)
    assert sum(one.turn_s for one in stages) == pytest.approx(total(step, ["forward", "backward"]))


@given(st.lists(st.floats(0, 10), min_size=1, max_size=9), st.data())
def test_the_cut_is_the_best_there_is(seconds: list[float], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(seconds)))
    groups = _balanced(seconds, count)
    assert [i for group in groups for i in group] == list(range(len(seconds)))
    assert len(groups) == count
    assert all(groups)
    cuts = combinations(range(1, len(seconds)), count - 1)
    best = min(max(sum(seconds[a:b]) for a, b in zip((0, *cut), (*cut, len(seconds)), strict=True)) for cut in cuts)
    assert max(sum(seconds[i] for i in group) for group in groups) == pytest.approx(best)


def test_layers_that_do_not_divide_are_cut_where_the_slowest_stage_is_shortest() -> None:
    step = run(Layout(pipeline=3), layers=8, batch=12, micro_batches=12)
    # Stages of 2, 3 and 3 layers: 6, 9 and 9 ms a micro-batch of one. The first is the last to finish its backward, and
    # has 2/8 of the update to do; the others have done theirs by then.
    assert step.time_s == pytest.approx(12 * 0.009 + 0.009 + 0.006 + 0.008 * 2 / 8)


# --- micro-batches ---


@pytest.mark.parametrize(
    ("batch", "stages", "count"), [(64, 4, 16), (8, 4, 8), (1, 4, 1), (100, 4, 20), (64, 1, 1), (17, 4, 17)]
)
def test_micro_batches_unless_asked(batch: int, stages: int, count: int) -> None:
    assert micro_batches_for(batch, stages, ParallelOptions()) == count


def test_decoding_reads_the_weights_once_a_stage() -> None:
    """32 sequences in 4 stages: 4 micro-batches of 8, where training takes 16 of 2."""
    assert micro_batches_for(32, 4, ParallelOptions(micro_batches_a_stage=1)) == 4
    small = {"n_layer": "4", "n_embd": "64", "n_head": "4"}
    decoded, trained = (
        rooflight.predict("gpt2", on="h200", gpus=4, parallel="pp", batch=32, overrides=small, tier="spec",
                          advice=False, **kind)[0].many for kind in ({"step": "decode", "past": 8}, {"step": "train"})
    )  # fmt: skip
    assert (decoded.micro_batches, trained.micro_batches) == (4, 16)


def test_the_choice_of_micro_batches_is_stated() -> None:
    lines = run(Layout(pipeline=2)).assumptions
    assert (
        "8 micro-batches of 1 (4 a stage where the batch has as many: a choice), one forward one backward (1F1B)"
        in lines
    )
    assert (
        "4 micro-batches of 2, one forward one backward (1F1B)" in run(Layout(pipeline=2), micro_batches=4).assumptions
    )


# --- the whole step ---


def test_one_micro_batch_makes_stages_take_turns() -> None:
    # As one GPU, but for the update, which every stage does for its own part.
    step = run(Layout(pipeline=4), micro_batches=1)
    assert step.time_s == pytest.approx(8 * 8 * 0.003 + 0.008 / 4)
    assert step.bubble_s == pytest.approx(3 / 4 * 8 * 8 * 0.003)


def test_eight_stages_eight_micro_batches() -> None:
    step = run(Layout(pipeline=8), micro_batches=8)
    assert step.time_s == pytest.approx((8 + 7) * 0.003 + 0.001)
    assert (step.bubble_s, step.compute_s) == (pytest.approx(7 * 0.003), pytest.approx(8 * 0.003 + 0.001))


def test_the_slowest_stage_is_the_gpu_that_is_told_of() -> None:
    step = run(Layout(pipeline=3), layers=8, batch=12, micro_batches=12)  # 2, 3 and 3 layers
    assert step.kernel_s == {
        "forward": pytest.approx(12 * 3 * 0.001),
        "backward": pytest.approx(12 * 3 * 0.002),
        "optimizer": pytest.approx(0.008 * 3 / 8),
        "other": 0.0,
    }
    assert (step.host_s, step.host_wait_s) == (0, 0)


def test_a_stage_waits_for_its_host_only_as_long_as_the_host_takes_longer() -> None:
    def at(host_s: float) -> ParallelStep:
        # A layer has 2 ms forward and 2 ms backward, the update takes 4 ms.
        made = chain_step(8, forward_s=0.002, backward_s=0.002, update_s=0.004, host_s=host_s)
        return predict(lambda batch: made, Layout(pipeline=2), FREE, batch=8, device=device())

    assert at(0.001).host_wait_s == 0
    late = at(0.003)
    assert late.host_wait_s == pytest.approx(8 * 8 * 0.001)  # 8 micro-batches of 4 layers there and back, 1 ms each
    assert late.host_s == pytest.approx(8 * 8 * 0.003 + 0.003 / 2)
    assert late.kernel_s == at(0.001).kernel_s


def test_activations_pass_between_stages() -> None:
    step = run(Layout(pipeline=2, gpus_per_node=2), plain_fabric(inside=0.004 * GB), micro_batches=4)
    # 8 kB a micro-batch of two at 4 MB/s: 2 ms; 1 + 3 on the way there and back
    (row,) = step.exchanges
    assert (row.what, row.calls, row.bytes) == ("activations, stage to stage", 8, 8 * 8000)
    assert step.exposed_s == pytest.approx(2 * 4 * 0.002)


def test_a_stage_holds_its_part_of_the_weights() -> None:
    whole, half = run(Layout()), run(Layout(pipeline=2))
    assert half.memory.parameter_bytes == whole.memory.parameter_bytes / 2
    assert half.parameters == whole.parameters


def test_replicas_of_a_pipeline_add_up_each_stages_gradients() -> None:
    layout = Layout(pipeline=2, data=2, gpus_per_node=4)
    fabric = plain_fabric(inside=100 * GB)
    step = run(layout, fabric, micro_batches=8, overlap=False)
    gradients = next(row for row in step.exchanges if row.what == "gradients, all-reduce")
    assert gradients.bytes == 4 * 100 * 2**20  # four of eight layers
    alone = run(Layout(pipeline=2, gpus_per_node=4), fabric, micro_batches=8)
    assert step.time_s - alone.time_s == pytest.approx(gradients.time_s)
    assert run(layout, fabric, micro_batches=8).time_s < step.time_s  # beside the last backward


def test_all_three_together() -> None:
    layout = Layout(2, 2, 2, gpus_per_node=8)
    step = predict(
        lambda batch: tiny_step(batch),
        layout,
        plain_fabric(),
        batch=8,
        device=device(),
        options=ParallelOptions(micro_batches=4),
    )
    assert {row.what for row in step.exchanges} == {
        "activations, summed over tensor ranks",
        "activations, stage to stage",
        "gradients, all-reduce",
    }
    assert step.time_s == pytest.approx(step.compute_s + step.bubble_s + step.exposed_s)
    assert step.exposed_s > 0
    assert (step.global_batch, step.tokens, step.micro_batches) == (16, 8 * 128, 4)
    assert step.throughput == pytest.approx(16 / step.time_s)
    assert step.tokens_per_s == pytest.approx(16 * 128 / step.time_s)
    free = predict(
        lambda batch: tiny_step(batch), layout, FREE, batch=8, device=device(), options=ParallelOptions(micro_batches=4)
    )
    assert free.exposed_s == pytest.approx(0, abs=1e-12)


@settings(deadline=None)
@given(
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4, 64]),
    st.floats(0.1, 1000),
    st.booleans(),
)
def test_every_mixture_adds_up(tensor: int, pipeline: int, data: int, speed: float, overlap: bool) -> None:
    layout = Layout(tensor, pipeline, data, gpus_per_node=8)
    step = predict(
        lambda batch: tiny_step(batch),
        layout,
        plain_fabric(speed * GB, speed / 8 * GB),
        batch=8,
        device=device(),
        options=ParallelOptions(overlap=overlap),
    )
    assert step.time_s >= step.compute_s > 0
    assert 0 < sum(step.kernel_s.values()) <= step.time_s * (1 + 1e-9)
    assert step.bubble_s >= 0
    assert step.exposed_s >= 0
    assert step.communication_s >= 0
    assert (step.bubble_s > 0) == (pipeline > 1)
    assert (step.communication_s > 0) == (layout.gpus > 1)


def test_inference_through_a_pipeline() -> None:
    step = predict(
        lambda batch: tiny_step(batch, step="infer"),
        Layout(pipeline=2),
        FREE,
        batch=8,
        device=device(),
        options=ParallelOptions(micro_batches=4),
    )
    forward = total(tiny_step(2, step="infer"))
    assert forward < step.time_s < 4 * forward
    assert [row.what for row in step.exchanges] == ["activations, stage to stage"]


# --- what cannot be ---


@pytest.mark.parametrize(
    ("layout", "options", "line"),
    [
        (Layout(pipeline=9), {}, "9 pipeline stages are more than the model's 8 layers: use at most 8"),
        (Layout(pipeline=4), {"interleave": 3}, "4 pipeline stages of 3 chunks each are more than the model's 8 layers: use at most 2"),
        (Layout(data=2), {"interleave": 2}, "2 interleaved chunks need a pipeline: use pp, or leave interleaving out"),
        (Layout(pipeline=4), {"micro_batches": 3}, "a batch of 8 cannot be cut into 3 equal micro-batches: use a divisor of 8"),
        (Layout(pipeline=4), {"micro_batches": 0}, "a batch of 8 cannot be cut into 0 equal micro-batches: use a divisor of 8"),
        (Layout(data=2), {"batch": 0}, "a batch of 0: every replica needs at least 1 sample"),
    ],
)  # fmt: skip
def test_impossible_pipelines(layout: Layout, options: dict[str, int], line: str) -> None:
    with pytest.raises(BadInput) as error:
        run(layout, FREE, **options)
    assert str(error.value) == line


def test_blocks_are_what_a_transformer_is_cut_into() -> None:
    with pytest.raises(BadInput, match="8 pipeline stages are more than the model's 4 blocks: use at most 4"):
        predict(lambda batch: tiny_step(batch), Layout(pipeline=8), FREE, batch=8, device=device())
