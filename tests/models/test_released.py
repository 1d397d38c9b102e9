"""Released models by name: each has as many parameters as its release."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from torch import nn

import rooflight
from rooflight.commands.main import cli
from rooflight.errors import BadInput
from rooflight.models import build, describe, model_names, registry
from rooflight.models.released import RELEASED
from tests.fixtures.notes import note_texts


def parameters(model: nn.Module) -> int:
    """As the releases count: what balances the experts of DeepSeek-V3 is a weight there, and a buffer in transformers."""
    balance = [value for name, value in model.named_buffers() if name.endswith("e_score_correction_bias")]
    return sum(value.numel() for value in (*model.parameters(), *balance))


@pytest.mark.parametrize("name", list(RELEASED))
def test_parameters_are_as_published(name: str) -> None:
    entry = RELEASED[name]
    assert entry.has(parameters(build(name, seq=8 if entry.type != "sam" else None).model))


def test_a_rounded_number_is_compared_to_its_last_digit() -> None:
    entry = RELEASED["gpt-oss-20b"]  # 20.91 B
    assert entry.has(20_914_000_000) and not entry.has(20_916_000_000)


def test_names_are_listed_and_found() -> None:
    listed = [name for names in model_names().values() for name in names]
    assert sorted(listed) == sorted(registry.NAMES)
    assert describe("qwen3-8b") == "Qwen3 8B; 8,190,735,360 parameters"
    assert describe("qwen3_8b") == describe("qwen3-8b")
    with pytest.raises(rooflight.RooflightError, match=r"no built-in model 'qwen3-8'; did you mean qwen3-8b"):
        build("qwen3-8")


def test_the_list_is_by_family() -> None:
    lines = CliRunner().invoke(cli, ["list", "models"]).output.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == [f"{family}:" for family in model_names()]
    assert "  qwen3-8b                Qwen3 8B; 8,190,735,360 parameters" in lines


def test_steps_of_a_released_model() -> None:
    workload = build("llama3.2-1b", batch=3)
    assert tuple(workload.kwargs["input_ids"].shape) == (3, 2048)
    decode = build("llama3.2-1b", step="decode", past=40)
    assert decode.kwargs["past_key_values"].get_seq_length() == 40
    small = build("llama3.2-1b", overrides={"num_hidden_layers": "2"}, seq=16)
    assert len(small.model.model.layers) == 2  # type: ignore[union-attr, arg-type]


def test_a_released_model_costs_what_the_built_in_one_does() -> None:
    """Llama 3.1 8B has the shapes of Llama 3 8B; both are traced here, by transformers' code and by ours."""
    layers = {"num_hidden_layers": "2"}
    ours, theirs = (
        rooflight.estimate(name, seq=64, dtype="bf16", overrides=layers) for name in ("llama3-8b", "llama3.1-8b")
    )
    assert sum(op.cost.macs or 0 for op in ours.ops if op.cost) == sum(
        op.cost.macs or 0 for op in theirs.ops if op.cost
    )


def test_the_librarys_default_is_said_to_be_no_released_model() -> None:
    (note,) = note_texts(build("hf:qwen2", seq=8).notes)
    assert note == (
        "hf:qwen2 is the library's default configuration (12.05 B parameters), not one of the released models: "
        "qwen2-0.5b, qwen2-1.5b, qwen2-7b, qwen2-72b, qwen2.5-0.5b, qwen2.5-1.5b, qwen2.5-3b, qwen2.5-7b, "
        "qwen2.5-14b, qwen2.5-32b, qwen2.5-72b"
    )
    assert note_texts(build("hf:bert").notes) == ()  # it is BERT base
    assert "which need not be a released model" in note_texts(build("hf:xglm").notes)[0]


def test_text_with_images() -> None:
    layers = {"text_config.num_hidden_layers": "1", "vision_config.num_hidden_layers": "2"}
    workload = build("llava-1.5-7b", batch=2, seq=10, overrides=layers)
    # 336 / 14 = 24 patches a side.
    assert tuple(workload.kwargs["input_ids"].shape) == (2, 24 * 24 + 10)
    assert tuple(workload.kwargs["pixel_values"].shape) == (2, 3, 336, 336)
    assert note_texts(workload.notes) == ("an image is 576 tokens of the sequence, the text 10",)
    ledger = rooflight.estimate("llava-1.5-7b", seq=10, step="train", dtype="bf16", overrides=layers)
    assert {op.phase for op in ledger.ops} == {"forward", "backward", "optimizer"}
    assert any(op.module.startswith("model.vision_tower") for op in ledger.ops)


def test_the_size_of_an_image_can_be_set() -> None:
    layers = {"text_config.num_hidden_layers": "1", "vision_config.num_hidden_layers": "1"}
    workload = build(
        "clip-vit-b-32", input_shape=(3, 192, 192), overrides={**layers, "vision_config.image_size": "192"}
    )
    assert tuple(workload.kwargs["pixel_values"].shape) == (1, 3, 192, 192)
    assert tuple(workload.kwargs["input_ids"].shape) == (1, 77)


def test_both_towers() -> None:
    layers = {"text_config.num_hidden_layers": "1", "vision_config.num_hidden_layers": "1"}
    ledger = rooflight.estimate("clip-vit-b-32", batch=2, overrides=layers)
    assert {"text_model", "vision_model"} <= {op.module.partition(".")[0] for op in ledger.ops}
    assert not [note for note in note_texts(ledger.header.notes) if "never used" in note]


def test_nested_settings() -> None:
    with pytest.raises(BadInput, match=r"has no argument 'text_config.num_hiden_layers'; did you mean text_config.num"):
        build("clip-vit-b-32", overrides={"text_config.num_hiden_layers": "2"})
    with pytest.raises(BadInput, match=r"wants a whole number for vision_config\.patch_size"):
        build("clip-vit-b-32", overrides={"vision_config.patch_size": "x"})


INPUTS = {
    "hf:wav2vec2": {"input_values": (2, 160_000)},
    "hf:whisper": {"input_features": (2, 80, 3000), "decoder_input_ids": (2, 128)},
    "hf:audio-spectrogram-transformer": {"input_values": (2, 1024, 128)},
    "hf:videomae": {"pixel_values": (2, 16, 3, 224, 224)},
    "hf:sam": {"pixel_values": (2, 3, 1024, 1024), "input_points": (2, 1, 1, 2)},
    "hf:detr": {"pixel_values": (2, 3, 640, 640)},
    "hf:siglip": {"input_ids": (2, 64), "pixel_values": (2, 3, 224, 224)},
}


@pytest.mark.parametrize("spec", list(INPUTS))
def test_default_inputs(spec: str) -> None:
    shapes = {name: tuple(value.shape) for name, value in build(spec, batch=2).kwargs.items()}
    assert shapes == INPUTS[spec]


def test_training_leaves_the_cache_to_the_model() -> None:
    assert "use_cache" not in build("hf:gpt2", step="train", overrides={"n_layer": "1"}).kwargs
