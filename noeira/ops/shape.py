"""Changes of shape that move no data."""

from __future__ import annotations

import numpy as np

from noeira.ops.dispatch import Array, ShapeError, emit, op, size, spec
from noeira.runtime.staging import Shape


@op
def reshape(x: Array, shape: Shape) -> Array:
    """The same elements in the same order under another shape.

    Raises:
        ShapeError: The number of elements differs.
    """
    if size(np.shape(x)) != size(tuple(shape)):
        raise ShapeError(f"cannot reshape {list(np.shape(x))} to {list(shape)}: the number of elements differs")
    return np.reshape(x, shape)  # type: ignore[arg-type]


@reshape.staged
def _(x: Array, shape: Shape) -> Array:
    if size(x.shape) != size(tuple(shape)):
        raise ShapeError(f"cannot reshape {list(x.shape)} to {list(shape)}: the number of elements differs")
    return emit("reshape", [x], [spec(tuple(shape), x)])[0]


def flatten_leading(x: Array) -> Array:
    """All axes but the last merged: [..., F] becomes [rows, F]."""
    return x if len(x.shape) == 2 else reshape(x, (size(x.shape[:-1]), x.shape[-1]))
