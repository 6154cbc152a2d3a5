"""Initializers: how a weight is drawn. The draw is a pure function of (seed, parameter name, element).

All arithmetic is float64 on the host, rounded once to the parameter's dtype, so a seed gives the same weights on
every device. Biases are zero and norm scales one, whatever the initializer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from noeira.ops.random import bits, stream_of


@dataclass(frozen=True)
class Draw:
    """The random numbers of one parameter, named by the model's seed and the parameter's dotted name."""

    seed: int
    name: str

    def uniform(self, count: int, step: int = 0) -> np.ndarray:
        """`count` float64 numbers in (0, 1)."""
        words = bits(count, seed=self.seed, stream=stream_of(self.name), step=step)
        return (words.astype(np.float64) + 0.5) / 2**32

    def normal(self, count: int, step: int = 0) -> np.ndarray:
        """`count` standard normal numbers, by the Box-Muller transform."""
        u = self.uniform(2 * ((count + 1) // 2), step).reshape(2, -1)
        radius, angle = np.sqrt(-2 * np.log(u[0])), 2 * math.pi * u[1]
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


class Initializer(Protocol):
    """Anything that fills a parameter."""

    def __call__(self, count: int, fan_in: int, fan_out: int, draw: Draw) -> np.ndarray:
        """Return `count` float64 values."""
        ...


@dataclass(frozen=True)
class ScaledKaiming:
    """He-uniform times a factor: U(-b, b) with b = factor sqrt(6 / fan_in)."""

    factor: float = 1.0

    def __call__(self, count: int, fan_in: int, fan_out: int, draw: Draw) -> np.ndarray:
        """Return `count` values of U(-b, b)."""
        return (2 * draw.uniform(count) - 1) * (self.factor * math.sqrt(6 / max(fan_in, 1)))


@dataclass(frozen=True)
class Kaiming:
    """He-uniform, the default: U(-b, b) with b = sqrt(6 / fan_in) (He et al. 2015)."""

    def __call__(self, count: int, fan_in: int, fan_out: int, draw: Draw) -> np.ndarray:
        """Return `count` values of U(-b, b)."""
        return ScaledKaiming(1.0)(count, fan_in, fan_out, draw)


@dataclass(frozen=True)
class Xavier:
    """Glorot-uniform: U(-b, b) with b = sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010)."""

    def __call__(self, count: int, fan_in: int, fan_out: int, draw: Draw) -> np.ndarray:
        """Return `count` values of U(-b, b)."""
        return (2 * draw.uniform(count) - 1) * math.sqrt(6 / max(fan_in + fan_out, 1))


@dataclass(frozen=True)
class TruncNormalIn:
    """N(0, 1) drawn again outside [-2, 2], times 1.1368 / sqrt(fan_in): unit variance after the cut, over fan_in."""

    def __call__(self, count: int, fan_in: int, fan_out: int, draw: Draw) -> np.ndarray:
        """Return `count` values of the truncated normal."""
        values = draw.normal(count)
        step = 1
        while (outside := np.abs(values) > 2).any():
            values[outside] = draw.normal(int(outside.sum()), step)
            step += 1
        return values * (1.1368 * math.sqrt(1 / max(fan_in, 1)))


@dataclass(frozen=True)
class Normal:
    """N(mean, std^2); GPT uses Normal(0, 0.02)."""

    mean: float = 0.0
    std: float = 1.0

    def __call__(self, count: int, fan_in: int, fan_out: int, draw: Draw) -> np.ndarray:
        """Return `count` normal values."""
        return self.mean + self.std * draw.normal(count)


@dataclass(frozen=True)
class Uniform:
    """U(-bound, bound)."""

    bound: float = 1.0

    def __call__(self, count: int, fan_in: int, fan_out: int, draw: Draw) -> np.ndarray:
        """Return `count` values of U(-bound, bound)."""
        return (2 * draw.uniform(count) - 1) * self.bound


@dataclass(frozen=True)
class Constant:
    """Every element is `value`."""

    value: float

    def __call__(self, count: int, fan_in: int, fan_out: int, draw: Draw) -> np.ndarray:
        """Return `count` times the value."""
        return np.full(count, self.value)


@dataclass(frozen=True)
class Zero:
    """Every element is 0."""

    def __call__(self, count: int, fan_in: int, fan_out: int, draw: Draw) -> np.ndarray:
        """Return `count` zeros."""
        return np.zeros(count)


@dataclass(frozen=True)
class Deterministic:
    """w[i] = ((i mod 7) - 3) * 0.1: no randomness, for parity tests."""

    def __call__(self, count: int, fan_in: int, fan_out: int, draw: Draw) -> np.ndarray:
        """Return the pattern."""
        return (np.arange(count) % 7 - 3) * 0.1
