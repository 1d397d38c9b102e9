"""The two convolutional networks of the PyTorch MNIST example, now and before 2019."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IMAGE = 28


class MnistCnn(nn.Module):
    """conv - relu - conv - relu - pool - linear - relu - linear - log_softmax; `fc1_in` None follows the others."""

    def __init__(
        self,
        channels: tuple[int, int] = (32, 64),
        *,
        kernel: int = 3,
        hidden: int = 128,
        classes: int = 10,
        fc1_in: int | None = None,
    ) -> None:
        super().__init__()
        # Two unpadded convolutions take kernel - 1 each from the side, the pool halves it: (28 - 2 - 2) / 2 = 12.
        side = (IMAGE - 2 * (kernel - 1)) // 2
        if side < 1:
            raise ValueError(f"two {kernel}x{kernel} convolutions leave nothing of a {IMAGE}x{IMAGE} image")
        self.conv1 = nn.Conv2d(1, channels[0], kernel, 1)
        self.conv2 = nn.Conv2d(channels[0], channels[1], kernel, 1)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(channels[1] * side * side if fc1_in is None else fc1_in, hidden)
        self.fc2 = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = self.dropout1(F.max_pool2d(x, 2))
        x = torch.flatten(x, 1)
        x = self.dropout2(F.relu(self.fc1(x)))
        return F.log_softmax(self.fc2(x), dim=1)


class MnistCnn5x5(nn.Module):
    """conv - pool - relu, twice, then two linear layers; `fc1_in` None follows the others."""

    def __init__(
        self,
        channels: tuple[int, int] = (10, 20),
        *,
        kernel: int = 5,
        hidden: int = 50,
        classes: int = 10,
        fc1_in: int | None = None,
    ) -> None:
        super().__init__()
        # Unpadded convolution then a halving pool, twice: ((28 - 4) / 2 - 4) / 2 = 4.
        side = ((IMAGE - kernel + 1) // 2 - kernel + 1) // 2
        if side < 1:
            raise ValueError(f"two {kernel}x{kernel} convolutions and pools leave nothing of a {IMAGE}x{IMAGE} image")
        self.conv1 = nn.Conv2d(1, channels[0], kernel)
        self.conv2 = nn.Conv2d(channels[0], channels[1], kernel)
        self.conv2_drop = nn.Dropout2d()
        self.fc1 = nn.Linear(channels[1] * side * side if fc1_in is None else fc1_in, hidden)
        self.fc2 = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2_drop(self.conv2(x)), 2))
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        x = F.dropout(x, training=self.training)
        return F.log_softmax(self.fc2(x), dim=1)
