"""Staging: recording what a module emits, before MAX sees any of it.

While a module runs on `Staged` values, every op appends one line to the active `StagedGraph`. The recording is
plain Python (no MAX import), costs microseconds an op, and its text IS the identity of the program: the program
store hashes it, so an edited layer, op, mode flag, dtype or user module can never meet a stale program.
`lowering` turns a recording into a MAX graph only when nothing in the store answers to that hash.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Dim = int | str
Shape = tuple[Dim, ...]
Attribute = bool | int | float | str


class StagingError(RuntimeError):
    """Something was asked of a staged value that only a concrete array can answer, or the reverse."""


@dataclass(frozen=True)
class Spec:
    """Shape and dtype of a staged value.

    A dimension is an int, or a name where it is free ("b"), or a product of both ("b*t*64").
    """

    shape: Shape
    dtype: str

    def __post_init__(self) -> None:
        shape = tuple(dim if isinstance(dim, str) else int(dim) for dim in self.shape)
        object.__setattr__(self, "shape", shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


class Staged:
    """A value that a program will have when it runs: a shape and a dtype now, no numbers yet.

    `mutable` values are memory that ops write into (gradients, running statistics, counters); the others are
    immutable tensors.
    """

    __slots__ = ("graph", "index", "mutable", "name", "spec")

    def __init__(self, graph: StagedGraph, index: int, spec: Spec, *, mutable: bool = False, name: str = ""):
        self.graph, self.index, self.spec, self.mutable, self.name = graph, index, spec, mutable, name

    @property
    def shape(self) -> Shape:
        """Dimensions; a free dimension is a string."""
        return self.spec.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy dtype of the elements."""
        return np.dtype(self.spec.dtype)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.spec.shape)

    def __repr__(self) -> str:
        return f"Staged(%{self.index}: {self.spec})"

    def _no_numbers(self, what: str) -> StagingError:
        return StagingError(
            f"{what} needs the numbers of {self!r}, which exist only when the program runs; "
            "use noeira.ops inside forward and vjp, not NumPy functions or Python branches on values"
        )

    def __bool__(self) -> bool:
        raise self._no_numbers("a Python branch (`if`, `while`, `and`)")

    def __float__(self) -> float:
        raise self._no_numbers("float()")

    def __int__(self) -> int:
        raise self._no_numbers("int()")

    def __len__(self) -> int:
        raise self._no_numbers("len()")

    def __getitem__(self, key: object) -> Staged:
        raise self._no_numbers("indexing")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """Let `array + staged` be the staged operator; any other NumPy function is refused."""
        reflected = {"add": "__radd__", "subtract": "__rsub__", "multiply": "__rmul__", "divide": "__rtruediv__"}
        if method == "__call__" and not options and ufunc.__name__ in reflected and inputs[1] is self:
            return getattr(self, reflected[ufunc.__name__])(inputs[0])
        raise self._no_numbers(f"np.{ufunc.__name__}")

    def __array__(self, *args: object, **kwargs: object) -> np.ndarray:
        raise self._no_numbers("a NumPy function")

    def __eq__(self, other: object) -> bool:
        raise self._no_numbers("a comparison")

    __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__
    __hash__ = object.__hash__


@dataclass(frozen=True)
class StagedOp:
    """One emitted op: kernel name, operands, results, compile-time attributes, and the module it came from."""

    name: str
    inputs: tuple[Staged, ...]
    outputs: tuple[Staged, ...]
    attributes: tuple[tuple[str, Attribute], ...]
    scope: str
    flops: int = 0
    spare: Mapping[int, str] = field(default_factory=dict)
    body: StagedGraph | None = None
    """For the op "call": what is called."""

    @property
    def touches_memory(self) -> bool:
        """Whether it reads or writes memory, so that it keeps its place among the others that do."""
        return any(value.mutable for value in self.inputs)

    @property
    def writes(self) -> bool:
        """Whether it may change memory, so that it must run even when nobody reads its results."""
        return self.touches_memory and self.name != "noeira.load"


