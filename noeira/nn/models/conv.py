"""Convolutional pieces and nets: a convolution with what follows it, stacks of them, and a classifier on top."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from noeira.nn.combinators import Sequential
from noeira.nn.core.arguments import positives, sizes
from noeira.nn.core.module import Module, Width
from noeira.nn.primitives import (
    AdaptiveAvgPool2D,
    BatchNorm2D,
    BatchNorm2DAct,
    Conv2D,
    Dropout,
    Flatten,
    Linear,
    LinearReLU,
    MaxPool2D,
    ReLU,
)
from noeira.ops.dispatch import Array


class Conv2DReLU(Sequential):
    """A convolution and a ReLU.

    y = max(0, conv(x))

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        kernel_size: Rows and columns of the kernel.
        options: The others of `Conv2D`: stride, padding, ...

    Shape:
        As `Conv2D`.

    vjp:
        dx = conv.vjp(dy where y > 0). Saves x and y.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import Conv2DReLU
        >>> Conv2DReLU(3, 8, 3, padding=1)(np.ones((2, 3, 6, 6), np.float32)).shape
        (2, 8, 6, 6)

    Source: PyTorch: `torch.nn.Conv2d`, then `torch.nn.ReLU`.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int | tuple[int, int], **options: Any):
        super().__init__(Conv2D(in_channels, out_channels, kernel_size, **options), ReLU())


class Conv2DBatchNorm(Sequential):
    """A convolution without a bias, and BatchNorm, whose shift takes the bias's place.

    y = norm(conv(x))

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        kernel_size: Rows and columns of the kernel.
        bias: Whether the convolution has a bias all the same; it changes no output while training.
        frozen: See `BatchNorm2D`.
        options: The others of `Conv2D`: stride, padding, ...

    Shape:
        As `Conv2D`.

    vjp:
        dx = conv.vjp(norm.vjp(dy)). Saves the inputs of both, and the statistics.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import Conv2DBatchNorm
        >>> Conv2DBatchNorm(3, 8, 3, stride=2, padding=1)(np.ones((2, 3, 6, 6), np.float32)).shape
        (2, 8, 3, 3)

    Source: Ioffe and Szegedy 2015. PyTorch: `torch.nn.Conv2d`, then `torch.nn.BatchNorm2d`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        *,
        bias: bool = False,
        frozen: bool = False,
        **options: Any,
    ):
        super().__init__(
            Conv2D(in_channels, out_channels, kernel_size, bias=bias, **options),
            BatchNorm2D(out_channels, frozen=frozen),
        )


class Conv2DBatchNormReLU(Sequential):
    """A convolution without a bias, BatchNorm and ReLU; the last two run as one kernel.

    y = max(0, norm(conv(x)))

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        kernel_size: Rows and columns of the kernel.
        bias: Whether the convolution has a bias all the same.
        frozen: See `BatchNorm2D`.
        options: The others of `Conv2D`: stride, padding, ...

    Shape:
        As `Conv2D`.

    vjp:
        dx = conv.vjp(norm.vjp(dy where y > 0)). Saves the inputs of both, and the statistics.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import Conv2DBatchNormReLU
        >>> Conv2DBatchNormReLU(3, 8, 3, padding=1)(np.ones((2, 3, 6, 6), np.float32)).shape
        (2, 8, 6, 6)

    Source: Ioffe and Szegedy 2015. PyTorch: `torch.nn.Conv2d`, `torch.nn.BatchNorm2d`, `torch.nn.ReLU`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        *,
        bias: bool = False,
        frozen: bool = False,
        **options: Any,
    ):
        super().__init__(
            Conv2D(in_channels, out_channels, kernel_size, bias=bias, **options),
            BatchNorm2DAct(out_channels, "relu", frozen=frozen),
        )


@dataclass(frozen=True)
class ConvNetConfig:
    """Sizes of a `ConvNet`.

    Args:
        in_channels: Channels of an image.
        image_size: Rows and columns of an image.
        num_classes: Number of classes.
        stages: Output channels of each convolution, stage by stage; a stage ends in max pooling by 2.
        hidden: Width of the layer before the last.
        dropout: Of the flattened features and of the hidden layer.
    """

    in_channels: int = 3
    image_size: tuple[int, int] = (32, 32)
    num_classes: int = 10
    stages: tuple[tuple[int, ...], ...] = ((32, 32), (64, 64), (128, 128))
    hidden: int = 128
    dropout: float = 0.0

    @staticmethod
    def cifar10(**changes: Any) -> ConvNetConfig:
        """Six convolutions for 3 x 32 x 32 images."""
        return ConvNetConfig(**changes)

    @staticmethod
    def mnist(**changes: Any) -> ConvNetConfig:
        """Four convolutions for 1 x 28 x 28 images."""
        return ConvNetConfig(
            **{"in_channels": 1, "image_size": (28, 28), "stages": ((32, 32), (64, 64)), "dropout": 0.25, **changes}
        )


