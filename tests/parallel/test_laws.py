"""Laws of a model shared by ranks: no byte and no FLOP is lost, and what several ranks have is named."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

import rooflight
from rooflight.errors import BadInput
from rooflight.ledger import Ledger, Op
from rooflight.parallel.blocks import model_of
from rooflight.parallel.fabric import RankGroup
from rooflight.parallel.layout import Layout, ParallelOptions
from rooflight.parallel.tensor_split import tensor_cut_of
from rooflight.prediction.cluster import pipeline, tensor
from rooflight.prediction.cluster.combined import predict
from rooflight.prediction.cluster.step import TimedStep
from tests.fixtures.parallel_steps import device, op_seconds, plain_fabric, tiny_step

MIXTURE = {"hidden_size": "64", "intermediate_size": "128", "num_attention_heads": "8", "num_key_value_heads": "4"}
MODELS: dict[str, dict[str, str]] = {
    "gpt2": {"n_layer": "4", "n_embd": "256", "n_head": "8"},
    "llama3-8b": {**MIXTURE, "num_hidden_layers": "4"},
    "mixtral-8x7b": {**MIXTURE, "num_hidden_layers": "4"},
    "transformer": {"d_model": "128"},
}


@cache
def traced(name: str, step: Any = "train") -> TimedStep:
    ledger = rooflight.estimate(name, seq=32, batch=8, step=step, overrides=MODELS.get(name))
    return TimedStep(ledger, [op_seconds(op) for op in ledger.ops], [0.0] * len(ledger.ops))


def weights(ledger: Ledger) -> dict[int, int]:
    return {row.id: row.nbytes for row in ledger.storages if row.category == "parameter"}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_all_tensor_ranks_hold_the_model_and_what_is_named_as_whole(name: str, ranks: int) -> None:
    ledger = traced(name).ledger
    parts, held = tensor_cut_of(ledger, model_of(ledger)), weights(ledger)
    whole = sum(nbytes for number, nbytes in held.items() if number not in parts.weights)
    assert parts.replicated.total() == whole < 0.1 * sum(held.values())
    one = sum(nbytes / (ranks if number in parts.weights else 1) for number, nbytes in held.items())
    assert ranks * one == sum(held.values()) + (ranks - 1) * whole
    assert parts.held_share(ranks) == pytest.approx(one / sum(held.values()))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_all_tensor_ranks_do_the_flops_of_the_step_and_those_outside_again(name: str, ranks: int) -> None:
    """Of what a rank times: products at their smaller shapes, all else at its share of the seconds."""
    step = traced(name)
    ledger, timed = step.ledger, 0

    def retime(op: Op) -> float:
        nonlocal timed
        assert op.cost is not None
        timed += op.cost.flops or 0
        return op_seconds(op)

    group = RankGroup(ranks, ranks)
    tensor.divide(step, model_of(ledger), group, plain_fabric(), device(), ParallelOptions(), retime)
    flops = {op.index: op.cost.flops or 0 for op in ledger.ops if op.cost is not None}
    inside = tensor_cut_of(ledger, model_of(ledger)).inside
    again = sum(number for index, number in flops.items() if index not in inside)
    fused = sum(flops[op.index] for op in ledger.ops if op.index in inside and "attention" in op.name)
    assert ranks * timed == pytest.approx(sum(flops.values()) - again - fused, rel=0.02)  # parts are rounded up
    assert again < 0.01 * sum(flops.values())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("count", [2, 4])
def test_stages_run_every_op_once_and_hold_every_weight_once(name: str, count: int) -> None:
    step = traced(name)
    model = model_of(step.ledger)
    stages = pipeline.stages_of(step, model, count)
    units = [model.units[number] for stage in stages for number in stage.units]
    ran = sorted(index for unit in units for index in (*unit.forward, *unit.backward))
    assert ran == [op.index for op in step.ledger.ops if op.phase in ("forward", "backward")]
    assert sum(stage.weight_share for stage in stages) == pytest.approx(1)
    assert sum(unit.parameter_bytes for unit in units) == sum(weights(step.ledger).values())


def test_experts_that_no_rank_shares_out_are_refused() -> None:
    """Qwen3-MoE: 128 experts of a layer in one parameter of three dimensions, which a grouped product multiplies."""
    ledger = rooflight.estimate("qwen3-30b-a3b", seq=32, overrides={"num_hidden_layers": "2"})
    with pytest.raises(BadInput) as error:
        tensor_cut_of(ledger, model_of(ledger))
    # Experts: 2 x 128 x 3 x 2,048 x 768 = 1,208 M; embedding and head: 2 x 151,936 x 2,048 = 622 M; attention: 38 M.
    assert error.value.code == "layout-not-modelled"
    assert "65% of its weights would stay whole on every rank, such as model.layers.0.mlp.experts.gate" in str(error)


@pytest.mark.parametrize("layout", [Layout(tensor=2), Layout(pipeline=2), Layout(data=8, mode="fsdp"), Layout(2, 2, 2)])
def test_no_gpu_sends_for_longer_than_its_step(layout: Layout) -> None:
    for speed in (1e8, 1e10, 1e12):  # tensor and data parallel ranks talk at the same time, over links of their own
        step = predict(lambda batch: tiny_step(batch), layout, plain_fabric(speed, speed), batch=8, device=device())
        assert layout.pipeline > 1 or step.exposed_s <= step.communication_s * (1 + 1e-9)
        assert all(row.time_s <= step.time_s * (1 + 1e-9) for row in step.exchanges)
        assert layout.data > 1 < layout.tensor or step.communication_s <= step.time_s * (1 + 1e-9)


def test_a_gpu_of_a_pipeline_sends_the_sums_of_its_own_stage() -> None:
    """Four blocks in two stages: 2 blocks x 2 sums x 2 ways, one of the embedding or the head; 8 micro-batches."""
    step = predict(lambda batch: tiny_step(batch), Layout(2, 2, 1), plain_fabric(), batch=8, device=device())
    assert step.exchanges[0].calls == 8 * (2 * 2 * 2 + 1)
