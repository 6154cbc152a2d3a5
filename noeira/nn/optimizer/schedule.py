"""Learning-rate schedules: a factor of the base rate, by epoch or by step.

A schedule becomes a table of rates, one per optimizer step, that lies on the device; a skipped step does not move
along it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Schedule:
    """Base: `scale(index, total)` is the factor at epoch or step `index` of `total`.

    Args:
        per: "epoch" or "step": what the index counts.
    """

    per: str = field(default="epoch", kw_only=True)

    def __post_init__(self) -> None:
        if self.per not in ("epoch", "step"):
            raise ValueError(f"{type(self).__name__}: expected per='epoch' or 'step', got {self.per!r}")
        for name in ("warmup", "every"):
            least = 1 if name == "every" else 0
            value = getattr(self, name, least)
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{type(self).__name__}: expected {name} to be an integer >= {least}, got {value!r}")

    def scale(self, index: int, total: int) -> float:
        """Factor of the base learning rate."""
        raise NotImplementedError

    def table(self, lr: float, epochs: int, steps_per_epoch: int) -> np.ndarray:
        """Learning rate of every step: float64 [epochs * steps_per_epoch]."""
        if self.per == "step":
            total = epochs * steps_per_epoch
            return np.array([lr * self.scale(index, total) for index in range(total)])
        return np.repeat([lr * self.scale(index, epochs) for index in range(epochs)], steps_per_epoch)


@dataclass(frozen=True)
class Constant(Schedule):
    """Factor 1."""

    def scale(self, index: int, total: int) -> float:
        """Return 1."""
        return 1.0


@dataclass(frozen=True)
class LinearWarmup(Schedule):
    """(i + 1) / warmup up to 1, then 1."""

    warmup: int = 5

    def scale(self, index: int, total: int) -> float:
        """Return min(1, (index + 1) / warmup)."""
        return min(1.0, (index + 1) / self.warmup) if self.warmup > 0 else 1.0


def _cosine(progress: float, minimum: float) -> float:
    return minimum + (1 - minimum) * 0.5 * (1 + math.cos(math.pi * min(max(progress, 0.0), 1.0)))


@dataclass(frozen=True)
class Cosine(Schedule):
    """From 1 down to `minimum` along half a cosine; the last index stands at the minimum."""

    minimum: float = 0.0

    def scale(self, index: int, total: int) -> float:
        """Return min + (1 - min)(1 + cos(pi i / (total - 1))) / 2."""
        return _cosine(index / max(total - 1, 1), self.minimum)


@dataclass(frozen=True)
class WarmupCosine(Schedule):
    """(i + 1) / warmup during the warm-up, then a half cosine over the rest down to `minimum`."""

    warmup: int = 5
    minimum: float = 0.0

    def scale(self, index: int, total: int) -> float:
        """Warm-up, then the cosine at progress (i - warmup) / (total - warmup)."""
        if index < self.warmup:
            return (index + 1) / self.warmup
        return _cosine((index - self.warmup) / max(total - self.warmup, 1), self.minimum)


@dataclass(frozen=True)
class Step(Schedule):
    """Multiply by `gamma` every `every` epochs or steps."""

    every: int = 20
    gamma: float = 0.1

    def scale(self, index: int, total: int) -> float:
        """Return gamma^(index // every)."""
        return self.gamma ** (index // self.every)
