"""Closed forms: hand-derived polynomials, fresh traces at other points, conditions, Big-O, and how they are shown."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from torch import nn

from rooflight.errors import BadInput
from rooflight.estimation.api import estimate
from rooflight.estimation.symbolic import ClosedForm, ClosedFormRow, closed_form
from rooflight.estimation.symbolic.layers import alike, at_depth, ranking
from rooflight.estimation.symbolic.polynomial import Polynomial, SamplingGrid, through
from rooflight.estimation.symbolic.samples import COSTS
from rooflight.ledger import Ledger, total
from rooflight.reporting.sections.closed_form import to_json_dict, to_latex, to_text

TINY_GPT2 = {"n_layer": "2", "n_embd": "64", "n_head": "4"}


@pytest.fixture(scope="module")
def gpt2() -> ClosedForm:
    return closed_form("gpt2")


@pytest.fixture(scope="module")
def tiny_gpt2_training() -> ClosedForm:
    return closed_form("gpt2", step="train", overrides=TINY_GPT2)


@pytest.fixture(scope="module")
def mnist_training() -> ClosedForm:
    return closed_form("mnist-cnn", step="train")


@pytest.fixture(scope="module")
def vgg11() -> ClosedForm:
    return closed_form("vgg11")


def poly(**coefficients: int) -> Polynomial:
    """`poly(BSS=1536)` is 1,536·B·S²; `one` is the constant."""
    return Polynomial.of({(name.count("B"), name.count("S")): value for name, value in coefficients.items()})


def polynomial(row: ClosedFormRow, quantity: str, phase: str = "forward") -> Polynomial:
    found = row.phases[phase][quantity].polynomial  # type: ignore[index]
    assert found is not None, row.phases[phase][quantity].reason  # type: ignore[index]
    return found


# --- the polynomials themselves ---------------------------------------------------------------------------------------


def test_polynomial_is_written_leading_terms_first() -> None:
    found = Polynomial.of({(0, 0): -2, (1, 1): 2_359_296, (1, 2): 1_536, (1, 0): 0, (0, 1): Fraction(3, 2), (2, 0): 1})
    assert str(found) == "1,536·B·S² + 2,359,296·B·S + B² + 3/2·S - 2"
    assert found.to_latex() == r"1{,}536\, B S^{2} + 2{,}359{,}296\, B S + B^{2} + \frac{3}{2}\, S - 2"
    assert [powers for powers, _ in found.leading] == [(1, 2), (2, 0)]
    assert found.at(2, 4) == 1_536 * 32 + 2_359_296 * 8 + 4 + 6 - 2
    assert str(Polynomial()) == "0" and str(poly(B=-1)) == "-B"


def test_polynomial_with_a_sequence_needs_one() -> None:
    with pytest.raises(ValueError, match="needs a sequence"):
        poly(BS=3).at(2)
    assert poly(B=3).at(2) == 6


@given(st.lists(st.integers(-(10**15), 10**15), min_size=12, max_size=12))
@settings(derandomize=True)
def test_interpolation_is_exact(coefficients: list[int]) -> None:
    wanted = Polynomial.of({(k % 3, k // 3): value for k, value in enumerate(coefficients)})
    grid = SamplingGrid((2, 3, 5), (32, 64, 96, 160))
    assert through(grid, [int(wanted.at(*point)) for point in grid.points]) == wanted


# --- hand-derived closed forms ----------------------------------------------------------------------------------------


def test_mnist_convolution() -> None:
    form = closed_form("mnist-cnn")
    conv2 = form.row("conv2")
    # 64 x 24 x 24 outputs, each a dot product over 32 x 3 x 3.
    assert polynomial(conv2, "flops") == poly(B=21_233_664)
    # Input 32 x 26 x 26 and output 64 x 24 x 24 for each sample; weight 64 x 32 x 3 x 3 and bias once; 4 bytes each.
    assert polynomial(conv2, "bytes") == poly(B=4 * (32 * 26 * 26 + 64 * 24 * 24), one=4 * 18_496)
    assert conv2.params.polynomial == poly(one=18_496)
    assert conv2.activations.polynomial == poly(B=4 * 64 * 24 * 24)
    growth = conv2.growth["forward"]
    assert str(growth) == "O(B·Cout·Ho·Wo·Cin·Kh·Kw)"
    assert growth.where == ("Cout = 64", "Ho = 24", "Wo = 24", "Cin = 32", "Kh = 3", "Kw = 3")
    assert (5, None) in form.verified and (1, None) in form.verified


def test_gpt2_forward(gpt2: ClosedForm) -> None:
    # A layer's weights are 12 d², the head d·50,257; scores and values take 2·S²·d in each of 12 layers.
    assert polynomial(gpt2.total, "macs") == poly(BS=84_934_656 + 38_597_376, BSS=2 * 768 * 12)
    assert polynomial(gpt2.total, "flops") == polynomial(gpt2.total, "macs").scaled(2)
    assert gpt2.total.params.polynomial == poly(one=124_439_808)
    # S(S + 1)/2 of S² pairs under the causal mask.
    causal = polynomial(gpt2.total, "flops_causal").coefficient(1, 2)
    assert causal == polynomial(gpt2.total, "flops").coefficient(1, 2) / 2
    assert gpt2.traces == 8


def test_gpt2_growth_names_the_width(gpt2: ClosedForm) -> None:
    growth = gpt2.total.growth["forward"]
    assert str(growth) == "O(B·S²·d + B·S·d² + B·S·d·N)"
    assert growth.where == ("d = H·D = 768", "N = 50,257")
    assert str(growth.in_sequence) == "O(B·S²·d)"
    assert [term.count for term in growth.terms] == [12, 48, 1]
    assert str(gpt2.row("transformer.h.3.attn").growth["forward"]) == "O(B·S²·H·D)"
    assert str(gpt2.row("transformer.h.3.mlp.c_fc").growth["forward"]) == "O(B·S·K·N)"


def test_vgg_is_linear_in_the_batch(vgg11: ClosedForm) -> None:
    assert not vgg11.has_sequence
    assert polynomial(vgg11.total, "flops") == poly(B=15_218_180_096)
    for row in (*vgg11.rows, vgg11.total):
        assert row.params.polynomial is not None and row.params.polynomial.degree == 0
        for quantity in COSTS:
            found = polynomial(row, quantity) if row.ops else Polynomial()
            assert found.degree_in_batch <= 1 and found.degree_in_sequence == 0
            assert quantity not in ("macs", "flops") or found.coefficient(0) == 0


def test_rows_add_up_to_the_total(tiny_gpt2_training: ClosedForm, mnist_training: ClosedForm) -> None:
    for form in (tiny_gpt2_training, mnist_training):
        for phase, costs in form.total.phases.items():
            for quantity in COSTS:
                parts = [polynomial(row, quantity, phase) for row in form.rows if phase in row.phases]
                assert sum(parts, Polynomial()) == costs[quantity].polynomial
        for name in ("params", "activations"):
            parts = [getattr(row, name).polynomial for row in form.rows]
            assert sum(parts, Polynomial()) == getattr(form.total, name).polynomial


# --- training ---------------------------------------------------------------------------------------------------------


def test_backward_of_a_convolution_is_twice_its_forward_but_for_the_first(mnist_training: ClosedForm) -> None:
    for path, times in (("conv1", 1), ("conv2", 2), ("fc1", 2), ("fc2", 2)):
        row = mnist_training.row(path)
        assert polynomial(row, "flops", "backward") == polynomial(row, "flops").scaled(times)
        # Told in the symbols of the forward pass, whatever the ops of the backward pass call them.
        assert row.growth["backward"].where == row.growth["forward"].where
    assert str(mnist_training.total.growth["optimizer"]) == "O(n)"
    assert mnist_training.total.growth["optimizer"].where == ("n = 1,199,882",)


def test_attention_backward_recomputes(tiny_gpt2_training: ClosedForm) -> None:
    row = tiny_gpt2_training.row("transformer.h.0.attn")
    assert polynomial(row, "flops") == poly(BSS=2 * 2 * 64)
    assert polynomial(row, "flops", "backward") == poly(BSS=2 * 2 * 2 * 64)
    assert polynomial(row, "recompute_flops", "backward") == poly(BSS=2 * 64)


def test_activations_are_what_the_step_keeps(mnist_training: ClosedForm) -> None:
    from rooflight.summary import sizes

    kept = sizes(estimate("mnist-cnn", batch=9, step="train")).kept_for_backward_bytes
    assert mnist_training.total.activations.polynomial is not None
    assert mnist_training.total.activations.polynomial.at(9) == kept


# --- fresh traces -----------------------------------------------------------------------------------------------------


def assert_equals_trace(form: ClosedForm, ledger: Ledger, batch: int, sequence: int | None) -> None:
    checked = 0
    for row in form.rows:
        for phase, costs in row.phases.items():
            sums = total(op for op in ledger.ops if op.module == row.path and op.phase == phase)
            for quantity, fit in costs.items():
                if fit.admits((batch, sequence)):
                    assert fit.polynomial is not None
                    assert fit.polynomial.at(batch, sequence) == getattr(sums, quantity), (row.path, phase, quantity)
                    checked += 1
    assert checked > len(form.rows)


@given(batch=st.integers(1, 40), sequence=st.integers(2, 1024))
@settings(max_examples=5, deadline=None, derandomize=True)
def test_polynomials_equal_a_fresh_trace(tiny_gpt2_training: ClosedForm, batch: int, sequence: int) -> None:
    ledger = estimate("gpt2", batch=batch, seq=sequence, step="train", overrides=TINY_GPT2)
    assert_equals_trace(tiny_gpt2_training, ledger, batch, sequence)


@given(batch=st.integers(1, 500))
@settings(max_examples=5, deadline=None, derandomize=True)
def test_polynomials_in_the_batch_equal_a_fresh_trace(mnist_training: ClosedForm, batch: int) -> None:
    assert_equals_trace(mnist_training, estimate("mnist-cnn", batch=batch, step="train"), batch, None)


def test_decoding_grows_with_the_cache() -> None:
    form = closed_form("gpt2", step="decode", overrides=TINY_GPT2)
    # One token: 12 d² a layer and the head; it meets S cached keys and its own.
    assert polynomial(form.total, "macs") == poly(B=2 * 12 * 64**2 + 64 * 50_257 + 2 * 2 * 64, BS=2 * 2 * 64)
    assert str(form.total.growth["forward"].in_sequence) == "O(B·S·d)"
    assert "S = tokens in the KV cache" in to_text(form)
    assert_equals_trace(form, estimate("gpt2", batch=4, seq=77, step="decode", overrides=TINY_GPT2), 4, 77)


# --- where they hold, and where there is none -------------------------------------------------------------------------


def test_padding_is_a_condition(tiny_gpt2_training: ClosedForm) -> None:
    # In training the efficient kernel keeps its log-sum-exp in rows padded to 32.
    fit = tiny_gpt2_training.row("transformer.h.0.attn").forward["bytes"]
    assert [condition.text for condition in fit.holds] == ["S a multiple of 32"]
    assert fit.holds[0].cause == "aten::_scaled_dot_product_efficient_attention"
    assert fit.admits((3, 64)) and not fit.admits((3, 48))
    assert fit.polynomial is not None
    for sequence, same in ((64, True), (48, False)):
        ledger = estimate("gpt2", batch=3, seq=sequence, step="train", overrides=TINY_GPT2)
        ops = (op for op in ledger.ops if op.module == "transformer.h.0.attn" and op.phase == "forward")
        assert (total(ops).bytes == fit.polynomial.at(3, sequence)) is same
    assert tiny_gpt2_training.row("transformer.h.0.attn").forward["flops"].holds == ()


def test_an_embedding_reads_no_more_than_its_table() -> None:
    table = nn.Embedding(300, 8, device="meta")
    form = closed_form(lambda b, s: estimate(table, torch.zeros(b, s or 1, dtype=torch.long, device="meta")))
    fit = form.total.forward["bytes"]
    assert [str(condition) for condition in fit.holds if condition.room] == ["B·S ≤ 300"]


def test_conditions_of_points_asked_for() -> None:
    table = nn.Embedding(5_000, 8, device="meta")

    def ledger_at(batch: int, sequence: int | None) -> Ledger:
        return estimate(table, torch.zeros(batch, sequence or 1, dtype=torch.long, device="meta"))

    form = closed_form(ledger_at, also=[(10, 100), (50, 101)])
    assert (10, 100) in form.verified and (50, 101) not in form.verified
    fit = form.total.forward["bytes"]
    assert [str(condition) for condition in fit.holds] == ["B·S ≤ 5,000"]
    assert fit.admits((50, 100)) and not fit.admits((50, 101))
    assert fit.polynomial == poly(BS=8 + 8 * 4 + 8 * 4)  # the index, the rows read, the rows written


class Sorted(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sort(x, dim=1)[0]


class Similarity(nn.Module):
    """Every sample with every other, as contrastive losses do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, 0] @ x[:, 0].T


