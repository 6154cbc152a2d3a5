"""Sums and maxima over axes, in a fixed order."""

from __future__ import annotations

import numpy as np

from noeira.ops.dispatch import Array, ShapeError, broadcast, emit, known_size, op, size, spec
from noeira.ops.pool import Windows, max_pool2d, max_pool2d_grad
from noeira.ops.shape import reshape
from noeira.runtime.staging import Shape


@op
def sum_axis(x: Array, axis: int, keepdims: bool = False) -> Array:
    """Sum over one axis.

    Raises:
        ShapeError: There is no such axis.
    """
    axis = _axis(x, axis)
    return np.asarray(np.sum(x, axis=axis, keepdims=keepdims, dtype=np.float64)).astype(x.dtype)


@sum_axis.staged
def _(x: Array, axis: int, keepdims: bool = False) -> Array:
    axis = _axis(x, axis)
    shape = (*x.shape[:axis], *((1,) if keepdims else ()), *x.shape[axis + 1 :])
    return emit("noeira.sum_axis", [x, np.array([axis], np.int32)], [spec(shape, x)], flops=known_size(x.shape))[0]


def _axis(x: Array, axis: int) -> int:
    if not -x.ndim <= axis < x.ndim:
        raise ShapeError(f"expected an axis of {list(x.shape)}, got {axis}")
    return axis % x.ndim


def sum_axes(x: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
    """Sum over several axes."""
    for axis in sorted((_axis(x, axis) for axis in axes), reverse=True):
        x = sum_axis(x, axis, keepdims)
    return x


def sum_channels(x: Array) -> Array:
    """Sum of x [B, C, ...] over everything but the channels: [C]."""
    return sum_axes(x, (0, *range(2, x.ndim)))


def sum_to(x: Array, shape: tuple[int | str, ...]) -> Array:
    """Undo a broadcast from `shape`: sum over the axes it stretched or added. The vjp of broadcasting.

    Raises:
        ShapeError: `shape` does not broadcast to x's.
    """
    if tuple(x.shape) == tuple(shape):
        return x
    if broadcast(tuple(shape), tuple(x.shape)) != tuple(x.shape):
        raise ShapeError(f"expected a shape that {list(shape)} broadcasts to, got {list(x.shape)}")
    added = x.ndim - len(shape)
    stretched = [added + i for i, dim in enumerate(shape) if dim == 1 and x.shape[added + i] != 1]
    return reshape(sum_axes(x, (*range(added), *stretched), keepdims=True), tuple(shape))


@op
def count_axis(x: Array, axis: int) -> Array:
    """How many positions an axis has, as one number of x's dtype: [1]. For means over a free batch."""
    return np.array([x.shape[_axis(x, axis)]], x.dtype)


@count_axis.staged
def _(x: Array, axis: int) -> Array:
    return emit("count", [x], [spec((1,), x)], {"axis": _axis(x, axis)})[0]


def max_axis(x: Array, axis: int, keepdims: bool = False) -> tuple[Array, Array]:
    """Maximum over one axis, and what `max_axis_grad` needs: where it is. NaN wins; of equal values the first.

    Raises:
        ShapeError: There is no such axis, it is empty, or it or one behind it has a free size.
    """
    axis = _axis(x, axis)
    outer, count, inner = _around(x.shape, axis)
    whole = reshape(x, (outer, 1, count, inner))
    best, index = max_pool2d(whole, Windows((count, 1), (count, 1)))
    return reshape(best, (*x.shape[:axis], *((1,) if keepdims else ()), *x.shape[axis + 1 :])), index


def max_axis_grad(grad: Array, index: Array, shape: Shape, axis: int) -> Array:
    """Input gradient of `max_axis` for an x of this shape: dy where the maximum is, 0 elsewhere."""
    axis %= len(shape)
    outer, count, inner = _around(shape, axis)
    return reshape(max_pool2d_grad(reshape(grad, (outer, 1, 1, inner)), index, (count, inner)), shape)


def _around(shape: Shape, axis: int) -> tuple[int | str, int, int]:
    """Sizes of what is before an axis, of the axis, and of what is behind it."""
    behind = shape[axis:]
    if any(isinstance(n, str) for n in behind) or behind[0] == 0:
        raise ShapeError(f"expected a known, positive size of axis {axis} and of those behind it, got {list(shape)}")
    return size(shape[:axis]), int(behind[0]), known_size(behind[1:])
