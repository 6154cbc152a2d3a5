"""Softmax, log-softmax and log-sum-exp over the last axis, and their gradients.

A row of -inf alone has log-sum-exp -inf, log-softmax -inf and softmax 0, and passes no gradient: what a fully masked
row of attention scores needs. (PyTorch's softmax gives NaN there.)
"""

from __future__ import annotations

import numpy as np

from noeira.ops.dispatch import Array, emit, expect_grad, known_size, op, spec

_SOFTMAX, _LOG_SOFTMAX = np.array([0], np.int32), np.array([1], np.int32)


def _shifted(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The row's maximum (0 for a row of -inf), e^(x - maximum), and where rows are -inf alone."""
    high = np.max(x, axis=-1, keepdims=True) if x.shape[-1] else np.zeros((*x.shape[:-1], 1), x.dtype)
    empty = np.isneginf(high)
    with np.errstate(invalid="ignore"):  # inf - inf, where x holds inf
        return np.where(empty, x.dtype.type(0), high), np.exp(x - np.where(empty, x.dtype.type(0), high)), empty


@op
def softmax(x: Array) -> Array:
    """Softmax y_c = e^{x_c} / sum_k e^{x_k}."""
    _, e, empty = _shifted(x)
    total = np.sum(e, axis=-1, keepdims=True, dtype=np.float64)
    return (e / np.where(empty, 1, total)).astype(x.dtype)


@op
def log_softmax(x: Array) -> Array:
    """Log-softmax y_c = x_c - log sum_k e^{x_k}."""
    high, e, empty = _shifted(x)
    total = np.sum(e, axis=-1, keepdims=True, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        return ((x - high) - np.log(np.where(empty, 1, total))).astype(x.dtype)


@op
def softmax_grad(grad: Array, y: Array) -> Array:
    """Input gradient of `softmax` from its output: dx = y (dy - sum_k y_k dy_k)."""
    total = np.sum(np.multiply(grad, y, dtype=np.float64), axis=-1, keepdims=True)
    return (y * (grad - total)).astype(y.dtype)


@op
def log_softmax_grad(grad: Array, y: Array) -> Array:
    """Input gradient of `log_softmax` from its output: dx = dy - e^y sum_k dy_k."""
    empty = np.isneginf(np.max(y, axis=-1, keepdims=True, initial=-np.inf))
    total = np.sum(grad, axis=-1, keepdims=True, dtype=np.float64)
    return np.where(empty, 0, grad - np.exp(y) * total).astype(y.dtype)


@softmax.staged
def _(x: Array) -> Array:
    return emit("noeira.softmax", [x, _SOFTMAX], [x.spec], flops=5 * known_size(x.shape))[0]


@log_softmax.staged
def _(x: Array) -> Array:
    return emit("noeira.softmax", [x, _LOG_SOFTMAX], [x.spec], flops=5 * known_size(x.shape))[0]


@softmax_grad.checked
def _(grad: Array, y: Array) -> None:
    expect_grad(grad, y.shape)


@softmax_grad.staged
def _(grad: Array, y: Array) -> Array:
    return emit("noeira.softmax_grad", [grad, y, _SOFTMAX], [y.spec], flops=4 * known_size(y.shape))[0]


@log_softmax_grad.checked
def _(grad: Array, y: Array) -> None:
    expect_grad(grad, y.shape)


@log_softmax_grad.staged
def _(grad: Array, y: Array) -> Array:
    return emit("noeira.softmax_grad", [grad, y, _LOG_SOFTMAX], [y.spec], flops=4 * known_size(y.shape))[0]


@op
def log_sum_exp(x: Array) -> Array:
    """Log sum_k e^{x_k}: [..., C] becomes [...]."""
    high, e, empty = _shifted(x)
    total = np.sum(e, axis=-1, keepdims=True, dtype=np.float64)
    return np.where(empty, -np.inf, high + np.log(np.where(empty, 1, total)))[..., 0].astype(x.dtype)


@log_sum_exp.staged
def _(x: Array) -> Array:
    return emit("noeira.log_sum_exp", [x], [spec(x.shape[:-1], x)], flops=5 * known_size(x.shape))[0]


@op
def log_sum_exp_grad(grad: Array, x: Array, lse: Array) -> Array:
    """Input gradient of `log_sum_exp`: dx_c = dy e^{x_c - lse}."""
    empty = np.isneginf(lse)[..., None]
    share = np.exp(x - np.where(empty, 0, np.asarray(lse)[..., None]))
    return np.where(empty, 0, np.asarray(grad)[..., None] * share).astype(x.dtype)


@log_sum_exp_grad.checked
def _(grad: Array, x: Array, lse: Array) -> None:
    expect_grad(grad, lse.shape)


@log_sum_exp_grad.staged
def _(grad: Array, x: Array, lse: Array) -> Array:
    return emit("noeira.log_sum_exp_grad", [grad, x, lse], [x.spec], flops=3 * known_size(x.shape))[0]
