"""Losses that stay apart by sample, for weights or masks that come later: [B, 1]."""

from __future__ import annotations

from typing import Any

import numpy as np

from noeira.nn.core.errors import ShapeError
from noeira.nn.core.module import Module, Width
from noeira.ops.dispatch import Array, expect_grad, known_size
from noeira.ops.elementwise import absolute, maximum, sign, where
from noeira.ops.reduce import sum_axis
from noeira.ops.shape import reshape


def _check_pair(x: Array, target: Array) -> None:
    shape = tuple(x.shape)
    if len(shape) < 2 or tuple(target.shape) != shape:
        raise ShapeError(f"expected two inputs of one shape [B, ...], got {list(shape)} and {list(target.shape)}")
    if any(isinstance(n, str) for n in shape[1:]) or 0 in shape[1:]:
        raise ShapeError(f"expected known, positive sizes behind the batch, got {list(shape)}")


def _rows(x: Array) -> Array:
    return reshape(x, (x.shape[0], known_size(x.shape[1:])))


def _column(grad: Array, like: Array) -> Array:
    """[B, 1] so that it broadcasts over `like`."""
    return reshape(grad, (like.shape[0], *(1,) * (len(like.shape) - 1)))


class _PerSample(Module):
    """Base: gives one number a sample."""

    def gives(self, width: Width | None) -> Width | None:
        """1 on the last axis."""
        return -1, 1


class MSEPerSample(_PerSample):
    """Mean squared error of each sample.

    y[b] = mean over i of (x[b, i] - t[b, i])^2

    Shape:
        x and t [B, ...], y [B, 1].

    vjp:
        dx = 2 (x - t) dy / F with the F elements of a sample, dt = -dx. Saves x - t.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import MSEPerSample
        >>> MSEPerSample()(np.array([[1.0, 3.0]], np.float32), np.zeros((1, 2), np.float32)).tolist()
        [[5.0]]

    Source: PyTorch: `F.mse_loss` without its mean over samples.
    """

    def check_inputs(self, *inputs: Array) -> None:
        """Two inputs of one shape."""
        _check_pair(*inputs)

    def forward(self, x: Array, target: Array) -> tuple[Array, Array]:
        """(x, t) -> y [B, 1]; saves x - t."""
        off = x - target
        return sum_axis(_rows(off * off), 1, keepdims=True) * (1 / known_size(x.shape[1:])), off

    def vjp(self, saved: Array, grad_output: Array) -> tuple[Array, Array]:
        """Dy [B, 1] -> (dx, dt)."""
        dx = saved * (_column(grad_output, saved) * (2 / known_size(saved.shape[1:])))
        return dx, -dx


class L1MaskedPerSample(_PerSample):
    """Mean absolute error of each sample over a sequence in which some steps do not count.

    y[b] = sum over valid steps k and all d of |x[b, k, d] - t[b, k, d]|, divided by K D

    Args:
        over: What the mean is over: "all" K D elements, masked ones counting as 0 (as ACT trains), or the "valid"
            ones, of which there is taken to be at least one.

    Shape:
        x and t [B, K, ...], valid [B, K] booleans (True counts), y [B, 1].

    vjp:
        dx = sign(x - t) dy / (K D) in valid steps, exactly 0 in the others; dt = -dx; the mask gets none. Saves
        x - t, the mask, and the divisor where it is not constant.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import L1MaskedPerSample
        >>> x, valid = np.array([[[1.0], [3.0]]], np.float32), np.array([[True, False]])
        >>> L1MaskedPerSample()(x, 0 * x, valid).tolist(), L1MaskedPerSample("valid")(x, 0 * x, valid).tolist()
        ([[0.5]], [[1.0]])

    Source: Zhao et al. 2023 (ACT).
    """

    integers = (2,)

    def __init__(self, over: str = "all"):
        if over not in ("all", "valid"):
            raise ValueError(f"L1MaskedPerSample: expected over 'all' or 'valid', got {over!r}")
        self.over = over

    def extra_repr(self) -> str:
        """What the mean is over."""
        return repr(self.over)

    def check_inputs(self, *inputs: Array) -> None:
        """Two inputs of one shape, and a mask over their first two axes."""
        x, target, valid = inputs
        _check_pair(x, target)
        if valid.dtype != np.bool_ or tuple(valid.shape) != tuple(x.shape[:2]):
            raise ShapeError(
                f"expected a boolean mask of shape {list(x.shape[:2])}, got {valid.dtype} {list(valid.shape)}"
            )

    def forward(self, x: Array, target: Array, valid: Array) -> tuple[Array, Any]:
        """(x, t, valid) -> y [B, 1]; saves x - t, the mask and the share of an element."""
        mask = reshape(valid, (*valid.shape, *(1,) * (len(x.shape) - 2)))
        off = where(mask, x - target, 0.0)
        total = sum_axis(_rows(absolute(off)), 1, keepdims=True)
        if self.over == "all":
            share = 1 / known_size(x.shape[1:])
        else:
            steps = sum_axis(where(valid, np.array(1, x.dtype), 0.0), 1, keepdims=True)
            share = 1.0 / (maximum(steps, 1.0) * known_size(x.shape[2:]))
        return total * share, (off, mask, share)

    def vjp(self, saved: Any, grad_output: Array) -> tuple[Array, Array, None]:
        """Dy [B, 1] -> (dx, dt, None)."""
        off, mask, share = saved
        expect_grad(grad_output, (off.shape[0], 1))
        dx = where(mask, sign(off) * _column(grad_output * share, off), 0.0)
        return dx, -dx, None
