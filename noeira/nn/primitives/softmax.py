"""Softmax and LogSoftmax as layers."""

from __future__ import annotations

from noeira.nn.core.arguments import axis_number
from noeira.nn.core.errors import ShapeError
from noeira.nn.core.module import Module, Width
from noeira.ops.dispatch import Array
from noeira.ops.softmax import log_softmax, log_softmax_grad, softmax, softmax_grad


class _LastAxis(Module):
    def __init__(self, dim: int = -1):
        self.dim = axis_number(self, "dim", dim)

    def gives(self, width: Width | None) -> Width | None:
        """The input's width."""
        return width

    def check_inputs(self, *inputs: Array) -> None:
        """Refuse an axis that is not the last, and what has none."""
        if inputs[0].ndim == 0:
            raise ShapeError("expected an input of shape [..., N], got []")
        if self.dim not in (-1, inputs[0].ndim - 1):
            raise ShapeError(f"expected dim to be the last axis of {list(inputs[0].shape)}, got {self.dim}")

    def extra_repr(self) -> str:
        """The axis."""
        return f"dim={self.dim}"


class Softmax(_LastAxis):
    """y_c = e^{x_c} / sum_k e^{x_k} over the last axis.

    A row of -inf alone gives 0 and passes no gradient (PyTorch gives NaN).

    Args:
        dim: The last axis, as -1 or by number.

    Shape:
        x [..., C], y the same.

    vjp:
        dx = y (dy - sum_k y_k dy_k). Saves y.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import Softmax
        >>> print(Softmax()(np.array([[1e4, 0.0]], np.float32)).round(3))
        [[1. 0.]]

    Source: PyTorch: `torch.nn.Softmax`.
    """

    tokenwise = True

    def forward(self, x: Array) -> tuple[Array, Array]:
        """X -> y; saves y."""
        y = softmax(x)
        return y, y

    def vjp(self, saved: Array, grad_output: Array) -> Array:
        """Dy -> dx."""
        return softmax_grad(grad_output, saved)


class LogSoftmax(_LastAxis):
    """y_c = x_c - log sum_k e^{x_k} over the last axis.

    A row of -inf alone gives -inf and passes no gradient (PyTorch gives NaN).

    Args:
        dim: The last axis, as -1 or by number.

    Shape:
        x [..., C], y the same.

    vjp:
        dx = dy - e^y sum_k dy_k. Saves y.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import LogSoftmax
        >>> print(LogSoftmax()(np.array([[0.0, 0.0]], np.float32)).round(3))
        [[-0.693 -0.693]]

    Source: PyTorch: `torch.nn.LogSoftmax`.
    """

    def forward(self, x: Array) -> tuple[Array, Array]:
        """X -> y; saves y."""
        y = log_softmax(x)
        return y, y

    def vjp(self, saved: Array, grad_output: Array) -> Array:
        """Dy -> dx."""
        return log_softmax_grad(grad_output, saved)
