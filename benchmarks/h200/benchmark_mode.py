"""What `torch.backends.cudnn.benchmark` gains: the same convolutions with it and without.

usage: benchmark_mode.py OUT.json SECONDS off|on    (needs a CUDA GPU; a process each: torch keeps what it chose)
       benchmark_mode.py --joined OFF.json ON.json RESULT.json
"""

import json
import sys
import time
from pathlib import Path
from statistics import median

import torch

from rooflight.calibration.case import OutOfPool, TensorPool, precision_set
from rooflight.calibration.clock import gpu_seconds
from rooflight.calibration.convolution import convolution_cases

PRECISIONS = ("fp32", "bf16", "fp16", "tf32")
REPEATS = 10


def timed(task_call):
    for _ in range(2):
        task_call()

    def many():
        for _ in range(REPEATS):
            task_call()

    return median(gpu_seconds(many, waits=False) / REPEATS for _ in range(3))


def main():
    out, seconds, mode = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    torch.backends.cudnn.benchmark = mode == "on"
    pool = TensorPool(torch.device("cuda"), 3 << 30)
    sources = {p: convolution_cases(p, 6e13, 500 + n, 1e-3, channels_last=False) for n, p in enumerate(PRECISIONS)}
    rows, end = [], time.monotonic() + seconds
    with torch.no_grad():
        while time.monotonic() < end:
            for precision, cases in sources.items():
                for one in (next(cases) for _ in range(3)):  # the three ways of a layer
                    pool.reset()
                    try:
                        with precision_set(precision):
                            taken = timed(one.make(pool))
                    except (OutOfPool, RuntimeError):
                        continue
                    rows.append([one.task.family, precision, list(one.task.numbers), round(1e9 * taken)])
    out.write_text(json.dumps(rows) + "\n")
    print(mode, len(rows))


def joined(off, on, result):
    """Ratios of the rows that both have, beside the layers."""
    plain = {(f, p, *n): ns for f, p, n, ns in json.loads(Path(off).read_text())}
    found = []
    for family, precision, numbers, ns in json.loads(Path(on).read_text()):
        without = plain.get((family, precision, *numbers))
        # Shorter than a launch takes, the host is timed and not the kernel.
        if without is not None and without > 40_000:
            found.append([family, precision, *numbers, without, ns])
    Path(result).write_text(json.dumps({"columns": "family, precision, numbers of the layer, ns without, ns with",
                                        "rows": found}) + "\n")  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1] == "--joined":
        joined(*sys.argv[2:])
    else:
        main()
