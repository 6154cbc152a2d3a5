"""Residual convolutional nets: ResNet-18 and -34 under torchvision's names, and ResNet-20 for small images."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

from noeira.nn.combinators import Sequential
from noeira.nn.core.arguments import positives
from noeira.nn.core.module import Module, Width
from noeira.nn.models.conv import Conv2DBatchNorm
from noeira.nn.primitives import (
    AdaptiveAvgPool2D,
    BatchNorm2D,
    BatchNorm2DAct,
    Conv2D,
    Flatten,
    Linear,
    MaxPool2D,
    ReLU,
)
from noeira.ops.dispatch import Array


class BasicBlock(Module):
    """Two 3x3 convolutions with BatchNorm, added to their input, or to a projection of it where shapes change.

    y = max(0, norm_2(conv_2(max(0, norm_1(conv_1(x))))) + shortcut(x))

    The shortcut is the identity; with a stride, or another number of channels, a 1x1 convolution and BatchNorm.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        stride: Of the first convolution and of the projection.
        bias: Whether the convolutions have biases.
        frozen: See `BatchNorm2D`.

    Shape:
        x [B, in_channels, H, W], y [B, out_channels, (H - 1) // stride + 1, (W - 1) // stride + 1].

    vjp:
        dz = dy where y > 0; dx = conv_1.vjp(norm_1.vjp(conv_2.vjp(norm_2.vjp(dz)))) + shortcut.vjp(dz).
        Saves y and what the parts save.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import BasicBlock
        >>> BasicBlock(4, 8, stride=2)(np.ones((2, 4, 6, 6), np.float32)).shape
        (2, 8, 3, 3)

    Source: He et al. 2015. torchvision: `BasicBlock`.
    """

    def __init__(
        self, in_channels: int, out_channels: int, stride: int = 1, *, bias: bool = False, frozen: bool = False
    ):
        self.conv1 = Conv2D(in_channels, out_channels, 3, stride=stride, padding=1, bias=bias)
        self.bn1 = BatchNorm2DAct(out_channels, "relu", frozen=frozen)
        self.conv2 = Conv2D(out_channels, out_channels, 3, padding=1, bias=bias)
        self.bn2 = BatchNorm2D(out_channels, frozen=frozen)
        self.downsample: Module | None = None
        if stride != 1 or in_channels != out_channels:
            self.downsample = Conv2DBatchNorm(in_channels, out_channels, 1, stride=stride, bias=bias, frozen=frozen)
        self.relu = ReLU()

    def expects(self) -> Width | None:
        """`in_channels` on axis 1."""
        return self.conv1.expects()

    def gives(self, width: Width | None) -> Width | None:
        """`out_channels` on axis 1."""
        return self.bn2.expects()

    def forward(self, x: Array) -> tuple[Array, Any]:
        """X -> y; saves what the parts save."""
        saved, h = [], x
        for module in self._branch():
            h, kept = module.forward(h)
            saved.append(kept)
        shortcut, kept_shortcut = (x, None) if self.downsample is None else self.downsample.forward(x)
        y, kept_relu = self.relu.forward(h + shortcut)
        return y, (tuple(saved), kept_shortcut, kept_relu)

    def vjp(self, saved: Any, grad_output: Array) -> Array:
        """Dy -> dx."""
        kept_branch, kept_shortcut, kept_relu = saved
        dz = self.relu.vjp(kept_relu, grad_output)
        grad = dz
        for module, kept in zip(reversed(self._branch()), reversed(kept_branch), strict=True):
            grad = module.vjp(kept, grad)
        return grad + (dz if self.downsample is None else self.downsample.vjp(kept_shortcut, dz))

    def _branch(self) -> tuple[Module, ...]:
        return self.conv1, self.bn1, self.conv2, self.bn2


@dataclass(frozen=True)
class ResNetConfig:
    """Sizes and options of a `ResNet`.

    Args:
        num_classes: Number of classes.
        in_channels: Channels of an image.
        blocks: Blocks of each stage; all stages but the first halve the map.
        widths: Channels of each stage.
        stem: "imagenet" for a 7x7 convolution of stride 2 and max pooling, "cifar" for one 3x3 convolution.
        bias: Whether the convolutions have biases, which change no output while training.
        frozen: BatchNorm uses its running statistics while training as well.
    """

    num_classes: int = 1000
    in_channels: int = 3
    blocks: tuple[int, ...] = (2, 2, 2, 2)
    widths: tuple[int, ...] = (64, 128, 256, 512)
    stem: str = "imagenet"
    bias: bool = False
    frozen: bool = False

    @staticmethod
    def resnet18(**changes: Any) -> ResNetConfig:
        """ResNet-18: 11,689,512 parameters."""
        return ResNetConfig(**changes)

    @staticmethod
    def resnet34(**changes: Any) -> ResNetConfig:
        """ResNet-34: 21,797,672 parameters."""
        return ResNetConfig(**{"blocks": (3, 4, 6, 3), **changes})

    @staticmethod
    def resnet20(**changes: Any) -> ResNetConfig:
        """ResNet-20 for 32 x 32 images: 273,258 parameters, biases of the convolutions among them."""
        return ResNetConfig(
            **{
                "num_classes": 10, "blocks": (3, 3, 3), "widths": (16, 32, 64), "stem": "cifar", "bias": True,
                **changes,
            }
        )  # fmt: skip


class ResNet(Module):
    """A stem, stages of residual blocks, the mean over positions, and a linear map.

    logits = W mean over positions of stage_n(... stage_1(stem(x))) + b

    Parameters and statistics have torchvision's names: conv1, bn1, layer1.0.conv1, ..., layer2.0.downsample.0, fc.

    Args:
        num_classes: Number of classes; see `ResNetConfig` for all options.
        options: The others of `ResNetConfig`.

    Shape:
        x [B, in_channels, H, W], logits [B, num_classes].

    vjp:
        Those of the parts in reverse order. Saves what the parts save.

    Raises:
        ValueError: Blocks and widths are not alike in number, or the stem has no such name.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import ResNet, ResNetConfig
        >>> ResNet.from_config(ResNetConfig.resnet18()).num_parameters
        11689512
        >>> ResNet(10, blocks=(1, 1), widths=(4, 8), stem="cifar")(np.ones((2, 3, 8, 8), np.float32)).shape
        (2, 10)

    Source: He et al. 2015. torchvision: `resnet18`, `resnet34`.
    """

    def __init__(self, num_classes: int = 1000, **options: Any):
        self.config = config = ResNetConfig(num_classes, **options)
        positives(self, num_classes=num_classes, in_channels=config.in_channels)
        if not config.blocks or len(config.blocks) != len(config.widths):
            raise ValueError(
                "ResNet: expected a number of blocks and a width for every stage, "
                f"got blocks={config.blocks} and widths={config.widths}"
            )
        if config.stem not in ("imagenet", "cifar"):
            raise ValueError(f"ResNet: expected stem 'imagenet' or 'cifar', got {config.stem!r}")
        positives(self, **{f"blocks[{i}]": count for i, count in enumerate(config.blocks)})
        positives(self, **{f"widths[{i}]": width for i, width in enumerate(config.widths)})
        large, width = config.stem == "imagenet", config.widths[0]
        kernel, stride, padding = (7, 2, 3) if large else (3, 1, 1)
        self.conv1 = Conv2D(config.in_channels, width, kernel, stride=stride, padding=padding, bias=config.bias)
        self.bn1 = BatchNorm2DAct(width, "relu", frozen=config.frozen)
        self.maxpool = MaxPool2D(3, stride=2, padding=1) if large else None
        self._stages: list[str] = []
        for stage, (count, channels) in enumerate(zip(config.blocks, config.widths, strict=True)):
            blocks = []
            for index in range(count):
                step = 2 if stage and not index else 1
                blocks.append(BasicBlock(width, channels, step, bias=config.bias, frozen=config.frozen))
                width = channels
            self._stages.append(f"layer{stage + 1}")
            setattr(self, self._stages[-1], Sequential(*blocks))
        self.avgpool, self.flatten = AdaptiveAvgPool2D(1), Flatten()
        self.fc = Linear(width, num_classes)

    @classmethod
    def from_config(cls, config: ResNetConfig) -> Self:
        """The net of a configuration."""
        return cls(**asdict(config))

    def expects(self) -> Width | None:
        """`in_channels` on axis 1."""
        return self.conv1.expects()

    def gives(self, width: Width | None) -> Width | None:
        """`num_classes` on the last axis."""
        return -1, self.config.num_classes

    def extra_repr(self) -> str:
        """The sizes."""
        c = self.config
        return f"{c.num_classes}, in_channels={c.in_channels}, blocks={c.blocks}, widths={c.widths}, stem={c.stem!r}"

    def forward(self, x: Array) -> tuple[Array, Any]:
        """X [B, C, H, W] -> logits; saves what the parts save."""
        saved = []
        for module in self._chain():
            x, kept = module.forward(x)
            saved.append(kept)
        return x, tuple(saved)

    def vjp(self, saved: Any, grad_output: Array) -> Array:
        """Dlogits -> dx."""
        for module, kept in zip(reversed(self._chain()), reversed(saved), strict=True):
            grad_output = module.vjp(kept, grad_output)
        return grad_output

    def _chain(self) -> tuple[Module, ...]:
        stem = (self.conv1, self.bn1) if self.maxpool is None else (self.conv1, self.bn1, self.maxpool)
        return *stem, *(getattr(self, name) for name in self._stages), self.avgpool, self.flatten, self.fc
