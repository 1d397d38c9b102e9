"""Steps of models that nothing here was developed on, timed: neither the reference rows, nor built-in, nor those of
whole_steps.py. What predictions say of them is reported as it comes.

usage: held_out.py OUT.json SECONDS    (needs a CUDA GPU, torchvision and transformers)
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


def main() -> None:
    out, end = Path(sys.argv[1]), time.time() + float(sys.argv[2])
    rows = []
    for step, batch in (("infer", 24), ("train", 16)):
        for dtype in ("bf16", "fp32"):
            for name, overrides, seq in MODELS:
                if time.time() > end:
                    break
                size = batch if seq is None else batch // 4
                row = {"model": name, "set": overrides, "seq": seq, "batch": size, "dtype": dtype, "step": step}
                try:
                    ledger = rooflight.measure(
                        name, batch=size, seq=seq, step=step, dtype=dtype, overrides=overrides, counters="none",
                        repeat=5, **({"loss": "mse"} if step == "train" else {}),
                    )  # fmt: skip
                    whole = next(one for one in ledger.measurements if one.scope == "step").quantities
                    row |= {key: whole[key].value for key in ("wall_time_s", "gpu_busy_s", "gpu_time_s", "kernels")}
                except Exception as error:
                    row["error"] = f"{type(error).__name__}: {error}"[:200]
                rows.append(row)
                print(name, step, dtype, size, row.get("gpu_time_s", row.get("error")), flush=True)
                gc.collect()
                torch.cuda.empty_cache()
    document = {"device": torch.cuda.get_device_name(), "torch": str(torch.__version__), "rows": rows}
    out.write_text(json.dumps(document, indent=1) + "\n")


main()
