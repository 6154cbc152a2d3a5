"""Cases and small programs compiled for the tests: everything that fits together goes into one program set.

Compiling costs tens of seconds a set, however many programs are in it. So the catalogue's cases are one set, and
optimizers, metrics and hand-checkable cases another; both are built at most once a session, and from then on come
out of the program store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from noeira import nn, ops
from noeira.nn.core import context
from noeira.nn.training import staging as training
from noeira.ops import control
from noeira.runtime.devices import Device, DeviceArray
from noeira.runtime.programs import Program, build
from noeira.runtime.staging import StagedGraph, staging
from tests import catalogue
from tests.catalogue import Row, Sample
from tests.compare import SEED, Case, Results, results

CPU = Device("cpu")


def stage(name: str, subject: nn.Module | nn.Loss, inputs: Sequence[tuple[tuple[Any, ...], str]]) -> StagedGraph:
    """Forward and vjp of a module or loss as one program: outputs y, dx0, ...; gradients are added into memory.

    Args:
        name: The program's name.
        subject: What runs.
        inputs: Shape and dtype of each input; "b" is a free dimension.
    """
    module = subject if isinstance(subject, nn.Module) else nn.Sequential()
    graph = StagedGraph(name, training.binder(module))
    graph.scope = context.path
    with staging(graph):
        graph.input("counters", (control.COUNTERS,), "int64", mutable=True)  # dropout reads seed and step from it
        values = [graph.input(f"x{i}", shape, dtype) for i, (shape, dtype) in enumerate(inputs)]
        y, saved = subject.forward(*values)
        dx = subject.vjp(saved, graph.input("u", y.shape, y.dtype))
    return graph.finish(y, *(dx if isinstance(dx, tuple) else (dx,)))


def run(program: Program, arrays: Mapping[str, np.ndarray | DeviceArray]) -> list[np.ndarray]:
    """Run once. CPU memory is shared: programs write into the very arrays given here."""
    memory = {name: a if isinstance(a, DeviceArray) else DeviceArray.of(a, CPU) for name, a in arrays.items()}
    return [np.array(value.to_numpy()) for value in program.bind({n: memory[n] for n in program.inputs}).run()]


def program_name(row: Row, sample: Sample, dtype: str) -> str:
    """One program serves all samples that differ in the batch alone."""
    case = row.case(sample)
    tails = [list(x.shape[1:]) for x in case.inputs]
    return f"{row.name} {sample.args} {tails} {dtype}"


def case_graph(row: Row, sample: Sample, dtype: str) -> StagedGraph:
    """The program of a sample, its batch free."""
    case = row.case(sample)
    case.convert(dtype)
    kinds = [dtype if np.issubdtype(x.dtype, np.floating) else "int32" for x in case.inputs]
    inputs = [(("b", *x.shape[1:]), kind) for x, kind in zip(case.inputs, kinds, strict=True)]
    return stage(program_name(row, sample, dtype), case.subject, inputs)


def run_case(program: Program, case: Case, dtype: str = "float32", *, vjps: int = 1) -> Results:
    """The compiled counterpart of `compare.reference`; with `vjps` > 1 gradients are not zeroed in between."""
    case.convert(dtype)
    try:
        module = case.subject if isinstance(case.subject, nn.Module) else nn.Sequential()
        module.zero_grad()
        counters = np.zeros(control.COUNTERS, np.int64)
        counters[[control.SEED, control.STEP]] = (SEED, 1)
        inputs = case.inputs_as(dtype)
        u = case.upstream(case.forward(inputs)[0].shape, dtype)
        arrays = {**training.bindings(module), **{f"x{i}": x for i, x in enumerate(inputs)}, "u": u}
        for _ in range(vjps):
            y, *dx = run(program, arrays | {"counters": counters})
        return results(case, y, tuple(dx))
    finally:
        case.convert("float32")


class _HalfBias(nn.Linear):
    """A mutant: its bias gradient is lost."""

    def _param_grad(self, x: Any, grad: Any) -> None:
        ops.linear_param_grad(self.weight.grd, None, x, grad)


class _NoMask(nn.ReLU):
    """A mutant: its vjp ignores the mask."""

    def vjp(self, saved: Any, grad_output: Any) -> Any:
        return grad_output


class _WrongFunction(nn.GELU):
    """A mutant: exact forward, approximate derivative."""

    def vjp(self, saved: Any, grad_output: Any) -> Any:
        return ops.activation_grad(grad_output, saved, "gelu_tanh")


MUTANTS: dict[str, tuple[Row, type[nn.Module]]] = {
    mutant.__doc__ or "": (next(row for row in catalogue.ROWS if row.name == name), mutant)
    for name, mutant in (("Linear", _HalfBias), ("ReLU", _NoMask), ("GELU", _WrongFunction))
}
"""Modules with a fault in what they emit, to show that the compiled comparison sees it."""


@cache
def catalogue_programs() -> dict[str, Program]:
    """Every sample of the catalogue in float32, the first of each row in float64, and the mutants: one set."""
    graphs: dict[str, StagedGraph] = {}
    for row in catalogue.ROWS:
        for sample in row.samples:
            graphs.setdefault(program_name(row, sample, "float32"), case_graph(row, sample, "float32"))
        graphs[program_name(row, row.samples[0], "float64")] = case_graph(row, row.samples[0], "float64")
    for name, (row, mutant) in MUTANTS.items():
        sample = row.samples[0]
        subject = mutant(*sample.args).init()
        graphs[name] = stage(name, subject, [(("b", *shape[1:]), "float32") for shape in sample.inputs])  # type: ignore[index]
    return build(list(graphs.values()), CPU, f"{len(graphs)} programs of the catalogue")
