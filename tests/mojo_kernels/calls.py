"""Every way the suite calls a kernel: one `Call` for each op that a row of the catalogue or the trainer records.

A kernel takes its sizes at run time. So calls that differ only in sizes share one program: what differs (dimensions,
and constants such as strides) comes in as inputs.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from noeira import nn, ops
from noeira.nn.core import context
from noeira.nn.core.binding import binder
from noeira.nn.training import staging as training
from noeira.ops import control
from noeira.ops.batch_norm import batch_norm_normalised
from noeira.runtime.lowering import NATIVE
from noeira.runtime.staging import Dim, Spec, StagedGraph, StagedOp, staging
from tests import catalogue
from tests.compare import Case
from tests.mojo_kernels.sizes import sized

KERNELS = Path(__file__).resolve().parents[2] / "mojo_kernels"


@dataclass(frozen=True)
class Operand:
    """One input of a call: its shape and dtype, whether the kernel writes into it, and its value if it is given."""

    shape: tuple[int, ...]
    dtype: str
    memory: bool
    value: bytes | None

    def array(self, draw: np.random.Generator) -> np.ndarray:
        """The given value; or random numbers, and zeros for counters, positions and labels."""
        if self.value is not None:
            return np.frombuffer(self.value, self.dtype).reshape(self.shape)
        if self.dtype == "bool":
            return draw.random(self.shape) < 0.5
        if np.issubdtype(self.dtype, np.integer):
            return np.zeros(self.shape, self.dtype)
        return (draw.random(self.shape) + 0.25).astype(self.dtype)


@dataclass(frozen=True)
class Call:
    """One op with concrete sizes.

    Args:
        kernel: Registered name.
        where: The row and sample that record it.
        operands: Inputs in order; an operand given twice has one number.
        numbers: For each input, which operand it is.
        outputs: Shape and dtype of the results.
        attributes: Compile-time parameters.
    """

    kernel: str
    where: str
    operands: tuple[Operand, ...]
    numbers: tuple[int, ...]
    outputs: tuple[tuple[tuple[int, ...], str], ...]
    attributes: tuple[tuple[str, object], ...]

    @property
    def kind(self) -> tuple[object, ...]:
        """Everything but sizes and values: calls of one kind may share a program."""
        inputs = tuple((len(op.shape), op.dtype, op.memory) for op in self.operands)
        results = tuple((len(shape), dtype) for shape, dtype in self.outputs)
        return self.kernel, self.attributes, self.numbers, inputs, results

    def where_is(self, size: int) -> set[tuple[int, int]]:
        """Operand and axis of every input dimension of this size."""
        return {(i, axis) for i, op in enumerate(self.operands) for axis, n in enumerate(op.shape) if n == size}


@dataclass(frozen=True)
class Plan:
    """A program of one op whose dimensions are all free, and the calls that it serves.

    Sizes of results that no input has (a kernel derives them from strides and the like) are named by the axes of one
    more input, which nobody reads.
    """

    name: str
    dims: tuple[tuple[str, ...], ...]
    """Name of each result's dimensions."""
    calls: tuple[Call, ...]

    def graph(self) -> StagedGraph:
        """The program."""
        call = self.calls[0]
        graph = StagedGraph(self.name)
        with staging(graph):
            values = [
                graph.input(f"x{i}", tuple(_dim(i, axis) for axis in range(len(op.shape))), op.dtype, mutable=op.memory)
                for i, op in enumerate(call.operands)
            ]
            results = graph.emit(
                call.kernel,
                [values[i] for i in call.numbers],
                [Spec(dims, dtype) for dims, (_, dtype) in zip(self.dims, call.outputs, strict=True)],
                dict(call.attributes),  # type: ignore[arg-type]
            )
            named = [*values, graph.input(SIZES, tuple(self.derived()), "int8")] if self.derived() else values
        graph.finish(*results)
        graph.inputs = named
        return graph

    def derived(self) -> list[str]:
        """Dimensions that no input has."""
        return [dim for dims in self.dims for dim in dims if dim.startswith("y")]

    def sizes(self, call: Call) -> tuple[int, ...]:
        """Shape of the additional input."""
        found = {_dim(i, axis, "y"): n for i, (shape, _) in enumerate(call.outputs) for axis, n in enumerate(shape)}
        return tuple(found[dim] for dim in self.derived())


