"""Ops that move elements: permutations within each sample, and nearest-neighbour doubling."""

from __future__ import annotations

import numpy as np

from noeira.ops.conv import spatial
from noeira.ops.dispatch import Array, ShapeError, emit, known_size, op, size, spec
from noeira.ops.shape import reshape
from noeira.runtime.staging import Shape


@op
def transpose_samples(x: Array) -> Array:
    """[N, R, C] becomes [N, C, R]."""
    return np.ascontiguousarray(np.swapaxes(x, 1, 2))


@transpose_samples.checked
def _(x: Array) -> None:
    if x.ndim != 3:
        raise ShapeError(f"expected an array of shape [N, rows, columns], got {list(x.shape)}")


@transpose_samples.staged
def _(x: Array) -> Array:
    return emit("noeira.transpose_samples", [x], [spec((x.shape[0], x.shape[2], x.shape[1]), x)])[0]


@op
def permute_samples(x: Array, parts: tuple[int, ...], order: tuple[int, ...], shape: Shape) -> Array:
    """Read each sample as an array of shape `parts`, and write it with its axes in another order.

    Args:
        x: [N, ...].
        parts: How a sample is read, at most five axes.
        order: The axes of `parts` as they are written.
        shape: The result's shape, batch included.

    Raises:
        ShapeError: The numbers of elements do not fit.
    """
    _check_permutation(x, parts, order, shape)
    whole = np.reshape(x, (x.shape[0], *parts))
    return np.ascontiguousarray(whole.transpose(0, *(axis + 1 for axis in order))).reshape(shape)  # type: ignore[arg-type]


@permute_samples.staged
def _(x: Array, parts: tuple[int, ...], order: tuple[int, ...], shape: Shape) -> Array:
    _check_permutation(x, parts, order, shape)
    strides = [known_size(parts[axis + 1 :]) for axis in range(len(parts))]
    fill = 5 - len(parts)
    geometry = [1] * fill + [parts[axis] for axis in order] + [0] * fill + [strides[axis] for axis in order]
    return emit("noeira.permute_samples", [x, np.array(geometry, np.int64)], [spec(shape, x)])[0]


def _check_permutation(x: Array, parts: tuple[int, ...], order: tuple[int, ...], shape: Shape) -> None:
    if sorted(order) != list(range(len(parts))) or len(parts) > 5:
        raise ShapeError(f"expected an order of the {len(parts)} axes (at most 5), got {list(order)}")
    if not size(tuple(x.shape[1:])) == size(parts) == size(tuple(shape[1:])):
        raise ShapeError(f"cannot read samples of {list(x.shape[1:])} as {list(parts)} and write {list(shape[1:])}")


def permute_back(grad: Array, parts: tuple[int, ...], order: tuple[int, ...], shape: Shape) -> Array:
    """The inverse of `permute_samples`, which is its gradient; `shape` is that of x."""
    inverse = tuple(order.index(axis) for axis in range(len(order)))
    return permute_samples(grad, tuple(parts[axis] for axis in order), inverse, shape)


def channels_first(x: Array) -> Array:
    """[N, ..., C] becomes [N, C, ...]."""
    flat = reshape(x, (x.shape[0], known_size(spatial_last(x)), x.shape[-1]))
    return reshape(transpose_samples(flat), (x.shape[0], x.shape[-1], *spatial_last(x)))


def channels_last(x: Array) -> Array:
    """[N, C, ...] becomes [N, ..., C]."""
    sizes = spatial(x)
    flat = reshape(x, (x.shape[0], x.shape[1], known_size(sizes)))
    return reshape(transpose_samples(flat), (x.shape[0], *sizes, x.shape[1]))


def spatial_last(x: Array) -> tuple[int, ...]:
    """Sizes between batch and channels, which must be known.

    Raises:
        ShapeError: One of them is free.
    """
    sizes = tuple(x.shape[1:-1])
    if any(isinstance(n, str) for n in sizes):
        raise ShapeError(f"expected known spatial sizes (only the batch may be free), got {list(x.shape)}")
    return sizes


@op
def upsample2x(x: Array) -> Array:
    """Nearest neighbour: y[n, c, i, j] = x[n, c, i // 2, j // 2]."""
    return np.repeat(np.repeat(x, 2, axis=-2), 2, axis=-1)


@upsample2x.staged
def _(x: Array) -> Array:
    height, width = spatial(x)
    return emit("noeira.upsample2x", [x], [spec((*x.shape[:2], 2 * height, 2 * width), x)])[0]


@op
def upsample2x_grad(grad: Array) -> Array:
    """Gradient of `upsample2x`: sums over squares of four."""
    top, bottom = grad[..., ::2, :], grad[..., 1::2, :]
    return (top[..., ::2] + top[..., 1::2]) + (bottom[..., ::2] + bottom[..., 1::2])


@upsample2x_grad.staged
def _(grad: Array) -> Array:
    height, width = spatial(grad)
    out = spec((*grad.shape[:2], height // 2, width // 2), grad)
    return emit("noeira.upsample2x_grad", [grad], [out], flops=known_size(grad.shape))[0]
