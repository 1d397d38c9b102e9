"""GoogLeNet as torchvision has it: batch norm after every convolution, 3x3 kernels where the paper has 5x5."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Inputs, then the widths of: 1x1 | 1x1 reduction, 3x3 | 1x1 reduction, second 3x3 | 1x1 after the pool.
_Widths = tuple[int, int, int, int, int, int, int]


class GoogLeNetOutputs(NamedTuple):
    """What training returns with side classifiers, under torchvision's names."""

    logits: Tensor
    aux_logits2: Tensor
    aux_logits1: Tensor


class BasicConv2d(nn.Module):
    def __init__(self, inputs: int, outputs: int, *, kernel: int = 1, stride: int = 1, padding: int = 0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding, bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)), inplace=True)


class Inception(nn.Module):
    """Four branches over the same input, joined along the channels."""

    def __init__(self, widths: _Widths) -> None:
        super().__init__()
        inputs, one, reduce3, three, reduce5, five, pooled = widths
        self.branch1 = BasicConv2d(inputs, one)
        self.branch2 = nn.Sequential(BasicConv2d(inputs, reduce3), BasicConv2d(reduce3, three, kernel=3, padding=1))
        self.branch3 = nn.Sequential(BasicConv2d(inputs, reduce5), BasicConv2d(reduce5, five, kernel=3, padding=1))
        self.branch4 = nn.Sequential(
            nn.MaxPool2d(kernel_size=3, stride=1, padding=1, ceil_mode=True), BasicConv2d(inputs, pooled)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], 1)


class InceptionAux(nn.Module):
    """A classifier on the side, for training only."""

    def __init__(self, inputs: int, num_classes: int, *, dropout: float) -> None:
        super().__init__()
        self.conv = BasicConv2d(inputs, 128)
        self.fc1 = nn.Linear(2048, 1024)
        self.fc2 = nn.Linear(1024, num_classes)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(F.adaptive_avg_pool2d(x, (4, 4)))
        x = F.relu(self.fc1(torch.flatten(x, 1)), inplace=True)
        return self.fc2(self.dropout(x))  # type: ignore[no-any-return]


class GoogLeNet(nn.Module):
    """With `aux_logits`, training returns the logits of the side classifiers too."""

    def __init__(
        self,
        num_classes: int = 1000,
        *,
        aux_logits: bool = False,
        dropout: float = 0.2,
        dropout_aux: float = 0.7,
    ) -> None:
        super().__init__()
        self.conv1 = BasicConv2d(3, 64, kernel=7, stride=2, padding=3)
        self.maxpool1 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.conv2 = BasicConv2d(64, 64)
        self.conv3 = BasicConv2d(64, 192, kernel=3, padding=1)
        self.maxpool2 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.inception3a = Inception((192, 64, 96, 128, 16, 32, 32))
        self.inception3b = Inception((256, 128, 128, 192, 32, 96, 64))
        self.maxpool3 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.inception4a = Inception((480, 192, 96, 208, 16, 48, 64))
        self.inception4b = Inception((512, 160, 112, 224, 24, 64, 64))
        self.inception4c = Inception((512, 128, 128, 256, 24, 64, 64))
        self.inception4d = Inception((512, 112, 144, 288, 32, 64, 64))
        self.inception4e = Inception((528, 256, 160, 320, 32, 128, 128))
        self.maxpool4 = nn.MaxPool2d(2, stride=2, ceil_mode=True)
        self.inception5a = Inception((832, 256, 160, 320, 32, 128, 128))
        self.inception5b = Inception((832, 384, 192, 384, 48, 128, 128))
        self.aux1 = InceptionAux(512, num_classes, dropout=dropout_aux) if aux_logits else None
        self.aux2 = InceptionAux(528, num_classes, dropout=dropout_aux) if aux_logits else None
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(1024, num_classes)

    def forward(self, x: Tensor) -> Tensor | GoogLeNetOutputs:
        layer: nn.Module
        # One name for all of them: what a layer has read is free when it is done, as in torchvision.
        for layer in (
            self.conv1,
            self.maxpool1,
            self.conv2,
            self.conv3,
            self.maxpool2,
            self.inception3a,
            self.inception3b,
            self.maxpool3,
            self.inception4a,
        ):
            x = layer(x)
        aux1 = self.aux1(x) if self.aux1 is not None and self.training else None
        for layer in (self.inception4b, self.inception4c, self.inception4d):
            x = layer(x)
        aux2 = self.aux2(x) if self.aux2 is not None and self.training else None
        for layer in (self.inception4e, self.maxpool4, self.inception5a, self.inception5b, self.avgpool):
            x = layer(x)
        x = torch.flatten(x, 1)
        logits: Tensor = self.fc(self.dropout(x))
        return logits if aux1 is None or aux2 is None else GoogLeNetOutputs(logits, aux2, aux1)
