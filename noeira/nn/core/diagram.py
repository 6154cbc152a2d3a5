"""Diagrams: which modules feed which, with the work and the traffic of each, from one abstract run."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from noeira.nn.core import composition, context
from noeira.nn.core.subgraph import map_values
from noeira.ops.dispatch import known_size
from noeira.runtime.staging import Staged, StagedGraph, StagedOp, staging

if TYPE_CHECKING:
    from noeira.nn.core.module import Module

CATEGORIES = ("matmul", "pointwise", "memory", "rng", "loss", "input", "other")
"""Kinds of kernels; "other" are reductions, norms, softmax and pooling."""

_BY_PREFIX = (
    ("matmul", ("noeira.linear", "noeira.conv", "noeira.attention", "noeira.gru", "noeira.lstm")),
    ("loss", ("noeira.cross_entropy", "noeira.soft_cross_entropy", "noeira.record_loss")),
    ("rng", ("noeira.fold_in", "noeira.shuffle")),
    ("pointwise", ("noeira.activation", "noeira.elementwise", "noeira.swiglu", "noeira.dropout")),
    (
        "memory",
        ("noeira.load", "noeira.assign", "noeira.accumulate", "noeira.axpy", "noeira.polyak", "noeira.gather",
         "noeira.embedding", "noeira.permute", "noeira.transpose", "noeira.swap_axes", "noeira.repeat_heads",
         "noeira.upsample2x", "noeira.advance"),
    ),
)  # fmt: skip
_NATIVE_MEMORY = frozenset(("reshape", "cast", "concat", "slice", "pad", "broadcast_to", "iota", "count"))


def category(name: str) -> str:
    """The kind of an op, by its name: every native op that moves nothing is pointwise."""
    for kind, prefixes in _BY_PREFIX:
        if name.startswith(prefixes):
            return kind
    if name.startswith("noeira."):
        return "other"
    return "memory" if name in _NATIVE_MEMORY else "pointwise"


@dataclass
class Kernel:
    """One op of the forward; `reads` are the kernels whose results it takes."""

    op: StagedOp
    box: int
    reads: tuple[int, ...] = ()

    @property
    def category(self) -> str:
        """Its kind."""
        return category(self.op.name)

    @property
    def flops(self) -> int:
        """Its floating-point operations; one an element where the op itself counts none."""
        if self.op.flops or self.category not in ("pointwise", "other"):
            return self.op.flops
        return sum(known_size(value.shape) for value in self.op.outputs)


@dataclass
class Box:
    """A node of a diagram: an input, a leaf module, or what a container computes itself.

    Args:
        index: Position in the diagram.
        path: Dotted path of the module; of an input, its name.
        label: The module and its sizes, or the names of a container's own ops; the slot of a graph's input.
        shape: Of what it gives.
        category: The kind of its heaviest kernel.
        reads: Boxes it reads from.
        flops: Floating-point operations of the forward, a sample where the batch is free.
        bytes_read: Of inputs and parameters.
        bytes_written: Of results that others read, that are outputs, or that are saved for the vjp.
    """

    index: int
    path: str
    label: str
    shape: tuple[Any, ...] = ()
    category: str = "other"
    reads: list[int] = field(default_factory=list)
    flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


@dataclass
class Diagram:
    """The forward of a module as boxes and arrows. `text()`, `mermaid()`, `svg()` and `census()` give it as text."""

    title: str
    boxes: list[Box]
    kernels: list[Kernel]
    outputs: tuple[int, ...]
    containers: dict[str, str]
    """Class of every module that contains others, by dotted path."""

    def text(self) -> str:
        """A table: what feeds what, shapes, FLOPs and bytes."""
        from noeira.nn.core.drawing import text

        return text(self)

    def mermaid(self) -> str:
        """A Mermaid flow chart, with a subgraph per container."""
        from noeira.nn.core.drawing import mermaid

        return mermaid(self)

    def svg(self) -> str:
        """A picture as an SVG document."""
        from noeira.nn.core.drawing import svg

        return svg(self)

    def census(self) -> str:
        """Which kernels there are, and what fusing neighbouring pointwise ones would save."""
        from noeira.nn.core.census import report

        return report(self)


def diagram(module: Module, *inputs: tuple[int, ...] | np.ndarray) -> Diagram:
    """The diagram of a module's forward. No numbers are computed.

    Args:
        module: Any module.
        inputs: The shape of each input, batch included, or an array like it where it is no floating-point one.

    Example:
        >>> from noeira.nn import Linear, ReLU, Residual, Sequential, diagram
        >>> net = Sequential(Linear(4, 8), Residual(Sequential(Linear(8, 8), ReLU())))
        >>> print(diagram(net, (16, 4)).text())  # doctest: +NORMALIZE_WHITESPACE
        Sequential: 5 boxes, 3,328 FLOPs
          #  path        module        reads  gives    FLOPs     read  written
          0  input 0     input                [16, 4]      0      0 B    256 B
          1  0           Linear(4, 8)  0      [16, 8]  1,024    416 B    512 B
          2  1.module.0  Linear(8, 8)  1      [16, 8]  2,048    800 B    512 B
          3  1.module.1  ReLU()        2      [16, 8]    128    512 B    512 B
          4  1           add           1, 3   [16, 8]    128  1.0 KiB    512 B
    """
    ran: dict[str, Module] = {}
    cuts: list[int] = []
    dtype = next((p.memory["val"].dtype.name for p in module.named_parameters().values() if p.memory), "float32")
    graph = StagedGraph("diagram")
    graph.inline, graph.scope, graph.bind = True, context.path, _bind

    def observe(path: str, finished: Module, output: Any, saved: Any) -> None:
        ran[path] = finished
        cuts.append(len(graph.ops))

    with staging(graph), context.observing(observe):
        specs = [(x.shape, x.dtype) if isinstance(x, np.ndarray) else (tuple(x), dtype) for x in inputs]
        values = [graph.input(f"input {i}", shape, kind) for i, (shape, kind) in enumerate(specs)]
        output, saved = module.forward(*values)
    return _Builder(module, graph, values, ran, cuts).build(output, saved)


def _bind(graph: StagedGraph, owner: Any, role: str) -> Staged:
    """An input for any tensor, whoever owns it: external nodes are drawn too."""
    name = f"{role} {len(graph.inputs)}"
    if owner is context.RNG:
        return graph.input(name, (3,), "int64")
    memory = owner.memory if role == "state" else owner.memory.get("val")
    return graph.input(name, owner.shape, "float32" if memory is None else memory.dtype, mutable=role != "val")


class _Builder:
    """Groups the ops of a recording by the module call they came from."""

    def __init__(
        self, module: Module, graph: StagedGraph, inputs: list[Staged], ran: dict[str, Module], cuts: list[int]
    ):
        self.module, self.graph, self.ran, self.cuts = module, graph, ran, sorted(cuts)
        named = getattr(module, "inputs", None)
        slots = named if isinstance(named, tuple) else ()
        self.boxes = [
            Box(
                i,
                value.name,
                slots[i] if i < len(slots) else "input",
                value.shape,
                "input",
                bytes_written=_bytes(value),
            )
            for i, value in enumerate(inputs)
        ]
        self.home: dict[int, int] = {value.index: i for i, value in enumerate(inputs)}
        self.made: dict[int, int] = {}
        self.kernels: list[Kernel] = []

    def build(self, output: Any, saved: Any) -> Diagram:
        """The diagram, once the forward has run."""
        before: tuple[str, int] | None = None
        for position, op in enumerate(self.graph.ops):
            key = (op.scope, bisect_right(self.cuts, position))
            if key != before:
                self.boxes.append(Box(len(self.boxes), op.scope, ""))
            before = key
            self._add(op, self.boxes[-1])
        results = [value for value in composition.leaves(output) if isinstance(value, Staged)]
        self._measure({value.index for value in results} | _values(saved))
        for box in self.boxes:
            own = [kernel for kernel in self.kernels if kernel.box == box.index]
            if own:
                box.label = self._label(box.path, own)
                box.category = min((kernel.category for kernel in own), key=_HEAVIEST.index)
                box.flops = sum(kernel.flops for kernel in own)
        containers = {path: type(m).__name__ for path, m in self.ran.items() if any(True for _ in m.named_children())}
        title = type(self.module).__name__
        outputs = tuple(self.home[value.index] for value in results if value.index in self.home)
        return Diagram(title, self.boxes, self.kernels, outputs, containers)

    def _add(self, op: StagedOp, box: Box) -> None:
        reads = sorted({self.made[value.index] for value in op.inputs if value.index in self.made})
        self.kernels.append(Kernel(op, box.index, tuple(reads)))
        for value in op.inputs:
            source = self.home.get(value.index)
            if source is not None and source != box.index and source not in box.reads:
                box.reads.append(source)
        for value in op.outputs:
            self.home[value.index], self.made[value.index] = box.index, len(self.kernels) - 1
        if op.outputs:
            box.shape = op.outputs[0].shape

    def _measure(self, kept: set[int]) -> None:
        read: dict[int, set[int]] = {}
        wanted = set(kept)
        for kernel in self.kernels:
            for value in kernel.op.inputs:
                inside = self.home.get(value.index) == kernel.box
                if not inside and value.index not in self.graph.constants:
                    wanted.add(value.index)
                    seen = read.setdefault(kernel.box, set())
                    if value.index not in seen:
                        seen.add(value.index)
                        self.boxes[kernel.box].bytes_read += _bytes(value)
        for kernel in self.kernels:
            outputs = (value for value in kernel.op.outputs if value.index in wanted)
            self.boxes[kernel.box].bytes_written += sum(_bytes(value) for value in outputs)

    def _label(self, path: str, kernels: list[Kernel]) -> str:
        ran = self.ran.get(path)
        if ran is not None and not any(True for _ in ran.named_children()):
            return ran.describe()
        names = [kernel.op.name.removeprefix("noeira.") for kernel in kernels]
        counted = {name: names.count(name) for name in names}
        return ", ".join(name if count == 1 else f"{count} {name}" for name, count in counted.items())


_HEAVIEST = ("matmul", "loss", "other", "pointwise", "rng", "memory")


def _bytes(value: Staged) -> int:
    return known_size(value.shape) * value.dtype.itemsize


def _values(tree: Any) -> set[int]:
    found: set[int] = set()

    def note(value: Staged) -> Staged:
        found.add(value.index)
        return value

    map_values(note, tree)
    return found
