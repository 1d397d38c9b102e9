"""A prediction for many GPUs as a whole: what it says of one GPU of the run, of its host, and of its own curves."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import msgspec
import pytest

import rooflight
from rooflight import formatting
from rooflight.hardware.devices import find
from rooflight.parallel.fabric import fabric_of
from rooflight.parallel.layout import MODES
from rooflight.prediction.result import ClusterPrediction, Prediction
from rooflight.reporting.sections.predict_document import _verdict
from rooflight.reporting.sections.predict_tables import scaling_table
from tests.fixtures.notes import note_texts

SMALL = {"n_layer": "4", "n_embd": "256", "n_head": "4", "n_positions": "8192"}


@cache
def predicted(*, seq: int = 128, batch: int = 16, **options) -> Prediction:
    found = rooflight.predict(
        "gpt2", on="h200", overrides=SMALL, seq=seq, batch=batch, step="train", dtype="bf16", **options
    )
    return found[0]


def many(**options) -> ClusterPrediction:
    found = predicted(**options).many
    assert found is not None
    return found


def host_notes(found: ClusterPrediction) -> list[str]:
    return [note for note in note_texts(found.notes) if "for its host to launch kernels" in note]


# --- one GPU of the run ---


@pytest.mark.parametrize("seq", [128, 2048])
@pytest.mark.parametrize("how", [*MODES, "tp", "pp", "2x2x1"])
def test_a_gpu_is_busy_for_no_longer_than_the_step(how: str, seq: int) -> None:
    one, row = predicted(seq=seq), predicted(seq=seq, gpus=4, parallel=how)
    assert 0 < row.gpu_time_s <= row.time_s
    assert sum(row.phases.values()) == pytest.approx(row.gpu_time_s)
    wide, whole = row.gpu_time_interval_s, one.gpu_time_interval_s
    assert wide.low / row.gpu_time_s == pytest.approx(whole.low / one.gpu_time_s)
    assert wide.high / row.gpu_time_s == pytest.approx(whole.high / one.gpu_time_s)
    assert row.host_time_s is not None
    assert row.host_time_s <= row.time_s * (1 + 1e-9)
    assert (row.percent_of_roof, row.ops) == (one.percent_of_roof, one.ops)


@pytest.mark.parametrize("gpus", [2, 4])
def test_computing_is_all_that_a_stage_with_many_weights_does(gpus: int) -> None:
    """VGG's last stage has most of its weights, and is not the slowest of a micro-batch."""
    found = rooflight.predict("vgg16", on="h200", batch=8, step="train", gpus=gpus, parallel="pp", micro_batches=2,
                              graphs=True, advice=False)[0]  # fmt: skip
    assert found.many is not None
    assert found.many.compute_s >= found.gpu_time_s * (1 - 1e-9)
    parts = found.many.compute_s + found.many.bubble_s + found.many.exposed_s
    assert parts == pytest.approx(found.time_s)


def test_a_replica_is_as_busy_as_one_gpu() -> None:
    one, row = predicted(), predicted(gpus=4)
    assert row.gpu_time_s == pytest.approx(one.gpu_time_s)
    assert row.host_time_s == pytest.approx(one.host_time_s)
    assert row.phases == pytest.approx(one.phases)


@pytest.mark.parametrize("mode", ["zero1", "zero2", "zero3", "fsdp"])
def test_a_rank_runs_its_part_of_the_optimizer(mode: Any) -> None:
    one, row = predicted(), predicted(gpus=4, parallel=mode)
    assert row.phases == pytest.approx({**one.phases, "optimizer": one.phases["optimizer"] / 4})


@pytest.mark.parametrize(("pad", "compiled"), [(True, False), (False, True)])
def test_padding_is_kept_in_the_parts_of_products(pad: bool, compiled: bool) -> None:
    """A vocabulary of 50,257, in halves of 25,129 that are padded to 25,152, takes as long as one of 2 x 25,152."""
    odd, even = (
        rooflight.predict("gpt2", on="h200", overrides={**SMALL, "vocab_size": size}, seq=512, batch=8, step="train",
                          dtype="bf16", gpus=2, parallel="tp", advice=False, pad=pad, compile=compiled)[0]
        for size in ("50257", "50304")
    )  # fmt: skip
    assert odd.gpu_time_s == pytest.approx(even.gpu_time_s, rel=0.02)


def test_the_tier_without_a_host_has_none_on_many_gpus() -> None:
    row = predicted(gpus=4, parallel="pp", tier="spec")
    assert row.host_time_s is None
    assert 0 < row.gpu_time_s <= row.time_s
    assert not host_notes(many(gpus=4, parallel="pp", tier="spec"))


