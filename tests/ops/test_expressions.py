"""The text of a formula: its value, its symbols, how it is written, and that it can be nothing but arithmetic."""

from __future__ import annotations

import pytest

from rooflight.errors import RooflightError
from rooflight.ops.expressions import compute, evaluate, latex_name, symbols, to_latex, to_text


def test_value_symbols_and_writing_come_from_one_text() -> None:
    text = "2 * n * ceil(log2(L)) - min(n, d) / 4"
    where = {"n": 12, "L": 5, "d": 100}
    assert evaluate(text, where) == 2 * 12 * 3 - 12 // 4
    assert symbols(text) == ["n", "L", "d"]
    assert to_text("N * (Cin + 1)", {"N": 1000, "Cin": 3}) == "1,000 × (3 + 1)"
    assert to_latex("N * Cin**2 / 4") == r"\frac{N \cdot C_{in}^{2}}{4}"


def test_symbols_stand_in_the_order_of_the_text() -> None:
    # D is also a letter of Dv, which comes first.
    assert symbols("B * Dv * (D + Dv)") == ["B", "Dv", "D"]


@pytest.mark.parametrize(
    "text",
    [
        "().__class__",
        "n.real",
        "__import__('os').system('true')",
        "n if n else 1",
        "[n for n in (1, 2)]",
        "lambda: n",
        "abs(n)",
        "min(n, key=n)",
        "'a' * n",
        "True",
        "1j * n",
        "n @ n",
        "n := 3",
        "n;",
    ],
)
def test_a_formula_is_arithmetic_and_nothing_else(text: str) -> None:
    for use in (lambda: evaluate(text, {"n": 1}), lambda: symbols(text), lambda: to_text(text)):
        with pytest.raises(RooflightError, match="the formula"):
            use()


def test_functions_are_those_of_the_caller() -> None:
    assert compute("max(n, 3)", {"n": "x"}, {"max": lambda *values: values}) == ("x", 3)


def test_names_in_latex() -> None:
    assert [latex_name(name) for name in ("B", "Cout", "n'", "Kh'", "n_a")] == ["B", "C_{out}", "n'", "K_{h}'", "n_{a}"]
