"""Plain wall time of steps that wait for the host, to judge predictions by that were calibrated on the same machine.

usage: wall_times.py OUT.json SECONDS [CALIBRATION]    (needs a CUDA GPU; run it before `rooflight calibrate`, and after)

Host-bound steps differ by 21% between two machines of the same kind, so they say something about a prediction only
where its calibration is of the same machine and hour. CALIBRATION, the file that was just made, is remembered by the
digest of what it says of the host, so that the page can say whether the two belong together.

Time is taken as in the reference rows: n steps back to back, then one synchronisation. A host is slow for seconds at a
time, up to twice, so all steps take turns, round after round; a second call adds its rounds to those in OUT. Their
median counts, and what half of them lie within is the spread. No profiler has run in the process before: it would slow
every launch. GPU-busy times are taken by one at the end of the call that is given a calibration, to tell which steps
wait for the host.
"""

import gc
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import torch

from rooflight.hardware.calibration import host_digest, read
from rooflight.measurement.machine.conditions import driver_version
from rooflight.models import build

MODELS = (("resnet18", None), ("resnet50", None), ("googlenet", None), ("gpt2", 128), ("distilbert-mlm", 128),
          ("transformer", 128), ("mnist-cnn", None))  # fmt: skip
RUN_S = 0.1
PROFILING_S = 8


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


def repeats_of(step):
    """How many steps take about as long as a run is to take."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return max(3, min(50, int(RUN_S / (time.perf_counter() - start))))


def run_seconds(step, repeats):
    """Seconds a step of one run; two steps before it bring the host's caches back."""
    step()
    step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats


def gpu_busy(step, repeats=3):
    from torch.profiler import ProfilerActivity, profile

    step()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as found:
        for _ in range(repeats):
            step()
        torch.cuda.synchronize()
    events = [event for event in found.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return sum(event.device_time_total for event in events) * 1e-6 / repeats


def begun(path):
    """What an earlier call has left, by case."""
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    return {json.dumps(row["case"]): row for row in rows}


def main():
    path, until = Path(sys.argv[1]), time.monotonic() + float(sys.argv[2])
    calibration = Path(sys.argv[3]) if len(sys.argv) > 3 else None
    before = begun(path)
    rows, steps = [], []
    for case in cases():
        row = before.get(json.dumps(case), {"case": case, "runs_s": []})
        step = stepper(case)
        rows.append(row)
        steps.append((row, step, repeats_of(step)))
    gc.collect()
    gc.freeze()
    rounds = 0
    while rounds < 2 or time.monotonic() < until - PROFILING_S:
        for row, step, repeats in steps:
            row["runs_s"].append(run_seconds(step, repeats))
        rounds += 1
    for row in rows:
        row["wall_s"] = median(row["runs_s"])
    if calibration is not None:
        for row, step, _ in steps:
            row["gpu_s"] = gpu_busy(step)
    found = {
        "device": torch.cuda.get_device_name(), "torch": str(torch.__version__), "driver": driver_version(),
        "made": datetime.now(UTC).isoformat(timespec="minutes"),
        "calibrated_host": None if calibration is None else host_digest(read(calibration)), "rows": rows,
    }  # fmt: skip
    path.write_text(json.dumps(found, indent=1) + "\n")
    for row in rows:
        print(*row["case"].values(), f"{1e3 * row['wall_s']:.3f} ms of {len(row['runs_s'])} runs")


if __name__ == "__main__":
    main()