def live(model: nn.Module, *, width: int = 8) -> ClosedForm:
    return closed_form(lambda b, s: estimate(model, torch.empty(b, s or 1, width, device="meta")))


class ScalesBatches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] > 1 else x


def test_a_batch_of_one_may_be_different() -> None:
    fit = live(nn.Sequential(ScalesBatches(), nn.ReLU())).row("0").forward["other_flops"]
    assert fit.polynomial == poly(BS=8)
    assert [str(condition) for condition in fit.holds] == ["B ≥ 2 (aten::mul.Tensor)"]


def test_sorting_has_no_polynomial_and_says_why() -> None:
    form = live(nn.Sequential(nn.Linear(8, 8), Sorted()))
    fit = form.row("1").forward["other_flops"]
    assert fit.polynomial is None and "aten::sort" in fit.reason and not fit.admits((2, 32))
    assert str(form.row("1").growth["forward"]) == "O(B·S·log(S)·n')"
    assert form.row("1").work() is None
    assert form.total.forward["other_flops"].polynomial is None
    # The rest is not dragged along.
    assert polynomial(form.row("0"), "flops") == poly(BS=128)
    assert polynomial(form.row("1"), "bytes") == poly(BS=8 * (4 + 4 + 8))
    assert "no polynomial" in to_text(form)
    assert ranking(form)[0].layers.label == "1"


