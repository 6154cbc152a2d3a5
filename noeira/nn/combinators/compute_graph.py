"""ComputeGraph: modules connected by name into a directed graph without cycles."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from noeira.nn.combinators.width import entering, fits, text
from noeira.nn.core import composition
from noeira.nn.core.arguments import is_integer, refuse
from noeira.nn.core.errors import CompositionError, ShapeError
from noeira.nn.core.module import Module, Width
from noeira.ops.dispatch import Array


@dataclass(frozen=True)
class InputSlot:
    """An input of a `ComputeGraph`.

    Args:
        name: What nodes read it as.
        width: Its number of features on the last axis, or (axis, number); None where any will do.
    """

    name: str
    width: int | Width | None = None

    def __post_init__(self) -> None:
        pair = (-1, self.width) if is_integer(self.width) else self.width
        good = isinstance(pair, tuple) and len(pair) == 2 and is_integer(pair[0]) and is_integer(pair[1], 1)
        if pair is not None and not good:
            refuse(self, "width", "a positive integer, (axis, positive integer) or None", self.width)

    @property
    def expected(self) -> Width | None:
        """The width as (axis, number)."""
        if self.width is None:
            return None
        axis, number = self.width if isinstance(self.width, tuple) else (-1, self.width)
        return int(axis), int(number)


class Node:
    """A module of a `ComputeGraph`, owned by it: its parameters are the graph's, under the node's name.

    Args:
        name: What others read its output as; "name.0", "name.1", ... where the output is a tuple.
        module: What runs. A module that gives tuples has no width.
        inputs: Names of slots and nodes, one for each of the module's inputs.
    """

    owned = True

    def __init__(self, name: str, module: Module, *inputs: str):
        self.name, self.module, self.inputs = name, module, inputs

    def __repr__(self) -> str:
        return f"node '{self.name}' ({self.module.describe()})"


class ExternalNode(Node):
    """A module that belongs to somebody else and is run by reference: an actor in the loss of its critic.

    It is none of the graph's parameters, modes, moves or checkpoints; its gradients are added to its own parameters
    all the same (unless it stands in a `StopGradParams` or is frozen). A program that is staged with it needs it
    somewhere in the model it is staged for.
    """

    owned = False


class ComputeGraph(Module):
    """Modules in a directed graph, connected by name.

    Parts may be declared in any order. Every node runs once, after what it reads.

    Args:
        parts: `InputSlot`s, in the order of the graph's inputs, `Node`s and `ExternalNode`s.
        outputs: Names of the nodes whose outputs are the graph's: a name gives an array, a sequence of names a tuple.
            The last declared node by default.

    Shape:
        Inputs in the order of the slots, or by name: `graph(x, a)`, `graph(x=x, a=a)`. `outputs=` of a call asks for
        other nodes than the graph's outputs; then only what they need is run, and only its inputs must be given.

    vjp:
        The nodes' vjps, each after those that read it, with the gradients of all its readers added up. Gives one
        gradient per slot (None where no output depends on it). Saves what the nodes that ran save.

    Raises:
        CompositionError: A name is unknown or used twice, nodes read each other in a cycle, a node gets another number
            of inputs or another width than it expects.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import ComputeGraph, InputSlot, Linear, LinearReLU, Multiply, Node
        >>> graph = ComputeGraph(
        ...     InputSlot("x", 4),
        ...     Node("hidden", LinearReLU(4, 8), "x"),
        ...     Node("gate", Linear(4, 8), "x"),
        ...     Node("gated", Multiply(), "hidden", "gate"),
        ...     Node("y", Linear(8, 2), "gated"),
        ... )
        >>> x = np.ones((3, 4), np.float32)
        >>> graph(x).shape, graph(x=x, outputs="gated").shape
        ((3, 2), (3, 8))

    Source: Elementary.
    """

    def __init__(self, *parts: InputSlot | Node, outputs: str | Sequence[str] | None = None):
        for position, part in enumerate(parts):
            if not isinstance(part, InputSlot | Node):
                raise CompositionError(
                    f"ComputeGraph: expected an InputSlot, Node or ExternalNode, got {type(part).__name__} at position "
                    f"{position}"
                )
        self._slots = {part.name: part for part in parts if isinstance(part, InputSlot)}
        self._nodes = {part.name: part for part in parts if isinstance(part, Node)}
        self._check_names(parts)
        if not self._nodes:
            raise CompositionError("ComputeGraph: expected at least one node, got none")
        self._outputs = list(self._nodes)[-1] if outputs is None else _names(outputs)
        for node in self._nodes.values():
            self._check_node(node)
        self._check_outputs(self._outputs)
        self._order = self._sorted(self._nodes)
        self._widths(None)

    # ---- what is refused when the graph is built ---------------------------------------------------------------------

    def _check_names(self, parts: Iterable[InputSlot | Node]) -> None:
        seen: set[str] = set()
        for part in parts:
            if not isinstance(part.name, str) or not part.name.isidentifier() or part.name == "outputs":
                raise CompositionError(f"ComputeGraph: expected a name that is an identifier, got {part.name!r}")
            if part.name in seen:
                raise CompositionError(f"ComputeGraph: two parts are called '{part.name}'")
            seen.add(part.name)

    def _check_node(self, node: Node) -> None:
        if not isinstance(node.module, Module):
            raise CompositionError(
                f"ComputeGraph: expected a module in node '{node.name}', got {type(node.module).__name__}"
            )
        for name in node.inputs:
            if not isinstance(name, str) or self._source(name) is None:
                raise CompositionError(f"ComputeGraph: {node} reads {self._unknown(name)}")
        try:
            inspect.signature(node.module.forward).bind(*node.inputs)
        except TypeError as error:
            raise CompositionError(
                f"ComputeGraph: {node} reads {len(node.inputs)} inputs ({', '.join(node.inputs)}), "
                f"which its forward does not take: {error}"
            ) from None
        if not node.inputs:
            raise CompositionError(f"ComputeGraph: {node} reads nothing")

    def _check_outputs(self, outputs: str | tuple[str, ...]) -> None:
        names = composition.leaves(outputs)
        for name in names:
            source = self._source(name) if isinstance(name, str) else None
            if source is None or source in self._slots:
                raise CompositionError(f"ComputeGraph: cannot give {self._unknown(name, self._nodes)}")
        if not outputs:
            raise CompositionError("ComputeGraph: expected at least one output, got none")

    def _source(self, name: str) -> str | None:
        """The part that `name` is an output of; None where there is none."""
        if name in self._slots or name in self._nodes:
            return name
        head, _, item = name.rpartition(".")
        return head if head in self._nodes and item.isdecimal() else None

    def _unknown(self, name: object, known: Iterable[str] | None = None) -> str:
        names = list(known or (*self._slots, *self._nodes))
        near = difflib.get_close_matches(str(name), names, 1)
        return f"{name!r}, which is none of: {', '.join(names)}" + (f"; did you mean '{near[0]}'?" if near else "")

    def _sorted(self, wanted: Iterable[str]) -> tuple[str, ...]:
        """The wanted nodes and all they need, each after what it reads, otherwise in the order of declaration."""
        done: dict[str, None] = {}
        path: list[str] = []
        stack: list[tuple[str, Iterator[str]]] = []

        def open_node(name: str) -> None:
            if name in path:
                cycle = " -> ".join(reversed([*path[path.index(name) :], name]))
                raise CompositionError(f"ComputeGraph: nodes read each other in a cycle: {cycle}")
            path.append(name)
            read = (self._source(source) for source in self._nodes[name].inputs)
            stack.append((name, (source for source in read if source in self._nodes and source is not None)))

        needed = {self._source(name) for name in wanted}
        for name in self._nodes:
            if name in needed and name not in done:
                open_node(name)
            while stack:
                current, rest = stack[-1]
                source = next((source for source in rest if source not in done), None)
                if source is not None:
                    open_node(source)
                    continue
                stack.pop()
                path.pop()
                done[current] = None
        return tuple(done)

    def _widths(self, width: Width | None) -> dict[str, Width | None]:
        """Width of every slot and node, as far as it is known; `width` is that of a single slot."""
        widths: dict[str, Width | None] = {slot.name: slot.expected for slot in self._slots.values()}
        givers = {name: f"input '{name}' has" for name in self._slots}
        if len(widths) == 1:
            widths = {name: known or width for name, known in widths.items()}
        for name in self._order:
            node = self._nodes[name]
            expected, first = node.module.expects(), node.inputs[0]
            given = widths.get(first)
            if given is not None and expected is not None and not fits(given, expected):
                raise CompositionError(
                    f"ComputeGraph: node '{name}{_inside(node.module, expected)}' ({node.module.describe()}) expects "
                    f"{text(expected)}, but {givers[first]} {text(given)}"
                )
            if given is None and expected is not None and first in self._slots:
                widths[first] = expected
                givers[first] = f"node '{name}' ({node.module.describe()}) expects of input '{first}'"
            widths[name] = node.module.gives(entering(given, expected))
            givers[name] = f"{node} gives"
        return widths

    # ---- what the graph is for others --------------------------------------------------------------------------------

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the slots."""
        return tuple(self._slots)

    @property
    def outputs(self) -> str | tuple[str, ...]:
        """Name or names of what the graph gives."""
        return self._outputs

    @property
    def nodes(self) -> dict[str, Node]:
        """The nodes by name, in the order in which they run."""
        return {name: self._nodes[name] for name in self._order}

    def __getitem__(self, name: str) -> Module:
        if name not in self._nodes:
            raise KeyError(f"no node is called {self._unknown(name, self._nodes)}")
        return self._nodes[name].module

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules of the owned nodes under the nodes' names."""
        yield from ((node.name, node.module) for node in self._nodes.values() if node.owned)

    def expects(self) -> Width | None:
        """The width of the only slot, None where there are several."""
        return next(iter(self._widths(None).values())) if len(self._slots) == 1 else None

    def gives(self, width: Width | None) -> Width | None:
        """The width of the only output, None where there are several."""
        return self._widths(None).get(self._outputs) if isinstance(self._outputs, str) else None

    def extra_repr(self) -> str:
        """Inputs and outputs."""
        return f"{', '.join(self._slots)} -> {', '.join(composition.leaves(self._outputs))}"

    # ---- running -----------------------------------------------------------------------------------------------------

    def __call__(self, *inputs: Array, outputs: str | Sequence[str] | None = None, **named: Array) -> Any:
        """`forward` without the saved part; inputs by position or by name."""
        return super().__call__(*self._positions(inputs, named), outputs=outputs)

    def _positions(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        if len(inputs) > len(self._slots):
            slots = ", ".join(self._slots)
            raise ShapeError(f"expected at most {len(self._slots)} inputs ({slots}), got {len(inputs)}")
        given = dict(zip(self._slots, inputs, strict=False))
        for name, value in named.items():
            if name not in self._slots:
                raise ShapeError(f"no input is called {self._unknown(name, self._slots)}")
            if given.get(name) is not None:
                raise ShapeError(f"input '{name}' was given twice")
            given[name] = value
        return tuple(given.get(name) for name in self._slots)

    def check_inputs(self, *inputs: Array) -> None:
        """The declared widths; the rest is left to the nodes, which are named in the error."""
        for slot, x in zip(self._slots.values(), inputs, strict=False):
            if slot.expected is None or x is None:
                continue
            axis, features = slot.expected
            shape = tuple(x.shape)
            if not -len(shape) <= axis < len(shape) or shape[axis] != features:
                raise ShapeError(f"expected input '{slot.name}' with {text(slot.expected)}, got {list(shape)}")

    def forward(self, *inputs: Array, outputs: str | Sequence[str] | None = None, **named: Array) -> tuple[Any, Any]:
        """Inputs -> output, or tuple of outputs; saves what the nodes that ran save."""
        wanted = self._outputs if outputs is None else _names(outputs)
        self._check_outputs(wanted)
        order = self._sorted(composition.leaves(wanted))
        arrays = self._positions(inputs, named)
        recorder = composition.Recorder()
        values: dict[str, Any] = {
            name: None if x is None else recorder.enter(x) for name, x in zip(self._slots, arrays, strict=True)
        }
        for name in order:
            node = self._nodes[name]
            for source in node.inputs:
                if source in self._slots and values[source] is None:
                    raise ShapeError(f"expected input '{source}', which {node} reads, got none")
            read = tuple(self._pick(values, source, node) for source in node.inputs)
            values[name] = recorder.apply(node.module, read, {}, name)
        return recorder.finish(
            tuple(values[name] for name in self._slots),
            self._pick(values, wanted, None)
            if isinstance(wanted, str)
            else tuple(self._pick(values, name, None) for name in wanted),
        )

    def _pick(self, values: dict[str, Any], name: str, reader: Node | None) -> Any:
        if name in values:
            return values[name]
        head, _, item = name.rpartition(".")
        if not isinstance(values[head], tuple) or int(item) >= len(values[head]):
            count = len(values[head]) if isinstance(values[head], tuple) else 1
            what = f"read by {reader}" if reader else "asked for"
            raise ShapeError(f"'{name}' is {what}, but '{head}' gives {count} output{'s' * (count != 1)}")
        return values[head][int(item)]

    def vjp(self, saved: Any, grad_output: Any) -> Any:
        """Dy, or a tuple of them (None for an output without gradient) -> gradients of the slots."""
        return composition.pull(saved, grad_output)


def _names(outputs: str | Sequence[str]) -> str | tuple[str, ...]:
    return outputs if isinstance(outputs, str) else tuple(outputs)


def _inside(module: Module, expected: Width) -> str:
    """Path below `module` of the first module that insists on the width."""
    path = ""
    while True:
        found = next(((name, child) for name, child in module.named_children() if child.expects() == expected), None)
        if found is None:
            return path
        path, module = f"{path}.{found[0]}" if found[0] else path, found[1]
