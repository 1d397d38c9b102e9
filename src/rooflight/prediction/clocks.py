"""Two clocks, the host's and the device's: an op starts when it was launched and the device is free.

A step is one of many that follow one another, as in training: the host runs ahead, and the time of a step is what one
more of them adds. Where the host waits for a result, the clocks meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rooflight.prediction.cache import Array

_STEPS = 3


@dataclass(frozen=True)
class Clocks:
    """Of each cell: seconds that one step adds, and that the device works in it."""

    wall_s: Array
    busy_s: Array


def simulate(
    host_s: Array,
    device_s: Array,
    *,
    gap_s: Array | float = 0.0,
    waits: Sequence[bool] | npt.NDArray[np.bool_] | None = None,
) -> Clocks:
    """`host_s`: what the host spends on each op; `device_s`: one row a cell, what the device does for each op; `gap_s`:
    between its kernels; `waits`: ops whose result the host needs before it goes on."""
    cells, ops = device_s.shape
    taken = device_s + np.where(device_s > 0, gap_s, 0.0)
    meets = np.zeros(ops, dtype=bool) if waits is None else np.asarray(waits)
    host, free = np.zeros(cells), np.zeros(cells)
    ends = []
    launched = np.cumsum(host_s)
    for _ in range(_STEPS):
        if not meets.any():
            # Without meetings the device's queue is a running maximum: free = max(free, launch) + taken, op by op.
            work = np.cumsum(taken, axis=1)
            starts = host[:, None] + launched[None, :] - (work - taken)
            free = work[:, -1] + np.maximum(free, starts.max(axis=1)) if ops else free
            host = host + (launched[-1] if ops else 0.0)
        else:
            for place in range(ops):
                host = host + host_s[place]
                if taken[:, place].any():
                    free = np.maximum(free, host) + taken[:, place]
                if meets[place]:
                    host = np.maximum(host, free)
        ends.append(np.maximum(host, free))
    return Clocks(wall_s=ends[-1] - ends[-2], busy_s=device_s.sum(axis=1))