def test_a_second_attempt_finds_the_square_of_the_batch() -> None:
    form = live(nn.Sequential(nn.Linear(8, 8), Similarity()))
    assert polynomial(form.row("1"), "macs") == poly(BB=8)
    assert str(form.row("1").growth["forward"]) == "O(B²·K)"
    assert polynomial(form.total, "macs") == poly(BB=8, BS=64)
    assert form.verified[0] == (7, 224) and len(form.fitted) == 12


def test_ops_of_unknown_cost_are_named() -> None:
    def ledger_at(batch: int, _: int | None) -> Ledger:
        ledger = estimate("mnist-cnn", batch=batch)
        return replace(ledger, ops=tuple(replace(op, cost=None) if "relu" in op.name else op for op in ledger.ops))

    form = closed_form(ledger_at, sequence=False)
    assert form.total.uncounted == form.row("").uncounted == ("aten::relu",)
    assert form.row("conv1").uncounted == ()
    assert "not covered: aten::relu" in to_text(form)


def test_a_model_with_few_positions_gets_short_sequences() -> None:
    form = closed_form("gpt2", overrides={**TINY_GPT2, "n_positions": "48"})
    assert form.has_sequence and form.verified[0] == (5, 40)
    assert polynomial(form.total, "macs") == poly(BS=2 * 12 * 64**2 + 64 * 50_257, BSS=2 * 2 * 64)


