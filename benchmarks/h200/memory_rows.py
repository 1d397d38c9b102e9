"""Peak memory of steps of models that nothing here was developed on, and of steps done in other ways, on a GPU.

usage: memory_rows.py OUT.json SECONDS    (needs a CUDA GPU, torchvision and transformers)

Every step runs three times: the first makes the optimizer's state, and before the third the cache is emptied and peaks
are reset, as in the reference rows (tests/data/h200_open.jsonl). cuBLAS's workspaces are given back between cases, so
that each is as in a process of its own.
"""

import gc
import json
import sys
import time
from pathlib import Path

import torch
from held_out_models import BERT_LARGE, LLAMA, cases

from rooflight.models.resolve import given_workload
from rooflight.trace import TraceOptions
from rooflight.trace.stage import staged

OPTIONS = ("batch", "seq", "dtype", "step")
TRACED = ("optimizer", "autocast", "accumulate", "checkpoint", "loss")
WAYS = [
    {"model": "gpt2", "seq": 512, "batch": 8, "step": "train", "autocast": "bf16"},
    {"model": "gpt2", "seq": 512, "batch": 8, "step": "train", "checkpoint": ["blocks"]},
    {"model": "gpt2", "seq": 512, "batch": 8, "step": "train", "dtype": "bf16", "checkpoint": ["blocks"]},
    {"model": "gpt2", "seq": 256, "batch": 8, "step": "train", "accumulate": 3},
    {"model": "gpt2", "seq": 256, "batch": 8, "step": "train", "optimizer": "sgd"},
    {"model": "gpt2", "seq": 256, "batch": 8, "step": "train", "optimizer": "momentum", "loss": "cross-entropy"},
    {"model": "gpt2", "batch": 32, "step": "decode", "past": 700},
    {"model": "gpt2", "batch": 32, "step": "decode", "past": 700, "dtype": "bf16"},
    {"model": "hf:llama", "set": LLAMA, "batch": 16, "step": "decode", "past": 1500, "dtype": "bf16"},
    {"model": "hf:llama", "set": LLAMA, "seq": 1024, "batch": 4, "step": "train", "checkpoint": ["blocks"],
     "dtype": "bf16"},
    {"model": "hf:bert", "set": BERT_LARGE, "seq": 384, "batch": 6, "step": "train", "autocast": "bf16"},
    {"model": "torchvision:wide_resnet50_2", "batch": 24, "step": "train", "autocast": "bf16"},
    {"model": "torchvision:wide_resnet50_2", "batch": 24, "step": "train", "checkpoint": ["blocks"]},
    {"model": "torchvision:wide_resnet50_2", "batch": 24, "step": "train", "optimizer": "adam",
     "loss": "cross-entropy"},
    {"model": "torchvision:wide_resnet50_2", "batch": 12, "step": "train", "accumulate": 2},
    {"model": "torchvision:densenet169", "batch": 24, "step": "train", "autocast": "fp16"},
]  # fmt: skip
"""Training with autocast, checkpoints, accumulation, other optimizers; decoding with a cache."""


def every_case():
    for way in WAYS:
        yield {"set": {}, "seq": None, "dtype": "fp32", **way}
    yield from cases()


def measured(case):
    """The case and its peaks, or why there are none."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    options = {key: case.get(key) for key in OPTIONS}
    traced = {key: case[key] for key in TRACED if key in case}
    if case["step"] == "train":
        traced.setdefault("loss", "mse")
    if "checkpoint" in traced:
        traced["checkpoint"] = tuple(traced["checkpoint"])
    try:
        workload = given_workload(case["model"], (), None, device="cuda", past=case.get("past"), overrides=case["set"],
                                  input_shape=None, download=False, **options)  # fmt: skip
        with staged(workload, TraceOptions(on="cuda", **traced)) as stage:
            for number in range(3):
                arguments = stage.fresh_arguments()
                torch.cuda.synchronize()
                if number == 2:
                    gc.collect()
                    torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
                output = stage.run(arguments)
                torch.cuda.synchronize()
                del output, arguments
            stats = torch.cuda.memory_stats()
            free, total = torch.cuda.mem_get_info()
        return case | {"allocated_before": before, "peak_allocated": stats["allocated_bytes.all.peak"],
                       "peak_reserved": stats["reserved_bytes.all.peak"],
                       "peak_requested": stats["requested_bytes.all.peak"],
                       "outside": total - free - stats["reserved_bytes.all.current"]}  # fmt: skip
    except Exception as error:
        return case | {"error": f"{type(error).__name__}: {error}"[:200]}


def main() -> None:
    out, end = Path(sys.argv[1]), time.time() + float(sys.argv[2])
    head = {"device": torch.cuda.get_device_name(), "torch": str(torch.__version__),
            "cudnn": torch.backends.cudnn.version()}  # fmt: skip
    rows = []
    for case in every_case():
        if time.time() > end:
            print("out of time before", case)
            break
        rows.append(row := measured(case))
        print(*case.values(), row.get("peak_allocated", row.get("error")), flush=True)
        out.write_text(json.dumps(head | {"rows": rows}, indent=1) + "\n")


main()
