"""Layers that cut, join and pick parts of their inputs."""

from __future__ import annotations

from typing import Any

from noeira.nn.core.arguments import axis_number, natural, positive
from noeira.nn.core.errors import ShapeError
from noeira.nn.core.module import Module, Width
from noeira.ops.dispatch import Array
from noeira.ops.pieces import (
    concat,
    pad_axis,
    pick,
    pick_columns,
    pick_columns_grad,
    pick_grad,
    slice_axis,
    split,
)


class Slice(Module):
    """Some positions of one axis.

    y[..., i] = x[..., start + i]

    Args:
        start: First position.
        stop: The position behind the last.
        axis: Which axis; its size must be known, so not a free batch.

    Shape:
        x [..., N], y [..., stop - start].

    vjp:
        dx = dy with zeros around it. Saves the size of the axis.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import Slice
        >>> Slice(1, 3)(np.arange(5.0, dtype=np.float32)[None]).tolist()
        [[1.0, 2.0]]

    Source: PyTorch: `torch.narrow`.
    """

    def __init__(self, start: int, stop: int, axis: int = -1):
        self.start, self.stop = natural(self, "start", start), positive(self, "stop", stop)
        if start >= stop:
            raise ValueError(f"Slice: expected positions 0 <= start < stop, got {start!r} and {stop!r}")
        self.axis = axis_number(self, "axis", axis)

    def gives(self, width: Width | None) -> Width | None:
        """The number of positions, where they are those of the last axis."""
        return (-1, self.stop - self.start) if self.axis == -1 else None

    def extra_repr(self) -> str:
        """Both positions, and the axis unless it is the last."""
        return f"{self.start}, {self.stop}" + ("" if self.axis == -1 else f", axis={self.axis}")

    def forward(self, x: Array) -> tuple[Array, int]:
        """X [..., N] -> y; saves N."""
        return slice_axis(x, self.start, self.stop, self.axis), x.shape[self.axis]

    def vjp(self, saved: int, grad_output: Array) -> Array:
        """Dy -> dx [..., N]."""
        return pad_axis(grad_output, self.start, saved - self.stop, self.axis)


class Concat(Module):
    """Inputs joined along one axis.

    y = [x1, x2, ...]

    Args:
        axis: Which axis; its sizes must be known, so not a free batch.

    Shape:
        Inputs that differ on that axis only; y has the sum of their sizes there.

    vjp:
        dx1, dx2, ... = dy cut up again. Saves the sizes.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import Concat
        >>> Concat()(np.zeros((2, 3), np.float32), np.zeros((2, 4), np.float32)).shape
        (2, 7)

    Source: PyTorch: `torch.cat`.
    """

    def __init__(self, axis: int = -1):
        self.axis = axis_number(self, "axis", axis)

    def extra_repr(self) -> str:
        """The axis unless it is the last."""
        return "" if self.axis == -1 else f"axis={self.axis}"

    def check_inputs(self, *inputs: Array) -> None:
        """Leave it to the op, but refuse an empty list."""
        if not inputs:
            raise ShapeError("expected at least one input to join, got none")

    def forward(self, *inputs: Array) -> tuple[Array, tuple[int, ...]]:
        """(x1, x2, ...) -> y; saves the sizes."""
        return concat(list(inputs), self.axis), tuple(x.shape[self.axis] for x in inputs)

    def vjp(self, saved: tuple[int, ...], grad_output: Array) -> tuple[Array, ...]:
        """Dy -> (dx1, dx2, ...)."""
        return split(grad_output, saved, self.axis)


class GatherCols(Module):
    """Columns picked by integer ids, such as the values of the actions that were taken (`torch.gather`, last axis).

    y[..., k] = x[..., ids[..., k]]

    Shape:
        x [..., N], ids [..., K] with the same leading axes, y [..., K].

    vjp:
        dx[..., n] = sum of dy[..., k] over the k with ids[..., k] = n; the ids get none. Saves the ids and N.

    Raises:
        ShapeError: An id is not in 0..N-1 (on arrays; a compiled program gives NaN for it).

    Example:
        >>> import numpy as np
        >>> from noeira.nn import GatherCols
        >>> GatherCols()(np.array([[5.0, 6.0, 7.0]], np.float32), np.array([[2]])).tolist()
        [[7.0]]

    Source: PyTorch: `torch.gather`; Mnih et al. 2015 (the values of the actions taken).
    """

    integers = (1,)

    def check_inputs(self, *inputs: Array) -> None:
        """One id row for each row of x."""
        x, ids = inputs
        if len(x.shape) < 2 or tuple(ids.shape[:-1]) != tuple(x.shape[:-1]):
            raise ShapeError(
                f"expected inputs of shapes [..., N] and ids [..., K], got {list(x.shape)} and {list(ids.shape)}"
            )

    def forward(self, x: Array, ids: Array) -> tuple[Array, Any]:
        """(x [..., N], ids [..., K]) -> y [..., K]; saves the ids and N."""
        return pick_columns(x, ids), (ids, x.shape[-1])

    def vjp(self, saved: Any, grad_output: Array) -> tuple[Array, None]:
        """Dy [..., K] -> (dx [..., N], None)."""
        ids, count = saved
        return pick_columns_grad(grad_output, ids, count), None


class GatherActionSlice(Module):
    """The row that an action's id names, such as the value distribution of the action that was taken (C51).

    y[..., k] = x[..., id[...], k]

    Shape:
        x [..., A, K], ids [...], y [..., K].

    vjp:
        dx[..., a, :] = dy where a is the id, 0 elsewhere; the ids get none. Saves the ids and A.

    Raises:
        ShapeError: An id is not in 0..A-1 (on arrays; a compiled program gives a row of NaN for it).

    Example:
        >>> import numpy as np
        >>> from noeira.nn import GatherActionSlice
        >>> GatherActionSlice()(np.arange(6, dtype=np.float32).reshape(1, 3, 2), np.array([2])).tolist()
        [[4.0, 5.0]]

    Source: Bellemare et al. 2017 (C51).
    """

    integers = (1,)

    def check_inputs(self, *inputs: Array) -> None:
        """One id for each sample of x."""
        x, ids = inputs
        if len(x.shape) < 3 or tuple(ids.shape) != tuple(x.shape[:-2]):
            raise ShapeError(
                f"expected inputs of shapes [..., A, K] and ids [...], got {list(x.shape)} and {list(ids.shape)}"
            )

    def forward(self, x: Array, ids: Array) -> tuple[Array, Any]:
        """(x [..., A, K], ids [...]) -> y [..., K]; saves the ids and A."""
        return pick(x, ids), (ids, x.shape[-2])

    def vjp(self, saved: Any, grad_output: Array) -> tuple[Array, None]:
        """Dy [..., K] -> (dx [..., A, K], None)."""
        ids, count = saved
        return pick_grad(grad_output, ids, count), None
