"""The MNIST training script of the PyTorch examples, with a region around its second convolution and around a step.

    rooflight run -- python examples/mnist_regions.py --epochs 2 --batch 64

The pictures are random numbers, so that nothing is downloaded: what a step costs does not depend on them. It runs on
a GPU where there is one, else on the CPU in a few seconds.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import nn

import rooflight


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, 1)
        self.conv2 = nn.Conv2d(32, 64, 3, 1)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.conv1(x))
        with rooflight.region("conv2"):
            x = self.conv2(x)
        x = self.dropout1(F.max_pool2d(F.relu(x), 2))
        x = torch.flatten(x, 1)
        x = self.dropout2(F.relu(self.fc1(x)))
        return F.log_softmax(self.fc2(x), dim=1)


@rooflight.region("step")
def train_step(
    model: Net, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    optimizer.zero_grad()
    loss = F.nll_loss(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss.detach()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20, help="steps in an epoch (938 for MNIST with batch 64)")
    arguments = parser.parse_args()

    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Net().to(device)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    for epoch in range(1, arguments.epochs + 1):
        loss = torch.zeros((), device=device)
        for _ in range(arguments.steps):
            images = torch.randn(arguments.batch, 1, 28, 28, device=device)
            labels = torch.randint(10, (arguments.batch,), device=device)
            loss = train_step(model, optimizer, images, labels)
        print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
