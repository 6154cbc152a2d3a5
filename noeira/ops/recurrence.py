"""GRU and LSTM over whole sequences: the part of the layers that has to walk through time.

The products with the inputs, gx = x U + a, and all gradients of parameters are one matrix product each over all steps
and are left to `ops.linear`. gh = h W + b is computed step by step here. The gates lie side by side in the last axis,
in PyTorch's order: r, z, n (GRU); i, f, g, o (LSTM).
Source: Cho et al. 2014; Hochreiter and Schmidhuber 1997; Gers et al. 2000.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from noeira.ops.activation import activation
from noeira.ops.dispatch import Array, ShapeError, emit, expect_grad, known_size, op, spec


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return activation.reference(x, "sigmoid")


def _check(gx: Array, weight: Array, gates: int, state: Array | None, width: int) -> None:
    """Shapes that do not fit are refused in the words of the caller's layer."""
    hidden = weight.shape[0]
    if tuple(weight.shape) != (hidden, gates * hidden):
        raise ShapeError(f"expected recurrent weights [hidden, {gates} hidden], got {list(weight.shape)}")
    if len(gx.shape) != 3 or gx.shape[-1] != gates * hidden:
        raise ShapeError(f"expected gates of shape [batch, steps, {gates * hidden}], got {list(gx.shape)}")
    if state is not None and tuple(state.shape) != (gx.shape[0], width * hidden):
        raise ShapeError(f"expected an initial state of shape {[gx.shape[0], width * hidden]}, got {list(state.shape)}")


@op
def gru(gx: Array, h0: Array | None, weight: Array, bias: Array | None) -> Any:
    """The GRU's steps: r = s(gx_r + gh_r), z = s(gx_z + gh_z), n = tanh(gx_n + r gh_n), h' = (1 - z) n + z h.

    Args:
        gx: Inputs' share of the gates [B, T, 3 H].
        h0: Initial state [B, H]; None for zeros.
        weight: W [H, 3 H].
        bias: b [3 H], or None.

    Returns:
        y [B, T, H]; what the gradient needs, r, z, n and gh_n [B, T, 4 H]; the state before each step [B, T, H].
    """
    _check(gx, weight, 3, h0, 1)
    batch, steps, hidden = gx.shape[0], gx.shape[1], weight.shape[0]
    h = np.zeros((batch, hidden), gx.dtype) if h0 is None else h0
    y, before = (np.empty((batch, steps, hidden), gx.dtype) for _ in range(2))
    kept = np.empty((batch, steps, 4 * hidden), gx.dtype)
    for t in range(steps):
        gh = h @ weight if bias is None else h @ weight + bias
        r, z = (_sigmoid(gx[:, t, i : i + hidden] + gh[:, i : i + hidden]) for i in (0, hidden))
        own = gh[:, 2 * hidden :]
        n = np.tanh(gx[:, t, 2 * hidden :] + r * own)
        before[:, t] = h
        kept[:, t] = np.concatenate([r, z, n, own], axis=-1)
        y[:, t] = h = (1 - z) * n + z * h
    return y, kept, before


@gru.staged
def _(gx: Array, h0: Array | None, weight: Array, bias: Array | None) -> Any:
    _check(gx, weight, 3, h0, 1)
    batch, steps, hidden = gx.shape[0], gx.shape[1], weight.shape[0]
    flags = np.array([h0 is not None, bias is not None], np.int64)
    operands = [gx, weight if h0 is None else h0, weight, np.zeros(1, gx.dtype) if bias is None else bias, flags]
    shapes = [(batch, steps, width * hidden) for width in (1, 4, 1)]
    return emit("noeira.gru", operands, [spec(shape, gx) for shape in shapes], flops=_flops(gx, weight))


@op
def gru_grad(grad: Array, kept: Array, before: Array, weight: Array) -> Any:
    """Back through the GRU's steps.

    Args:
        grad: dy [B, T, H].
        kept: Of `gru`.
        before: Of `gru`.
        weight: W.

    Returns:
        Gradients of gx and of gh = h W + b [B, T, 3 H], and of h0 [B, H].
    """
    hidden = weight.shape[0]
    dgx, dgh = (np.empty((*grad.shape[:2], 3 * hidden), grad.dtype) for _ in range(2))
    carry = np.zeros((grad.shape[0], hidden), grad.dtype)
    for t in reversed(range(grad.shape[1])):
        r, z, n, own = np.split(kept[:, t], 4, axis=-1)
        dh = grad[:, t] + carry
        dz = dh * (before[:, t] - n) * z * (1 - z)
        dn = dh * (1 - z) * (1 - n * n)
        dr = dn * own * r * (1 - r)
        dgx[:, t] = np.concatenate([dr, dz, dn], axis=-1)
        dgh[:, t] = np.concatenate([dr, dz, dn * r], axis=-1)
        carry = dh * z + dgh[:, t] @ weight.T
    return dgx, dgh, carry


@gru_grad.checked
def _(grad: Array, kept: Array, before: Array, weight: Array) -> None:
    expect_grad(grad, before.shape)


@gru_grad.staged
def _(grad: Array, kept: Array, before: Array, weight: Array) -> Any:
    hidden = weight.shape[0]
    gates = spec((*grad.shape[:2], 3 * hidden), grad)
    results = [gates, gates, spec((grad.shape[0], hidden), grad)]
    return emit("noeira.gru_grad", [grad, kept, before, weight], results, flops=_flops(grad, weight))


