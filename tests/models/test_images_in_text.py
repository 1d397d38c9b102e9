"""Models of text and images by name: both are given, so that the vision tower runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rooflight
from rooflight.ledger import total
from rooflight.models import build
from tests.fixtures.notes import note_texts
from tests.fixtures.tracing import flops, rows

TEXT: dict[str, Any] = {
    "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 48, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 64, "pad_token_id": 0,
}  # fmt: skip
ROTARY = {"rope_type": "default", "rope_theta": 1e4}
TURNED = {"rope_parameters": {**ROTARY, "mrope_section": [4, 6, 6]}}
MARKS = {"image_token_id": 60, "video_token_id": 61, "vision_start_token_id": 62, "vision_end_token_id": 63}
QWEN2 = {
    "model_type": "qwen2_vl", "text_config": {**TEXT, **TURNED}, **MARKS,
    "vision_config": {"depth": 1, "embed_dim": 32, "num_heads": 2, "hidden_size": 64},
}  # fmt: skip
QWEN3 = {
    "model_type": "qwen3_vl", "text_config": {**TEXT, **TURNED}, **MARKS,
    "vision_config": {
        "depth": 1, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64,
        "deepstack_visual_indexes": [0],
    },
}  # fmt: skip
MLLAMA = {
    "model_type": "mllama", "text_config": {**TEXT, "cross_attention_layers": [1], "rope_parameters": ROTARY},
    "vision_config": {
        "num_hidden_layers": 2, "num_global_layers": 1, "attention_heads": 2, "hidden_size": 32, "image_size": 28,
        "intermediate_size": 48, "vision_output_dim": 64, "intermediate_layers_indices": [0], "patch_size": 14,
    },
}  # fmt: skip
IDEFICS3 = {
    "model_type": "idefics3", "text_config": {**TEXT, "model_type": "llama"}, "image_token_id": 60, "scale_factor": 2,
    "vision_config": {
        "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 32, "intermediate_size": 48,
        "image_size": 56, "patch_size": 14,
    },
}  # fmt: skip
LLAVA = {
    "model_type": "llava", "text_config": {**TEXT, "model_type": "llama"}, "image_token_id": 60,
    "vision_config": {
        "model_type": "clip_vision_model", "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 32,
        "intermediate_size": 48, "image_size": 56, "patch_size": 14, "projection_dim": 32, "vocab_size": 64,
    },
}  # fmt: skip


def spec(folder: Path, config: dict[str, Any]) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    return f"hf:{folder}"


@pytest.mark.parametrize("config", [QWEN2, QWEN3, MLLAMA, IDEFICS3, LLAVA], ids=lambda config: config["model_type"])
def test_a_trace_without_data_costs_what_the_real_step_does(tmp_path: Path, config: Any) -> None:
    name = spec(tmp_path, config)
    ledger, real = (rooflight.estimate(name, batch=2, seq=8, step="train", real_data=real) for real in (False, True))
    assert total(ledger.ops).flops == total(real.ops).flops
    assert not any("never used" in note or "text alone" in note for note in note_texts(ledger.header.notes))


def test_images_are_cut_into_patches_of_which_four_are_a_token(tmp_path: Path) -> None:
    # 224 pixels are 16 patches of 14; a patch has 3 colours, twice in time: 3 * 2 * 14 * 14 = 1176 numbers.
    name = spec(tmp_path, QWEN2)
    shapes = {
        key: tuple(value.shape) for key, value in build(name, batch=2, seq=8).kwargs.items() if key != "use_cache"
    }
    assert shapes == {
        "input_ids": (2, 64 + 8), "pixel_values": (2 * 256, 1176), "image_grid_thw": (2, 3),
        "position_ids": (3, 2, 72),
    }  # fmt: skip
    ledger = rooflight.estimate(name, batch=2, seq=8)
    assert flops(rows(ledger, "convolution", module="model.visual.patch_embed.proj")) == 2 * 512 * 1176 * 32
    assert "an image is 64 tokens of the sequence, the text 8" in note_texts(ledger.header.notes)


def test_the_places_of_an_image_are_known_where_features_are_added_again(tmp_path: Path) -> None:
    # 224 pixels are 14 patches of 16, or 7 x 7 tokens; of two texts that are 98 places.
    ledger = rooflight.estimate(spec(tmp_path, QWEN3), batch=2, seq=8)
    (read,) = (op for op in rows(ledger, "index") if op.tensor("self").shape == (2, 57, 64))
    assert read.outputs[0].shape == (98, 64)
    assert not any("a mask that is assigned to" in note for note in note_texts(ledger.header.notes))
