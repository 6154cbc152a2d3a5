"""The linear map and its gradients; weights are [in, out]."""

from __future__ import annotations

from typing import Any

import numpy as np

from noeira.ops.activation import activation as activate
from noeira.ops.activation import activation_grad, code
from noeira.ops.dispatch import Array, ShapeError, emit, expect_grad, known_size, op, spec
from noeira.ops.memory import accumulate
from noeira.runtime.staging import Shape


def _flops(x: Array, weight: Array) -> int:
    return 2 * known_size(x.shape) * known_size(weight.shape[1:])


def _require(what: str, got: Shape, expected: Shape) -> None:
    if tuple(got) != tuple(expected):
        raise ShapeError(f"expected {what} of shape {list(expected)}, got {list(got)}")


@op
def linear(x: Array, weight: Array, bias: Array | None = None, activation: str = "identity") -> Array:
    """Fused y = f(x W + b): one kernel, bias and activation in the GEMM's epilogue.

    Args:
        x: [..., in].
        weight: [in, out].
        bias: [out], or None.
        activation: Name of f, out of `ops.activation.ACTIVATIONS`.
    """
    z = x @ weight
    return activate(z if bias is None else z + bias, activation)


@linear.checked
def _(x: Array, weight: Array, bias: Array | None = None, activation: str = "identity") -> None:
    _require("an input", x.shape, (*x.shape[:-1], weight.shape[0]))


@linear.staged
def _(x: Array, weight: Array, bias: Array | None = None, activation: str = "identity") -> Array:
    out = spec((*x.shape[:-1], weight.shape[1]), x)
    attributes = {"activation": code(activation)}
    if bias is None:
        return emit("noeira.linear_no_bias", [x, weight], [out], attributes, flops=_flops(x, weight))[0]
    return emit("noeira.linear", [x, weight, bias], [out], attributes, flops=_flops(x, weight))[0]


@op
def linear_pre(x: Array, weight: Array, bias: Array, activation: str) -> tuple[Array, Array]:
    """As `linear`, and also the pre-activation z = x W + b, for activations whose derivative needs it."""
    z = x @ weight + bias
    return activate(z, activation), z


@linear_pre.checked
def _(x: Array, weight: Array, bias: Array, activation: str) -> None:
    _require("an input", x.shape, (*x.shape[:-1], weight.shape[0]))


@linear_pre.staged
def _(x: Array, weight: Array, bias: Array, activation: str) -> Any:
    out = spec((*x.shape[:-1], weight.shape[1]), x)
    attributes = {"activation": code(activation)}
    return emit(
        "noeira.linear_pre",
        [x, weight, bias],
        [out, out],
        attributes,
        flops=_flops(x, weight),
        spare={1: "noeira.linear"},
    )


@op
def linear_input_grad(grad: Array, weight: Array) -> Array:
    """Gradient of the input: dx = dz W^T."""
    return grad @ weight.T


@linear_input_grad.checked
def _(grad: Array, weight: Array) -> None:
    expect_grad(grad, (*grad.shape[:-1], weight.shape[1]))


@linear_input_grad.staged
def _(grad: Array, weight: Array) -> Array:
    out = spec((*grad.shape[:-1], weight.shape[0]), grad)
    return emit(
        "noeira.linear_input_grad",
        [grad, weight],
        [out],
        flops=2 * known_size(grad.shape) * known_size(weight.shape[:1]),
    )[0]


@op
def linear_input_grad_act(grad: Array, weight: Array, saved: Array, activation: str) -> Array:
    """Gradient through a linear map and the activation before it, in one kernel: dz = (dy W^T) f'(saved).

    Args:
        grad: dy [..., out].
        weight: W [in, out].
        saved: What the derivative of f is taken from (`ops.activation.SAVES_OUTPUT`): [..., in].
        activation: Name of f.
    """
    return activation_grad.reference(grad @ weight.T, saved, activation)


@linear_input_grad_act.checked
def _(grad: Array, weight: Array, saved: Array, activation: str) -> None:
    expect_grad(grad, (*saved.shape[:-1], weight.shape[1]))


@linear_input_grad_act.staged
def _(grad: Array, weight: Array, saved: Array, activation: str) -> Array:
    return emit(
        "noeira.linear_input_grad_act",
        [grad, weight, saved],
        [saved.spec],
        {"activation": code(activation)},
        flops=2 * known_size(grad.shape) * known_size(weight.shape[:1]),
    )[0]


def linear_param_grad(weight_grad: Array | None, bias_grad: Array | None, x: Array, grad: Array) -> None:
    """Add the parameters' gradients in place: dW += x^T dz, db += the sum of dz over rows.

    A target that is None (a frozen parameter, a missing bias) is not computed.
    """
    features = (weight_grad if weight_grad is not None else bias_grad if bias_grad is not None else grad).shape[-1:]
    expect_grad(grad, (*x.shape[:-1], *features))
    if weight_grad is not None:
        _require("an input", x.shape, (*x.shape[:-1], weight_grad.shape[0]))
    if weight_grad is not None and bias_grad is not None:
        _weight_bias_grad(weight_grad, bias_grad, x, grad)
    elif weight_grad is not None:
        _weight_grad(weight_grad, x, grad)
    elif bias_grad is not None:
        _bias_grad(bias_grad, grad)


@op
def _weight_bias_grad(weight_grad: Array, bias_grad: Array, x: Array, grad: Array) -> None:
    _weight_grad(weight_grad, x, grad)
    _bias_grad(bias_grad, grad)


@_weight_bias_grad.staged
def _(weight_grad: Array, bias_grad: Array, x: Array, grad: Array) -> None:
    emit("noeira.linear_param_grad", [weight_grad, bias_grad, x, grad], [], flops=_flops(x, weight_grad))


@op
def _weight_grad(weight_grad: Array, x: Array, grad: Array) -> None:
    weight_grad += x.reshape(-1, x.shape[-1]).T @ grad.reshape(-1, grad.shape[-1])


@_weight_grad.staged
def _(weight_grad: Array, x: Array, grad: Array) -> None:
    emit("noeira.linear_weight_grad", [weight_grad, x, grad], [], flops=_flops(x, weight_grad))


def _bias_grad(bias_grad: Array, grad: Array) -> None:
    accumulate(bias_grad, sum_rows(grad))


@op
def sum_rows(x: Array) -> Array:
    """Sum over all axes but the last: [..., F] becomes [F]."""
    return np.sum(x.reshape(-1, x.shape[-1]), axis=0, dtype=np.float64).astype(x.dtype)  # else row by row


@sum_rows.staged
def _(x: Array) -> Array:
    return emit("noeira.sum_rows", [x], [spec(x.shape[-1:], x)], flops=known_size(x.shape))[0]
