"""Reparameterised samples: a random output whose gradient reaches the parameters of its distribution."""

from __future__ import annotations

import math
from typing import Any

from noeira.nn.core import context
from noeira.nn.core.arguments import positive, positive_number
from noeira.nn.core.module import Module, Width
from noeira.ops.activation import activation
from noeira.ops.dispatch import Array, expect_grad
from noeira.ops.elementwise import exp, log
from noeira.ops.formula import formula, formula_grad
from noeira.ops.pieces import broadcast_to, concat, split
from noeira.ops.random import normal
from noeira.ops.reduce import sum_axis

LOG_STD = (-5.0, 2.0)
"""Limits of the logarithm of a policy's standard deviation."""

_EPS = 1e-6
"""Keeps the logarithm of the squashing's derivative finite where tanh saturates."""


class _Sampler(Module):
    """Base: takes two halves of one width, draws while training."""

    size: int

    def expects(self) -> Width:
        """Both halves on the last axis."""
        return -1, 2 * self.size

    def gives(self, width: Width | None) -> Width:
        """The sample and one number on the last axis."""
        return -1, self.size + 1

    def _draw(self) -> Array | None:
        return context.draw() if self.training else None


def _noise(key: Array, like: Array) -> Array:
    return normal(key, tuple(like.shape), like.dtype.name)


class RSample(_Sampler):
    """A squashed Gaussian policy's action and its log-probability (SAC).

    u = mu + e^l z with l = log_std limited to [-5, 2] and a normal z, a = c tanh(u),
    logp = sum over i of (-z_i^2 / 2 - l_i - log(2 pi) / 2 - log(c (1 - tanh(u_i)^2) + 1e-6))

    In evaluation z is 0: the greedy action.

    Args:
        action_dim: Size of an action.
        action_scale: c: actions lie in (-c, c); changing the attribute changes the program.

    Shape:
        x = [mu, log_std] [..., 2 action_dim], y = [a, logp] [..., action_dim + 1].

    vjp:
        With t = tanh(u) and w = 1 - t^2: du = c w da + 2 c t w / (c w + 1e-6) dlogp, dmu = du,
        dlog_std = e^l z du - dlogp inside the limits and 0 outside; z is the forward's. Saves x, and the key that draws
        the same z again.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import RSample
        >>> RSample(3)(np.zeros((5, 6), np.float32)).shape
        (5, 4)

    Source: Haarnoja et al. 2018.
    """

    def __init__(self, action_dim: int, action_scale: float = 1.0):
        self.size = positive(self, "action_dim", action_dim)
        self.action_scale = positive_number(self, "action_scale", action_scale)

    def extra_repr(self) -> str:
        """The size of an action, and the scale where it is not 1."""
        return f"{self.size}" + ("" if self.action_scale == 1 else f", action_scale={self.action_scale:g}")

    def _parts(self, x: Array, key: Array | None) -> tuple[Array, Array, Array | None, Array | None, Array]:
        """Log_std, its limited self, z and the deviation e^l z (None in evaluation), and tanh(u)."""
        mu, log_std = split(x, (self.size, self.size))
        limited = formula(log_std, "clamp", *LOG_STD)
        if key is None:
            return log_std, limited, None, None, activation(mu, "tanh")
        z = _noise(key, mu)
        off = exp(limited) * z
        return log_std, limited, z, off, activation(mu + off, "tanh")

    def forward(self, x: Array) -> tuple[Array, Any]:
        """X [..., 2 A] -> [a, logp] [..., A + 1]; saves x and the key."""
        key = self._draw()
        _, limited, z, _, t = self._parts(x, key)
        squash = log((1.0 - t * t) * self.action_scale + _EPS)
        terms = limited + squash + 0.5 * math.log(2 * math.pi)
        terms = terms if z is None else terms + z * z * 0.5
        return concat([t * self.action_scale, -sum_axis(terms, -1, keepdims=True)]), (x, key)

    def vjp(self, saved: Any, grad_output: Array) -> Array:
        """[da, dlogp] -> dx."""
        x, key = saved
        expect_grad(grad_output, (*x.shape[:-1], self.size + 1))
        log_std, _, _, off, t = self._parts(x, key)
        action, log_prob = split(grad_output, (self.size, 1))
        slope = (1.0 - t * t) * self.action_scale
        du = action * slope + log_prob * (t * slope * 2.0 / (slope + _EPS))
        inside = broadcast_to(-log_prob, tuple(du.shape))
        inside = inside if off is None else du * off + inside
        return concat([du, formula_grad(inside, log_std, "clamp", *LOG_STD)])


class GaussianVAE(_Sampler):
    """A variational autoencoder's latent: a sample of N(mu, e^logvar), and how far that is from N(0, 1).

    z = mu + e^{logvar / 2} e with a normal e, KL = sum over i of (mu_i^2 + e^{logvar_i} - 1 - logvar_i) / 2

    In evaluation e is 0: the mean. `Slice` takes the output apart.

    Args:
        latent_dim: Size of the latent.

    Shape:
        x = [mu, logvar] [..., 2 latent_dim], y = [z, KL] [..., latent_dim + 1].

    vjp:
        dmu = dz + mu dKL, dlogvar = (e^{logvar / 2} e dz + (e^logvar - 1) dKL) / 2; e is the forward's. Saves x, and
        the key that draws the same e again.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import GaussianVAE
        >>> GaussianVAE(3)(np.zeros((5, 6), np.float32))[:, -1].tolist()
        [0.0, 0.0, 0.0, 0.0, 0.0]

    Source: Kingma and Welling 2014.
    """

    def __init__(self, latent_dim: int):
        self.size = positive(self, "latent_dim", latent_dim)

    def extra_repr(self) -> str:
        """The size of the latent."""
        return f"{self.size}"

    def forward(self, x: Array) -> tuple[Array, Any]:
        """X [..., 2 D] -> [z, KL] [..., D + 1]; saves x and the key."""
        key = self._draw()
        mu, logvar = split(x, (self.size, self.size))
        z = mu if key is None else mu + exp(logvar * 0.5) * _noise(key, mu)
        divergence = sum_axis(mu * mu + exp(logvar) - 1.0 - logvar, -1, keepdims=True) * 0.5
        return concat([z, divergence]), (x, key)

    def vjp(self, saved: Any, grad_output: Array) -> Array:
        """[dz, dKL] -> dx."""
        x, key = saved
        expect_grad(grad_output, (*x.shape[:-1], self.size + 1))
        mu, logvar = split(x, (self.size, self.size))
        dz, divergence = split(grad_output, (self.size, 1))
        spread = (exp(logvar) - 1.0) * divergence
        spread = spread if key is None else dz * (exp(logvar * 0.5) * _noise(key, mu)) + spread
        return concat([dz + mu * divergence, spread * 0.5])
