"""Arenas: all values of a model in one flat buffer, all gradients in another, then both moments.

So zeroing, norms, optimizer steps and checkpoints are each one pass over flat memory. Every parameter starts on a
128-byte boundary; the gaps stay zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        """The arenas by role: val, grd, and an optimizer's slots (m, v) once it has claimed them."""
        before = next((param.arena for param in self.params.values() if param.arena is not None), None)
        copied = max((param.history for param in self.params.values()), default=("", 0))
        self.optimizer, self.applied = (before.optimizer, before.applied) if before is not None else copied
        """Which optimizer the moments belong to, and how many steps it has applied."""
        step = ALIGNMENT // self.dtype.itemsize
        self.size = 0
        for name, param in self.params.items():
            self.offsets[name] = self.size
            self.size += -(-param.size // step) * step
        for role in dict.fromkeys(["val", "grd", *(role for p in self.params.values() for role in p.memory)]):
            self._add(role)
        for name, param in self.params.items():
            param.arena, param.name = self, name
        for name, state in self.states.items():
            kind = self.dtype if state.dtype == "model" else np.dtype(state.dtype)
            old = np.full(state.shape, state.fill) if state.memory is None else state.memory.numpy()
            state.memory = DeviceArray.zeros(state.shape, kind, device)
            state.memory.write(old.astype(kind))
            state.arena, state.name = self, name

    def _add(self, role: str) -> None:
        flat = DeviceArray.zeros((self.size,), self.dtype, self.device)
        for name, param in self.params.items():
            new = flat.slice(self.offsets[name], param.shape)
            if role in param.memory:
                new.write(param.memory[role].numpy().astype(self.dtype))
            param.memory[role] = new
        self.memory[role] = flat

    def claim(self, optimizer: str, slots: Sequence[str]) -> int:
        """Make sure an optimizer's slots exist and are its own; another optimizer's moments are forgotten.

        Returns:
            How many steps it has applied so far.
        """
        if self.optimizer != optimizer:
            for role in self.memory.keys() - {"val", "grd"}:
                self.clear(role)
            self.optimizer, self.applied = optimizer, 0
        for role in slots:
            if role not in self.memory:
                self._add(role)
        return self.applied

    def clear(self, role: str) -> None:
        """Zero one arena."""
        self.memory[role].write(np.zeros(self.size, self.dtype))

    def owns(self, params: Mapping[str, Param], states: Mapping[str, State]) -> bool:
        """Whether this is still the memory of exactly these parameters: none added, replaced or taken away."""
        return (
            list(params) == list(self.params)
            and list(states) == list(self.states)
            and all(tensor.arena is self for tensor in (*params.values(), *states.values()))
        )

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
