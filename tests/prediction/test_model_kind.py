"""What a model mostly does, told by its ops."""

import pytest
import torch
from torch import nn

import rooflight
from rooflight.ledger import Ledger
from rooflight.step.costed_step import own_step
from rooflight.step.model_kind import kind_of


class AttendingConvnet(nn.Module):
    """Two large convolutions and a small attention over channels' means."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1))
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.convolutions(x).mean(dim=2).transpose(1, 2)
        out: torch.Tensor = self.attention(features, features, features)[0]
        return out


@pytest.mark.parametrize(
    ("name", "kind"), [("resnet18", "convnet"), ("gpt2", "transformer"), ("distilbert-mlm", "transformer")]
)
def test_built_in_models(name: str, kind: str) -> None:
    assert kind_of(own_step(rooflight.estimate(name, batch=1))) == kind


def _of(model: nn.Module, x: torch.Tensor) -> Ledger:
    return rooflight.estimate(model, x)


def test_modules() -> None:
    mlp = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    assert kind_of(own_step(_of(mlp, torch.zeros(2, 8)))) == "mlp"
    assert kind_of(own_step(_of(nn.LSTM(8, 8), torch.zeros(5, 2, 8)))) == "recurrent"
    assert kind_of(own_step(_of(AttendingConvnet(), torch.zeros(2, 3, 32, 32)))) == "hybrid"
