"""The largest batch that really trains on a GPU, by halving: what `rooflight predict --max-batch` is judged by.

usage: largest_batch.py OUT.json SECONDS    (needs a CUDA GPU)

A batch fits if three steps run. Each is tried in a process of its own, as a user would start it.
"""

import gc
import json
import subprocess
import sys
import time
from pathlib import Path

CASES = [
    {"model": "resnet50", "seq": None, "dtype": "fp32", "guess": 1560},
    {"model": "gpt2", "seq": 1024, "dtype": "fp32", "guess": 66},
    {"model": "resnet50", "seq": None, "dtype": "bf16", "guess": 3150},
    {"model": "gpt2", "seq": 1024, "dtype": "bf16", "guess": 132},
]


def run(case: dict, batch: int) -> None:
    import torch

    from rooflight.trace.given import given_workload
    from rooflight.trace.stage import TraceOptions, staged

    workload = given_workload(case["model"], (), None, device="cuda", past=None, overrides=None, input_shape=None,
                              download=False, batch=batch, seq=case["seq"], dtype=case["dtype"],
                              step="train")  # fmt: skip
    try:
        with staged(workload, TraceOptions(on="cuda")) as stage:
            for _ in range(3):
                stage.run()
            torch.cuda.synchronize()
            stats = torch.cuda.memory_stats()
            free, total = torch.cuda.mem_get_info()
        print(json.dumps({"fits": True, "peak_allocated": stats["allocated_bytes.all.peak"],
                          "peak_reserved": stats["reserved_bytes.all.peak"], "retries": stats["num_alloc_retries"],
                          "device_used": total - free}))  # fmt: skip
    except torch.cuda.OutOfMemoryError as error:
        print(json.dumps({"fits": False, "error": str(error)[:300]}))
    finally:
        gc.collect()


def tried(case: dict, batch: int) -> dict:
    command = [sys.executable, __file__, "one", json.dumps(case), str(batch)]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    found = json.loads(lines[-1]) if lines else {"fits": False, "error": done.stderr[-300:]}
    print(case["model"], case["dtype"], batch, found, flush=True)
    return {"batch": batch, **found}


def search(case: dict, end: float) -> dict:
    log = []

    def fits(batch: int) -> bool:
        log.append(tried(case, batch))
        return bool(log[-1]["fits"])

    low, high, size = 0, None, case["guess"]
    step = max(1, size // 16)
    while (high is None or low == 0) and time.time() < end:
        if fits(size):
            low, size = size, size + step
        else:
            high, size = size, max(1, size - step)
        step *= 2
    while high is not None and high - low > max(1, low // 200) and time.time() < end:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return {**case, "largest": low, "fails": high, "tried": log}


def main() -> None:
    if sys.argv[1] == "one":
        run(json.loads(sys.argv[2]), int(sys.argv[3]))
        return
    import torch

    out, end = Path(sys.argv[1]), time.time() + float(sys.argv[2])
    head = {"device": torch.cuda.get_device_name(), "torch": str(torch.__version__)}
    rows = []
    for case in CASES:
        if time.time() < end:
            rows.append(search(case, end))
            out.write_text(json.dumps({**head, "rows": rows}, indent=1) + "\n")
            print("largest", case["model"], case["dtype"], rows[-1]["largest"], rows[-1]["fails"], flush=True)


main()
