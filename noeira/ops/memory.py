"""Writing memory that outlives a step: gradients, running statistics."""

from __future__ import annotations

import numpy as np

from noeira.ops.dispatch import Array, ShapeError, emit, op


@op
def assign(memory: Array, value: Array) -> None:
    """Overwrite `memory` with `value`, in place.

    Raises:
        ShapeError: The shapes differ; nothing is broadcast.
    """
    _check(memory, value)
    memory[...] = value


@assign.staged
def _(memory: Array, value: Array) -> None:
    _check(memory, value)
    emit("noeira.assign", [memory, value], [])


@op
def accumulate(memory: Array, value: Array) -> None:
    """Add `value` to `memory`, in place.

    Raises:
        ShapeError: The shapes differ; nothing is broadcast.
    """
    _check(memory, value)
    memory[...] += value


@accumulate.staged
def _(memory: Array, value: Array) -> None:
    _check(memory, value)
    emit("noeira.accumulate", [memory, value], [])


@op
def load(memory: Array) -> Array:
    """The current contents, as a value that later writes do not change."""
    return memory.copy()


@load.staged
def _(memory: Array) -> Array:
    return emit("noeira.load", [memory], [memory.spec])[0]


def _check(memory: Array, value: Array) -> None:
    if tuple(memory.shape) != tuple(value.shape):
        raise ShapeError(f"expected a value of shape {list(memory.shape)} to write, got {list(value.shape)}")


@op
def axpy(memory: Array, factor: float, value: Array) -> None:
    """Add a multiple in place: memory += factor value.

    Raises:
        ShapeError: The shapes differ; nothing is broadcast.
    """
    _check(memory, value)
    memory += value * memory.dtype.type(factor)


@axpy.staged
def _(memory: Array, factor: float, value: Array) -> None:
    _check(memory, value)
    emit("noeira.axpy", [memory, value, np.array([factor])], [])


@op
def polyak(memory: Array, value: Array, tau: float) -> None:
    """Move memory towards a value in place: memory += tau (value - memory); exactly the value for tau = 1.

    Raises:
        ShapeError: The shapes differ; nothing is broadcast.
    """
    _check(memory, value)
    if tau == 1:
        memory[...] = value
    else:
        memory += (value - memory) * memory.dtype.type(tau)


@polyak.staged
def _(memory: Array, value: Array, tau: float) -> None:
    _check(memory, value)
    if tau == 1:
        assign(memory, value)
    else:
        emit("noeira.polyak", [memory, value, np.array([tau])], [])
