"""Programs: compiled recordings, ready to run on buffers."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from noeira.runtime import store
from noeira.runtime.compile_progress import compiling
from noeira.runtime.devices import Device, DeviceArray, to_numpy
from noeira.runtime.kernel_library import kernel_library
from noeira.runtime.staging import Spec, StagedGraph

if TYPE_CHECKING:
    from max.engine import CompiledModel, InferenceSession, Model


class ProgramError(RuntimeError):
    """A program was given something its signature does not allow."""


class Program:
    """One compiled program: `bind` it to arrays by input name, then `run` as often as you like."""

    def __init__(
        self,
        name: str,
        model: Model,
        inputs: Mapping[str, Spec],
        outputs: Sequence[Spec],
        device: Device,
        *,
        compiled: bool,
    ):
        self.name, self.device, self.inputs = name, device, dict(inputs)
        self._numbers = tuple(i for i, spec in enumerate(outputs) if spec.shape == ())
        self.compiled = compiled
        """Whether this process compiled it (False: it came from the program store)."""
        self._model = model

    def bind(self, arrays: Mapping[str, DeviceArray]) -> BoundProgram:
        """Fix the program's inputs.

        Raises:
            ProgramError: An input is missing, unknown, on another device, or has the wrong dtype or shape.
        """
        unknown, missing = arrays.keys() - self.inputs.keys(), self.inputs.keys() - arrays.keys()
        if unknown or missing:
            raise ProgramError(f"program '{self.name}': missing inputs {sorted(missing)}, unknown {sorted(unknown)}")
        free: dict[str, int] = {}
        for name, spec in self.inputs.items():
            array = arrays[name]
            if array.device != self.device:
                raise ProgramError(f"program '{self.name}' runs on {self.device}; input '{name}' is on {array.device}")
            fits = len(array.shape) == len(spec.shape) and all(
                size == (dim if isinstance(dim, int) else free.setdefault(dim, size))
                for size, dim in zip(array.shape, spec.shape, strict=True)
            )
            if not fits or array.dtype.name != spec.dtype:
                raise ProgramError(
                    f"program '{self.name}', input '{name}': expected {spec} with {free}, got "
                    f"{array.dtype.name}{list(array.shape)}"
                )
        return BoundProgram(self._model, [arrays[name] for name in self.inputs], self._numbers)


class BoundProgram:
    """A program with its memory: `run()` is one call into compiled code."""

    __slots__ = ("_arrays", "_buffers", "_model", "_numbers")

    def __init__(self, model: Model, arrays: Sequence[DeviceArray], numbers: Sequence[int] = ()):
        self._model, self._numbers = model, numbers
        self._arrays = list(arrays)  # keeps the memory alive
        self._buffers = [array.buffer for array in arrays]

    def run(self) -> list[Any]:
        """Run; the results are MAX buffers (`devices.to_numpy`)."""
        results = self._model.execute(*self._buffers)
        for i in self._numbers:  # arithmetic on numbers comes out of MAX with one axis
            results[i] = results[i].view(results[i].dtype, ())
        return results


@cache
def _session(device: Device) -> InferenceSession:
    from max.engine import InferenceSession

    return InferenceSession(devices=[device.max_device])


def build(graphs: Sequence[StagedGraph], device: Device, what: str = "") -> dict[str, Program]:
    """Compile recordings together, or take them from the program store.

    Args:
        graphs: Finished recordings; names must differ.
        device: Where they run.
        what: What the user is told is being compiled; the programs' names by default.
    """
    names = [graph.name for graph in graphs]
    if len(set(names)) != len(names):
        raise ProgramError(f"programs compiled together need different names, got {names}")
    store.limit_bytes()  # a bad setting is refused before the work, not after it
    key = store.program_key(graphs, device)
    models = _load(key, device)
    compiled = models is None
    if models is None:
        library = kernel_library()
        with compiling(what or f"programs {', '.join(names)}"):
            artifact = _compile(graphs, device, library)
        store.save(key, _export(artifact), names)
        models = _session(device).init_all(artifact)
    return {
        graph.name: Program(
            graph.name,
            models[graph.name],
            {v.name: v.spec for v in graph.inputs},
            [v.spec for v in graph.outputs],
            device,
            compiled=compiled,
        )
        for graph in graphs
    }


def _load(key: str, device: Device) -> dict[str, Model] | None:
    from max.engine import read

    mef = store.load(key)
    if mef is None:
        return None
    try:
        return _session(device).init_all(read(BytesIO(mef)))
    except Exception as error:  # MAX's own check of a file that is whole but not for this MAX
        store.reject(key, error)
        return None


def _compile(graphs: Sequence[StagedGraph], device: Device, library: Path) -> CompiledModel:
    from noeira.runtime.lowering import lower  # imports max.graph, which a stored program never needs

    return _session(device).compile(lower(graphs, device, library), custom_extensions=[library])


def _export(artifact: CompiledModel) -> bytes:
    handle, path = tempfile.mkstemp(prefix="noeira-", suffix=".mef")
    os.close(handle)
    try:
        artifact.export_mef(path)
        return Path(path).read_bytes()
    finally:
        os.unlink(path)


def run_once(graph: StagedGraph, arrays: Mapping[str, np.ndarray], device: Device) -> list[np.ndarray]:
    """Compile (or load) one recording and run it on host arrays; results come back as arrays."""
    program = build([graph], device)[graph.name]
    bound = program.bind({name: DeviceArray.of(array, device) for name, array in arrays.items()})
    return [to_numpy(result) for result in bound.run()]
