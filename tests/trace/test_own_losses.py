"""A loss of anybody's choosing: a function or a module of the output, with labels where it takes them."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import rooflight
from rooflight.errors import BadInput, RooflightError
from rooflight.ledger import LOSS, total
from rooflight.prediction.kept_traces import KeptTrace
from rooflight.spec import repeat
from rooflight.trace import TraceOptions
from rooflight.trace.options import TensorKind
from tests.fixtures.tracing import names, train

X, CLASSES, SCORES = torch.randn(4, 8), torch.randint(0, 5, (4,)), torch.rand(4, 5)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5))


class Projected(nn.Module):
    """A criterion that is trained itself."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 3)

    def forward(self, output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(output), labels)


@pytest.mark.parametrize(
    ("loss", "name", "ops"),
    [
        (nn.CrossEntropyLoss(weight=torch.ones(5)), "CrossEntropyLoss", ["_log_softmax", "nll_loss_forward"]),
        (nn.BCEWithLogitsLoss(), "BCEWithLogitsLoss", ["binary_cross_entropy_with_logits"]),
        (nn.MSELoss(), "MSELoss", ["mse_loss"]),
        (F.cross_entropy, "cross_entropy", ["_log_softmax", "nll_loss_forward"]),
        (functools.partial(F.cross_entropy, ignore_index=3), "cross_entropy", ["_log_softmax", "nll_loss_forward"]),
        (lambda output: F.mse_loss(output, SCORES), "lambda", ["mse_loss"]),
        (lambda output, labels: F.nll_loss(output, labels), "lambda", ["nll_loss_forward"]),
        (torch.sum, "sum", ["sum"]),
    ],
)
def test_a_loss_is_called_with_the_output_and_where_it_takes_them_labels(loss: Any, name: str, ops: list[str]) -> None:
    ledger = train(net(), X, loss=loss)
    assert ledger.header.loss == name
    assert names(ledger, phase="forward", module=LOSS) == ops


@pytest.mark.parametrize("on", ["meta", "fake", "cpu"])
def test_labels_are_an_input_of_the_step(on: TensorKind) -> None:
    ledger = train(net(), X, loss=F.mse_loss, labels=SCORES, on=on)
    assert [s.nbytes for s in ledger.storages if s.category == "input" and s.name == "labels"] == [4 * 4 * 5]
    with pytest.raises(RooflightError, match=r"int64 of \(4,\): give yours as labels"):
        train(net(), X, loss=F.mse_loss, on=on)


def test_several_labels_are_a_tuple() -> None:
    class Spoken(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).log_softmax(-1)

    words = torch.randint(1, 6, (2, 4)), torch.tensor([10, 10]), torch.tensor([4, 3])
    x = torch.randn(10, 2, 3)
    ledger = train(Spoken(3, 6), x, loss=nn.CTCLoss(), labels=words, on="cpu")
    assert names(ledger, phase="forward", module=LOSS)[0] == "_ctc_loss"
    with pytest.raises(BadInput, match="takes 4 values: give those after the output as labels, a tuple"):
        train(Spoken(3, 6), x, loss=nn.CTCLoss())


def test_a_loss_goes_before_the_models_own() -> None:
    class Scalar(nn.Linear):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:  # type: ignore[override]
            scores = super().forward(x)
            return {"loss": scores.sum(), "scores": scores}

    assert train(Scalar(8, 5), X).header.loss == "model's own"
    ledger = train(Scalar(8, 5), X, loss=lambda output: output["scores"].square().mean())
    assert (ledger.header.loss, names(ledger, phase="forward", module=LOSS)) == ("lambda", ["pow", "mean"])


def test_a_criterion_that_wants_a_tensor_and_gets_another_output() -> None:
    class Named(nn.Linear):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:  # type: ignore[override]
            return {"logits": super().forward(x)}

    with pytest.raises(RooflightError, match="CrossEntropyLoss is called with what the model gives, a dict"):
        train(Named(8, 5), X, loss=nn.CrossEntropyLoss())
    ledger = train(Named(8, 5), X, loss=lambda output, labels: F.cross_entropy(output["logits"], labels))
    assert names(ledger, phase="forward", module=LOSS) == ["_log_softmax", "nll_loss_forward"]


