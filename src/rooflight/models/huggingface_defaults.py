"""What transformers' default configurations lack to be built or run at all, by model type.

A default is mostly the skeleton of a released configuration; in these types a field that the model cannot do without
has none, or none that fits the others. Each gets it from the released model that is named beside it. Types that are two
models in one get two common ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class CompletedDefault:
    """Fields beside the library's own, and whose they are."""

    of: str
    fields: Mapping[str, Any]


def _layers(number: int, usual: str, others: Sequence[int], other: str = "full_attention") -> list[str]:
    return [other if layer in others else usual for layer in range(number)]


def _music(decoder: str) -> dict[str, dict[str, str]]:
    parts = {"text_encoder": "t5", "audio_encoder": "encodec", "decoder": decoder}
    return {name: {"model_type": kind} for name, kind in parts.items()}


_MROPE = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5, "mrope_section": [8, 12, 12]}
_XDROPE = {"rope_type": "xdrope", "rope_theta": 10_000.0, "alpha": 1000.0, "factor": 1.0, "mrope_section": [16] * 4}
_SIGLIP = {
    "model_type": "siglip_vision_model",
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "patch_size": 14,
    "image_size": 364,
    "vision_use_head": False,
}
_WINDOWED_DINO = {
    "model_type": "rf_detr_dinov2",
    "hidden_size": 384,
    "num_hidden_layers": 12,
    "num_attention_heads": 6,
    "patch_size": 14,
    "image_size": 560,
    "num_windows": 4,
    "out_indices": [2, 5, 8, 11],
}
_DEEPSEEK_3B = {
    "vocab_size": 129_280,
    "hidden_size": 1280,
    "intermediate_size": 6848,
    "num_hidden_layers": 12,
    "num_attention_heads": 10,
    "moe_intermediate_size": 896,
    "num_experts_per_tok": 6,
    "mlp_layer_types": _layers(12, "sparse", (0,), "dense"),
}
_PERCEPTION_ENCODER = {
    "model_type": "timm_wrapper",
    "architecture": "vit_pe_core_large_patch14_336",
    "do_pooling": False,
    "num_classes": 1000,
    "model_args": {
        "embed_dim": 1024,
        "img_size": [448, 448],
        "depth": 23,
        "global_pool": "",
        "use_post_transformer_norm": False,
        "init_values": 0.1,
        "ref_feat_shape": [32, 32],
    },
}


def _seen_as_wide(width: int) -> dict[str, dict[str, int]]:
    """What the vision tower gives takes the place of words."""
    return {"vision_config": {"out_hidden_size": width}}


_IDEFICS = {
    "text_config": {"model_type": "llama", "vocab_size": 128_259},
    "vision_config": {"image_size": 364, "patch_size": 14},
}


def _strokes(side: int) -> dict[str, list[list[int]]]:
    """Convolutions of an intraclass block of PaddleOCR: kernel, stride and padding, tall, wide and square."""
    half, ratio = side // 2, {7: "longratio", 5: "midratio", 3: "shortratio"}[side]
    return {
        f"vertical_long_to_small_conv_{ratio}": [[side, 1], [1, 1], [half, 0]],
        f"horizontal_small_to_long_conv_{ratio}": [[1, side], [1, 1], [0, half]],
        f"symmetric_conv_long_{ratio}": [[side, side], [1, 1], [half, half]],
    }


_INTRACLASS = {
    "intraclass_block_config": {
        "reduce_channel": [1, 1, 0],
        "return_channel": [1, 1, 0],
        **_strokes(7),
        **_strokes(5),
        **_strokes(3),
    },
    "scale_factor_list": [1, 2, 4, 8],
    "kernel_list": [3, 2, 2],
}
_GEMMA_EYE = {"vision_config": {"image_size": 896, "patch_size": 14}}
_DECODER = {"is_decoder": True, "add_cross_attention": True}
_HEAD_DIM = {"head_dim": 128}

