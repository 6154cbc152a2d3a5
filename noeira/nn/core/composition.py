"""Composition: a forward written by calling modules, whose vjp is the composition of theirs.

While a composed forward runs, its inputs are `Value`s: an array (or staged value) with a number. Each call of a module
runs that module at once and notes which numbers went in and out; what the modules save is kept, as in any chain. The
vjp walks the calls backwards and adds up the gradients of values that were read more than once. In a compiled
program all of this has happened when the program was staged: nothing is recorded at run time.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from noeira.nn.core import context
from noeira.ops.dispatch import Array
from noeira.ops.elementwise import greater, where
from noeira.runtime.staging import Shape, Staged

if TYPE_CHECKING:
    from noeira.nn.core.module import Module

RULE = (
    "in a composed forward, values are passed to modules (`self.layer(x)`) and combined with + - * /; "
    "a formula of your own belongs into a module with its own forward and vjp"
)


class Value:
    """An array on its way through a composed forward."""

    __slots__ = ("array", "number", "recorder")
    __array_ufunc__ = None  # NumPy leaves `array + value` to the value

    def __init__(self, array: Array, number: int, recorder: Recorder):
        self.array, self.number, self.recorder = array, number, recorder

    @property
    def shape(self) -> Shape:
        """The array's shape; a free dimension is a string."""
        return tuple(self.array.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The array's dtype."""
        return self.array.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def __repr__(self) -> str:
        return f"Value({self.dtype}[{', '.join(map(str, self.shape))}])"

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{self!r} has no '{name}': {RULE}")

    def _refuse(self, *args: object, **kwargs: object) -> Any:
        raise TypeError(f"{self!r} stands for an array, and is none: {RULE}")

    __array__ = __bool__ = __float__ = __int__ = __len__ = __iter__ = __getitem__ = __matmul__ = __pow__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __hash__ = object.__hash__


@dataclass(frozen=True)
class Step:
    """One call of a module: numbers of the values that went in (None for a constant) and came out.

    `name` is what it goes by in its parent; "" leaves it the name it has there.
    """

    module: Module
    name: str
    sources: tuple[Any, ...]
    targets: Any


@dataclass(frozen=True)
class Wiring:
    """The calls of one composed forward, in order, with the numbers of its inputs and outputs."""

    inputs: tuple[Any, ...]
    steps: tuple[Step, ...]
    outputs: Any


class Recorder:
    """Runs modules on values and notes how they are connected."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.kept: list[Any] = []
        self.parts: dict[int, Array] = {}
        self.count = 0
        self.finished = False

    def enter(self, array: Array) -> Value:
        """A value for an array that comes from outside."""
        self.count += 1
        return Value(array, self.count - 1, self)

    def apply(self, module: Module, inputs: tuple[Any, ...], options: dict[str, Any], name: str = "") -> Any:
        """Run a module on values, under the name it goes by in its parent; its outputs as values."""
        if self.finished:
            raise TypeError(f"{module.describe()} was given a value of a forward that has ended: {RULE}")
        if any(True for _ in values_in(options.values())):
            raise TypeError(f"{module.describe()} was given a value as a keyword; pass it by position: {RULE}")
        while inputs and inputs[-1] is None:  # an optional input that is not there has no gradient either
            inputs = inputs[:-1]
        arrays = _map(self._array, inputs)
        with _recording(None), context.called(name):
            output, kept = module.forward(*arrays, **options)
        wrong = next(
            (x for x in leaves(output) if x is not None and not isinstance(x, np.ndarray | np.generic | Staged)), None
        )
        if wrong is not None:
            raise TypeError(f"expected {module.describe()} to give arrays or tuples of them, got {_kind(wrong)}")
        values = _map(lambda array: None if array is None else self.enter(array), output)
        if isinstance(values, tuple):
            found = [value for value in leaves(values) if value is not None]
            self.parts |= {v.number: v.array for v in found if np.issubdtype(v.dtype, np.inexact)}
        self.steps.append(Step(module, name, _map(_number, inputs), _map(_number, values)))
        self.kept.append(kept)
        return values

    def _array(self, value: Any) -> Any:
        if isinstance(value, Value):
            if value.recorder is not self:
                raise TypeError(f"{value!r} belongs to another forward: {RULE}")
            return value.array
        if value is None or (isinstance(value, np.ndarray) and not np.issubdtype(value.dtype, np.inexact)):
            return value  # a mask, ids
        raise TypeError(
            f"expected a value that a module gave, a mask or ids, got {_kind(value)}, which would get no gradient: "
            f"{RULE}"
        )

    def finish(self, inputs: tuple[Any, ...], output: Any) -> tuple[Any, Any]:
        """Output and saved part of the whole forward."""
        arrays = _map(self._output, output)
        wiring = Wiring(_map(_number, inputs), tuple(self.steps), _map(_number, output))
        return arrays, (wiring, tuple(self.kept), self._unread(wiring))

    def _output(self, value: Any) -> Array:
        if isinstance(value, Value) and value.recorder is self:
            return value.array
        raise TypeError(
            f"expected a composed forward to return a value, or a tuple of values, got {_kind(value)}: {RULE}"
        )

    def _unread(self, wiring: Wiring) -> dict[int, Array]:
        """Values that nobody reads beside others of the same module, whose vjp wants a gradient for each."""
        read = {*leaves(wiring.outputs), *(number for step in wiring.steps for number in leaves(step.sources))}
        return {number: array for number, array in self.parts.items() if number not in read}


def _kind(value: object) -> str:
    if isinstance(value, np.ndarray | np.generic):
        return f"an array {value.dtype}{list(value.shape)}"
    return repr(value) if isinstance(value, Staged) else type(value).__name__


def _number(value: Any) -> int | None:
    return value.number if isinstance(value, Value) else None


def _map(function: Callable[[Any], Any], tree: Any) -> Any:
    if isinstance(tree, tuple | list):
        return tuple(_map(function, item) for item in tree)
    return function(tree)


def leaves(tree: Any) -> Iterator[Any]:
    """The items of nested tuples, in order."""
    if isinstance(tree, tuple | list):
        for item in tree:
            yield from leaves(item)
    else:
        yield tree


def values_in(inputs: Iterable[Any]) -> Iterator[Value]:
    """The values among a call's inputs."""
    return (value for item in inputs for value in leaves(item) if isinstance(value, Value))


class _Current(threading.local):
    recorder: Recorder | None = None


_current = _Current()


@contextmanager
def _recording(recorder: Recorder | None) -> Iterator[None]:
    before, _current.recorder = _current.recorder, recorder
    try:
        yield
    finally:
        _current.recorder = before


def recorder_for(inputs: tuple[Any, ...]) -> Recorder | None:
    """Whoever records a call with these inputs: the composed forward that is running, if one is."""
    if _current.recorder is not None:
        return _current.recorder
    return next((value.recorder for value in values_in(inputs)), None)


def pull(saved: Any, grad_output: Any) -> Any:
    """The vjp of a recorded forward: the modules' vjps in reverse order, gradients of shared values added up."""
    wiring, kept, unread = saved
    grads: dict[int, Array] = {}
    _add(grads, wiring.outputs, grad_output)
    for step, kept_by_module in zip(reversed(wiring.steps), reversed(kept), strict=True):
        numbers = [number for number in leaves(step.targets) if number is not None]
        if not any(number in grads for number in numbers):
            continue
        grads.update({number: _zeros(unread[number]) for number in numbers if number in unread})
        grad = _map(lambda number: None if number is None else grads.pop(number, None), step.targets)
        with context.called(step.name):
            back = step.module.vjp(kept_by_module, grad)
        if len(step.sources) == 1 and not (isinstance(back, tuple) and len(back) == 1):
            back = (back,)
        _add(grads, step.sources, back)
    found = _map(lambda number: None if number is None else grads.get(number), wiring.inputs)
    return found[0] if len(found) == 1 else found


def _zeros(like: Array) -> Array:
    return where(greater(like, like), like, 0.0)  # not 0 * like, which keeps NaN and inf


def _add(grads: dict[int, Array], numbers: Any, grad: Any) -> None:
    if grad is None or numbers is None:
        return
    if isinstance(numbers, tuple):
        for number, item in zip(numbers, grad, strict=True):
            _add(grads, number, item)
    else:
        grads[numbers] = grads[numbers] + grad if numbers in grads else grad


def composed(forward: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """Decorator of a `forward` that only calls modules: returns the output alone, and the class needs no `vjp`.

    Inside, modules are called (`self.layer(x)`), values combined with + - * /, and shapes, modes and attributes
    may be looked at; the forward is followed anew each time it runs. A module may be called several times, with
    several inputs, and outputs may be tuples. An input that no output depends on gets the gradient None.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import Linear, LinearReLU, Module, composed
        >>> class Net(Module):
        ...     def __init__(self):
        ...         self.body, self.head = LinearReLU(4, 4), Linear(4, 2)
        ...     @composed
        ...     def forward(self, x):
        ...         return self.head(x + self.body(x))
        >>> net = Net()
        >>> y, saved = net.forward(np.ones((3, 4), np.float32))
        >>> net.vjp(saved, y).shape
        (3, 4)
    """

    @functools.wraps(forward)
    def run(self: Module, *inputs: Any, **options: Any) -> Any:
        if any(True for _ in values_in(inputs)):  # a subclass calling super().forward
            return forward(self, *inputs, **options)
        recorder = Recorder()
        values = _map(lambda x: recorder.enter(x) if isinstance(x, np.ndarray | Staged) else x, inputs)
        try:
            with _recording(recorder):
                return recorder.finish(values, forward(self, *values, **options))
        finally:
            recorder.finished = True

    run.is_composed = True  # type: ignore[attr-defined]
    return run