class StagedGraph:
    """The recording of one program: inputs, ops in order, outputs.

    Args:
        name: What the program is called in messages and inside the compiled artifact.
        bind: Called when a module asks for a tensor it owns (a parameter, a gradient, a state); returns the
            staged input standing for it. Set by whoever stages a module.
    """

    def __init__(self, name: str, bind: Callable[[StagedGraph, object, str], Staged] | None = None):
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise StagingError(f"expected a program name that is an identifier, got {name!r}")
        self.name = name
        self.draws: dict[str, int] = {}
        """How often each module has drawn random numbers in this program."""
        self.inputs: list[Staged] = []
        self.ops: list[StagedOp] = []
        self.outputs: list[Staged] = []
        self.constants: dict[int, np.ndarray] = {}
        self.bind = bind
        self._bound: dict[Hashable, Staged] = {}
        self._count = 0
        self.scope: Callable[[], str] = lambda: ""
        self.inline = False
        """Whether repeated modules are recorded one by one instead of as calls of one body."""

    def _new(self, spec: Spec, *, mutable: bool = False, name: str = "") -> Staged:
        value = Staged(self, self._count, spec, mutable=mutable, name=name)
        self._count += 1
        return value

    def input(self, name: str, shape: Sequence[Dim], dtype: object, *, mutable: bool = False) -> Staged:
        """Declare a program input; `mutable` inputs are memory the program may write."""
        if any(value.name == name for value in self.inputs):
            raise StagingError(f"program '{self.name}' already has an input named '{name}'")
        value = self._new(Spec(tuple(shape), np.dtype(dtype).name), mutable=mutable, name=name)  # type: ignore[arg-type]
        self.inputs.append(value)
        return value

    def owned(self, owner: object, role: str) -> Staged:
        """The input that stands for a tensor a module owns (`role`: val, grd, state)."""
        key = (id(owner), role)
        if key not in self._bound:
            if self.bind is None:
                raise StagingError(f"program '{self.name}' was staged without parameters, but {owner!r} is used")
            self._bound[key] = self.bind(self, owner, role)
        return self._bound[key]

    def constant(self, array: np.ndarray) -> Staged:
        """A small array baked into the program; its bytes are part of the program's identity."""
        array = np.asarray(array, order="C")
        value = self._new(Spec(array.shape, array.dtype.name))
        self.constants[value.index] = array
        return value

    def emit(
        self,
        name: str,
        inputs: Sequence[Staged | np.ndarray | np.generic | float],
        outputs: Sequence[Spec],
        attributes: Mapping[str, Attribute] | None = None,
        *,
        flops: int = 0,
        spare: Mapping[int, str] | None = None,
    ) -> tuple[Staged, ...]:
        """Record one op.

        Args:
            name: Registered name of the Mojo kernel (`noeira.*`), or of a native op in `lowering`.
            inputs: Staged values of this graph; arrays and floats become constants.
            outputs: Spec of each result.
            attributes: Compile-time parameters of the kernel.
            flops: Floating-point operations, for `summary()`; 0 where a dimension is free.
            spare: For each result that may go unread, the kernel that computes the others without it.

        Raises:
            StagingError: A value belongs to another program.
        """
        values = []
        for value in inputs:
            if not isinstance(value, Staged):
                value = self.constant(np.asarray(value))
            elif value.graph is not self:
                raise StagingError(f"{value!r} belongs to program '{value.graph.name}', not to '{self.name}'")
            values.append(value)
        results = tuple(self._new(spec) for spec in outputs)
        items = tuple(sorted((attributes or {}).items()))
        self.ops.append(StagedOp(name, tuple(values), results, items, self.scope(), flops, dict(spare or {})))
        return results

    def call(self, body: StagedGraph, operands: Mapping[str, Staged]) -> tuple[Staged, ...]:
        """Record a call of a finished recording: compiled once, however often it is called.

        Args:
            body: The callee; equal bodies (by text) become one.
            operands: A value of this graph for each of the body's inputs, by name; more are ignored.
        """
        name = f"{body.name}_{hashlib.sha256(body.text().encode()).hexdigest()[:32]}"
        results = tuple(self._new(value.spec) for value in body.outputs)
        inputs = tuple(operands[value.name] for value in body.inputs)
        flops = sum(op.flops for op in body.ops)
        self.ops.append(StagedOp("call", inputs, results, (("body", name),), self.scope(), flops, body=body))
        return results

    def bodies(self) -> dict[str, StagedGraph]:
        """All recordings called from here, those called by them first, by name."""
        found: dict[str, StagedGraph] = {}
        for op in self.ops:
            if op.body is not None:
                found |= op.body.bodies() | {str(dict(op.attributes)["body"]): op.body}
        return found

    def finish(self, *outputs: Staged) -> StagedGraph:
        """Fix the outputs and drop every op whose results nobody needs (an input gradient of the first layer)."""
        self.outputs = list(outputs)
        needed = {value.index for value in outputs}
        kept: list[StagedOp] = []
        for op in reversed(self.ops):
            unread = [i for i, value in enumerate(op.outputs) if value.index not in needed]
            if len(unread) == len(op.outputs) and not op.writes:
                continue
            for i in unread:
                if i in op.spare:
                    results = tuple(value for j, value in enumerate(op.outputs) if j != i)
                    op = StagedOp(op.spare[i], op.inputs, results, op.attributes, op.scope, op.flops, body=op.body)
            kept.append(op)
            needed.update(value.index for value in op.inputs)
        self.ops = kept[::-1]
        self.constants = {i: array for i, array in self.constants.items() if i in needed}
        self.inputs = [value for value in self.inputs if value.index in needed]
        return self

    def text(self) -> str:
        """Canonical text of the recording: equal text, equal program."""
        number: dict[int, int] = {}

        def ref(value: Staged) -> str:
            return f"%{number.setdefault(value.index, len(number))}"

        lines = [f"program {self.name}"]
        for value in self.inputs:
            lines.append(f"{ref(value)} = {'memory' if value.mutable else 'input'} {value.name!r} : {value.spec}")
        for index, array in sorted(self.constants.items()):
            digest = hashlib.sha256(array.tobytes()).hexdigest()
            number[index] = len(number)
            lines.append(f"%{number[index]} = constant {digest} : {array.dtype.name}{list(array.shape)}")
        for op in self.ops:
            operands = ", ".join(ref(value) for value in op.inputs)
            results = ", ".join(f"{ref(value)}: {value.spec}" for value in op.outputs)
            attributes = " ".join(f"{key}={value!r}" for key, value in op.attributes)
            lines.append(f"{results} = {op.name}({operands}) {{{attributes}}}")
        lines.append("return " + ", ".join(ref(value) for value in self.outputs))
        return "\n".join(lines)


_active: ContextVar[StagedGraph | None] = ContextVar("noeira_staged_graph", default=None)


def active() -> StagedGraph | None:
    """The graph being staged in this context, if any."""
    return _active.get()


@contextmanager
def staging(graph: StagedGraph) -> Iterator[StagedGraph]:
    """Make `graph` the one that modules and ops emit into."""
    token = _active.set(graph)
    try:
        yield graph
    finally:
        _active.reset(token)
