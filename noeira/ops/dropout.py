"""Dropout whose mask is a pure function of (key, element): redrawn in the backward, never stored."""

from __future__ import annotations

import numpy as np

from noeira.ops.dispatch import Array, emit, known_size, op
from noeira.ops.random import bits


def threshold(p: float) -> int:
    """Words below this number drop their element: P(word < threshold) = p."""
    return min(round(p * 2**32), 2**32)


@op
def dropout(x: Array, key: Array, p: float) -> Array:
    """Inverted dropout: zero each element with probability p, scale the others by 1/(1-p).

    It is its own vjp: apply it to the output's gradient with the same key.

    Args:
        x: Any shape.
        key: int64 [3], names the draw (`ops.random.fold_in`).
        p: Probability of dropping, 0 to 1; 1 gives zeros.
    """
    x = np.asarray(x)
    seed, step, stream = (int(value) for value in key[:3])
    words = bits(x.size, seed=seed, stream=stream, step=step).reshape(x.shape)
    return np.where(words.astype(np.uint64) >= threshold(p), x * _scale(p, x), x.dtype.type(0))


@dropout.staged
def _(x: Array, key: Array, p: float) -> Array:
    limit, scale = np.array([threshold(p)], np.int64), np.array([_scale(p, x)])
    return emit("noeira.dropout", [x, key, limit, scale], [x.spec], flops=known_size(x.shape))[0]


def _scale(p: float, like: Array) -> np.floating:
    return like.dtype.type(1 / (1 - p) if p < 1 else 0)