COMPLETED: Mapping[str, CompletedDefault] = {
    "aya_vision": CompletedDefault("Aya Vision 8B", {"vision_config": _SIGLIP}),
    "bamba": CompletedDefault("Bamba 9B", {"attn_layer_indices": [9, 18, 27]}),
    "blip-2": CompletedDefault("BLIP-2 OPT 2.7B", {"image_token_index": 50265}),
    "chameleon": CompletedDefault("Chameleon 7B", {"vocabulary_map": {"<image>": 8711}}),
    "dbrx": CompletedDefault("DBRX", {"attn_config": {"rope_theta": 500_000.0, "kv_n_heads": 8, "clip_qkv": 8}}),
    "cohere_compass": CompletedDefault(
        "no released model",
        {
            "text_config": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10_000.0}}},
            **_seen_as_wide(8192),
        },
    ),
    "cosmos3_omni": CompletedDefault("the text's width", _seen_as_wide(4096)),
    "deepseek_ocr2": CompletedDefault("DeepSeek-OCR", {"text_config": _DEEPSEEK_3B}),
    "deepseek_v2": CompletedDefault("DeepSeek-V2", {"num_experts_per_tok": 6}),
    "dots1": CompletedDefault(
        "dots.llm1",
        {"n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1},
    ),
    "emu3": CompletedDefault("no released model", {"vocabulary_map": {"<image>": 151_851}}),
    "encoder-decoder": CompletedDefault(
        "BERT twice", {"encoder": {"model_type": "bert"}, "decoder": {"model_type": "bert", **_DECODER}}
    ),
    "esm": CompletedDefault("ESM-2", {"vocab_size": 33, "mask_token_id": 32, "pad_token_id": 1}),
    "exaone4_5": CompletedDefault("the text's width", _seen_as_wide(4096)),
    "gemma3": CompletedDefault("Gemma 3 4B", _GEMMA_EYE),
    "glm46v": CompletedDefault("GLM-4.1V 9B", {"text_config": {"model_type": "glm4v_text", "rope_parameters": _MROPE}}),
    "glm4v": CompletedDefault("GLM-4.1V 9B", {"text_config": {"rope_parameters": _MROPE}}),
    "glm4v_moe": CompletedDefault("GLM-4.5V", {"text_config": {"rope_parameters": _MROPE, **_HEAD_DIM}}),
    "glm_ocr": CompletedDefault("the text's width", _seen_as_wide(1024)),
    "granitemoehybrid": CompletedDefault(
        "Granite 4.0 Tiny",
        {"num_hidden_layers": 40, "layer_types": _layers(40, "linear_attention", (5, 15, 25, 35))},
    ),
    "hunyuan_v1_dense": CompletedDefault("Hunyuan 7B", _HEAD_DIM),
    "hunyuan_v1_moe": CompletedDefault("Hunyuan A13B", {**_HEAD_DIM, "num_experts": 64, "moe_topk": 8}),
    "hunyuan_vl": CompletedDefault("HunyuanOCR", {"text_config": {**_HEAD_DIM, "rope_parameters": _XDROPE}}),
    "idefics3": CompletedDefault("Idefics3 8B", _IDEFICS),
    "instructblip": CompletedDefault("BLIP-2 OPT 2.7B", {"image_token_index": 50265}),
    "instructblipvideo": CompletedDefault("BLIP-2 OPT 2.7B", {"video_token_index": 50265, "num_frames": 4}),
    "janus": CompletedDefault("the text's width", {"vision_config": {"projection_dim": 4096}}),
    "lfm2_moe": CompletedDefault(
        "LFM2 8B-A1B", {"num_hidden_layers": 24, "layer_types": _layers(24, "conv", (2, 6, 10, 14, 18, 21))}
    ),
    "lw_detr": CompletedDefault("LW-DETR small", {"projector_scale_factors": [1.0]}),
    "ministral": CompletedDefault("Ministral 8B", _HEAD_DIM),
    "moonshine_streaming": CompletedDefault("Moonshine Streaming Tiny", {"num_key_value_heads": 8}),
    "musicgen": CompletedDefault("T5, EnCodec and MusicGen", _music("musicgen_decoder")),
    "musicgen_melody": CompletedDefault("T5, EnCodec and MusicGen Melody", _music("musicgen_melody_decoder")),
    "nemotron": CompletedDefault("Nemotron-4 15B", {"num_key_value_heads": 8}),
    "perception_lm": CompletedDefault("Perception LM 1B", {"vision_config": _PERCEPTION_ENCODER}),
    "pp_doclayout_v2": CompletedDefault("no released model", {"class_thresholds": [0.5, 0.5], "class_order": [0, 1]}),
    "pp_ocrv5_server_det": CompletedDefault("PaddleOCR's PP-OCRv5 server", _INTRACLASS),
    "qwen2_5_vl": CompletedDefault("Qwen2.5-VL 72B", _seen_as_wide(8192)),
    "qwen2_vl": CompletedDefault("Qwen2-VL 72B", {"vision_config": {"hidden_size": 8192}}),
    "qwen3_5": CompletedDefault("the text's width", _seen_as_wide(4096)),
    "qwen3_5_moe": CompletedDefault("the text's width", _seen_as_wide(2048)),
    "qwen3_vl": CompletedDefault("Qwen3-VL 8B", _seen_as_wide(4096)),
    "qwen3_vl_moe": CompletedDefault("Qwen3-VL 30B-A3B", _seen_as_wide(2048)),
    "rf_detr": CompletedDefault("RF-DETR Base", {"backbone_config": _WINDOWED_DINO}),
    "shieldgemma2": CompletedDefault("ShieldGemma 2 4B", _GEMMA_EYE),
    "smolvlm": CompletedDefault("Idefics3 8B", _IDEFICS),
    "speech-encoder-decoder": CompletedDefault(
        "wav2vec 2.0 and BERT", {"encoder": {"model_type": "wav2vec2"}, "decoder": {"model_type": "bert", **_DECODER}}
    ),
    "vision-encoder-decoder": CompletedDefault(
        "ViT and GPT-2", {"encoder": {"model_type": "vit"}, "decoder": {"model_type": "gpt2", **_DECODER}}
    ),
    "step3p7": CompletedDefault("Step 3.5 Flash", {"text_config": {"sliding_window": 512}}),
    "timm_wrapper": CompletedDefault("timm's resnet50", {"architecture": "resnet50", "num_classes": 1000}),
    "xmod": CompletedDefault("X-MOD", {"default_language": "en_XX"}),
}
