"""Adam and AdamW."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from noeira.nn.optimizer.optimizer import Optimizer
from noeira.nn.optimizer.schedule import Schedule
from noeira.ops import control
from noeira.ops.dispatch import Array
from noeira.ops.optimizer import adam


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015), PyTorch's form; one pass over the arenas.

    m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; p -= lr m/(1-b1^t) / (sqrt(v/(1-b2^t)) + eps). eps stands outside
    the root. Weight decay is added to the gradient.

    Args:
        lr: Learning rate.
        betas: Decay rates of the moments.
        eps: Added to the denominator.
        weight_decay: L2 coefficient (see `AdamW` for decoupled decay).
        clip_norm: See `Optimizer`.
        clip_value: See `Optimizer`.
        schedule: See `Optimizer`.
    """

    kind = "adam"
    slots = ("m", "v")
    decoupled: ClassVar[bool] = False

    def __init__(
        self,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        schedule: Schedule | None = None,
    ):
        super().__init__(lr, weight_decay=weight_decay, clip_norm=clip_norm, clip_value=clip_value, schedule=schedule)
        self.betas = (self._beta("betas[0]", betas[0]), self._beta("betas[1]", betas[1]))
        self.eps = self._at_least_0("eps", eps)

    def hyper(self, *, clear: bool) -> np.ndarray:
        """The hyper-parameters as the kernel reads them."""
        values = super().hyper(clear=clear)
        values[[control.BETA1, control.BETA2, control.EPS, control.DECOUPLED]] = (
            *self.betas,
            self.eps,
            self.decoupled,
        )
        return values

    def update(self, memory: Mapping[str, Array]) -> None:
        """`ops.adam` on the memory."""
        adam(*(memory[name] for name in _OPERANDS))


_OPERANDS = ("val", "grd", "m", "v", "counters", "accumulated", "record", "norm", "bad", "segments", "multipliers",
             "hyper", "lr_table")  # fmt: skip


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019): p *= 1 - lr wd before the update.

    Decay applies to weights, not to biases and norm scales.
    """

    decoupled = True

    def __init__(
        self,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        schedule: Schedule | None = None,
    ):
        super().__init__(lr, betas, eps, weight_decay, clip_norm=clip_norm, clip_value=clip_value, schedule=schedule)