@pytest.mark.parametrize("on", ["meta", "fake", "cpu"])
def test_a_criterion_is_trained_and_left_as_it_was(on: TensorKind) -> None:
    model, criterion = net(), Projected()
    weight = criterion.head.weight
    before = weight.detach().clone()
    optimizer = torch.optim.SGD([*model.parameters(), *criterion.parameters()], momentum=0.9)
    labels = torch.zeros(4, dtype=torch.long)
    ledger = train(model, X, loss=criterion, labels=labels, optimizer=optimizer, on=on)
    assert criterion.head.weight is weight
    assert torch.equal(weight, before)
    assert weight.grad is None
    assert not optimizer.state
    held = {(s.category, s.name) for s in ledger.storages if s.name.startswith(LOSS)}
    assert held == {(c, f"{LOSS}.head.{n}") for c in ("parameter", "gradient") for n in ("weight", "bias")}
    states = sum(s.nbytes for s in ledger.storages if s.category == "optimizer-state")
    assert states == 4 * sum(p.numel() for p in (*model.parameters(), *criterion.parameters()))


def test_what_a_loss_calls_is_counted_as_torch_counts_it() -> None:
    model, teacher = net(), nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 5)).requires_grad_(False)

    def distilled(output: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(output, teacher(X))

    ledger = train(model, X, loss=distilled, optimizer="sgd")
    with FlopCounterMode(display=False) as counter:
        distilled(model(X)).backward()
    assert total(ledger.ops).flops == counter.get_total_flops()
    assert all(op.kind != "host" for op in ledger.ops)
    assert all(parameter.device.type == "cpu" for parameter in teacher.parameters())


@pytest.mark.parametrize(
    ("choice", "line"),
    [
        ({"loss": lambda output: output}, r"gives a tensor of \(4, 5\)"),
        ({"loss": lambda output: 3.0}, "gives a float"),
        ({"loss": nn.CrossEntropyLoss}, "give an instance of the class"),
        ({"loss": lambda output: output.nothing}, "no attribute 'nothing'"),
        ({"loss": "mse", "labels": SCORES}, "labels are for a loss of your own"),
        ({"labels": SCORES}, "labels are for a loss of your own"),
        ({"loss": 3}, "loss must be one of"),
    ],
)
def test_what_is_no_loss_is_one_line(choice: dict[str, Any], line: str) -> None:
    with pytest.raises(RooflightError, match=line) as caught:
        train(net(), X, **choice)
    assert "\n" not in str(caught.value)


def test_a_measured_and_a_predicted_step_take_it() -> None:
    choices: dict[str, Any] = {"step": "train", "loss": F.mse_loss, "labels": SCORES, "optimizer": torch.optim.RAdam}
    measured = rooflight.measure(net(), X, **choices, device="cpu", repeat=2)
    assert (measured.header.loss, measured.header.optimizer) == ("mse_loss", "RAdam")
    predicted = rooflight.predict(net(), X, **choices, on="h200", advice=False)
    assert (predicted.header.loss, predicted.header.optimizer) == ("mse_loss", "RAdam")


def test_a_step_says_what_makes_it_again() -> None:
    by_name = rooflight.estimate("alexnet", step="train", loss=nn.CrossEntropyLoss(), optimizer=torch.optim.RAdam)
    call = 'rooflight.estimate("alexnet", step="train", loss=CrossEntropyLoss, optimizer=RAdam)'
    assert repeat(by_name.header, measured=False) == call
    live = train(net(), X, loss=F.mse_loss, labels=SCORES, optimizer="sgd")
    call = 'rooflight.estimate(model, x, step="train", loss=mse_loss, optimizer="sgd")'
    assert repeat(live.header, measured=False) == call


def test_only_names_are_kept_studied_and_sent_to_other_processes() -> None:
    def kept(options: TraceOptions) -> KeptTrace | None:
        return KeptTrace.of("alexnet", {}, options, 1, {}, scales=False)

    assert kept(TraceOptions(loss="mse", optimizer="muon")) is not None
    assert kept(TraceOptions(loss=nn.MSELoss())) is None
    assert kept(TraceOptions(optimizer=torch.optim.Adam)) is None
    with pytest.raises(BadInput, match="loss must be one of"):
        rooflight.study("alexnet", step="train", loss=nn.MSELoss())
    with pytest.raises(BadInput, match="gpus takes the optimizer by its name"):
        rooflight.measure("alexnet", step="train", optimizer=torch.optim.Adam, gpus=2, device="cpu")


class Detector(nn.Module):
    """Gives several losses, as detectors do when they are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.classes, self.boxes = nn.Linear(8, 3), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"classification": self.classes(x).square().mean(), "boxes": self.boxes(x).abs().mean()}


def test_losses_in_a_dict_are_summed() -> None:
    ledger = rooflight.estimate(Detector(), torch.randn(2, 8), step="train")
    backward = {op.module for op in ledger.ops if op.phase == "backward" and op.packet == "aten::mm"}
    assert backward == {"classes", "boxes"}
