"""What the host spends on an op of each class: Python, dispatcher, autograd, launch.

Chains of one kind of module are run on tensors so small that the device is always done before the host. The time of a
chain, less its views and divided by the compute ops that the tracer sees in it, is what one such op costs, with the
module's own call.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional as F

from rooflight.calibration.clock import gpu_seconds, seconds_of
from rooflight.estimation.api import estimate
from rooflight.ledger import StepKind, Value
from rooflight.step.host_calls import cost_of, is_narrow, parts_of

_LENGTH = 24
_BLOCKS = 10
_LEAST_ROUNDS = 7
_IN_A_ROW = 4
"""Inference follows inference, as in a server; a forward pass of training follows a backward pass."""
_PHASES = ("infer", "forward", "backward")


class _AttentionLoop(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = x.view(2, 16, 4, 16).transpose(1, 2)
        return F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).reshape(2, 16, 64)


class _Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def _module(forward: Callable[[Any, torch.Tensor], torch.Tensor]) -> type[nn.Module]:
    """A module without state: its class has this `forward`, so that nothing is called around it."""
    return type("_Function", (nn.Module,), {"forward": forward})


_TOKENS, _IMAGES = (2, 16, 64), (2, 16, 8, 8)
# class of ops: the module of its chain, the shape that goes through
_CHAINS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "view": (_module(lambda _, x: x.transpose(1, 2).transpose(1, 2)), _TOKENS),
    "plain": (nn.ReLU, _TOKENS),
    "reduce": (_module(lambda _, x: x.mean(-1, keepdim=True).expand(2, 16, 64)), _TOKENS),
    "broadcast": (_Scaled, _TOKENS),
    "strided": (_module(lambda _, x: x.transpose(1, 2).contiguous().view(2, 16, 64)), _TOKENS),
    "cat": (_module(lambda _, x: torch.cat([x, x], 1)[:, :16]), _TOKENS),
    "math": (nn.GELU, _TOKENS),
    "softmax": (lambda: nn.Softmax(-1), _TOKENS),
    "dropout": (lambda: nn.Dropout(0.1), _TOKENS),
    "gemm": (lambda: nn.Linear(64, 64), _TOKENS),
    "conv": (lambda: nn.Conv2d(16, 16, 3, padding=1, bias=False), _IMAGES),
    "batch-norm": (lambda: nn.BatchNorm2d(16), _IMAGES),
    "layer-norm": (lambda: nn.LayerNorm(64), _TOKENS),
    "attention": (_AttentionLoop, _TOKENS),
    "pool": (lambda: nn.MaxPool2d(3, 1, 1), _IMAGES),
}


def _repeated(name: str) -> nn.Module:
    return nn.Sequential(*(_CHAINS[name][0]() for _ in range(_LENGTH)))


class _Shaped(nn.Module):
    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(self.shape)


def _mixed() -> nn.Module:
    """All classes in turn, each with weights of its own, as no network that anybody knows."""
    modules: list[nn.Module] = []
    shape = _CHAINS["view"][1]
    for _ in range(_BLOCKS):
        for make, wanted in _CHAINS.values():
            if wanted != shape:
                modules.append(_Shaped(shape := wanted))
            modules.append(make())
    return nn.Sequential(*modules)


class HostBench:
    """Chains of all classes of ops, timed in turn, round after round.

    A host is slow for seconds at a time, for reasons of its own: a slow moment then makes a little of everything slow,
    and not one class of ops.
    """

    def __init__(self, device: torch.device) -> None:
        self._chains = {name: _Chain(_repeated(name), shape, device) for name, (_, shape) in _CHAINS.items()}
        if device.type == "cuda":
            self._chains |= {
                f"{name}.bf16": _Chain(_repeated(name), shape, device, torch.bfloat16)
                for name, (_, shape) in _CHAINS.items()
                if name != "view"
            }
        self._mixture = _Chain(_mixed(), _CHAINS["view"][1], device)
        self._optimizers = {
            (name, count): _Optimizer(device, make, count) for name, make in _OPTIMIZERS.items() for count in _TENSORS
        }
        self._shortest = _ShortestStep(device)
        self.rounds = 0

    def time_once(self) -> None:
        benches: tuple[_Chain | _Optimizer | _ShortestStep, ...] = (
            *self._chains.values(),
            self._mixture,
            *self._optimizers.values(),
            self._shortest,
        )
        for bench in benches:
            bench.time_once()
        self.rounds += 1

    def costs(self) -> dict[str, Value]:
        """Seconds by `class.phase`: `infer` without gradients, `forward` and `backward` of training;
        `class.phase.bf16` for 16 bits, which other kernels compute, and more of them; `mixed.phase` is how much more
        all of that costs in a mixture; see also `optimizer`."""
        shortest = Value(middle(self._shortest.taken), "a training step of one op, less the op")
        classes = self._classes()
        return {**classes, **self._mixtures(classes), **self._updates(), "step.train": shortest}

    def _classes(self) -> dict[str, Value]:
        """Chains are read as prediction reads a step: the time of one is that of all its ops, whatever their class. All
        chains of a phase together say what each class costs."""
        costs: dict[str, Value] = {}
        for ending, narrow in (("", False), (".bf16", True)):
            chains = [chain for key, chain in self._chains.items() if key.endswith(".bf16") == narrow]
            for phase in _PHASES:
                parts = {part for chain in chains for part in chain.parts[phase]}
                names = sorted({name for name, precision in parts if is_narrow(precision) == narrow})
                if not names:
                    continue  # no GPU, no chains in 16 bits
                counts = np.zeros((len(chains), len(names)))
                times = np.array([middle(chain.taken[phase]) for chain in chains])
                for place, chain in enumerate(chains):
                    for (name, precision), weight in chain.parts[phase].items():
                        if is_narrow(precision) == narrow:
                            counts[place, names.index(name)] += weight
                        else:  # a view is a view in all of them
                            times[place] -= weight * cost_of(name, precision, phase, costs)
                origin = f"wall time of chains of {_LENGTH} modules, by the ops in them, {self.rounds} rounds"
                for name, cost in zip(names, shared_out(counts, times), strict=True):
                    costs[f"{name}.{phase}{ending}"] = Value(float(cost), origin)
        return costs

    def _mixtures(self, classes: Mapping[str, Value]) -> dict[str, Value]:
        """Code and data of one kind stay in the host's caches; in a network, where one kind follows the other, they do
        not."""
        ratios = {}
        for phase, times in self._mixture.taken.items():
            parts = sum(weight * cost_of(*one, phase, classes) for one, weight in self._mixture.parts[phase].items())
            origin = f"wall time of {_BLOCKS} blocks of all classes over the sum of their ops, {self.rounds} rounds"
            ratios[f"mixed.{phase}"] = Value(middle(times) / parts, origin)
        return ratios

    def _updates(self) -> dict[str, Value]:
        """An op over a list of tensors costs something, and something more for every tensor."""
        costs: dict[str, Value] = {}
        few, many = _TENSORS
        for name in _OPTIMIZERS:
            small, large = (middle(self._optimizers[name, count].taken) for count in _TENSORS)
            each = max(0.0, (large - small) / (many - few))
            rest = max(0.0, small - few * each)
            costs[f"optimizer.{name}.tensor"] = Value(each, f"wall time of steps over {many} and over {few} tensors")
            costs[f"optimizer.{name}.step"] = Value(rest, f"wall time of a step over {few} tensors")
        return costs


def host_costs(device: torch.device, seconds: float) -> dict[str, Value]:
    """See `HostBench.costs`."""
    bench = HostBench(device)
    end = time.monotonic() + seconds
    while bench.rounds < _LEAST_ROUNDS + 2 or time.monotonic() < end:
        bench.time_once()
    return bench.costs()


def shared_out(counts: npt.NDArray[np.float64], times: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Costs of classes (columns) that explain the times of chains (rows) best. Where several do, those that differ
    least from an equal share among the ops of a chain."""
    share = np.maximum(times, 0.0) / np.maximum(counts.sum(1), 1.0)
    used = counts.sum(0)
    equal = counts.T @ share / np.where(used > 0, used, 1.0)
    costs = np.zeros(counts.shape[1])
    paid = np.ones(counts.shape[1], dtype=bool)
    while paid.any():
        some = counts[:, paid]
        fitted = equal[paid] + np.linalg.lstsq(some, times - some @ equal[paid], rcond=1e-6)[0]
        costs[:] = 0.0
        costs[paid] = fitted
        if (fitted >= 0).all():
            break
        paid[costs < 0] = False  # nothing costs less than nothing, and the others share what it would have paid
    return np.maximum(costs, 0.0)


