"""The order of wall times. benchmarks/ratchet.py compares them with measured ones."""

from __future__ import annotations

import rooflight


def test_training_in_sixteen_bits_is_not_slower() -> None:
    """As it was recorded in h200/resnet50-train-fp32 and -bf16: 21.1 and 17.3 ms."""
    for model, batch, seq in (("resnet50", 16, None), ("vit-b-16", 32, None), ("gpt2", 4, 1024)):
        times = {
            dtype: rooflight.predict(model, on="h200", step="train", batch=batch, seq=seq, dtype=dtype, advice=False,
                                     find_savings=False).predictions[0].time_s
            for dtype in ("fp32", "bf16")
        }  # fmt: skip
        assert times["bf16"] < times["fp32"], model
