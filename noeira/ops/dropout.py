"""Dropout whose mask is a pure function of (seed, stream, step, element): redrawn in the backward, never stored."""

from __future__ import annotations

import numpy as np

from noeira.ops.dispatch import Array, known_size, op
from noeira.ops.random import bits


def threshold(p: float) -> int:
    """Words below this number drop their element: P(word < threshold) = p."""
    return min(round(p * 2**32), 2**32)


@op
def dropout(x: Array, rng: Array, p: float, stream: int) -> Array:
    """Inverted dropout: zero each element with probability p, scale the others by 1/(1-p).

    It is its own vjp: apply it to the output's gradient with the same `rng` and `stream`.

    Args:
        x: Any shape.
        rng: int64 [>= 2]: seed and step, in device memory when staged.
        p: Probability of dropping, 0 to 1; 1 gives zeros.
        stream: Number of this draw within a step (one per layer and call).
    """
    x = np.asarray(x)
    words = bits(x.size, seed=int(rng[0]), stream=stream, step=int(rng[1])).reshape(x.shape)
    scale = x.dtype.type(1 / (1 - p) if p < 1 else 0)
    return np.where(words.astype(np.uint64) >= threshold(p), x * scale, x.dtype.type(0))


@dropout.staged
def _(x: Array, rng: Array, p: float, stream: int) -> Array:
    draw = np.array([threshold(p), stream], np.int64)
    scale = np.array([1 / (1 - p) if p < 1 else 0], x.dtype)
    return x.graph.emit("noeira.dropout", [x, rng, draw, scale], [x.spec], flops=known_size(x.shape))[0]
