"""`--parallel`: every spelling, where ranks lie, and one clear line for what cannot be."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.errors import BadInput
from rooflight.parallel.fabric import RankGroup
from rooflight.parallel.layout import Layout, parse


@pytest.mark.parametrize("word", ["ddp", "fsdp", "zero1", "zero2", "zero3"])
def test_a_word_uses_all_gpus(word: str) -> None:
    layout = parse(word, gpus=8, nodes=4)
    assert (layout.tensor, layout.pipeline, layout.data, layout.mode) == (1, 1, 32, word)
    assert (layout.name, layout.gpus, layout.nodes) == (word, 32, 4)


@pytest.mark.parametrize(
    ("text", "mode"), [("DDP", "ddp"), ("dp", "ddp"), ("ZeRO-3", "zero3"), ("zero_1", "zero1"), (" zero 2 ", "zero2")]
)
def test_other_spellings(text: str, mode: str) -> None:
    assert parse(text, gpus=2).mode == mode


def test_tensor_and_pipeline_words() -> None:
    assert parse("tp", gpus=4) == Layout(tensor=4, gpus_per_node=4)
    assert parse("pp", gpus=4, nodes=2) == Layout(pipeline=8, gpus_per_node=4)


@pytest.mark.parametrize(
    "text", ["8x4x2", "tp8pp4dp2", "TP8xPP4xDP2", "dp2,tp8,pp4", "pp=4 tp=8 dp=2", "tp8-pp4-dp2", "tp8+pp4", "tp8_pp4"]
)
def test_products(text: str) -> None:
    assert parse(text, gpus=8, nodes=8) == Layout(8, 4, 2, gpus_per_node=8)


@given(
    st.integers(1, 16),
    st.integers(1, 16),
    st.integers(1, 16),
    st.sampled_from(["{}x{}x{}", "tp{}pp{}dp{}", "TP={}, PP={}, DP={}"]),
)
def test_a_product_is_read_as_it_was_written(tensor: int, pipeline: int, data: int, form: str) -> None:
    total = tensor * pipeline * data
    text = form.format(tensor, pipeline, data)
    if total == 1:
        with pytest.raises(BadInput, match="more than one GPU"):
            parse(text, gpus=1)
        return
    layout = parse(text, gpus=1, nodes=total)
    assert (layout.tensor, layout.pipeline, layout.data, layout.gpus) == (tensor, pipeline, data, total)


@given(st.text(max_size=12))
def test_any_text_is_a_layout_or_one_line(text: str) -> None:
    with contextlib.suppress(BadInput):
        assert parse(text, gpus=4, nodes=2).gpus == 8


@pytest.mark.parametrize(
    ("text", "gpus", "nodes", "line"),
    [
        ("ddp", 1, 1, "--parallel ddp needs more than one GPU: add --gpus or --nodes"),
        ("dpp", 4, 1, "--parallel dpp is not known: did you mean pp or ddp?"),
        ("fdsp", 4, 1, "--parallel fdsp is not known: did you mean fsdp?"),
        ("zero4", 4, 1, "--parallel zero4 is not known: did you mean zero3 or zero2 or zero1?"),
        ("quantum", 4, 1, "--parallel quantum is not known: give ddp, fsdp, zero1, zero2, zero3, tp, pp, or tensor x pipeline x data as 8x4x2 or tp8pp4dp2"),
        ("8x4x2", 8, 1, "--parallel 8x4x2 is 8 x 4 x 2 = 64 GPUs (tensor x pipeline x data), and there are 8: change --gpus, --nodes or the numbers"),
        ("tp3", 8, 1, "--parallel tp3 is 3 x 1 x 2 = 6 GPUs (tensor x pipeline x data), and there are 8: change --gpus, --nodes or the numbers"),
        ("0x4x2", 8, 1, "--parallel 0x4x2: every number must be at least 1"),
        ("tp2tp2", 4, 1, "--parallel tp2tp2 names tp twice: give each once"),
        ("ddp", 0, 1, "--gpus 0 --nodes 1: give at least 1 of each"),
    ],
)  # fmt: skip
def test_impossible_layouts(text: str, gpus: int, nodes: int, line: str) -> None:
    with pytest.raises(BadInput) as error:
        parse(text, gpus=gpus, nodes=nodes)
    assert error.value.on_command_line == line
    assert not str(error.value).startswith("--")


def test_tensor_parallel_ranks_are_neighbours_then_data_then_stages() -> None:
    layout = Layout(4, 2, 4, gpus_per_node=8)  # 32 GPUs on 4 nodes
    assert layout.tensor_group == RankGroup(4, 4)
    assert layout.data_group == RankGroup(4, 2)  # 4 GPUs apart: two of them in a node
    assert layout.pipeline_group == RankGroup(2, 1)  # 16 GPUs apart
    assert (layout.data_group.nodes, layout.pipeline_group.nodes) == (2, 2)


def test_names() -> None:
    assert [
        Layout(data=2).name,
        Layout(data=2, mode="fsdp").name,
        Layout(2).name,
        Layout(1, 2).name,
        Layout(2, 2).name,
    ] == ["ddp", "fsdp", "tp", "pp", "2x2x1"]


@given(st.integers(1, 16), st.integers(1, 16), st.integers(1, 64), st.sampled_from([1, 2, 4, 8]))
def test_groups_have_their_ranks_and_fit_their_nodes(tensor: int, pipeline: int, data: int, per_node: int) -> None:
    layout = Layout(tensor, pipeline, data, gpus_per_node=per_node)
    for group, ranks in zip(
        (layout.tensor_group, layout.pipeline_group, layout.data_group), (tensor, pipeline, data), strict=True
    ):
        assert group.ranks == ranks
        assert 1 <= group.per_node <= min(ranks, per_node) or ranks == 1


@pytest.mark.parametrize(
    ("layout", "most", "per_node", "nodes"),
    [
        (parse("ddp", gpus=64), 8, 8, 8),  # 64 H100 are eight boards of eight, no board of 64
        (parse("ddp", gpus=8), 8, 8, 1),
        (parse("ddp", gpus=4), 8, 8, 1),  # half a node: where it grows, it fills the other half first
        (parse("ddp", gpus=12), 8, 6, 2),  # evenly: a ring is as fast as its slowest node
        (parse("ddp", gpus=13), 8, 7, 2),
        (parse("ddp", gpus=4, nodes=2), 8, 4, 2),  # nodes that were asked for stay
        (parse("ddp", gpus=16, nodes=2), 8, 8, 4),  # if there are such
        (parse("ddp", gpus=64), 72, 72, 1),  # one rack
        (parse("ddp", gpus=144), 72, 72, 2),
        (parse("4x1x5", gpus=20), 8, 8, 3),  # four neighbours stay in a node: 8, 8 and 4
        (parse("16x1x1", gpus=16), 8, 8, 2),
        (parse("3x1x8", gpus=24), 8, 6, 4),  # groups of three: two in a node, none across
        (parse("ddp", gpus=3), 1, 1, 3),
    ],
)
def test_more_gpus_than_a_node_holds_become_nodes(layout: Layout, most: int, per_node: int, nodes: int) -> None:
    found = layout.in_nodes_of(most)
    assert (found.gpus, found.gpus_per_node, found.nodes) == (layout.gpus, per_node, nodes)
    assert found.name == layout.name


@given(st.integers(1, 16), st.integers(1, 8), st.integers(1, 64), st.integers(1, 8), st.sampled_from([1, 2, 4, 8, 72]))
def test_no_node_holds_more_than_it_can(tensor: int, pipeline: int, data: int, asked: int, most: int) -> None:
    total = tensor * pipeline * data
    layout = Layout(tensor, pipeline, data, gpus_per_node=-(-total // asked))
    found = layout.in_nodes_of(most)
    assert (found.tensor, found.pipeline, found.data, found.gpus) == (tensor, pipeline, data, total)
    assert found.gpus_per_node <= most
    if tensor <= most and total > most and found != layout:
        assert found.gpus_per_node % tensor == 0
    assert found.nodes >= -(-total // most)
    assert found.in_nodes_of(most) == found
