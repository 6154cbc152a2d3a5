"""Elementwise arithmetic, with NumPy's broadcasting; also installed as the operators of staged values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from noeira.ops.dispatch import Array, Op, broadcast, op, spec
from noeira.runtime.staging import Staged


def _binary(name: str) -> Callable[[Array, Array], Array]:
    def rule(a: Array, b: Array) -> Array:
        like = a if isinstance(a, Staged) else b
        a, b = (v if isinstance(v, Staged) else np.asarray(v, like.dtype) for v in (a, b))
        return like.graph.emit(name, [a, b], [spec(broadcast(a.shape, b.shape), like)])[0]

    return rule


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
    return a.graph.emit("negative", [a], [a.spec])[0]


for _op in (add, subtract, multiply, divide):
    _op.staged(_binary(_op.__name__))  # type: ignore[attr-defined]


def _reflected(operation: Op[..., Array]) -> Callable[[Array, Array], Array]:
    return lambda self, other: operation(other, self)


for _symbol, _op in (("add", add), ("sub", subtract), ("mul", multiply), ("truediv", divide)):
    setattr(Staged, f"__{_symbol}__", lambda self, other, _op=_op: _op(self, other))
    setattr(Staged, f"__r{_symbol}__", _reflected(_op))
Staged.__neg__ = lambda self: negative(self)  # type: ignore[attr-defined]
