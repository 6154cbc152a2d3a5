"""Arenas: all values of a model in one flat buffer, all gradients in another, then both moments.

So zeroing, norms, optimizer steps and checkpoints are each one pass over flat memory. Every parameter starts on a
128-byte boundary; the gaps stay zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from noeira.nn.core.param import Param, State
from noeira.runtime.devices import ALIGNMENT, Device, DeviceArray


class Arena:
    """The memory of a model's parameters and states on one device.

    Values that parameters already had (from another model, device or dtype) are carried over, moments included.

    Args:
        params: Parameters by dotted name, in walk order; a shared one appears once.
        states: States by dotted name.
        device: Where the memory lies.
        dtype: Floating-point type of all parameters.
    """

    def __init__(self, params: Mapping[str, Param], states: Mapping[str, State], device: Device, dtype: Any):
        self.params, self.states = dict(params), dict(states)
        self.device, self.dtype = device, np.dtype(dtype)
        self.offsets: dict[str, int] = {}
        """First element of each parameter in every arena."""
        self.memory: dict[str, DeviceArray] = {}
        """The arenas by role: val and grd, and m and v once `moments()` was called."""
        step = ALIGNMENT // self.dtype.itemsize
        total = 0
        for name, param in self.params.items():
            self.offsets[name] = total
            total += -(-param.size // step) * step
        self.size = total
        had_moments = any("m" in param.memory for param in self.params.values())
        for role in ("val", "grd", "m", "v") if had_moments else ("val", "grd"):
            self._add(role)
        for name, state in self.states.items():
            kind = self.dtype if state.dtype == "model" else np.dtype(state.dtype)
            old = None if state.memory is None else state.memory.numpy()
            values = np.full(state.shape, state.fill, kind) if old is None else old.astype(kind)
            state.memory, state.name = DeviceArray.of(np.array(values), device), name

    def _add(self, role: str) -> None:
        flat = DeviceArray.zeros((self.size,), self.dtype, self.device)
        for name, param in self.params.items():
            new = flat.slice(self.offsets[name], param.shape)
            if role in param.memory:
                new.write(param.memory[role].numpy().astype(self.dtype))
            param.memory[role], param.name = new, name
        self.memory[role] = flat

    def moments(self) -> None:
        """Make sure both moment arenas exist."""
        for role in ("m", "v"):
            if role not in self.memory:
                self._add(role)

    def owns(self, params: Mapping[str, Param], states: Mapping[str, State]) -> bool:
        """Whether this is still the memory of exactly these parameters (none added, replaced or taken away)."""
        return (
            list(params) == list(self.params)
            and list(states) == list(self.states)
            and all(self.params[name] is param for name, param in params.items())
            and all(self.states[name] is state for name, state in states.items())
            and all(self._holds(param) for param in params.values())
        )

    def _holds(self, param: Param) -> bool:
        mine = self.memory["val"]
        theirs = param.memory.get("val")
        if theirs is None or theirs.device != self.device:
            return False
        if self.device.kind != "cpu":
            return param.name in self.params
        return np.shares_memory(mine.numpy(), theirs.numpy()) if param.size else True

    def segments(self) -> tuple[np.ndarray, np.ndarray]:
        """Runs of the arena an optimizer updates, and their (lr, decay) factors; frozen parameters are in none.

        Returns:
            int64 [s, 2] of (start, length), and float64 [s, 2]. Neighbours with equal factors form one run.
        """
        runs: list[list[int]] = []
        factors: list[tuple[float, float]] = []
        for name, param in self.params.items():
            if not param.trainable or not param.size:
                continue
            start, factor = self.offsets[name], (1.0, 1.0 if param.decay else 0.0)
            if runs and factors[-1] == factor and self._gap_is_padding(runs[-1], start):
                runs[-1][1] = start + param.size - runs[-1][0]
            else:
                runs.append([start, param.size])
                factors.append(factor)
        return np.array(runs, np.int64).reshape(-1, 2), np.array(factors, np.float64).reshape(-1, 2)

    def _gap_is_padding(self, run: list[int], start: int) -> bool:
        return start - (run[0] + run[1]) < ALIGNMENT // self.dtype.itemsize

    def name_at(self, index: int) -> str:
        """Dotted name of the parameter that holds arena element `index`."""
        return max((offset, name) for name, offset in self.offsets.items() if offset <= index)[1]
