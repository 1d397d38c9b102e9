"""Steps of models that nothing here was developed on, timed: neither the reference rows, nor built-in, nor those of
whole_steps.py. What predictions say of them is reported as it comes.

usage: held_out.py OUT.json SECONDS    (needs a CUDA GPU, torchvision and transformers)

What is in OUT already, from the same device and torch, is not timed again. `LATER` was added when the first ones had
been looked at; its rows were timed after the last change to the model of time.
"""

import gc
import json
import sys
import time
from pathlib import Path

import torch

import rooflight

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
    for models in (LATER, MODELS):
        for step, batch in (("infer", 24), ("train", 16)):
            for dtype in ("bf16", "fp32"):
                for name, overrides, seq in models:
                    size = batch if seq is None else batch // 4
                    yield {"model": name, "set": overrides, "seq": seq, "batch": size, "dtype": dtype, "step": step}


def timed(case):
    """The case and what was measured of it, or why nothing was."""
    options = {key: case[key] for key in ("batch", "seq", "step", "dtype")}
    try:
        ledger = rooflight.measure(case["model"], overrides=case["set"], counters="none", repeat=5, **options,
                                   **({"loss": "mse"} if case["step"] == "train" else {}))  # fmt: skip
        whole = next(one for one in ledger.measurements if one.scope == "step").quantities
        return case | {key: whole[key].value for key in ("wall_time_s", "gpu_busy_s", "gpu_time_s", "kernels")}
    except Exception as error:
        return case | {"error": f"{type(error).__name__}: {error}"[:200]}


def main() -> None:
    out, end = Path(sys.argv[1]), time.time() + float(sys.argv[2])
    head = {"device": torch.cuda.get_device_name(), "torch": str(torch.__version__)}
    rows = []
    if out.exists():
        before = json.loads(out.read_text())
        if {key: before[key] for key in head} != head:
            sys.exit(f"{out} is of {before['device']} with torch {before['torch']}: choose another file")
        rows = [row for row in before["rows"] if "error" not in row]
    known = [{key: row[key] for key in ("model", "set", "seq", "batch", "dtype", "step")} for row in rows]
    for case in cases():
        if case in known:
            continue
        if time.time() > end:
            print("out of time before", case)
            break
        rows.append(row := timed(case))
        print(*case.values(), row.get("gpu_time_s", row.get("error")), flush=True)
        out.write_text(json.dumps(head | {"rows": rows}, indent=1) + "\n")
        gc.collect()
        torch.cuda.empty_cache()


main()
