"""Convolutions of sequences and maps, and the transposed convolution."""

from __future__ import annotations

from typing import Any, ClassVar

from noeira.nn.core.arguments import positive, sizes
from noeira.nn.core.errors import ShapeError
from noeira.nn.core.initializer import Initializer, Zero
from noeira.nn.core.module import Module, Width
from noeira.nn.core.param import Param
from noeira.ops.conv import Geometry, Sizes, add_channel_sums, conv, conv_input_grad, conv_param_grad
from noeira.ops.dispatch import Array, expect_grad


def check_map(x: Array, channels: int | None, axes: int) -> None:
    """Refuse what is not [B, channels, ...] with `axes` spatial axes.

    Raises:
        ShapeError: The rank or the number of channels differs.
    """
    shape = tuple(x.shape)
    if len(shape) != axes + 2 or (channels is not None and shape[1] != channels):
        sizes = ", ".join(("L",) if axes == 1 else ("H", "W"))
        wanted = "C" if channels is None else channels
        raise ShapeError(f"expected an input of shape [B, {wanted}, {sizes}], got {list(shape)}")


class _Conv(Module):
    """What the convolutions share: sizes, parameters, and the repr."""

    axes: ClassVar[int]
    transposed: ClassVar[bool] = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sizes,
        stride: int | Sizes,
        padding: int | Sizes | str,
        dilation: int | Sizes,
        groups: int,
        bias: bool,
        padding_mode: str,
        init: Initializer | None,
    ):
        name, axes = type(self).__name__, self.axes
        self.groups = groups = positive(self, "groups", groups)
        self.in_channels = in_channels = positive(self, "in_channels", in_channels)
        self.out_channels = out_channels = positive(self, "out_channels", out_channels)
        for what, size in (("in_channels", in_channels), ("out_channels", out_channels)):
            if size % groups:
                raise ValueError(f"{name}: expected {what} to be divisible by groups={groups}, got {size}")
        if padding_mode != "zeros":
            raise ValueError(f"{name}: expected padding_mode 'zeros', got {padding_mode!r}")
        self.kernel_size = sizes(self, "kernel_size", kernel_size, axes)
        self.stride = sizes(self, "stride", stride, axes)
        self.dilation = sizes(self, "dilation", dilation, axes)
        self.padding: Sizes | str = padding if isinstance(padding, str) else sizes(self, "padding", padding, axes, 0)
        first, second = (in_channels, out_channels) if self.transposed else (out_channels, in_channels)
        taps = 1
        for k in self.kernel_size:
            taps *= k
        self.weight = Param(
            (first, second // groups, *self.kernel_size),
            init=init,
            fan_in=in_channels // groups * taps,
            fan_out=out_channels // groups * taps,
        )
        self.bias = Param((out_channels,), init=Zero(), decay=False) if bias else None

    def expects(self) -> Width:
        """`in_channels` on axis 1."""
        return 1, self.in_channels

    def gives(self, width: Width | None) -> Width:
        """`out_channels` on axis 1."""
        return 1, self.out_channels

    def check_inputs(self, *inputs: Array) -> None:
        """[B, in_channels, ...]."""
        check_map(inputs[0], self.in_channels, self.axes)
        super().check_inputs(*inputs)

    def extra_repr(self) -> str:
        """Channels and kernel, and what is not at its default."""
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={_short(self.kernel_size)}"
        for name, default in (("stride", 1), ("padding", 0), ("dilation", 1), ("groups", 1), ("output_padding", 0)):
            value = _short(getattr(self, name, default))
            text += "" if value == default else f", {name}={value!r}"
        return text + ("" if self.bias else ", bias=False")

    def _bias(self) -> Array | None:
        return self.bias.val if self.bias else None


def _short(value: Any) -> Any:
    return value[0] if isinstance(value, tuple) and len(set(value)) == 1 else value


class _PlainConv(_Conv):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sizes,
        stride: int | Sizes = 1,
        padding: int | Sizes | str = 0,
        dilation: int | Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        init: Initializer | None = None,
    ):
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, init
        )
        self._same = self.padding == "same"
        if isinstance(self.padding, str):
            name = type(self).__name__
            if self.padding not in ("same", "valid"):
                raise ValueError(f"{name}: expected padding to be sizes, 'same' or 'valid', got {self.padding!r}")
            if self._same and set(self.stride) != {1}:
                raise ValueError(f"{name}: expected a stride of 1 with padding='same', got {_short(self.stride)}")

    def _geometry(self) -> Geometry:
        pad = self.padding
        if isinstance(pad, str):  # "same" pads an odd total once more behind than before
            spans = zip(self.dilation, self.kernel_size, strict=True)
            pad = tuple(d * (k - 1) // 2 if self._same else 0 for d, k in spans)
        return Geometry(self.stride, pad, self.dilation, self.groups)

    def forward(self, x: Array) -> tuple[Array, Array]:
        """X [B, in, ...] -> y [B, out, ...]; saves x."""
        sizes = tuple(x.shape[2:]) if self._same else None
        return conv(x, self.weight.val, self._bias(), geometry=self._geometry(), sizes=sizes), x

    def vjp(self, saved: Array, grad_output: Array) -> Array:
        """Dy -> dx; adds dW and db."""
        geometry, sizes = self._geometry(), tuple(saved.shape[2:])
        outputs = sizes if self._same else geometry.outputs(sizes, self.kernel_size)
        expect_grad(grad_output, (saved.shape[0], self.out_channels, *outputs))
        bias_grad = self.bias.grd if self.bias else None
        conv_param_grad(self.weight.grd, bias_grad, saved, grad_output, geometry)
        return conv_input_grad(grad_output, self.weight.val, None, geometry, sizes)


class Conv2D(_PlainConv):
    """Cross-correlation of maps with a learned kernel.

    y[n, m, i, j] = b[m] + sum over c, r, s of W[m, c, r, s] x[n, c, i stride - padding + r dilation, (same for j, s)]

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        kernel_size: Rows and columns of the kernel, or one number for both; so with the next three.
        stride: Positions from one output to the next.
        padding: Zeros at both ends; "valid" is 0, "same" gives an output of the input's size.
        dilation: Positions from one tap of the kernel to the next.
        groups: Parts the channels are divided into; `groups=in_channels` is a depthwise convolution.
        bias: Whether there is a b.
        padding_mode: "zeros".
        init: Initializer of W; the model's by default, with fan_in = in_channels / groups * taps. b starts at 0.

    Shape:
        x [B, in_channels, H, W], y [B, out_channels, H', W'],
        H' = (H + 2 padding - dilation (R - 1) - 1) // stride + 1;
        W [out_channels, in_channels / groups, R, S], b [out_channels], as in PyTorch.

    vjp:
        dx = the transposed map of dy, dW[m, c, r, s] += sum over n, i, j of dy[n, m, i, j] x[n, c, ...],
        db[m] += sum over n, i, j of dy[n, m, i, j]. Saves x.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import Conv2D
        >>> Conv2D(3, 8, kernel_size=3, stride=2, padding=1)(np.ones((4, 3, 9, 9), np.float32)).shape
        (4, 8, 5, 5)

    Source: LeCun et al. 1989.
    """

    axes = 2


class Conv1D(_PlainConv):
    """Cross-correlation of sequences with a learned kernel; see `Conv2D`.

    y[n, m, i] = b[m] + sum over c, r of W[m, c, r] x[n, c, i stride - padding + r dilation]

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        kernel_size: Taps.
        stride: Positions from one output to the next.
        padding: Zeros at both ends; "valid" is 0, "same" gives an output of the input's size.
        dilation: Positions from one tap to the next.
        groups: Parts the channels are divided into.
        bias: Whether there is a b.
        padding_mode: "zeros".
        init: Initializer of W; the model's by default. b starts at 0.

    Shape:
        x [B, in_channels, L], y [B, out_channels, L']; W [out_channels, in_channels / groups, R], b [out_channels].

    vjp:
        dx = the transposed map of dy, dW[m, c, r] += sum over n, i of dy[n, m, i] x[n, c, ...], db += sum of dy.
        Saves x.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import Conv1D
        >>> Conv1D(2, 4, kernel_size=3, padding="same")(np.ones((5, 2, 7), np.float32)).shape
        (5, 4, 7)

    Source: PyTorch: `torch.nn.Conv1d`.
    """

    axes = 1


class Conv2DTranspose(_Conv):
    """Transposed convolution: the map whose vjp is a convolution, used to enlarge maps.

    y[n, m, h] = b[m] + sum over c, i, r with i stride - padding + r dilation = h of W[c, m, r] x[n, c, i]

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        kernel_size: Rows and columns of the kernel, or one number for both; so with the others.
        stride: Output positions from one input to the next.
        padding: Output positions cut off at both ends.
        output_padding: Output positions added behind the last.
        groups: Parts the channels are divided into.
        bias: Whether there is a b.
        dilation: Output positions from one tap to the next.
        padding_mode: "zeros".
        init: Initializer of W; the model's by default. b starts at 0.

    Shape:
        x [B, in_channels, H, W], y [B, out_channels, H', W'],
        H' = (H - 1) stride - 2 padding + dilation (R - 1) + output_padding + 1;
        W [in_channels, out_channels / groups, R, S], b [out_channels], as in PyTorch.

    vjp:
        dx = dy convolved with W, dW[c, m, r] += sum over n, i of x[n, c, i] dy[n, m, ...], db += sum of dy. Saves x.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import Conv2DTranspose
        >>> Conv2DTranspose(8, 3, kernel_size=2, stride=2)(np.ones((4, 8, 5, 5), np.float32)).shape
        (4, 3, 10, 10)

    Source: Zeiler et al. 2010.
    """

    axes = 2
    transposed = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sizes,
        stride: int | Sizes = 1,
        padding: int | Sizes = 0,
        output_padding: int | Sizes = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: int | Sizes = 1,
        padding_mode: str = "zeros",
        *,
        init: Initializer | None = None,
    ):
        name = type(self).__name__
        if isinstance(padding, str):
            raise ValueError(f"{name}: expected padding to be sizes, got {padding!r}")
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, init
        )
        self.output_padding = sizes(self, "output_padding", output_padding, 2, 0)
        for more, s, d in zip(self.output_padding, self.stride, self.dilation, strict=True):
            if more >= max(s, d):
                raise ValueError(f"{name}: expected output_padding below stride or dilation, got {more}")
        self._geometry = Geometry(self.stride, sizes(self, "padding", padding, 2, 0), self.dilation, groups)

    def _outputs(self, sizes: Sizes) -> Sizes:
        g = self._geometry
        found = tuple(
            (size - 1) * s - 2 * p + d * (k - 1) + more + 1
            for size, s, p, d, k, more in zip(
                sizes, g.stride, g.padding, g.dilation, self.kernel_size, self.output_padding, strict=True
            )
        )
        if min(found) < 1:
            raise ShapeError(f"expected an input that leaves an output, got {list(sizes)} for outputs {list(found)}")
        return found

    def forward(self, x: Array) -> tuple[Array, Array]:
        """X [B, in, H, W] -> y [B, out, H', W']; saves x."""
        sizes = self._outputs(tuple(x.shape[2:]))
        return conv_input_grad(x, self.weight.val, self._bias(), self._geometry, sizes), x

    def vjp(self, saved: Array, grad_output: Array) -> Array:
        """Dy -> dx; adds dW and db."""
        sizes = tuple(saved.shape[2:])
        expect_grad(grad_output, (saved.shape[0], self.out_channels, *self._outputs(sizes)))
        conv_param_grad(self.weight.grd, None, grad_output, saved, self._geometry)
        if self.bias and self.bias.trainable:
            add_channel_sums(self.bias.grd, grad_output)
        return conv(grad_output, self.weight.val, geometry=self._geometry, sizes=sizes)
