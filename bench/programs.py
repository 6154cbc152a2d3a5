"""Noeira's ops as programs to time: recorded through `noeira.ops`, compiled together, one call each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.case import Inputs
from noeira.runtime.devices import Device, DeviceArray, to_numpy
from noeira.runtime.programs import Program, build
from noeira.runtime.staging import Dim, Staged, StagedGraph, staging


@dataclass(frozen=True)
class Operand:
    """An input of a program; `memory` says that the program writes into it."""

    shape: Sequence[Dim]
    dtype: str = "float32"
    memory: bool = False


Body = Callable[..., Staged | Sequence[Staged] | None]


def record(name: str, operands: Mapping[str, Operand], body: Body) -> StagedGraph:
    """Record `body(**operands)`; what it returns are the program's outputs.

    Dimensions given by name are free, so that one program serves every size (noeira's kernels take sizes at run
    time): a new shape costs no compile.
    """
    graph = StagedGraph(name)
    with staging(graph):
        values = {key: graph.input(key, op.shape, op.dtype, mutable=op.memory) for key, op in operands.items()}
        outputs = body(**values)
    if outputs is None:
        return graph.finish()
    return graph.finish(*([outputs] if isinstance(outputs, Staged) else outputs))


class Bound:
    """A program on its arrays: `run()` is what is timed, `outputs()` and `memory` are for comparing."""

    def __init__(self, program: Program, arrays: Inputs, device: Device):
        self.memory: dict[str, DeviceArray] = {}
        for name in program.inputs:  # aligned, as arenas are
            self.memory[name] = DeviceArray.zeros(np.shape(arrays[name]), np.asarray(arrays[name]).dtype, device)
            self.memory[name].write(arrays[name])
        self._bound, self._device = program.bind(self.memory), device

    def run(self) -> list[Any]:
        """One call; waits for an accelerator."""
        results = self._bound.run()
        if self._device.kind != "cpu":
            self._device.max_device.synchronize()
        return results

    def outputs(self) -> list[np.ndarray]:
        """Run once and read the outputs back."""
        return [np.array(to_numpy(result)) for result in self._bound.run()]

    def array(self, name: str) -> np.ndarray:
        """A copy of an operand's present contents."""
        return np.array(self.memory[name].numpy())


@dataclass
class ProgramSet:
    """Recordings compiled in one go on first use, however few of them are asked for: one key in the store."""

    what: str
    recordings: Sequence[Callable[[], StagedGraph]]
    _built: dict[Device, dict[str, Program]] = field(default_factory=dict)
    _failed: dict[Device, str] = field(default_factory=dict)

    def bind(self, name: str, arrays: Inputs, device: Device) -> Bound:
        """The program `name` on copies of the arrays it takes.

        Raises:
            RuntimeError: The set does not compile; tried once.
        """
        if device in self._failed:
            raise RuntimeError(self._failed[device])
        if device not in self._built:
            try:
                self._built[device] = build([make() for make in self.recordings], device, self.what)
            except Exception as error:
                self._failed[device] = f"{self.what} do not compile: {error}"
                raise
        return Bound(self._built[device][name], arrays, device)
