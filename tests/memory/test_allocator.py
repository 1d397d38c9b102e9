"""The model of torch's caching allocator: its invariants, its documented sizes, and what the real one said on an H200."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.errors import BadInput
from rooflight.memory.allocator import AllocatorFull, CachingAllocator, MemoryBlock
from rooflight.memory.settings import MIB, AllocatorSettings, parse
from tests.fixtures.paths import DATA

RECORDED = DATA / "h200_allocator.json.gz"
SETTINGS = [
    AllocatorSettings(), parse("expandable_segments:True"), parse("max_split_size_mb:40"),
    parse("roundup_power2_divisions:4"), parse("garbage_collection_threshold:0.5"),
    parse("large_segment_size_mb:12"), parse("expandable_segments:True,large_segment_size_mb:12"),
]  # fmt: skip


def test_sizes_of_segments() -> None:
    for nbytes, allocated, reserved in (
        (1, 512, 2 * MIB), (513, 1024, 2 * MIB), (MIB, MIB, 2 * MIB), (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 1, 10 * MIB, 10 * MIB), (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB), (10 * MIB + 1, 10 * MIB + 512, 12 * MIB), (33 * MIB, 34 * MIB, 34 * MIB),
    ):  # fmt: skip
        found = CachingAllocator()
        found.allocate(nbytes)
        assert (found.allocated, found.reserved) == (allocated, reserved), nbytes


def test_large_blocks_keep_a_rest_of_up_to_a_mebibyte() -> None:
    found = CachingAllocator()
    found.free(found.allocate(12 * MIB))
    found.allocate(11 * MIB)
    assert found.allocated == 12 * MIB
    found = CachingAllocator()
    found.free(found.allocate(12 * MIB))
    found.allocate(11 * MIB - 512)
    assert found.allocated == 11 * MIB - 512


def test_neighbours_grow_together_and_are_given_out_again() -> None:
    found = CachingAllocator()
    blocks = [found.allocate(4 * MIB) for _ in range(5)]
    assert found.reserved == 20 * MIB
    for block in (blocks[1], blocks[2]):
        found.free(block)
    found.allocate(8 * MIB)
    assert found.reserved == 20 * MIB


def test_a_full_device_gives_back_what_is_cached_before_it_fails() -> None:
    found = CachingAllocator(capacity_bytes=100 * MIB)
    found.free(found.allocate(60 * MIB))
    found.allocate(80 * MIB)
    assert (found.reserved, found.retries) == (80 * MIB, 1)
    with pytest.raises(AllocatorFull):
        found.allocate(21 * MIB)
    assert found.allocated == 80 * MIB


def test_garbage_is_collected_under_a_memory_fraction_alone() -> None:
    """Torch heeds the threshold only where the process was given a part of the memory, not at the device's end."""
    chosen = parse("garbage_collection_threshold:0.4")
    for fraction_bytes, reserved in ((None, 60 + 80 + 90), (300 * MIB, 80 + 90)):
        found = CachingAllocator(chosen, 300 * MIB, fraction_bytes)
        for size in (60, 80, 90):  # with the third, the first lies there longest
            found.free(found.allocate(size * MIB))
        assert found.reserved == reserved * MIB, fraction_bytes


def test_other_large_segments() -> None:
    for text, reserved in (("large_segment_size_mb:12", 12), ("expandable_segments:True,large_segment_size_mb:12", 12)):
        found = CachingAllocator(parse(text))
        found.allocate(2 * MIB)
        assert found.reserved == reserved * MIB
    found.allocate(40 * MIB)
    assert found.reserved == 48 * MIB, "four pages of 12 MiB hold 42 MiB"


def test_nothing_takes_no_memory() -> None:
    found = CachingAllocator()
    assert found.allocate(0) is None
    found.free(None)
    assert found.reserved == 0


Steps = list[tuple[bool, int, int]]
steps = st.lists(st.tuples(st.booleans(), st.integers(0, 10**6), st.integers(1, 1 << 27)), max_size=60)


@settings(max_examples=150, deadline=None)
@given(steps, st.sampled_from(SETTINGS), st.sampled_from([None, 256 * MIB]), st.booleans())
def test_whatever_happens(steps: Steps, chosen: AllocatorSettings, capacity: int | None, is_fraction: bool) -> None:
    """No block overlaps another, nothing is lost, and when all is freed all can be given back."""
    found = CachingAllocator(chosen, capacity, capacity if is_fraction else None)
    live: list[MemoryBlock] = []
    for frees, pick, nbytes in steps:
        if frees and live:
            block = live.pop(pick % len(live))
            found.free(block)
        else:
            try:
                block_or_none = found.allocate(nbytes)
            except AllocatorFull:
                assert capacity is not None
                continue
            assert block_or_none is not None
            assert block_or_none.size >= nbytes
            live.append(block_or_none)
        places = sorted((block.address, block.address + block.size) for block in live)
        assert all(end <= start for (_, end), (start, _) in pairwise(places))
        assert found.allocated == sum(block.size for block in live)
        assert found.allocated <= found.reserved
        # Under a fraction torch asks for room before it rounds to pages.
        page = chosen.large_segment_bytes if chosen.expandable_segments and is_fraction else 0
        assert capacity is None or found.reserved < capacity + page or found.reserved == capacity
        assert found.peak_allocated >= found.allocated
        assert found.peak_reserved >= found.reserved
    for block in live:
        found.free(block)
    found.empty_cache()
    assert (found.allocated, found.reserved) == (0, 0)


