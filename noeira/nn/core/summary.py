"""The table `Module.summary()` prints, from one abstract run: no numbers are computed."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from noeira.nn.core import context
from noeira.nn.core.binding import binder
from noeira.nn.core.param import Param
from noeira.ops import control
from noeira.ops.dispatch import known_size
from noeira.runtime.staging import Shape, Staged, StagedGraph, staging

if TYPE_CHECKING:
    from noeira.nn.core.module import Module


@dataclass
class Row:
    """One module: path, class and sizes, output shape, own parameters, forward FLOPs, bytes saved for the vjp."""

    path: str
    module: str
    output: Shape
    parameters: int
    frozen: int
    flops: int
    saved_bytes: int


def trace(module: Module, *input_shapes: tuple[int, ...]) -> tuple[StagedGraph, list[Row]]:
    """Stage `module` on inputs of the given shapes and collect a row for every leaf module."""
    rows: list[Row] = []
    counted: set[int] = set()

    def observe(path: str, leaf: Module, output: Any, saved: Any) -> None:
        if any(True for _ in leaf.named_children()):
            return
        own = [value for value in vars(leaf).values() if isinstance(value, Param)]
        size = 0
        for value in _tensors(saved):
            if value.index not in counted and not value.name.startswith(("val ", "state ")):
                counted.add(value.index)
                size += known_size(value.shape) * value.dtype.itemsize
        total = sum(param.size for param in own)
        frozen = sum(param.size for param in own if not param.trainable)
        rows.append(Row(path, leaf.describe(), tuple(getattr(output, "shape", ())), total, frozen, 0, size))

    dtype = next((p.memory["val"].dtype.name for p in module.named_parameters().values() if p.memory), "float32")
    graph = StagedGraph("summary")
    graph.inline = True
    graph.bind = binder(module, graph.input("counters", (control.COUNTERS,), "int64", mutable=True))
    graph.scope = context.path
    with staging(graph), context.observing(observe):
        inputs = [graph.input(f"input {i}", shape, dtype) for i, shape in enumerate(input_shapes)]
        module.forward(*inputs)
    by_path: dict[str, Row] = {}
    for row in rows:
        by_path.setdefault(row.path, row)
    for staged in graph.ops:
        if staged.scope in by_path:
            by_path[staged.scope].flops += staged.flops
    return graph, rows


def _tensors(saved: Any) -> Iterator[Staged]:
    if isinstance(saved, Staged):
        yield saved
    elif isinstance(saved, list | tuple):
        for item in saved:
            yield from _tensors(item)
    elif isinstance(saved, dict):
        yield from _tensors(list(saved.values()))


def summarize(module: Module, *input_shapes: tuple[int, ...]) -> str:
    """Render the table for inputs of the given shapes (batch included)."""
    from rich.console import Console
    from rich.table import Table

    _, rows = trace(module, *input_shapes)
    table = Table("path", "module", "output", "parameters", "forward FLOPs", "saved", box=None, pad_edge=False)
    for column in table.columns[3:]:
        column.justify = "right"
    for row in rows:
        shape = "[" + ", ".join(map(str, row.output)) + "]"
        table.add_row(
            row.path or "(itself)",
            row.module,
            shape,
            f"{row.parameters:,}",
            f"{row.flops:,}",
            size_text(row.saved_bytes),
        )
    params = module.named_parameters().values()
    total = sum(param.size for param in params)
    trained = sum(param.size for param in params if param.trainable)
    width = np.dtype(np.float32).itemsize
    lines = [
        f"parameters {total:,} ({total - trained:,} frozen), forward {sum(row.flops for row in rows):,} FLOPs",
        f"memory: parameters {size_text(total * width)}, gradients {size_text(trained * width)}, "
        f"moments {size_text(2 * trained * width)} (Adam), "
        f"activations {size_text(sum(row.saved_bytes for row in rows))}",
    ]
    out = io.StringIO()
    Console(file=out, width=120, no_color=True).print(table)
    return out.getvalue() + "\n".join(lines)


def size_text(size: float) -> str:
    """Bytes for people: 1.5 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError
