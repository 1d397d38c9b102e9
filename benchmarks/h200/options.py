"""What each option of a step gains, measured: the same step plain and with every change that advice knows.

usage: options.py OUT.json SECONDS    (needs a CUDA GPU)

`python benchmarks/options.py` holds them against what is predicted for the same options.
"""

import gc
import json
import sys
import time
from pathlib import Path

import torch

import rooflight

STEPS = (
    {"model": "resnet50", "batch": 16, "step": "train"},
    {"model": "resnet50", "batch": 64, "step": "train"},
    {"model": "vgg19", "batch": 16, "step": "train"},
    {"model": "googlenet", "batch": 32, "step": "train", "dtype": "bf16"},
    {"model": "gpt2", "batch": 4, "seq": 1024, "step": "train", "dtype": "bf16"},
    {"model": "vit-b-16", "batch": 32, "step": "train"},
    {"model": "distilbert", "batch": 16, "seq": 128, "step": "train"},
    {"model": "resnet18", "batch": 64},
)
OPTIONS = ({}, {"fused": True}, {"channels_last": True}, {"graphs": True}, {"compile": True}, {"tf32": True},
           {"fused": True, "channels_last": True})  # fmt: skip


def timed(step: dict, options: dict) -> dict:
    """The case and what was measured of it, or why nothing was."""
    case = {**step, **options}
    try:
        ledger = rooflight.measure(counters="none", repeat=10, **case)
        whole = next(one for one in ledger.measurements if one.scope == "step").quantities
        return {**case, **{key: whole[key].value for key in ("wall_time_s", "gpu_busy_s", "kernel_time_s", "kernels")}}
    except Exception as error:
        return {**case, "error": f"{type(error).__name__}: {error}"[:200]}


def main() -> None:
    out, end = Path(sys.argv[1]), time.time() + float(sys.argv[2])
    head = {"device": torch.cuda.get_device_name(), "torch": str(torch.__version__)}
    rows = []
    for step in STEPS:
        for options in OPTIONS:
            if time.time() > end:
                print("out of time before", step, options)
                return
            training, images = step.get("step") == "train", "seq" not in step
            if ("fused" in options and not training) or ("channels_last" in options and not images):
                continue
            if "tf32" in options and step.get("dtype"):
                continue
            rows.append(row := timed(step, options))
            print(*row.values(), flush=True)
            out.write_text(json.dumps(head | {"rows": rows}, indent=1) + "\n")
            gc.collect()
            torch.cuda.empty_cache()
            torch.compiler.reset()


main()
