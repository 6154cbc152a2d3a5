"""Rotary positions, and the changes of layout that go with attention."""

from __future__ import annotations

import numpy as np

from noeira.ops.dispatch import Array, ShapeError, emit, known_size, op, spec


@op
def rope(
    x: Array,
    width: int,
    theta: float = 10000.0,
    offset: int = 0,
    interleaved: bool = False,
    inverse: bool = False,
) -> Array:
    """Rotate pairs of features by the position: (a, b) -> (a cos - b sin, b cos + a sin), angle t theta^(-2 j / width).

    Args:
        x: [..., tokens, groups x width]; the same rotation in each group.
        width: Features of a head, even.
        theta: Base of the frequencies.
        offset: Position of the first token.
        interleaved: Pairs are neighbours (2j, 2j + 1) instead of (j, j + width / 2).
        inverse: Rotate back, which is the vjp.
    """
    x = np.asarray(x)
    half = width // 2
    angle = np.arange(offset, offset + x.shape[-2])[:, None] * np.float64(theta) ** (-np.arange(half) / half)
    cos = np.cos(angle).astype(x.dtype)[:, None, :]  # [tokens, 1, half]
    sin = np.sin(-angle if inverse else angle).astype(x.dtype)[:, None, :]
    grouped = x.reshape(*x.shape[:-1], -1, width) if x.size else x.reshape(*x.shape[:-1], x.shape[-1] // width, width)
    first, second = _halves(interleaved, half)
    a, b = grouped[..., first], grouped[..., second]
    y = np.empty_like(grouped)
    y[..., first], y[..., second] = a * cos - b * sin, b * cos + a * sin
    return y.reshape(x.shape)


def _halves(interleaved: bool, half: int) -> tuple[slice, slice]:
    return (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(0, half), slice(half, None))


@rope.staged
def _(
    x: Array,
    width: int,
    theta: float = 10000.0,
    offset: int = 0,
    interleaved: bool = False,
    inverse: bool = False,
) -> Array:
    if x.ndim < 2 or not isinstance(x.shape[-1], int) or x.shape[-1] % width:
        raise ShapeError(f"expected an input of shape [..., tokens, n x {width}], got {list(x.shape)}")
    options = np.array([width, offset, interleaved, inverse], np.int64)
    return emit("noeira.rope", [x, options, np.array([theta])], [x.spec], flops=3 * known_size(x.shape))[0]


@op
def swap_axes(x: Array) -> Array:
    """[A, N, M, C] -> [A, M, N, C]; its vjp is itself."""
    return np.ascontiguousarray(np.swapaxes(x, 1, 2))


@swap_axes.staged
def _(x: Array) -> Array:
    a, n, m, c = x.shape
    return emit("noeira.swap_axes", [x], [spec((a, m, n, c), x)])[0]


@op
def repeat_heads(x: Array, repeats: int) -> Array:
    """[B, K, T, D] -> [B, K repeats, T, D]: head g of the result is head g // repeats."""
    return np.repeat(x, repeats, axis=1)


@repeat_heads.staged
def _(x: Array, repeats: int) -> Array:
    b, k, *rest = x.shape
    return emit("noeira.repeat_heads", [x], [spec((b, int(k) * repeats, *rest), x)])[0]


@op
def repeat_heads_grad(grad: Array, repeats: int) -> Array:
    """The vjp of `repeat_heads`: the sum over the copies of each head."""
    return grad.reshape(grad.shape[0], grad.shape[1] // repeats, repeats, *grad.shape[2:]).sum(axis=2)


@repeat_heads_grad.staged
def _(grad: Array, repeats: int) -> Array:
    b, h, *rest = grad.shape
    return emit("noeira.repeat_heads_grad", [grad], [spec((b, int(h) // repeats, *rest), grad)])[0]