def test_segments_grow_by_what_is_missing() -> None:
    """Free 600 of 1,000 MiB and ask for 700: the device has the 100 that are missing. A fraction is asked for all 700,
    and what is free is given back first."""
    for fraction_bytes, retries in ((None, 0), (1000 * MIB, 1)):
        found = CachingAllocator(AllocatorSettings(expandable_segments=True), 1000 * MIB, fraction_bytes)
        found.free(found.allocate(600 * MIB))
        assert found.allocate(700 * MIB) is not None
        assert (found.reserved, found.retries) == (700 * MIB, retries)
        with pytest.raises(AllocatorFull):
            found.allocate(301 * MIB)


def test_a_device_has_whole_pages_only() -> None:
    found = CachingAllocator(AllocatorSettings(expandable_segments=True), 99 * MIB)
    with pytest.raises(AllocatorFull):
        found.allocate(81 * MIB)
    assert found.allocate(80 * MIB) is not None and found.reserved == 80 * MIB


def _recorded() -> list[Any]:
    return json.loads(gzip.decompress(RECORDED.read_bytes()))


@pytest.mark.parametrize("number", range(12))
def test_as_the_real_allocator(number: int) -> None:
    """Allocated and reserved after every one of 1,600 events, in twelve settings, to the byte.

    Given the driver's addresses: of two free blocks of one size the lower is taken, and only the driver knows which.
    """
    run = _recorded()[number]
    chosen = parse(run["settings"])
    failed = 0
    for log in run["sequences"]:
        found = CachingAllocator(chosen, run["capacity"], run["capacity"])  # the end was set by a memory fraction
        live: dict[int, MemoryBlock | None] = {}
        for place, (what, which, allocated, reserved, address) in enumerate(log):
            if what == "empty":
                found.empty_cache()
            elif what == "free":
                found.free(live.pop(which))
            elif what == "fail":
                failed += 1
                with pytest.raises(AllocatorFull):
                    found.allocate(which)
            else:
                live[place] = found.allocate(which) if chosen.expandable_segments else found.allocate(which, address)
            assert (found.allocated, found.reserved) == (allocated, reserved), (run["settings"], place, what)
    assert run["capacity"] is None or failed, "a full device was never met"


def test_settings_are_read_as_torch_reads_them() -> None:
    found = parse("expandable_segments:True,max_split_size_mb:128, garbage_collection_threshold:0.8")
    assert found == AllocatorSettings(True, 20 * MIB, 128 * MIB, 20 * MIB, 0.8)
    assert parse("large_segment_size_mb:12,per_process_memory_fraction:0.5").large_segment_bytes == 12 * MIB
    assert parse("per_process_memory_fraction:0.5").memory_fraction == 0.5
    assert parse("per_process_memory_fraction:1.00") == AllocatorSettings()
    assert parse("large_segment_size_mb:40,max_split_size_mb:40").max_non_split_rounding_bytes == 40 * MIB
    divisions = parse("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]")
    assert [divisions.divisions(size * MIB) for size in (1, 300, 600, 1500, 4000)] == [1, 1, 2, 4, 8]
    assert parse("roundup_power2_divisions:[4:0,8:2]").divisions(5 * MIB) == 0
    gaps = parse("roundup_power2_divisions:[4:1,32:2,>:8]")
    assert [gaps.divisions(size * MIB) for size in (1, 5, 9, 20, 40, 70)] == [1, 1, 0, 0, 2, 8]


@pytest.mark.parametrize(("text", "says"), [
    ("max_split_size_mb", "has no value"), ("max_split_size_mb:ten", "whole number"),
    ("max_split_size_mb:19", "at least a large segment, which is 20"), ("max_non_split_rounding_mb:19", "at least a large"),
    ("large_segment_size_mb:40,max_split_size_mb:39", "which is 40, got 39"), ("large_segment_size_mb:10", "at least 11"),
    ("per_process_memory_fraction:0", "between 0 and 1"),
    ("expandable_segments:yes", "True or False"), ("garbage_collection_threshold:2", "between 0 and 1"),
    ("roundup_power2_divisions:3", "powers of two"), ("roundup_power2_divisions:[4:2", "the list has no end"), ("segments:1", "unknown allocator setting"),
    ("backend:cudaMallocAsync", "not modelled"),
])  # fmt: skip
def test_settings_that_cannot_be(text: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        parse(text)