def middle(times: Sequence[float]) -> float:
    """The mean of the middle half, after two rounds that warm up: as steady as a median, and between two states of the
    host where it was in both."""
    ordered = sorted(times[2:])
    cut = len(ordered) // 4
    return fmean(ordered[cut : len(ordered) - cut])


def _settled(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


class _Chain:
    def __init__(
        self, chain: nn.Module, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype = torch.float32
    ) -> None:
        self.chain = chain.to(device, dtype)
        self.x = torch.randn(shape, device=device).to(dtype)
        self.parts = _parts(self.chain, self.x, device.type)
        self.taken: dict[str, list[float]] = {phase: [] for phase in _PHASES}

    def time_once(self) -> None:
        chain, x = self.chain, self.x
        chain.eval()
        _settled(x.device)
        with torch.no_grad():
            chain(x)  # what training did before has left the host's caches
            start = time.perf_counter()
            for _ in range(_IN_A_ROW):
                chain(x)
        self.taken["infer"].append((time.perf_counter() - start) / _IN_A_ROW)
        chain.train()
        given = x.detach().requires_grad_()
        for parameter in chain.parameters():
            parameter.grad = None
        _settled(x.device)
        start = time.perf_counter()
        out = chain(given)
        self.taken["forward"].append(time.perf_counter() - start)
        grad = torch.ones_like(out)
        _settled(x.device)
        start = time.perf_counter()
        out.backward(grad)
        self.taken["backward"].append(time.perf_counter() - start)


def _parts(chain: nn.Module, x: torch.Tensor, target: str) -> dict[str, Counter[tuple[str, str]]]:
    """Classes of ops in the chain by phase, as prediction sees them in a ledger of it."""
    by_phase: dict[str, Counter[tuple[str, str]]] = {phase: Counter() for phase in _PHASES}
    steps: tuple[tuple[StepKind, dict[str, Any]], ...] = (("infer", {}), ("train", {"loss": "mse", "optimizer": "sgd"}))
    for step, options in steps:
        ledger = estimate(chain, x.detach().requires_grad_(step == "train"), step=step, target=target, **options)
        for op in ledger.ops:
            if op.module.split(".")[0].isdigit():
                for part, weight in parts_of(op):
                    if (part[0], op.phase) == ("view", "backward"):
                        continue  # made inside another op's node
                    by_phase["infer" if step == "infer" else op.phase][part] += weight  # type: ignore[assignment]
    return by_phase


_OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
}
_TENSORS = (20, 220)


class _Optimizer:
    def __init__(
        self, device: torch.device, make: Callable[[list[nn.Parameter]], torch.optim.Optimizer], count: int
    ) -> None:
        self.device = device
        parameters = [nn.Parameter(torch.ones(8, device=device)) for _ in range(count)]
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        self.optimizer = make(parameters)
        self.taken: list[float] = []

    def time_once(self) -> None:
        _settled(self.device)
        self.taken.append(seconds_of(self.optimizer.step))


class _ShortestStep:
    def __init__(self, device: torch.device) -> None:
        self.weight = nn.Parameter(torch.ones(8, device=device))
        self.taken: list[float] = []

    def time_once(self) -> None:
        self.weight.grad = None
        _settled(self.weight.device)
        start = time.perf_counter()
        (self.weight * 2).sum().backward()
        self.taken.append(time.perf_counter() - start)


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
    gaps = {}
    for name, run in (("gap", kernels), ("gap.graph", graph.replay)):
        gap_s = median(gpu_seconds(run, waits=True) / count for _ in range(5))
        gaps[name] = Value(gap_s, f"{count} kernels of one block: from one start to the next")
    return gaps
