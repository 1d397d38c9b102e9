"""The MNIST training script of the PyTorch examples, with a region around its second convolution and around a step.

    python examples/mnist_regions.py
    rooflight run -- python examples/mnist_regions.py --epochs 2 --batch 64

It prints what the formula says of both, and beside it what was measured: on a GPU time, executed FLOPs and DRAM bytes,
on a CPU the time. Nothing is downloaded. Where MNIST is not in the folder `--data` (as torchvision puts it there), the
pictures are made up: what a step costs does not depend on them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import rooflight
from rooflight.ledger import total


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
        with rooflight.region("conv2"):  # this line and the decorator below are all that was added to the training
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


def pictures(folder: Path) -> tuple[torch.Tensor, torch.Tensor, str]:
    """MNIST's images and labels, or made-up ones: one random pattern a digit, under noise."""
    raw = folder / "MNIST" / "raw"
    files = raw / "train-images-idx3-ubyte", raw / "train-labels-idx1-ubyte"
    if all(file.is_file() for file in files):
        # The headers of these files are 16 and 8 bytes long.
        values, labels = (torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.uint8) for file in files)
        images = values[16:].view(-1, 1, 28, 28).float().div(255).sub(0.1307).div(0.3081)
        return images, labels[8:].long(), "MNIST"
    labels = torch.randint(10, (4096,))
    patterns = torch.randn(10, 1, 28, 28)
    return 0.5 * patterns[labels] + torch.randn(4096, 1, 28, 28), labels, "made-up pictures"


def tell(region: rooflight.Region, flops: int) -> None:
    """What this machine did. A region says itself what it could not measure, and why."""
    if region.time_s is not None:
        print(f"{region.name}, measured: {region.time_s * 1e3:.2f} ms, {flops / region.time_s / 1e9:,.0f} GFLOP/s")
    if region.flops is not None:
        print(f"{region.name}, executed: {round(region.flops):,} FLOPs")
    if region.bytes_read is not None and region.bytes_written is not None:
        print(f"{region.name}, DRAM: {round(region.bytes_read):,} bytes read, {round(region.bytes_written):,} written")
    for line in region.missing:
        print(f"{region.name}, missing: {line}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20, help="steps in an epoch (938 for MNIST with batch 64)")
    parser.add_argument("--data", type=Path, default=Path("data"), help="the folder that holds MNIST/raw, if any")
    arguments = parser.parse_args()

    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    images, labels, what = pictures(arguments.data)
    print(f"{what}, {arguments.steps} steps of batch {arguments.batch} on the {device.type.upper()}")
    model = Net().to(device)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    for epoch in range(1, arguments.epochs + 1):
        loss = torch.zeros((), device=device)
        for _ in range(arguments.steps):
            chosen = torch.randint(len(images), (arguments.batch,))
            loss = train_step(model, optimizer, images[chosen].to(device), labels[chosen].to(device))
        print(f"epoch {epoch}: loss {loss.item():.4f}")

    # Any module can be estimated, a single layer too. The whole network also has a name here, `mnist-cnn`; what the
    # optimizer moves is not Adadelta's there, so of the step only FLOPs are told, in which it has no part.
    conv2 = total(rooflight.estimate(model.conv2, torch.empty(arguments.batch, 32, 26, 26, device=device)).ops)
    step = total(rooflight.estimate("mnist-cnn", batch=arguments.batch, step="train").ops)
    print(f"conv2, by formula: {conv2.flops:,} FLOPs, {conv2.bytes:,} bytes")
    print(f"step, by formula: {step.flops:,} FLOPs")
    flops = {"conv2": conv2.flops, "step": step.flops}
    for region in rooflight.regions():
        tell(region, flops[region.name])


if __name__ == "__main__":
    main()
