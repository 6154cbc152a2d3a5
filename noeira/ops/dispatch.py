"""How an op finds its path: NumPy arrays run the reference, staged values are recorded."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np

from noeira.runtime.staging import Attribute, Dim, Shape, Spec, Staged, StagingError

P = ParamSpec("P")
R = TypeVar("R")

Array = Any
"""What an op takes and gives: a NumPy array, or a `Staged` value of the same meaning."""


class ShapeError(ValueError):
    """Arrays whose shapes or dtypes do not fit what is asked of them."""


class Op(Generic[P, R]):
    """One public function with two bodies: the NumPy reference, which defines it, and its staging rule."""

    def __init__(self, reference: Callable[P, R]):
        functools.update_wrapper(self, reference)
        self.reference = reference
        self._rule: Callable[..., Any] | None = None
        self._check: Callable[..., None] | None = None

    def staged(self, rule: Callable[P, Any]) -> Op[P, R]:
        """Decorator: `rule` emits the op into the graph being staged."""
        self._rule = rule
        return self

    def checked(self, check: Callable[P, None]) -> Op[P, R]:
        """Decorator: `check` refuses what neither body can take, before either runs."""
        self._check = check
        return self

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run on arrays, or record on staged values."""
        if self._check is not None:
            self._check(*args, **kwargs)
        if not any(isinstance(value, Staged) for value in _flat((*args, *kwargs.values()))):
            return self.reference(*args, **kwargs)
        if self._rule is None:
            raise StagingError(f"op '{self.__name__}' has no staging rule: it runs on arrays only")  # type: ignore[attr-defined]
        return self._rule(*args, **kwargs)


def _flat(values: Iterable[object]) -> Iterator[object]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flat(value)
        else:
            yield value


def emit(
    name: str,
    inputs: Sequence[Array],
    outputs: Sequence[Spec],
    attributes: Mapping[str, Attribute] | None = None,
    *,
    flops: int = 0,
    spare: Mapping[int, str] | None = None,
) -> Any:
    """`StagedGraph.emit` into the graph that the staged inputs belong to; arrays among them become constants."""
    graph = next(value.graph for value in inputs if isinstance(value, Staged))
    return graph.emit(name, inputs, outputs, attributes, flops=flops, spare=spare)


def op(reference: Callable[P, R]) -> Op[P, R]:
    """Decorator that makes a NumPy function the reference of an op; add `.staged` for the compiled path."""
    return Op(reference)


def is_staged(value: object) -> bool:
    """Whether `value` is recorded rather than computed."""
    return isinstance(value, Staged)


def spec(shape: Shape, like: Array) -> Spec:
    """Spec of a result with `like`'s dtype."""
    return Spec(tuple(shape), np.dtype(like.dtype).name)


def size(shape: Shape) -> Dim:
    """Number of elements; free dimensions stay symbolic ("b", "b*t*64")."""
    known, names = 1, []
    for dim in shape:
        for factor in str(dim).split("*"):
            if factor.isdecimal():
                known *= int(factor)
            else:
                names.append(factor)
    if known == 0 or not names:
        return known
    return "*".join(sorted(names) + ([str(known)] if known != 1 else []))


def known_size(shape: Shape) -> int:
    """Number of elements, counting free dimensions as 1 (for estimates such as FLOPs a sample)."""
    return int(np.prod([dim if isinstance(dim, int) else 1 for dim in shape], initial=1, dtype=np.int64))


def expect_grad(grad: Array, shape: Shape) -> None:
    """Refuse an output gradient that is not of the output's shape; nothing is broadcast.

    Raises:
        ShapeError: It is not.
    """
    if tuple(np.shape(grad) if not isinstance(grad, Staged) else grad.shape) != tuple(shape):
        raise ShapeError(f"expected an output gradient of shape {list(shape)}, got {list(grad.shape)}")


def broadcast(a: Shape, b: Shape) -> Shape:
    """Shape of an elementwise result by NumPy's rules.

    Raises:
        ShapeError: The shapes do not broadcast.
    """
    result: list[Dim] = []
    for i in range(1, max(len(a), len(b)) + 1):
        x = a[-i] if i <= len(a) else 1
        y = b[-i] if i <= len(b) else 1
        if x != y and 1 not in (x, y):
            raise ShapeError(f"shapes {list(a)} and {list(b)} do not broadcast")
        result.append(y if x == 1 else x)
    return tuple(reversed(result))
