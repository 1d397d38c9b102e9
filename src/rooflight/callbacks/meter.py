"""What a training does in a second: counted batch by batch, computed every few steps. Knows no library for training.

Between two entries only the clock is read and a batch's shape looked at. The GPU is never waited for: over several
steps the host goes as fast as the GPU does, since each waits for the other.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, wraps
from time import perf_counter
from typing import Any, ParamSpec

import torch
from torch import nn

from rooflight.estimation.api import estimate
from rooflight.ledger import Ledger
from rooflight.machine import installed_gpus, nvml
from rooflight.machine.resident_memory import resident
from rooflight.metrics import utilisation
from rooflight.summary.measured_step import flops_by_precision
from rooflight.summary.peak_rates import peak

_PREFIX = "rooflight/"
_NO_MFU = "no MFU will be logged: %s"
_P = ParamSpec("_P")


@dataclass(frozen=True)
class ModuleCall:
    """A module that a step calls, and with what: enough to estimate it."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    trains: bool
    """Gradients go back through it."""
    autocast: str | None


@dataclass(frozen=True)
class BatchSize:
    samples: int
    tokens: int | None
    """With the padding; `None`: it has none."""

    @property
    def units(self) -> int:
        """What FLOPs are in proportion to, from one batch to the next."""
        return self.samples if self.tokens is None else self.tokens


def warn(text: str, *values: object) -> None:
    logging.getLogger("rooflight").warning(f"rooflight: {text}", *values)


def never_raises(function: Callable[_P, None]) -> Callable[_P, None]:
    """Of methods whose first argument has `broken`: what goes wrong is told, and nothing is done from then on."""

    @wraps(function)
    def safe(*args: _P.args, **kwargs: _P.kwargs) -> None:
        meter: Any = args[0]
        if meter.broken:
            return
        try:
            function(*args, **kwargs)
        except Exception as error:
            meter.broken = True
            warn("nothing more is logged (%s: %s)", type(error).__name__, error)

    return safe


class TrainingMeter:
    """Fed with batches and ends of steps; every so many steps it gives what is to be logged."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.device = torch.device("cpu")
        self._entries = 0
        self._steps = self._samples = self._tokens = self._units = 0
        self._time_s = 0.0
        self._mark_s: float | None = None
        self._peak_s: float | None = None
        """Seconds that the useful FLOPs of one unit of a batch take at the device's peak."""

    # The first batch.

    def know(self, calls: list[ModuleCall], size: BatchSize | None) -> None:
        """One estimate of what the first batch costs."""
        try:
            self._peak_s = self._peak_time(calls, size)
        except Exception as error:  # a model that cannot be traced is still trained
            warn(_NO_MFU, " ".join(str(error).split()))

    def _peak_time(self, calls: list[ModuleCall], size: BatchSize | None) -> float | None:
        device = installed_gpus.device_name(str(self.device))
        if self.device.type != "cuda":
            return None  # how many cores of a processor a training has, nobody knows
        if size is None or not calls:
            raise ValueError("the first batch tells no number of samples" if calls else "no call of the model was seen")
        if any(_is_sharded(call.module) for call in calls):
            raise ValueError("the parameters are spread over several processes")
        return sum(_peak_time_of(_estimated(call), device) for call in calls) / size.units

    # Every batch, every step.

    def batch(self, size: BatchSize | None) -> None:
        if size is not None:
            self._samples += size.samples
            self._tokens += size.tokens or 0
            self._units += size.units

    def restart(self) -> None:
        """A training begins, perhaps not the first: what was between it and another is no step."""
        self._forget()
        self._mark_s = None

    def begin(self) -> None:
        """From here on time counts again: after what is no part of a step (an evaluation). Before the first step is
        over none counts."""
        if self._mark_s is not None:
            self._mark_s = perf_counter()

    def end_step(self, number: int) -> dict[str, float] | None:
        """What is to be logged after this step, where it is due. `number`: of the steps of the whole training."""
        entries = number // self.every
        if self._mark_s is None:  # the first step sets up, and is in no figure
            self._forget()
            self._entries = entries
            self._mark_s = perf_counter()
            return None
        now_s = perf_counter()
        self._time_s += now_s - self._mark_s
        self._mark_s = now_s
        self._steps += 1
        if entries == self._entries:
            return None
        self._entries = entries
        entry = self._entry()
        self._forget()
        return entry

    def _forget(self) -> None:
        self._steps = self._samples = self._tokens = self._units = 0
        self._time_s = 0.0

    def _entry(self) -> dict[str, float]:
        values: dict[str, float | None] = {
            "mfu": None if self._peak_s is None else utilisation(self._peak_s * self._units, self._time_s),
            "step_time_s": self._time_s / self._steps,
            "tokens_per_s": self._tokens / self._time_s if self._tokens else None,
            "samples_per_s": self._samples / self._time_s if self._samples else None,
            **self._device_values(),
        }
        return {f"{_PREFIX}{name}": float(value) for name, value in values.items() if value is not None}

    def _device_values(self) -> dict[str, float | None]:
        if self.device.type != "cuda":
            return {"resident_bytes": resident().resident_bytes}
        busy = None if self._gpu is None else self._gpu.utilisation_percent()
        return {
            "gpu_busy": None if busy is None else busy / 100,
            "peak_allocated_bytes": torch.cuda.max_memory_allocated(self.device),
            "peak_reserved_bytes": torch.cuda.max_memory_reserved(self.device),
        }

    @cached_property
    def _gpu(self) -> nvml.Gpu | None:
        return installed_gpus.gpu_of(str(self.device))


def size_of(batch: Any) -> BatchSize | None:
    """How much is in a batch: by `input_ids` where it has them, else by its first tensor."""
    first = batch.get("input_ids") if isinstance(batch, Mapping) else None
    if not isinstance(first, torch.Tensor):
        first = next(_tensors(batch), None)
    if first is None or first.dim() == 0:
        return None
    is_text = first.dim() == 2 and not first.is_floating_point()
    return BatchSize(first.shape[0], first.numel() if is_text else None)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part)


def _estimated(call: ModuleCall) -> Ledger:
    step: Any = "train" if call.trains and any(p.requires_grad for p in call.module.parameters()) else "infer"
    return estimate(call.module, *call.args, kwargs=call.kwargs, step=step, autocast=call.autocast)


def _peak_time_of(ledger: Ledger, device: str) -> float:
    """Seconds that its useful FLOPs take at the peaks of the precisions they run in."""
    times = []
    for precision, flops in flops_by_precision(ledger).items():
        rate = peak(device, precision)
        if rate is None:
            raise ValueError(f"no peak of {device} in {precision} is known (see `rooflight list devices`)")
        times.append(flops / rate.flops_per_s)
    return math.fsum(times)


def _is_sharded(module: nn.Module) -> bool:
    """FSDP and ZeRO-3 keep a part of every parameter: what such a module costs, its shapes do not tell."""
    return any(hasattr(p, "ds_id") or hasattr(p, "_local_tensor") for p in module.parameters()) or any(
        "FullyShardedDataParallel" in type(part).__name__ for part in module.modules()
    )
