"""Rows of a table picked by integer ids, and the gradient added back into them."""

from __future__ import annotations

import numpy as np

from noeira.ops.dispatch import Array, ShapeError, emit, expect_grad, known_size, op, spec


def _check(ids: Array, rows: int | str) -> None:
    if not np.issubdtype(ids.dtype, np.integer):
        raise ShapeError(f"expected integer ids, got {ids.dtype}")
    if isinstance(ids, np.ndarray) and isinstance(rows, int) and ids.size:
        wrong = (ids < 0) | (ids >= rows)
        if wrong.any():
            position = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise ShapeError(f"expected ids 0..{rows - 1}, got {int(ids[position])} at position {list(position)}")


@op
def embedding(ids: Array, table: Array) -> Array:
    """Look up rows: y[..., :] = table[ids[...], :].

    Args:
        ids: Integers of any shape, 0 to rows - 1.
        table: [rows, width].

    Raises:
        ShapeError: An id is out of range (reference path; a compiled program gives a row of NaN and reads nothing).
    """
    _check(ids, table.shape[0])
    return table[ids]


@embedding.staged
def _(ids: Array, table: Array) -> Array:
    _check(ids, table.shape[0])
    return emit("noeira.embedding", [table, _native(ids)], [spec((*ids.shape, table.shape[1]), table)])[0]


def _native(ids: Array) -> Array:
    """An array of ids among staged values becomes a constant in the machine's byte order."""
    return ids.astype(ids.dtype.newbyteorder("=")) if isinstance(ids, np.ndarray) else ids


@op
def embedding_grad(table_grad: Array, ids: Array, grad: Array, padding_idx: int | None = None) -> None:
    """Add in place, in the order of the ids: dtable[ids[...], :] += dy[..., :]; not where the id is `padding_idx`."""
    _check(ids, table_grad.shape[0])
    flat, rows = ids.reshape(-1), grad.reshape(-1, table_grad.shape[1])
    if padding_idx is not None:
        kept = flat != padding_idx
        flat, rows = flat[kept], rows[kept]
    np.add.at(table_grad, flat, rows)


@embedding_grad.checked
def _(table_grad: Array, ids: Array, grad: Array, padding_idx: int | None = None) -> None:
    expect_grad(grad, (*ids.shape, table_grad.shape[1]))


@embedding_grad.staged
def _(table_grad: Array, ids: Array, grad: Array, padding_idx: int | None = None) -> None:
    _check(ids, table_grad.shape[0])
    padding = np.array([-1 if padding_idx is None else padding_idx], np.int64)
    emit("noeira.embedding_grad", [table_grad, _native(ids), grad, padding], [], flops=known_size(grad.shape))
