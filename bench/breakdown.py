"""Where a noeira training step spends its time: `python -m bench.breakdown [CASE] [--rounds N]`.

Each op of the train-step and optimizer-step programs is compiled as a program of its own, all of them together, and
timed by turns on arrays of the step's shapes. From its time the cost of an empty call is taken off, so the sum of the
ops can be held against the whole programs: what is missing or left over is overlap, cache effects and dispatch.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence

import numpy as np

from bench.case import discover
from bench.environment import cores
from bench.programs import Bound, Operand, record
from bench.report import seconds
from bench.timing import CALM, Plan, Timed, measure
from bench.training import NoeiraStep, data
from noeira import ops
from noeira.nn.core import subgraph
from noeira.ops import control
from noeira.runtime.devices import resolve
from noeira.runtime.programs import build
from noeira.runtime.staging import Spec, Staged, StagedGraph, StagedOp, staging

EMPTY = "empty"
FREE = ("reshape", "load")
"""Ops that cost nothing by themselves."""


Arrays = dict[str, np.ndarray]


class Sizes:
    """Values of the free dimensions, learnt from the arrays that the programs' inputs are bound to."""

    def __init__(self, recordings: Sequence[StagedGraph], arrays: Mapping[str, np.ndarray]):
        self.by_name: dict[str, int] = {}
        for recording in recordings:
            for value in recording.inputs:
                for dim, size in zip(value.shape, arrays[value.name].shape, strict=True):
                    if isinstance(dim, str):
                        self.by_name[dim] = size

    def shape(self, dims: Sequence[int | str]) -> tuple[int, ...]:
        """A concrete shape."""
        return tuple(dim if isinstance(dim, int) else self._size(dim) for dim in dims)

    def _size(self, dim: str) -> int:
        name, *factors = dim.split("*")
        return int(np.prod([int(factor) for factor in factors], initial=self.by_name[name]))


def step_arrays(step: NoeiraStep) -> Arrays:
    """Copies of the memory behind every input of the step's programs."""
    loop = step.loop
    found = {}
    for name, bound in (("train_step", loop._steps[0]), ("optimizer_step", loop._optimizer)):
        arrays = zip(step.programs[name].inputs, bound._arrays, strict=True)
        found |= {label: np.array(array.numpy()) for label, array in arrays}
    found["counters"][control.CURSOR] = 1  # as after a forward: the optimizer writes into the row before
    # Called alone and again and again, the update would run its moments down into denormal numbers.
    found["hyper"][[control.BETA1, control.BETA2]] = 0.99999
    return found


def alone(op: StagedOp, recording: StagedGraph, name: str, sizes: Sizes) -> StagedGraph:
    """A program of one op; its operands keep the names of the program's inputs, others are called by number."""
    graph = StagedGraph(name)
    with staging(graph):
        values: dict[int, Staged] = {}
        for value in op.inputs:
            if value.index in recording.constants:
                values[value.index] = graph.constant(recording.constants[value.index])
            elif value.index not in values:
                label, shape = value.name or f"value {value.index}", sizes.shape(value.shape)
                values[value.index] = graph.input(label, shape, value.spec.dtype, mutable=value.mutable)
        operands = [values[value.index] for value in op.inputs]
        specs = [Spec(sizes.shape(value.shape), value.spec.dtype) for value in op.outputs]
        results = graph.emit(op.name, operands, specs, dict(op.attributes))
    return graph.finish(*results)


def arrays_for(graph: StagedGraph, sizes: Sizes, known: Mapping[str, np.ndarray]) -> Arrays:
    """The step's own arrays, and for what ops hand to each other random numbers, label 0, and position -1 (none)."""
    draw = np.random.default_rng(0)
    found = {}
    for value in graph.inputs:
        shape, dtype = sizes.shape(value.shape), value.dtype
        if value.name in known:
            found[value.name] = known[value.name]
        elif np.issubdtype(dtype, np.floating):
            found[value.name] = (draw.random(shape) * 0.1 + 0.01).astype(dtype)
        else:
            found[value.name] = np.full(shape, -1 if dtype == np.int64 else 0, dtype)
    return found


def _label(op: StagedOp, sizes: Sizes) -> str:
    shapes = [list(sizes.shape(value.shape)) for value in op.inputs if np.issubdtype(value.dtype, np.floating)]
    return f"{op.name} {' '.join(map(str, shapes[:3]))}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m bench.breakdown", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("case", nargs="?", default="mlp", help="a case of family training")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--patience", type=float, default=30, help="seconds to replace disturbed rounds")
    options = parser.parse_args(arguments)
    tasks = {case.name: case.builders["noeira"] for case in discover() if case.family == "training"}
    if options.case not in tasks:
        raise SystemExit(f"error: no training case is called {options.case!r}; there are {', '.join(tasks)}")
    task = tasks[options.case].args[0]  # type: ignore[attr-defined]
    device = resolve("cpu")
    subgraph.wanted = lambda: False  # repeated modules are written out
    step = NoeiraStep(task, data(task), device)
    known = step_arrays(step)
    sizes = Sizes(step.recordings, known)
    graphs, labels = [], {}
    for recording in step.recordings:
        for op in recording.ops:
            if op.name in FREE:
                continue
            name = f"op{len(labels)}"
            graphs.append(alone(op, recording, name, sizes))
            labels[name] = f"{recording.name}: {_label(op, sizes)}"
    graphs.append(
        record(
            EMPTY,
            {"counters": Operand((control.COUNTERS,), "int64", memory=True)},
            lambda counters: ops.advance(counters),
        )
    )
    compiled = build(graphs, device, f"the {len(labels)} ops of {options.case}")
    whole = {"train_step": step.train, "optimizer_step": step.loop.optimizer_step, "both": step.run}
    timed = {name: Timed(run) for name, run in whole.items()}
    for graph in graphs:
        timed[graph.name] = Timed(Bound(compiled[graph.name], arrays_for(graph, sizes, known), device).run)
    found = measure(
        timed, Plan(runs=2 * options.rounds, sample_seconds=0.002, lead_seconds=0.001, patience=options.patience)
    )
    medians = {name: statistics.median(values) for name, values in found.samples.items()}
    _print(whole, labels, medians, found.others)
    return 0


def _print(whole: Mapping[str, object], labels: Mapping[str, str], medians: Mapping[str, float], others: float) -> None:
    empty = medians[EMPTY]
    print(
        f"{cores()} cores; empty call {seconds(empty)}"
        + (f", DISTURBED: other processes took {others:.0%} of the machine" if others > CALM else "")
    )
    for name in whole:
        print(f"{seconds(medians[name]):>10}  whole {name}")
    net = {name: max(medians[name] - empty, 0.0) for name in labels}
    total = sum(net.values())
    for name, value in sorted(net.items(), key=lambda item: -item[1]):
        print(f"{seconds(value):>10}  {value / total:4.0%}  {labels[name]}")
    print(f"{seconds(total):>10}        sum of the ops, calls taken off")


if __name__ == "__main__":
    sys.exit(main())
