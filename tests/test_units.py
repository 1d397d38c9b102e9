"""The one table of units, read strictly, as profilers print them and as people write them."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import get_args

import pytest

from rooflight import metrics
from rooflight.units import (
    BYTE,
    DIMENSIONS,
    EXAMPLES,
    FLOP,
    PLAIN,
    SECOND,
    UNCLEAR,
    UNITS,
    Dimension,
    UnitError,
    parse_unit,
    printed_unit,
    table_unit,
)


@pytest.mark.parametrize(
    ("text", "factor", "dimension"),
    [
        ("GiB", 2**30, BYTE), ("GB", 10**9, BYTE), ("kB", 1000, BYTE), ("B", 1, BYTE), ("us", Fraction(1, 10**6), SECOND),
        ("µs", Fraction(1, 10**6), SECOND), ("min", 60, SECOND), ("FLOP", 1, FLOP), ("GFLOPs", 10**9, FLOP),
        ("GMACs", 10**9, PLAIN), ("TFLOP/s", 10**12, Dimension(flop=1, second=-1)),
        ("TB/s", 10**12, Dimension(byte=1, second=-1)), ("FLOP/B", 1, Dimension(flop=1, byte=-1)),
        ("samples/s", 1, Dimension(second=-1)), ("%", Fraction(1, 100), PLAIN), ("x", 1, PLAIN), ("M", 10**6, PLAIN),
    ],
)  # fmt: skip
def test_strict_units(text: str, factor: Fraction | int, dimension: Dimension) -> None:
    unit = parse_unit(text)
    assert (unit.factor, unit.dimension) == (factor, dimension)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("KB", "the unit 'KB' is not clear: write kB (1,000 bytes) or KiB (1,024)"),
        ("GFLOPS", "the unit 'GFLOPS' is not clear: write GFLOP for work or GFLOP/s for speed"),
        ("parsec", "unknown unit 'parsec': one of FLOP, FLOP/s, FLOP/B, B, B/s (with k, M, G, T"),
        ("gib", "unknown unit 'gib'"), ("", "unknown unit ''"),
    ],
)  # fmt: skip
def test_what_is_refused_says_what_is_known(text: str, said: str) -> None:
    with pytest.raises(UnitError) as raised:
        parse_unit(text)
    assert said in str(raised.value)


def test_no_spelling_is_both_known_and_unclear() -> None:
    assert not set(UNITS) & set(UNCLEAR)
    assert all(parse_unit(text) == unit and unit.text == text for text, unit in UNITS.items())


def test_every_metric_is_in_a_unit_that_can_be_read() -> None:
    assert {metric.unit for metric in metrics.METRICS.values()} <= set(get_args(metrics.Unit))
    assert set(get_args(metrics.Unit)) - {"word"} <= set(DIMENSIONS)
    assert set(DIMENSIONS) - {"percent"} <= set(EXAMPLES)


def test_dimensions_multiply_and_are_written() -> None:
    assert FLOP.times(SECOND, -1).name == "FLOP/s"
    assert (PLAIN.name, SECOND.times(SECOND).name, PLAIN.times(SECOND, -1).name) == ("", "s^2", "1/s")


@pytest.mark.parametrize(
    ("text", "base", "factor"),
    [
        ("byte", "byte", "1"), ("Kbyte", "byte", "1e3"), ("Mbyte", "byte", "1e6"), ("Gbyte", "byte", "1e9"),
        ("Tbyte", "byte", "1e12"), ("nsecond", "second", "1e-9"), ("usecond", "second", "1e-6"), ("ms", "second", "1e-3"),
        ("µs", "second", "1e-6"), ("μs", "second", "1e-6"), ("s", "second", "1"), ("nsec", "second", "1e-9"),
        ("Ghz", "hz", "1e9"), ("hz", "hz", "1"), ("inst", "inst", "1"), ("Ginst", "inst", "1e9"),
        ("cycle/nsecond", "cycle/second", "1e9"), ("cycle/usecond", "cycle/second", "1e6"),
        ("Gbyte/s", "byte/second", "1e9"), ("Gbyte/second", "byte/second", "1e9"), ("Kbyte/block", "byte/block", "1e3"),
        ("register/thread", "register/thread", "1"), ("%", "%", "1"), ("", "", "1"), ("MB", "byte", "1e6"),
        ("GB/s", "byte/second", "1e9"), ("SM", "SM", "1"),
    ],
)  # fmt: skip
def test_what_profilers_print(text: str, base: str, factor: str) -> None:
    unit = printed_unit(text)
    assert unit is not None
    assert (unit.base, unit.factor) == (base, Fraction(factor))
    assert unit.in_base(Decimal("1.5")) == Decimal("1.5") * Decimal(factor)


@pytest.mark.parametrize("text", ["furlong", "Kfurlong", "byte/furlong", "Xbyte", "KiB"])
def test_what_no_profiler_prints(text: str) -> None:
    assert printed_unit(text) is None


@pytest.mark.parametrize(
    ("text", "base", "means", "factor"),
    [
        ("GFLOPS", "flop", "flop", 10**9), ("GFLOPS", "flop/second", "flop/second", 10**9), ("GMAC", "flop", "mac", 10**9),
        ("G", "mac", "mac", 10**9), ("M", "count", "count", 10**6), ("B", "count", "count", 10**9), ("B", "byte", "byte", 1),
        ("million params", "count", "count", 10**6), ("Mult-Adds", "mac", "mac", 1), ("KB", "byte", "byte", 1000),
        ("KiB", "byte", "byte", 1024), ("kib/s", "byte/second", "byte/second", 1024), ("MS", "second", "second", Fraction(1, 1000)),
        ("seconds", "second", "second", 1), ("milliseconds", "second", "second", Fraction(1, 1000)),
        ("giga floating-point operations", "flop", "flop", 10**9), ("FLOP per byte", "flop/byte", "flop/byte", 1),
        ("MACs / byte", "flop/byte", "flop/byte", 2), ("images per second", "1/second", "1/second", 1),
        ("fps", "1/second", "1/second", 1), ("per cent", "part", "part", Fraction(1, 100)), ("%", "times", "part", Fraction(1, 100)),
        ("×", "times", "times", 1), ("", "byte", "byte", 1), ("MB", "counter", "byte", 10**6), ("ns", "counter", "second", Fraction(1, 10**9)),
    ],
)  # fmt: skip
def test_what_people_write(text: str, base: str, means: str, factor: Fraction | int) -> None:
    unit = table_unit(text, base)
    assert unit is not None
    assert (unit.base, unit.factor, unit.text) == (means, factor, text)


@pytest.mark.parametrize(
    ("text", "base"),
    [("GB", "flop"), ("GiFLOP", "flop"), ("G", "flop/second"), ("ms", "byte"), ("million seconds", "second"), ("x", "count")],
)  # fmt: skip
def test_what_a_quantity_cannot_be_in(text: str, base: str) -> None:
    assert table_unit(text, base) is None
