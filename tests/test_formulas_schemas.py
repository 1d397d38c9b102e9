"""Every formula runs on a real call of every operator it is registered for."""

from __future__ import annotations

import pytest
import torch
from formula_calls import CALLS, PRETENDED, call

from rooflight.estimation import formulas
from rooflight.estimation.costs import cost_of
from rooflight.estimation.expressions import evaluate, symbols, to_latex, to_text
from rooflight.estimation.registry import find, registered

# Their own tests call these.
_ELSEWHERE = (formulas.attention, formulas.convolution, formulas.matmul, formulas.recurrent)


def _own_names() -> list[str]:
    from rooflight.estimation.registry import _FORMULAS

    elsewhere = {module.__name__ for module in _ELSEWHERE}
    return [
        name.removeprefix("aten::")
        for name in registered()
        if name.startswith("aten::") and _FORMULAS[name].__module__ not in elsewhere
    ]


# Operators that only some of the supported torch versions have.
_SOME_VERSIONS = {
    "_foreach_clone",
    "_foreach_powsum",
    "_upsample_lanczos2d_aa",
    "_upsample_lanczos2d_aa_backward",
    "linalg__powsum",
}


def test_only_a_few_names_are_unknown_to_this_torch() -> None:
    unknown = {name for name in _own_names() if not hasattr(torch.ops.aten, name)}
    assert unknown <= _SOME_VERSIONS


@pytest.mark.parametrize("name", [name for name in _own_names() if hasattr(torch.ops.aten, name)])
def test_formula_runs_on_a_real_call(name: str) -> None:
    op = call(name)
    assert op.packet == f"aten::{name}"
    formula = find(op)
    assert formula is not None
    work = formula(op)
    for text in (work.macs, work.other, work.reads, work.writes):
        if text is None:
            continue
        assert evaluate(text, work.where) >= 0, f"{name}: {text} of {work.where}"
        assert set(symbols(text)) <= set(work.where)
        assert to_text(text, work.where)
        assert to_latex(text)
    assert all(symbol.isidentifier() and len(symbol) <= 3 for symbol in work.where)
    assert cost_of(op, {}) is not None


def test_no_call_is_left_over() -> None:
    """A call for a name without a formula is a slip of the name."""
    assert set(CALLS) | set(PRETENDED) <= set(_own_names())
