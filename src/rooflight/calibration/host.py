"""What the host spends on ops of each class, on a launch, on a call of a module: Python, dispatcher, autograd, driver.

Small networks of our own are run on tensors so small that the device is always done before the host. What their
phases take, by the ops, kernels and calls in them, says what each of these costs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from rooflight.calibration.clock import gpu_seconds, kernel_segments, watched
from rooflight.calibration.host_nets import host_nets
from rooflight.estimation.api import estimate
from rooflight.ledger import Ledger, StepKind, Value
from rooflight.step.host_calls import LAYERS, is_narrow, module_entries, parts_of

_LEAST_ROUNDS = 7
_ENOUGH: str | tuple[str, ...] = "random"
"""The networks that a processor is timed on: what it spends on an op is in the op's own time already."""
_IN_A_ROW = 3
"""Steps follow one another, as in a server or in training; the first of a row brings the host's caches back."""
_PHASES = ("infer", "forward", "backward")
_NARROW = (torch.bfloat16,)
_NARROW_END = ".bf16"
_LIBRARIES = ("conv", "gemm")
"""Classes whose way to a kernel is another in 16 bits."""
Floats = npt.NDArray[np.float64]
_OPTIMIZERS: dict[str, Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-6, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-6),
}


@dataclass(frozen=True)
class HostSample:
    """What one phase of one network took, and what there was to do."""

    net: str
    phase: str
    counts: Mapping[str, float]
    """Classes of ops, kernels (`launch`) and calls of modules (`module`, and of some by name)."""
    seconds: float


def host_counts(ledger: Ledger, phase: str) -> dict[str, float]:
    """What the host has to do in a phase, as prediction reads it; kernels are not known here."""
    of_ledger = "forward" if phase == "infer" else phase
    counts: Counter[str] = Counter()
    for op, called in zip(ledger.ops, module_entries(ledger), strict=True):
        if op.phase != of_ledger:
            continue
        for (name, precision), weight in parts_of(op):
            if (name, phase) != ("view", "backward"):  # made inside another op's node
                end = _NARROW_END if name in _LIBRARIES and is_narrow(precision) else ""
                counts[name + end] += weight  # type: ignore[assignment]
        counts["module"] += len(called)
        for layer in LAYERS:
            counts[layer] += called.count(layer)
    return {name: float(count) for name, count in counts.items() if count}


