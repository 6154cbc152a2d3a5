"""Lowering: turning recordings into one MAX module. The only file that builds MAX graphs.

An op named `noeira.*` becomes a custom op of the kernel library under the same name; the few native ops below
become MAX's own (free reshapes, elementwise arithmetic that MAX fuses).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from max.dtype import DType
from max.graph import BufferType, DeviceRef, Dim, Graph, KernelLibrary, Module, Shape, TensorType, ops

from noeira.runtime.devices import Device
from noeira.runtime.staging import Spec, Staged, StagedGraph, StagedOp

Operands = Sequence[Any]
Native = Callable[[Operands, StagedOp], Any]


def _shape(spec: Spec) -> Shape:
    return Shape([_dim(dim) for dim in spec.shape])


def _dim(dim: int | str) -> Dim:
    """A dimension; a free one is a name, or a product such as "b*t*7" (from a reshape)."""
    result = Dim(1)
    for factor in str(dim).split("*"):
        result = result * (int(factor) if factor.isdecimal() else Dim(factor))
    return result


NATIVE: dict[str, Native] = {
    "reshape": lambda v, op: ops.reshape(v[0], _shape(op.outputs[0].spec)),
    "add": lambda v, op: ops.add(v[0], v[1]),
    "subtract": lambda v, op: ops.sub(v[0], v[1]),
    "multiply": lambda v, op: ops.mul(v[0], v[1]),
    "divide": lambda v, op: ops.div(v[0], v[1]),
    "negative": lambda v, op: ops.negate(v[0]),
    "cast": lambda v, op: ops.cast(v[0], DType[op.outputs[0].spec.dtype]),
    "load": lambda v, op: ops.buffer_load(v[0]),
    "store": lambda v, op: ops.buffer_store(v[0], v[1]),
}
"""Ops that MAX has itself and that are right and fast there."""


def lower(graphs: Sequence[StagedGraph], device: Device, library: Path) -> Module:
    """Build every recording as a top-level graph of one MAX module, so that they compile together."""
    module = Module()
    kernels = KernelLibrary([library])
    for graph in graphs:
        _lower_graph(graph, _device_ref(device), module, kernels)
    return module


def _device_ref(device: Device) -> DeviceRef:
    return DeviceRef.CPU() if device.kind == "cpu" else DeviceRef.GPU(device.index)


def _lower_graph(recording: StagedGraph, device: DeviceRef, module: Module, kernels: KernelLibrary) -> None:
    def type_of(value: Staged) -> TensorType | BufferType:
        kind = BufferType if value.mutable else TensorType
        return kind(DType[value.spec.dtype], _shape(value.spec), device)

    name = re.sub(r"\W", "_", recording.name)
    types = [type_of(value) for value in recording.inputs]
    with Graph(name, input_types=types, module=module, kernel_library=kernels) as graph:
        values: dict[int, Any] = {}
        for value, argument in zip(recording.inputs, graph.inputs, strict=True):
            values[value.index] = argument.buffer if value.mutable else argument.tensor
        for index, array in recording.constants.items():
            values[index] = ops.constant(array, DType.from_numpy(array.dtype), device=device)
        for op in recording.ops:
            operands = [values[value.index] for value in op.inputs]
            if op.name in NATIVE:
                result = NATIVE[op.name](operands, op)
                results = [result] if op.outputs else []
            else:
                custom = ops.inplace_custom if op.writes else ops.custom
                results = custom(
                    op.name,
                    device,
                    operands,
                    [type_of(value) for value in op.outputs],
                    dict(op.attributes) or None,
                )
            values.update((value.index, result) for value, result in zip(op.outputs, results, strict=True))
        graph.output(*(values[value.index] for value in recording.outputs))
