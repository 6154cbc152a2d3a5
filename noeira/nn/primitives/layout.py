"""Layers that only move elements or change the shape."""

from __future__ import annotations

from noeira.nn.core.arguments import positive
from noeira.nn.core.errors import ShapeError
from noeira.nn.core.module import Module, Width
from noeira.ops.dispatch import Array, size
from noeira.ops.layout import (
    channels_first,
    channels_last,
    permute_back,
    permute_samples,
    transpose_samples,
    upsample2x,
    upsample2x_grad,
)
from noeira.ops.shape import reshape
from noeira.runtime.staging import Shape


class Flatten(Module):
    """All axes after the first merged into one.

    Shape:
        x [B, d1, d2, ...], y [B, d1 d2 ...]; moves no data.

    vjp:
        dx = dy in x's shape. Saves the shape.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import Flatten
        >>> Flatten()(np.ones((4, 3, 2), np.float32)).shape
        (4, 6)

    Source: PyTorch: `torch.nn.Flatten`.
    """

    def check_inputs(self, *inputs: Array) -> None:
        """Refuse what has no samples."""
        if inputs[0].ndim == 0:
            raise ShapeError("expected an input of shape [B, ...], got []")

    def forward(self, x: Array) -> tuple[Array, Shape]:
        """[B, ...] -> [B, features]; saves the shape."""
        return reshape(x, (x.shape[0], size(x.shape[1:]))), x.shape

    def vjp(self, saved: Shape, grad_output: Array) -> Array:
        """[B, features] -> [B, ...]."""
        return reshape(grad_output, saved)


class ToNCHW(Module):
    """Maps with channels last to channels first.

    Shape:
        x [B, H, W, C], y [B, C, H, W].

    vjp:
        dx = dy with the channels last again. Saves nothing.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import ToNCHW
        >>> ToNCHW()(np.zeros((2, 5, 7, 3), np.float32)).shape
        (2, 3, 5, 7)

    Source: PyTorch: `x.permute(0, 3, 1, 2)`.
    """

    def gives(self, width: Width | None) -> Width | None:
        """The last axis becomes the first after the batch."""
        return (1, width[1]) if width is not None and width[0] == -1 else None

    def check_inputs(self, *inputs: Array) -> None:
        """[B, H, W, C]."""
        _check_rank(inputs[0], 4, "[B, H, W, C]")

    def forward(self, x: Array) -> tuple[Array, None]:
        """[B, H, W, C] -> [B, C, H, W]."""
        return channels_first(x), None

    def vjp(self, saved: None, grad_output: Array) -> Array:
        """[B, C, H, W] -> [B, H, W, C]."""
        return channels_last(grad_output)


class Transpose2D(Module):
    """The last two axes of each sample exchanged.

    Shape:
        x [B, R, C], y [B, C, R].

    vjp:
        dx = dy with the axes exchanged again. Saves nothing.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import Transpose2D
        >>> Transpose2D()(np.zeros((2, 5, 3), np.float32)).shape
        (2, 3, 5)

    Source: PyTorch: `x.mT`.
    """

    def check_inputs(self, *inputs: Array) -> None:
        """[B, R, C]."""
        _check_rank(inputs[0], 3, "[B, R, C]")

    def forward(self, x: Array) -> tuple[Array, None]:
        """[B, R, C] -> [B, C, R]."""
        return transpose_samples(x), None

    def vjp(self, saved: None, grad_output: Array) -> Array:
        """[B, C, R] -> [B, R, C]."""
        return transpose_samples(grad_output)


class Upsample2x(Module):
    """Maps twice as high and wide, each element repeated (nearest neighbour).

    y[n, c, i, j] = x[n, c, i // 2, j // 2]

    Shape:
        x [B, C, H, W], y [B, C, 2 H, 2 W].

    vjp:
        dx[n, c, i, j] = the sum of dy over the four copies. Saves nothing.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import Upsample2x
        >>> Upsample2x()(np.array([[[[1.0, 2.0]]]], np.float32))
        array([[[[1., 1., 2., 2.],
                 [1., 1., 2., 2.]]]], dtype=float32)

    Source: PyTorch: `torch.nn.Upsample(scale_factor=2)`.
    """

    def gives(self, width: Width | None) -> Width | None:
        """The input's channels."""
        return width if width is not None and width[0] == 1 else None

    def check_inputs(self, *inputs: Array) -> None:
        """[B, C, H, W]."""
        _check_rank(inputs[0], 4, "[B, C, H, W]")

    def forward(self, x: Array) -> tuple[Array, None]:
        """[B, C, H, W] -> [B, C, 2 H, 2 W]."""
        return upsample2x(x), None

    def vjp(self, saved: None, grad_output: Array) -> Array:
        """[B, C, 2 H, 2 W] -> [B, C, H, W]."""
        return upsample2x_grad(grad_output)


