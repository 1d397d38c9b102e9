"""Measures the steps that ship as `recorded:h200/...`, each by the command line in a process of its own.

usage: recordings.py FOLDER [NAME ...]    (needs a CUDA GPU; writes NAME.json.gz and seconds.json)
"""

import json
import subprocess
import sys
import time
from pathlib import Path

MODELS = {
    "resnet50": ["resnet50", "--batch", "16"],
    "vgg19": ["vgg19", "--batch", "16"],
    "gpt2": ["gpt2", "--batch", "4", "--seq", "1024"],
    "distilbert": ["distilbert", "--batch", "16", "--seq", "128"],
    "transformer": ["transformer", "--batch", "16"],
}
CASES = {
    "mnist-cnn-infer-tf32": ["mnist-cnn", "--batch", "64", "--per-kernel"],
    "mnist-cnn-infer-fp32": ["mnist-cnn", "--batch", "64", "--per-kernel", "--no-tf32"],
    "mnist-cnn-train-tf32": [
        "mnist-cnn",
        "--batch",
        "64",
        "--per-kernel",
        "--step",
        "train",
        "--level",
        "dram",
        "--level",
        "l2",
        "--level",
        "l1",
    ],
}
for model, arguments in MODELS.items():
    for step in ("infer", "train"):
        for dtype in ("fp32", "bf16"):
            CASES[f"{model}-{step}-{dtype}"] = [*arguments, "--step", step, "--dtype", dtype]
CASES["vit-b-16-train-bf16"] = ["vit-b-16", "--batch", "32", "--step", "train", "--dtype", "bf16"]
CASES["resnet50-train-fp32-compiled"] = [*CASES["resnet50-train-fp32"], "--compile"]
CASES["resnet50-train-fp32-graph"] = [*CASES["resnet50-train-fp32"], "--graphs"]
CASES["gpt2-infer-bf16-compiled"] = [*CASES["gpt2-infer-bf16"], "--compile"]


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    seconds = {}
    for name in sys.argv[2:] or CASES:
        line = [
            sys.executable,
            "-m",
            "rooflight",
            "measure",
            *CASES[name],
            "--spread",
            "-o",
            f"{name}.json.gz",
            "--force",
            "--depth",
            "0",
        ]
        start = time.perf_counter()
        ended = subprocess.run(line, capture_output=True, text=True, cwd=folder)
        seconds[name] = time.perf_counter() - start
        print(f"{name:32} {seconds[name]:6.1f} s  exit {ended.returncode}", flush=True)
        if ended.returncode:
            print(ended.stderr[-600:], flush=True)
        for text in ended.stdout.splitlines():
            if text.startswith("note: counters") or "not measured" in text or "attributed" in text:
                print("   ", text[:240], flush=True)
    (folder / "seconds.json").write_text(json.dumps(seconds, indent=1))


main()
