"""Models that nothing here was developed on: neither the reference rows, nor built-in, nor those of whole_steps.py.

`LATER` was added when the first ones had been looked at.
"""

BERT_LARGE = {"hidden_size": "1024", "num_hidden_layers": "12", "num_attention_heads": "16",
              "intermediate_size": "4096"}  # fmt: skip
LLAMA = {"hidden_size": "2048", "intermediate_size": "5632", "num_hidden_layers": "8", "num_attention_heads": "32",
         "num_key_value_heads": "4", "vocab_size": "32000"}  # fmt: skip
MODELS: list[tuple[str, dict[str, str], int | None]] = [
    ("torchvision:regnet_y_800mf", {}, None),
    ("torchvision:mobilenet_v3_large", {}, None),
    ("torchvision:efficientnet_v2_s", {}, None),
    ("torchvision:densenet169", {}, None),
    ("torchvision:vit_b_32", {}, None),
    ("torchvision:convnext_small", {}, None),
    ("torchvision:resnext101_32x8d", {}, None),
    ("hf:roberta", BERT_LARGE, 256),
    ("hf:llama", LLAMA, 512),
    ("hf:electra", {}, 128),
]
QWEN = {"hidden_size": "1536", "intermediate_size": "4608", "num_hidden_layers": "8", "num_attention_heads": "12",
        "num_key_value_heads": "2", "vocab_size": "50000"}  # fmt: skip
LATER: list[tuple[str, dict[str, str], int | None]] = [
    ("torchvision:wide_resnet50_2", {}, None),
    ("torchvision:efficientnet_b3", {}, None),
    ("torchvision:regnet_x_3_2gf", {}, None),
    ("torchvision:vgg13_bn", {}, None),
    ("torchvision:shufflenet_v2_x1_5", {}, None),
    ("torchvision:swin_v2_t", {}, None),
    ("torchvision:vit_l_32", {}, None),
    ("hf:mpnet", {}, 256),
    ("hf:qwen2", QWEN, 384),
    ("hf:albert", {"hidden_size": "768", "intermediate_size": "3072", "num_attention_heads": "12"}, 192),
]


def cases():
    """Every model, inference and training, in both precisions; the later ones first."""
    for models in (LATER, MODELS):
        for step, batch in (("infer", 24), ("train", 16)):
            for dtype in ("bf16", "fp32"):
                for name, overrides, seq in models:
                    size = batch if seq is None else batch // 4
                    yield {"model": name, "set": overrides, "seq": seq, "batch": size, "dtype": dtype, "step": step}
