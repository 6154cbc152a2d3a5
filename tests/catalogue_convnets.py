"""Rows of convolutional pieces and nets."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from noeira import nn
from tests.catalogue import KINKS, Mistake, Row, Sample, _zeros

Params = dict[str, torch.Tensor]


def _conv(params: Params, name: str, x: torch.Tensor, stride: int = 1, padding: int = 1) -> torch.Tensor:
    return F.conv2d(x, params[f"{name}.weight"], params.get(f"{name}.bias"), stride, padding)


def _norm(params: Params, name: str, x: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, None, None, params[f"{name}.weight"], params[f"{name}.bias"], training=True)


def _conv_norm_relu(params: Params, name: str, x: torch.Tensor) -> torch.Tensor:
    return F.relu(_norm(params, f"{name}1", _conv(params, f"{name}0", x)))


def _block(params: Params, name: str, x: torch.Tensor) -> torch.Tensor:
    """As torchvision's: the stride shows in whether there is a projection."""
    projected = f"{name}downsample.0.weight" in params
    stride = 2 if projected and not name.startswith("wide") else 1
    h = F.relu(_norm(params, f"{name}bn1", _conv(params, f"{name}conv1", x, stride)))
    h = _norm(params, f"{name}bn2", _conv(params, f"{name}conv2", h))
    if projected:
        x = _norm(params, f"{name}downsample.1", _conv(params, f"{name}downsample.0", x, stride, 0))
    return F.relu(h + x)


def _stages(params: Params, name: str, x: torch.Tensor, counts: tuple[int, ...]) -> torch.Tensor:
    index = 0
    for count in counts:
        for _ in range(count):
            x = _conv_norm_relu(params, f"{name}{index}.", x)
            index += 1
        x = F.max_pool2d(x, 2)
        index += 1
    return x


def _conv_net(net: nn.ConvNet) -> Any:
    counts = tuple(len(stage) for stage in net.config.stages)

    def twin(params: Params, x: torch.Tensor) -> torch.Tensor:
        h = _stages(params, "features.", x, counts).flatten(1)
        h = F.relu(h @ params["head.2.weight"] + params["head.2.bias"])
        return h @ params["head.4.weight"] + params["head.4.bias"]

    return twin


def _resnet(net: nn.ResNet) -> Any:
    def twin(params: Params, x: torch.Tensor) -> torch.Tensor:
        large = net.maxpool is not None
        x = F.relu(_norm(params, "bn1", _conv(params, "conv1", x, *((2, 3) if large else (1, 1)))))
        if large:
            x = F.max_pool2d(x, 3, 2, 1)
        for stage, count in enumerate(net.config.blocks):
            for index in range(count):
                x = _block(params, f"layer{stage + 1}.{index}.", x)
        return x.mean(dim=(2, 3)) @ params["fc.weight"] + params["fc.bias"]

    return twin


def _widened(params: Params, x: torch.Tensor) -> torch.Tensor:
    return _block({f"wide{name}": value for name, value in params.items()}, "wide", x)


MAPS = (
    Sample("square", (3, 5, 3), ((4, 3, 6, 6),), compiled=False),
    Sample("odd", (2, 3, 3), ((3, 2, 5, 7),), compiled=False),
)
"""Compiled as parts of the nets below."""

