"""Param and State: the tensors a module owns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from noeira.nn.core import context
from noeira.nn.core.errors import ShapeError, UninitializedError
from noeira.nn.core.initializer import Initializer
from noeira.ops.dispatch import Array
from noeira.ops.memory import accumulate, assign, load
from noeira.runtime import staging
from noeira.runtime.devices import DeviceArray

if TYPE_CHECKING:
    from noeira.nn.core.arena import Arena


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
        """Its slices of the arenas, by role: val, grd, and once an optimizer with state has stepped m and v."""
        self.arena: Arena | None = None
        """The arena that holds the memory."""
        self.history = ("", 0)
        """In a copy: which optimizer the moments belong to, and how many steps it had applied."""
        self.drawn = False
        """Whether the value was drawn or assigned."""

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
        return _view(self.memory[role])

    def _set(self, role: str, array: np.ndarray) -> None:
        if staging.active() is not None:
            raise staging.StagingError(f"{self!r}.{role} cannot be assigned inside forward or vjp; use `accumulate`")
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
        self.drawn = True

    @property
    def grd(self) -> Array | None:
        """The gradient that `vjp` adds into; None while the parameter is frozen."""
        return self._get("grd") if self.trainable else None

    @grd.setter
    def grd(self, array: np.ndarray) -> None:
        self._set("grd", array)

    def accumulate(self, gradient: Array) -> None:
        """Add to the gradient; nothing is done while the parameter is frozen. What a `vjp` calls."""
        if self.trainable:
            accumulate(self.grd, gradient)

    @property
    def m(self) -> Array:
        """First moment (Adam) or velocity (SGD)."""
        return self._get("m")

    @property
    def v(self) -> Array:
        """Second moment (Adam)."""
        return self._get("v")

    def __getstate__(self) -> dict[str, Any]:
        history = self.history if self.arena is None else (self.arena.optimizer, self.arena.applied)
        return {**vars(self), "arena": None, "history": history}  # a copy's memory is its own until a model adopts it

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
        self.arena: Arena | None = None

    @property
    def val(self) -> Array:
        """The current value, which later writes do not change."""
        graph = staging.active()
        if graph is not None:
            return load(graph.owned(self, "state"))
        return load(self._memory())

    @val.setter
    def val(self, value: Array) -> None:
        if context.running.replaying:
            return
        graph = staging.active()
        if graph is not None:
            assign(graph.owned(self, "state"), value)
            return
        if np.shape(value) != self.shape:
            raise ShapeError(f"state '{self.name}': expected shape {self.shape}, got {np.shape(value)}")
        self._memory()
        assert self.memory is not None
        self.memory.write(np.asarray(value))

    def _memory(self) -> np.ndarray:
        if self.memory is None:
            raise UninitializedError(f"{self!r} has no value yet: call `init(seed=...)` on its model, or run it once")
        return _view(self.memory)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "arena": None}

    def __repr__(self) -> str:
        return f"State({self.name!r}, {list(self.shape)})" if self.name else f"State({list(self.shape)})"


def _view(memory: DeviceArray) -> np.ndarray:
    """The numbers; from an accelerator a copy, which must not be mistaken for the memory itself."""
    array = memory.numpy()
    if memory.device.kind != "cpu":
        array.flags.writeable = False
    return array
