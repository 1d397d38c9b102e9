"""Small ops and chains of them, called on a GPU that has nothing to do: what the host's way to a kernel adds to a call.

usage: idle_calls.py OUT.json        (needs a CUDA GPU)

Each is timed in two ways, in turns: CUDA events around one call after a synchronisation, as people time single ops, and
the wall of many calls in a row, which is the host's own time where kernels are this short. Both give what a call takes
beyond the two clocks of `prediction/clocks.py`.
"""

import json
import statistics
import sys
import time
from functools import partial

import torch
from random_nets import Residual
from torch import nn

ROUNDS, CALLS = 8, 40


class Scaled(nn.Module):
    def forward(self, x):
        return x * 0.7


class Summed(nn.Module):
    def forward(self, x):
        return torch.sum(x, dim=1, keepdim=True)


class Product(nn.Module):
    def forward(self, x):
        return torch.matmul(x, x.mT)


def _pictures():
    return nn.Conv2d(18, 18, 3, padding=1)


ROWS, IMAGES, BATCHED = (24, 176), (6, 18, 10, 10), (5, 40, 40)
SINGLE = {
    "relu": (nn.ReLU, ROWS), "leaky-relu": (nn.LeakyReLU, ROWS), "gelu": (nn.GELU, ROWS), "sigmoid": (nn.Sigmoid, ROWS),
    "softmax": (partial(nn.Softmax, 1), ROWS), "log-softmax": (partial(nn.LogSoftmax, 1), ROWS),
    "layer-norm": (partial(nn.LayerNorm, 176), ROWS), "linear": (partial(nn.Linear, 176, 176), ROWS),
    "scale": (Scaled, ROWS), "sum": (Summed, ROWS), "add": (partial(Residual, nn.Identity()), ROWS),
    "product": (Product, BATCHED), "conv": (_pictures, IMAGES),
    "conv-without-bias": (partial(nn.Conv2d, 18, 18, 3, padding=1, bias=False), IMAGES),
    "batch-norm": (partial(nn.BatchNorm2d, 18), IMAGES), "max-pool": (partial(nn.MaxPool2d, 2), IMAGES),
    "avg-pool": (partial(nn.AvgPool2d, 2), IMAGES), "group-norm": (partial(nn.GroupNorm, 3, 18), IMAGES),
    "conv-1d": (partial(nn.Conv1d, 40, 40, 3), BATCHED),
}  # fmt: skip


def _mlp(depth):
    return nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Linear(176, 176), nn.ReLU())))


def _pointwise(depth):
    return nn.Sequential(*(layer() for _ in range(depth) for layer in (Scaled, nn.GELU, nn.Sigmoid)))


def _convnet(depth):
    return nn.Sequential(*(layer for _ in range(depth) for layer in (_pictures(), nn.BatchNorm2d(18), nn.ReLU())))


def _transformer(depth):
    layers = (nn.LayerNorm(176), nn.Linear(176, 176), nn.GELU(), nn.Linear(176, 176))
    return nn.Sequential(*(Residual(nn.Sequential(*layers)) for _ in range(depth)))


CHAINS = {
    "mlp-2": (partial(_mlp, 2), ROWS), "mlp-8": (partial(_mlp, 8), ROWS), "pointwise-1": (partial(_pointwise, 1), ROWS),
    "pointwise-5": (partial(_pointwise, 5), ROWS), "convnet-1": (partial(_convnet, 1), IMAGES),
    "convnet-4": (partial(_convnet, 4), IMAGES), "transformer-1": (partial(_transformer, 1), ROWS),
    "transformer-4": (partial(_transformer, 4), ROWS),
    "linear-softmax": (lambda: nn.Sequential(nn.Linear(176, 176), nn.Softmax(1)), ROWS),
    "conv-pool": (lambda: nn.Sequential(_pictures(), nn.ReLU(), nn.MaxPool2d(2)), IMAGES),
    "conv-group-norm": (lambda: nn.Sequential(_pictures(), nn.GroupNorm(3, 18), nn.Tanh()), IMAGES),
}  # fmt: skip


def cases():
    """Name, module and shape of its input, by kind."""
    for kind, some in (("single", SINGLE), ("chain", CHAINS)):
        for name, (make, shape) in some.items():
            yield kind, name, make, shape


def idle_call(call):
    """Seconds between two events around one call, nothing else being on the GPU."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e-3


def in_a_row(call):
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(CALLS):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / CALLS


def main():
    made = []
    with torch.no_grad():
        for dtype in (torch.float32, torch.bfloat16):
            for kind, name, make, shape in cases():
                module, x = make().to("cuda", dtype), torch.randn(shape, device="cuda", dtype=dtype)
                for _ in range(5):
                    module(x)
                made.append((kind, name, str(dtype).removeprefix("torch."), partial(module, x), [], []))
        for _ in range(ROUNDS):
            for *_, call, idle, row in made:
                idle += [idle_call(call) for _ in range(CALLS)]
                row.append(in_a_row(call))
    rows = [
        {"kind": kind, "name": name, "dtype": dtype, "idle_mean_s": statistics.fmean(idle), "idle_s": statistics.median(idle),
         "idle_least_s": min(idle), "row_s": statistics.median(row), "row_least_s": min(row)}
        for kind, name, dtype, _, idle, row in made
    ]  # fmt: skip
    with open(sys.argv[1], "w") as out:
        json.dump(
            {"device": torch.cuda.get_device_name(), "torch": str(torch.__version__), "rows": rows}, out, indent=1
        )
    for row in rows:
        print(f"{row['name']:18} {row['dtype']:9} idle {1e6 * row['idle_s']:6.1f} (mean {1e6 * row['idle_mean_s']:6.1f}, "
              f"least {1e6 * row['idle_least_s']:6.1f})  in a row {1e6 * row['row_s']:6.1f} (least {1e6 * row['row_least_s']:6.1f}) us")  # fmt: skip


if __name__ == "__main__":
    main()
