"""One's own network in a file of one's own: estimated, explained and measured without a change to it.

    rooflight estimate examples/own_model.py:Net --input 3x32x32 --batch 8
    rooflight estimate examples/own_model.py:Net --input 3x32x32 --batch 8 --explain depthwise
    rooflight estimate examples/own_model.py:Net --input 3x32x32 --batch 8 --set width=32
    rooflight estimate examples/own_model.py:with_inputs --batch 8
    rooflight measure examples/own_model.py:Net --input 3x32x32 --batch 8 --step train --on cpu
    python examples/own_model.py

In the folder of the file, or where it is installed, `own_model:Net` names it as well.
"""

from __future__ import annotations

import torch
from torch import nn

import rooflight
from rooflight.ledger import total
from rooflight.reporting.sections.measure_text import headlines
from rooflight.summary.measured import Measured


class Net(nn.Module):
    """A convolution, a depthwise and a pointwise one, a classifier. `width` can be given with --set."""

    def __init__(self, width: int = 16, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.pointwise = nn.Conv2d(width, 2 * width, 1)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(image))
        x = torch.relu(self.pointwise(self.depthwise(x)))
        return self.head(x.mean(dim=(2, 3)))


def with_inputs(batch: int = 1) -> tuple[nn.Module, torch.Tensor]:
    """A model with its inputs: nothing need be said of them on the command line."""
    return Net(), torch.zeros(batch, 3, 32, 32)


def main() -> None:
    torch.manual_seed(0)
    model, images = Net(), torch.randn(8, 3, 32, 32)

    estimated = rooflight.estimate(model, images, step="train")
    print(f"a training step of batch 8: {total(estimated.ops).flops:,} FLOPs by formula")
    for name, _ in model.named_children():
        inside = [op for op in estimated.ops if op.module == name]
        forward, backward = (total(op for op in inside if op.phase == phase) for phase in ("forward", "backward"))
        print(f"{name:<10} {forward.flops:>10,} forward {backward.flops:>11,} backward")

    measured = rooflight.measure(model, images, step="train")
    print(f"measured on {measured.header.device}:")
    print("\n".join(headlines(Measured(measured))))


if __name__ == "__main__":
    main()
