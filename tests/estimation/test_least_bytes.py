"""The least traffic of a step is part of all its traffic: what no op reads is in neither."""

from __future__ import annotations

from typing import Any

import pytest

import rooflight
from rooflight import summary

MIXTURE = {"num_hidden_layers": "2", "hidden_size": "64", "intermediate_size": "128", "num_attention_heads": "4",
           "num_key_value_heads": "2", "vocab_size": "1000"}  # fmt: skip
STEPS: list[tuple[str, dict[str, Any]]] = [
    ("mixtral-8x7b", {"step": "decode", "past": 8, "overrides": MIXTURE}),
    ("mixtral-8x7b", {"step": "train", "seq": 16, "overrides": MIXTURE}),
    ("gpt2", {"step": "decode", "past": 64, "overrides": {"n_layer": "2"}}),
    ("word-lm", {"step": "train", "batch": 2}),
    ("resnet18", {"batch": 4}),
    ("mnist-cnn", {"step": "train"}),
]


@pytest.mark.parametrize(("name", "asked"), STEPS)
def test_the_least_is_part_of_the_sum(name: str, asked: dict[str, Any]) -> None:
    ledger = rooflight.estimate(name, **asked)
    moved = sum((op.cost.bytes_read or 0) + (op.cost.bytes_written or 0) for op in ledger.ops if op.cost is not None)
    assert 0 < summary.bytes_step_min(ledger) <= moved


def test_a_decoded_token_reads_two_of_eight_experts_and_one_row_of_the_embedding() -> None:
    """fp32, past 8: 2 layers of 2 x 64 x 64 + 2 x 64 x 32 of attention, 8 x 64 of the router, 2 norms of 64 and 2 experts
    of 3 x 64 x 128; the head of 1,000 x 64 and a last norm; a row of 64, 2 x 2 caches of 8 x 2 x 16; then 1,000 logits."""
    ledger = rooflight.estimate("mixtral-8x7b", step="decode", past=8, overrides=MIXTURE)
    layer = 2 * 64 * 64 + 2 * 64 * 32 + 8 * 64 + 2 * 64 + 2 * 3 * 64 * 128
    made = sum(tensor.nbytes for tensor in ledger.header.outputs)
    read = 4 * (2 * layer + 1000 * 64 + 64 + 64 + 2 * 2 * 8 * 2 * 16) + 8  # and the token's number
    assert summary.bytes_step_min(ledger) - made == read