SIZES = "sizes"
"""Name of the additional input."""

ANY_RANK = re.compile(r"noeira\.(activation|linear|swiglu|softmax|embedding|dropout|elementwise|row_norm)")
"""Kernels that merge the leading axes first: one rank stands for all."""


def _dim(number: int, axis: int, side: str = "x") -> str:
    return f"{side}{number}d{axis}"


@cache
def plans() -> tuple[Plan, ...]:
    """Programs for all calls; of kernels that treat all ranks alike those of two axes."""
    kinds: dict[object, list[Call]] = {}
    for call in calls():
        kinds.setdefault(call.kind, []).append(call)
    flat = {call.kernel for call in calls() if len(call.operands[0].shape) == 2}
    found = []
    for members in kinds.values():
        kernel = members[0].kernel
        if ANY_RANK.match(kernel) and kernel in flat and len(members[0].operands[0].shape) > 2:
            continue
        dims = []
        for i, (shape, _) in enumerate(members[0].outputs):
            sources = [
                set.intersection(*(call.where_is(call.outputs[i][0][axis]) for call in members))
                for axis in range(len(shape))
            ]
            dims.append(tuple(_dim(*min(s)) if s else _dim(i, axis, "y") for axis, s in enumerate(sources)))
        found.append(Plan(f"{kernel.replace('.', '_')}_{len(found)}", tuple(dims), tuple(members)))
    return tuple(found)


def registered() -> set[str]:
    """Names of all kernels there are."""
    return {
        name
        for path in KERNELS.glob("*.mojo")
        for name in re.findall(r'^@extensibility\.register\("([^"]+)"\)', path.read_text(encoding="utf-8"), re.M)
    }


def _concrete(op: StagedOp, recording: StagedGraph, where: str, known: dict[int, np.ndarray]) -> Call:
    numbers: dict[int, int] = {}
    operands = []
    for value in op.inputs:
        if value.index in numbers:
            continue
        numbers[value.index] = len(numbers)
        array = recording.constants.get(value.index, known.get(value.index))
        shape = tuple(int(size) for size in value.shape)
        operands.append(
            Operand(
                shape, value.spec.dtype, value.mutable, None if array is None else np.ascontiguousarray(array).tobytes()
            )
        )
    return Call(
        op.name,
        where,
        tuple(operands),
        tuple(numbers[value.index] for value in op.inputs),
        tuple((tuple(int(size) for size in value.shape), value.spec.dtype) for value in op.outputs),
        tuple(op.attributes),
    )


def _record(case: Case, dtype: str) -> StagedGraph:
    """Forward and vjp on the very shapes of a case, repeated modules written out."""
    case.convert(dtype)
    module = case.subject if isinstance(case.subject, nn.Module) else nn.Sequential()
    graph = StagedGraph("recording")
    graph.inline, graph.scope = True, context.path
    graph.bind = binder(module, graph.input("counters", (control.COUNTERS,), "int64", mutable=True))
    with staging(graph):
        inputs = case.inputs_as(dtype)
        values = [graph.input(f"x{i}", x.shape, x.dtype) for i, x in enumerate(inputs)]
        y, saved = case.subject.forward(*values)
        dx = case.subject.vjp(saved, graph.input("u", y.shape, y.dtype))
    case.convert("float32")
    return graph.finish(y, *(grad for grad in (dx if isinstance(dx, tuple) else (dx,)) if grad is not None))


def _rows() -> Iterator[tuple[str, StagedGraph, dict[int, np.ndarray]]]:
    """A recording of every sample of every row, with the integers among its inputs."""
    for path in sorted(Path(catalogue.__file__).parent.glob("catalogue*.py")):
        family = importlib.import_module(f"tests.{path.stem}")
        for row in {id(row): row for row in (*family.ROWS, *getattr(family, "GATED", ()))}.values():
            for i, sample in enumerate(row.samples):
                for dtype in ("float32", "float64") if i == 0 else ("float32",):
                    graph = _record(row.case(sample), dtype)
                    inputs = row.case(sample).inputs_as(dtype)
                    known = {
                        value.index: inputs[int(value.name[1:])]
                        for value in graph.inputs
                        if re.fullmatch(r"x\d+", value.name) and not np.issubdtype(value.dtype, np.floating)
                    }
                    yield f"{row.name}, {sample.label}", graph, known


