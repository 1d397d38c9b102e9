"""Data parallel steps: buckets, overlap with backward, ZeRO and FSDP, and what one GPU holds."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import rooflight
from rooflight.errors import BadInput
from rooflight.parallel.fabric import Fabric, RankGroup
from rooflight.parallel.gradients import BUCKET_BYTES, FIRST_BUCKET_BYTES, Bucket, Gradient, buckets, gradients_of
from rooflight.parallel.layout import DataMode, Layout, ParallelOptions
from rooflight.parallel.state_memory import ModelStates, per_gpu, states_of
from rooflight.prediction.cluster.combined import ParallelStep, predict
from rooflight.prediction.cluster.data_parallel import _updated_bytes, ddp
from rooflight.prediction.cluster.step import TimedStep
from tests.fixtures.parallel_steps import (
    GB,
    TinyGPT,
    alone,
    chain,
    chain_step,
    device,
    mixed_precision_adam,
    op_seconds,
    plain_fabric,
    tiny_ledger,
    tiny_step,
    total,
)

MIB = 2**20
MODES: tuple[DataMode, ...] = ("ddp", "zero1", "zero2", "zero3", "fsdp")


def run(step: TimedStep, mode: DataMode, ranks: int, fabric: Fabric, **options) -> ParallelStep:
    layout = Layout(data=ranks, mode=mode, gpus_per_node=8)
    return predict(lambda batch: step, layout, fabric, batch=8, device=device(), options=ParallelOptions(**options))


# --- the two clocks ---


def test_the_gpu_starts_an_op_when_it_was_launched_and_the_one_before_is_done() -> None:
    step = chain_step(1, forward_s=0.010, backward_s=0.001, update_s=0.001, host_s=0.004)
    clocks = step.clocks()
    clocks.run(range(3))
    # launched at 4, 8, 12 ms; the first runs to 14, the others behind it to 15 and 16
    assert [round(end * 1e3, 6) for end in clocks.ends.values()] == [14, 15, 16]
    assert alone(step) == pytest.approx(0.012)  # the next step's first op is launched while these still run


def test_a_step_that_waits_for_its_host() -> None:
    assert alone(chain_step(1, forward_s=0.001, backward_s=0.001, update_s=0.001, host_s=0.010)) == pytest.approx(0.030)


def test_times_that_do_not_fit_the_ops_are_refused() -> None:
    with pytest.raises(ValueError, match="9 ops, 1 GPU times"):
        TimedStep(chain(4), [1.0], [0.0] * 9)


# --- buckets ---


def test_gradients_come_in_the_order_of_backward() -> None:
    found = gradients_of(chain(3, weight_bytes=4 * MIB))
    assert [(g.name, g.nbytes, g.ready) for g in found] == [
        ("2.weight", 4 * MIB, 3),
        ("1.weight", 4 * MIB, 4),
        ("0.weight", 4 * MIB, 5),
    ]


def test_a_gradient_that_is_added_to_later_is_ready_later() -> None:
    ledger = chain(2)
    last = ledger.ops[3]  # backward of layer 0 also writes the gradient of layer 1
    ledger = msgspec.structs.replace(
        ledger,
        ops=(
            *ledger.ops[:3],
            msgspec.structs.replace(last, outputs=(*last.outputs, ledger.ops[2].outputs[0])),
            *ledger.ops[4:],
        ),
    )
    assert [(g.name, g.ready) for g in gradients_of(ledger)] == [("1.weight", 3), ("0.weight", 3)]


def test_a_step_without_backward_has_no_gradients() -> None:
    assert gradients_of(tiny_ledger(step="infer")) == []


def test_no_gradients_fill_no_bucket_and_one_fills_its_own() -> None:
    assert buckets([]) == []
    assert buckets([Gradient("", 5, 3)]) == [Bucket(5, 3)]


def test_the_first_bucket_is_small_and_a_bucket_is_closed_by_what_fills_it() -> None:
    sizes = [0.5, 0.6, 10, 10, 10, 40, 3]
    found = buckets([Gradient(str(i), size * MIB, i) for i, size in enumerate(sizes)])
    assert [(round(b.nbytes / MIB, 3), b.ready) for b in found] == [(1.1, 1), (30, 4), (40, 5), (3, 6)]


@given(st.lists(st.integers(1, 100 * MIB), max_size=60), st.integers(1, 50 * MIB), st.integers(1, 50 * MIB))
def test_buckets_hold_every_gradient_once(sizes: list[int], first: int, cap: int) -> None:
    found = buckets([Gradient("", size, i) for i, size in enumerate(sizes)], first_bytes=first, cap_bytes=cap)
    assert sum(bucket.nbytes for bucket in found) == sum(sizes)
    assert all(bucket.nbytes >= (first if i == 0 else cap) for i, bucket in enumerate(found[:-1]))
    assert [bucket.ready for bucket in found] == sorted(bucket.ready for bucket in found)


# --- DDP ---


def test_ddp_hides_all_but_the_last_bucket() -> None:
    # Four layers of 100 MiB; forward 4 x 10 ms, backward 4 x 20 ms, update 4 ms. A gradient's all-reduce over two GPUs:
    # 2 x 1/2 x 104.9 MB / 100 GB/s = 1.05 ms, less than a layer's backward: only the last is exposed.
    each = 100 * MIB / (100 * GB)
    outcome = ddp(chain_step(4), RankGroup(2, 2), plain_fabric(), ParallelOptions())
    assert outcome.time_s == pytest.approx(0.04 + 0.08 + each + 0.004)
    (row,) = outcome.exchanges
    assert (row.what, row.calls, row.bytes) == ("gradients, all-reduce", 4, 400 * MIB)
    assert row.time_s == pytest.approx(4 * each)


def test_ddp_over_a_slow_link_waits_for_the_chain_of_buckets() -> None:
    # 105 ms a bucket at 1 GB/s: the first is ready at 60 ms, then they follow one another.
    each = 100 * MIB / GB
    outcome = ddp(chain_step(4), RankGroup(2, 2), plain_fabric(inside=GB), ParallelOptions())
    assert outcome.time_s == pytest.approx(0.04 + 0.02 + 4 * each + 0.004)


def test_ddp_without_overlap() -> None:
    each = 100 * MIB / (100 * GB)
    outcome = ddp(chain_step(4), RankGroup(2, 2), plain_fabric(), ParallelOptions(overlap=False))
    assert outcome.time_s == pytest.approx(0.124 + 4 * each)


def test_two_gpus_have_one_models_parameters() -> None:
    one, two = (run(tiny_step(), "ddp", ranks, plain_fabric()) for ranks in (1, 2))
    assert one.parameters == two.parameters == sum(m.params for m in tiny_ledger().modules)
    assert one.memory == two.memory  # of one GPU: a replica is a replica
    assert (one.global_batch, two.global_batch) == (8, 16)


def test_one_gpu_talks_to_nobody() -> None:
    for mode in MODES:
        alone_there = run(tiny_step(host_s=1e-6), mode, 1, plain_fabric())
        assert alone_there.time_s == pytest.approx(alone(tiny_step(host_s=1e-6)))
        assert (alone_there.exchanges, alone_there.exposed_s, alone_there.bubble_s) == ((), 0.0, 0.0)


@pytest.mark.parametrize("mode", MODES)
@settings(deadline=None)
@given(ranks=st.sampled_from([2, 4, 8, 64, 1024]), inside=st.floats(0.1, 1000), host=st.sampled_from([0.0, 1e-5]))
def test_overlap_helps_and_hides_no_more_than_there_is(mode: DataMode, ranks: int, inside: float, host: float) -> None:
    fabric = plain_fabric(inside * GB, inside / 8 * GB)
    beside, after = (run(tiny_step(host_s=host), mode, ranks, fabric, overlap=overlap) for overlap in (True, False))
    assert beside.compute_s <= beside.time_s * (1 + 1e-9) <= after.time_s * (1 + 1e-8)
    assert 0 <= beside.exposed_s <= beside.communication_s * (1 + 1e-9)
    assert beside.communication_s == pytest.approx(after.communication_s)


@pytest.mark.parametrize("mode", MODES)
def test_free_links_leave_only_computation(mode: DataMode) -> None:
    fast = run(tiny_step(), mode, 8, plain_fabric().without_cost())
    assert fast.exposed_s == pytest.approx(0, abs=1e-15)
    update = total(tiny_step(), ["optimizer"]) / (1 if mode == "ddp" else 8)
    assert fast.time_s == pytest.approx(total(tiny_step(), ["forward", "backward"]) + update)


@pytest.mark.parametrize("mode", MODES)
def test_slower_links_take_longer(mode: DataMode) -> None:
    times = [run(tiny_step(), mode, 8, plain_fabric(speed * GB)).time_s for speed in (1000, 100, 10, 1)]
    assert times == sorted(times)


@pytest.mark.parametrize("mode", MODES)
def test_inference_replicas_send_no_gradients(mode: DataMode) -> None:
    step = run(tiny_step(step="infer"), mode, 8, plain_fabric())
    assert [row.what for row in step.exchanges] == (["weights, all-gather"] if mode in ("zero3", "fsdp") else [])


def test_micro_batches_without_a_pipeline_are_gradient_accumulation() -> None:
    step = chain_step(4)
    accumulated = run(step, "ddp", 2, plain_fabric(), micro_batches=4)
    each = 100 * MIB / (100 * GB)
    assert accumulated.time_s == pytest.approx(4 * 0.12 + each + 0.004)  # gradients are sent once
    assert accumulated.exchanges[0].calls == 4
    with pytest.raises(BadInput, match="fsdp with several micro-batches is not modelled"):
        run(step, "fsdp", 2, plain_fabric(), micro_batches=4)


# --- ZeRO and FSDP ---


def test_zero_scatters_gradients_and_gathers_weights() -> None:
    step = run(chain_step(4), "zero1", 2, plain_fabric())
    half = 0.5 * 100 * MIB / (100 * GB)  # 1/2 of the bytes, once
    scattered, gathered = step.exchanges
    assert (scattered.what, scattered.time_s) == ("gradients, reduce-scatter", pytest.approx(4 * half))
    assert (gathered.what, gathered.calls, gathered.time_s) == ("weights, all-gather", 1, pytest.approx(4 * half))
    # forward + backward, the last bucket, half an update each, and the gathering of the new weights
    assert step.time_s == pytest.approx(0.12 + half + 0.002 + 4 * half)


def test_fsdp_gathers_each_unit_twice_and_scatters_it_once() -> None:
    step = run(chain_step(4), "fsdp", 2, plain_fabric())
    half = 0.5 * 100 * MIB / (100 * GB)
    gathered, scattered = step.exchanges
    assert (gathered.calls, gathered.bytes) == (8, 800 * MIB)
    assert (scattered.calls, scattered.bytes) == (4, 400 * MIB)
    # Exposed: the first gather of forward, the first of backward (no loss to hide it), the last scatter.
    assert step.time_s == pytest.approx(0.12 + 3 * half + 0.002)


def test_fsdp_without_prefetch_waits_for_every_unit() -> None:
    half = 0.5 * 100 * MIB / (100 * GB)
    step = run(chain_step(4), "fsdp", 2, plain_fabric(), overlap=False)
    # 4 gathers in forward, 4 in backward, each but the first behind a scatter that is not yet done; the last scatter
    assert step.time_s == pytest.approx(0.12 + 4 * half + 4 * half + 3 * half + half + 0.002)


def test_fsdp_wraps_transformer_blocks_and_keeps_the_rest_gathered() -> None:
    step = run(tiny_step(), "fsdp", 8, plain_fabric())
    gathered, scattered = step.exchanges
    assert (gathered.calls, scattered.calls) == (1 + 2 * 4, 4 + 1)
    assert any("4 units" in line for line in step.assumptions)


# --- frozen weights ---


@cache
def adapted_step() -> TimedStep:
    """Train one matrix of each block only, as adapters are trained."""
    with torch.device("meta"):
        model = TinyGPT()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith("out.weight"))
    ledger = rooflight.estimate(
        model, torch.zeros(8, 128, dtype=torch.int64), step="train", loss="cross-entropy", optimizer="adamw"
    )
    return TimedStep(ledger, [op_seconds(op) for op in ledger.ops], [0.0] * len(ledger.ops))


@pytest.mark.parametrize("mode", MODES)
def test_only_trained_weights_have_gradients_and_only_updated_ones_are_gathered(mode: DataMode) -> None:
    trained, everything = 4 * 4 * 256**2, states_of(adapted_step().ledger).parameter_bytes  # 4 blocks, fp32
    outside = 4 * (2 * 1000 * 256 + 2 * 256)  # embedding, head, last norm
    sent = {row.what: row.bytes for row in run(adapted_step(), mode, 8, plain_fabric()).exchanges}
    gathered = {"ddp": 0, "zero1": trained, "zero2": trained}.get(mode, 2 * (everything - outside) + outside)
    assert sent.pop("weights, all-gather", 0) == gathered
    assert list(sent.values()) == [trained]


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adafactor", "rmsprop", "muon"])
def test_every_optimizer_updates_every_weight_that_has_a_gradient(optimizer: Any) -> None:
    model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.ReLU(), nn.Linear(16, 4, bias=False))
    ledger = rooflight.estimate(model, torch.zeros(2, 8), step="train", loss="sum", optimizer=optimizer)
    assert _updated_bytes(ledger) == 4 * (8 * 16 + 16 * 4) == sum(row.nbytes for row in gradients_of(ledger))


# --- what one GPU holds ---


@pytest.mark.parametrize(
    ("mode", "a_parameter"),
    [("ddp", 16), ("zero1", 4 + 12 / 64), ("zero2", 2 + 14 / 64), ("zero3", 16 / 64), ("fsdp", 16 / 64)],
)
def test_zeros_formulas_for_adam_in_mixed_precision(mode: DataMode, a_parameter: float) -> None:
    held = per_gpu(mixed_precision_adam(7_500_000_000), mode, 64)
    assert held.total_bytes == pytest.approx(a_parameter * 7.5e9)
    assert held.parameters == 7_500_000_000


def test_states_come_from_the_trace() -> None:
    states = states_of(tiny_ledger())
    count = states.parameters
    assert (states.parameter_bytes, states.gradient_bytes) == (4 * count, 4 * count)
    assert states.optimizer_bytes == pytest.approx(8 * count, rel=0.001)  # two moments, and a step count a tensor
    assert states_of(tiny_ledger(step="infer")) == ModelStates(count, 4 * count, 0, 0)


@given(st.sampled_from(MODES), st.integers(1, 4096))
def test_more_ranks_hold_no_more(mode: DataMode, ranks: int) -> None:
    states = mixed_precision_adam(10**9)
    assert (
        per_gpu(states, mode, ranks + 1).total_bytes <= per_gpu(states, mode, ranks).total_bytes <= states.total_bytes
    )
    assert per_gpu(states, mode, 1) == states


def test_assumptions_say_where_every_number_comes_from() -> None:
    lines = run(tiny_step(), "ddp", 16, plain_fabric()).assumptions
    assert any(line.startswith("in a node: 100 GB/s") for line in lines)
    assert any(line.startswith("between nodes: 10 GB/s") for line in lines)
    assert any("buckets in the order backward makes them, 1 MiB first, then 25 MiB" in line for line in lines)
    assert (FIRST_BUCKET_BYTES, BUCKET_BYTES) == (MIB, 25 * MIB)
    assert all("\n" not in line and line for line in lines)
