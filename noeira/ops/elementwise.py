"""Elementwise arithmetic, with NumPy's broadcasting; also installed as the operators of staged values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from noeira.ops.dispatch import Array, Op, broadcast, emit, op
from noeira.runtime.staging import Spec, Staged


def _binary(name: str) -> Callable[[Array, Array], Array]:
    def rule(a: Array, b: Array) -> Array:
        # NumPy's promotion, in which a Python number takes the dtype of the array it meets
        dtype = np.result_type(*(v if isinstance(v, int | float) else v.dtype for v in (a, b)))
        a, b = (cast(v, dtype.name) if isinstance(v, Staged) else np.asarray(v, dtype) for v in (a, b))
        return emit(name, [a, b], [Spec(broadcast(a.shape, b.shape), dtype.name)])[0]

    return rule


@op
def cast(x: Array, dtype: str) -> Array:
    """The same numbers in another dtype."""
    return np.asarray(x).astype(dtype, copy=False)


@cast.staged
def _(x: Array, dtype: str) -> Array:
    return x if x.spec.dtype == dtype else emit("cast", [x], [Spec(x.shape, dtype)])[0]


@op
def add(a: Array, b: Array) -> Array:
    """Sum a + b."""
    return np.add(a, b)


@op
def subtract(a: Array, b: Array) -> Array:
    """Difference a - b."""
    return np.subtract(a, b)


@op
def multiply(a: Array, b: Array) -> Array:
    """Elementwise product a * b."""
    return np.multiply(a, b)


@op
def divide(a: Array, b: Array) -> Array:
    """Elementwise quotient a / b."""
    return np.divide(a, b)


@op
def negative(a: Array) -> Array:
    """Negation -a."""
    return np.negative(a)


@negative.staged
def _(a: Array) -> Array:
    return emit("negative", [a], [a.spec])[0]


for _op in (add, subtract, multiply, divide):
    _op.staged(_binary(_op.__name__))  # type: ignore[attr-defined]


def _reflected(operation: Op[..., Array]) -> Callable[[Array, Array], Array]:
    return lambda self, other: operation(other, self)


for _symbol, _op in (("add", add), ("sub", subtract), ("mul", multiply), ("truediv", divide)):
    setattr(Staged, f"__{_symbol}__", lambda self, other, _op=_op: _op(self, other))
    setattr(Staged, f"__r{_symbol}__", _reflected(_op))
Staged.__neg__ = lambda self: negative(self)  # type: ignore[attr-defined]
