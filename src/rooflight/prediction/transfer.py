"""Times of tasks on one device, carried over to another that nobody calibrated.

What a task takes is told by three things that grow together: its FLOPs at the rate that the device sustains, its bytes
at the speed of memory and cache, and the rest: what its kernels spend inside the multiprocessors on instructions,
shared memory, waiting. The first two are known of both devices. The rest is what the calibrated device took beyond
them, and goes with multiprocessors times clock. Carried over to the device itself, a time stays what it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rooflight.hardware.device import Device
from rooflight.hardware.power import kept_up
from rooflight.ops.kernel_task import Task, convolves, rows_of
from rooflight.prediction.calibrated.baseline import (
    LAUNCH_S,
    columns,
    convolution_product,
    is_matrix_work,
    is_thin,
    matrix_flops,
    moved_bytes,
    product_seconds,
)
from rooflight.prediction.calibrated.model import TaskTimes
from rooflight.prediction.least_times import cache_bytes
from rooflight.step.cache_reuse import Array

# Chosen on single ops of the GPUs that benchmarks/held_out.toml names, with benchmarks/transfer.py.
_TOGETHER, _OF_OTHERS_TOGETHER = 2.0, 1.5
"""How the three add up: 1 as one after the other, infinite as the longest alone; of matrix work and of other work."""
_OF_RATE = 0.92
"""Of the sustained rate, what large products reach."""
_OF_BANDWIDTH, _OF_OLD_BANDWIDTH = 0.9, 0.75
"""Of the bandwidth, what copies reach; the latter before Volta."""
_VOLTA = 70
_CACHE_BYTES_PER_CYCLE = 22.0
"""Of a multiprocessor: the H200's own copies inside its cache."""
_GEFORCE = 1.05
"""The fastest hundredth of an RTX 3090's products (LLMServingSim's layers) reaches 104% of its peak, of an A100's 96%,
of a V100's 93%: its clock is that much higher, and about half of it lasts."""
_USABLE_CACHE = 0.7
_LANES = 0.5
"""How much of other work than matrix products goes with the lanes of a multiprocessor: 0 nothing, 1 all."""
_TILE = 128
_BLOCK_BYTES = 8192
"""Of memory-bound work, about what a block of threads moves."""
_BACKWARD = 1.25
"""Attention's gradient computes the scores again."""


@dataclass(frozen=True)
class _Side:
    """What the three parts must know of a device."""

    device: Device
    origin: Device | None = None
    """Whose times are carried over to it; `None`: it is that device itself."""

    @property
    def bandwidth(self) -> float:
        old = self.device.capability is not None and self.device.capability < _VOLTA
        return self.device.bandwidth_bytes_per_s.value * (_OF_OLD_BANDWIDTH if old else _OF_BANDWIDTH)

    @property
    def units(self) -> float:
        return self.device.sms.value

    @property
    def above_nominal(self) -> float:
        """GeForce boards run above the boost clock that their data sheets, and so their peaks, are of."""
        return _GEFORCE if "GeForce" in self.device.title else 1.0

    @property
    def clock_hz(self) -> float:
        return self.above_nominal * self.device.clock_hz.value

    @property
    def lanes(self) -> float:
        """Of a multiprocessor: fp32 operations that it begins in a cycle."""
        return self.device.core_flops_per_s["fp32"].value / (2 * self.units * self.device.clock_hz.value)

    @property
    def fp64_slower(self) -> float:
        """How many times slower than fp32 its units are in fp64."""
        single, double = self.device.peak("fp32"), self.device.peak("fp64")
        return 1.0 if single is None or double is None else single.value / double.value

    def compute_seconds(self, family: str, precision: str, numbers: Array) -> Array:
        c = columns(family, numbers)
        rate = _OF_RATE * self._flops_per_s(precision)
        if family == "gemm":
            return product_seconds(c["m"], c["n"], c["k"], c["batch"], rate, self.units)
        flops = matrix_flops(family, c)
        if flops is None:
            return np.zeros(len(numbers))
        if not convolves(family):
            return flops / rate * (_BACKWARD if family.endswith("backward") else 1.0)
        m, n, k = convolution_product(family, c)
        thin = flops / self._flops_per_s("fp32")
        return np.where(is_thin(c), thin, product_seconds(m, n, k, c["groups"], rate, self.units))

    def _flops_per_s(self, precision: str) -> float:
        figure = self.device.peak(precision) or self.device.peak("fp32")
        assert figure is not None  # every device has fp32
        return self.above_nominal * figure.value * self._kept_up(precision)

    def _kept_up(self, precision: str) -> float:
        """Of the peak, what its power limit allows. Times of the calibrated device have in them what its own allows: of
        the same generation, the like of that counts once."""
        if self.origin is None:
            return 1.0
        part = kept_up(self.device, precision)
        same = self.origin.vendor == self.device.vendor and _generation(self.origin) == _generation(self.device)
        return min(1.0, part / kept_up(self.origin, precision)) if same else part

    def memory_seconds(self, nbytes: Array, *, warm: bool) -> Array:
        if not warm:
            return nbytes / self.bandwidth
        cached = max(self.bandwidth, _CACHE_BYTES_PER_CYCLE * self.units * self.clock_hz)
        share = np.clip(_USABLE_CACHE * cache_bytes(self.device) / np.maximum(nbytes, 1.0), 0.0, 1.0) ** 2
        return nbytes * (share / cached + (1 - share) / self.bandwidth)


