"""Does measuring change what is measured? Outputs and weights bit for bit, and the plain time before and after.

usage: undisturbed.py OUT.json    (needs a CUDA GPU)
"""

import gc
import json
import os
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
import torch
from torch import nn

import rooflight
from rooflight.hardware import counter_tables
from rooflight.measurement.cupti.ranges import RangeProfiler
from rooflight.models import build


def trained(model: nn.Module, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
    """Three steps of the user's own, from the state the model is in."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        output = model(inputs)
        output.square().mean().backward()
        optimizer.step()
    return {
        "output": output.detach().clone(),
        **{name: value.detach().clone() for name, value in model.state_dict().items()},
    }


def fresh(name: str) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    workload = build(name, batch=16, step="train", device="cuda")
    return workload.model, workload.args[0]


def wall(model: nn.Module, inputs: torch.Tensor, repeats: int = 200) -> list[float]:
    """Plain times in ms: median, least, greatest."""
    times = []
    gc.collect()
    gc.disable()
    with torch.no_grad():
        for _ in range(repeats):
            torch.cuda.synchronize()
            start = time.perf_counter()
            model(inputs)
            torch.cuda.synchronize()
            times.append(1e3 * (time.perf_counter() - start))
    gc.enable()
    return [statistics.median(times), min(times), max(times)]


def counted_alone(model: nn.Module, inputs: torch.Tensor) -> None:
    """Counters as a measurement reads them, without the profiler that a measurement runs before."""
    names = [
        counter.metric
        for counter in (*counter_tables.byte_counters(("dram",)), *counter_tables.cuda_core_counters("GH100"))
    ]
    with RangeProfiler(names, max_ranges=1) as profiler, torch.no_grad():
        done = False
        while not done:
            profiler.start()
            profiler.push("step")
            model(inputs)
            torch.cuda.synchronize()
            profiler.pop()
            done = profiler.stop()


def main() -> None:
    torch.use_deterministic_algorithms(True)
    result = {}
    for name in ("resnet18", "mnist-cnn"):
        model, inputs = fresh(name)
        plain = trained(model, inputs)
        model, inputs = fresh(name)
        before = {key: value.clone() for key, value in model.state_dict().items()}
        ledger = rooflight.measure(model, inputs, step="train", repeat=5)
        kept = all(torch.equal(before[key], value) for key, value in model.state_dict().items())
        measured = trained(model, inputs)
        equal = [key for key in plain if torch.equal(plain[key], measured[key])]
        result[name] = {
            "state_kept": kept,
            "tensors": len(plain),
            "equal_bit_for_bit": len(equal),
            "notes": [*map(str, ledger.header.notes)],
        }
    torch.use_deterministic_algorithms(False)
    for name in ("resnet18", "vgg19"):
        model, inputs = fresh(name)
        model.eval()
        wall(model, inputs, 2000)  # clocks and caches take seconds to settle
        times = {"before": wall(model, inputs), "before_again": wall(model, inputs)}
        counted_alone(model, inputs)
        times |= {"after_counters": wall(model, inputs), "after_counters_again": wall(model, inputs)}
        rooflight.measure(model, inputs, repeat=5)
        times |= {"after_measure": wall(model, inputs), "after_measure_again": wall(model, inputs)}
        result[f"{name} inference, plain ms (median, least, greatest)"] = times
    Path(sys.argv[1]).write_text(json.dumps(result, indent=1))
    print(json.dumps(result, indent=1))


main()
