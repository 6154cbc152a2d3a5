"""BatchNorm: each channel of x [B, C, ...] normalised over the batch and all positions, with its gradient.

An activation may follow in the same kernel. Its derivative is taken at values normalised again, so that nothing more
is saved for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from noeira.ops.activation import SAVES_OUTPUT, activation_grad, code
from noeira.ops.activation import activation as activate
from noeira.ops.dispatch import Array, ShapeError, emit, expect_grad, known_size, op, spec
from noeira.ops.elementwise import absolute, less_equal, where
from noeira.ops.memory import accumulate
from noeira.ops.norm import STATS, or_nothing, pack_stats
from noeira.ops.reduce import sum_channels
from noeira.ops.shape import reshape


def _channels(values: np.ndarray, x: np.ndarray) -> np.ndarray:
    """One number a channel, in float64, shaped to broadcast against x [B, C, ...]."""
    return values.astype(np.float64)[:, *(None,) * (x.ndim - 2)]


def _axes(x: np.ndarray) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def _affine(y: np.ndarray, x: np.ndarray, weight: Array | None, bias: Array | None) -> np.ndarray:
    if weight is not None:
        y = y * _channels(weight, x)
    if bias is not None:
        y = y + _channels(bias, x)
    return y.astype(x.dtype)


def _options(eps: float, momentum: float, training: bool, activation: str) -> np.ndarray:
    return np.array([eps, momentum, training, code(activation)], np.float64)


@op
@np.errstate(over="ignore", invalid="ignore")
def batch_norm_train(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    eps: float,
    momentum: float,
    activation: str = "identity",
) -> tuple[Array, Array, Array, Array]:
    """Normalise each channel of x [B, C, ...] by the batch: y = f((x - mean) rstd w + b), with the biased variance.

    Returns:
        y, the statistics [C, 3] that `batch_norm_grad` needs, and the running mean and variance moved on:
        (1 - momentum) old + momentum new, where the new variance is the unbiased one; the old one where that is not
        finite. Without running ones: empty.

    Raises:
        ShapeError: A channel has fewer than two values.
    """
    _need_two(x, running_mean is not None)
    wide, axes = x.astype(np.float64), _axes(x)
    count = x.size // x.shape[1]
    new_mean, new_var = np.zeros(0, x.dtype), np.zeros(0, x.dtype)
    mean, variance = wide.mean(axis=axes), wide.var(axis=axes)
    stats = pack_stats(mean, variance, eps, x.dtype)
    if running_mean is not None and running_var is not None:
        unbiased = variance * (count / (count - 1))
        new_mean = _moved(running_mean, mean, momentum)
        new_var = _moved(running_var, unbiased, momentum)
    y = (wide - _channels(mean, x)) / np.sqrt(_channels(variance, x) + eps)
    return activate(_affine(y, x, weight, bias), activation), stats, new_mean, new_var


def _moved(old: np.ndarray, new: np.ndarray, momentum: float) -> np.ndarray:
    return _finite_or(((1 - momentum) * old.astype(np.float64) + momentum * new).astype(old.dtype), old)


def _finite_or(new: Array, old: Array) -> Array:
    """The new statistic where it is finite, else the old one."""
    largest = float(np.finfo(np.float64 if new.dtype == np.float64 else np.float32).max)
    return where(less_equal(absolute(new), largest), new, old)  # MAX takes new == new for true, NaN or not


def _need_two(x: Array, running: bool) -> None:
    sizes = [x.shape[0], *x.shape[2:]]
    if all(isinstance(size, int | np.integer) for size in sizes) and int(np.prod(sizes)) < 2:
        when, way = "while training", "eval() to normalise with the running statistics"
        if not running:
            when, way = "without running statistics", "track_running_stats=True and eval()"
        raise ShapeError(
            f"{when}, BatchNorm needs more than one value per channel to estimate a variance, got an input of shape "
            f"{list(x.shape)}; use a larger batch, or {way}"
        )


@batch_norm_train.staged
def _(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    eps: float,
    momentum: float,
    activation: str = "identity",
) -> Any:
    _need_two(x, running_mean is not None)
    running = (0,) if running_mean is None else (x.shape[1],)
    results = [x.spec, spec((x.shape[1], STATS), x), spec(running, x), spec(running, x)]
    parameters = [or_nothing(value, x) for value in (weight, bias, running_mean, running_var)]
    options = _options(eps, momentum, True, activation)
    y, stats, mean, var = emit(
        "noeira.batch_norm_train", [x, *parameters, options], results, flops=8 * known_size(x.shape)
    )
    if running_mean is not None:
        mean, var = _finite_or(mean, running_mean), _finite_or(var, running_var)
    return y, stats, mean, var


@op
@np.errstate(over="ignore", invalid="ignore")
def batch_norm_eval(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    mean: Array,
    variance: Array,
    eps: float,
    activation: str = "identity",
) -> tuple[Array, Array]:
    """Normalise each channel of x [B, C, ...] by the statistics given; returns y and [C, 3] for the gradient."""
    rstd = 1 / np.sqrt(_channels(variance, x) + eps)
    y = (x.astype(np.float64) - _channels(mean, x)) * rstd
    stats = pack_stats(mean.astype(np.float64), variance.astype(np.float64), eps, x.dtype)
    return activate(_affine(y, x, weight, bias), activation), stats


@batch_norm_eval.staged
def _(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    mean: Array,
    variance: Array,
    eps: float,
    activation: str = "identity",
) -> Any:
    results = [x.spec, spec((x.shape[1], STATS), x)]
    operands = [x, or_nothing(weight, x), or_nothing(bias, x), mean, variance, _options(eps, 0, False, activation)]
    return emit("noeira.batch_norm_eval", operands, results, flops=4 * known_size(x.shape))


def batch_norm_grad(
    weight_grad: Array | None,
    bias_grad: Array | None,
    grad: Array,
    x: Array,
    stats: Array,
    weight: Array | None,
    bias: Array | None,
    training: bool,
    activation: str = "identity",
) -> Array:
    """Input gradient of either batch norm; adds the parameters' gradients in place.

    With n = (x - mean) rstd and dz = dy f'(n w + b): dx = w rstd (dz - mean(dz) - n mean(dz n)) where the statistics
    were the batch's (`training`), else dx = w rstd dz; dw += sum of dz n, db += sum of dz. A target that is None is not
    computed.
    """
    expect_grad(grad, x.shape)
    if weight_grad is not None and bias_grad is not None:
        return _batch_norm_grad(weight_grad, bias_grad, grad, x, stats, weight, bias, training, activation)
    if activation != "identity" and (weight_grad is not None or bias_grad is not None):
        grad, activation = _through(grad, x, stats, weight, bias, activation), "identity"
    if weight_grad is not None:
        accumulate(weight_grad, sum_channels(grad * batch_norm_normalised(x, stats)))
    if bias_grad is not None:
        accumulate(bias_grad, sum_channels(grad))
    return _batch_norm_input_grad(grad, x, stats, weight, bias, training, activation)


def _through(grad: Array, x: Array, stats: Array, weight: Array | None, bias: Array | None, activation: str) -> Array:
    """Dz = dy f'(n w + b)."""
    z = batch_norm_normalised(x, stats)
    shape = (x.shape[1], *(1,) * (len(x.shape) - 2))
    if weight is not None:
        z = z * reshape(weight, shape)
    if bias is not None:
        z = z + reshape(bias, shape)
    return activation_grad(grad, activate(z, activation) if activation in SAVES_OUTPUT else z, activation)


