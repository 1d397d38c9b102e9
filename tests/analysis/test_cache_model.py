"""The cache that a step's memory is played through, and where that memory lies: by hand, and what always holds."""

from __future__ import annotations

import math
import random

import pytest

from rooflight.analysis.cache_model import GRANULE, WAYS, Cache, CacheTouch
from rooflight.analysis.storage_addresses import StorageAddresses
from rooflight.ledger import FORMAT_VERSION, Ledger, Op, Storage, Tensor
from tests.fixtures.measured_ledgers import HEADER

MIB = GRANULE


def read(address, mib):
    return CacheTouch(address * MIB, mib * MIB, (address * MIB, mib * MIB))


def write(address, mib, tag=""):
    return CacheTouch(address * MIB, mib * MIB, (address * MIB, mib * MIB), writes=True, tag=tag)


def played(cache, *touches):
    """Read from the DRAM, and written back, in MiB."""
    back = sum(cache.play(touches).values())
    return sum(touch.missed for touch in touches) / MIB, back / MIB


def survives(part):
    """Fewer lines than ways fell into a set, when that part of the cache was touched since."""
    mean = WAYS * part
    return sum(math.exp(-mean) * mean**count / math.factorial(count) for count in range(WAYS))


def test_what_was_read_is_there_still():
    cache = Cache(64 * MIB, 32 * MIB)
    assert played(cache, read(0, 8)) == (8, 0)
    assert played(cache, read(0, 8)) == (pytest.approx(0, abs=0.01), 0)


@pytest.mark.parametrize("between", [16, 32, 48, 64, 96])
def test_it_leaves_the_more_probably_the_more_was_touched_since(between):
    cache = Cache(64 * MIB, 32 * MIB)
    cache.play([read(0, 4)])
    cache.play([read(100, between)])
    missed, _ = played(cache, read(0, 4))
    assert missed / 4 == pytest.approx(1 - survives((between + 2) / 64), abs=0.05)


def test_a_cache_of_that_size_is_about_half_gone_when_as_much_was_touched():
    assert survives(1.0) == pytest.approx(0.467, abs=0.001)


def test_what_is_longer_than_the_cache_is_hardly_found_again():
    cache = Cache(64 * MIB, 32 * MIB)
    played(cache, read(0, 200))
    assert played(cache, read(0, 200))[0] == pytest.approx(200, rel=0.001)


def test_what_was_written_waits_until_there_is_too_much_of_it():
    """Of 60 MiB 30 wait: the oldest have been written back, and are there to be read all the same."""
    cache = Cache(1000 * MIB, 30 * MIB)
    _, back = played(cache, write(0, 60))
    assert back == pytest.approx(30, abs=1)
    assert played(cache, read(0, 60)) == pytest.approx((0, 0), abs=0.01)


def test_what_waits_is_written_back_when_it_leaves():
    cache = Cache(64 * MIB, 32 * MIB)
    assert played(cache, write(0, 8))[1] == pytest.approx(0, abs=0.01)
    assert played(cache, read(100, 300))[1] == pytest.approx(8, abs=0.01)
    assert played(cache, read(500, 300))[1] == pytest.approx(0, abs=0.01)


def test_memory_that_is_written_over_never_reaches_the_dram():
    """Ten results of 16 MiB at one address, and at ten: all but the 32 that wait have to be written back."""
    cache = Cache(64 * MIB, 32 * MIB)
    assert sum(played(cache, write(0, 16))[1] for _ in range(10)) == pytest.approx(0, abs=2)
    cache = Cache(64 * MIB, 32 * MIB)
    assert sum(played(cache, write(20 * number, 16))[1] for number in range(10)) == pytest.approx(160 - 32, abs=3)


def test_small_blocks_are_told_apart():
    cache = Cache(64 * MIB, 32 * MIB)
    first, second = CacheTouch(0, 1000, (0, 1000)), CacheTouch(1024, 1000, (1024, 1000))
    cache.play([first])
    cache.play([second])
    assert first.missed == second.missed == 1000


def test_neighbours_in_one_granule_are_told_apart():
    cache = Cache(64 * MIB, 32 * MIB)
    half = 3 * MIB // 2
    cache.play([CacheTouch(0, half, (0, half))])
    other = CacheTouch(half, half, (half, half))
    cache.play([other])
    assert other.missed == pytest.approx(half)


def test_write_back_is_told_by_whose_it_was():
    cache = Cache(64 * MIB, 32 * MIB)
    cache.play([write(0, 8), write(20, 4, "copies")])
    found = cache.play([read(100, 300)])
    assert {name: round(nbytes / MIB, 1) for name, nbytes in found.items()} == {"": 8, "copies": 4}


@pytest.mark.parametrize("seed", range(10))
def test_no_more_is_written_back_than_was_written(seed):
    draw = random.Random(seed)
    cache = Cache(64 * MIB, 24 * MIB)
    written = back = 0.0
    for _ in range(100):
        touches = [
            draw.choice((read, write))(draw.randrange(0, 300, 10), draw.choice((2, 5, 20, 60, 90)))
            for _ in range(draw.randint(1, 3))
        ]
        missed, gone = played(cache, *touches)
        written += sum(touch.nbytes / MIB for touch in touches if touch.writes)
        back += gone
        assert -0.01 <= missed <= sum(touch.nbytes / MIB for touch in touches if not touch.writes) + 0.01
        assert 0 <= back <= written + 0.01
    back += played(cache, read(10_000, 1000))[1]
    assert back <= written + 0.01


def test_freed_memory_is_given_out_again():
    """a, b and c of 30 MB: c is made when a is gone, and lies where a lay."""
    tensors = [Tensor(storage=number, shape=(7_500_000,), dtype="fp32") for number in range(3)]
    ops = tuple(
        Op(index=index, phase="forward", module="", call=0, name="aten::relu", ordinal=index, outputs=(tensor,))
        for index, tensor in enumerate(tensors)
    )
    storages = tuple(
        Storage(id=number, nbytes=30_000_000, category="activation", born=number, dies=2 if number == 0 else None)
        for number in range(3)
    )
    ledger = Ledger(format_version=FORMAT_VERSION, header=HEADER, ops=ops, storages=storages, kernels=(),
                    measurements=())  # fmt: skip
    addresses = StorageAddresses(ledger, {1: 40_000_000})
    found = {}
    for op in ops:
        workspace = addresses.begin(op.index)
        assert (workspace is not None) == (op.index == 1)
        found[op.index] = addresses.of(op.index)
    assert found[2] == found[0] != found[1]
    assert addresses.nbytes(1) == 30_000_000 and addresses.of(99) is None
