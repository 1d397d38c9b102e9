"""Whatever a model takes and gives: several inputs, keywords, integers, dictionaries, tuples, no batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rooflight import estimate
from rooflight.errors import BadInput
from tests.fixtures.notes import note_texts
from tests.fixtures.tracing import flops, infer, names, only, rows, train


class Many(nn.Module):
    """Two inputs, one of them optional, and an output of any kind."""

    def __init__(self, kind: str = "tensor") -> None:
        super().__init__()
        self.kind = kind
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor, scale: Tensor | None = None, *, times: int = 1) -> Any:
        for _ in range(times):
            hidden = self.layer(x)
        if scale is not None:
            hidden = hidden * scale
        mask = hidden > 0
        kinds: dict[str, Any] = {
            "tensor": hidden,
            "tuple": (mask, hidden),
            "dict": {"mask": mask, "scores": hidden},
            "nested": {"mask": mask, "pair": (None, [hidden])},
            "logits": {"features": hidden.sum(-1), "logits": hidden},
            "object": Scores(logits=hidden),
        }
        return kinds[self.kind]


@dataclass
class Scores:
    logits: Tensor


def test_inputs_are_described_by_position_and_name() -> None:
    ledger = infer(Many(), torch.randn(2, 4), kwargs={"scale": torch.randn(3), "times": 2})
    described = [(name, tensor.shape, tensor.dtype) for name, tensor in ledger.header.inputs]
    assert described == [("input 0", (2, 4), "fp32"), ("scale", (3,), "fp32")]
    assert len(rows(ledger, "addmm")) == 2
    assert only(ledger, "mul").module == ""
    assert [(s.name, s.nbytes) for s in ledger.storages if s.category == "input"] == [("input 0", 32), ("scale", 12)]


@pytest.mark.parametrize("kind", ["tensor", "tuple", "dict", "nested", "logits", "object"])
def test_the_loss_is_taken_of_the_logits_or_the_first_floating_output(kind: str) -> None:
    ledger = train(Many(kind), torch.randn(2, 4), loss="cross-entropy")
    assert only(ledger, "_log_softmax").tensor("self").shape == (2, 3)
    # Weights only: the input wants no gradient.
    assert flops(rows(ledger, phase="backward")) == flops(rows(ledger, phase="forward")) == 2 * 2 * 4 * 3


def test_all_outputs_are_filed() -> None:
    ledger = infer(Many("nested"), torch.randn(2, 4))
    assert [(tensor.shape, tensor.dtype) for tensor in ledger.header.outputs] == [((2, 3), "bool"), ((2, 3), "fp32")]
    assert [s.nbytes for s in ledger.storages if s.category == "output"] == [2 * 3 * 4, 2 * 3]


def test_one_tensor_passed_twice_stays_one() -> None:
    class Pair(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return a + b if a is b else a * b

    x, y = torch.randn(2, 4), torch.randn(2, 4)
    assert names(infer(Pair(), x, x)) == ["add"]
    assert names(infer(Pair(), x, kwargs={"b": x})) == ["add"]
    assert names(infer(Pair(), x, y)) == ["mul"]
    assert len({tensor.storage for _, tensor in infer(Pair(), x, x).header.inputs}) == 1


def test_integer_inputs_make_a_language_model() -> None:
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10))
    header = train(model, torch.randint(0, 10, (2, 3))).header
    assert (header.batch, header.sequence, header.loss, header.optimizer) == (2, 3, "cross-entropy", "adamw")
    assert header.inputs[0][1].dtype == "int64"
    other = train(nn.Linear(4, 2), torch.randn(5, 4)).header
    assert (other.batch, other.sequence, other.loss, other.optimizer) == (5, None, "mse", "adamw")
    image = train(nn.Conv2d(3, 4, 3), torch.randn(5, 3, 8, 8)).header
    assert (image.batch, image.loss, image.optimizer) == (5, "cross-entropy", "momentum")


@pytest.mark.parametrize(("loss", "op"), [("mse", "pow"), ("sum", "sum"), ("cross-entropy", "nll_loss_forward")])
def test_the_loss_may_be_chosen(loss: str, op: str) -> None:
    ledger = train(nn.Linear(4, 3), torch.randn(2, 4), loss=loss)
    assert op in names(ledger, phase="forward", module="<loss>")
    assert ledger.header.loss == loss


class Scored(nn.Linear):
    """Gives a loss, alone or beside what it is of."""

    def __init__(self, named: bool) -> None:
        super().__init__(4, 3)
        self.named = named

    def forward(self, x: torch.Tensor) -> Any:
        scores = super().forward(x)
        loss = scores.logsumexp(1).mean()
        return {"loss": loss, "logits": scores} if self.named else loss


@pytest.mark.parametrize("named", [True, False])
def test_a_models_own_loss_is_called_that(named: bool) -> None:
    ledger = train(Scored(named), torch.randn(2, 4), loss="mse")
    assert "logsumexp" in names(ledger) and "pow" not in names(ledger)
    assert ledger.header.loss == "model's own"
    assert "loss mse has no effect: the model computes its own" in note_texts(ledger.header.notes)
    silent = train(Scored(named), torch.randn(2, 4)).header
    assert silent.loss == "model's own" and not any("--loss" in note for note in note_texts(silent.notes))


def test_segmentation_scores_have_their_classes_in_dimension_one() -> None:
    ledger = train(nn.Conv2d(3, 5, 1), torch.randn(2, 3, 4, 4), loss="cross-entropy")
    assert only(ledger, "nll_loss2d_forward").tensor("self").shape == (2, 5, 4, 4)
    labels = next(s for s in ledger.storages if s.name == "labels")
    assert (labels.category, labels.nbytes) == ("input", 2 * 4 * 4 * 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "hinge"}, "loss must be one of cross-entropy, mse, sum, got 'hinge'"),
        ({"optimizer": "lion"}, "optimizer must be one of sgd, momentum, .*, got 'lion'"),
        ({"accumulate": 0}, "at least 1"),
        ({"target": "tpu"}, "unknown target"),
        ({"autocast": "fp8"}, "autocast must be one of bf16, fp16"),
        ({"dtype": "bf16"}, "only for a model by name"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        train(nn.Linear(4, 3), torch.randn(2, 4), **options)


def test_steps_have_their_mode_and_phases() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), torch.randn(2, 4)
    ledger = infer(model, x)
    assert ledger.header.step == "infer"
    assert {op.phase for op in ledger.ops} == {"forward"}
    assert "native_dropout" not in names(ledger)
    assert not [s for s in ledger.storages if s.category in ("activation", "gradient", "optimizer-state")]
    assert {op.phase for op in train(model, x).ops} == {"forward", "backward", "optimizer"}
    assert "native_dropout" in names(train(model, x))


@pytest.mark.parametrize(("model", "inputs", "given"), [
    (nn.Conv2d(3, 4, 3), torch.randn(8, 3, 16, 16), {"batch": 16}),
    (nn.Embedding(10, 4), torch.ones(2, 64, dtype=torch.long), {"seq": 128}),
])  # fmt: skip
def test_a_batch_or_sequence_that_the_inputs_do_not_have_is_refused(
    model: nn.Module, inputs: Tensor, given: dict[str, Any]
) -> None:
    with pytest.raises(BadInput) as error:
        estimate(model, inputs, **given)
    assert error.value.code == "not-the-inputs"


def test_rows_of_several_for_each_sample_are_an_input_of_its_batch() -> None:
    assert estimate(nn.Linear(4, 3), torch.randn(32, 4), batch=8).header.batch == 8
