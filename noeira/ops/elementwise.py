"""Elementwise arithmetic, with NumPy's broadcasting; also installed as the operators of staged values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from noeira.ops.dispatch import Array, Op, ShapeError, broadcast, emit, op
from noeira.runtime.staging import Spec, Staged


def _promoted(a: Array, b: Array) -> np.dtype[Any]:
    """NumPy's promotion, in which a Python number takes the dtype of the array it meets."""
    return np.result_type(*(v if isinstance(v, int | float) else v.dtype for v in (a, b)))


def _unary(name: str) -> Callable[[Array], Array]:
    return lambda x: emit(name, [x], [x.spec])[0]


def _binary(name: str, result: str | None = None) -> Callable[[Array, Array], Array]:
    def rule(a: Array, b: Array) -> Array:
        dtype = _promoted(a, b)
        a, b = (cast(v, dtype.name) if isinstance(v, Staged) else np.asarray(v, dtype) for v in (a, b))
        return emit(name, [a, b], [Spec(broadcast(a.shape, b.shape), result or dtype.name)])[0]

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


@op
def maximum(a: Array, b: Array) -> Array:
    """The larger of a and b, elementwise; NaN where either is."""
    return np.maximum(a, b)


@maximum.staged
def _(a: Array, b: Array) -> Array:
    return where(greater(a, b), a, where(greater_equal(b, a), b, add(a, b)))  # MAX's own drops NaN


@op
def minimum(a: Array, b: Array) -> Array:
    """The smaller of a and b, elementwise; NaN where either is."""
    return np.minimum(a, b)


@minimum.staged
def _(a: Array, b: Array) -> Array:
    return where(greater(b, a), a, where(greater_equal(a, b), b, add(a, b)))


def power(x: Array, exponent: int) -> Array:
    """X to an integer power, by repeated multiplication; any other power is exp(b log(a))."""
    if not isinstance(exponent, int | np.integer) or isinstance(exponent, bool):
        raise ShapeError(f"expected an integer exponent, got {exponent!r}; write exp(b * log(a)) for other powers")
    result, square, n = None, x, abs(int(exponent))
    while n:
        if n % 2:
            result = square if result is None else multiply(result, square)
        n //= 2
        square = multiply(square, square) if n else square
    if result is None:
        return where(equal(x, x), 1.0, 1.0)
    return result if exponent > 0 else divide(1.0, result)


@op
def exp(x: Array) -> Array:
    """Exponential, e to the power x."""
    with np.errstate(over="ignore"):
        return np.exp(x)


@exp.staged
def _(x: Array) -> Array:
    return emit("noeira.elementwise", [x, np.array([6, 0, 0], np.float64)], [x.spec])[0]  # MAX's own turns NaN into inf


@op
def log(x: Array) -> Array:
    """Natural logarithm; -inf at 0, NaN below."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.log(x)


@op
def sqrt(x: Array) -> Array:
    """Square root; NaN below 0."""
    with np.errstate(invalid="ignore"):
        return np.sqrt(x)


@op
def absolute(x: Array) -> Array:
    """Absolute value."""
    return np.abs(x)


@op
def sin(x: Array) -> Array:
    """Sine; NaN at infinities."""
    with np.errstate(invalid="ignore"):
        return np.sin(x)


@op
def cos(x: Array) -> Array:
    """Cosine; NaN at infinities."""
    with np.errstate(invalid="ignore"):
        return np.cos(x)


@op
def floor_divide(a: Array, b: Array) -> Array:
    """The quotient rounded down."""
    return np.floor_divide(a, b)


@op
def greater(a: Array, b: Array) -> Array:
    """Whether a > b, elementwise: booleans."""
    return np.greater(a, b)


@op
def greater_equal(a: Array, b: Array) -> Array:
    """Whether a >= b, elementwise: booleans."""
    return np.greater_equal(a, b)


@op
def equal(a: Array, b: Array) -> Array:
    """Whether a == b, elementwise: booleans."""
    return np.equal(a, b)


def less(a: Array, b: Array) -> Array:
    """Whether a < b, elementwise: booleans."""
    return greater(b, a)


def less_equal(a: Array, b: Array) -> Array:
    """Whether a <= b, elementwise: booleans."""
    return greater_equal(b, a)


@op
def where(condition: Array, a: Array, b: Array) -> Array:
    """A where the condition holds, b elsewhere; all three broadcast."""
    dtype = _promoted(a, b)
    return np.where(condition, np.asarray(a, dtype), np.asarray(b, dtype))


@where.staged
def _(condition: Array, a: Array, b: Array) -> Array:
    dtype = _promoted(a, b)
    a, b = (cast(v, dtype.name) if isinstance(v, Staged) else np.asarray(v, dtype) for v in (a, b))
    shape = broadcast(broadcast(condition.shape, a.shape), b.shape)
    return emit("where", [condition, a, b], [Spec(shape, dtype.name)])[0]


def sign(x: Array) -> Array:
    """-1, 0 or 1; NaN gives NaN."""
    return where(greater(x, 0), 1.0, where(greater(0, x), -1.0, x))


for _op in (add, subtract, multiply, divide, floor_divide):
    _op.staged(_binary(_op.__name__))  # type: ignore[attr-defined]
for _op in (greater, greater_equal, equal):
    _op.staged(_binary(_op.__name__, "bool"))  # type: ignore[attr-defined]
for _op in (log, sqrt, absolute, sin, cos):
    _op.staged(_unary(_op.__name__))  # type: ignore[attr-defined]


def _reflected(operation: Op[..., Array]) -> Callable[[Array, Array], Array]:
    return lambda self, other: operation(other, self)


for _symbol, _op in (("add", add), ("sub", subtract), ("mul", multiply), ("truediv", divide)):
    setattr(Staged, f"__{_symbol}__", lambda self, other, _op=_op: _op(self, other))
    setattr(Staged, f"__r{_symbol}__", _reflected(_op))
Staged.__neg__ = lambda self: negative(self)  # type: ignore[attr-defined]
