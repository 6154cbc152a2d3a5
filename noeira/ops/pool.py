"""Pooling of maps [N, C, H, W] and its gradients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from noeira.ops.conv import spatial
from noeira.ops.dispatch import Array, ShapeError, emit, expect_grad, known_size, op, spec
from noeira.runtime.staging import Spec

Pair = tuple[int, int]


@dataclass(frozen=True)
class Windows:
    """Windows over both spatial axes, as PyTorch's pooling has them.

    Args:
        kernel: Positions of a window.
        stride: Positions from one window to the next.
        padding: Positions added at both ends, at most half a kernel.
        dilation: Positions from one element of a window to the next.
        ceil_mode: Whether a last window that sticks out is kept, as long as it starts inside or in the padding.
    """

    kernel: Pair
    stride: Pair
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    ceil_mode: bool = False

    def outputs(self, sizes: tuple[int, ...]) -> Pair:
        """Windows along each axis.

        Raises:
            ShapeError: Not one window fits.
        """
        found = []
        for size, k, s, p, d in zip(sizes, self.kernel, self.stride, self.padding, self.dilation, strict=True):
            room = size + 2 * p - d * (k - 1) - 1
            count = (room + (s - 1 if self.ceil_mode else 0)) // s + 1
            if self.ceil_mode and (count - 1) * s >= size + p:
                count -= 1
            if room < 0 or size == 0:
                raise ShapeError(
                    f"expected at least {d * (k - 1) + 1} padded positions for a window of {k} with dilation {d}, "
                    f"got {size} + 2 * {p}"
                )
            found.append(count)
        return found[0], found[1]


@op
def max_pool2d(x: Array, windows: Windows) -> tuple[Array, Array]:
    """Maximum of each window, and where in its plane it is (row * W + column, int32).

    Positions outside x count as -inf. Of equal values the first in row-major order is taken; NaN wins.
    """
    n, c, height, width = x.shape
    rows, cols = windows.outputs(spatial(x))
    best = np.full((n, c, rows, cols), -np.inf, x.dtype)
    index = np.full(best.shape, -1, np.int32)
    for ky in range(windows.kernel[0]):
        for kx in range(windows.kernel[1]):
            i = np.arange(rows) * windows.stride[0] - windows.padding[0] + ky * windows.dilation[0]
            j = np.arange(cols) * windows.stride[1] - windows.padding[1] + kx * windows.dilation[1]
            inside = ((i >= 0) & (i < height))[:, None] & ((j >= 0) & (j < width))
            value = x[:, :, np.clip(i, 0, height - 1)[:, None], np.clip(j, 0, width - 1)]
            better = inside & ((value > best) | np.isnan(value) | (index < 0))
            best = np.where(better, value, best)
            index = np.where(better, (i[:, None] * width + j).astype(np.int32), index)
    return best, index


@max_pool2d.staged
def _(x: Array, windows: Windows) -> tuple[Array, Array]:
    w = windows
    shape = (*x.shape[:2], *w.outputs(spatial(x)))
    geometry = np.array([*w.kernel, *w.stride, *w.padding, *w.dilation], np.int64)
    outputs = [spec(shape, x), Spec(shape, "int32")]
    return emit("noeira.max_pool2d", [x, geometry], outputs, flops=known_size((*shape, *w.kernel)))


@op
def max_pool2d_grad(grad: Array, index: Array, sizes: Pair) -> Array:
    """Gradient of `max_pool2d`: dx[n, c, index] += dy, for maps of the spatial sizes given."""
    n, c = grad.shape[:2]
    dx = np.zeros((n * c, sizes[0] * sizes[1]), grad.dtype)
    flat = index.reshape(n * c, int(np.prod(index.shape[2:])))
    np.add.at(dx, (np.arange(n * c)[:, None], flat), grad.reshape(flat.shape))
    return dx.reshape(n, c, *sizes)


@max_pool2d_grad.checked
def _(grad: Array, index: Array, sizes: Pair) -> None:
    expect_grad(grad, index.shape)


@max_pool2d_grad.staged
def _(grad: Array, index: Array, sizes: Pair) -> Array:
    out = spec((*grad.shape[:2], *sizes), grad)
    return emit("noeira.max_pool2d_grad", [grad, index], [out], flops=known_size(grad.shape))[0]


@dataclass(frozen=True)
class Means:
    """The windows of an average along both axes: first positions, ends, and factors of the divisor, as tuples."""

    rows: tuple[tuple[int, int, int], ...]
    cols: tuple[tuple[int, int, int], ...]

    @staticmethod
    def plain(
        sizes: tuple[int, ...], windows: Windows, count_include_pad: bool = True, divisor: int | None = None
    ) -> Means:
        """Windows of equal length; those at the ends divide by what lies in the padded input, or inside it."""
        axes = []
        for axis, count in enumerate(windows.outputs(sizes)):
            size, k = sizes[axis], windows.kernel[axis]
            s, p = windows.stride[axis], windows.padding[axis]
            found = []
            for i in range(count):
                first, end = i * s - p, min(i * s - p + k, size + p)
                lo, hi = max(first, 0), min(end, size)
                share = (end - first) if count_include_pad else hi - lo
                found.append((lo, hi, share if divisor is None else (divisor if axis == 0 else 1)))
            axes.append(tuple(found))
        return Means(*axes)

    @staticmethod
    def adaptive(sizes: tuple[int, ...], outputs: Pair) -> Means:
        """A fixed number of windows: window i of n goes from floor(i L / n) to ceil((i + 1) L / n)."""
        axes = []
        for size, n in zip(sizes, outputs, strict=True):
            ends = [(i * size // n, -(-(i + 1) * size // n)) for i in range(n)]
            axes.append(tuple((lo, hi, hi - lo) for lo, hi in ends))
        return Means(*axes)

    def tables(self) -> list[np.ndarray]:
        """[3, windows] for rows and columns."""
        return [np.array(axis, np.int32).reshape(-1, 3).T.copy() for axis in (self.rows, self.cols)]

    def matrices(self, sizes: tuple[int, ...], dtype: object) -> list[np.ndarray]:
        """The averages along each axis as matrices [windows, positions]."""
        found = []
        for axis, size in zip((self.rows, self.cols), sizes, strict=True):
            matrix = np.zeros((len(axis), size), dtype)  # type: ignore[call-overload]
            for i, (lo, hi, divisor) in enumerate(axis):
                matrix[i, lo:hi] = 1 / divisor
            found.append(matrix)
        return found


@op
def avg_pool2d(x: Array, means: Means) -> Array:
    """Mean of each window: y = R x C^T with the averages of rows and columns as matrices."""
    rows, cols = means.matrices(x.shape[2:], x.dtype)
    return _along(rows, _along(cols, x, 3), 2)


def _along(matrix: np.ndarray, x: np.ndarray, axis: int) -> np.ndarray:
    """The matrix applied to an axis, without what its zeros stand for: a NaN stays in its windows."""
    moved = np.moveaxis(x, axis, -1)
    result = np.zeros((*moved.shape[:-1], len(matrix)), x.dtype)
    for i, weights in enumerate(matrix):
        inside = weights != 0
        result[..., i] = moved[..., inside] @ weights[inside]
    return np.ascontiguousarray(np.moveaxis(result, -1, axis))


@avg_pool2d.staged
def _(x: Array, means: Means) -> Array:
    spatial(x)
    out = spec((*x.shape[:2], len(means.rows), len(means.cols)), x)
    return emit("noeira.avg_pool2d", [x, *means.tables()], [out], flops=known_size(x.shape))[0]


@op
def avg_pool2d_grad(grad: Array, means: Means, sizes: Pair) -> Array:
    """Gradient of `avg_pool2d`: dx = R^T dy C, for maps of the spatial sizes given."""
    rows, cols = means.matrices(sizes, grad.dtype)
    return _along(rows.T, _along(cols.T, grad, 3), 2)


@avg_pool2d_grad.checked
def _(grad: Array, means: Means, sizes: Pair) -> None:
    expect_grad(grad, (*grad.shape[:2], len(means.rows), len(means.cols)))


@avg_pool2d_grad.staged
def _(grad: Array, means: Means, sizes: Pair) -> Array:
    out = spec((*grad.shape[:2], *sizes), grad)
    return emit("noeira.avg_pool2d_grad", [grad, *means.tables()], [out], flops=known_size(out.shape))[0]
