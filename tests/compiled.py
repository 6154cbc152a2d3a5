"""Cases and small programs compiled for the tests: everything that fits together goes into one program set.

Compiling costs tens of seconds a set, however many programs are in it. So the catalogue's cases are one set, and
optimizers, metrics and hand-checkable cases another; both are built at most once a session, and from then on come
out of the program store.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from noeira import nn, ops
from noeira.nn.core import context
from noeira.nn.core.binding import binder, bindings
from noeira.nn.training import staging as training
from noeira.ops import control
from noeira.runtime.devices import Device, DeviceArray
from noeira.runtime.programs import Program, build
from noeira.runtime.staging import Shape, Staged, StagedGraph, staging
from tests import catalogue
from tests.catalogue import Row, Sample
from tests.compare import SEED, Case, Results, results

CPU = Device("cpu")


def stage(
    name: str,
    subject: nn.Module | nn.Loss,
    inputs: Sequence[tuple[Shape, str]],
    params: Mapping[str, Shape] | None = None,
) -> StagedGraph:
    """Forward and vjp of a module or loss as one program: outputs y, dx0, ...; gradients are added into memory.

    Args:
        name: The program's name.
        subject: What runs.
        inputs: Shape and dtype of each input; names stand for free dimensions.
        params: Shapes of the parameters where their dimensions are to be free too, so that one program serves
            layers of all widths.
    """
    module = subject if isinstance(subject, nn.Module) else nn.Sequential()
    graph = StagedGraph(name)
    graph.scope = context.path
    counters = graph.input("counters", (control.COUNTERS,), "int64", mutable=True)  # the root key of random draws
    graph.bind = binder(module, counters)
    if params is not None:
        names = {id(param): name for name, param in module.named_parameters().items()}
        for _, part in module.named_modules():
            part.check_inputs = lambda *inputs: None  # type: ignore[method-assign]  # it would miss its width

        def bind(graph: StagedGraph, owner: Any, role: str) -> Staged:
            name = names[id(owner)]
            return graph.input(f"{role} {name}", params[name], inputs[0][1], mutable=role != "val")

        graph.bind = bind
    with staging(graph):
        values = [graph.input(f"x{i}", shape, dtype) for i, (shape, dtype) in enumerate(inputs)]
        y, saved = subject.forward(*values)
        dx = subject.vjp(saved, graph.input("u", y.shape, y.dtype))
    return graph.finish(y, *(grad for grad in (dx if isinstance(dx, tuple) else (dx,)) if grad is not None))


def run(program: Program, arrays: Mapping[str, np.ndarray | DeviceArray]) -> list[np.ndarray]:
    """Run once. CPU memory is shared: programs write into the very arrays given here."""
    memory = {name: a if isinstance(a, DeviceArray) else DeviceArray.of(a, CPU) for name, a in arrays.items()}
    return [np.array(value.to_numpy()) for value in program.bind({n: memory[n] for n in program.inputs}).run()]


# ---- the catalogue ---------------------------------------------------------------------------------------------------
#
# Compile time goes by distinct (kernel, attributes, shapes with their names), about half a second each; programs that
# share those are free. So dimensions are free wherever they can be, with the same names everywhere; one chain has known
# widths; and ranks above 2, which are the same loop to a kernel, are compiled for some layers only.

EVERY_RANK = {"Linear", "LinearAct gelu", "GELU", "Dropout", "CrossEntropyLoss, everything"}
DOUBLE = {"Linear", "LinearAct gelu", "Dropout", "CrossEntropyLoss, everything"}
DOUBLE |= {row.name for row in catalogue.ROWS if issubclass(row.cls, nn.Activation)}
DOUBLE |= {"CrossEntropyLoss, probabilities, smoothing, class weights"}


@dataclass(frozen=True)
class Signature:
    """Shapes of a program's inputs and of the parameters (None: as the module has them)."""

    inputs: tuple[Shape, ...]
    params: tuple[tuple[str, Shape], ...] | None = None


def signature(row: Row, sample: Sample) -> Signature | None:
    """What one program needs to know of the sample; None where it is not compiled."""
    shapes = [x.shape for x in row.case(sample).inputs]
    rank = len(shapes[0])
    if rank > 2 and row.cls is not nn.Flatten and sample.args != ("flatten",) and row.name not in EVERY_RANK:
        return None
    if row.cls is nn.Flatten or sample.args == ("mlp",):
        return Signature((("b", *shapes[0][1:]),))
    if issubclass(row.cls, nn.Sequential):  # all widths are equal
        params = row.make(*sample.args).named_parameters()
        square = tuple((name, ("n",) * len(param.shape)) for name, param in params.items())
        return Signature((("b", "n", *shapes[0][2:]),), square)
    if issubclass(row.cls, nn.Loss):
        return Signature(tuple(("b", *shape[1:]) for shape in shapes))
    leading = ("b", "s", "t")[: rank - 1]
    if not issubclass(row.cls, nn.Linear):
        return Signature(((*leading, "n"),))
    return Signature(((*leading, "k"),), (("weight", ("k", "n")), ("bias", ("n",))))


def program_name(row: Row, sample: Sample, dtype: str) -> str:
    """One program serves all samples of a row that share the signature and the options."""
    options = () if issubclass(row.cls, nn.Linear) else sample.args
    return re.sub(r"\W+", "_", f"{row.name} {options} {signature(row, sample)} {dtype}")