def test_unknown_options_are_errors_not_fallbacks() -> None:
    with pytest.raises(BadInput, match="nonsense"):
        closed_form("mnist-cnn", overrides={"nonsense": "1"})
    with pytest.raises(BadInput, match="images"):
        closed_form("vgg11", sequence=True)


# --- how they are shown -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mnist-cnn", "resnet18", "vit-b-16", "distilbert"])
def test_every_model_has_a_big_o_in_the_batch(name: str) -> None:
    form = closed_form(name)
    assert str(form.total.growth["forward"]).startswith("O(B")
    text = to_text(form)
    assert "O(B" in text.partition("Layers")[0]
    assert max(map(len, text.splitlines())) <= 100


def test_text_shows_total_first_then_layers(gpt2: ClosedForm) -> None:
    lines = to_text(gpt2).splitlines()
    assert "gpt2" in lines[0] and "B = batch, S = sequence length" in lines[0]
    assert lines.index("Total: 124,439,808 parameters") < lines.index("Layers")
    assert "    MACs        18,432·B·S² + 123,532,032·B·S" in lines
    assert any(line.startswith("transformer.h.{0…11}.attn.c_attn  Conv1D, 12 alike") for line in lines)
    assert "verified at B = 5, S = 160; B = 1, S = 41" in " ".join(lines[:3])