class HostBench:
    """All networks, timed in turn, round after round.

    A host is slow for seconds at a time, for reasons of its own: a slow moment then makes a little of everything slow,
    and not one class of ops.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        widths = (torch.float32, *_NARROW) if device.type == "cuda" else (torch.float32,)
        self.nets = [
            TimedNet(f"{name}{'.bf16' if dtype in _NARROW else ''}", net, shape, device, dtype, optimizer)
            for dtype, optimizer in zip(widths, _OPTIMIZERS, strict=False)
            for name, net, shape in host_nets()
            if device.type == "cuda" or name.startswith(_ENOUGH)
        ]
        self._optimizers = {
            (name, count): _Optimizer(device, make, count) for name, make in _OPTIMIZERS.items() for count in _TENSORS
        }
        self.rounds = 0

    def time_once(self) -> None:
        for net in self.nets:
            net.time_once()
        for optimizer in self._optimizers.values():
            optimizer.time_once()
        self.rounds += 1

    def count_kernels(self) -> None:
        """Last: a profiler that ran slows every launch for as long as the process lives."""
        if self._device.type != "cuda":
            return
        with watched() as profiler:
            for net in self.nets:
                net.run_marked()
            torch.cuda.synchronize()
        counts = [count for _, count in kernel_segments(profiler)]
        for net, found in zip(self.nets, zip(*[iter(counts)] * len(_PHASES), strict=True), strict=True):
            net.kernels = dict(zip(_PHASES, found, strict=True))

    def samples(self) -> list[HostSample]:
        return [
            HostSample(net.name, phase, {**net.counts[phase], "launch": net.kernels[phase]}, middle(net.taken[phase]))
            for net in self.nets
            for phase in _PHASES
        ]

    def costs(self) -> dict[str, Value]:
        """Seconds by `class.phase`, `launch.phase` and `module.phase`: `infer` without gradients, `forward` and
        `backward` of training; see also `optimizer`."""
        return {**fitted_costs(self.samples(), self.rounds), **self._updates()}

    def _updates(self) -> dict[str, Value]:
        """An op over a list of tensors costs something, and something more for every tensor."""
        costs: dict[str, Value] = {}
        few, many = _TENSORS
        for name in _OPTIMIZERS:
            small, large = (middle(self._optimizers[name, count].taken) for count in _TENSORS)
            each = max(0.0, (large - small) / (many - few))
            rest = max(0.0, small - few * each)
            what = "gradients dropped and a step"
            costs[f"optimizer.{name}.tensor"] = Value(each, f"wall time of {what} over {many} and over {few} tensors")
            costs[f"optimizer.{name}.step"] = Value(rest, f"wall time of {what} over {few} tensors")
        return costs


def fitted_costs(samples: Sequence[HostSample], rounds: int) -> dict[str, Value]:
    """The costs that explain the times of all networks best, each by its relative error. A step of training has one of
    its own, most of it the start of backward."""
    costs: dict[str, Value] = {}
    for phase in _PHASES:
        some = [sample for sample in samples if sample.phase == phase]
        if not some:
            continue
        names = sorted({name for sample in some for name in sample.counts})
        if phase == "backward":
            names.append(_STEP)
        counts = np.array([[1.0 if n == _STEP else sample.counts.get(n, 0.0) for n in names] for sample in some])
        times = np.array([sample.seconds for sample in some])
        mixed = np.array([sample.net.startswith("random") for sample in some])
        usual = np.array([_USUAL.get(name.removesuffix(_NARROW_END), 1.0) for name in names])
        found, dearer = _as_mixed(counts, times, mixed, usual)
        origin = (
            f"wall time of {len(some)} small networks, by the ops, kernels and calls in them, {rounds} rounds; those "
            f"of one kind of block taken {dearer:.2f} times as long, as mixtures are"
        )
        for name, cost in zip(names, found, strict=True):
            end = _NARROW_END if name.endswith(_NARROW_END) else ""
            key = "step.train" if name == _STEP else f"{name.removesuffix(_NARROW_END)}.{phase}{end}"
            costs[key] = Value(float(cost), origin)
    return costs


_STEP = "step"
_USUAL = {
    "view": 0.3, "module": 0.4, "launch": 0.5, "plain": 0.7, "attention-cudnn": 6.0, "attention-efficient": 2.0,
    "attention-flash": 2.0, "conv": 2.0, "gemm": 1.5, "batch-norm": 2.0, "batch-norm-native": 2.0, "layer-norm": 1.5,
    **dict.fromkeys(LAYERS, 3.0), _STEP: 20.0,
}  # fmt: skip
"""How costs are to one another, about: what is taken where the networks do not tell two of them apart."""
_OFF, _UNSURE = 0.05, 2.0
"""Relative deviations: of a network's time from the sum of its parts, and of a cost from the usual.
Between one and four of the latter, networks of an H200's host that are left out in turn are told alike (4.4% to 4.9%
off in the mean)."""
_TRIES = 6


def _as_mixed(counts: Floats, times: Floats, mixed: npt.NDArray[np.bool_], usual: Floats) -> tuple[Floats, float]:
    """Costs in a mixture of ops, and how many times what a chain of one kind of block takes they are: code and data of
    one kind stay in the host's caches, and in a network, where one kind follows the other, they do not."""
    dearer = 1.0
    for _ in range(_TRIES):
        taken = np.where(mixed, times, times * dearer)
        prior = usual * float(np.median(taken / (counts @ usual)))
        rows = np.vstack([counts / (_OFF * taken)[:, None], np.diag(1 / (_UNSURE * prior))])
        wanted = np.concatenate([np.full(len(times), 1 / _OFF), np.full(len(usual), 1 / _UNSURE)])
        found = not_negative(rows, wanted)
        if not mixed.any() or mixed.all():
            break
        left = times / np.maximum(counts @ found, 1e-12)
        dearer = float(np.median(left[mixed]) / np.median(left[~mixed]))
    return found, dearer


def not_negative(rows: Floats, wanted: Floats) -> Floats:
    """The least squares of `rows @ costs - wanted` among costs of which none is below nothing."""
    costs = np.zeros(rows.shape[1])
    paid = np.ones(rows.shape[1], dtype=bool)
    while paid.any():
        costs[:] = 0.0
        costs[paid] = np.linalg.lstsq(rows[:, paid], wanted, rcond=None)[0]
        if (costs >= 0).all():
            break
        paid[costs < 0] = False  # the others share what it would have paid
    return np.maximum(costs, 0.0)


