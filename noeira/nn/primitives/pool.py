"""Pooling layers."""

from __future__ import annotations

from typing import Any

from noeira.nn.core.arguments import is_integer, positive, refuse, sizes
from noeira.nn.core.errors import ShapeError
from noeira.nn.core.module import Module, Width
from noeira.nn.primitives.conv import _short, check_map
from noeira.ops.conv import Sizes, spatial
from noeira.ops.dispatch import Array
from noeira.ops.pool import Means, Windows, avg_pool2d, avg_pool2d_grad, max_pool2d, max_pool2d_grad


class _Pool(Module):
    """What the pooling layers share."""

    def gives(self, width: Width | None) -> Width | None:
        """The input's channels."""
        return width

    def check_inputs(self, *inputs: Array) -> None:
        """[B, C, H, W]."""
        check_map(inputs[0], None, 2)


class _WindowPool(_Pool):
    def __init__(
        self,
        kernel_size: int | Sizes,
        stride: int | Sizes | None,
        padding: int | Sizes,
        dilation: int | Sizes,
        ceil_mode: bool,
    ):
        name = type(self).__name__
        self.kernel_size = sizes(self, "kernel_size", kernel_size, 2)
        self.stride = self.kernel_size if stride is None else sizes(self, "stride", stride, 2)
        self.padding = sizes(self, "padding", padding, 2, 0)
        self.dilation = sizes(self, "dilation", dilation, 2)
        self.ceil_mode = bool(ceil_mode)
        for p, k in zip(self.padding, self.kernel_size, strict=True):
            if 2 * p > k:
                raise ValueError(f"{name}: expected padding of at most half the kernel of {k}, got {p}")

    def _windows(self) -> Windows:
        k, s, p, d = (sizes[:2] for sizes in (self.kernel_size, self.stride, self.padding, self.dilation))
        return Windows((k[0], k[1]), (s[0], s[1]), (p[0], p[1]), (d[0], d[1]), self.ceil_mode)

    def extra_repr(self) -> str:
        """The window, and what is not at its default."""
        text = f"kernel_size={_short(self.kernel_size)}"
        defaults: tuple[tuple[str, Any], ...] = (
            ("stride", self.kernel_size),
            ("padding", 0),
            ("dilation", 1),
            ("ceil_mode", False),
            ("count_include_pad", True),
            ("divisor_override", None),
        )
        for name, default in defaults:
            value = _short(getattr(self, name, default))
            text += "" if value == _short(default) else f", {name}={value!r}"
        return text


class MaxPool2D(_WindowPool):
    """Maximum over windows.

    y[n, c, i, j] = max over r, s of x[n, c, i stride - padding + r dilation, (same for j, s)]

    Positions outside x count as -inf; of equal values the first counts; NaN gives NaN.

    Args:
        kernel_size: Rows and columns of a window, or one number for both; so with the next three.
        stride: From one window to the next; `kernel_size` by default.
        padding: Positions added at both ends, at most half a kernel.
        dilation: From one element of a window to the next.
        ceil_mode: Keep a last window that sticks out.

    Shape:
        x [B, C, H, W], y [B, C, H', W'], H' = (H + 2 padding - dilation (R - 1) - 1) // stride + 1.

    vjp:
        dx[n, c, where the maximum was] += dy. Saves the positions and the shape.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import MaxPool2D
        >>> MaxPool2D(2)(np.arange(8, dtype=np.float32).reshape(1, 1, 2, 4))
        array([[[[5., 7.]]]], dtype=float32)

    Source: PyTorch: `torch.nn.MaxPool2d`.
    """

    def __init__(
        self,
        kernel_size: int | Sizes,
        stride: int | Sizes | None = None,
        padding: int | Sizes = 0,
        dilation: int | Sizes = 1,
        ceil_mode: bool = False,
    ):
        super().__init__(kernel_size, stride, padding, dilation, ceil_mode)

    def forward(self, x: Array) -> tuple[Array, Any]:
        """X [B, C, H, W] -> y [B, C, H', W']; saves (positions, shape)."""
        y, index = max_pool2d(x, self._windows())
        return y, (index, tuple(x.shape))

    def vjp(self, saved: Any, grad_output: Array) -> Array:
        """Dy -> dx."""
        index, shape = saved
        return max_pool2d_grad(grad_output, index, (shape[2], shape[3]))


