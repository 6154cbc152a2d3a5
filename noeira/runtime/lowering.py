"""Lowering: turning recordings into one MAX module. The only file that builds MAX graphs.

An op named `noeira.*` becomes a custom op of the kernel library under the same name; the few native ops below
become MAX's own (free reshapes, elementwise arithmetic that MAX fuses).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


def _axis(op: StagedOp) -> int:
    return int(dict(op.attributes)["axis"])


def _along(x: Any, op: StagedOp, other: Any, this: Callable[[Mapping[str, Any]], Any]) -> list[Any]:
    """One item an axis: `this` of the op's attributes for its axis, `other` for the rest."""
    return [this(dict(op.attributes)) if axis == _axis(op) else other for axis in range(x.rank)]


def _positions(attributes: Mapping[str, Any]) -> slice:
    return slice(attributes["start"], attributes["stop"])


def _margins(attributes: Mapping[str, Any]) -> tuple[int, int]:
    return attributes["before"], attributes["after"]


def _iota(spec: Spec, device: DeviceRef) -> Any:
    """0, 1, 2, ...; as int64 on the way, whose count may be free."""
    count = _dim(spec.shape[0])
    start, step = (ops.constant(n, DType.int64, device=device) for n in (0, 1))
    stop = ops.reshape(ops.shape_to_tensor([count]), [])
    numbers = ops.range(start, stop, step, out_dim=count, dtype=DType.int64, device=device)
    return ops.cast(numbers, DType[spec.dtype])


NATIVE: dict[str, Native] = {
    "reshape": lambda v, op: ops.reshape(v[0], _shape(op.outputs[0].spec)),
    "add": lambda v, op: ops.add(v[0], v[1]),
    "subtract": lambda v, op: ops.sub(v[0], v[1]),
    "multiply": lambda v, op: ops.mul(v[0], v[1]),
    "divide": lambda v, op: ops.div(v[0], v[1]),
    "negative": lambda v, op: ops.negate(v[0]),
    "log": lambda v, op: ops.log(v[0]),
    "sqrt": lambda v, op: ops.sqrt(v[0]),
    "absolute": lambda v, op: ops.abs(v[0]),
    "greater": lambda v, op: ops.greater(v[0], v[1]),
    "greater_equal": lambda v, op: ops.greater_equal(v[0], v[1]),
    "equal": lambda v, op: ops.equal(v[0], v[1]),
    "where": lambda v, op: ops.where(v[0], v[1], v[2]),
    "cast": lambda v, op: ops.cast(v[0], DType[op.outputs[0].spec.dtype]),
    "sin": lambda v, op: ops.sin(v[0]),
    "cos": lambda v, op: ops.cos(v[0]),
    "floor_divide": lambda v, op: ops.floor_div(v[0], v[1]),
    "slice": lambda v, op: ops.slice_tensor(v[0], _along(v[0], op, slice(None), _positions)),
    "pad": lambda v, op: ops.pad(v[0], [n for pair in _along(v[0], op, (0, 0), _margins) for n in pair]),
    "concat": lambda v, op: ops.concat(v, axis=_axis(op)),
    "broadcast_to": lambda v, op: ops.broadcast_to(v[0], _shape(op.outputs[0].spec)),
    "iota": lambda v, op: _iota(op.outputs[0].spec, v[0].device),
    "count": lambda v, op: ops.cast(ops.shape_to_tensor([v[0].shape[_axis(op)]]), DType[op.outputs[0].spec.dtype]),
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


def _type(value: Staged, device: DeviceRef) -> TensorType | BufferType:
    kind = BufferType if value.mutable else TensorType
    return kind(DType[value.spec.dtype], _shape(value.spec), device)


def _lower_graph(recording: StagedGraph, device: DeviceRef, module: Module, kernels: KernelLibrary) -> None:
    types = [_type(value, device) for value in recording.inputs]
    with Graph(recording.name, input_types=types, module=module, kernel_library=kernels) as graph:
        subgraphs: dict[str, Graph] = {}
        for name, body in recording.bodies().items():
            body_types = [_type(value, device) for value in body.inputs]
            symbol = f"{recording.name}_{name}"  # programs of one module share its symbols
            with graph.add_subgraph(symbol, input_types=body_types) as subgraph:
                subgraph._kernel_library = kernels  # the constructor would read the library again for each body
                _lower_ops(body, subgraph, device, subgraphs)
            subgraphs[name] = subgraph
        _lower_ops(recording, graph, device, subgraphs)


def _lower_ops(recording: StagedGraph, graph: Graph, device: DeviceRef, subgraphs: Mapping[str, Graph]) -> None:
    read = {value.index for op in recording.ops for value in op.inputs} | {value.index for value in recording.outputs}
    kept: list[Any] = []
    values: dict[int, Any] = {}
    for value, argument in zip(recording.inputs, graph.inputs, strict=True):
        values[value.index] = argument.buffer if value.mutable else argument.tensor
    for index, array in recording.constants.items():
        values[index] = ops.constant(array, DType.from_numpy(array.dtype), device=device)
    for op in recording.ops:
        operands = [values[value.index] for value in op.inputs]
        if op.body is not None:
            called = ops.call(subgraphs[str(dict(op.attributes)["body"])], *operands)
            results = [result.tensor for result in called[: len(op.outputs)]]
            if op.writes and not any(value.index in read for value in op.outputs):
                kept.append(called[0].tensor)  # MAX drops a call nobody reads from, with all that it writes
        elif op.name in NATIVE:
            results = [NATIVE[op.name](operands, op)]
        else:
            custom = ops.inplace_custom if op.touches_memory else ops.custom
            types = [_type(value, device) for value in op.outputs]
            results = custom(op.name, device, operands, types, dict(op.attributes) or None)
        values.update((value.index, result) for value, result in zip(op.outputs, results, strict=True))
    outputs = [values[value.index] for value in recording.outputs] + kept
    if not outputs and graph.name != recording.name:  # a subgraph without outputs does not compile
        outputs = [ops.constant(0, DType.int32, device=device)]
    graph.output(*outputs)
