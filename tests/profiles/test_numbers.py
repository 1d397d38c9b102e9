"""Numbers as profilers print them, in any locale."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.profiles.numbers import Ambiguous, NumberStyle, PrintedNumber, decide, is_missing

GROUPS = {".": (",", " ", "\u00a0", "\u202f", "'", "’", ""), ",": (".", " ", "\u00a0", "\u202f", "'", "’", "")}
MARKS = st.sampled_from([(decimal, group) for decimal, groups in GROUPS.items() for group in groups])
# Two decimals, as profilers print them, and whole numbers without any.
NUMBERS = st.lists(
    st.one_of(
        st.integers(0, 10**18).map(Decimal), st.integers(0, 10**14).map(lambda number: Decimal(number).scaleb(-2))
    ),
    min_size=1,
    max_size=30,
)


def written(number: Decimal, decimal: str, group: str) -> str:
    whole, point, fraction = f"{number:,}".partition(".")
    return whole.replace(",", group) + (decimal + fraction if point else "")


@given(NUMBERS, MARKS)
def test_numbers_come_back_from_any_locale(numbers: list[Decimal], marks: tuple[str, str]) -> None:
    decimal, group = marks
    # One number that can be read in one way only, as every real log has some.
    texts = [written(number, decimal, group) for number in [*numbers, Decimal("12345678.25")]]
    style = decide(PrintedNumber(text, line) for line, text in enumerate(texts, start=1))
    assert [style.parse(text) for text in texts] == [*numbers, Decimal("12345678.25")]


@given(NUMBERS, MARKS)
def test_without_such_a_number_they_come_back_or_are_refused(numbers: list[Decimal], marks: tuple[str, str]) -> None:
    texts = [written(number, *marks) for number in numbers]
    try:
        style = decide(PrintedNumber(text, line) for line, text in enumerate(texts, start=1))
    except Ambiguous:
        return
    assert [style.parse(text) for text in texts] == numbers


@given(st.integers(0, 10**18), MARKS)
def test_counts_are_never_ambiguous(number: int, marks: tuple[str, str]) -> None:
    text = written(Decimal(number), *marks)
    assert decide([PrintedNumber(text, 1, whole=True)]).parse(text) == number


@given(st.text(alphabet="0123456789.,' eE+-\u202fx", max_size=20))
def test_anything_else_is_none_or_a_number(text: str) -> None:
    style = decide([PrintedNumber(text, 1, whole=True)]) if text else NumberStyle(".", ",")
    value = style.parse(text)
    assert value is None or value.is_finite()


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        (["1,024", "4.36"], ["1024", "4.36"]),
        (["1.024", "150.109.880.320"], ["1024", "150109880320"]),
        (["1,024", "1.024,5"], ["1.024", "1024.5"]),
        (["0,125", "1.024"], ["0.125", "1024"]),
        (["1 024", "0,5", "1,024"], ["1024", "0.5", "1.024"]),
        (["2.4855e+10", "455917968"], ["24855000000", "455917968"]),
        (["-1,234,567"], ["-1234567"]),
    ],
)
def test_styles_by_hand(texts: list[str], values: list[str]) -> None:
    style = decide(PrintedNumber(text, 1) for text in texts)
    assert [style.parse(text) for text in texts] == [Decimal(value) for value in values]


@pytest.mark.parametrize(
    ("texts", "line"), [(["12", "1,024"], 2), (["1.024", "1,024"], 1), (["1,5", "3.5"], 2), (["1,024,000", "3,5"], 2)]
)
def test_ambiguous_numbers_are_refused_with_their_line(texts: list[str], line: int) -> None:
    with pytest.raises(Ambiguous) as caught:
        decide(PrintedNumber(text, number) for number, text in enumerate(texts, start=1))
    assert caught.value.line == line


@pytest.mark.parametrize("text", ["1,02", "1,0244", "12,34,5", "0,123,456", "1..2", "1.2.3", "12a", "", "1,,000"])
def test_no_numbers_in_english(text: str) -> None:
    assert NumberStyle(".", ",").parse(text) is None


@pytest.mark.parametrize("text", ["", "n/a", "N/A", "(!) n/a", "nan", "-nan", "inf"])
def test_missing_values(text: str) -> None:
    assert is_missing(text)
    assert not is_missing("0")