# --- waiting for the host ---


def test_smaller_shapes_are_not_called_the_host() -> None:
    """Divided, the kernels are less than 8 times as fast; the host is done long before them."""
    asked = {"seq": 4096, "batch": 64, "gpus": 8, "parallel": "4x2x1", "micro_batches": 4}
    found = many(**asked)
    assert predicted(seq=4096, batch=64).gpu_time_s / 8 < 0.8 * found.compute_s
    assert predicted(**asked).gpu_time_s > 0.9 * found.compute_s
    assert found.host_wait_s < 0.1 * found.compute_s
    assert not host_notes(found)


def test_waiting_for_the_host_is_what_graphs_save() -> None:
    asked = {"gpus": 4, "micro_batches": 4}
    slow, graphs = many(**asked), many(**asked, graphs=True)
    assert slow.host_wait_s > 0.2 * slow.compute_s
    assert 1 <= (slow.compute_s - slow.host_wait_s) / graphs.compute_s < 1.25  # whose gaps are shorter, too
    whole, waits = formatting.seconds(slow.compute_s), formatting.seconds(slow.host_wait_s)
    assert host_notes(slow) == [
        f"of the {whole} of its 4 micro-batches that each GPU computes for, it waits {waits} for its host to launch "
        "kernels: larger micro-batches or --graphs would help"
    ]
    assert (graphs.host_wait_s, host_notes(graphs)) == (0, [])


# --- curves ---


@pytest.mark.parametrize(
    "asked", [{"micro_batches": 4}, {"parallel": "pp", "micro_batches": 2}, {"parallel": "1x2x2"}, {"parallel": "fsdp"}]
)
def test_the_curves_have_this_very_run(asked: dict[str, Any]) -> None:
    row = predicted(gpus=4, **asked)
    assert row.many is not None
    for curve in (row.many.weak, row.many.strong):
        (point,) = (point for point in curve if point.gpus == 4)
        assert point.time_s == pytest.approx(row.time_s)
        assert point.exposed_s == pytest.approx(row.many.exposed_s)


# --- more than 100% ---


def sharding_notes(found: ClusterPrediction) -> list[str]:
    return [note for note in note_texts(found.notes) if note.startswith("efficiency above 100%")]


def test_a_shared_optimizer_is_named_where_efficiency_is_above_100_percent() -> None:
    found = many(seq=2048, gpus=4, parallel="zero1")
    assert found.efficiency > 1.001
    assert sharding_notes(found) == [
        "efficiency above 100%: every rank updates its own part of the weights only, one GPU alone all of them"
    ]
    assert not sharding_notes(many(seq=2048, gpus=4))


# --- nodes ---


@pytest.mark.parametrize(
    ("device", "gpus", "nodes", "expected"),
    [
        ("h100-sxm", 64, 1, (8, 8)),
        ("h100-sxm", 8, 1, (1, 8)),
        ("h100-sxm", 4, 4, (4, 4)),
        ("h100-sxm", 16, 2, (4, 8)),
        ("gh200", 8, 1, (2, 4)),
        ("k80", 16, 1, (1, 16)),
        ("k20x", 4, 1, (4, 1)),
        ("rtx-4090", 9, 1, (2, 5)),
    ],
)
def test_nodes_are_those_of_the_devices_file(device, gpus, nodes, expected):
    found = rooflight.predict("mnist-cnn", step="train", batch=8, on=device, gpus=gpus, nodes=nodes, tier="spec")
    many = found[0].many
    assert (many.nodes, many.gpus_per_node, many.gpus) == (*expected, gpus * nodes)
    said = [note for note in note_texts(many.notes) if "joined by a network" in note]
    assert len(said) == (many.nodes != nodes)
    assert all(str(many.nodes) in note and find(device).gpus_per_node.source in note for note in said)
    asked = f"Asked for were {gpus} in each of {nodes} nodes; --gpus is of one node, so for {gpus} in all leave --nodes"
    assert all((asked in note) is (nodes > 1) for note in said)
    assert any(line.startswith("between nodes:") for line in many.assumptions) is (many.nodes > 1)


@pytest.mark.parametrize(
    ("parallel", "gpus", "words"),
    [("ddp", 64, "64 GPUs are 8 nodes of 8,"), ("4x1x3", 12, "12 GPUs are 2 nodes of at most 8,"),
     ("ddp", 12, "12 GPUs are 2 nodes of 6,"), ("ddp", 13, "13 GPUs are 2 nodes of at most 7,")],
)  # fmt: skip
def test_the_note_tells_the_nodes_as_they_are(parallel, gpus, words):
    found = rooflight.predict("gpt2", seq=64, step="train", batch=1, on="h100-sxm", gpus=gpus, parallel=parallel,
                              tier="spec")  # fmt: skip
    assert any(words in note for note in note_texts(found[0].many.notes))