def _training() -> Iterator[tuple[str, StagedGraph, dict[int, np.ndarray]]]:
    """The trainer's own kernels: batches, counters, optimizers, metrics; and the ops no layer uses."""
    sizes = {"samples": 7, "batches": 3, "batch": 2, "rows": 3, "elements": 67, "runs": 2, "steps": 5}
    spec = training.DataSpec((3,), "float32", (), "int32", 1.0)
    tables = {"segments": np.array([[0, 33], [64, 3]]), "counters": np.zeros(control.COUNTERS, np.int64)}
    for dtype in ("float32", "float64"):
        net = nn.Sequential(nn.Linear(3, 2)).init().to(dtype=dtype)
        for label, graph in (
            ("train_step", training.train_step(net, nn.CrossEntropyLoss(), spec, dtype)[0]),
            ("evaluation", training.evaluation(net, nn.CrossEntropyLoss(), spec, dtype)),
            ("shuffle", training.shuffle()),
            ("pixels", _gather("uint8", dtype)),
            ("probabilities", _totals(dtype)),
            ("input gradient through an activation", _input_grad_act(dtype)),
            ("reductions", _reductions(dtype)),
            *(
                (type(optimizer).__name__, training.optimizer_step(optimizer, dtype))
                for optimizer in (nn.Adam(clip_norm=1.0), nn.AdamW(), nn.SGD(momentum=0.9, nesterov=True), nn.SGD())
            ),
        ):
            yield label, _sized(graph, sizes), {v.index: tables[v.name] for v in graph.inputs if v.name in tables}


def _gather(stored: str, dtype: str) -> StagedGraph:
    graph = StagedGraph("gather")
    with staging(graph):
        data, order = graph.input("inputs", ("samples", 3), stored), graph.input("order", ("batches", "batch"), "int32")
        counters = graph.input("counters", (control.COUNTERS,), "int64", mutable=True)
        return graph.finish(ops.gather_rows(data, order, counters, dtype, 0.5))


def _totals(dtype: str) -> StagedGraph:
    graph = StagedGraph("totals")
    with staging(graph):
        totals = graph.input("totals", (control.EVAL_TOTALS,), "float64", mutable=True)
        rows, value = graph.input("logits", ("batch", 5), dtype), graph.input("loss", (), dtype)
        ops.accumulate_totals(totals, rows, graph.input("targets", ("batch", 5), dtype), value, value)
    return graph.finish()


def _input_grad_act(dtype: str) -> StagedGraph:
    graph = StagedGraph("input_grad_act")
    with staging(graph):
        grad, weight = graph.input("grad", (13, 33), dtype), graph.input("weight", (17, 33), dtype)
        kept = graph.input("kept", (13, 17), dtype)
        result = graph.emit(
            "noeira.linear_input_grad_act", [grad, weight, kept], [Spec((13, 17), dtype)], {"activation": 1}
        )
    return graph.finish(*result)


def _reductions(dtype: str) -> StagedGraph:
    graph = StagedGraph("reductions")
    with staging(graph):
        x, u = graph.input("x", (19, 35), dtype), graph.input("u", (19,), dtype)
        maps, stats = graph.input("maps", (3, 5, 17), dtype), graph.input("stats", (5, 3), dtype)
        lse = ops.log_sum_exp(x)
        normalised = batch_norm_normalised(maps, stats)
        return graph.finish(lse, ops.log_sum_exp_grad(u, x, lse), ops.sum_rows(x), normalised)


