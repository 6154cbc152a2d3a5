"""Parts of an array along one axis: cutting, padding, joining, repeating, and picking by id."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from noeira.ops.dispatch import Array, ShapeError, broadcast, emit, expect_grad, op, spec
from noeira.ops.elementwise import cast, equal, greater, greater_equal, where
from noeira.ops.reduce import sum_axis
from noeira.ops.shape import reshape
from noeira.runtime.staging import Shape


def _axis(shape: Shape, axis: int) -> int:
    """The axis counted from the front, whose size must be known.

    Raises:
        ShapeError: There is no such axis, or its size is free.
    """
    if not -len(shape) <= axis < len(shape):
        raise ShapeError(f"expected an axis of {list(shape)}, got {axis}")
    if isinstance(shape[axis], str):
        raise ShapeError(f"expected an axis of known size, got axis {axis} of {list(shape)}")
    return axis % len(shape)


def _resized(shape: Shape, axis: int, length: int) -> Shape:
    return (*shape[:axis], length, *shape[axis + 1 :])


@op
def slice_axis(x: Array, start: int, stop: int, axis: int = -1) -> Array:
    """Positions start to stop - 1 of one axis.

    Raises:
        ShapeError: They are not all in x.
    """
    axis = _check_slice(x, start, stop, axis)
    return x[(slice(None),) * axis + (slice(start, stop),)].copy()


@slice_axis.staged
def _(x: Array, start: int, stop: int, axis: int = -1) -> Array:
    axis = _check_slice(x, start, stop, axis)
    if (start, stop) == (0, x.shape[axis]):
        return x
    shape = _resized(x.shape, axis, stop - start)
    return emit("slice", [x], [spec(shape, x)], {"axis": axis, "start": start, "stop": stop})[0]


def _check_slice(x: Array, start: int, stop: int, axis: int) -> int:
    axis = _axis(tuple(x.shape), axis)
    if not 0 <= start <= stop <= x.shape[axis]:
        raise ShapeError(f"expected positions {start} to {stop} on axis {axis}, got an array {list(x.shape)}")
    return axis


@op
def pad_axis(x: Array, before: int, after: int, axis: int = -1) -> Array:
    """Zeros put before and after x on one axis: the vjp of `slice_axis`."""
    axis = _axis(x.shape, axis)
    return np.pad(x, [(before, after) if i == axis else (0, 0) for i in range(x.ndim)])


@pad_axis.staged
def _(x: Array, before: int, after: int, axis: int = -1) -> Array:
    axis = _axis(x.shape, axis)
    if before == after == 0:
        return x
    shape = _resized(x.shape, axis, before + x.shape[axis] + after)
    return emit("pad", [x], [spec(shape, x)], {"axis": axis, "before": before, "after": after})[0]


@op
def concat(arrays: Sequence[Array], axis: int = -1) -> Array:
    """Arrays joined along one axis.

    Raises:
        ShapeError: They differ on another axis, or in dtype.
    """
    axis = _check_concat(arrays, axis)
    return np.concatenate(arrays, axis=axis)


@concat.staged
def _(arrays: Sequence[Array], axis: int = -1) -> Array:
    axis = _check_concat(arrays, axis)
    if len(arrays) == 1:
        return arrays[0]
    shape = _resized(arrays[0].shape, axis, sum(x.shape[axis] for x in arrays))
    return emit("concat", arrays, [spec(shape, arrays[0])], {"axis": axis})[0]


def _check_concat(arrays: Sequence[Array], axis: int) -> int:
    if not arrays:
        raise ShapeError("expected at least one array to join, got none")
    first = arrays[0]
    axis = _axis(tuple(first.shape), axis)
    for x in arrays[1:]:
        _axis(tuple(x.shape), axis)
        if x.dtype != first.dtype:
            raise ShapeError(f"expected arrays of one dtype to join, got {first.dtype} and {x.dtype}")
        if _resized(tuple(x.shape), axis, 0) != _resized(tuple(first.shape), axis, 0):
            raise ShapeError(
                f"expected arrays that differ on axis {axis} only, got {list(first.shape)} and {list(x.shape)}"
            )
    return axis


def split(x: Array, sizes: Sequence[int], axis: int = -1) -> tuple[Array, ...]:
    """The array cut into parts of these sizes along one axis: the vjp of `concat`.

    Raises:
        ShapeError: The sizes do not add up to the axis.
    """
    if sum(sizes) != x.shape[_axis(tuple(x.shape), axis)]:
        raise ShapeError(f"expected {sum(sizes)} positions on axis {axis} to cut up, got an array {list(x.shape)}")
    ends = np.cumsum([0, *sizes]).tolist()
    return tuple(slice_axis(x, start, stop, axis) for start, stop in pairwise(ends))


@op
def broadcast_to(x: Array, shape: Shape) -> Array:
    """The array repeated along new axes in front, and along axes of size 1.

    Raises:
        ShapeError: Its shape does not broadcast to that.
    """
    _check_broadcast(x, shape)
    return np.broadcast_to(x, shape).copy()  # type: ignore[arg-type]


@broadcast_to.staged
def _(x: Array, shape: Shape) -> Array:
    _check_broadcast(x, shape)
    return x if tuple(x.shape) == tuple(shape) else emit("broadcast_to", [x], [spec(tuple(shape), x)])[0]


def _check_broadcast(x: Array, shape: Shape) -> None:
    if broadcast(tuple(x.shape), tuple(shape)) != tuple(shape):
        raise ShapeError(f"expected a shape that broadcasts to {list(shape)}, got {list(x.shape)}")


# ---- picking ---------------------------------------------------------------------------------------------------------


def _check_ids(ids: Array, count: int) -> None:
    if not np.issubdtype(ids.dtype, np.integer):
        raise ShapeError(f"expected integer ids, got {ids.dtype} of shape {list(ids.shape)}")
    if isinstance(ids, np.ndarray) and ids.size:
        wrong = (ids < 0) | (ids >= count)
        if wrong.any():
            at = [int(i) for i in np.argwhere(wrong)[0]]
            raise ShapeError(f"expected ids 0..{count - 1}, got {int(ids[tuple(at)])} at position {at}")


def _wide(ids: Array, count: int) -> Array:
    """The ids in a dtype that holds `count` too: bytes name 256 of a thousand positions."""
    return ids if count <= np.iinfo(ids.dtype).max else cast(ids, "int64")


def _chosen(ids: Array, count: int) -> Array:
    """[..., count]: whether it is this position that the id names."""
    ids = _wide(ids, count)
    return equal(reshape(ids, (*ids.shape, 1)), np.arange(count, dtype=ids.dtype.newbyteorder("=")))


@op
def pick(x: Array, ids: Array) -> Array:
    """One row of each sample: y[..., :] = x[..., ids[...], :].

    Args:
        x: [..., N, K].
        ids: Integers [...], 0 to N - 1.

    Raises:
        ShapeError: An id is out of range (reference path; a compiled program gives a row of NaN).
    """
    _check_ids(ids, x.shape[-2])
    return np.take_along_axis(x, ids[..., None, None], axis=-2)[..., 0, :]


@pick.staged
def _(x: Array, ids: Array) -> Array:
    count = x.shape[_axis(x.shape, -2)]
    _check_ids(ids, count)
    rows = where(reshape(_chosen(ids, count), (*ids.shape, count, 1)), x, 0.0)
    column = reshape(_wide(ids, count), (*ids.shape, 1))
    rows = sum_axis(rows, -2)
    return where(greater(0, column), np.nan, where(greater_equal(column, count), np.nan, rows))


@op
def pick_grad(grad: Array, ids: Array, count: int) -> Array:
    """Input gradient of `pick`: dy [..., K] in row ids[...] of [..., count, K], 0 elsewhere."""
    return np.where(_chosen(ids, count)[..., None], grad[..., None, :], grad.dtype.type(0))


@pick_grad.checked
def _(grad: Array, ids: Array, count: int) -> None:
    expect_grad(grad, (*ids.shape, *grad.shape[-1:]))


@pick_grad.staged
def _(grad: Array, ids: Array, count: int) -> Array:
    chosen = reshape(_chosen(ids, count), (*ids.shape, count, 1))
    return where(chosen, reshape(grad, (*grad.shape[:-1], 1, grad.shape[-1])), 0.0)


@op
def pick_columns(x: Array, ids: Array) -> Array:
    """Elements of the last axis: y[..., k] = x[..., ids[..., k]].

    Args:
        x: [..., N].
        ids: Integers [..., K], 0 to N - 1.

    Raises:
        ShapeError: An id is out of range (reference path; a compiled program gives NaN).
    """
    _check_ids(ids, x.shape[-1])
    return np.take_along_axis(x, ids, axis=-1)


@pick_columns.staged
def _(x: Array, ids: Array) -> Array:
    count = x.shape[_axis(x.shape, -1)]
    _check_ids(ids, count)
    rows = where(_chosen(ids, count), reshape(x, (*x.shape[:-1], 1, count)), 0.0)
    rows, ids = sum_axis(rows, -1), _wide(ids, count)
    return where(greater(0, ids), np.nan, where(greater_equal(ids, count), np.nan, rows))


@op
def pick_columns_grad(grad: Array, ids: Array, count: int) -> Array:
    """Input gradient of `pick_columns`: dx[..., n] = sum of dy[..., k] over the k with ids[..., k] = n."""
    rows = np.where(_chosen(ids, count), grad[..., None], grad.dtype.type(0))
    return sum_axis.reference(rows, -2)


@pick_columns_grad.checked
def _(grad: Array, ids: Array, count: int) -> None:
    expect_grad(grad, ids.shape)


@pick_columns_grad.staged
def _(grad: Array, ids: Array, count: int) -> Array:
    return sum_axis(where(_chosen(ids, count), reshape(grad, (*grad.shape, 1)), 0.0), -2)
