"""Activations y = f(x), by name, and their gradients from what a layer saved."""

from __future__ import annotations

import math

import numpy as np

from noeira.ops.dispatch import Array, ShapeError, emit, expect_grad, known_size, op

ACTIVATIONS = ("identity", "relu", "tanh", "sigmoid", "silu", "mish", "gelu", "gelu_tanh")
"""Names in the order of the kernels' codes (`mojo_kernels/activation.mojo`)."""

SAVES_OUTPUT = frozenset(("identity", "relu", "tanh", "sigmoid"))
"""Activations whose derivative is a function of the output; the others need the input."""

_erf = np.frompyfunc(math.erf, 1, 1)


def code(name: str) -> int:
    """The kernels' number for an activation.

    Raises:
        ShapeError: There is no activation of that name.
    """
    if name not in ACTIVATIONS:
        raise ShapeError(f"expected an activation out of {', '.join(ACTIVATIONS)}, got {name!r}")
    return ACTIVATIONS.index(name)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0, -x))


def _normal_cdf(x: np.ndarray) -> np.ndarray:
    return np.asarray(0.5 * (1 + np.asarray(_erf(x.astype(np.float64) / math.sqrt(2)), np.float64)), x.dtype)


def _limit(x: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """The product x factor where factor goes to 0 faster than x to infinity: 0 where it has arrived."""
    return np.multiply(x, factor, where=factor != 0, out=np.zeros_like(x))


def _tanh_argument(x: np.ndarray) -> np.ndarray:
    return math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)


@op
def activation(x: Array, name: str) -> Array:
    """Apply f elementwise.

    relu max(x, 0); tanh; sigmoid 1/(1+e^-x); silu x sigmoid(x); mish x tanh(log(1+e^x));
    gelu x Phi(x) with the normal distribution Phi; gelu_tanh its approximation
    x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). NaN gives NaN, an infinity the limit.
    """
    x = np.asarray(x)
    match ACTIVATIONS[code(name)]:
        case "relu":
            return np.maximum(x, 0)
        case "tanh":
            return np.tanh(x)
        case "sigmoid":
            return _sigmoid(x)
        case "silu":
            return _limit(x, _sigmoid(x))
        case "mish":
            return _limit(x, np.tanh(np.logaddexp(0, x)))
        case "gelu":
            return _limit(x, _normal_cdf(x))
        case "gelu_tanh":
            return _limit(0.5 * x, 1 + np.tanh(_tanh_argument(x)))
    return x


@activation.staged
def _(x: Array, name: str) -> Array:
    if name == "identity":
        return x
    return emit("noeira.activation", [x], [x.spec], {"activation": code(name)}, flops=known_size(x.shape))[0]


@op
def activation_grad(grad: Array, saved: Array, name: str) -> Array:
    """Gradient with respect to the input: grad * f'(.) from the saved output or input (`SAVES_OUTPUT`)."""
    s = np.asarray(saved)
    match ACTIVATIONS[code(name)]:
        case "relu":
            return grad * (s > 0)
        case "tanh":
            return grad * (1 - s * s)
        case "sigmoid":
            return grad * s * (1 - s)
        case "silu":
            sigmoid = _sigmoid(s)
            return grad * (sigmoid + _limit(s, sigmoid * (1 - sigmoid)))
        case "mish":
            t = np.tanh(np.logaddexp(0, s))
            return grad * (t + _limit(s, (1 - t * t) * _sigmoid(s)))
        case "gelu":
            return grad * (_normal_cdf(s) + _limit(s, np.exp(-0.5 * s * s) / math.sqrt(2 * math.pi)))
        case "gelu_tanh":
            t = np.tanh(_tanh_argument(s))
            slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * s * s)
            return grad * (0.5 * (1 + t) + _limit(0.5 * s * slope, 1 - t * t))
    return grad


@activation_grad.checked
def _(grad: Array, saved: Array, name: str) -> None:
    expect_grad(grad, saved.shape)


@activation_grad.staged
def _(grad: Array, saved: Array, name: str) -> Array:
    if name == "identity":
        return grad
    flops = known_size(grad.shape)
    attributes = {"activation": code(name)}
    return emit("noeira.activation_grad", [grad, saved], [grad.spec], attributes, flops=flops)[0]
