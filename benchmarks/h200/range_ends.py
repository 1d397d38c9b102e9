"""How the end of an op's range changes the bytes that are counted in it: at once, when the GPU is done, or later still.

usage: range_ends.py OUT.json    (needs a CUDA GPU)
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import rooflight
from rooflight.measurement.cupti import op_counters
from rooflight.summary.measured import Measured
from rooflight.summary.measured_step import self_check

STEPS = {"distilbert": {"batch": 16, "seq": 128, "dtype": "bf16"}, "transformer": {"batch": 16}}


def waiting(seconds: float) -> Callable[[], None]:
    def wait() -> None:
        torch.cuda.synchronize()
        time.sleep(seconds)

    return wait


def ending(wait: Callable[[], None]) -> Callable[[Any, int], None]:
    def after(ranges: Any, index: int) -> None:
        if index in ranges._window:
            wait()
            ranges._profiler.pop()

    return after


ENDS = {
    "at once": lambda: None,
    "the GPU is done": torch.cuda.synchronize,
    "100 µs later": waiting(1e-4),
    "2 ms later": waiting(2e-3),
}


def main() -> None:
    rows = []
    for model, step in STEPS.items():
        for end, wait in ENDS.items():
            op_counters._OpRanges.after = ending(wait)
            ledger = rooflight.measure(model, device="cuda", repeat=3, **step)
            found = {check.name: check for check in self_check(Measured(ledger))}
            read, written = found["dram_bytes_read"], found["dram_bytes_written"]
            rows.append({
                "step": " ".join(map(str, (model, *step.values()))), "end": end,
                "ops": sum(row.scope == "op" and "cuda_flops_fp32" in row.quantities for row in ledger.measurements),
                "read_of_ops": read.sum_of_ops, "read_of_step": read.whole_step,
                "written_of_ops": written.sum_of_ops, "written_of_step": written.whole_step,
            })  # fmt: skip
            print(rows[-1], flush=True)
    Path(sys.argv[1]).write_text(json.dumps(rows, indent=1))


main()
