"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from noeira.nn.optimizer.optimizer import Optimizer
from noeira.nn.optimizer.schedule import Schedule
from noeira.ops import control
from noeira.ops.dispatch import Array
from noeira.ops.optimizer import sgd


class SGD(Optimizer):
    """SGD with momentum, PyTorch's form: the velocity holds gradients, not steps.

    g += wd p; m = mu m + (1 - dampening) g (the first m is g); p -= lr m, or with nesterov p -= lr (g + mu m).

    Args:
        lr: Learning rate.
        momentum: mu; 0 for plain SGD, which leaves the velocity alone.
        dampening: Share of the gradient kept out of the velocity.
        weight_decay: L2 coefficient, on weights only.
        nesterov: Nesterov's look-ahead; needs momentum and no dampening.
        clip_norm: See `Optimizer`.
        clip_value: See `Optimizer`.
        schedule: See `Optimizer`.
    """

    kind = "sgd"
    slots = ("m",)

    def __init__(
        self,
        lr: float = 1e-2,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        schedule: Schedule | None = None,
    ):
        super().__init__(lr, weight_decay=weight_decay, clip_norm=clip_norm, clip_value=clip_value, schedule=schedule)
        self.momentum, self.dampening = (
            self._beta("momentum", momentum),
            self._at_least_0("dampening", dampening),
        )
        self.nesterov = bool(nesterov)
        if self.nesterov and (momentum == 0 or dampening != 0):
            raise ValueError("SGD: nesterov needs momentum > 0 and dampening = 0")

    def hyper(self, *, clear: bool) -> np.ndarray:
        """The hyper-parameters as the kernel reads them."""
        values = super().hyper(clear=clear)
        values[[control.BETA1, control.DAMPENING, control.NESTEROV]] = (
            self.momentum,
            self.dampening,
            self.nesterov,
        )
        return values

    def update(self, memory: Mapping[str, Array]) -> None:
        """`ops.sgd` on the memory."""
        sgd(*(memory[name] for name in _OPERANDS))


_OPERANDS = ("val", "grd", "m", "counters", "accumulated", "record", "norm", "bad", "segments", "multipliers",
             "hyper", "lr_table")  # fmt: skip