def _large() -> Iterator[tuple[str, StagedGraph, dict[int, np.ndarray]]]:
    """Sizes around those of register tiles, cache blocks and chunks."""
    for size in sized():
        for sample in size.row.samples:
            case = size.row.case(sample)
            graph = _record(case, "float32")
            known = {
                value.index: case.inputs[int(value.name[1:])]
                for value in graph.inputs
                if re.fullmatch(r"x\d+", value.name) and not np.issubdtype(value.dtype, np.floating)
            }
            yield case.name, graph, known
    for elements in (1, 16383, 16384, 16385, 49153):
        for optimizer in (nn.Adam(clip_norm=1.0), nn.SGD(momentum=0.9, nesterov=True), nn.SGD()):
            graph = _sized(
                training.optimizer_step(optimizer, "float32"), {"elements": elements, "runs": 1, "rows": 3, "steps": 5}
            )
            segments = np.array([[0, elements]])
            tables = {"segments": segments, "counters": np.zeros(control.COUNTERS, np.int64)}
            known = {v.index: tables[v.name] for v in graph.inputs if v.name in tables}
            yield f"{type(optimizer).__name__} on {elements}", graph, known
    for tokens, count, length in ((9, 5, 8), (1000, 3, 17), (2, 1, 1)):
        graph = StagedGraph("windows")
        with staging(graph):
            counters = graph.input("counters", (control.COUNTERS,), "int64", mutable=True)
            graph.finish(*ops.windows(graph.input("x0", (tokens,), "int32"), counters, count, length))
        yield f"windows {count} x {length} of {tokens}", graph, {}
    for shape, layout in (
        ((0, 3, 5, 4), "nchw"), ((1, 1, 1, 1), "nchw"), ((5, 3, 8, 7), "nchw"), ((3, 8, 7, 3), "nhwc"),
        ((2, 9, 33, 17), "nhwc"),
    ):  # fmt: skip
        graph = StagedGraph("crop_flip")
        with staging(graph):
            x, key = graph.input("x0", shape, "float32"), graph.input("key", (3,), "int64")
            graph.finish(ops.crop_flip(x, key, 3, layout=layout))
        yield f"crop_flip {shape} {layout}", graph, {}
    for elements in (0, 1, 15, 16, 17, 12_501, 25_001):
        yield f"memory of {elements}", _memory(elements), {}


def _memory(elements: int) -> StagedGraph:
    graph = StagedGraph("memory")
    with staging(graph):
        memory, value = graph.input("x", (elements,), "float32", mutable=True), graph.input("u", (elements,), "float32")
        ops.assign(memory, value)
        ops.accumulate(memory, value)
        ops.axpy(memory, -2.0, value)
        ops.polyak(memory, value, 0.25)
        return graph.finish(ops.load(memory))


def _half() -> Iterator[tuple[str, StagedGraph, dict[int, np.ndarray]]]:
    """The linear map and its gradients on bfloat16."""
    for m, k, n in ((12, 768, 32), (13, 769, 33), (1, 129, 65), (65, 129, 1), (7, 1, 5), (0, 3, 4)):
        graph = StagedGraph("half")
        with staging(graph):
            x, w, b = (
                graph.input(name, shape, "bfloat16") for name, shape in (("x", (m, k)), ("w", (k, n)), ("b", (n,)))
            )
            dw, db = (
                graph.input(name, shape, "float32", mutable=True) for name, shape in (("dw", (k, n)), ("db", (n,)))
            )
            y, z = ops.linear_pre(x, w, b, "gelu_tanh")
            ops.linear_param_grad(dw, db, x, y)
            found = ops.linear(x, w), ops.linear_input_grad(y, w), ops.linear_input_grad_act(y, w, x, "relu")
            yield f"bfloat16 {m}x{k}x{n}", graph.finish(y, z, *found), {}


def _sized(graph: StagedGraph, sizes: dict[str, int]) -> StagedGraph:
    """Numbers for the names of free dimensions, in place."""

    def number(dim: Dim) -> int:
        return int(np.prod([int(f) if f.isdecimal() else sizes[f] for f in str(dim).split("*")]))

    for value in {v.index: v for op in graph.ops for v in (*op.inputs, *op.outputs)}.values():
        value.spec = Spec(tuple(number(dim) for dim in value.shape), value.spec.dtype)
    return graph


@cache
def calls() -> tuple[Call, ...]:
    """All calls; of those with equal sizes and options one."""
    found: dict[object, Call] = {}
    for make in (_rows, _training, _large, _half):
        for where, graph, known in make():
            for op in graph.ops:
                if op.name == "noeira.gradient_norm":  # all is finite: the step is applied
                    known |= {op.outputs[1].index: np.array([-1])}
                if op.name not in NATIVE:
                    call = _concrete(op, graph, where, known)
                    key = (call.kernel, call.numbers, call.outputs, call.attributes, call.operands)
                    found.setdefault(key, call)
    return tuple(found.values())
