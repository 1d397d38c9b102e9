"""FLOPs and parameters of 120 steps that ran on an H200, counted there by FlopCounterMode (torch 2.11).

tests/data/h200_flops.json: 12 models in fp32 and bf16, inference and training, at several batches, as torchvision and
Hugging Face implement them. The estimate needs no GPU and must agree to the last digit, except where FlopCounterMode
does not see the fused layers of nn.Transformer's inference: there the difference must be exactly those.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

import rooflight
from rooflight.ledger import total
from rooflight.summary import params
from tests.fixtures.paths import DATA

ROWS = json.loads((DATA / "h200_flops.json").read_text())
NAMES = {
    "mnist_cnn": ("mnist-cnn", None), "transformer_s128": ("transformer", 128), "distilbert_s128": ("distilbert-mlm", 128),
    "gpt2_s128": ("gpt2", 128), "gpt2_s1024": ("gpt2", 1024),
}  # fmt: skip
FUSED = ("aten::_transformer_encoder_layer_fwd", "aten::_native_multi_head_attention")


@cache
def estimated(model: str, dtype: Any, mode: Any):
    """FLOPs per sample, those of them that torch does not see, and parameters."""
    name, seq = NAMES.get(model, (model, None))
    ledger = rooflight.estimate(name, batch=2, seq=seq, dtype=dtype, step=mode, loss="mse" if mode == "train" else None)
    sums, unseen = total(ledger.ops), total(op for op in ledger.ops if op.name in FUSED)
    assert (sums.flops + sums.recompute_flops) % 2 == 0
    return (sums.flops + sums.recompute_flops) // 2, unseen.flops // 2, params(ledger)


@pytest.mark.parametrize("row", ROWS, ids=[f"{r['model']}-{r['mode']}-{r['dtype']}-b{r['batch']}" for r in ROWS])
def test_flops_of_a_step_on_the_gpu(row):
    flops, unseen, count = estimated(row["model"], row["dtype"], row["mode"])
    assert count == row["params"]
    assert row["batch"] * (flops - unseen) == row["torch_flops"]
    assert bool(unseen) == (row["model"] == "transformer_s128" and row["mode"] == "infer")
