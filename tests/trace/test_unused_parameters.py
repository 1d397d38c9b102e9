"""The note on parameters that no op of a step reads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rooflight
from tests.fixtures.notes import note_texts


class TwoTowers(nn.Module):
    """Text may come without images."""

    def __init__(self) -> None:
        super().__init__()
        self.vision = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8))
        self.text = nn.Linear(4, 8)
        self.spare = nn.Parameter(torch.zeros(8))

    def forward(self, text: Tensor, image: Tensor | None = None) -> Tensor:
        out: Tensor = self.text(text)
        return out if image is None else out + self.vision(image)


def unused(model: nn.Module, *inputs: Any, **options: Any) -> list[str]:
    notes = note_texts(rooflight.estimate(model, *inputs, **options).header.notes)
    return [note for note in notes if "never used" in note]


@pytest.mark.parametrize("step", ["infer", "train"])
def test_an_idle_tower_is_named(step: str) -> None:
    # 4 x 8 + 8 and 8 x 8 + 8 of the vision, 8 spare, and 4 x 8 + 8 of the text, which is used.
    assert unused(TwoTowers(), torch.zeros(2, 4), step=step) == [
        "120 of 160 parameters (75.0%) were never used in this step: vision.* (112), spare (8)"
    ]
    assert unused(TwoTowers(), torch.zeros(2, 4), torch.zeros(2, 4), step=step) == [
        "8 of 160 parameters (5.0%) were never used in this step: spare (8)"
    ]


def test_frozen_parameters_are_used() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].requires_grad_(False)
    assert unused(model, torch.zeros(2, 4), step="train") == []


class TiedWords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.table.weight

    def forward(self, words: Tensor) -> Tensor:
        out: Tensor = self.head(self.table(words))
        return out


@pytest.mark.parametrize("step", ["infer", "train"])
def test_tied_and_fused_weights_are_used(step: str) -> None:
    data = torch.zeros(2, 3, 8)
    assert unused(TiedWords(), torch.zeros(2, 3, dtype=torch.long), step=step) == []
    assert unused(nn.LSTM(8, 8, num_layers=2, bidirectional=True), data, step=step) == []
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    assert unused(nn.TransformerEncoder(layer, 2), data, step=step) == []  # inference takes the fast path
    assert unused(nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)), data, step=step) == []
