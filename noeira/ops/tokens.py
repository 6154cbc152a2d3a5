"""Values that are the same for every sample of a batch, and which tokens a masked autoencoder drops."""

from __future__ import annotations

import numpy as np

from noeira.ops.dispatch import Array, ShapeError, emit, op, size, spec
from noeira.ops.elementwise import add, cast, floor_divide, greater, multiply, where
from noeira.ops.random import fold_in, words
from noeira.ops.shape import reshape


@op
def repeat_batch(value: Array, like: Array) -> Array:
    """One value for every sample: y[b] = value.

    Args:
        value: [...].
        like: [B, ...], only its number of samples is read. It is an operand so that a program knows it.

    Returns:
        [B, ...] of value's dtype.
    """
    return np.broadcast_to(value, (like.shape[0], *value.shape)).copy()


@repeat_batch.staged
def _(value: Array, like: Array) -> Array:
    return emit("broadcast_to", [value, like], [spec((like.shape[0], *value.shape), value)])[0]


def zeros_like(x: Array) -> Array:
    """Zeros of x's shape and dtype, whatever is in x."""
    return where(greater(x, x), x, 0.0)  # not 0 * x, which keeps NaN and inf


def dropped_tokens(key: Array, x: Array, p_min: float, p_max: float) -> Array:
    """Which tokens of each frame to drop: each with the frame's own probability p, drawn from U(p_min, p_max).

    All arithmetic is that of integers, so the decisions are the same on every device.

    Args:
        key: int64 [3], names the draw.
        x: [..., N, D]: frames of N tokens; its shape is read.
        p_min: Least probability.
        p_max: Largest probability.

    Returns:
        Booleans [..., N, 1].

    Raises:
        ShapeError: The number of tokens is free.
    """
    *leading, tokens, _ = x.shape
    if isinstance(tokens, str):
        raise ShapeError(f"expected a known number of tokens, got {list(x.shape)}")
    count = (size((*leading, tokens)),)
    low, high = (round(p * 2**32) for p in (p_min, p_max))
    span, shift = np.array([high - low], np.uint64), np.array([1 << 32], np.uint64)
    draws = words(fold_in(key, 0), count, tokens)
    rates = add(floor_divide(multiply(draws, span), shift), np.array([low], np.uint64))
    dropped = greater(cast(rates, "int64"), cast(words(fold_in(key, 1), count), "int64"))
    return reshape(dropped, (*leading, tokens, 1))
