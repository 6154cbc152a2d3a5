"""A small convolutional net on 3 x 32 x 32 images: six 3x3 conv-BN-ReLU with pooling, batch 100, Adam."""

from __future__ import annotations

from typing import Any

from bench.case import Case
from bench.training import Task, training_case
from noeira.nn import AdaptiveAvgPool2D, BatchNorm2DAct, Conv2D, Flatten, Linear, MaxPool2D, Module, Sequential

CHANNELS, SIDE, CLASSES, BATCH = (32, 32, 64, 64, 128, 128), 32, 10, 100


def net() -> Sequential:
    """The model in noeira."""
    layers: list[Module] = []
    before = 3
    for index, channels in enumerate(CHANNELS):
        layers += [Conv2D(before, channels, 3, padding=1, bias=False), BatchNorm2DAct(channels, "relu")]
        if index % 2:
            layers.append(MaxPool2D(2))
        before = channels
    return Sequential(*layers, AdaptiveAvgPool2D(1), Flatten(), Linear(before, CLASSES))


def torch_net() -> Any:
    """The model in PyTorch."""
    from torch import nn

    layers: list[Any] = []
    before = 3
    for index, channels in enumerate(CHANNELS):
        layers += [nn.Conv2d(before, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
        if index % 2:
            layers.append(nn.MaxPool2d(2))
        before = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, CLASSES))


def _flops() -> float:
    """Forward, input gradient (all but the first) and weight gradient of every convolution."""
    total, before = 0.0, 3
    for index, channels in enumerate(CHANNELS):
        side = SIDE >> (index // 2)
        total += 2 * BATCH * side * side * 9 * before * channels * (3 if index else 2)
        before = channels
    return total + 6 * BATCH * before * CLASSES


def cases() -> list[Case]:
    """One training step."""
    task = Task(net, torch_net, (3, SIDE, SIDE), CLASSES, BATCH)
    # Adam behind batch norms amplifies rounding: PyTorch's own two Adams are 2e-4 apart after these steps.
    return [training_case("conv6", task, flops=_flops(), tolerance=1e-3)]
