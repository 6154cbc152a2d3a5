"""Sums over axes, in a fixed order."""

from __future__ import annotations

import numpy as np

from noeira.ops.dispatch import Array, ShapeError, emit, known_size, op, spec
from noeira.ops.shape import reshape


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
    """Undo a broadcast from `shape`: sum over the axes it stretched or added. The vjp of broadcasting."""
    if tuple(x.shape) == tuple(shape):
        return x
    added = x.ndim - len(shape)
    stretched = [added + i for i, dim in enumerate(shape) if dim == 1 and x.shape[added + i] != 1]
    return reshape(sum_axes(x, (*range(added), *stretched), keepdims=True), tuple(shape))
