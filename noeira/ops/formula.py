"""Elementwise functions with parameters, by name, and the SwiGLU gate; with their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from noeira.ops.activation import activation, activation_grad
from noeira.ops.dispatch import Array, ShapeError, emit, expect_grad, known_size, op, spec

FORMULAS = ("leaky_relu", "elu", "softplus", "symlog", "symexp", "clamp", "exp")
"""Names in the order of the kernels' codes (`mojo_kernels/elementwise.mojo`)."""


def _options(name: str, a: float, b: float) -> np.ndarray:
    if name not in FORMULAS:
        raise ShapeError(f"expected a formula out of {', '.join(FORMULAS)}, got {name!r}")
    return np.array([FORMULAS.index(name), a, b], np.float64)


@op
def formula(x: Array, name: str, a: float = 0.0, b: float = 0.0) -> Array:
    """Apply f elementwise.

    leaky_relu x or a x below 0; elu x or a (e^x - 1) below 0; softplus log(1 + e^{a x}) / a, and x itself where
    a x > b; symlog sign(x) log(1 + |x|); symexp sign(x) (e^|x| - 1); clamp x limited to [a, b];
    exp e^x. NaN gives NaN.
    """
    _options(name, a, b)
    x = np.asarray(x)
    a_, b_ = x.dtype.type(a), x.dtype.type(b)
    with np.errstate(over="ignore", invalid="ignore"):
        match name:
            case "leaky_relu":
                return np.where(x > 0, x, x * a_)
            case "elu":
                return np.where(x > 0, x, a_ * np.expm1(np.minimum(x, 0)))
            case "softplus":
                z = x * a_
                return np.where(z > b_, x, np.logaddexp(0, z).astype(x.dtype) / a_)
            case "symlog":
                return np.copysign(np.log1p(np.abs(x)), x)
            case "symexp":
                return np.copysign(np.expm1(np.abs(x)), x)
            case "exp":
                return np.exp(x)
    return np.minimum(np.maximum(x, a_), b_)


@op
def formula_grad(grad: Array, x: Array, name: str, a: float = 0.0, b: float = 0.0) -> Array:
    """Gradient with respect to the input: grad * f'(x); at a kink that of the side below, for clamp 1."""
    _options(name, a, b)
    x = np.asarray(x)
    one, a_, b_ = x.dtype.type(1), x.dtype.type(a), x.dtype.type(b)
    with np.errstate(over="ignore", invalid="ignore"):
        match name:
            case "leaky_relu":
                return grad * np.where(x > 0, one, a_)
            case "elu":
                return grad * np.where(x > 0, one, a_ * np.exp(np.minimum(x, 0)))
            case "softplus":
                z = x * a_
                return grad * np.where(z > b_, one, np.exp(-np.logaddexp(0, -z))).astype(x.dtype)
            case "symlog":
                return grad / (1 + np.abs(x))
            case "symexp":
                return grad * np.exp(np.abs(x))
            case "exp":
                return grad * np.exp(x)
    return grad * ((x >= a_) & (x <= b_))


@formula.staged
def _(x: Array, name: str, a: float = 0.0, b: float = 0.0) -> Array:
    return emit("noeira.elementwise", [x, _options(name, a, b)], [x.spec], flops=known_size(x.shape))[0]


@formula_grad.checked
def _(grad: Array, x: Array, name: str, a: float = 0.0, b: float = 0.0) -> None:
    expect_grad(grad, x.shape)


@formula_grad.staged
def _(grad: Array, x: Array, name: str, a: float = 0.0, b: float = 0.0) -> Array:
    operands = [grad, x, _options(name, a, b)]
    return emit("noeira.elementwise_grad", operands, [x.spec], flops=2 * known_size(x.shape))[0]


@op
def swiglu(x: Array) -> Array:
    """Gate y = u silu(v) of [u, v] = x: the last axis halves, [..., 2 H] becomes [..., H]."""
    u, v = np.split(x, 2, axis=-1)
    return u * activation.reference(v, "silu")


@op
def swiglu_grad(grad: Array, x: Array) -> Array:
    """Input gradient of `swiglu`: [dy silu(v), dy u silu'(v)]."""
    u, v = np.split(x, 2, axis=-1)
    return np.concatenate(
        [grad * activation.reference(v, "silu"), activation_grad.reference(grad * u, v, "silu")], axis=-1
    )


@swiglu.staged
def _(x: Array) -> Array:
    return emit("noeira.swiglu", [x], [spec((*x.shape[:-1], _half(x)), x)], flops=2 * known_size(x.shape))[0]


@swiglu_grad.checked
def _(grad: Array, x: Array) -> None:
    expect_grad(grad, (*x.shape[:-1], _half(x)))


@swiglu_grad.staged
def _(grad: Array, x: Array) -> Array:
    return emit("noeira.swiglu_grad", [grad, x], [x.spec], flops=4 * known_size(x.shape))[0]


def _half(x: Array) -> Any:
    if not isinstance(x.shape[-1], int) or x.shape[-1] % 2:
        raise ShapeError(f"expected an even width to halve, got {list(x.shape)}")
    return x.shape[-1] // 2
