"""SIGReg: how far a batch of embeddings is from an isotropic Gaussian, by random projections."""

from __future__ import annotations

from typing import Any

import numpy as np

from noeira.nn.core import context
from noeira.nn.core.arguments import integer, positives
from noeira.nn.core.errors import ShapeError
from noeira.nn.core.module import Module, Width
from noeira.ops.dispatch import Array, expect_grad
from noeira.ops.elementwise import cos, maximum, sin, sqrt
from noeira.ops.linear import linear, linear_input_grad
from noeira.ops.pieces import broadcast_to
from noeira.ops.random import normal
from noeira.ops.reduce import count_axis, sum_axes, sum_axis
from noeira.ops.shape import reshape

LAST_KNOT = 3.0
"""Where the integral over the characteristic function ends; it is symmetric about 0."""


class SIGReg(Module):
    """The Epps-Pulley statistic of a batch's random one-dimensional projections, against N(0, 1): 0 for a perfect fit.

    p = x A with random unit columns A, C_{t,j,k} = mean over b of cos(p_{b,t,j} s_k), S_{t,j,k} = the same of sin,
    y = B / (T P) sum over t, j, k of w_k ((C_{t,j,k} - e^{-s_k^2 / 2})^2 + S_{t,j,k}^2)

    with B samples, T tokens and P projections, knots s_k = 3 k / (K - 1), and trapezoidal weights w_k of the integral
    over [-3, 3] times e^{-s_k^2 / 2}. It is differentiable everywhere and costs no pairs of samples; as a regulariser
    it keeps embeddings from collapsing.

    Args:
        features: D.
        num_proj: P.
        knots: K, at least 2.
        resample: Whether each step draws new projections; otherwise every step of a seed has the same.

    Shape:
        x [B, D] or [B, T, D] with a known T, y [B, 1]: the same number in every row, so that a mean over rows is that
        number.

    vjp:
        dp_{b,t,j} = 2 / (T P) sum over k of w_k s_k (S cos(p s_k) - (C - e^{-s_k^2 / 2}) sin(p s_k)) times the sum of
        dy, dx = dp A^T. Saves x, and the key that draws the same projections again.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import SIGReg
        >>> x = np.random.default_rng(0).standard_normal((256, 8)).astype(np.float32)
        >>> good, collapsed = (float(SIGReg(8, num_proj=64)(z)[0, 0]) for z in (x, 0 * x))
        >>> good < 2 < 100 < collapsed
        True

    Source: Epps and Pulley 1983; Balestriero and LeCun 2025 (LeJEPA).
    """

    def __init__(self, features: int, num_proj: int = 1024, knots: int = 17, *, resample: bool = True):
        self.features, self.num_proj = positives(self, features=features, num_proj=num_proj)
        self.knots = integer(self, "knots", knots, 2)
        self.resample = bool(resample)

    def expects(self) -> Width:
        """`features` on the last axis."""
        return -1, self.features

    def gives(self, width: Width | None) -> Width:
        """One number."""
        return -1, 1

    def extra_repr(self) -> str:
        """The sizes, and whether the projections stay."""
        kept = "" if self.resample else ", resample=False"
        return f"{self.features}, num_proj={self.num_proj}, knots={self.knots}{kept}"

    def check_inputs(self, *inputs: Array) -> None:
        """[B, D] or [B, T, D]."""
        super().check_inputs(*inputs)
        shape = tuple(inputs[0].shape)
        if len(shape) > 3 or not all(isinstance(n, int) and n > 0 for n in shape[1:]):
            raise ShapeError(f"expected an input of shape [B, D] or [B, T, D] with a known T, got {list(shape)}")

    def _integral(self, dtype: np.dtype[Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The knots, the characteristic function of N(0, 1) there, and the weights."""
        knots = np.linspace(0, LAST_KNOT, self.knots)
        normal_there = np.exp(-knots * knots / 2)
        weights = np.full(self.knots, 2 * LAST_KNOT / (self.knots - 1))
        weights[[0, -1]] /= 2
        return knots.astype(dtype), normal_there.astype(dtype), (weights * normal_there).astype(dtype)

    def _directions(self, key: Array, dtype: np.dtype[Any]) -> Array:
        """A [D, P] with unit columns."""
        a = normal(key, (self.features, self.num_proj), dtype.name)
        return a / sqrt(sum_axis(a * a, 0, keepdims=True))

    def _statistics(self, x: Array, directions: Array) -> tuple[Array, Array, Array, Array]:
        """Cosines and sines of the scaled projections [B, T P, K], and how far their means are from those wanted."""
        knots, wanted, _ = self._integral(x.dtype)
        lines = (1 if len(x.shape) == 2 else int(x.shape[1])) * self.num_proj
        angle = reshape(linear(x, directions), (x.shape[0], lines, 1)) * knots
        count = maximum(count_axis(x, 0), 1.0)
        c, s = cos(angle), sin(angle)
        return c, s, sum_axis(c, 0) / count - wanted, sum_axis(s, 0) / count

    def forward(self, x: Array) -> tuple[Array, Any]:
        """X [B, (T,) D] -> y [B, 1]; saves x and the key."""
        key = context.draw()
        if not self.resample:
            key = key * np.array([1, 0, 1])  # the step does not count
        _, _, c, s = self._statistics(x, self._directions(key, x.dtype))
        weights = self._integral(x.dtype)[2] * x.dtype.type(1 / c.shape[0])
        statistic = sum_axes((c * c + s * s) * weights, (0, 1), keepdims=True) * count_axis(x, 0)
        return broadcast_to(statistic, (x.shape[0], 1)), (x, key)

    def vjp(self, saved: Any, grad_output: Array) -> Array:
        """Dy [B, 1] -> dx."""
        x, key = saved
        expect_grad(grad_output, (x.shape[0], 1))
        directions = self._directions(key, x.dtype)
        c, s, c_off, s_off = self._statistics(x, directions)
        knots, _, weights = self._integral(x.dtype)
        factor = knots * weights * x.dtype.type(2 / c_off.shape[0])
        slope = sum_axis((c * s_off - s * c_off) * factor, 2)
        grad = slope * reshape(sum_axes(grad_output, (0, 1), keepdims=True), (1, 1))
        return linear_input_grad(reshape(grad, (*x.shape[:-1], self.num_proj)), directions)
