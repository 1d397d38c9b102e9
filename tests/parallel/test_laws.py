"""Laws of what ranks send, and what cannot be shared. Of bytes and FLOPs: tests/laws/test_ranks.py."""

from __future__ import annotations

import pytest

import rooflight
from rooflight.errors import BadInput
from rooflight.parallel.blocks import model_of
from rooflight.parallel.layout import Layout
from rooflight.parallel.tensor_split import tensor_cut_of
from rooflight.prediction.cluster.combined import predict
from tests.fixtures.parallel_steps import device, plain_fabric, tiny_step


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
