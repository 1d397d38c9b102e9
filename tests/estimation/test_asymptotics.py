"""Big-O of functions that somebody wrote down; classes worked out by hand."""

from __future__ import annotations

import random

import pytest

from rooflight.errors import BadInput
from rooflight.estimation.symbolic.asymptotics import LADDER, asymptotic, ranked

LECTURE = {
    "5n^3 + 200n^2 + 15": "O(n³)",
    "3n^2 + 2^300": "O(n²)",  # 2^300 is a number
    "5log2n + 15ln n": "O(log n)",  # bases of logarithms differ by a factor
    "2log n^3": "O(log n)",  # 6 log n
    "4n + log n": "O(n)",
    "2^64": "O(1)",
    "log n^10 + 2sqrt n": "O(√n)",  # 10 log n
    "2^n + n^1000": "O(2^n)",
}
"""The eight examples of the lecture (document 001)."""
OTHERS = {
    "(n+1)^2 - n^2": "O(n)",  # 2n + 1
    "n(n-1)/2": "O(n²)",
    "2^(n+1) + 3^n": "O(3^n)",
    "log(2^n)": "O(n)",
    "log n!": "O(n·log n)",  # Stirling
    "T(k) = k²/2 − k log k": "O(k²)",
    "0.5^n + 3": "O(1)",
    "n - n": "O(1)",
    "(n log n)^2": "O(n²·(log n)²)",
    "log 2n": "O(log n)",
}


@pytest.mark.parametrize(("function", "big_o"), [*LECTURE.items(), *OTHERS.items()])
def test_big_o(function, big_o):
    assert str(asymptotic(function)) == big_o


def test_the_ladder_is_in_order_however_it_is_given():
    given = [asymptotic(function) for function in LADDER]
    random.Random(0).shuffle(given)
    assert [function.written for function in ranked(given)] == list(LADDER)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("", "no function"),
        ("n^n", "exponent"),
        ("n m", "write a function of one"),
        ("2^(n^2)", "exponent"),
        ("(n + 1", "not closed"),
        ("n)", "bracket or a sign"),
        ("-n", "negative"),
        ("n / 0", "zero"),
        ("9^9^9", "at most"),
        ("5 + ", "missing"),
        ("n; n", "cannot be read at"),
        ("(" * 200, "too long"),
        ("log log n", "logarithm of a logarithm"),
    ],
)
def test_what_cannot_be_read_is_said(function, says):
    with pytest.raises(BadInput, match=says):
        asymptotic(function)