ROWS: tuple[Row, ...] = (
    Row("Conv2DReLU", nn.Conv2DReLU, lambda *a: nn.Conv2DReLU(*a, padding=1),
        lambda _: lambda params, x: F.relu(_conv(params, "0", x)), ("chain",),
        (*MAPS, Sample("empty batch", (3, 4, 3), ((0, 3, 4, 4),), compiled=False)), step=KINKS),
    Row("Conv2DBatchNorm", nn.Conv2DBatchNorm, lambda *a: nn.Conv2DBatchNorm(*a, stride=2, padding=1),
        lambda _: lambda params, x: _norm(params, "1", _conv(params, "0", x, 2)), ("chain",), MAPS),
    Row("Conv2DBatchNormReLU", nn.Conv2DBatchNormReLU, lambda *a: nn.Conv2DBatchNormReLU(*a, padding=1),
        lambda _: lambda params, x: _conv_norm_relu(params, "", x), ("chain",), MAPS, step=KINKS,
        mistakes=(Mistake("other channels", lambda: nn.Conv2DBatchNormReLU(3, 4, 3)(_zeros(2, 2, 5, 5)),
                          r"expected an input of shape \[B, 3, H, W\], got \[2, 2, 5, 5\]"),
                  Mistake("a single number a channel", lambda: nn.Conv2DBatchNormReLU(3, 4, 3)(_zeros(1, 3, 3, 3)),
                          r"module '1' .*more than one value"),)),
    Row("BasicBlock", nn.BasicBlock, nn.BasicBlock, lambda _: lambda params, x: _block(params, "", x), ("chain",),
        (Sample("identity", (4, 4), ((3, 4, 5, 4),), compiled=False), Sample("stride", (3, 5, 2), ((4, 3, 6, 7),))), step=KINKS),
    Row("BasicBlock, wider", nn.BasicBlock, nn.BasicBlock, lambda _: _widened, ("chain",),
        (Sample("projection of stride 1", (3, 5), ((2, 3, 4, 4),), compiled=False),), step=KINKS),
    Row("ConvNet", nn.ConvNet, lambda *a: nn.ConvNet(*a, stages=((3, 4), (5,)), hidden=7), _conv_net, ("chain",),
        (Sample("squares", (2, 9, 6), ((5, 2, 9, 9),)), Sample("oblong", (1, (8, 13), 3), ((3, 1, 8, 13),), compiled=False)), step=KINKS,
        mistakes=(Mistake("too small", lambda: nn.ConvNet(1, 7), r"ConvNet: expected an image that can be halved 3 "
                          r"times, got \(7, 7\)", ValueError),
                  Mistake("an empty stage", lambda: nn.ConvNet(1, 8, stages=((4,), ())),
                          r"expected stages of at least one convolution each, got \(\(4,\), \(\)\)", ValueError),
                  Mistake("another size", lambda: nn.ConvNet(1, 8, stages=((4,),))(_zeros(2, 1, 6, 6)),
                          r"module 'head.2' .*expected an input of shape \[batch, \.\.\., 64\], got \[2, 36\]"))),
    Row("CIFARFeatureNet", nn.CIFARFeatureNet, nn.CIFARFeatureNet,
        lambda _: lambda params, x: _stages(params, "", x, (1, 2)).mean(dim=(2, 3)), ("chain",),
        (Sample("two stages", (2, ((3,), (4, 4))), ((3, 2, 8, 9),), compiled=False),), step=KINKS),
    Row("ResNet, small images", nn.ResNet,
        lambda *a: nn.ResNet(*a, blocks=(1, 2), widths=(4, 6), stem="cifar"), _resnet, ("chain",),
        (Sample("two stages", (5,), ((3, 3, 8, 7),)),), step=KINKS,
        mistakes=(Mistake("a stage without a width", lambda: nn.ResNet(10, blocks=(2, 2), widths=(8,)),
                          r"ResNet: expected a number of blocks and a width for every stage, got blocks=\(2, 2\) and "
                          r"widths=\(8,\)", ValueError),
                  Mistake("another stem", lambda: nn.ResNet(10, stem="mnist"),
                          r"ResNet: expected stem 'imagenet' or 'cifar', got 'mnist'", ValueError))),
    Row("ResNet, large images", nn.ResNet,
        lambda *a: nn.ResNet(*a, in_channels=1, blocks=(1, 1, 1), widths=(3, 4, 5)), _resnet, ("chain",),
        (Sample("three stages", (4,), ((3, 1, 33, 32),), compiled=False),), step=KINKS),
)  # fmt: skip
