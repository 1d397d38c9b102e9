"""Whole steps of models that are in no list of ours, timed op by op: what a predictor is developed against.

usage: whole_steps.py OUT_FOLDER SECONDS [small]    (needs a CUDA GPU, torchvision, timm and transformers)

The 120 reference rows and the built-in models are for testing; the ledgers that this script writes are for looking at
errors op by op while a model of the time is being made.
"""

import gc
import sys
import time
import traceback
from pathlib import Path

import torch

import rooflight
from rooflight.files import save

VISION = [
    "densenet121", "mobilenet_v2", "efficientnet_b0", "regnet_y_1_6gf", "convnext_tiny", "swin_t", "inception_v3",
    "resnext50_32x4d", "squeezenet1_1", "mnasnet1_0", "shufflenet_v2_x1_0",
]  # fmt: skip
LLAMA = {"hidden_size": "1280", "intermediate_size": "3456", "num_hidden_layers": "12", "num_attention_heads": "20",
         "num_key_value_heads": "4", "vocab_size": "32064"}  # fmt: skip
TEXT = [
    ("hf:bert", {}, 200), ("hf:opt", {"num_hidden_layers": "12"}, 320), ("hf:llama", LLAMA, 640), ("hf:t5", {}, 160),
    ("hf:gpt_neox", {"hidden_size": "1024", "num_hidden_layers": "10", "num_attention_heads": "16",
                     "intermediate_size": "4096"}, 384),
]  # fmt: skip


TIMM = ["timm:resnetv2_50", "timm:nfnet_l0", "timm:mobilenetv3_large_100", "timm:convnext_nano"]


def small_batches():
    """Where few works of the calibration were like what a network does: batches of one, grouped convolutions, weights
    that are made in the step, relative positions."""
    for step, batch in (("infer", 1), ("train", 16), ("infer", 16)):
        for dtype in ("bf16", "fp32"):
            for name in ("mobilenet_v2", "efficientnet_b0", "regnet_y_1_6gf", "convnext_tiny", "resnext50_32x4d",
                         "shufflenet_v2_x1_0", "mnasnet1_0"):  # fmt: skip
                yield f"torchvision:{name}", {}, None, batch, dtype, step
            for name in TIMM:
                yield name, {}, None, batch, dtype, step
            yield "hf:t5", {}, 160, batch, dtype, step


def cases():
    if len(sys.argv) > 3:
        yield from small_batches()
        return
    for dtype in ("fp32", "bf16"):
        for step, batch in (("infer", 3), ("infer", 40), ("train", 12)):
            for name, overrides, seq in TEXT:
                yield name, overrides, seq, max(1, batch // 3), dtype, step
            for name in VISION:
                yield f"torchvision:{name}", {}, None, batch, dtype, step


def main() -> None:
    folder, end = Path(sys.argv[1]), time.time() + float(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for name, overrides, seq, batch, dtype, step in cases():
        if time.time() > end:
            print("OUT OF TIME before", name, dtype, step, batch)
            return
        started = time.time()
        label = f"{name.split(':')[1]}-{step}-b{batch}-{dtype}"
        try:
            ledger = rooflight.measure(
                name, batch=batch, seq=seq, step=step, dtype=dtype, overrides=overrides, counters="none", repeat=10 if len(sys.argv) < 4 else 4,
                **({"loss": "mse"} if step == "train" else {}),
            )  # fmt: skip
            save(ledger, folder / f"{label}.json.gz", force=True)
            print(label, len(ledger.ops), f"{time.time() - started:.1f} s", flush=True)
        except Exception:
            print(label, "FAILED", traceback.format_exc().splitlines()[-1][:200], flush=True)
        gc.collect()
        torch.cuda.empty_cache()


main()
