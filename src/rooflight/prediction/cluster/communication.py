"""Time of a collective over a fabric, and PALEO's own models of one.

Ring all-reduce of S bytes over n ranks: a + 2(n-1) l + 2(n-1)/n S/B. A ring passes through a node on its way to the
next, so of its 2(n-1) hops 2(N-1) cross the network for N nodes, and B is the smaller of the link and of the network
that the node's members of the group have together. A tree is a chain inside a node and a double binary tree between
nodes: a + 2((k-1) l + log2(N) L) + 2 S/B, k ranks a node. Both run in one of three protocols that trade bandwidth for
latency. All constants are those that NCCL itself chooses by (`fabric.NCCL`); the cheapest way is taken, and named.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rooflight.parallel.fabric import Algorithm, Fabric, Protocol, RankGroup

# Bandwidth that a protocol keeps of the link's: LL sends a flag with every 4 bytes, LL128 one with every 120.
# LL on one node reaches 39 of 120, 88 of 240 and 141 of 370 GB/s (Volta, Ampere, Hopper): about 0.35.
_RING_SHARE: dict[Protocol, float] = {"LL": 0.35, "LL128": 0.92, "Simple": 1.0}
_TREE_SHARE: dict[Protocol, float] = {"LL": 0.92 / 3.8, "LL128": 0.92 * 120 / 128, "Simple": 0.92}
_TREE_SHARE_ONE_NODE: dict[Protocol, float] = {**_TREE_SHARE, "LL128": 0.92 * 7 / 9}


@dataclass(frozen=True)
class Transfer:
    """One collective: how long it takes and how it is done."""

    time_s: float
    how: str
    """`ring, Simple`; `nothing to do` for one rank."""


NOTHING = Transfer(0.0, "nothing to do")


def all_reduce(nbytes: float, group: RankGroup, fabric: Fabric) -> Transfer:
    """Every rank ends with the sum of what all had."""
    if group.ranks <= 1 or nbytes <= 0:
        return NOTHING
    ways = [way(nbytes, group, fabric, protocol) for way in (_ring, _tree) for protocol in _protocols(fabric)]
    return min(ways, key=_time)


def reduce_scatter(nbytes: float, group: RankGroup, fabric: Fabric) -> Transfer:
    """Every rank ends with its part of the sum. `nbytes` is the whole, before it is cut up. NCCL has rings for it."""
    if group.ranks <= 1 or nbytes <= 0:
        return NOTHING
    return min((_ring(nbytes, group, fabric, protocol, rounds=1) for protocol in _protocols(fabric)), key=_time)


def all_gather(nbytes: float, group: RankGroup, fabric: Fabric) -> Transfer:
    """Every rank ends with all parts. `nbytes` is the whole, once put together."""
    return reduce_scatter(nbytes, group, fabric)


def point_to_point(nbytes: float, fabric: Fabric, *, across_nodes: bool) -> Transfer:
    """One rank sends to another. Inside a node the whole link is theirs, as it is behind a switch."""
    if nbytes <= 0:
        return NOTHING
    link = fabric.between if across_nodes else fabric.inside
    hop = fabric.latencies.hop_s[link.kind, "ring", "Simple"]
    return Transfer(
        fabric.latencies.base_s["ring", "Simple"] + hop + nbytes / link.bytes_per_s, f"point to point, {link.kind}"
    )


def _time(transfer: Transfer) -> float:
    return transfer.time_s


def _protocols(fabric: Fabric) -> tuple[Protocol, ...]:
    """LL128 needs stores of 128 bytes that arrive whole: NCCL uses it over NVLink only."""
    return ("LL", "LL128", "Simple") if fabric.inside.kind == "nvlink" else ("LL", "Simple")


def _hops(fabric: Fabric, algorithm: Algorithm, protocol: Protocol) -> tuple[float, float]:
    hop_s = fabric.latencies.hop_s
    return hop_s[fabric.inside.kind, algorithm, protocol], hop_s["network", algorithm, protocol]


def _bandwidth(group: RankGroup, fabric: Fabric) -> float:
    """Bytes a second along the ring: the node's members of the group bring their network with them."""
    if group.nodes == 1:
        return fabric.inside.bytes_per_s
    # Where nodes are not equally full, the emptiest has the fewest ways out.
    network = max(group.ranks // group.nodes, 1) * fabric.between.bytes_per_s
    return min(fabric.inside.bytes_per_s, network) if group.per_node > 1 else network


def _ring(nbytes: float, group: RankGroup, fabric: Fabric, protocol: Protocol, *, rounds: int = 2) -> Transfer:
    """`rounds` is 2 for an all-reduce (scatter the sums, then gather them), 1 for either half."""
    n, nodes = group.ranks, group.nodes
    inside, between = _hops(fabric, "ring", protocol)
    steps_between = rounds * (nodes - 1)
    latency = (rounds * (n - 1) - steps_between) * inside + steps_between * between
    rate = _bandwidth(group, fabric) * _RING_SHARE[protocol]
    moved = rounds * (n - 1) / n * nbytes
    return Transfer(fabric.latencies.base_s["ring", protocol] + latency + moved / rate, f"ring, {protocol}")


def _tree(nbytes: float, group: RankGroup, fabric: Fabric, protocol: Protocol) -> Transfer:
    inside, between = _hops(fabric, "tree", protocol)
    per_node = math.ceil(group.ranks / group.nodes)
    latency = 2 * ((per_node - 1) * inside + math.ceil(math.log2(group.nodes)) * between)
    shares = _TREE_SHARE if group.nodes > 1 else _TREE_SHARE_ONE_NODE
    rate = _bandwidth(group, fabric) * shares[protocol]
    base = fabric.latencies.base_s["tree", protocol]
    return Transfer(base + latency + 2 * nbytes / rate, f"tree, {protocol}")


# PALEO's models (Qi, Sparks, Talwalkar, ICLR 2017; paleo/comm.py): t is the time of the whole message over one link.


def paleo_one_to_all(link_time_s: float, ranks: int) -> float:
    """A master takes every message and sends every answer: 2 (n - 1) t."""
    return 2 * (ranks - 1) * link_time_s


def paleo_tree(link_time_s: float, ranks: int) -> float:
    """Up a binary tree and down again, nothing overlapped: 2 ceil(log2 n) t."""
    return 2 * _levels(ranks) * link_time_s


def paleo_butterfly(link_time_s: float, ranks: int) -> float:
    """Pairs exchange all they have, ceil(log2 n) times."""
    return _levels(ranks) * link_time_s


PALEO = {"one-to-all": paleo_one_to_all, "tree": paleo_tree, "butterfly": paleo_butterfly}


def _levels(ranks: int) -> int:
    return math.ceil(math.log2(ranks))
