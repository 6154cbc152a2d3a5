"""Param and State: the tensors a module owns."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from noeira.nn.core.errors import ShapeError, UninitializedError
from noeira.nn.core.initializer import Initializer
from noeira.ops.dispatch import Array
from noeira.runtime import staging
from noeira.runtime.devices import DeviceArray

ROLES = ("val", "grd", "m", "v")
"""A parameter's tensors: value, gradient, and once an optimizer with state has stepped its two moments."""


class Param:
    """A trainable tensor. Its memory is a slice of its model's arenas.

    Args:
        shape: Shape; weights are [in, out].
        init: How it is drawn; None takes the model's initializer (`Module.init`).
        decay: Whether weight decay applies; by convention to weights, not to biases and norm scales.
        fan_in: Inputs per output, for the initializer; the first dimension by default.
        fan_out: Outputs per input; the last dimension by default.
    """

    def __init__(
        self,
        shape: Sequence[int],
        *,
        init: Initializer | None = None,
        decay: bool = True,
        fan_in: int | None = None,
        fan_out: int | None = None,
    ):
        self.shape = tuple(int(size) for size in shape)
        self.init, self.decay, self.trainable = init, decay, True
        self.fan_in = self.shape[0] if fan_in is None else fan_in
        self.fan_out = self.shape[-1] if fan_out is None else fan_out
        self.name = ""
        """Dotted path in the model that owns the memory; empty until it has memory."""
        self.memory: dict[str, DeviceArray] = {}
        """Slices of the arenas by role; set by `Arena`."""

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def _get(self, role: str) -> Array:
        graph = staging.active()
        if graph is not None:
            return graph.owned(self, role)
        if role not in self.memory:
            what = "values" if role in ("val", "grd") else "moments (no optimizer has stepped)"
            raise UninitializedError(
                f"{self!r} has no {what} yet: call `init(seed=...)` on its model, or run the model once"
            )
        return self.memory[role].numpy()

    def _set(self, role: str, array: np.ndarray) -> None:
        if np.shape(array) != self.shape:
            raise ShapeError(f"parameter '{self.name}': expected shape {self.shape}, got {np.shape(array)}")
        self._get(role)
        self.memory[role].write(np.asarray(array))

    @property
    def val(self) -> Array:
        """The value: on the CPU a live view of the arena; assigning writes in place."""
        return self._get("val")

    @val.setter
    def val(self, array: np.ndarray) -> None:
        self._set("val", array)

    @property
    def grd(self) -> Array | None:
        """The gradient that `vjp` adds into; None while the parameter is frozen."""
        return self._get("grd") if self.trainable else None

    @grd.setter
    def grd(self, array: np.ndarray) -> None:
        self._set("grd", array)

    @property
    def m(self) -> Array:
        """First moment (Adam) or velocity (SGD)."""
        return self._get("m")

    @property
    def v(self) -> Array:
        """Second moment (Adam)."""
        return self._get("v")

    def __repr__(self) -> str:
        frozen = "" if self.trainable else ", frozen"
        return (
            f"Param({self.name!r}, {list(self.shape)}{frozen})" if self.name else f"Param({list(self.shape)}{frozen})"
        )


class State:
    """A tensor a module keeps but does not train (running statistics, counters): saved with checkpoints.

    Args:
        shape: Shape.
        fill: Initial value of every element.
        dtype: Element type; "model" follows the model's floating-point type.
    """

    def __init__(self, shape: Sequence[int], fill: float = 0.0, dtype: str = "model"):
        self.shape = tuple(int(size) for size in shape)
        self.fill, self.dtype = fill, dtype
        self.name = ""
        self.memory: DeviceArray | None = None

    @property
    def val(self) -> Array:
        """The value: on the CPU a live view; assigning writes in place."""
        graph = staging.active()
        if graph is not None:
            return graph.owned(self, "state")
        if self.memory is None:
            raise UninitializedError(f"{self!r} has no values yet: call `init(seed=...)` on its model")
        return self.memory.numpy()

    @val.setter
    def val(self, array: np.ndarray) -> None:
        if np.shape(array) != self.shape:
            raise ShapeError(f"state '{self.name}': expected shape {self.shape}, got {np.shape(array)}")
        current = self.val
        assert self.memory is not None and current is not None
        self.memory.write(np.asarray(array))

    def __repr__(self) -> str:
        return f"State({self.name!r}, {list(self.shape)})" if self.name else f"State({list(self.shape)})"