class ConvNet(Module):
    """3x3 convolutions with BatchNorm and ReLU, max pooling after each stage, and two linear maps.

    logits = W_2 dropout(max(0, W_1 dropout(flatten(features(x))) + b_1)) + b_2

    Args:
        in_channels: Channels of an image; see `ConvNetConfig` for all options.
        image_size: Rows and columns of an image.
        num_classes: Number of classes.
        options: The others of `ConvNetConfig`.

    Shape:
        x [B, in_channels, H, W], logits [B, num_classes].

    vjp:
        Those of the parts in reverse order. Saves what the parts save.

    Raises:
        ValueError: A stage has no convolution, or there are more stages than the image can be halved.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import ConvNet
        >>> ConvNet(1, (8, 8), 10, stages=((4,), (8,)), hidden=16)(np.ones((2, 1, 8, 8), np.float32)).shape
        (2, 10)

    Source: Simonyan and Zisserman 2014, with BatchNorm.
    """

    def __init__(
        self,
        in_channels: int = 3,
        image_size: int | tuple[int, int] = (32, 32),
        num_classes: int = 10,
        **options: Any,
    ):
        in_channels, num_classes = positives(self, in_channels=in_channels, num_classes=num_classes)
        height, width = sizes(self, "image_size", image_size, 2)
        self.config = ConvNetConfig(in_channels, (height, width), num_classes, **options)
        config = self.config
        positives(self, hidden=config.hidden)
        for _ in config.stages:
            height, width = height // 2, width // 2
        if not height or not width:
            raise ValueError(
                f"ConvNet: expected an image that can be halved {len(config.stages)} times, got {config.image_size}"
            )
        self.features = conv_stages(in_channels, config.stages)
        self.head = Sequential(
            Flatten(),
            Dropout(config.dropout),
            LinearReLU(config.stages[-1][-1] * height * width, config.hidden),
            Dropout(config.dropout),
            Linear(config.hidden, num_classes),
        )

    @classmethod
    def from_config(cls, config: ConvNetConfig) -> Self:
        """The net of a configuration."""
        return cls(**asdict(config))

    def expects(self) -> Width | None:
        """`in_channels` on axis 1."""
        return 1, self.config.in_channels

    def gives(self, width: Width | None) -> Width | None:
        """`num_classes` on the last axis."""
        return -1, self.config.num_classes

    def extra_repr(self) -> str:
        """The sizes."""
        c = self.config
        return f"{c.in_channels}, {c.image_size}, {c.num_classes}, stages={c.stages}, hidden={c.hidden}"

    def forward(self, x: Array) -> tuple[Array, Any]:
        """X [B, C, H, W] -> logits; saves what the parts save."""
        h, saved_features = self.features.forward(x)
        y, saved_head = self.head.forward(h)
        return y, (saved_features, saved_head)

    def vjp(self, saved: Any, grad_output: Array) -> Array:
        """Dlogits -> dx."""
        saved_features, saved_head = saved
        return self.features.vjp(saved_features, self.head.vjp(saved_head, grad_output))


class CIFARFeatureNet(Sequential):
    """A small trunk that turns an image into a vector: `ConvNet`'s convolutions, then the mean over positions.

    y = mean over positions of features(x)

    Args:
        in_channels: Channels of an image.
        stages: Output channels of each convolution, stage by stage; a stage ends in max pooling by 2.

    Shape:
        x [B, in_channels, H, W], y [B, last of the output channels].

    vjp:
        Those of the parts in reverse order. Saves what the parts save.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import CIFARFeatureNet
        >>> CIFARFeatureNet(3, ((4, 4), (8, 8)))(np.ones((2, 3, 8, 8), np.float32)).shape
        (2, 8)

    Source: Lin et al. 2013 (mean over positions in place of flattening).
    """

    def __init__(self, in_channels: int = 3, stages: Sequence[Sequence[int]] = ConvNetConfig.stages):
        super().__init__(*conv_stages(in_channels, stages), AdaptiveAvgPool2D(1), Flatten())


def conv_stages(in_channels: int, stages: Sequence[Sequence[int]]) -> Sequential:
    """3x3 convolutions with BatchNorm and ReLU, and max pooling by 2 after every stage.

    Raises:
        ValueError: There is no stage, or one without a convolution.
    """
    if not stages or not all(stages):
        raise ValueError(f"expected stages of at least one convolution each, got {stages!r}")
    layers: list[Module] = []
    for stage in stages:
        for channels in stage:
            layers.append(Conv2DBatchNormReLU(in_channels, channels, 3, padding=1))
            in_channels = channels
        layers.append(MaxPool2D(2))
    return Sequential(*layers)