def case_graph(row: Row, sample: Sample, dtype: str) -> StagedGraph:
    """The program of a sample."""
    case, shapes = row.case(sample), signature(row, sample)
    assert shapes is not None
    case.convert(dtype)
    kinds = [dtype if np.issubdtype(x.dtype, np.floating) else "int32" for x in case.inputs]
    params = None if shapes.params is None else dict(shapes.params)
    return stage(program_name(row, sample, dtype), case.subject, list(zip(shapes.inputs, kinds, strict=True)), params)


def compiled_cases() -> list[Any]:
    """The (row, sample) pairs that have a program."""
    return [case for case in catalogue.cases() if signature(*case.values) is not None]


def first_programs(row: Row, name: Callable[[Row, Sample], str], more: Sequence[str] = ()) -> list[Sample]:
    """The samples whose program is that of the row's first one, or of a sample called in `more`.

    A program costs seconds to compile: a sample has its own where other code of the compiled path runs for it.
    """
    samples = [sample for sample in row.samples if sample.compiled]
    if unknown := set(more) - {sample.label for sample in samples}:
        raise LookupError(f"{row.name} has no compiled samples called {sorted(unknown)}")
    chosen = {name(row, sample) for i, sample in enumerate(samples) if i == 0 or sample.label in more}
    return [sample for sample in samples if name(row, sample) in chosen]


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
        arrays = {**bindings(module), **{f"x{i}": x for i, x in enumerate(inputs)}, "u": u}
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
    f"mutant_{name}": (next(row for row in catalogue.ROWS if row.name == name), mutant)
    for name, mutant in (("Linear", _HalfBias), ("ReLU", _NoMask), ("GELU", _WrongFunction))
}
"""Modules with a fault in what they emit, to show that the compiled comparison sees it."""


@cache
def catalogue_programs() -> dict[str, Program]:
    """Every sample of the catalogue in float32, the first of some rows in float64, and the mutants: one set."""
    graphs: dict[str, StagedGraph] = {}
    for row, sample in (case.values for case in compiled_cases()):
        name = program_name(row, sample, "float32")
        if name not in graphs:
            graphs[name] = case_graph(row, sample, "float32")
    for row in catalogue.ROWS:
        if row.name in DOUBLE:
            graphs[program_name(row, row.samples[1], "float64")] = case_graph(row, row.samples[1], "float64")
    for name, (row, mutant) in MUTANTS.items():
        sample = row.samples[1]
        shapes = signature(row, sample)
        assert shapes is not None
        params = None if shapes.params is None else dict(shapes.params)
        graphs[name] = stage(name, mutant(*sample.args).init(), [(shapes.inputs[0], "float32")], params)
    return build(list(graphs.values()), CPU, f"{len(graphs)} programs of the catalogue")


# ---- everything else -------------------------------------------------------------------------------------------------

DROP_RATES = tuple(i / 16 for i in range(1, 16))
"""Rates whose masks together pin the top four bits of every random word."""


def smoothed() -> nn.CrossEntropyLoss:
    """A cross-entropy over two classes with everything on."""
    return nn.CrossEntropyLoss([1.0, 3.0], ignore_index=1, label_smoothing=0.125)


@cache
def argmax_model() -> nn.Sequential:
    """A model whose prediction is its input."""
    net = nn.Sequential(nn.Linear(2, 2, bias=False)).init()
    net[0].weight.val = np.eye(2)  # type: ignore[union-attr]
    return net


def _masks() -> StagedGraph:
    graph = StagedGraph("masks")
    with staging(graph):
        x, key = graph.input("x", ("n",), "float32"), graph.input("key", (3,), "int64")
        return graph.finish(*(ops.dropout(x, key, p) for p in DROP_RATES))


def _log_sum_exp() -> StagedGraph:
    graph = StagedGraph("log_sum_exp")
    with staging(graph):
        logits, labels = graph.input("x0", ("b", "c"), "float32"), graph.input("x1", ("b",), "int32")
        return graph.finish(ops.cross_entropy(logits, labels)[2])


@cache
def small_programs() -> dict[str, Program]:
    """Optimizers, dropout masks, losses on free shapes, and an evaluation: one set."""
    labels: list[tuple[Shape, str]] = [(("b", "c"), "float32"), (("b",), "int32")]
    rows: list[tuple[Shape, str]] = [(("b", "c"), "float32"), (("b", "c"), "float32")]
    two = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5))
    graphs = [
        _masks(),
        _log_sum_exp(),
        stage("two_dropouts", two, [(("n",), "float32")]),
        stage("cross_entropy", nn.CrossEntropyLoss(), labels),
        stage("cross_entropy_smoothed", smoothed(), [(("b", 2), "float32"), labels[1]]),
        stage("cross_entropy_tenth", nn.CrossEntropyLoss(label_smoothing=0.1), labels),
        stage("cross_entropy_rows", nn.CrossEntropyLoss(), rows),
        training.evaluation(
            argmax_model(), nn.CrossEntropyLoss(), training.DataSpec((2,), "float32", (), "int64", 1.0), "float32"
        ),
    ]
    for dtype in ("float32", "float64"):
        for optimizer in (nn.Adam(), nn.SGD()):
            graphs.append(training.optimizer_step(optimizer, dtype))
            graphs[-1].name = f"{optimizer.kind}_{dtype}"
    return build(graphs, CPU, f"{len(graphs)} small programs")
