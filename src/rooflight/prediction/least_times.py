"""The least time of every op of a step: at the roofs, which count all its bytes, and at the floor, which nothing beats.

A roof is that of a roofline: FLOPs at the peak of their unit, every compulsory byte at the bandwidth of the memory. An
op whose inputs still lie in a cache can be faster than that. The floor leaves out the bytes that a cache may hold, and
no others: what is read for the first time after more than the cache holds was touched comes from memory (a model's
parameters, inputs and KV cache do, from one step to the next, unless the whole step fits), and of what is written no
more than the cache holds can stay there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rooflight.hardware.device import Device
from rooflight.hardware.roofs import roofs_of
from rooflight.step.cache_reuse import Array
from rooflight.step.costed_step import Step

DEFAULT_CACHE_BYTES = 4e6
"""Where a device's file says nothing of its cache: a small one, whose times are those of memory."""
_LARGE_CACHE_BYTES = 256e6
"""The same for a floor, which may only count what cannot be in a cache."""


def cache_bytes(device: Device) -> float:
    """Of the cache that warm inputs are in."""
    return device.l2_bytes.value if device.l2_bytes is not None else DEFAULT_CACHE_BYTES


@dataclass(frozen=True)
class Limits:
    """For every kind of op, or every op: the least seconds that compute and memory take at the roofs."""

    compute_s: Array
    memory_s: Array
    matrix_s: Array
    """Of the useful matrix work alone: what MFU counts."""

    @property
    def roof_s(self) -> Array:
        return np.maximum(self.compute_s, self.memory_s)


def limits_of(step: Step, device: Device) -> Limits:
    """The same as `Demand` says of every op, for all kinds at once."""
    roofs, demands = roofs_of(device), step.demands
    of = demands.precision_of
    needed = [
        (bool(demands.matrix[of == n].any()), bool(demands.other[of == n].any()))
        for n in range(len(demands.precisions))
    ]
    flops_per_s = np.array(
        [
            (roofs.matrix(p).flops_per_s if has_matrix else np.inf, roofs.other(p).flops_per_s if has_other else np.inf)
            for p, (has_matrix, has_other) in zip(demands.precisions, needed, strict=True)
        ]
    ).reshape(-1, 2)[of]
    compute = np.maximum(demands.matrix / flops_per_s[:, 0], demands.other / flops_per_s[:, 1])
    memory = (demands.read + demands.written) / roofs.slope().bytes_per_s
    return Limits(compute, memory, demands.useful / flops_per_s[:, 0])


def floor_seconds(step: Step, device: Device) -> Array:
    """For every op, the time that nothing beats. Of a CPU that is its peak alone: its bandwidth was measured by copies,
    which reading beats, and its cores have caches of their own."""
    kinds = step.kind_of
    least = limits_of(step, device).compute_s[kinds]
    if device.kind == "gpu":
        moved = _moved_bytes(step, _largest_cache(device)) * (step.moves if step.is_compiled else 1.0)
        least = np.maximum(least, moved / device.bandwidth_bytes_per_s.value)
    return np.where(step.launches[kinds], least, 0.0)


def _moved_bytes(step: Step, cache: float) -> Array:
    """What must pass between the memory and a cache of that size. An op may read a part of what it is given, as an
    embedding does, or some of it many times."""
    kinds = step.kind_of
    read, written = step.demands.read[kinds], step.demands.written[kinds]
    shares, cold = step.reuse.uncached_bytes(cache)
    return np.minimum(shares * read, cold) + np.maximum(written - cache, 0.0)


def _largest_cache(device: Device) -> float:
    """Of all levels together; where nothing is known of them, what no device has more of."""
    if device.l2_bytes is None:
        return _LARGE_CACHE_BYTES
    return device.l2_bytes.value + (device.memory_cache_bytes.value if device.memory_cache_bytes is not None else 0.0)
