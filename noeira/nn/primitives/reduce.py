"""Sums, means and maxima over an axis, and the products of all pairs of rows."""

from __future__ import annotations

from typing import Any

from noeira.nn.core.arguments import axis_number
from noeira.nn.core.errors import ShapeError
from noeira.nn.core.module import Module, Width
from noeira.ops.dispatch import Array, expect_grad
from noeira.ops.layout import transpose_samples
from noeira.ops.linear import linear, linear_input_grad
from noeira.ops.pieces import broadcast_to
from noeira.ops.reduce import max_axis, max_axis_grad, sum_axis
from noeira.ops.shape import reshape
from noeira.runtime.staging import Shape


class _OverAxis(Module):
    """Base: one axis goes away, or becomes 1."""

    def __init__(self, axis: int = -1, keepdims: bool = False):
        self.axis, self.keepdims = axis_number(self, "axis", axis), bool(keepdims)

    def gives(self, width: Width | None) -> Width | None:
        """1 on the last axis, where that is the one and it is kept."""
        return (-1, 1) if self.axis == -1 and self.keepdims else None

    def extra_repr(self) -> str:
        """The axis, and whether it is kept."""
        return f"axis={self.axis}" + (", keepdims=True" if self.keepdims else "")

    def check_inputs(self, *inputs: Array) -> None:
        """Refuse what does not have the axis, or has it free or empty."""
        shape = tuple(inputs[0].shape)
        if not -len(shape) <= self.axis < len(shape):
            raise ShapeError(f"expected an input that has an axis {self.axis}, got {list(shape)}")
        if isinstance(shape[self.axis], str) or shape[self.axis] == 0:
            raise ShapeError(f"expected a known, positive size of axis {self.axis}, got {list(shape)}")

    def _kept(self, shape: Shape) -> Shape:
        axis = self.axis % len(shape)
        return (*shape[:axis], 1, *shape[axis + 1 :])


class Reduce(_OverAxis):
    """Sum or mean over one axis.

    y = sum over n of x[..., n, ...], for the mean divided by N

    Args:
        mode: "sum" or "mean".
        axis: Which axis; its size must be known, so not a free batch.
        keepdims: Whether the axis stays, with size 1.

    Shape:
        x any, y without the axis or with 1 there.

    vjp:
        dx[..., n, ...] = dy, for the mean divided by N. Saves the shape.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import Reduce
        >>> Reduce("mean")(np.array([[1.0, 3.0]], np.float32)).tolist()
        [2.0]

    Source: PyTorch: `torch.sum` and `torch.mean`.
    """

    def __init__(self, mode: str = "sum", axis: int = -1, keepdims: bool = False):
        if mode not in ("sum", "mean"):
            raise ValueError(f"Reduce: expected mode 'sum' or 'mean', got {mode!r}")
        super().__init__(axis, keepdims)
        self.mode = mode

    def extra_repr(self) -> str:
        """The mode, the axis, and whether it is kept."""
        return f"{self.mode!r}, {super().extra_repr()}"

    def _share(self, shape: Shape) -> float:
        return 1 / int(shape[self.axis]) if self.mode == "mean" else 1.0

    def forward(self, x: Array) -> tuple[Array, Shape]:
        """X -> y; saves the shape."""
        y = sum_axis(x, self.axis, self.keepdims)
        return (y * self._share(x.shape) if self.mode == "mean" else y), tuple(x.shape)

    def vjp(self, saved: Shape, grad_output: Array) -> Array:
        """Dy -> dx."""
        grad = grad_output * self._share(saved) if self.mode == "mean" else grad_output
        return broadcast_to(reshape(grad, self._kept(saved)), saved)


class ReduceMax(_OverAxis):
    """Maximum over one axis; NaN where there is one.

    y = max over n of x[..., n, ...]

    Args:
        axis: Which axis; its size and those behind it must be known.
        keepdims: Whether the axis stays, with size 1.

    Shape:
        x any, y without the axis or with 1 there.

    vjp:
        dx = dy where the maximum is (of equal ones the first), 0 elsewhere. Saves where it is, and the shape.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import ReduceMax
        >>> ReduceMax()(np.array([[1.0, 3.0, 2.0]], np.float32)).tolist()
        [3.0]

    Source: PyTorch: `torch.max` over a dimension.
    """

    def forward(self, x: Array) -> tuple[Array, Any]:
        """X -> y; saves the maxima's places and the shape."""
        y, index = max_axis(x, self.axis, self.keepdims)
        return y, (index, tuple(x.shape))

    def vjp(self, saved: Any, grad_output: Array) -> Array:
        """Dy -> dx."""
        index, shape = saved
        return max_axis_grad(grad_output, index, shape, self.axis)


class PairwiseDot(Module):
    """Scalar products of all pairs of rows, such as the logits of a contrastive loss.

    y[i, j] = sum over d of a[i, d] c[j, d]

    Shape:
        a [M, D], c [N, D], y [M, N].

    vjp:
        da = dy c, dc = dy^T a. Saves a and c.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import PairwiseDot
        >>> PairwiseDot()(np.ones((2, 3), np.float32), np.ones((4, 3), np.float32)).shape
        (2, 4)

    Source: Oord et al. 2018 (contrastive logits).
    """

    def check_inputs(self, *inputs: Array) -> None:
        """Two matrices with rows of one width."""
        a, c = inputs
        if len(a.shape) != 2 or len(c.shape) != 2 or a.shape[1] != c.shape[1]:
            raise ShapeError(f"expected inputs of shapes [M, D] and [N, D], got {list(a.shape)} and {list(c.shape)}")

    def forward(self, a: Array, c: Array) -> tuple[Array, Any]:
        """(a [M, D], c [N, D]) -> y [M, N]; saves both."""
        return linear_input_grad(a, c), (a, c)

    def vjp(self, saved: Any, grad_output: Array) -> tuple[Array, Array]:
        """Dy [M, N] -> (da, dc)."""
        a, c = saved
        rows, columns = a.shape[0], c.shape[0]
        expect_grad(grad_output, (rows, columns))
        turned = reshape(transpose_samples(reshape(grad_output, (1, rows, columns))), (columns, rows))
        return linear(grad_output, c), linear(turned, a)
