"""A linear layer that explores: learned noise on its weights."""

from __future__ import annotations

import math
from typing import Any

from noeira.nn.core import context
from noeira.nn.core.arguments import number, positives
from noeira.nn.core.initializer import Constant, ScaledKaiming
from noeira.nn.core.module import Module, Width
from noeira.nn.core.param import Param
from noeira.ops.dispatch import Array
from noeira.ops.elementwise import absolute, sign, sqrt
from noeira.ops.linear import linear, linear_input_grad, linear_param_grad
from noeira.ops.pieces import split
from noeira.ops.random import normal
from noeira.ops.shape import reshape


class NoisyLinear(Module):
    """Linear map whose weights are drawn anew at each forward, with learned means and widths; factorised noise.

    y = x (mu_W + s sigma_W f f_out) + (mu_b + s sigma_b f_out), with f = phi(e_in) as a column, f_out = phi(e_out) as
    a row, phi(e) = sign(e) sqrt|e|, normal e_in and e_out

    There is one draw a forward, for the whole batch. In evaluation s is 0: the means alone.

    Args:
        in_features: Width of the input's last axis.
        out_features: Width of the output's last axis.
        sigma: Start of the widths, times 1 / sqrt(in_features).
        noise_scale: s while training; changing the attribute changes the program, 0 gives the means.

    Shape:
        x [..., in_features], y [..., out_features]; weight_mu and weight_sigma [in_features, out_features], bias_mu and
        bias_sigma [out_features]. The means start in U(-b, b) with b = 1 / sqrt(in_features).

    vjp:
        dx = dy W^T with the W of the forward, dmu_W += x^T dy, dmu_b += sum of dy over rows,
        dsigma_W += s (x f^T)^T (dy f_out), dsigma_b += s sum of dy f_out over rows. Saves x, and the key that draws the
        same noise again.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import NoisyLinear
        >>> layer, x = NoisyLinear(3, 2).init(), np.ones((1, 3), np.float32)
        >>> bool((layer(x) == layer(x)).any()), bool((layer.eval()(x) == layer(x)).all())
        (False, True)

    Source: Fortunato et al. 2018.
    """

    tokenwise = True

    def __init__(self, in_features: int, out_features: int, sigma: float = 0.5, noise_scale: float = 1.0):
        shape = positives(self, in_features=in_features, out_features=out_features)
        self.in_features, self.out_features = shape
        self.noise_scale = number(self, "noise_scale", noise_scale)
        means, widths = ScaledKaiming(1 / math.sqrt(6)), Constant(number(self, "sigma", sigma) / math.sqrt(shape[0]))
        self.weight_mu = Param(shape, init=means)
        self.weight_sigma = Param(shape, init=widths)
        self.bias_mu = Param(shape[1:], init=means, decay=False, fan_in=shape[0])
        self.bias_sigma = Param(shape[1:], init=widths, decay=False)

    def expects(self) -> Width:
        """`in_features` on the last axis."""
        return -1, self.in_features

    def gives(self, width: Width | None) -> Width:
        """`out_features` on the last axis."""
        return -1, self.out_features

    def extra_repr(self) -> str:
        """Both widths, and the scale of the noise where it is not 1."""
        scale = "" if self.noise_scale == 1 else f", noise_scale={self.noise_scale:g}"
        return f"{self.in_features}, {self.out_features}{scale}"

    def _noise(self, key: Array) -> tuple[Array, Array]:
        """The factors [in, 1] and [out]; the scale is in the second."""
        dtype = self.weight_mu.val.dtype.name
        e = normal(key, (self.in_features + self.out_features,), dtype)
        inner, outer = split(sign(e) * sqrt(absolute(e)), (self.in_features, self.out_features))
        return reshape(inner, (self.in_features, 1)), outer * self.noise_scale

    def _weight(self, noise: tuple[Array, Array] | None) -> Array:
        mean = self.weight_mu.val
        return mean if noise is None else mean + self.weight_sigma.val * noise[0] * noise[1]

    def forward(self, x: Array) -> tuple[Array, Any]:
        """X [..., in] -> y [..., out]; saves x and the key."""
        if not self.training or self.noise_scale == 0:
            return linear(x, self._weight(None), self.bias_mu.val), (x, None)
        key = context.draw()
        noise = self._noise(key)
        bias = self.bias_mu.val + self.bias_sigma.val * noise[1]
        return linear(x, self._weight(noise), bias), (x, key)

    def vjp(self, saved: Any, grad_output: Array) -> Array:
        """Dy [..., out] -> dx [..., in]; adds the gradients of means and widths."""
        x, key = saved
        noise = None if key is None else self._noise(key)
        linear_param_grad(self.weight_mu.grd, self.bias_mu.grd, x, grad_output)
        if noise is not None:
            inner = reshape(noise[0], (self.in_features,))
            linear_param_grad(self.weight_sigma.grd, self.bias_sigma.grd, x * inner, grad_output * noise[1])
        return linear_input_grad(grad_output, self._weight(noise))
