"""Plain wall time of steps that wait for the host, to judge predictions by that were calibrated on the same machine.

usage: wall_times.py OUT.json SECONDS [CALIBRATION]    (needs a CUDA GPU; run it right after `rooflight calibrate`)

Host-bound steps differ by 21% between two machines of the same kind, so they say something about a prediction only
where its calibration is of the same machine and hour. CALIBRATION, the file that was just made, is remembered by the
digest of what it says of the host, so that the page can say whether the two belong together.

Time is taken as in the reference rows: n steps back to back, then one synchronisation; three such runs, of which the
median counts and the others are the spread. No profiler has run in the process before: it would slow every launch.
GPU-busy times are taken by one afterwards, to tell which steps wait for the host.
"""

import gc
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import torch

from rooflight.hardware.calibration import host_digest, read
from rooflight.measurement.machine.conditions import driver_version
from rooflight.models import build

MODELS = (("resnet18", None), ("resnet50", None), ("googlenet", None), ("gpt2", 128), ("distilbert-mlm", 128),
          ("transformer", 128), ("mnist-cnn", None))  # fmt: skip
BUDGET_S = 0.45


def cases():
    """Those that wait for the host most come first: a run that is cut off has them all in one precision."""
    for dtype in ("fp32", "bf16"):
        for step, batch in (("infer", 1), ("train", 8)):
            for model, seq in MODELS:
                yield {"model": model, "seq": seq, "step": step, "batch": batch, "dtype": dtype}
    for model, seq in (("resnet50", None), ("gpt2", 128)):
        for dtype in ("fp32", "bf16"):
            yield {"model": model, "seq": seq, "step": "infer", "batch": 8, "dtype": dtype}


def stepper(case):
    """The step of the reference rows: mean-square loss, SGD with momentum or AdamW, eager."""
    torch.manual_seed(0)
    workload = build(case["model"], batch=case["batch"], seq=case["seq"], step=case["step"], dtype=case["dtype"],
                     device="cuda")  # fmt: skip
    model, args, kwargs = workload.model, workload.args, workload.kwargs
    if case["step"] == "infer":

        def infer():
            with torch.no_grad():
                model(*args, **kwargs)

        return infer
    optimizer = (torch.optim.AdamW(model.parameters(), lr=1e-4) if workload.optimizer == "adamw"
                 else torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))  # fmt: skip

    def train():
        optimizer.zero_grad(set_to_none=True)
        model(*args, **kwargs).float().square().mean().backward()
        optimizer.step()

    return train


def timed(step):
    """Seconds a step of three runs."""
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    torch.cuda.synchronize()
    repeats = max(5, min(100, int(BUDGET_S / 3 / (time.perf_counter() - start))))
    runs = []
    for _ in range(3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(repeats):
            step()
        torch.cuda.synchronize()
        runs.append((time.perf_counter() - start) / repeats)
    return runs


def gpu_busy(step, repeats=3):
    from torch.profiler import ProfilerActivity, profile

    step()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as found:
        for _ in range(repeats):
            step()
        torch.cuda.synchronize()
    events = [event for event in found.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return sum(event.device_time_total for event in events) * 1e-6 / repeats


def attempt(row, fill):
    """Run one case and keep what it found, or why it failed."""
    try:
        row |= fill(stepper(row["case"]))
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {error}"[:300]
    gc.collect()
    torch.cuda.empty_cache()


def walls(step):
    runs = timed(step)
    return {"wall_s": sorted(runs)[1], "runs_s": runs}


def main():
    path, until = Path(sys.argv[1]), time.monotonic() + float(sys.argv[2])
    found = {
        "device": torch.cuda.get_device_name(), "torch": str(torch.__version__), "driver": driver_version(),
        "made": datetime.now(UTC).isoformat(timespec="minutes"),
        "calibrated_host": host_digest(read(Path(sys.argv[3]))) if len(sys.argv) > 3 else None,
        "rows": [],
    }  # fmt: skip
    for case in cases():
        if time.monotonic() > until:
            found["stopped"] = f"out of time at {case}"
            break
        row = {"case": case}
        attempt(row, walls)
        found["rows"].append(row)
        path.write_text(json.dumps(found, indent=1))
        print(*case.values(), f"{1e3 * row['wall_s']:.3f} ms" if "wall_s" in row else row["error"], flush=True)
    for row in found["rows"]:
        if time.monotonic() > until:
            break
        if "wall_s" in row:
            attempt(row, lambda step: {"gpu_s": gpu_busy(step)})
            path.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
