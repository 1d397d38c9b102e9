"""Tensor parallelism: what is divided, what waits for what, and what it costs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import rooflight
from rooflight.errors import BadInput
from rooflight.ledger import Ledger
from rooflight.parallel.blocks import model_of
from rooflight.parallel.fabric import Fabric, RankGroup
from rooflight.parallel.layout import Layout, ParallelOptions
from rooflight.parallel.tensor_split import Gemm, cut_op, gemm_of, tensor_cut_of
from rooflight.prediction.cluster import tensor
from rooflight.prediction.cluster.combined import ParallelStep, predict
from rooflight.prediction.cluster.step import TimedStep
from tests.fixtures.parallel_steps import (
    GB,
    chain_step,
    device,
    op_seconds,
    plain_fabric,
    tiny_ledger,
    tiny_step,
    total,
)

TOKENS, HIDDEN, HEADS, VOCABULARY = 8 * 128, 256, 8, 1000


def run(step: TimedStep, ranks: int, fabric: Fabric | None = None, **options) -> ParallelStep:
    layout = Layout(tensor=ranks, gpus_per_node=8)
    retime = options.pop("retime", None)
    return predict(
        lambda batch: step, layout, fabric or plain_fabric(), batch=8, device=device(), options=ParallelOptions(**options), retime=retime
    )  # fmt: skip


def named(ledger: Ledger, indices) -> list[tuple[str, str]]:
    return [(ledger.ops[i].module, ledger.ops[i].packet.removeprefix("aten::")) for i in sorted(indices)]


# --- the model ---


def test_units_and_blocks_of_a_transformer() -> None:
    model = model_of(tiny_ledger())
    assert [unit.path for unit in model.units] == [
        "embed",
        "blocks.0",
        "blocks.1",
        "blocks.2",
        "blocks.3",
        "norm",
        "head",
    ]
    assert model.blocks == (1, 2, 3, 4)
    assert (model.heads, model.units[1].output_bytes) == (HEADS, TOKENS * HIDDEN * 4)


def test_every_op_but_the_optimizers_is_in_one_unit() -> None:
    ledger = tiny_ledger()
    found = sorted(i for unit in model_of(ledger).units for i in (*unit.forward, *unit.backward))
    assert found == [op.index for op in ledger.ops if op.phase != "optimizer"]


def test_parameters_of_units_add_up() -> None:
    ledger = tiny_ledger()
    assert sum(unit.parameter_bytes for unit in model_of(ledger).units) == sum(m.param_bytes for m in ledger.modules)


@pytest.mark.parametrize(
    ("name", "blocks", "heads", "heads_kv", "units"),
    [
        ("gpt2", 12, 12, 12, 17), ("vit-b-16", 12, 12, 12, 16), ("transformer", 12, 8, 8, 14), ("distilbert", 6, 12, 12, 7),
        ("word-lm", 2, 2, 2, 6), ("resnet18", 0, None, None, 14), ("vgg11", 0, None, None, 29),
    ],
)  # fmt: skip
@pytest.mark.parametrize("step", ["train", "infer"])
def test_blocks_of_the_built_in_models(
    name: str, blocks: int, heads: int | None, heads_kv: int | None, units: int, step: Any
) -> None:
    # torch's encoder layers and multi-head attention run as one op each in inference.
    model = model_of(rooflight.estimate(name, batch=2, step=step))
    assert (len(model.blocks), model.heads, model.heads_kv, len(model.units)) == (blocks, heads, heads_kv, units)


# --- what is divided ---


def test_columns_and_rows_of_a_block() -> None:
    ledger = tiny_ledger()
    parts = tensor_cut_of(ledger, model_of(ledger))
    of_block = {i: axis for i, axis in parts.axis.items() if ledger.ops[i].module.startswith("blocks.0.")}
    forward = [
        (ledger.ops[i].module.removeprefix("blocks.0."), axis)
        for i, axis in sorted(of_block.items())
        if ledger.ops[i].phase == "forward"
    ]
    assert forward == [("qkv", "n"), ("out", "k"), ("up", "n"), ("down", "k")]
    for index, axis in of_block.items():
        op, gemm = ledger.ops[index], gemm_of(ledger.ops[index])
        assert gemm is not None
        if op.phase == "backward":
            name = op.module.removeprefix("blocks.0.")
            width = {"qkv": 3 * HIDDEN, "out": HIDDEN, "up": 4 * HIDDEN, "down": 4 * HIDDEN}[name]
            assert getattr(gemm, axis) == width, (name, gemm, axis)  # the dimension that is cut is that of the features


def test_what_lies_between_column_and_row_is_divided_and_norms_are_not() -> None:
    ledger = tiny_ledger()
    model = model_of(ledger)
    parts = tensor_cut_of(ledger, model)
    unit = model.units[1]
    inside = {
        op for _, op in named(ledger, parts.inside & set(unit.forward)) if op not in ("view", "t", "transpose", "split")
    }
    outside = {op for _, op in named(ledger, parts.outside & set(unit.forward)) if op not in ("view", "t", "transpose")}
    assert {"addmm", "bmm", "_softmax", "gelu"} <= inside
    assert outside == {"native_layer_norm", "add"}
    backward_outside = {op for _, op in named(ledger, parts.outside & set(unit.backward))}
    assert not backward_outside & {"mm", "bmm", "gelu_backward", "_softmax_backward_data"}
    assert "native_layer_norm_backward" in backward_outside


def test_two_sums_a_block_each_way_one_for_the_embedding_and_one_for_the_head() -> None:
    ledger = tiny_ledger()
    parts = tensor_cut_of(ledger, model_of(ledger))
    assert [module for module, _ in named(ledger, parts.sums_forward)][:3] == ["embed", "blocks.0.out", "blocks.0.down"]
    assert (len(parts.sums_forward), len(parts.sums_backward)) == (1 + 2 * 4, 2 * 4 + 1)
    step = run(tiny_step(), 2)
    (row,) = step.exchanges
    # 18 all-reduces of tokens x hidden in fp32: 2 x 1/2 of it at 100 GB/s
    message = TOKENS * HIDDEN * 4
    assert (row.calls, row.bytes, row.time_s) == (18, 18 * message, pytest.approx(18 * message / (100 * GB)))


def test_weights_are_divided_and_norms_and_biases_are_held_by_all() -> None:
    whole, half = run(tiny_step(), 1), run(tiny_step(), 2)
    biases = 4 * (3 + 1 + 4 + 1) * HIDDEN + (4 * 2 + 1) * 2 * HIDDEN  # of 4 blocks; of 9 norms
    matrices = 4 * 12 * HIDDEN**2 + 2 * VOCABULARY * HIDDEN
    assert whole.memory.parameter_bytes == 4 * (matrices + biases)
    assert half.memory.parameter_bytes == pytest.approx(4 * (matrices / 2 + biases))
    assert half.parameters == matrices + biases


@pytest.mark.parametrize("name", ["gpt2", "vit-b-16", "transformer", "distilbert"])
@pytest.mark.parametrize("step", ["train", "infer"])
def test_matmuls_of_built_in_transformers_are_divided(name: str, step: Any) -> None:
    """Nearly all FLOPs of blocks and head lie inside; what does not is the odd one out (a patch convolution)."""
    ledger = rooflight.estimate(name, batch=2, step=step)
    parts = tensor_cut_of(ledger, model_of(ledger))
    work = {op.index: op.cost.flops or 0 for op in ledger.ops if op.cost is not None}
    divided = sum(flops for index, flops in work.items() if index in parts.inside)
    assert divided > 0.97 * sum(work.values())
    assert not parts.inside & parts.outside


# --- what becomes of time ---


def test_whole_rounds_of_tiles() -> None:
    # 4096 x 3840: 16 x 30 tiles of 256 x 128 over 100 SMs are 5 rounds; a quarter, 16 x 8 tiles, 2: 3/5 lost of nothing
    whole, quarter = Gemm(1, 4096, 3840, 1280), Gemm(1, 4096, 960, 1280)
    assert whole.work(100) == 5 * 256 * 128 * 1280
    # with tiles of 128 x 128: 32 x 8 = 256 tiles, 3 rounds of half the size, better than 2 whole ones
    assert quarter.work(100) == 3 * 128 * 128 * 1280


@given(st.integers(1, 64), st.integers(1, 8192), st.integers(1, 8192), st.integers(1, 8192), st.integers(1, 200))
def test_rounds_never_do_less_than_the_work(batch: int, m: int, n: int, k: int, sms: int) -> None:
    assert Gemm(batch, m, n, k).work(sms) * sms >= batch * m * n * k


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("sequence", [False, True])
def test_no_rank_does_more_than_all_or_less_than_its_share(ranks: int, sequence: bool) -> None:
    step = tiny_step()
    model = model_of(step.ledger)
    divided = tensor.divide(
        step, model, RankGroup(ranks, ranks), plain_fabric(), device(), ParallelOptions(sequence_parallel=sequence)
    )
    for op, before, after in zip(step.ledger.ops, step.gpu_s, divided.step.gpu_s, strict=True):
        assert before / ranks * (1 - 1e-9) <= after <= before, (op.name, op.module)


def test_more_ranks_compute_less_and_sequence_parallelism_less_still() -> None:
    times = [run(tiny_step(), ranks).compute_s for ranks in (1, 2, 4, 8)]
    assert times == sorted(times, reverse=True)
    assert run(tiny_step(), 4, sequence_parallel=True).compute_s < run(tiny_step(), 4).compute_s


def test_sequence_parallelism_sends_as_much() -> None:
    plain, sequence = (run(tiny_step(), 4, sequence_parallel=flag) for flag in (False, True))
    assert sequence.communication_s == pytest.approx(plain.communication_s)


def test_backward_hides_sums_behind_the_gradient_of_the_weight() -> None:
    fabric = plain_fabric(10 * GB)
    hidden, shown = (run(tiny_step(), 4, fabric, overlap=flag) for flag in (True, False))
    assert hidden.exposed_s < shown.exposed_s == pytest.approx(shown.communication_s)


def test_free_links_and_one_rank_change_nothing_but_the_division() -> None:
    assert run(tiny_step(), 4, plain_fabric().without_cost()).exposed_s == pytest.approx(0, abs=1e-15)
    assert run(tiny_step(), 1).time_s == pytest.approx(total(tiny_step()))


def test_ranks_on_several_nodes_are_warned_of() -> None:
    layout = Layout(tensor=8, gpus_per_node=4)
    step = predict(lambda batch: tiny_step(), layout, plain_fabric(), batch=8, device=device())
    assert any("lie on 2 nodes" in line for line in step.assumptions)
    assert step.time_s > run(tiny_step(), 8).time_s


def test_smaller_matmuls_are_timed_by_who_can() -> None:
    seen = []

    def retime(op) -> float:
        seen.append(op)
        return op_seconds(op)

    step = run(tiny_step(), 4, retime=retime)
    assert {op.packet for op in seen} == {"aten::addmm", "aten::mm", "aten::bmm"}
    column = next(op for op in seen if op.module == "blocks.0.qkv" and op.phase == "forward")
    assert column.outputs[0].shape == (TOKENS, 3 * HIDDEN // 4)
    assert column.cost.flops == 2 * TOKENS * HIDDEN * 3 * HIDDEN // 4
    row = next(op for op in seen if op.module == "blocks.0.out" and op.phase == "forward")
    assert row.outputs[0].shape == (TOKENS, HIDDEN)
    assert [row.tensor(name).shape for name in ("mat1", "mat2")] == [(TOKENS, HIDDEN // 4), (HIDDEN // 4, HIDDEN)]
    attention = next(op for op in seen if op.packet == "aten::bmm")
    assert attention.outputs[0].shape[0] == 8 * HEADS // 4
    assert any("timed at their smaller shapes" in line for line in step.assumptions)


def test_an_op_that_is_no_matmul_is_not_cut() -> None:
    gelu = next(op for op in tiny_ledger().ops if op.packet == "aten::gelu")
    assert cut_op(gelu, None, 2) is None


def test_recomputation_adds_forward_to_backward() -> None:
    step = tiny_step()
    model = model_of(step.ledger)
    none, selective, full = (run(step, 1, recompute=what).time_s for what in ("none", "selective", "full"))
    blocks = sum(step.gpu_s[i] for number in model.blocks for i in model.units[number].forward)
    assert full - none == pytest.approx(blocks)
    assert none < selective < full
    sums = [run(step, 2, recompute=what).exchanges[0].calls for what in ("none", "full")]
    assert sums == [18, 18 + 8]  # forward's sums of the blocks again


# --- what cannot be ---


def test_heads_that_cannot_be_shared() -> None:
    with pytest.raises(BadInput) as error:
        run(tiny_step(), 3)
    assert str(error.value) == "8 attention heads cannot be shared by 3 tensor parallel ranks: use 2, 4, 8"


def test_a_model_without_blocks() -> None:
    with pytest.raises(BadInput, match="needs repeated transformer blocks, and this model has none: use ddp or fsdp"):
        run(chain_step(4), 2)


def test_sharded_data_parallelism_with_others_is_refused() -> None:
    layout = replace(Layout(tensor=2, data=2), mode="fsdp")
    with pytest.raises(BadInput, match="fsdp together with tensor or pipeline parallelism is not modelled"):
        predict(lambda batch: tiny_step(), layout, plain_fabric(), batch=8, device=device())


class Gated(nn.Module):
    """Two column matmuls before the row, as in Llama, called as functions of the block itself."""

    def __init__(self) -> None:
        super().__init__()
        linear = partial(nn.Linear, bias=False)
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)
        self.gate, self.up, self.down = linear(64, 128), linear(64, 128), linear(128, 64)

    def forward(self, x):
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))


def test_a_gated_mlp_has_two_columns_and_one_row() -> None:
    ledger = rooflight.estimate(nn.Sequential(Gated(), Gated()), torch.randn(2, 16, 64), step="train")
    parts = tensor_cut_of(ledger, model_of(ledger))
    forward = [
        (ledger.ops[i].module, axis) for i, axis in sorted(parts.axis.items()) if ledger.ops[i].phase == "forward"
    ]
    assert forward[:5] == [("0.attention", "n"), ("0.attention", "k"), ("0.gate", "n"), ("0.up", "n"), ("0.down", "k")]
    silu = next(op.index for op in ledger.ops if op.packet == "aten::silu_backward")
    assert silu in parts.inside
