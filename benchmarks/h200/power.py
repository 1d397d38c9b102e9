"""Watts of sustained work on this GPU, with its rate and clock: what a FLOP and a byte cost in energy.

usage: power.py OUT.json     (a GPU, half a minute)
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import torch

_SECONDS, _SETTLED = 3.0, 1.2
_QUERY = ["nvidia-smi", "--query-gpu=power.draw.instant,clocks.sm", "--format=csv,noheader,nounits", "-lms", "50"]


def sampled(run: Callable[[], float], work: float) -> dict[str, float]:
    """Rate, watts and clock while `run`, which gives the seconds of one call, is repeated."""
    samples: list[tuple[float, float, float]] = []
    reader = subprocess.Popen(_QUERY, stdout=subprocess.PIPE, text=True)

    def read() -> None:
        assert reader.stdout is not None
        for line in reader.stdout:
            watts, clock = line.split(",")
            samples.append((time.monotonic(), float(watts), float(clock)))

    threading.Thread(target=read, daemon=True).start()
    start, taken = time.monotonic(), []
    while time.monotonic() - start < _SECONDS:
        taken.append((time.monotonic(), run()))
    end = time.monotonic()
    reader.terminate()
    late = [row for row in samples if start + _SETTLED < row[0] < end]
    times = [seconds for at, seconds in taken if at > start + _SETTLED]
    middle = sorted(times)[len(times) // 2]
    return {
        "rate": work / middle if work else 0.0,
        "watts": sum(row[1] for row in late) / max(1, len(late)),
        "mhz": sum(row[2] for row in late) / max(1, len(late)),
    }


def timed(call: Callable[[], object], repeats: int) -> Callable[[], float]:
    def run() -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(repeats):
            call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3 / repeats

    return run


def main() -> None:
    side, rows = 8192, {}
    device = torch.device("cuda")
    torch.zeros(1, device=device)
    rows["idle"] = sampled(lambda: time.sleep(0.05) or 0.05, 0.0)
    for name, dtype in (
        ("fp32", torch.float32),
        ("tf32", torch.float32),
        ("bf16", torch.bfloat16),
        ("fp16", torch.float16),
    ):
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
        out = torch.empty_like(a)
        rows[f"gemm.{name}"] = sampled(timed(lambda a=a, b=b, out=out: torch.mm(a, b, out=out), 4), 2.0 * side**3)
    x = torch.randn(1 << 29, device=device)
    y = torch.empty_like(x)
    rows["copy"] = sampled(timed(lambda: y.copy_(x), 8), 2.0 * x.nbytes)
    small, out = (torch.randn(1 << 21, device=device) for _ in range(2))
    rows["copy in the cache"] = sampled(timed(lambda: out.copy_(small), 200), 2.0 * small.nbytes)
    rows["gelu in the cache"] = sampled(timed(lambda: torch.nn.functional.gelu(small), 200), 2.0 * small.nbytes)
    torch.backends.cudnn.allow_tf32 = False
    image, weight = torch.randn(64, 256, 28, 28, device=device), torch.randn(256, 256, 3, 3, device=device)
    flops = 2.0 * 64 * 28 * 28 * 256 * 256 * 9
    for benchmark in (False, True):
        torch.backends.cudnn.benchmark = benchmark
        call = timed(lambda: torch.nn.functional.conv2d(image, weight, padding=1), 10)
        rows[f"conv.fp32{'.benchmark' * benchmark}"] = sampled(call, flops)
    with open(sys.argv[1], "w") as file:
        json.dump({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}, file, indent=1)
    for name, row in rows.items():
        each = (row["watts"] - rows["idle"]["watts"]) / row["rate"] * 1e12 if row["rate"] else 0.0
        print(f"{name:20} {row['rate']:.3e}/s {row['watts']:6.0f} W {row['mhz']:5.0f} MHz {each:6.2f} pJ above idle")


if __name__ == "__main__":
    main()
