"""Two clocks, the host's and the device's: an op starts when it was launched and the device is free.

A step is one of many that follow one another, as in training: the host runs ahead, and the time of a step is what one
more of them adds. Where the host waits for a result, the clocks meet. Communication that the device has to wait for
lies between two ops; communication on a stream of its own only matters where something waits for its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from rooflight.step.cache_reuse import Array

_STEPS = 3


@dataclass
class Clocks:
    """The host's clock and the device's, moved on op by op. Seconds of every op are given by its place."""

    launch_s: Sequence[float]
    """What the host spends on each op."""
    work_s: Sequence[float]
    """What the device does for each op."""
    wait_s: Sequence[float] = ()
    """Communication that the device waits for right after each op; empty: none."""
    meets: Sequence[bool] = ()
    """Ops whose result the host needs before it goes on; empty: none."""
    host_s: float = 0.0
    device_s: float = 0.0
    ends: dict[int, float] = field(default_factory=dict)
    """When the device was done with each op that was run."""

    def run(self, ops: Iterable[int]) -> None:
        launch_s, work_s, wait_s, meets, ends = self.launch_s, self.work_s, self.wait_s, self.meets, self.ends
        host_s, device_s = self.host_s, self.device_s
        for op in ops:
            host_s += launch_s[op]
            work = work_s[op]
            if work > 0:
                device_s = (host_s if host_s > device_s else device_s) + work
            if wait_s:
                device_s += wait_s[op]
            if meets and meets[op] and device_s > host_s:
                host_s = device_s
            ends[op] = device_s
        self.host_s, self.device_s = host_s, device_s

    def wait_for(self, moment_s: float) -> None:
        """The device does nothing before that moment; the host goes on launching."""
        self.device_s = max(self.device_s, moment_s)

    @property
    def now_s(self) -> float:
        return max(self.host_s, self.device_s)

    def steady_s(self, one_step: Callable[[], None]) -> float:
        """What one more step adds when many follow one another: the host launches the next while the device still
        works on the last."""
        ends = []
        for _ in range(_STEPS):
            one_step()
            ends.append(self.now_s)
        return ends[-1] - ends[-2]


def step_seconds(
    launch_s: Array,
    work_s: Array,
    *,
    gap_s: Array | float = 0.0,
    meets: Sequence[bool] | npt.NDArray[np.bool_] = (),
) -> Array:
    """Seconds that one step adds, for each row of `work_s`: other times of the device for the same ops. `gap_s`:
    between its kernels."""
    taken_s = work_s + np.where(work_s > 0, gap_s, 0.0)
    if not np.any(meets):
        return _without_meetings(launch_s, taken_s)
    ops, launches, meeting = range(len(launch_s)), launch_s.tolist(), np.asarray(meets).tolist()
    pairs = [Clocks(launches, row, meets=meeting) for row in taken_s.tolist()]
    return np.array([clocks.steady_s(partial(clocks.run, ops)) for clocks in pairs])


def _without_meetings(launch_s: Array, taken_s: Array) -> Array:
    """What `Clocks` does, for all rows at once: without meetings the device's queue is a running maximum, as it is free
    at max(free, launched) + taken, op by op."""
    rows, ops = taken_s.shape
    if not ops:
        return np.zeros(rows)
    host, free = np.zeros(rows), np.zeros(rows)
    launched, work = np.cumsum(launch_s), np.cumsum(taken_s, axis=1)
    ends = []
    for _ in range(_STEPS):
        starts = host[:, None] + launched[None, :] - (work - taken_s)
        free = work[:, -1] + np.maximum(free, starts.max(axis=1))
        host = host + launched[-1]
        ends.append(np.maximum(host, free))
    return np.asarray(ends[-1] - ends[-2], dtype=np.float64)