class PixelShuffle(Module):
    """Channels traded for resolution, or with `grid` a grid of tokens for their width.

    Maps, as `torch.nn.PixelShuffle`, with r = upscale_factor:
    y[n, c, i r + a, j r + b] = x[n, c r^2 + a r + b, i, j]

    Tokens (the connector of SmolVLM), which go the other way: each square of r x r tokens of a grid x grid image
    becomes one token, y[n, (i, j), (a, b, e)] = x[n, (i r + a, j r + b), e]

    Args:
        upscale_factor: r.
        grid: Side of the square grid that the tokens form; None for maps.

    Shape:
        x [B, C r^2, H, W], y [B, C, H r, W r]; tokens x [B, grid^2, E], y [B, (grid / r)^2, E r^2].

    vjp:
        dx = dy moved back. Saves the shape.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import PixelShuffle
        >>> PixelShuffle(2)(np.zeros((1, 12, 5, 7), np.float32)).shape
        (1, 3, 10, 14)
        >>> PixelShuffle(4, grid=32)(np.zeros((1, 1024, 768), np.float32)).shape
        (1, 64, 12288)

    Source: Shi et al. 2016.
    """

    def __init__(self, upscale_factor: int, *, grid: int | None = None):
        self.upscale_factor = positive(self, "upscale_factor", upscale_factor)
        self.grid = None if grid is None else positive(self, "grid", grid)
        if grid is not None and grid % upscale_factor:
            raise ValueError(f"PixelShuffle: expected a grid divisible by {upscale_factor}, got {grid}")

    def gives(self, width: Width | None) -> Width | None:
        """Channels divided by r^2, or the tokens' width times r^2."""
        square = self.upscale_factor**2
        if width is None or width[0] != (1 if self.grid is None else -1):
            return None
        return (1, width[1] // square) if self.grid is None else (-1, width[1] * square)

    def extra_repr(self) -> str:
        """The factor, and the grid of tokens."""
        return f"{self.upscale_factor}" + ("" if self.grid is None else f", grid={self.grid}")

    def check_inputs(self, *inputs: Array) -> None:
        """[B, C r^2, H, W], or [B, grid^2, E]."""
        shape, square = tuple(inputs[0].shape), self.upscale_factor**2
        if self.grid is None and (len(shape) != 4 or shape[1] % square):
            raise ShapeError(f"expected an input of shape [B, C * {square}, H, W], got {list(shape)}")
        if self.grid is not None and (len(shape) != 3 or shape[1] != self.grid**2):
            raise ShapeError(f"expected an input of shape [B, {self.grid**2}, E], got {list(shape)}")

    def _move(self, shape: Shape) -> tuple[tuple[int, ...], tuple[int, ...], Shape]:
        """How a sample is read, the order of its axes, and the output's shape."""
        r = self.upscale_factor
        if self.grid is None:
            batch, channels, height, width = (shape[0], *(int(n) for n in shape[1:]))
            parts = (channels // r**2, r, r, height, width)
            return parts, (0, 3, 1, 4, 2), (batch, channels // r**2, height * r, width * r)
        side, embed = self.grid // r, int(shape[2])
        return (side, r, side, r * embed), (0, 2, 1, 3), (shape[0], side**2, r**2 * embed)

    def forward(self, x: Array) -> tuple[Array, Shape]:
        """Move the elements; saves the shape."""
        parts, order, out = self._move(tuple(x.shape))
        return permute_samples(x, parts, order, out), tuple(x.shape)

    def vjp(self, saved: Shape, grad_output: Array) -> Array:
        """Move them back."""
        parts, order, _ = self._move(saved)
        return permute_back(grad_output, parts, order, saved)


def _check_rank(x: Array, rank: int, pattern: str) -> None:
    if len(x.shape) != rank:
        raise ShapeError(f"expected an input of shape {pattern}, got {list(x.shape)}")
