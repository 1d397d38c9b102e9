"""VGG as torchvision has it: 3x3 convolutions in five stages, ReLUs in place, batch norm on request."""

import torch
from torch import Tensor, nn


class VGG(nn.Module):
    """`convs` convolutions in each stage, of `widths` channels; every stage ends in a halving pool."""

    def __init__(
        self,
        convs: tuple[int, ...] = (2, 2, 3, 3, 3),
        *,
        widths: tuple[int, ...] = (64, 128, 256, 512, 512),
        hidden: int = 4096,
        num_classes: int = 1000,
        batch_norm: bool = False,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        if len(convs) != len(widths):
            raise ValueError(f"convs names {len(convs)} stages, widths {len(widths)}")
        layers: list[nn.Module] = []
        channels = 3
        for count, width in zip(convs, widths, strict=True):
            for _ in range(count):
                layers.append(nn.Conv2d(channels, width, kernel_size=3, padding=1))
                layers += [nn.BatchNorm2d(width)] if batch_norm else []
                layers.append(nn.ReLU(inplace=True))
                channels = width
            layers.append(nn.MaxPool2d(kernel_size=2, stride=2))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((7, 7))
        self.classifier = nn.Sequential(
            nn.Linear(channels * 7 * 7, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(hidden, num_classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.avgpool(self.features(x))
        return self.classifier(torch.flatten(x, 1))  # type: ignore[no-any-return]
