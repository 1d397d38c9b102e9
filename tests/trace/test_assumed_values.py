"""Values that a step reads of tensors without data: known, taken as usual and noted, or a failure."""

from __future__ import annotations

import runpy
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.distributions as D
from torch import Tensor, nn

import rooflight
from rooflight.errors import TraceFailed
from rooflight.ledger import Ledger, total
from tests.fixtures.notes import note_texts
from tests.fixtures.tracing import flops, infer, names, rows, train


class Step(nn.Module):
    """A layer, and something that looks at values."""

    def __init__(self, look: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.look = look

    def forward(self, x: Tensor) -> Tensor:
        return self.look(self.layer(x))


X = torch.randn(2, 4)


def assumed(ledger: Ledger) -> list[str]:
    return [note.removeprefix("a trace without data takes it that ") for note in note_texts(ledger.header.notes)]


def padding(x: Tensor) -> Tensor:
    mask = torch.nn.functional.pad(torch.ones(x.shape, device=x.device)[None, :, :2], (0, 1), value=1.0) * 2 - 1
    mask[:, :1] = 1
    mask[mask < 0] = 1
    mask = mask.clamp(0, 1)
    return x * 2 if (mask.to(torch.bool).sum() == mask.numel()) and not (1 - mask).any() else x


def test_what_follows_from_constants_is_known_and_needs_no_note() -> None:
    ledger = infer(Step(padding), X)
    assert rows(ledger, "mul")[-1].outputs[0].shape == (2, 4)
    assert names(ledger)[-1] == "mul"
    assert not note_texts(ledger.header.notes)
    assert names(infer(Step(padding), X, on="cpu"))[-1] == "mul"


def counted(x: Tensor) -> Tensor:
    left = torch.full((), 3, device=x.device)
    while left > 0:
        x, left = x + 1, left - 1
    return x


def test_a_loop_over_a_known_number_runs_as_often() -> None:
    assert names(infer(Step(counted), X)).count("add") == 3


def finite(x: Tensor) -> Tensor:
    if torch.isinf(x).any() or torch.isnan(x).any() or not torch.isfinite(x).all():
        x = x.clamp(-1, 1)
    return x


def test_results_are_taken_to_be_finite() -> None:
    ledger = infer(Step(finite), X)
    assert "clamp" not in names(ledger)
    (note,) = assumed(ledger)
    assert note.startswith("results are finite: trace/test_assumed_values.py:")


def dropped(x: Tensor) -> Tensor:
    return x if torch.rand([]) < 0.3 else x.exp()


def never_dropped(x: Tensor) -> Tensor:
    return x if torch.rand([]) < 0.0 else x.exp()


@pytest.mark.parametrize("seed", range(4))
def test_a_layer_that_may_be_dropped_is_not(seed: int) -> None:
    torch.manual_seed(seed)
    ledger = train(Step(dropped), X)
    assert "exp" in names(ledger)
    assert assumed(ledger)[0].startswith("a number drawn between 0 and 1, as for LayerDrop, is 0.5: trace/test_")


def test_what_no_draw_can_change_needs_no_note() -> None:
    assert not note_texts(infer(Step(never_dropped), X).header.notes)


def checked(x: Tensor) -> Tensor:
    assert (x > 0).any()
    if x.dim() != 2 or (x.sum() < 0).item():
        raise ValueError("negative")
    if not x.max() < 1e9:
        raise ValueError("too large")
    torch._check_tensor_all_with(ValueError, x < 1)
    return x


def warned(x: Tensor) -> Tensor:
    def warn_of_zeros() -> None:
        if 0 in x:
            warnings.warn("zeros", stacklevel=1)

    warn_of_zeros()
    return x


def checked_against_a_limit(x: Tensor) -> Tensor:
    limit = 3
    assert x.long().max().item() <= limit
    if x.max().item() >= 2 * limit or limit < x.min().item():
        raise ValueError("too large")
    return x


@pytest.mark.parametrize("look", [checked, checked_against_a_limit, warned])
def test_checks_that_would_end_the_step_pass(look: Callable[[Tensor], Tensor]) -> None:
    (note,) = assumed(infer(Step(look), X))
    assert note.startswith("checks that would raise an error pass: trace/test_assumed_values.py:")


def test_a_check_is_looked_up_in_the_file_as_it_is_now(tmp_path: Path) -> None:
    """A user loads a model, edits its file and loads it again: a check now stands where another statement was."""
    file = tmp_path / "own.py"
    for text, passes in (("if x.max() > 3: return x.exp()", False), ("if x.max() > 3: raise ValueError", True)):
        file.write_text(f"def look(x):\n    {text}\n    return x\n")
        look = runpy.run_path(str(file))["look"]
        with nullcontext() if passes else pytest.raises(TraceFailed):
            assert names(infer(Step(look), X))[:3] == ["addmm", "max", "gt"]


def written_nowhere(x: Tensor) -> Tensor:
    mask = torch.ones(4, device=x.device)
    mask[mask == 2] = torch.tensor(3.0)
    return x.exp() if (mask > 1).any() else x


def furthest(x: Tensor) -> Tensor:
    places = torch.arange(3, 13, device=x.device)[2:8].expand(2, 6)
    return x.exp() if (places.min().item(), places.max().item()) != (5, 10) else x


def inverted(x: Tensor) -> Tensor:
    hidden = 1 - nn.functional.pad(torch.ones(4, device=x.device), (0, 2))
    return x.exp() if (hidden.masked_fill(hidden.bool(), -9.0) > 0).any() else x


def partly_written(x: Tensor) -> Tensor:
    mask = torch.ones(4, device=x.device)
    mask[:2] = 0
    return x.exp() if mask.all() or mask.sum() != 2 else x


@pytest.mark.parametrize("look", [written_nowhere, inverted, furthest, partly_written])
def test_a_mask_is_followed_through_what_it_chooses(look: Callable[[Tensor], Tensor]) -> None:
    assert "exp" not in names(infer(Step(look), X))


def branch_that_raises_elsewhere(x: Tensor) -> Tensor:
    if x.sum() > 0:
        x = x + 1
        if x.dim() > 9:
            raise ValueError
    return x


def compared(x: Tensor) -> Tensor:
    return x if (x == 0).any() else -x


def drawn_for_each(x: Tensor) -> Tensor:
    return x if (torch.rand(4, device=x.device) < 0.3).any() else -x


def where_the_largest_is(x: Tensor) -> Tensor:
    return x if torch.ones(4, device=x.device).max(0).indices else -x


@pytest.mark.parametrize("look", [branch_that_raises_elsewhere, compared, drawn_for_each, where_the_largest_is])
def test_what_is_not_known_is_not_guessed(look: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(TraceFailed, match="values of its data"):
        infer(Step(look), X)


def normal(x: Tensor) -> Tensor:
    found = D.Normal(x, x.exp())
    return D.kl_divergence(found, D.Normal(torch.zeros_like(x), 1.0)) + found.log_prob(found.rsample())


def several(x: Tensor) -> Tensor:
    found = D.MultivariateNormal(x, torch.eye(4, device=x.device))
    choice = D.Categorical(logits=x)
    return found.log_prob(found.rsample()) + choice.log_prob(choice.sample())


@pytest.mark.parametrize("look", [normal, several])
def test_distributions_check_their_arguments(look: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(D.Distribution, "_validate_args", True)  # loading Dynamo switches it off
    ledger = train(Step(look), X, loss="mse")
    real = train(Step(look), X, loss="mse", on="cpu")
    assert total(ledger.ops).flops == total(real.ops).flops
    assert "checks that would raise an error pass" in assumed(ledger)[0]


class Marked(nn.Module):
    """What speech models do to hidden states in training."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last, self.filling = nn.Linear(4, 4), nn.Linear(4, 4), nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        x = self.layer(x)
        x[places] = self.filling
        return self.last(x)


def test_places_that_a_mask_assigns_to_are_all_there_are() -> None:
    places = torch.tensor([[True, False, True], [False, False, True]])
    model, x = Marked(), torch.randn(2, 3, 4)
    ledger = train(model, x, places)
    assert assumed(ledger)[0].startswith("a mask that is assigned to marks every place: trace/")
    (read,) = rows(ledger, "index", phase="backward")
    assert read.outputs[0].shape == (6, 4)
    assert flops(rows(ledger, "addmm")) == flops(rows(train(model, x, places, on="cpu"), "addmm"))


def test_masks_of_the_input_hide_nothing() -> None:
    class Masked(nn.Module):
        def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
            return x.exp() if attention_mask.all() else x[attention_mask]

    mask = torch.ones(2, 4, dtype=torch.bool)
    ledger = rooflight.estimate(Masked(), X, kwargs={"attention_mask": mask})
    assert names(ledger)[-1] == "exp"
    assert assumed(ledger)[0].startswith("the inputs' masks hide nothing: trace/")


def test_an_encoder_with_padding_computes_with_the_padding() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)
    mask = torch.zeros(2, 5, dtype=torch.bool)
    ledger = rooflight.estimate(encoder, torch.randn(2, 5, 16), kwargs={"src_key_padding_mask": mask})
    plain = rooflight.estimate(encoder, torch.randn(2, 5, 16))
    layers = "_transformer_encoder_layer_fwd"
    assert len(rows(ledger, layers)) == 2
    assert flops(rows(ledger, layers)) == flops(rows(plain, layers))
    assert "padding is computed with, not taken out by nested tensors" in assumed(ledger)[0]


class Experts(nn.Module):
    """Two of five experts for every token, as most models write it."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(4, 5, bias=False)
        self.experts = nn.ModuleDict({f"expert_{number}": nn.Linear(4, 3, bias=False) for number in range(5)})

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).topk(2)
        marks = nn.functional.one_hot(chosen, num_classes=6).permute(2, 1, 0)  # one class more than there are experts
        result = x.new_zeros(len(x), 3)
        for number in (marks.sum(dim=(-1, -2)) > 0).nonzero():
            if number[0] == 5:
                continue
            place, token = torch.where(marks[number].squeeze(0))
            states = self.experts[f"expert_{number[0]}"](x[token])
            result.index_add_(0, token, states * weights[token, place, None])
        return result


class SplitExperts(Experts):
    """The same, with the tokens of each expert together."""

    def forward(self, x: Tensor) -> Tensor:
        chosen = self.router(x).topk(2, dim=1).indices
        sizes = x.new_zeros(len(x), 5).scatter(1, chosen, 1).long().sum(0).tolist()
        parts = x[chosen.flatten().argsort() // 2].split(sizes)
        return torch.cat([expert(part) for expert, part in zip(self.experts.values(), parts, strict=True)])


@pytest.mark.parametrize("kind", [Experts, SplitExperts])
@pytest.mark.parametrize(("tokens", "each"), [(6, [3, 3, 2, 2, 2]), (1, [1, 1, 0, 0, 0])])
def test_tokens_are_spread_evenly_over_experts(kind: type[Experts], tokens: int, each: list[int]) -> None:
    # 6 tokens of 2 experts each are 12 of 5 experts: 3 + 3 + 2 + 2 + 2. An expert's product is [tokens, 4] x [4, 3].
    model, x = kind(), torch.randn(tokens, 4)
    ledger = infer(model, x)
    found = [rows(ledger, "mm", module=f"experts.expert_{number}") for number in range(5)]
    assert [sum(op.outputs[0].shape[0] for op in ops) for ops in found] == each
    assert sum(flops(ops) for ops in found) == 2 * (2 * tokens) * 4 * 3
    assert assumed(ledger)[0].startswith("tokens choose all experts equally often: trace/test_assumed_values.py:")
    for step in (infer, train):  # however real tokens choose, they choose two each
        assert flops(rows(step(model, x), "mm")) == flops(rows(step(model, x, real_data=True), "mm"))


def first_choice(x: Tensor) -> Tensor:
    return x if x.topk(2).indices[0, 0] == 0 else -x


def best_score(x: Tensor) -> Tensor:
    return x * x.argmax(-1)[0].item()


@pytest.mark.parametrize("look", [first_choice, best_score])
def test_which_expert_a_token_has_is_not_guessed(look: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(TraceFailed, match="values of its data"):
        infer(Step(look), X)


def moved(x: Tensor) -> Tensor:
    sizes = torch.tensor([[4, 6], [8, 2]]).to(x.device) // 2
    return x.new_zeros(sum(sizes.prod(-1).tolist()))


def test_numbers_that_the_host_sends_are_known() -> None:
    # 4 * 6 and 8 * 2, each side halved: 2 * 3 + 4 * 1
    ledger = infer(Step(moved), X)
    assert rows(ledger, "new_zeros")[0].outputs[0].shape == (10,)
    assert not note_texts(ledger.header.notes)


class Tokens(nn.Module):
    """Adds something at the places of some tokens."""

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        marked = ids == 7
        x[marked] = x[marked] + 1
        return x


def test_tokens_on_the_host_beside_tensors_without_data_are_there_to_be_read() -> None:
    ids = torch.tensor([[7, 7, 1, 2], [7, 0, 0, 0]])
    ledger = rooflight.estimate(Tokens(), kwargs={"x": torch.empty(2, 4, 5, device="meta"), "ids": ids})
    assert rows(ledger, "index")[0].outputs[0].shape == (3, 5)
    assert not note_texts(ledger.header.notes)


class Padded(nn.Module):
    """Leaves images out that are nothing but zeros."""

    def forward(self, x: Tensor) -> Tensor:
        return x[(x == 0.0).sum(dim=(-1, -2)) != 12].exp()


def test_images_are_taken_to_be_no_padding() -> None:
    ledger = infer(Padded(), torch.randn(2, 3, 4))
    assert rows(ledger, "exp")[0].outputs[0].shape == (2, 3, 4)
    assert assumed(ledger)[0].startswith("images and sound among the inputs are no padding of zeros: trace/test_")