def test_like_layers_are_put_together(gpt2: ClosedForm) -> None:
    layers = {each.label: each for each in alike(gpt2.rows)}
    assert layers["transformer.h.{0…11}.mlp.c_fc"].count == 12
    assert layers["transformer.h.{0…11}.ln_{1,2}"].count == 24
    assert sum(each.count for each in layers.values()) == len(gpt2.rows)


def test_depth_rolls_up_without_loss(gpt2: ClosedForm) -> None:
    for depth in (0, 1, 2):
        rows = at_depth(gpt2, depth)
        parts = [polynomial(row, "bytes") for row in rows if row.ops]
        assert sum(parts, Polynomial()) == polynomial(gpt2.total, "bytes")
        assert sum(row.ops for row in rows) == gpt2.total.ops
    (whole,) = at_depth(gpt2, 0)
    assert str(whole.growth["forward"].in_sequence) == "O(B·S²·H·D)"


def test_ranking(gpt2: ClosedForm, mnist_training: ClosedForm) -> None:
    assert ranking(gpt2)[0].layers.label == "transformer.h.{0…11}.attn"
    assert ranking(mnist_training)[0].layers.label == "conv2"


def test_json_holds_every_coefficient(tiny_gpt2_training: ClosedForm) -> None:
    data = json.loads(json.dumps(to_json_dict(tiny_gpt2_training)))
    terms = data["total"]["phases"]["forward"]["macs"]["terms"]
    assert {(term["batch"], term["sequence"]): term["coefficient"] for term in terms} == polynomial(
        tiny_gpt2_training.total, "macs"
    ).coefficients
    assert set(data["total"]["phases"]) == {"forward", "backward", "optimizer"}
    assert len(data["layers"]) == len(tiny_gpt2_training.rows)
    assert data["total"]["phases"]["backward"]["big_o"]["text"].startswith("O(B")


def test_latex_has_every_layer(mnist_training: ClosedForm) -> None:
    text = to_latex(mnist_training)
    assert r"\texttt{conv2} & forward & FLOPs & $21{,}233{,}664\, B$ \\" in text
    assert r"\mathcal{O}(B C_{out} H_{o} W_{o} C_{in} K_{h} K_{w})" in text
    assert all(line.count("$") % 2 == 0 for line in text.splitlines())


def test_a_layer_that_is_not_there(gpt2: ClosedForm) -> None:
    with pytest.raises(BadInput, match="no layer 'conv9'"):
        gpt2.row("conv9")


def test_a_size_that_is_no_polynomial_is_said_to_be_none() -> None:
    class KeepsHalf(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[: (x.shape[0] + 1) // 2].relu()

    row = live(nn.Sequential(KeepsHalf(), nn.ReLU())).row("0")
    assert row.forward["other_flops"].polynomial is None
    assert row.growth["forward"].where == ("n = a size that is no polynomial",)


def test_a_sequence_of_one_is_not_claimed():
    form = closed_form("word-lm", step="train")
    fit = form.total.forward["bytes"]
    assert fit.polynomial is not None
    assert fit.admits((3, 2)) or fit.holds
    assert not fit.admits((33, 1))
