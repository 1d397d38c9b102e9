"""What the host spends on an op of each class: Python, dispatcher, autograd, launch.

Chains of one kind of module are run on tensors so small that the device is always done before the host. The time of a
chain, less its views and divided by the compute ops that the tracer sees in it, is what one such op costs, with the
module's own call.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from rooflight.ledger import StepKind, Value

_LENGTH = 24
_ROUNDS = 7
_IN_A_ROW = 4
"""Inference follows inference, as in a server; a forward pass of training follows a backward pass."""
_PHASES = ("infer", "forward", "backward")


class _Attention(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = x.view(2, 16, 4, 16).transpose(1, 2)
        return F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).reshape(2, 16, 64)


class _Viewed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2).transpose(1, 2)


class _Reordered(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2).contiguous().view(2, 16, 64)


class _Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


class _Centred(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(-1, keepdim=True).expand(2, 16, 64)


class _Joined(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x], 1)[:, :16]


_Made = tuple[Callable[[], nn.Module], tuple[int, ...]]
# class of ops: the module of its chain, the shape that goes through
_CHAINS: dict[str, _Made] = {
    "view": (_Viewed, (2, 16, 64)),
    "gemm": (lambda: nn.Linear(64, 64), (2, 16, 64)),
    "conv": (lambda: nn.Conv2d(16, 16, 3, padding=1, bias=False), (2, 16, 8, 8)),
    "batch-norm": (lambda: nn.BatchNorm2d(16), (2, 16, 8, 8)),
    "layer-norm": (lambda: nn.LayerNorm(64), (2, 16, 64)),
    "attention": (_Attention, (2, 16, 64)),
    "plain": (nn.ReLU, (2, 16, 64)),
    "math": (nn.GELU, (2, 16, 64)),
    "broadcast": (_Scaled, (2, 16, 64)),
    "strided": (_Reordered, (2, 16, 64)),
    "reduce": (_Centred, (2, 16, 64)),
    "cat": (_Joined, (2, 16, 64)),
    "softmax": (lambda: nn.Softmax(-1), (2, 16, 64)),
    "dropout": (lambda: nn.Dropout(0.1), (2, 16, 64)),
    "pool": (lambda: nn.MaxPool2d(3, 1, 1), (2, 16, 8, 8)),
}


def host_costs(device: torch.device) -> dict[str, Value]:
    """Seconds by `class.phase`: `infer` without gradients, `forward` and `backward` of training; see also
    `optimizer`."""
    found: dict[str, Value] = {}
    views = dict.fromkeys(_PHASES, 0.0)
    for name, (make, shape) in _CHAINS.items():
        chain = nn.Sequential(*(make() for _ in range(_LENGTH))).to(device)
        x = torch.randn(shape, device=device)
        ops = _ops(chain, x)
        seconds = _chain_seconds(chain, x)
        origin = f"wall time of {_LENGTH} modules over the {name} ops in them, median of {_ROUNDS}"
        kind = "view" if name == "view" else "compute"
        for phase, value in seconds.items():
            if not ops[phase, kind]:
                continue  # it does nothing there, as dropout in inference
            rest = max(0.0, value - views[phase] * ops[phase, "view"])
            found[f"{name}.{phase}"] = Value(rest / max(1, ops[phase, kind]), origin)
        if name == "view":
            # In backward most views are made inside another op's node, and cost next to nothing.
            views = {phase: found[f"view.{phase}"].value if phase != "backward" else 0.0 for phase in _PHASES}
    found |= _optimizer_costs(device)
    found["step.train"] = Value(_step_overhead(device), "a training step of one op, less the op")
    return found


def _ops(chain: nn.Module, x: torch.Tensor) -> Counter[tuple[str, str]]:
    """Ops of the chain by phase and kind, as a ledger of it has them."""
    from rooflight.estimation.api import estimate

    count: Counter[tuple[str, str]] = Counter()
    target = "cuda" if x.is_cuda else "cpu"
    steps: tuple[tuple[StepKind, dict[str, Any]], ...] = (("infer", {}), ("train", {"loss": "sum", "optimizer": "sgd"}))
    for step, options in steps:
        ledger = estimate(chain, x.detach().requires_grad_(step == "train"), step=step, target=target, **options)
        for op in ledger.ops:
            if op.module.split(".")[0].isdigit():
                count["infer" if step == "infer" else op.phase, op.kind] += 1
    return count


def _settled(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _chain_seconds(chain: nn.Module, x: torch.Tensor) -> dict[str, float]:
    taken: dict[str, list[float]] = {phase: [] for phase in _PHASES}
    for _ in range(_ROUNDS + 2):
        chain.eval()
        _settled(x.device)
        with torch.no_grad():
            chain(x)  # what training did before has left the host's caches
            start = time.perf_counter()
            for _ in range(_IN_A_ROW):
                chain(x)
        taken["infer"].append((time.perf_counter() - start) / _IN_A_ROW)
        chain.train()
        given = x.detach().requires_grad_()
        for parameter in chain.parameters():
            parameter.grad = None
        _settled(x.device)
        start = time.perf_counter()
        out = chain(given)
        taken["forward"].append(time.perf_counter() - start)
        grad = torch.ones_like(out)
        _settled(x.device)
        start = time.perf_counter()
        out.backward(grad)
        taken["backward"].append(time.perf_counter() - start)
    return {phase: median(times[2:]) for phase, times in taken.items()}


def _optimizer_costs(device: torch.device) -> dict[str, Value]:
    """An op over a list of tensors costs something, and something more for every tensor."""
    found: dict[str, Value] = {}
    kinds: dict[str, tuple[Any, int]] = {
        "sgd": (lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9), 3),
        "adamw": (lambda p: torch.optim.AdamW(p, lr=1e-3), 10),
    }
    for name, (make, _) in kinds.items():
        few, many = (_optimizer_seconds(device, make, count) for count in (20, 220))
        each = max(0.0, (many - few) / 200)
        found[f"optimizer.{name}.tensor"] = Value(each, "wall time of steps over 220 and over 20 tensors")
        found[f"optimizer.{name}.step"] = Value(max(0.0, few - 20 * each), "wall time of a step over 20 tensors")
    return found


def _optimizer_seconds(device: torch.device, make: Any, count: int) -> float:
    parameters = [nn.Parameter(torch.ones(8, device=device)) for _ in range(count)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer = make(parameters)
    times = []
    for _ in range(_ROUNDS + 2):
        _settled(device)
        start = time.perf_counter()
        optimizer.step()
        times.append(time.perf_counter() - start)
    return median(times[2:])


def _step_overhead(device: torch.device) -> float:
    weight = nn.Parameter(torch.ones(8, device=device))
    times = []
    for _ in range(_ROUNDS + 2):
        weight.grad = None
        _settled(device)
        start = time.perf_counter()
        (weight * 2).sum().backward()
        times.append(time.perf_counter() - start)
    return median(times[2:])


def gap_seconds(device: torch.device) -> dict[str, Value]:
    """From the start of one kernel to that of the next, in a queue that the host keeps full, and in a CUDA graph."""
    x = torch.ones(64, device=device)
    count = 300

    def kernels() -> None:
        for _ in range(count):
            x.add_(1)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels()
    found = {}
    for name, run in (("gap", kernels), ("gap.graph", graph.replay)):
        times = []
        for _ in range(5):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            torch.cuda._sleep(40_000_000)
            start.record()
            run()
            end.record()
            torch.cuda.synchronize()
            times.append(float(start.elapsed_time(end)) / 1e3 / count)
        found[name] = Value(median(times), f"{count} kernels of one block: from one start to the next")
    return found