def host_costs(device: torch.device, seconds: float) -> dict[str, Value]:
    """See `HostBench.costs`."""
    bench = HostBench(device)
    end = time.monotonic() + seconds
    while bench.rounds < _LEAST_ROUNDS + 2 or time.monotonic() < end:
        bench.time_once()
    bench.count_kernels()
    return bench.costs()


def middle(times: Sequence[float]) -> float:
    """The mean of the middle half, after two rounds that warm up: as steady as a median, and between two states of the
    host where it was in both."""
    ordered = sorted(times[2:])
    cut = len(ordered) // 4
    return fmean(ordered[cut : len(ordered) - cut])


def _settled(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


class TimedNet:
    """One network in one precision, and what its phases took."""

    def __init__(
        self,
        name: str,
        net: nn.Module,
        shape: tuple[int, ...],
        device: torch.device,
        dtype: torch.dtype,
        optimizer: str,
    ) -> None:
        self.name = name
        self.net = net.to(device, dtype)
        self.x = torch.randn(shape, device=device).to(dtype)
        self.counts = _counts(self.net, self.x, device.type)
        self.taken: dict[str, list[float]] = {phase: [] for phase in _PHASES}
        self.kernels: dict[str, int] = dict.fromkeys(_PHASES, 0)
        parameters = list(self.net.parameters())
        self._optimizer = _OPTIMIZERS[optimizer](parameters) if parameters else None

    def time_once(self) -> None:
        net, x = self.net, self.x
        net.eval()
        _settled(x.device)
        with torch.no_grad():
            net(x)  # what ran before has left the host's caches
            start = time.perf_counter()
            for _ in range(_IN_A_ROW):
                net(x)
        self.taken["infer"].append((time.perf_counter() - start) / _IN_A_ROW)
        net.train()
        _settled(x.device)
        taken = [self._trained() for _ in range(_IN_A_ROW)][1:]
        self.taken["forward"].append(fmean(forward for forward, _ in taken))
        self.taken["backward"].append(fmean(backward for _, backward in taken))

    def _trained(self) -> tuple[float, float]:
        """Seconds of forward with the loss, and of backward, in a whole step of training."""
        given = self.x.detach().requires_grad_()
        start = time.perf_counter()
        loss = _loss(self.net(given))
        between = time.perf_counter()
        loss.backward()
        end = time.perf_counter()
        if self._optimizer is not None:
            self._optimizer.step()
            self._optimizer.zero_grad()
        return between - start, end - between

    def run_marked(self) -> None:
        """Each phase between two markers."""
        self.net.eval()
        with torch.no_grad(), _marked():
            self.net(self.x)
        self.net.train()
        with _marked():
            loss = _loss(self.net(self.x.detach().requires_grad_()))
        with _marked():
            loss.backward()
        self.net.zero_grad()


@contextmanager
def _marked() -> Iterator[None]:
    """A kernel of our own before and after, by which the profiler's others are told apart."""
    torch.cuda._sleep(1)
    yield
    torch.cuda._sleep(1)


def _loss(out: torch.Tensor) -> torch.Tensor:
    return out.float().square().mean()


def _counts(net: nn.Module, x: torch.Tensor, target: str) -> dict[str, dict[str, float]]:
    """What there is to do by phase, as prediction sees it in a ledger of the network."""
    steps: tuple[tuple[StepKind, dict[str, Any]], ...] = (("infer", {}), ("train", {"loss": "mse", "optimizer": "sgd"}))
    found: dict[str, dict[str, float]] = {}
    for step, options in steps:
        if step == "train" and not any(parameter.requires_grad for parameter in net.parameters()):
            options = {"loss": "mse"}
        ledger = estimate(net, x.detach().requires_grad_(step == "train"), step=step, target=target, **options)
        for phase in ("infer",) if step == "infer" else ("forward", "backward"):
            found[phase] = host_counts(ledger, phase)
    return found


_TENSORS = (20, 220)


class _Optimizer:
    def __init__(
        self, device: torch.device, make: Callable[[list[nn.Parameter]], torch.optim.Optimizer], count: int
    ) -> None:
        self.device = device
        self.parameters = [nn.Parameter(torch.ones(8, device=device)) for _ in range(count)]
        self.gradients = [torch.ones(8, device=device) for _ in range(count)]
        self.optimizer = make(self.parameters)
        self.taken: list[float] = []

    def time_once(self) -> None:
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        _settled(self.device)
        start = time.perf_counter()
        self.optimizer.step()
        self.optimizer.zero_grad()
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
