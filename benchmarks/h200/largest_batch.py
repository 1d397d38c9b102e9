"""The largest batch that really trains on a GPU, by halving: what `rooflight predict --max-batch` is judged by.

usage: largest_batch.py OUT.json SECONDS [WAY ...]    (needs a CUDA GPU)

A batch fits if three steps run. Each is tried in a process of its own, as a user would start it. Ways: `plain`, a
training loop in which the optimizer makes its state in the first step; `expandable`, the same with segments that grow;
`state first`, where an update before the first step makes it, as `rooflight measure` does: where blocks lie then is
not the same, and so is not what fits. The search starts at what `--max-batch` says, so that its answer is tried itself.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CASES = [
    {"model": "gpt2", "seq": 1024, "dtype": "fp32", "guess": {"plain": 70, "expandable": 77, "state first": 76}},
    {
        "model": "resnet50",
        "seq": None,
        "dtype": "fp32",
        "guess": {"plain": 1690, "expandable": 1717, "state first": 1696},
    },
    {"model": "gpt2", "seq": 1024, "dtype": "bf16", "guess": {"plain": 139, "expandable": 154, "state first": 145}},
    {
        "model": "resnet50",
        "seq": None,
        "dtype": "bf16",
        "guess": {"plain": 3299, "expandable": 3345, "state first": 3250},
    },
]


def run(case: dict[str, Any], way: str, batch: int) -> None:
    import torch

    from rooflight.models.resolve import given_workload
    from rooflight.trace import TraceOptions
    from rooflight.trace.stage import staged

    workload = given_workload(case["model"], (), None, device="cuda", past=None, overrides=None, input_shape=None,
                              download=False, batch=batch, seq=case["seq"], dtype=case["dtype"],
                              step="train")  # fmt: skip
    try:
        if way != "state first":
            plain_loop(workload)
        else:
            with staged(workload, TraceOptions(on="cuda")) as stage:
                for _ in range(3):
                    stage.run()
        torch.cuda.synchronize()
        stats = torch.cuda.memory_stats()
        free, total = torch.cuda.mem_get_info()
        print(json.dumps({"fits": True, "peak_allocated": stats["allocated_bytes.all.peak"],
                          "peak_reserved": stats["reserved_bytes.all.peak"], "retries": stats["num_alloc_retries"],
                          "device_used": total - free}))  # fmt: skip
    except torch.cuda.OutOfMemoryError:
        print(json.dumps({"fits": False, "error": "CUDA out of memory"}))


def plain_loop(workload: Any) -> None:
    import torch
    import torch.nn.functional as F

    from rooflight.trace.step import main_output

    model, parameters = workload.model, list(workload.model.parameters())
    adam = workload.optimizer == "adamw"
    optimizer = torch.optim.AdamW(parameters, lr=1e-4) if adam else torch.optim.SGD(parameters, lr=0.01, momentum=0.9)
    torch.cuda.empty_cache()
    labels = None
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        output = model(*workload.args, **workload.kwargs)
        scores = main_output(output)
        scores = scores.reshape(-1, scores.shape[-1])
        if labels is None:
            labels = torch.zeros(scores.shape[0], dtype=torch.long, device="cuda")
        loss = F.cross_entropy(scores, labels)
        loss.backward()
        del loss
        optimizer.step()
        del output, scores


def tried(case: dict[str, Any], way: str, batch: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "one", json.dumps(case), way, str(batch)]
    settings = "expandable_segments:True" if way == "expandable" else ""
    named = dict.fromkeys(("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"), settings)
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | named)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    found = json.loads(lines[-1]) if lines else {"fits": False, "error": done.stderr[-300:]}
    print(case["model"], case["dtype"], way, batch, found, flush=True)
    return {"batch": batch, **found}


def search(case: dict[str, Any], way: str, end: float) -> dict[str, Any]:
    log: list[dict[str, Any]] = []

    def fits(batch: int) -> bool:
        log.append(tried(case, way, batch))
        return bool(log[-1]["fits"])

    size = case["guess"][way]
    low, high, step = 0, None, max(1, size // 40)
    while (high is None or low == 0) and time.time() < end:
        if fits(size):
            low, size = size, size + step
        else:
            high, size = size, max(1, size - step)
        step *= 2
    while high is not None and high - low > max(1, low // 200) and time.time() < end:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    known = {name: value for name, value in case.items() if name != "guess"}
    return {**known, "way": way, "largest": low, "fails": high, "tried": log}


def main() -> None:
    if sys.argv[1] == "one":
        run(json.loads(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
        return
    import torch

    out, end = Path(sys.argv[1]), time.time() + float(sys.argv[2])
    head = {"device": torch.cuda.get_device_name(), "torch": str(torch.__version__)}
    rows = json.loads(out.read_text())["rows"] if out.exists() else []
    for way in sys.argv[3:] or ("plain",):
        for case in CASES:
            if time.time() < end:
                rows.append(row := search(case, way, end))
                out.write_text(json.dumps({**head, "rows": rows}, indent=1) + "\n")
                print("largest", case["model"], case["dtype"], way, row["largest"], row["fails"], flush=True)


main()
