"""ResNet v1.5 as torchvision has it: the stride of a bottleneck is in its 3x3 convolution, ReLUs are in place."""

import torch
from torch import Tensor, nn


def _conv3x3(inputs: int, outputs: int, *, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, groups=groups, bias=False)


def _conv1x1(inputs: int, outputs: int, *, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and the identity beside them."""

    expansion = 1

    def __init__(self, inputs: int, planes: int, *, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = _conv3x3(inputs, planes, stride=stride)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = _conv3x3(planes, planes)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.conv2(out)  # a name for each: what a layer has read is free when it is done, as in torchvision
        out = self.bn2(out)
        identity = x if self.downsample is None else self.downsample(x)
        out += identity
        return self.relu(out)  # type: ignore[no-any-return]


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions and the identity beside them."""

    expansion = 4

    def __init__(
        self, inputs: int, planes: int, *, stride: int, downsample: nn.Module | None, groups: int, base_width: int
    ) -> None:
        super().__init__()
        width = int(planes * (base_width / 64.0)) * groups
        self.conv1 = _conv1x1(inputs, width)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv3x3(width, width, stride=stride, groups=groups)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _conv1x1(width, planes * self.expansion)
        self.bn3 = nn.BatchNorm2d(planes * self.expansion)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.conv2(out)  # a name for each: what a layer has read is free when it is done, as in torchvision
        out = self.relu(self.bn2(out))
        out = self.conv3(out)
        out = self.bn3(out)
        identity = x if self.downsample is None else self.downsample(x)
        out += identity
        return self.relu(out)  # type: ignore[no-any-return]


class ResNet(nn.Module):
    """`layers` blocks in each of the four stages; `width_per_group` and `groups` make the wide and ResNeXt forms."""

    def __init__(
        self,
        layers: tuple[int, int, int, int] = (3, 4, 6, 3),
        *,
        bottleneck: bool = True,
        num_classes: int = 1000,
        groups: int = 1,
        width_per_group: int = 64,
    ) -> None:
        super().__init__()
        if not bottleneck and (groups != 1 or width_per_group != 64):
            raise ValueError("groups and width_per_group need bottleneck=true")
        self.bottleneck, self.groups, self.base_width = bottleneck, groups, width_per_group
        self.inplanes = 64
        self.conv1 = nn.Conv2d(3, self.inplanes, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(self.inplanes)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = self._stage(64, layers[0], stride=1)
        self.layer2 = self._stage(128, layers[1], stride=2)
        self.layer3 = self._stage(256, layers[2], stride=2)
        self.layer4 = self._stage(512, layers[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(self.inplanes, num_classes)

    def _stage(self, planes: int, blocks: int, *, stride: int) -> nn.Sequential:
        outputs = planes * (Bottleneck.expansion if self.bottleneck else BasicBlock.expansion)
        downsample = None
        if stride != 1 or self.inplanes != outputs:
            downsample = nn.Sequential(
                _conv1x1(self.inplanes, outputs, stride=stride),
                nn.BatchNorm2d(outputs),
            )
        first = self._block(self.inplanes, planes, stride=stride, downsample=downsample)
        self.inplanes = outputs
        return nn.Sequential(
            first, *(self._block(outputs, planes, stride=1, downsample=None) for _ in range(1, blocks))
        )

    def _block(self, inputs: int, planes: int, *, stride: int, downsample: nn.Module | None) -> nn.Module:
        if not self.bottleneck:
            return BasicBlock(inputs, planes, stride=stride, downsample=downsample)
        return Bottleneck(
            inputs, planes, stride=stride, downsample=downsample, groups=self.groups, base_width=self.base_width
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)  # one name for all of them: what a stage has read is free when it is done
        x = torch.flatten(self.avgpool(x), 1)
        return self.fc(x)  # type: ignore[no-any-return]
