"""Optimizer: hyper-parameters, and one step over the arenas of a model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from noeira.nn.core.errors import NonFiniteError
from noeira.nn.core.module import Module
from noeira.nn.optimizer.schedule import Constant, Schedule
from noeira.ops import control
from noeira.ops.dispatch import Array
from noeira.ops.optimizer import gradient_norm


class Optimizer:
    """Base of all optimizers.

    Args:
        lr: Learning rate.
        weight_decay: Decay; applies to parameters made with `decay=True` (weights, not biases and norm scales).
        clip_norm: Largest global L2 norm of the gradient; larger ones are scaled down to it.
        clip_value: Largest absolute value of a gradient element, after `clip_norm`.
        schedule: Factor of `lr` over epochs or steps.

    A step whose gradient is not finite is skipped: parameters, moments, the step count and the schedule stay.
    """

    kind: ClassVar[str] = ""
    """Name of the update rule: moments belong to one rule and are forgotten when another takes over."""
    slots: ClassVar[tuple[str, ...]] = ()
    """Arenas the rule keeps beside val and grd."""

    def __init__(
        self,
        lr: float,
        *,
        weight_decay: float = 0.0,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        schedule: Schedule | None = None,
    ):
        self.lr, self.weight_decay = (
            self._at_least_0("lr", lr),
            self._at_least_0("weight_decay", weight_decay),
        )
        self.clip_norm = 0.0 if clip_norm is None else self._positive("clip_norm", clip_norm)
        self.clip_value = 0.0 if clip_value is None else self._positive("clip_value", clip_value)
        self.schedule = schedule or Constant()
        self.skipped = 0
        """Steps that `step` skipped."""

    def _at_least_0(self, name: str, value: float) -> float:
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{type(self).__name__}: expected {name} to be a finite number >= 0, got {value!r}")
        return float(value)

    def _positive(self, name: str, value: float) -> float:
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{type(self).__name__}: expected {name} to be a finite number > 0 or None, got {value!r}")
        return float(value)

    def _beta(self, name: str, value: float) -> float:
        if not 0 <= value < 1:
            raise ValueError(f"{type(self).__name__}: expected {name} in [0, 1), got {value!r}")
        return float(value)

    def hyper(self, *, clear: bool) -> np.ndarray:
        """The hyper-parameters as the kernels read them; `clear` zeroes the gradients in the same pass."""
        values = np.zeros(control.HYPER)
        values[[control.WEIGHT_DECAY, control.CLIP_NORM, control.CLIP_VALUE, control.CLEAR]] = (
            self.weight_decay,
            self.clip_norm,
            self.clip_value,
            clear,
        )
        return values

    def apply(self, memory: Mapping[str, Array]) -> None:
        """One step on arenas and control memory, arrays or staged values: norm, then update.

        Args:
            memory: val, grd, m, v, counters, accumulated, record, segments, multipliers, hyper, lr_table.
        """
        norm, bad = gradient_norm(memory["grd"])
        self.update({**memory, "norm": norm, "bad": bad})

    def update(self, memory: Mapping[str, Array]) -> None:
        """The optimizer's own op."""
        raise NotImplementedError(f"{type(self).__name__} does not define update")

    def step(self, model: Module) -> float:
        """One step of a loop of your own, on the NumPy path; gradients stay until `model.zero_grad()`.

        Returns:
            The gradient's norm before clipping.
        """
        if not isinstance(self.schedule, Constant):
            raise ValueError(
                f"{type(self).__name__}.step: a {type(self.schedule).__name__} schedule needs the length of the "
                "training; set `lr` yourself in a loop of your own, or use Trainer"
            )
        model.init_missing()
        arena = model.arena()
        counters = np.zeros(control.COUNTERS, np.int64)
        counters[[control.CURSOR, control.BAD_INDEX]] = (1, -1)
        counters[control.APPLIED] = counters[control.LR_BASE] = arena.claim(self.kind, self.slots)
        record = np.zeros((1, control.LOG_COLUMNS), np.float32)
        segments, multipliers = arena.segments()
        self.apply(
            {
                **{role: flat.numpy() for role, flat in arena.memory.items()},
                "counters": counters,
                "accumulated": np.ones(1, np.float32),
                "record": record,
                "segments": segments,
                "multipliers": multipliers,
                "hyper": self.hyper(clear=False),
                "lr_table": np.array([self.lr]),
            }
        )
        arena.applied = int(counters[control.APPLIED])
        bad = int(counters[control.BAD_INDEX])
        self.skipped += int(counters[control.SKIPPED])
        self.last_skipped = arena.name_at(bad) if bad >= 0 else None
        return float(record[0, control.LOG_NORM])

    last_skipped: str | None = None
    """After `step`: the first parameter whose gradient was not finite, None if the step was applied."""

    def require_finite(self) -> None:
        """Raise `NonFiniteError` if the last `step` was skipped."""
        if self.last_skipped:
            raise NonFiniteError(f"non-finite gradient in '{self.last_skipped}'")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(lr={self.lr:g}, weight_decay={self.weight_decay:g})"
