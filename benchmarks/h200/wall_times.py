"""Plain wall time of steps that wait for the host, to judge predictions by, and what ops cost the host meanwhile.

usage: wall_times.py OUT.json SECONDS    (needs a CUDA GPU)

Host-bound steps differ by 21% between two machines of the same kind, and here twofold from one moment to the next: a
host is slow for seconds at a time. So they say something about a prediction only where the host's part of its
calibration was measured at the same time. All steps take turns, round after round, and between them the chains that
`rooflight calibrate` times for the host; what those say is kept in the file as `host`, as in a calibration's.

Time is taken as in the reference rows: n steps back to back, then one synchronisation. The median of a step's runs
counts. No profiler has run in the process before: it would slow every launch. GPU-busy times are taken by one at the
end, to tell which steps wait for the host.
"""

import gc
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import torch

from rooflight.calibration.host import HostBench
from rooflight.machine.installed_gpus import driver_version
from rooflight.models import build

MODELS = (("resnet18", None), ("resnet50", None), ("googlenet", None), ("gpt2", 128), ("distilbert-mlm", 128),
          ("transformer", 128), ("mnist-cnn", None))  # fmt: skip
RUN_S = 0.1
PROFILING_S = 8
STEPS_A_ROUND = 4
"""So many steps for one round of the host's chains."""


def cases():
    """Small batches, which wait for the host; and two that wait less."""
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


def main():
    path, until = Path(sys.argv[1]), time.monotonic() + float(sys.argv[2]) - PROFILING_S
    rows, steps = [], []
    for case in cases():
        step = stepper(case)
        rows.append({"case": case, "runs_s": []})
        steps.append((step, repeats_of(step)))
    host = HostBench(torch.device("cuda"))
    gc.collect()
    gc.freeze()
    rounds = 0
    while rounds < 3 or time.monotonic() < until:
        for place, (row, (step, repeats)) in enumerate(zip(rows, steps, strict=True)):
            row["runs_s"].append(run_seconds(step, repeats))
            if place % STEPS_A_ROUND == 0:
                host.time_once()
        rounds += 1
    for row, (step, _) in zip(rows, steps, strict=True):
        row["wall_s"] = median(row["runs_s"])
        row["gpu_s"] = gpu_busy(step)
    found = {
        "device": torch.cuda.get_device_name(), "torch": str(torch.__version__), "driver": driver_version(),
        "made": datetime.now(UTC).isoformat(timespec="minutes"), "rows": rows,
        "host": {key: {"value": cost.value, "origin": cost.origin} for key, cost in host.costs().items()},
    }  # fmt: skip
    path.write_text(json.dumps(found, indent=1) + "\n")
    for row in rows:
        print(*row["case"].values(), f"{1e3 * row['wall_s']:.3f} ms of {len(row['runs_s'])} runs")


if __name__ == "__main__":
    main()
