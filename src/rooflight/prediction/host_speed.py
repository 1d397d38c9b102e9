"""How fast the host of a GPU is, where nobody timed it on that very machine.

The host belongs to the machine, not to the GPU, and nobody says which one it is. Where others timed single ops on such
a GPU, the shortest of them tell what their host took. Elsewhere a host is taken to be as old as its GPU, for those of
public single ops grew faster from year to year (`benchmarks/hosts.py` reads both off them). Either is right within a
factor of two or so, and intervals say that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rooflight.hardware.device import Device
from rooflight.ledger import Value

HOST_RATIO = "host.ratio"
"""In a calibration made of what others published: their host's time, in those of the calibrated host."""
IDLE_CALL = "idle.call"
"""In a calibration: seconds of a call on an idle device beside its host's time and its kernels."""
_OF_DEVICE = ("gap", "graph.", IDLE_CALL)
"""What is between kernels is not the host's."""

_KNOWN_DEVIATION, _UNKNOWN_DEVIATION = 0.25, 0.55
"""One standard deviation of the host's time, relative. Two runs of one script on two machines of the same kind differed
by 21% in the mean. One more host than the six of benchmarks/hosts.py is off by the other, in the middle of their
years."""
_YEARS = ((89, 2022), (80, 2020), (75, 2018), (70, 2017), (0, 2016))
"""By compute capability: when GPUs came out. None is taken to be newer or older than those whose hosts are known."""
_LEVEL, _A_YEAR, _MIDDLE = -0.031, -0.234, 2018.5
_OFF, _HOSTS, _SQUARES = 0.505, 6, 31.5
"""Of the line: what hosts are off it by, as a normal deviation by Student's t; how many, and their years' squares."""


@dataclass(frozen=True)
class HostSpeed:
    """Of the machine that a GPU is taken to be in."""

    ratio: float
    """Its time for a call, in those of the calibrated host."""
    deviation: float
    """One standard deviation of its time, relative."""
    words: str
    """Which host it is taken to be."""

    def costs(self, calibrated: Mapping[str, Value]) -> dict[str, Value]:
        """Seconds of this host, from those of the calibrated one."""
        if self.ratio == 1.0:
            return dict(calibrated)
        return {
            key: value
            if key.startswith(_OF_DEVICE)
            else Value(self.ratio * value.value, f"{value.origin}; times {self.ratio:.2g}, {self.words}")
            for key, value in calibrated.items()
        }


CALIBRATED_HOST = HostSpeed(1.0, _KNOWN_DEVIATION, "the host that was calibrated")
GIVEN_HOST = HostSpeed(1.0, _UNKNOWN_DEVIATION, "the host of another device's calibration")


def host_of_others(published: Mapping[str, Value]) -> HostSpeed | None:
    """That of those who published single ops of the GPU, if they tell it."""
    ratio = published.get(HOST_RATIO)
    if ratio is None:
        return None
    return HostSpeed(float(ratio.value), _UNKNOWN_DEVIATION, "the host of those who timed them")


def usual_host(device: Device) -> HostSpeed:
    """A host as old as the GPU."""
    capability = 90 if device.capability is None else device.capability
    year = next(year for least, year in _YEARS if capability >= least)
    ratio = math.exp(_LEVEL + _A_YEAR * (year - _MIDDLE))
    deviation = _OFF * math.sqrt(1 + 1 / _HOSTS + (year - _MIDDLE) ** 2 / _SQUARES)
    return HostSpeed(ratio, deviation, f"a host of {year}")
