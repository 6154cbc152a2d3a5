"""The trainer's programs: train step, optimizer step, shuffle, evaluation. Staged here, compiled together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from noeira import ops
from noeira.nn.core import context
from noeira.nn.core.binding import binder
from noeira.nn.core.module import Module
from noeira.nn.datasets import ArrayDataset
from noeira.nn.loss import Loss
from noeira.nn.optimizer import Optimizer
from noeira.nn.training.augment import STREAM, Augmentation
from noeira.ops import control
from noeira.runtime.staging import Shape, Staged, StagedGraph, staging


@dataclass(frozen=True)
class DataSpec:
    """What a program needs to know of a data set: everything but its size."""

    input_shape: Shape
    input_dtype: str
    target_shape: Shape
    target_dtype: str
    scale: float

    @staticmethod
    def of(data: ArrayDataset) -> DataSpec:
        """The spec of a data set."""
        return DataSpec(
            data.inputs.shape[1:],
            data.inputs.dtype.name,
            data.targets.shape[1:],
            data.targets.dtype.name,
            data.input_scale,
        )


def _batch(graph: StagedGraph, spec: DataSpec, dtype: str, counters: Staged) -> tuple[Staged, Staged]:
    inputs = graph.input("inputs", ("samples", *spec.input_shape), spec.input_dtype)
    targets = graph.input("targets", ("samples", *spec.target_shape), spec.target_dtype)
    order = graph.input("order", ("batches", "batch"), "int32")
    input_kind = dtype if spec.input_dtype == "uint8" else _kind(spec.input_dtype, dtype)  # bytes are pixels, not ids
    x = ops.gather_rows(inputs, order, counters, input_kind, spec.scale)
    return x, ops.gather_rows(targets, order, counters, _kind(spec.target_dtype, dtype))


def _kind(stored: str, dtype: str) -> str:
    """Integers stay integers, everything else is what the model computes in."""
    return "int32" if np.issubdtype(stored, np.integer) else dtype


def _control(graph: StagedGraph) -> tuple[Staged, Staged, Staged]:
    return (
        graph.input("counters", (control.COUNTERS,), "int64", mutable=True),
        graph.input("accumulated", (1,), "float32", mutable=True),
        graph.input("record", ("rows", control.LOG_COLUMNS), "float32", mutable=True),
    )


def train_step(
    model: Module, loss: Loss, spec: DataSpec, dtype: str, augment: Augmentation | None = None
) -> tuple[StagedGraph, Shape]:
    """Gather a batch, augment it, forward, loss, and the whole backward into the gradient arena.

    Gradients are sums over rows: the loss's gradient is scaled by its weight, and the optimizer divides by the
    weights accumulated since its last step. So accumulating over batches of any sizes equals one large batch.

    Returns:
        The recording, and the shape of a batch's prediction.
    """

    def source(graph: StagedGraph, counters: Staged) -> tuple[Staged, Staged]:
        x, y = _batch(graph, spec, dtype, counters)
        return (x, y) if augment is None else augment(x, y, ops.fold_in(ops.load(counters), STREAM))

    return _train_step(model, loss, source)


def windows_step(model: Module, loss: Loss, count: int, length: int) -> tuple[StagedGraph, Shape]:
    """`train_step` on `count` windows of `length` tokens, drawn from a corpus by the step."""
    return _train_step(model, loss, lambda graph, counters: _windows(graph, counters, count, length))


def _windows(graph: StagedGraph, counters: Staged, count: int, length: int) -> tuple[Staged, Staged]:
    return ops.windows(graph.input("corpus", ("tokens",), "int32"), counters, count, length)


Source = Callable[[StagedGraph, Staged], tuple[Staged, Staged]]
"""Stages where a batch comes from: (graph, counters) -> inputs and targets."""


def _train_step(model: Module, loss: Loss, source: Source) -> tuple[StagedGraph, Shape]:
    graph = StagedGraph("train_step")
    graph.scope = context.path
    with staging(graph):
        counters, accumulated, record = _control(graph)
        graph.bind = binder(model, counters)
        x, y = source(graph, counters)
        prediction, saved = model.forward(x)
        value, kept = loss.forward(prediction, y)
        weight = loss.weight(kept)
        model.vjp(saved, loss.vjp(kept, weight))
        ops.record_loss(record, counters, accumulated, value, weight)
        ops.advance(counters)
    return graph.finish(), tuple(prediction.shape)


def optimizer_step(optimizer: Optimizer, dtype: str) -> StagedGraph:
    """Norm, clip, update and clear over the arenas of any model."""
    graph = StagedGraph("optimizer_step")
    with staging(graph):
        counters, accumulated, record = _control(graph)
        roles = ("val", "grd", *optimizer.slots)
        memory = {role: graph.input(role, ("elements",), dtype, mutable=True) for role in roles}
        memory |= {"counters": counters, "accumulated": accumulated, "record": record}
        memory["segments"] = graph.input("segments", ("runs", 2), "int64")
        memory["multipliers"] = graph.input("multipliers", ("runs", 2), "float64")
        memory["hyper"] = graph.input("hyper", (control.HYPER,), "float64")
        memory["lr_table"] = graph.input("lr_table", ("steps",), "float64")
        optimizer.apply(memory)
    return graph.finish()


def shuffle() -> StagedGraph:
    """The permutation of the epoch that the counters name."""
    graph = StagedGraph("shuffle")
    with staging(graph):
        counters = graph.input("counters", (control.COUNTERS,), "int64", mutable=True)
        ops.shuffle(graph.input("permutation", ("samples",), "int32", mutable=True), counters)
    return graph.finish()


def evaluation(model: Module, loss: Loss, spec: DataSpec, dtype: str) -> StagedGraph:
    """Forward in evaluation mode; adds up loss and correct predictions, and gives the outputs."""
    return _evaluation(model, loss, lambda graph, counters: _batch(graph, spec, dtype, counters))


def windows_evaluation(model: Module, loss: Loss, count: int, length: int) -> StagedGraph:
    """`evaluation` on windows of a corpus."""
    return _evaluation(model, loss, lambda graph, counters: _windows(graph, counters, count, length))


def _evaluation(model: Module, loss: Loss, source: Source) -> StagedGraph:
    graph = StagedGraph("evaluation")
    graph.scope = context.path
    modes = [(module, module.training) for _, module in model.named_modules()]
    model.eval()
    try:
        with staging(graph):
            counters = graph.input("counters", (control.COUNTERS,), "int64", mutable=True)
            graph.bind = binder(model, counters)
            totals = graph.input("totals", (control.EVAL_TOTALS,), "float64", mutable=True)
            x, y = source(graph, counters)
            prediction = model.forward(x)[0]
            value, kept = loss.forward(prediction, y)
            if loss.classifies:
                rows = ops.flatten_leading(prediction)
                targets = y if len(y.shape) == 1 else _flat(y, prediction)
                ops.accumulate_totals(totals, rows, targets, value, loss.weight(kept))
            else:
                _add_loss(totals, value, loss.weight(kept))
            ops.advance(counters)
    finally:
        for module, mode in modes:
            module.training = mode
    return graph.finish(prediction)


def _add_loss(totals: Staged, value: Staged, weight: Staged | np.ndarray) -> None:
    """Add the weighted loss and the weight to the totals; nothing is right or wrong."""
    both = [ops.reshape(ops.cast(number, "float64"), (1,)) for number in (ops.multiply(value, weight), weight)]
    ops.accumulate(totals, ops.concat([*both, np.zeros(control.EVAL_TOTALS - 2)]))


def _flat(targets: Staged, prediction: Staged) -> Staged:
    if len(targets.shape) == len(prediction.shape):
        return ops.flatten_leading(targets)
    return ops.reshape(targets, ops.flatten_leading(prediction).shape[:1])