@op
@np.errstate(over="ignore", invalid="ignore")
def batch_norm_normalised(x: Array, stats: Array) -> Array:
    """(x - mean) rstd by the statistics [C, 3] of a batch norm."""
    n = x.astype(np.float64) - _channels(stats[:, 0], x) - _channels(stats[:, 1], x)
    return (n * _channels(stats[:, 2], x)).astype(x.dtype)


@batch_norm_normalised.staged
def _(x: Array, stats: Array) -> Array:
    return emit("noeira.batch_norm_normalised", [x, stats], [x.spec], flops=3 * known_size(x.shape))[0]


@op
@np.errstate(over="ignore", invalid="ignore")
def _batch_norm_input_grad(
    grad: Array, x: Array, stats: Array, weight: Array | None, bias: Array | None, training: bool, activation: str
) -> Array:
    dz = grad if activation == "identity" else _through(grad, x, stats, weight, bias, activation)
    dx, rstd = dz.astype(np.float64), _channels(stats[:, 2], x)
    if training:
        n = (x.astype(np.float64) - _channels(stats[:, 0], x) - _channels(stats[:, 1], x)) * rstd
        mean = lambda values: values.mean(axis=_axes(x), keepdims=True)  # noqa: E731
        dx = dx - mean(dx) - n * mean(dx * n)
    scale = rstd if weight is None else rstd * _channels(weight, x)
    return (dx * scale).astype(x.dtype)


@op
@np.errstate(over="ignore", invalid="ignore")
def _batch_norm_grad(
    weight_grad: Array,
    bias_grad: Array,
    grad: Array,
    x: Array,
    stats: Array,
    weight: Array | None,
    bias: Array | None,
    training: bool,
    activation: str,
) -> Array:
    dz = grad if activation == "identity" else _through(grad, x, stats, weight, bias, activation)
    wide, s = dz.astype(np.float64), stats
    n = (x.astype(np.float64) - _channels(s[:, 0], x) - _channels(s[:, 1], x)) * _channels(s[:, 2], x)
    weight_grad += (wide * n).sum(axis=_axes(x)).astype(x.dtype)
    bias_grad += wide.sum(axis=_axes(x)).astype(x.dtype)
    return _batch_norm_input_grad.reference(dz, x, stats, weight, bias, training, "identity")


@_batch_norm_input_grad.staged
def _(
    grad: Array, x: Array, stats: Array, weight: Array | None, bias: Array | None, training: bool, activation: str
) -> Array:
    return _emit_grad("noeira.batch_norm_input_grad", [], grad, x, stats, weight, bias, training, activation)


@_batch_norm_grad.staged
def _(
    weight_grad: Array,
    bias_grad: Array,
    grad: Array,
    x: Array,
    stats: Array,
    weight: Array | None,
    bias: Array | None,
    training: bool,
    activation: str,
) -> Array:
    targets = [weight_grad, bias_grad]
    return _emit_grad("noeira.batch_norm_grad", targets, grad, x, stats, weight, bias, training, activation)


def _emit_grad(
    name: str,
    targets: list[Array],
    grad: Array,
    x: Array,
    stats: Array,
    weight: Array | None,
    bias: Array | None,
    training: bool,
    activation: str,
) -> Array:
    shift = None if activation == "identity" else bias  # nothing else needs it
    operands = [*targets, grad, x, stats, or_nothing(weight, x), or_nothing(shift, x)]
    options = _options(0, 0, training, activation)
    return emit(name, [*operands, options], [x.spec], flops=12 * known_size(x.shape))[0]
