# SPDX-License-Identifier: Apache-2.0
"""The image models of compare.py and of models/testdata/golden/resnet.py in plain
PyTorch: torchvision, which has the residual networks, is not always at hand.
Names and shapes are torchvision's."""
import torch
from torch import nn


class Block(nn.Module):
    """A basic block, or a bottleneck with the stride in its 3x3 convolution."""

    def __init__(self, width, inner, stride, bottleneck):
        super().__init__()
        # (in, out, kernel, stride) of the convolutions
        convs = [(width, inner, 3, stride), (inner, inner, 3, 1)]
        if bottleneck:
            convs = [(width, inner, 1, 1), (inner, inner, 3, stride), (inner, 4 * inner, 1, 1)]
        self.count = len(convs)
        for i, (a, b, k, s) in enumerate(convs, 1):
            setattr(self, f"conv{i}", nn.Conv2d(a, b, k, s, k // 2, bias=False))
            setattr(self, f"bn{i}", nn.BatchNorm2d(b))
        self.relu = nn.ReLU(inplace=True)
        self.width = convs[-1][1]
        self.downsample = None
        if stride != 1 or width != self.width:
            self.downsample = nn.Sequential(nn.Conv2d(width, self.width, 1, stride, bias=False), nn.BatchNorm2d(self.width))

    def forward(self, x):
        y = x
        for i in range(1, self.count + 1):
            y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
            if i < self.count:
                y = self.relu(y)
        y += x if self.downsample is None else self.downsample(x)
        return self.relu(y)


class ResNet(nn.Module):
    """He et al. 2016: blocks of four stages."""

    def __init__(self, blocks, bottleneck, classes=1000):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        width = 64
        for i, n in enumerate(blocks):
            stage = []
            for j in range(n):
                stage.append(Block(width, 64 << i, 2 if i > 0 and j == 0 else 1, bottleneck))
                width = stage[-1].width
            setattr(self, f"layer{i + 1}", nn.Sequential(*stage))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(width, classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def resnet18(**options):
    return ResNet([2, 2, 2, 2], False, **options)


def resnet50(**options):
    return ResNet([3, 4, 6, 3], True, **options)


def cnn():
    """Four convolutions over images of 32x32."""
    def unit(a, b, stride=1):
        return nn.Sequential(nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU())
    return nn.Sequential(unit(3, 32), unit(32, 64, 2), unit(64, 128, 2), unit(128, 128),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))