class _MeanPool(_Pool):
    def _means(self, sizes: Sizes) -> Means:
        raise NotImplementedError

    def forward(self, x: Array) -> tuple[Array, Any]:
        """X [B, C, H, W] -> y [B, C, H', W']; saves the shape."""
        return avg_pool2d(x, self._means(spatial(x))), tuple(x.shape)

    def vjp(self, saved: Any, grad_output: Array) -> Array:
        """Dy -> dx."""
        sizes = (saved[2], saved[3])
        return avg_pool2d_grad(grad_output, self._means(sizes), sizes)


class AvgPool2D(_MeanPool, _WindowPool):
    """Mean over windows.

    y[n, c, i, j] = 1 / D sum over r, s of x[n, c, i stride - padding + r, j stride - padding + s]

    Positions outside x count as 0. D is the size of the window inside the padded input, or without
    `count_include_pad` inside x itself, or `divisor_override`.

    Args:
        kernel_size: Rows and columns of a window, or one number for both; so with the next two.
        stride: From one window to the next; `kernel_size` by default.
        padding: Zeros at both ends, at most half a kernel.
        ceil_mode: Keep a last window that sticks out.
        count_include_pad: Whether padding counts in D.
        divisor_override: D.

    Shape:
        x [B, C, H, W], y [B, C, H', W'], H' = (H + 2 padding - R) // stride + 1.

    vjp:
        dx[n, c, h, w] = sum of dy / D over the windows that hold (h, w). Saves the shape.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import AvgPool2D
        >>> AvgPool2D(2)(np.arange(8, dtype=np.float32).reshape(1, 1, 2, 4))
        array([[[[2.5, 4.5]]]], dtype=float32)

    Source: PyTorch: `torch.nn.AvgPool2d`.
    """

    def __init__(
        self,
        kernel_size: int | Sizes,
        stride: int | Sizes | None = None,
        padding: int | Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ):
        super().__init__(kernel_size, stride, padding, 1, ceil_mode)
        self.count_include_pad, self.divisor_override = bool(count_include_pad), None
        if divisor_override is not None:
            self.divisor_override = positive(self, "divisor_override", divisor_override)

    def _means(self, sizes: Sizes) -> Means:
        return Means.plain(sizes, self._windows(), self.count_include_pad, self.divisor_override)


class AdaptiveAvgPool2D(_MeanPool):
    """Mean over as many windows as the output shall have.

    Window i of n along an axis of L positions goes from floor(i L / n) to ceil((i + 1) L / n).

    Args:
        output_size: Rows and columns of the output, or one number for both; 1 is the global average. None in a pair
            keeps the input's size.

    Shape:
        x [B, C, H, W], y [B, C, *output_size].

    vjp:
        dx[n, c, h, w] = sum of dy over the windows that hold (h, w), each divided by its window's size.
        Saves the shape.

    Raises:
        ShapeError: The maps have no rows or no columns.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import AdaptiveAvgPool2D
        >>> AdaptiveAvgPool2D(1)(np.arange(8, dtype=np.float32).reshape(1, 1, 2, 4))
        array([[[[3.5]]]], dtype=float32)

    Source: PyTorch: `torch.nn.AdaptiveAvgPool2d`.
    """

    def __init__(self, output_size: int | tuple[int | None, int | None]):
        pair = output_size if isinstance(output_size, tuple | list) else (output_size, output_size)
        if output_size is None or len(pair) != 2 or not all(size is None or is_integer(size, 1) for size in pair):
            refuse(self, "output_size", "a positive integer or 2 of them (None in a pair keeps a size)", output_size)
        self.output_size = tuple(None if size is None else int(size) for size in pair)

    def check_inputs(self, *inputs: Array) -> None:
        """[B, C, H, W] with at least one row and one column."""
        super().check_inputs(*inputs)
        shape = tuple(inputs[0].shape)
        if 0 in shape[2:]:
            raise ShapeError(f"expected maps of at least one row and one column, got {list(shape)}")

    def extra_repr(self) -> str:
        """The output's size."""
        return f"{_short(self.output_size)}"

    def _means(self, sizes: Sizes) -> Means:
        rows, cols = (size if wanted is None else wanted for size, wanted in zip(sizes, self.output_size, strict=True))
        return Means.adaptive(sizes, (rows, cols))
