"""Time of collectives: arithmetic by hand, limits, what is chosen, and where the bandwidths come from."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.errors import BadInput
from rooflight.hardware.devices import find
from rooflight.parallel.fabric import NCCL_LATENCIES, Fabric, Link, RankGroup, fabric_of
from rooflight.prediction.cluster.communication import (
    NOTHING,
    PALEO,
    all_gather,
    all_reduce,
    paleo_butterfly,
    paleo_one_to_all,
    paleo_tree,
    point_to_point,
    reduce_scatter,
)
from tests.fixtures.parallel_steps import GB, device, plain_fabric

COLLECTIVES = (all_reduce, reduce_scatter, all_gather)
groups = st.builds(RankGroup, st.integers(2, 4096), st.sampled_from([1, 2, 4, 8])).filter(
    lambda g: g.per_node <= g.ranks
)


def nccl_fabric(inside: float = 370 * GB, between: float = 45 * GB) -> Fabric:
    return Fabric(Link("nvlink", inside, ""), Link("network", between, ""), NCCL_LATENCIES)


def test_a_ring_without_latency_moves_2_n_minus_1_over_n() -> None:
    # 2 x 3/4 x 1 GB at 100 GB/s
    sent = all_reduce(GB, RankGroup(4, 4), plain_fabric())
    assert (sent.time_s, sent.how) == (pytest.approx(0.015), "ring, Simple")
    assert reduce_scatter(GB, RankGroup(4, 4), plain_fabric()).time_s == pytest.approx(0.0075)
    assert all_gather(GB, RankGroup(4, 4), plain_fabric()).time_s == pytest.approx(0.0075)


def test_a_ring_in_a_node_has_a_start_and_2_n_minus_1_hops() -> None:
    # a + 2 (8 - 1) l + 2 x 7/8 x S / B, with NCCL's 8.4 us and 3.4 us for the Simple protocol over NVLink
    expected = 8.4e-6 + 14 * 3.4e-6 + 2 * 7 / 8 * GB / (370 * GB)
    sent = all_reduce(GB, RankGroup(8, 8), nccl_fabric())
    assert (sent.time_s, sent.how) == (pytest.approx(expected), "ring, Simple")


def test_a_small_message_takes_the_protocol_of_low_latency() -> None:
    sent = all_reduce(1000, RankGroup(8, 8), nccl_fabric())
    assert sent.how == "ring, LL"
    assert sent.time_s == pytest.approx(6.6e-6 + 14 * 0.6e-6 + 1.75 * 1000 / (0.35 * 370 * GB))


def test_between_nodes_a_ring_has_the_network_of_all_the_groups_gpus_in_a_node() -> None:
    whole_nodes, one_each = RankGroup(16, 8), RankGroup(16, 1)
    # 8 GPUs of a node bring 8 x 10 GB/s, less than the 100 GB/s inside; one brings 10.
    assert all_reduce(GB, whole_nodes, plain_fabric()).time_s == pytest.approx(2 * 15 / 16 / 80)
    assert all_reduce(GB, one_each, plain_fabric()).time_s == pytest.approx(2 * 15 / 16 / 10)
    # Four times the network and the link inside is the narrowest.
    assert all_reduce(GB, whole_nodes, plain_fabric(between=40 * GB)).time_s == pytest.approx(2 * 15 / 16 / 100)


def test_a_tree_wins_where_hops_are_many() -> None:
    few, many = RankGroup(16, 8), RankGroup(4096, 8)
    assert all_reduce(GB, few, nccl_fabric()).how == "ring, Simple"
    sent = all_reduce(25 * 2**20, many, nccl_fabric())
    assert sent.how == "tree, LL128"
    # chain of 8 in a node, 9 levels between 512 nodes, up and down; 2 S over 0.92 x 120/128 of 8 x 45 GB/s
    latency = 14e-6 + 2 * (7 * 1.25e-6 + 9 * 8.5e-6)
    assert sent.time_s == pytest.approx(latency + 2 * 25 * 2**20 / (0.92 * 120 / 128 * 360 * GB))


def test_point_to_point() -> None:
    assert point_to_point(GB, plain_fabric(), across_nodes=False).time_s == pytest.approx(0.01)
    assert point_to_point(GB, plain_fabric(), across_nodes=True).time_s == pytest.approx(0.1)
    assert point_to_point(0, plain_fabric(), across_nodes=True) is NOTHING


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_one_rank_sends_nothing(collective) -> None:
    assert collective(GB, RankGroup(1, 1), nccl_fabric()) is NOTHING
    assert collective(0, RankGroup(8, 8), nccl_fabric()) is NOTHING


@pytest.mark.parametrize("collective", COLLECTIVES)
@given(group=groups)
def test_free_links_cost_nothing(collective, group: RankGroup) -> None:
    assert collective(GB, group, nccl_fabric().without_cost()).time_s == 0


@pytest.mark.parametrize("collective", COLLECTIVES)
@given(group=groups, nbytes=st.floats(1, 1e12), more=st.floats(1, 100))
def test_more_bytes_take_longer_and_faster_links_do_not(
    collective, group: RankGroup, nbytes: float, more: float
) -> None:
    now = collective(nbytes, group, nccl_fabric()).time_s
    assert 0 < now <= collective(nbytes * more, group, nccl_fabric()).time_s * (1 + 1e-12)
    assert collective(nbytes, group, nccl_fabric(370 * GB * more, 45 * GB * more)).time_s <= now * (1 + 1e-12)


@given(ranks=st.integers(2, 7), nbytes=st.floats(1, 1e12))
def test_more_ranks_in_a_node_take_longer(ranks: int, nbytes: float) -> None:
    fewer, more = (all_reduce(nbytes, RankGroup(n, n), nccl_fabric()).time_s for n in (ranks, ranks + 1))
    assert fewer <= more * (1 + 1e-12)


@given(group=groups, nbytes=st.floats(1, 1e12))
def test_an_all_reduce_is_no_faster_than_either_half(group: RankGroup, nbytes: float) -> None:
    assert all_reduce(nbytes, group, nccl_fabric()).time_s >= reduce_scatter(
        nbytes, group, plain_fabric(370 * GB, 45 * GB)
    ).time_s * (1 - 1e-12)


def test_paleos_models() -> None:
    assert (paleo_one_to_all(0.5, 4), paleo_tree(0.5, 4), paleo_butterfly(0.5, 4)) == (3.0, 2.0, 1.0)
    assert (paleo_tree(0.5, 5), paleo_butterfly(0.5, 5)) == (3.0, 1.5)  # three levels for five ranks
    assert [time(0.5, 1) for time in PALEO.values()] == [0, 0, 0]


@pytest.mark.parametrize(
    ("name", "gb_per_s"), [("h100-sxm", 370.8), ("h200", 370.8), ("a100-sxm-80", 240), ("v100-sxm2-32", 120)]
)
def test_what_is_reached_of_nvlink(name: str, gb_per_s: float) -> None:
    inside = fabric_of(find(name)).inside
    assert (inside.kind, inside.bytes_per_s) == ("nvlink", pytest.approx(gb_per_s * GB, rel=0.001))
    assert "NCCL" in inside.origin


@pytest.mark.parametrize(("capability", "gbit"), [(90, 400), (80, 200), (70, 50), (37, 25), (None, 25)])
def test_the_networks_that_are_assumed(capability: int | None, gbit: float) -> None:
    between = fabric_of(device(capability=capability, nvlink=450 * GB)).between
    assert between.bytes_per_s == pytest.approx(0.91 * gbit / 8 * GB)
    assert "assumed" in between.origin


def test_links_that_are_not_nvlink() -> None:
    assert fabric_of(device(pcie=32 * GB)).inside == Link(
        "pcie", 24 * GB, fabric_of(device(pcie=32 * GB)).inside.origin
    )
    assert "not measured" in fabric_of(device(infinity_fabric=448 * GB)).inside.origin
    assert fabric_of(device(pcie=32 * GB, network=10 * GB)).between.bytes_per_s == pytest.approx(9.1 * GB)


def test_a_bridge_joins_two_cards_only() -> None:
    two, eight = (fabric_of(find("h100-pcie"), gpus_per_node=n).inside for n in (2, 8))
    assert (two.kind, eight.kind) == ("nvlink", "pcie")
    assert "bridge joins only two" in eight.origin


def test_the_network_is_named_only_where_it_is_used() -> None:
    fabric = nccl_fabric()
    assert len(fabric.assumptions(nodes=1)) == 1
    assert "between nodes: 45 GB/s" in fabric.assumptions(nodes=2)[1]


@pytest.mark.parametrize("bandwidth", [0.0, -1.0, math.nan])
def test_a_link_that_moves_nothing_is_refused(bandwidth: float) -> None:
    with pytest.raises(BadInput, match="give a bandwidth above 0"):
        Link("network", bandwidth, "made up")


def test_a_device_without_links_is_refused() -> None:
    with pytest.raises(BadInput, match="no link to other GPUs"):
        fabric_of(device())