@op
def lstm(gx: Array, state: Array | None, weight: Array, bias: Array | None) -> Any:
    """The LSTM's steps: i, f, o = s(gx + gh), g = tanh(gx_g + gh_g), c' = f c + i g, h' = o tanh(c').

    Args:
        gx: Inputs' share of the gates [B, T, 4 H].
        state: Initial h and c side by side [B, 2 H]; None for zeros.
        weight: W [H, 4 H].
        bias: b [4 H], or None.

    Returns:
        y [B, T, H]; what the gradient needs, i, f, g, o and c' [B, T, 5 H]; h before each step [B, T, H]; the last
        state [B, 2 H].
    """
    _check(gx, weight, 4, state, 2)
    batch, steps, hidden = gx.shape[0], gx.shape[1], weight.shape[0]
    h, c = np.zeros((2, batch, hidden), gx.dtype) if state is None else np.split(state, 2, axis=-1)
    y, before = (np.empty((batch, steps, hidden), gx.dtype) for _ in range(2))
    kept = np.empty((batch, steps, 5 * hidden), gx.dtype)
    for t in range(steps):
        i, f, g, o = np.split(gx[:, t] + (h @ weight if bias is None else h @ weight + bias), 4, axis=-1)
        i, f, o = _sigmoid(i), _sigmoid(f), _sigmoid(o)
        g = np.tanh(g)
        c = f * c + i * g
        before[:, t] = h
        kept[:, t] = np.concatenate([i, f, g, o, c], axis=-1)
        y[:, t] = h = o * np.tanh(c)
    return y, kept, before, np.concatenate([h, c], axis=-1)


@lstm.staged
def _(gx: Array, state: Array | None, weight: Array, bias: Array | None) -> Any:
    _check(gx, weight, 4, state, 2)
    batch, steps, hidden = gx.shape[0], gx.shape[1], weight.shape[0]
    flags = np.array([state is not None, bias is not None], np.int64)
    operands = [gx, weight if state is None else state, weight, np.zeros(1, gx.dtype) if bias is None else bias, flags]
    results = [spec((batch, steps, width * hidden), gx) for width in (1, 5, 1)]
    return emit("noeira.lstm", operands, [*results, spec((batch, 2 * hidden), gx)], flops=_flops(gx, weight))


@op
def lstm_grad(grad: Array | None, last_grad: Array | None, kept: Array, state: Array | None, weight: Array) -> Any:
    """Back through the LSTM's steps.

    Args:
        grad: dy [B, T, H]; None for zeros.
        last_grad: Gradient of the last state [B, 2 H]; None for zeros.
        kept: Of `lstm`.
        state: The initial state, as given.
        weight: W.

    Returns:
        The gradient of gx, which is that of gh = h W + b too [B, T, 4 H], and that of the initial state [B, 2 H].
    """
    batch, steps, hidden = kept.shape[0], kept.shape[1], weight.shape[0]
    result = np.empty((batch, steps, 4 * hidden), kept.dtype)
    start = np.zeros((batch, 2 * hidden), kept.dtype)
    carry, dc = np.split(start if last_grad is None else last_grad, 2, axis=-1)
    for t in reversed(range(steps)):
        i, f, g, o, c = np.split(kept[:, t], 5, axis=-1)
        c_before = kept[:, t - 1, 4 * hidden :] if t else (start if state is None else state)[:, hidden:]
        u = np.tanh(c)
        dh = carry if grad is None else grad[:, t] + carry
        dc = dc + dh * o * (1 - u * u)
        gates = (dc * g * i * (1 - i), dc * c_before * f * (1 - f), dc * i * (1 - g * g), dh * u * o * (1 - o))
        result[:, t] = np.concatenate(gates, axis=-1)
        dc = dc * f
        carry = result[:, t] @ weight.T
    return result, np.concatenate([carry, dc], axis=-1)


@lstm_grad.checked
def _(grad: Array | None, last_grad: Array | None, kept: Array, state: Array | None, weight: Array) -> None:
    batch, steps, hidden = kept.shape[0], kept.shape[1], weight.shape[0]
    if grad is not None:
        expect_grad(grad, (batch, steps, hidden))
    if last_grad is not None:
        expect_grad(last_grad, (batch, 2 * hidden))


@lstm_grad.staged
def _(grad: Array | None, last_grad: Array | None, kept: Array, state: Array | None, weight: Array) -> Any:
    batch, steps, hidden = kept.shape[0], kept.shape[1], weight.shape[0]
    flags = np.array([state is not None, False, grad is not None, last_grad is not None], np.int64)
    operands = [
        kept if grad is None else grad,
        weight if last_grad is None else last_grad,
        kept,
        weight if state is None else state,
        weight,
        flags,
    ]
    results = [spec((batch, steps, 4 * hidden), kept), spec((batch, 2 * hidden), kept)]
    return emit("noeira.lstm_grad", operands, results, flops=_flops(kept, weight))


def _flops(x: Array, weight: Array) -> int:
    """Two for each weight, sample and step."""
    return 2 * known_size(x.shape[:2]) * known_size(weight.shape)
