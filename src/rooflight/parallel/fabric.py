"""What joins the GPUs: a link inside a node, a network between nodes, and how much of each is reached in practice.

A bandwidth is one direction of one GPU, in bytes per second as a collective sees it (NCCL's bus bandwidth), not the
line rate of a data sheet. Every figure carries the words that say where it comes from; what is not known of the
reader's cluster is an assumption; a device's own file may name its links.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from rooflight.errors import BadInput
from rooflight.hardware.device import Device

Protocol = Literal["LL", "LL128", "Simple"]
Algorithm = Literal["ring", "tree"]
LinkKind = Literal["nvlink", "pcie", "network"]

NCCL = "NCCL's own cost model (src/graph/tuning.cc and topo.h, read 2026-11-15)"


@dataclass(frozen=True)
class Latencies:
    """Seconds to start a collective and to pass one hop, by algorithm and protocol."""

    base_s: dict[tuple[Algorithm, Protocol], float]
    hop_s: dict[tuple[LinkKind, Algorithm, Protocol], float]


_BASE_US: dict[Algorithm, tuple[float, float, float]] = {"ring": (6.6, 14.0, 8.4), "tree": (6.8, 14.0, 8.4)}
_HOP_US: dict[tuple[LinkKind, Algorithm], tuple[float, float, float]] = {
    ("nvlink", "ring"): (0.6, 1.9, 3.4),
    ("nvlink", "tree"): (0.6, 1.25, 4.0),
    ("pcie", "ring"): (1.0, 2.5, 5.7),
    ("pcie", "tree"): (1.0, 1.9, 4.0),
    ("network", "ring"): (2.7, 4.0, 14.0),
    ("network", "tree"): (5.0, 8.5, 14.0),
}
PROTOCOLS: tuple[Protocol, ...] = ("LL", "LL128", "Simple")
NCCL_LATENCIES = Latencies(
    base_s={(way, p): us * 1e-6 for way, row in _BASE_US.items() for p, us in zip(PROTOCOLS, row, strict=True)},
    hop_s={(*place, p): us * 1e-6 for place, row in _HOP_US.items() for p, us in zip(PROTOCOLS, row, strict=True)},
)
"""The table by which NCCL itself chooses its algorithm."""

NO_LATENCY = Latencies(base_s=dict.fromkeys(NCCL_LATENCIES.base_s, 0.0), hop_s=dict.fromkeys(NCCL_LATENCIES.hop_s, 0.0))


@dataclass(frozen=True)
class Link:
    """One way from GPU to GPU."""

    kind: LinkKind
    bytes_per_s: float
    """Reached by a collective, one direction, one GPU."""
    origin: str

    def __post_init__(self) -> None:
        if not self.bytes_per_s > 0:
            raise BadInput(
                "not-positive", f"a {self.kind} of {self.bytes_per_s:g} bytes/s moves nothing: give a bandwidth above 0"
            )


@dataclass(frozen=True)
class Fabric:
    """The links of a cluster of equal nodes."""

    inside: Link
    """Between the GPUs of one node."""
    between: Link
    """Between nodes; what one GPU has of it."""
    latencies: Latencies = field(default=NCCL_LATENCIES, repr=False)

    def assumptions(self, *, nodes: int) -> list[str]:
        """What was taken to be so, one plain line each."""
        lines = [f"in a node: {_rate(self.inside.bytes_per_s)} a GPU and direction over {self.inside.origin}"]
        if nodes > 1:
            lines.append(f"between nodes: {_rate(self.between.bytes_per_s)} a GPU and direction, {self.between.origin}")
        return lines

    def without_cost(self) -> Fabric:
        """The same cluster with links that take no time: what is left of a step is computation and bubble."""
        inside, between = (replace(link, bytes_per_s=math.inf) for link in (self.inside, self.between))
        return Fabric(inside, between, NO_LATENCY)


@dataclass(frozen=True)
class RankGroup:
    """Ranks that communicate with one another, and how many of them share a node."""

    ranks: int
    per_node: int

    @property
    def nodes(self) -> int:
        return math.ceil(self.ranks / self.per_node)


# Line rate to what a collective reaches. NCCL plans with these rates for one link: 18.0 GB/s of 20 (Pascal), 20.0 of
# 25 (Volta, Ampere), 20.6 of 25 (Hopper), 40.1 of 50 (Blackwell); "roughly, the app-level bandwidth is 80% of the
# peak" (NVIDIA/nccl issue 1054). Times 6, 12 and 18 links: 120 GB/s on a V100, 240 on an A100, 370 on an H100.
_NVLINK_SHARE = ((100, 40.1 / 50), (90, 20.6 / 25), (70, 20.0 / 25), (60, 18.0 / 20))
_BRIDGED = frozenset({"a100-pcie-40", "a100-pcie-80", "a40", "h100-nvl", "h100-pcie", "rtx-3090", "rtx-a6000"})
"""Cards whose NVLink is a bridge between two of them: more than two talk over PCIe."""
_PCIE_SHARE = 12 / 16
"""NCCL plans with 12 GB/s for the 16 of PCIe 3.0 x16."""
_NETWORK_SHARE = 0.91
"""Two HGX A100 with four 200 Gbit/s ports each: 91 of 100 GB/s (NVIDIA/nccl-tests issue 100)."""

# Gbit/s of network for each GPU in NVIDIA's own systems.
_NETWORKS = (
    (90, 400, "one 400 Gbit/s ConnectX-7 a GPU, as in a DGX H100"),
    (80, 200, "one 200 Gbit/s ConnectX-6 a GPU, as in a DGX A100"),
    (70, 50, "four 100 Gbit/s ports for eight GPUs, as in a DGX-1V"),
    (0, 25, "a guess of 25 Gbit/s a GPU, as one 100 Gbit/s port for four"),
)


def fabric_of(device: Device, *, gpus_per_node: int = 8) -> Fabric:
    """The fabric of nodes with so many of this device."""
    return Fabric(_inside(device, gpus_per_node), _between(device))


def _inside(device: Device, gpus: int) -> Link:
    links = device.links_bytes_per_s
    bridged = gpus > 2 and device.name in _BRIDGED
    if (nvlink := links.get("nvlink")) is not None and not bridged:
        share = next((share for least, share in _NVLINK_SHARE if (device.capability or 0) >= least), 0.8)
        return Link("nvlink", nvlink.value * share, f"NVLink ({share:.0%} of {_rate(nvlink.value)}; {NCCL})")
    if (fabric := links.get("infinity-fabric")) is not None:
        origin = f"Infinity Fabric (80% of {_rate(fabric.value)}: taken from NVLink, not measured)"
        return Link("nvlink", fabric.value * 0.8, origin)
    if (pcie := links.get("pcie")) is not None:
        why = "; the NVLink bridge joins only two cards" if bridged and "nvlink" in links else ""
        origin = f"PCIe ({_PCIE_SHARE:.0%} of {_rate(pcie.value)}; {NCCL}{why})"
        return Link("pcie", pcie.value * _PCIE_SHARE, origin)
    raise BadInput(
        "no-link", f"{device.name} has no link to other GPUs in its file: add nvlink or pcie under links_bytes_per_s"
    )


def _between(device: Device) -> Link:
    if (network := device.links_bytes_per_s.get("network")) is not None:
        line_rate, what = network.value, "the network in the device's file"
    else:
        _, gbit, what = next(row for row in _NETWORKS if (device.capability or 0) >= row[0])
        line_rate, what = gbit / 8 * 1e9, f"assumed: {what}"
    origin = f"{_NETWORK_SHARE:.0%} of {_rate(line_rate)} ({what}; the share is that of NVIDIA/nccl-tests issue 100)"
    return Link("network", line_rate * _NETWORK_SHARE, origin)


def _rate(bytes_per_s: float) -> str:
    return "any number of GB/s" if math.isinf(bytes_per_s) else f"{bytes_per_s / 1e9:.3g} GB/s"