def _blocks(family: str, numbers: Array, nbytes: Array) -> Array:
    """About how many blocks of threads a task has: fewer than there are multiprocessors leave some without work."""
    c = columns(family, numbers)
    if family == "gemm":
        rows, cols, depth, count = c["m"], c["n"], c["k"], c["batch"]
    elif convolves(family):
        (rows, cols, depth), count = convolution_product(family, c), c["groups"]
    elif family.startswith("recurrent-"):
        return c["samples"] * c["gates"] * c["hidden"] * c["directions"] / _TILE**2
    elif family == "nll-forward":
        return np.ones(len(numbers))  # one block of threads adds all rows up
    elif family.endswith("-decode"):
        return c["batch"] * c["heads_kv"] * np.clip(c["length_kv"] / 512, 1, 64)
    elif family.startswith("attention-"):
        return np.ceil(c["length_q"] / _TILE) * c["batch"] * c["heads"]
    else:
        return np.minimum(c.get("rows", np.inf), nbytes / _BLOCK_BYTES)
    return np.ceil(rows / _TILE) * np.ceil(cols / _TILE) * count * np.clip(depth / 512, 1, 64)


def transferred(tasks: Sequence[Task], times: TaskTimes, *, origin: Device, target: Device) -> tuple[Array, Array]:
    """Warm and cold seconds on the target of tasks that take `times` on the origin."""
    there, here = _Side(origin), _Side(target, origin)
    slower = there.clock_hz / here.clock_hz
    same_kernels = origin.vendor == target.vendor
    warm_s, cold_s = np.zeros(len(tasks)), np.zeros(len(tasks))
    groups: dict[tuple[str, str], list[int]] = {}
    for place, task in enumerate(tasks):
        groups.setdefault((task.family, task.precision), []).append(place)
    for (family, precision), places in groups.items():
        numbers = rows_of([tasks[place] for place in places], np.float64)
        launches = LAUNCH_S * np.maximum(times.kernels[places], 1.0)
        nbytes = moved_bytes(family, precision, numbers)
        blocks = _blocks(family, numbers, nbytes)
        rest = slower * np.maximum(blocks / here.units, 1.0) / np.maximum(blocks / there.units, 1.0)
        wider = there.lanes / here.lanes
        rest = rest * (min(1.0, wider) if is_matrix_work(family) else wider**_LANES)  # Kepler's are wider than all
        if precision == "fp64" and is_matrix_work(family):  # never timed in fp64: its times are fp32's
            rest = rest * here.fp64_slower / there.fp64_slower
        power = _TOGETHER if is_matrix_work(family) else _OF_OTHERS_TOGETHER
        computed = [side.compute_seconds(family, precision, numbers) for side in (there, here)]
        for seconds, measured, warm in ((warm_s, times.warm_s, True), (cold_s, times.cold_s, False)):
            moved = [side.memory_seconds(nbytes, warm=warm) for side in (there, here)]
            known, wanted = (_together(a, b, power) for a, b in zip(computed, moved, strict=True))
            body = np.maximum(measured[places] - launches, 0.0)
            # Where the calibrated device was faster than its roofs were taken to be, so is the other.
            faster = np.minimum(1.0, np.divide(body, known, out=np.ones(len(body)), where=known > 0))
            beyond = np.maximum(body**power - known**power, 0.0) ** (1 / power)
            # Another vendor's kernels are taken to be as far from its roofs as these are from theirs.
            grows = rest if same_kernels else np.divide(wanted, known, out=rest.copy(), where=known > 0)
            seconds[places] = slower * launches + _together(faster * wanted, grows * beyond, power)
            # A kernel shorter than a launch was taken to be is no longer elsewhere because of that.
            seconds[places] *= np.minimum(1.0, measured[places] / launches)
    return warm_s, np.maximum(warm_s, cold_s)


def _generation(device: Device) -> int | None:
    return None if device.capability is None else device.capability // 10


def _together(first: Array, second: Array, power: float) -> Array:
    total: Array = (first**power + second**power) ** (1 / power)
    return total