@pytest.mark.parametrize("gpus", [2, 12, 64])
def test_every_run_of_a_curve_is_what_asking_for_it_gives(gpus):
    ask = partial(rooflight.predict, "gpt2", on="h100-sxm", seq=64, step="train", batch=1, graphs=True)
    points = {point.gpus: point for point in ask(gpus=gpus)[0].many.weak}
    for count in (2, 8, 64):
        assert points[count].time_s == pytest.approx(ask(gpus=count)[0].time_s)


def test_64_gpus_are_no_board_of_64():
    """The same as asking for eight nodes of eight; and slower than the links inside a node would be."""
    ask = partial(rooflight.predict, "gpt2", on="a100-sxm-80", seq=64, step="train", batch=1, parallel="ddp")
    one, eight = ask(gpus=64)[0], ask(gpus=8, nodes=8)[0]
    assert (one.time_s, one.many.exposed_s) == (eight.time_s, eight.many.exposed_s)
    assert one.many.weak == eight.many.weak
    board = fabric_of(find("a100-sxm-80")).inside.bytes_per_s
    assert one.many.communication_s > 2 * 63 / 64 * one.many.gradient_bytes / board


def test_a_device_whose_file_does_not_say_has_nodes_of_eight_and_says_so():
    mine = msgspec.structs.replace(find("h100-sxm"), name="mine", gpus_per_node=None)
    found = rooflight.predict("mnist-cnn", step="train", batch=8, on=mine, gpus=16, tier="spec")
    assert found[0].many.nodes == 2
    assert any("which is assumed: its file gives no gpus_per_node" in note for note in note_texts(found[0].many.notes))


def test_two_cards_have_a_bridge_that_eight_have_not():
    """Also in the curves: the run of two talks over NVLink, that of eight over PCI Express."""
    found = rooflight.predict("gpt2", seq=64, step="train", batch=1, on="h100-nvl", gpus=2, graphs=True)[0].many
    bridge, slots = (fabric_of(find("h100-nvl"), gpus_per_node=n).inside.bytes_per_s for n in (2, 8))
    two, eight = (next(point for point in found.weak if point.gpus == gpus) for gpus in (2, 8))
    assert any("NVLink" in line for line in found.assumptions)
    assert two.exposed_s == found.exposed_s
    # A ring of eight moves 2 x 7/8 of the gradients over its link, and the step has too little to do to hide all that.
    assert slots < bridge / 4
    assert eight.time_s > 2 * 7 / 8 * found.gradient_bytes / slots > two.time_s


# --- what one GPU cannot hold ---


def test_no_efficiency_against_a_gpu_that_cannot_hold_the_step() -> None:
    """A GPU with less memory than one takes alone, and more than one of four does."""
    alone, shared = (predicted(seq=2048, batch=16, **more).memory for more in ({}, {"gpus": 4, "parallel": "tp"}))
    assert alone is not None
    assert shared is not None
    assert shared.device_bytes < 0.9 * alone.peak_allocated_bytes
    h200 = find("h200")
    memory = msgspec.structs.replace(h200.memory_bytes, value=alone.peak_allocated_bytes)
    small = msgspec.structs.replace(h200, name="small", memory_bytes=memory, usable_memory_bytes=memory)
    found = rooflight.predict("gpt2", on=small, overrides=SMALL, seq=2048, batch=16, step="train", dtype="bf16", gpus=4,
                              parallel="tp", tier="spec", advice=False)  # fmt: skip
    assert found[0].fit != "does not fit"
    assert found[0].many is not None
    assert found[0].many.efficiency is None
    assert _verdict(found[0], found.header).endswith("no efficiency, as one GPU cannot hold this step")
    assert many(seq=2048, gpus=4, parallel="tp").efficiency is not None


# --- a host that hides communication ---


def test_a_curve_says_what_waiting_for_the_host_hides() -> None:
    """A small batch waits for its host while gradients travel: 100%, and less for the kernels alone."""
    found = many(gpus=4)
    last = found.weak[-1]
    assert last.gpu_bound_efficiency is not None
    assert last.gpu_bound_efficiency < 0.9 < last.efficiency
    title = scaling_table("weak", found.weak).title
    assert title is not None and f"GPU-bound, 4,096 GPUs are at {last.gpu_bound_efficiency:.1%}" in title
    assert many(gpus=4, graphs=True).weak[-1].gpu_bound_efficiency is None
