"""Plain wall time of steps, most of which wait for the host, to judge predictions by, and what the host costs meanwhile.

usage: wall_times.py OUT.json SECONDS    (needs a CUDA GPU, torchvision and transformers)

Host-bound steps differ by 21% between two machines of the same kind, and here twofold from one moment to the next: a
host is slow for seconds at a time. So they say something about a prediction only where the host's part of its
calibration was measured at the same time. All steps take turns, round after round, and between them the small networks
that `rooflight calibrate` times for the host; what those say is kept in the file as `host`, as in a calibration's, and
what each network took as `networks`. Predictions are fitted to those networks, never to the steps.

Time is taken as in the reference rows: n steps back to back, then one synchronisation. The median of a step's runs
counts. No profiler has run in the process before: it
would slow every launch. GPU-busy times are taken by one at the end, to tell which steps wait for the host.
"""

import gc
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import torch

from rooflight.calibration.host import HostBench, gap_seconds
from rooflight.machine.installed_gpus import driver_version
from rooflight.models import build

LLAMA = {"hidden_size": "1024", "intermediate_size": "2816", "num_hidden_layers": "10", "num_attention_heads": "16",
         "num_key_value_heads": "4", "vocab_size": "32000"}  # fmt: skip
# model, sequence, batches of inference, batches of training
MODELS = (
    ("resnet50", None, (1, 16), (16,)), ("resnet18", None, (1, 16), (8,)), ("vgg11", None, (1, 16), (16,)),
    ("googlenet", None, (1,), (8,)), ("torchvision:mobilenet_v3_small", None, (1, 16), (16,)),
    ("torchvision:efficientnet_b0", None, (1,), (8,)), ("gpt2", 128, (1, 4), (4,)), ("gpt2", 1024, (1, 4), (4,)),
    ("distilbert-mlm", 128, (1, 8), (8,)), ("hf:bert", 128, (1,), (4,)), ("vit-b-16", None, (1, 32), (32,)),
    ("transformer", 128, (1,), (8,)), ("mnist-cnn", None, (1, 64), (64,)),
)  # fmt: skip
SET = {"hf:llama": LLAMA}
RUN_S = 0.06
PROFILING_S = 25
STEPS_A_ROUND = 25
"""So many steps for one round of the host's networks."""


def cases():
    for dtype in ("fp32", "bf16"):
        for model, seq, infer, train in MODELS:
            for batch in infer:
                yield {"model": model, "seq": seq, "step": "infer", "batch": batch, "dtype": dtype}
            for batch in train:
                yield {"model": model, "seq": seq, "step": "train", "batch": batch, "dtype": dtype}
        for batch in (1, 16):
            yield {"model": "hf:llama", "seq": 512, "step": "decode", "batch": batch, "dtype": dtype}


def stepper(case):
    """The step of the reference rows: mean-square loss, SGD with momentum or AdamW, eager."""
    torch.manual_seed(0)
    length = {"past": case["seq"]} if case["step"] == "decode" else {"seq": case["seq"]}
    workload = build(case["model"], batch=case["batch"], **length, step=case["step"], dtype=case["dtype"],
                     device="cuda", overrides=SET.get(case["model"], {}))  # fmt: skip
    model, args, kwargs = workload.model, workload.args, workload.kwargs
    if case["step"] != "train":
        cache = kwargs.get("past_key_values")
        kept = [(layer, layer.keys, layer.values) for layer in cache.layers] if cache is not None else []

        def infer():
            with torch.no_grad():
                model(*args, **kwargs)
            for layer, keys, values in kept:  # the next step begins where this one did
                layer.keys, layer.values = keys, values

        return infer
    optimizer = (torch.optim.AdamW(model.parameters(), lr=1e-4) if workload.optimizer == "adamw"
                 else torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))  # fmt: skip

    def train():
        optimizer.zero_grad(set_to_none=True)
        out = model(*args, **kwargs)
        out = out if isinstance(out, torch.Tensor) else next(iter(out.values()))
        out.float().square().mean().backward()
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


def gpu_busy(step, repeats=2):
    from torch.profiler import ProfilerActivity, profile

    step()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as found:
        for _ in range(repeats):
            step()
        torch.cuda.synchronize()
    events = found.profiler.kineto_results.events()
    times = [event.duration_ns() for event in events if event.device_type() == torch.autograd.DeviceType.CUDA]
    return sum(times) * 1e-9 / repeats, round(len(times) / repeats)


def prepared(until):
    """Every case with its step, as long as there is time."""
    rows, steps = [], []
    for case in cases():
        if time.monotonic() > until:
            print("out of time before", case)
            break
        try:
            step = stepper(case)
            steps.append((step, repeats_of(step)))
            rows.append({"case": case, "runs_s": []})
        except Exception as error:
            print(case, f"{type(error).__name__}: {error}"[:150], flush=True)
            torch.cuda.synchronize()
    return rows, steps


def main():
    path, seconds = Path(sys.argv[1]), float(sys.argv[2])
    begun = time.monotonic()
    rows, steps = prepared(begun + 0.45 * seconds)
    print(f"{len(rows)} steps ready after {time.monotonic() - begun:.0f} s", flush=True)
    gaps = gap_seconds(torch.device("cuda"))
    host = HostBench(torch.device("cuda"))
    print(f"host ready after {time.monotonic() - begun:.0f} s", flush=True)
    gc.collect()
    gc.freeze()
    until, rounds = begun + seconds - PROFILING_S, 0
    while rounds < 3 or time.monotonic() < until:
        for place, (row, (step, repeats)) in enumerate(zip(rows, steps, strict=True)):
            row["runs_s"].append(run_seconds(step, repeats))
            if place % STEPS_A_ROUND == 0:
                host.time_once()
        rounds += 1
        print(f"round {rounds} after {time.monotonic() - begun:.0f} s, {host.rounds} of the host", flush=True)
    path.write_text(json.dumps({"rows": rows}) + "\n")  # should the profiler fail, the times are here
    host.count_kernels()
    for row, (step, _) in zip(rows, steps, strict=True):
        row["wall_s"] = median(row["runs_s"])
        row["gpu_s"], row["kernels"] = gpu_busy(step)
    found = {
        "device": torch.cuda.get_device_name(), "torch": str(torch.__version__), "driver": driver_version(),
        "made": datetime.now(UTC).isoformat(timespec="minutes"), "rows": rows,
        "host": {key: {"value": cost.value, "origin": cost.origin} for key, cost in (host.costs() | gaps).items()},
        "networks": [{"net": net.name, "taken_s": net.taken, "kernels": net.kernels} for net in host.nets],
    }  # fmt: skip
    path.write_text(json.dumps(found) + "\n")
    for row in rows:
        print(*row["case"].values(), f"{1e3 * row['wall_s']:.3f} ms wall {1e3 * row['gpu_s']:.3f} GPU")


if __name__ == "__main__":
    main()
