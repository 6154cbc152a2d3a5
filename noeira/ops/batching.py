"""Batches made on the device: the epoch's permutation, the rows of a batch, the counters that move on."""

from __future__ import annotations

import numpy as np

from noeira.ops import control
from noeira.ops.dispatch import Array, ShapeError, emit, op
from noeira.ops.random import bits
from noeira.runtime.staging import Spec

_SHUFFLE_STREAM = 0x5FFF1E
_WINDOW_STREAM = 0x71D0


@op
def shuffle(order: Array, counters: Array) -> None:
    """Fill `order` with the permutation of 0..n-1 that (seed, epoch) names, by Fisher-Yates; cursor = 0."""
    n = len(order)
    words = bits(n, seed=int(counters[control.SEED]), stream=_SHUFFLE_STREAM, step=int(counters[control.EPOCH]))
    order[:] = np.arange(n)
    for i in range(n - 1, 0, -1):
        j = int(words[i]) * (i + 1) >> 32
        order[i], order[j] = order[j], order[i]
    counters[control.CURSOR] = 0


@shuffle.staged
def _(order: Array, counters: Array) -> None:
    emit("noeira.shuffle", [order, counters], [])


@op
def gather_rows(data: Array, order: Array, counters: Array, dtype: str, scale: float = 1.0) -> Array:
    """The rows of a data set that make up the current batch, converted and scaled.

    Args:
        data: [N, ...] of any dtype.
        order: int32 [batches, batch]: row numbers.
        counters: Control memory; `counters[CURSOR]` is the batch.
        dtype: Dtype of the result.
        scale: Factor of every element (1/255 turns bytes into [0, 1]).

    Returns:
        [batch, ...].
    """
    rows = order[int(counters[control.CURSOR]) % len(order)]
    result = data[rows].astype(dtype)
    return result if scale == 1 else result * result.dtype.type(scale)


@gather_rows.staged
def _(data: Array, order: Array, counters: Array, dtype: str, scale: float = 1.0) -> Array:
    out = Spec((order.shape[1], *data.shape[1:]), dtype)
    factor = np.array([scale], dtype)
    return emit("noeira.gather_rows", [data, order, counters, factor], [out])[0]


@op
def windows(corpus: Array, counters: Array, count: int, length: int) -> tuple[Array, Array]:
    """Windows of a corpus for next-token prediction, drawn by (seed, step).

    Args:
        corpus: int32 [N], N > length.
        counters: Control memory; seed and step name the draw.
        count: B, the number of windows.
        length: T, tokens in each.

    Returns:
        x and y int32 [B, T]: y[b, t] follows x[b, t] in the corpus; window b begins at a place drawn evenly.

    Raises:
        ShapeError: The corpus is too short, or no int32 [N].
    """
    _check_corpus(corpus, count, length)
    words = bits(count, seed=int(counters[control.SEED]), stream=_WINDOW_STREAM, step=int(counters[control.STEP]))
    starts = (words.astype(np.uint64) * np.uint64(len(corpus) - length)) >> np.uint64(32)
    places = starts.astype(np.int64)[:, None] + np.arange(length)
    return corpus[places], corpus[places + 1]


@windows.staged
def _(corpus: Array, counters: Array, count: int, length: int) -> tuple[Array, Array]:
    _check_corpus(corpus, count, length)
    both = [Spec((count, length), "int32")] * 2
    return emit("noeira.windows", [corpus, counters], both)  # type: ignore[return-value]


def _check_corpus(corpus: Array, count: int, length: int) -> None:
    if len(corpus.shape) != 1 or corpus.dtype != np.int32:
        raise ShapeError(f"expected a corpus of ids, int32 [n], got {corpus.dtype}{list(corpus.shape)}")
    if count < 1 or length < 1:
        raise ShapeError(f"expected at least one window of one id, got {count} of {length}")
    n = corpus.shape[0]
    if isinstance(n, int) and not length < n < 1 << 31:
        raise ShapeError(f"expected a corpus of {length + 1} to 2^31 - 1 ids for windows of {length}, got {n}")


@op
def advance(counters: Array) -> None:
    """Move on to the next batch: step and cursor + 1."""
    counters[control.STEP] += 1
    counters[control.CURSOR] += 1


@advance.staged
def _(counters: Array) -> None:
    emit("noeira.advance", [counters], [])
