"""Normalisation of rows: LayerNorm, RMSNorm, GroupNorm and min-max scaling, with their gradients.

Statistics are found in float64 on the reference. Compiled, they are shifted sums in the dtype of x whose blocks are
joined in float64, so that a large offset costs no accuracy there either (`mojo_kernels/norm.mojo`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from noeira.ops.activation import activation as activate
from noeira.ops.activation import code
from noeira.ops.dispatch import Array, emit, expect_grad, known_size, op, spec
from noeira.ops.linear import sum_rows
from noeira.ops.memory import accumulate

STATS = 3
"""Numbers kept for each row or channel: the mean, what rounding took from it, and rstd."""


def _rows(x: np.ndarray, groups: int) -> np.ndarray:
    """In float64, one normalised set of elements a row: the last axis, or (0) groups of the channels on axis 1."""
    shape = (-1, x.shape[-1]) if groups == 0 else (x.shape[0] * groups, x[:1].size // groups if x.shape[0] else 1)
    return x.astype(np.float64).reshape(shape)


def _along(values: np.ndarray, x: np.ndarray, groups: int) -> np.ndarray:
    """A parameter of the features, shaped to broadcast against x."""
    return values.astype(np.float64) if groups == 0 else values.astype(np.float64)[:, *(None,) * (x.ndim - 2)]


def _sum_features(x: np.ndarray, groups: int) -> np.ndarray:
    """Sum over everything but the features."""
    return x.sum(axis=tuple(range(x.ndim - 1)) if groups == 0 else (0, *range(2, x.ndim)))


def _stats_shape(x: Array, groups: int) -> tuple[Any, ...]:
    return (*x.shape[:-1], STATS) if groups == 0 else (x.shape[0], groups, STATS)


def pack_stats(mean: np.ndarray, variance: np.ndarray, eps: float, dtype: Any) -> np.ndarray:
    """Statistics as they are kept."""
    high = mean.astype(dtype)
    return np.stack([high, mean - high, 1 / np.sqrt(variance + eps)], axis=-1).astype(dtype)


def _normalised(x: np.ndarray, stats: np.ndarray, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """(x - mean) rstd and rstd, in float64 and shaped as `_rows`."""
    s = stats.astype(np.float64).reshape(-1, STATS)
    return (_rows(x, groups) - s[:, :1] - s[:, 1:2]) * s[:, 2:], s[:, 2:]


def _options(eps: float, center: bool, groups: int, activation: str = "identity") -> np.ndarray:
    return np.array([eps, center, groups, code(activation)], np.float64)


def or_nothing(parameter: Array | None, like: Array) -> Array:
    """A parameter, or the empty array that stands for a missing one in kernels."""
    return np.zeros(0, like.dtype) if parameter is None else parameter


@op
def row_norm(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    eps: float,
    center: bool = True,
    groups: int = 0,
    activation: str = "identity",
) -> tuple[Array, Array]:
    """Normalise each row: y = f((x - mean) rstd w + b), rstd = 1 / sqrt(var + eps), var the biased variance.

    Args:
        x: [..., n], or [B, C, ...] with `groups`.
        weight: w, one number a feature; None for 1.
        bias: b, one number a feature; None for 0.
        eps: Added to the variance.
        center: False takes the mean as 0, so that var is the mean of x^2 (RMSNorm).
        groups: 0 normalises the last axis; else each of so many groups of the channels on axis 1 with all its
            positions, and features are channels.
        activation: Name of f, out of `ops.activation.ACTIVATIONS`.

    Returns:
        y, and the statistics that `row_norm_grad` needs: [..., 3] or [B, groups, 3].
    """
    rows = _rows(x, groups)
    mean = rows.mean(axis=1) if center else np.zeros(len(rows))
    variance = np.mean(np.square(rows - mean[:, None]), axis=1)
    stats = pack_stats(mean, variance, eps, x.dtype).reshape(_stats_shape(x, groups))
    y = ((rows - mean[:, None]) / np.sqrt(variance + eps)[:, None]).reshape(x.shape)
    if weight is not None:
        y = y * _along(weight, x, groups)
    if bias is not None:
        y = y + _along(bias, x, groups)
    return activate(y.astype(x.dtype), activation), stats


@row_norm.staged
def _(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    eps: float,
    center: bool = True,
    groups: int = 0,
    activation: str = "identity",
) -> Any:
    operands = [x, or_nothing(weight, x), or_nothing(bias, x), _options(eps, center, groups, activation)]
    return emit("noeira.row_norm", operands, [x.spec, spec(_stats_shape(x, groups), x)], flops=8 * known_size(x.shape))


def row_norm_grad(
    weight_grad: Array | None,
    bias_grad: Array | None,
    grad: Array,
    x: Array,
    stats: Array,
    weight: Array | None,
    center: bool = True,
    groups: int = 0,
) -> Array:
    """Input gradient of `row_norm` (without its activation); adds the parameters' gradients in place.

    With n = (x - mean) rstd and g = dy w: dx = rstd (g - mean(g) - n mean(g n)), the middle term only with `center`;
    dw += sum of dy n, db += sum of dy. A target that is None is not computed.
    """
    expect_grad(grad, x.shape)
    if weight_grad is not None and bias_grad is not None:
        return _row_norm_grad(weight_grad, bias_grad, grad, x, stats, weight, center, groups)
    if bias_grad is not None:
        _bias_grad(bias_grad, grad, groups)
    if weight_grad is not None:
        return _row_norm_weight_grad(weight_grad, grad, x, stats, weight, center, groups)
    return _row_norm_input_grad(grad, x, stats, weight, center, groups)


def _bias_grad(bias_grad: Array, grad: Array, groups: int) -> None:
    from noeira.ops.reduce import sum_channels

    accumulate(bias_grad, sum_rows(grad) if groups == 0 else sum_channels(grad))


@op
def _row_norm_input_grad(grad: Array, x: Array, stats: Array, weight: Array | None, center: bool, groups: int) -> Array:
    n, rstd = _normalised(x, stats, groups)
    g = grad.astype(np.float64) if weight is None else grad * _along(weight, x, groups)
    g = _rows(g, groups)
    middle = g.mean(axis=1, keepdims=True) if center else 0
    dx = rstd * (g - middle - n * np.mean(g * n, axis=1, keepdims=True))
    return dx.reshape(x.shape).astype(x.dtype)


@op
def _row_norm_weight_grad(
    weight_grad: Array, grad: Array, x: Array, stats: Array, weight: Array | None, center: bool, groups: int
) -> Array:
    n = _normalised(x, stats, groups)[0].reshape(x.shape)
    weight_grad += _sum_features(grad * n, groups).astype(x.dtype)
    return _row_norm_input_grad.reference(grad, x, stats, weight, center, groups)


@op
def _row_norm_grad(
    weight_grad: Array,
    bias_grad: Array,
    grad: Array,
    x: Array,
    stats: Array,
    weight: Array | None,
    center: bool,
    groups: int,
) -> Array:
    bias_grad += _sum_features(grad.astype(np.float64), groups).astype(x.dtype)
    return _row_norm_weight_grad.reference(weight_grad, grad, x, stats, weight, center, groups)


@_row_norm_input_grad.staged
def _(grad: Array, x: Array, stats: Array, weight: Array | None, center: bool, groups: int) -> Array:
    return _emit_grad("noeira.row_norm_input_grad", [], grad, x, stats, weight, _options(0, center, groups))


@_row_norm_weight_grad.staged
def _(
    weight_grad: Array, grad: Array, x: Array, stats: Array, weight: Array | None, center: bool, groups: int
) -> Array:
    options = _options(0, center, groups)
    return _emit_grad("noeira.row_norm_weight_grad", [weight_grad], grad, x, stats, weight, options)


@_row_norm_grad.staged
def _(
    weight_grad: Array,
    bias_grad: Array,
    grad: Array,
    x: Array,
    stats: Array,
    weight: Array | None,
    center: bool,
    groups: int,
) -> Array:
    options = _options(0, center, groups)
    return _emit_grad("noeira.row_norm_grad", [weight_grad, bias_grad], grad, x, stats, weight, options)


def _emit_grad(
    name: str, targets: list[Array], grad: Array, x: Array, stats: Array, weight: Array | None, options: np.ndarray
) -> Array:
    operands = [*targets, grad, x, stats, or_nothing(weight, x), options]
    return emit(name, operands, [x.spec], flops=12 * known_size(x.shape))[0]


# ---- min-max ---------------------------------------------------------------------------------------------------------


@op
def min_max_norm(x: Array, eps: float) -> Array:
    """Scale each row to [0, 1]: y = (x - min) / max(max - min, eps) over the last axis."""
    low = x.min(axis=-1, keepdims=True)
    return (x - low) / np.maximum(x.max(axis=-1, keepdims=True) - low, x.dtype.type(eps))


@min_max_norm.staged
def _(x: Array, eps: float) -> Array:
    operands = [x, np.array([eps], np.float64)]
    return emit("noeira.min_max_norm", operands, [x.spec], flops=4 * known_size(x.shape))[0]


@op
def min_max_norm_grad(grad: Array, x: Array, eps: float) -> Array:
    """Input gradient of `min_max_norm`, through the first minimum and maximum as well.

    With s = 1 / (max - min): dx = s dy, plus s (sum dy y - sum dy) at the minimum and - s sum dy y at the maximum.
    A row no wider than eps has gradient 0, whatever dy is; a NaN spreads over its row.
    """
    y = min_max_norm.reference(x, eps)
    low, high = x.argmin(axis=-1)[..., None], x.argmax(axis=-1)[..., None]
    span = np.take_along_axis(x, high, -1) - np.take_along_axis(x, low, -1)
    narrow = span <= x.dtype.type(eps)
    scale = 1 / np.where(narrow, x.dtype.type(1), span)
    dx = grad * scale
    product = np.sum(grad * y, axis=-1, keepdims=True, dtype=np.float64)
    total = np.sum(grad, axis=-1, keepdims=True, dtype=np.float64)
    for where, value in ((low, product - total), (high, -product)):
        moved = np.take_along_axis(dx, where, -1) + (value * scale).astype(x.dtype)
        np.put_along_axis(dx, where, moved, -1)
    return np.where(narrow, x.dtype.type(0), dx)


@min_max_norm_grad.checked
def _(grad: Array, x: Array, eps: float) -> None:
    expect_grad(grad, x.shape)


@min_max_norm_grad.staged
def _(grad: Array, x: Array, eps: float) -> Array:
    operands = [grad, x, np.array([eps], np.float64)]
    return emit("noeira.min_max_norm_grad", operands, [x.spec], flops=6 * known_size(x.shape))[0]
