"""The attention kernel is the one CUDA would choose, and is traced as its aten op, forward and backward."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rooflight.errors import BadInput
from rooflight.trace.options import TensorKind
from rooflight.trace.target import AttentionCall, Target, attention_kernel, parse_target
from tests.fixtures.notes import note_texts
from tests.fixtures.paths import DATA
from tests.fixtures.torch_versions import VERSION
from tests.fixtures.tracing import flops, infer, names, only, rows, train

CHOICES = DATA / "h200_attention_choice.json.gz"
OPS = {
    "cudnn": "_scaled_dot_product_cudnn_attention",
    "flash": "_scaled_dot_product_flash_attention",
    "efficient": "_scaled_dot_product_efficient_attention",
}


def test_every_choice_that_cuda_made_on_an_h200_is_the_choice_made_here() -> None:
    with gzip.open(CHOICES) as file:
        recorded = json.load(file)
    wrong = []
    for values in recorded["rows"]:
        row = dict(zip(recorded["columns"], values, strict=True))
        call = AttentionCall(
            dtype=row["dtype"], heads=8, heads_kv=row["heads_kv"], length_q=row["sq"], length_kv=row["sk"],
            head_dim=row["head"], head_dim_v=row["head"], has_mask=row["mask"] is not None, dropout=row["dropout"],
            causal=row["causal"],
        )  # fmt: skip
        if attention_kernel(call, Target("cuda")) != row["choice"]:
            wrong.append(row)
    assert len(recorded["rows"]) == 10_560
    assert not wrong, f"{len(wrong)} differ, the first: {wrong[0]}"


class Attention(nn.Module):
    """Self-attention over 2 samples, 4 heads, 8 positions, head size 16."""

    def __init__(self, dtype: torch.dtype = torch.float32, heads_kv: int = 4, **options: Any) -> None:
        super().__init__()
        self.heads_kv, self.options = heads_kv, options
        self.query = nn.Parameter(torch.randn(2, 4, 8, 16, dtype=dtype))
        self.key = nn.Parameter(torch.randn(2, heads_kv, 8, 16, dtype=dtype))
        self.value = nn.Parameter(torch.randn(2, heads_kv, 8, 16, dtype=dtype))

    def forward(self, mask: Tensor | None = None) -> Tensor:
        return F.scaled_dot_product_attention(
            self.query, self.key, self.value, attn_mask=mask, enable_gqa=self.heads_kv != 4, **self.options
        )


# Scores and weighted values: 2 * 4 * 8 * 8 * (16 + 16) = 16,384 MACs.
FORWARD = 2 * 16_384


@pytest.mark.parametrize(
    ("dtype", "options", "target", "kernel"),
    [
        (torch.float32, {}, "cuda", "efficient"),
        (torch.float32, {"is_causal": True}, "cuda", "efficient"),
        (torch.float32, {"dropout_p": 0.1}, "cuda", "efficient"),
        (torch.bfloat16, {}, "cuda", "cudnn"),
        (torch.bfloat16, {"is_causal": True}, "cuda", "cudnn"),
        (torch.bfloat16, {"dropout_p": 0.1}, "cuda", "cudnn"),
        (torch.float16, {}, "cuda", "cudnn"),
        (torch.bfloat16, {}, "cuda:80", "flash"),
        (torch.float16, {"is_causal": True}, "cuda:80", "flash"),
        (torch.float16, {}, "cuda:70", "efficient"),
        (torch.float32, {}, "cuda:80", "efficient"),
        (torch.bfloat16, {"heads_kv": 2}, "cuda", "cudnn"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("on", ["meta", "fake"])
def test_the_kernel_is_one_op_forward_and_one_backward(
    dtype: torch.dtype, options: dict[str, Any], target: str, kernel: str, on: TensorKind
) -> None:
    ledger = train(Attention(dtype, **options), target=target, on=on)
    forward, backward = only(ledger, OPS[kernel]), only(ledger, OPS[kernel] + "_backward")
    assert (forward.phase, backward.phase) == ("forward", "backward")
    assert forward.cost is not None and backward.cost is not None
    assert forward.cost.flops == FORWARD
    assert backward.cost.flops == 2 * FORWARD
    # Fused kernels make the scores again: 2 * 4 * 8 * 8 * 16 MACs.
    assert backward.cost.recompute_flops == FORWARD // 2
    # A causal mask keeps 36 of the 64 pairs.
    assert forward.cost.flops_causal == (FORWARD * 36 // 64 if options.get("is_causal") else FORWARD)
    assert not rows(ledger, "bmm")


@pytest.mark.parametrize(("dtype", "kernel"), [(torch.float32, "efficient"), (torch.bfloat16, "cudnn")])
@pytest.mark.parametrize("mask_dtype", [torch.bool, None])
def test_a_mask_is_handed_to_the_kernel(dtype: torch.dtype, kernel: str, mask_dtype: torch.dtype | None) -> None:
    mask = torch.ones(2, 1, 8, 8, dtype=mask_dtype or dtype)
    op = only(infer(Attention(dtype), mask), OPS[kernel])
    bias = op.tensor("attn_bias")
    assert bias.shape[-2:] == (8, 8)
    assert bias.dtype == op.tensor("query").dtype
    assert flops([op]) == FORWARD


def test_a_mask_rules_flash_out_on_older_gpus() -> None:
    mask = torch.ones(2, 1, 8, 8, dtype=torch.bool)
    ledger = infer(Attention(torch.bfloat16), mask, target="cuda:80")
    assert only(ledger, OPS["efficient"])


@pytest.mark.parametrize(
    ("dtype", "heads_kv"), [(torch.float64, 4), (torch.float32, 2)], ids=["double precision", "grouped queries"]
)
def test_without_a_fused_kernel_the_scores_are_matrices(dtype: torch.dtype, heads_kv: int) -> None:
    ledger = train(Attention(dtype, heads_kv))
    assert not [op for op in ledger.ops if "scaled_dot_product" in op.name]
    assert [flops([op]) for op in rows(ledger, "bmm", phase="forward")] == [FORWARD // 2, FORWARD // 2]
    assert flops(rows(ledger, "bmm", phase="backward")) == 2 * FORWARD
    assert sum(op.cost.recompute_flops or 0 for op in ledger.ops if op.cost) == 0


def test_heads_that_flash_cannot_take_are_padded() -> None:
    class Odd(nn.Module):
        def forward(self, q: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, q, q)

    x = torch.randn(2, 4, 8, 20, dtype=torch.bfloat16, requires_grad=True)
    ledger = train(Odd(), x, target="cuda:80", loss="sum")
    assert only(ledger, OPS["flash"]).tensor("query").shape == (2, 4, 8, 24)
    assert ledger.header.outputs[0].shape == (2, 4, 8, 20)
    # The zeros are no useful work: 2 * 4 * 8 * 8 * (20 + 20) MACs forward, twice that backward, the scores once more.
    macs = 2 * 4 * 8 * 8 * (20 + 20)
    assert flops([only(ledger, OPS["flash"])]) == 2 * macs
    backward = only(ledger, f"{OPS['flash']}_backward")
    assert flops([backward]) == 2 * 2 * macs
    assert backward.cost is not None
    assert backward.cost.recompute_flops == macs


@pytest.mark.parametrize(
    ("dtype", "target", "kernel"),
    [
        (torch.bfloat16, "cuda", "efficient"),  # without a gradient for the bias it would be cuDNN's
        (torch.float32, "cuda", "efficient"),
        (torch.float32, "cpu", "math"),  # its fused kernel knows no such gradient
    ],
)
def test_a_learned_bias_gets_its_gradient(dtype: torch.dtype, target: str, kernel: str) -> None:
    class Biased(Attention):
        def __init__(self) -> None:
            super().__init__(dtype)
            self.bias = nn.Parameter(torch.randn(4, 8, 8, dtype=dtype))

        def forward(self, mask: Tensor | None = None) -> Tensor:
            return super().forward(self.bias.unsqueeze(0) * 2)

    ledger = train(Biased(), target=target)
    assert [storage.name for storage in ledger.storages if storage.category == "gradient"].count("bias") == 1
    assert (f"aten::{OPS['efficient']}" in {op.packet for op in ledger.ops}) is (kernel == "efficient")
    assert flops(rows(ledger)) == 3 * FORWARD


@pytest.mark.skipif(VERSION >= (2, 14), reason="from 2.14 on torch gives it a batch of one, and it has")
def test_a_query_without_heads_has_no_fused_kernel() -> None:
    class Flat(nn.Module):
        def forward(self, q: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, q, q)

    assert "bmm" in names(infer(Flat(), torch.randn(2, 8, 16)))


def test_on_a_cpu_the_step_is_that_of_the_cpu() -> None:
    for on in ("meta", "cpu"):
        ledger = train(Attention(), target="cpu", on=on)
        assert ledger.header.target == "cpu"
        assert not [op for op in ledger.ops if op.packet.removeprefix("aten::") in OPS.values()]
        assert flops(rows(ledger)) == 3 * FORWARD
        assert only(ledger, "_scaled_dot_product_flash_attention_for_cpu")
        assert only(ledger, "_scaled_dot_product_flash_attention_for_cpu_backward")


def test_targets_are_read_as_written() -> None:
    assert parse_target("cuda") == Target("cuda", 90)
    assert parse_target("cuda:80") == Target("cuda", 80)
    assert parse_target("cpu").kind == "cpu"
    assert [parse_target(text).name for text in ("cuda", "cuda:80", "cuda:120", "cpu")] == [
        "cuda",
        "cuda:80",
        "cuda:120",
        "cpu",
    ]
    for text in ("gpu", "cuda:", "cuda:8.0", "cuda:0", "tpu"):
        with pytest.raises(BadInput, match="unknown target"):
            parse_target(text)


def test_causal_attention_without_a_fused_kernel_says_so() -> None:
    class Grouped(nn.Module):
        def forward(self, q: Tensor, kv: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, kv, kv, is_causal=True, enable_gqa=True)

    q, kv = torch.randn(1, 8, 16, 64), torch.randn(1, 2, 16, 64)
    assert any("causal FLOPs are counted in full" in note for note in note_texts(infer(Grouped(), q, kv).header.notes))
    assert note_texts(infer(Grouped(), q.bfloat16(), kv.bfloat16()).header.notes) == ()
