"""Every formula runs on a call of every operator it is registered for."""

from __future__ import annotations

import pytest
import torch

from rooflight.estimation.costs import cost_of
from rooflight.ops.expressions import evaluate, symbols, to_latex, to_text
from rooflight.ops.registry import FORMULAS, formula_of
from tests.fixtures.formula_calls import CALLS, PRETENDED, call
from tests.fixtures.matrix_calls import MATRIX_CALLS
from tests.fixtures.torch_versions import VERSION

NAMES = [name.removeprefix("aten::") for name in FORMULAS.names() if name.startswith("aten::")]

# Operators that only some of the supported torch versions have.
_SOME_VERSIONS = {
    "_foreach_clone",
    "_foreach_powsum",
    "_fused_rms_norm_backward",
    "_upsample_lanczos2d_aa",
    "cholesky",
    "_upsample_lanczos2d_aa_backward",
    "linalg__powsum",
}
_OTHERWISE = {"_fused_rms_norm", "_weight_norm_interface_backward"}


def test_only_a_few_names_are_unknown_to_this_torch() -> None:
    unknown = {name for name in NAMES if not hasattr(torch.ops.aten, name)}
    assert unknown <= _SOME_VERSIONS


@pytest.mark.parametrize("name", [name for name in NAMES if hasattr(torch.ops.aten, name)])
def test_formula_runs_on_a_call(name: str) -> None:
    if name in _OTHERWISE and VERSION < (2, 11):
        pytest.skip("torch before 2.11 has it with other arguments, or cannot run it without data")
    op = call(name)
    assert op.packet == f"aten::{name}"
    formula = formula_of(op)
    assert formula is not None
    work = formula(op)
    for text in (work.macs, work.other, work.reads, work.writes):
        if text is None:
            continue
        assert evaluate(text, work.where) >= 0, f"{name}: {text} of {work.where}"
        assert set(symbols(text)) <= set(work.where)
        assert to_text(text, work.where)
        assert to_latex(text)
    assert all(symbol.isidentifier() and (len(symbol) <= 3 or symbol == "Cout") for symbol in work.where)
    assert cost_of(op, {}) is not None


def test_no_call_is_left_over() -> None:
    """A call for a name without a formula is a slip of the name."""
    names = {name.removeprefix("aten::") for name in FORMULAS.names()}
    assert set(CALLS) | set(PRETENDED) | set(MATRIX_CALLS) <= names
