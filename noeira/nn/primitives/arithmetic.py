"""Arithmetic as modules, which is what + - * / of values in a composed forward become."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from noeira.nn.core.composition import RULE, Value
from noeira.nn.core.errors import ShapeError
from noeira.nn.core.module import Module, Width
from noeira.ops.dispatch import Array, broadcast, expect_grad
from noeira.ops.reduce import sum_to
from noeira.runtime.staging import Shape


def _together(inputs: tuple[Array, ...]) -> Shape:
    return functools.reduce(broadcast, (tuple(x.shape) for x in inputs))


class _OfTwo(Module):
    """Base: two inputs that broadcast."""

    def check_inputs(self, *inputs: Array) -> None:
        """Two arrays that broadcast."""
        _together(inputs)

    def gives(self, width: Width | None) -> Width | None:
        """The first input's width, unless it is broadcast."""
        return None if width is not None and width[1] == 1 else width


class Add(Module):
    """The sum of its inputs.

    y = x1 + x2 + ..., with broadcasting

    Shape:
        Inputs of shapes that broadcast; y the broadcast shape.

    vjp:
        dx1 = dx2 = ... = dy, summed over the axes that were broadcast. Saves the shapes.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import Add
        >>> Add()(np.ones((2, 3), np.float32), np.full((2, 3), 4, np.float32))[0].tolist()
        [5.0, 5.0, 5.0]

    Source: PyTorch: `a + b`.
    """

    def check_inputs(self, *inputs: Array) -> None:
        """At least one array, and all of them broadcast."""
        if not inputs:
            raise ShapeError("expected at least one input to add, got none")
        _together(inputs)

    def gives(self, width: Width | None) -> Width | None:
        """The first input's width, unless it is broadcast."""
        return None if width is not None and width[1] == 1 else width

    def forward(self, *inputs: Array) -> tuple[Array, tuple[Shape, ...]]:
        """(x1, x2, ...) -> y; saves the shapes."""
        y = inputs[0]
        for x in inputs[1:]:
            y = y + x
        return y, tuple(tuple(x.shape) for x in inputs)

    def vjp(self, saved: tuple[Shape, ...], grad_output: Array) -> tuple[Array, ...]:
        """Dy -> (dx1, dx2, ...)."""
        expect_grad(grad_output, functools.reduce(broadcast, saved))
        return tuple(sum_to(grad_output, shape) for shape in saved)


class Subtract(_OfTwo):
    """The difference of two inputs.

    y = a - b, with broadcasting

    Shape:
        a and b of shapes that broadcast; y the broadcast shape.

    vjp:
        da = dy and db = -dy, summed over the axes that were broadcast. Saves the shapes.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import Subtract
        >>> Subtract()(np.ones((1, 2), np.float32), np.full((1, 2), 4, np.float32)).tolist()
        [[-3.0, -3.0]]

    Source: PyTorch: `a - b`.
    """

    def forward(self, a: Array, b: Array) -> tuple[Array, Any]:
        """(a, b) -> y; saves the shapes."""
        return a - b, (tuple(a.shape), tuple(b.shape))

    def vjp(self, saved: Any, grad_output: Array) -> tuple[Array, Array]:
        """Dy -> (da, db)."""
        a, b = saved
        expect_grad(grad_output, broadcast(a, b))
        return sum_to(grad_output, a), -sum_to(grad_output, b)


class Multiply(_OfTwo):
    """The elementwise product of two inputs.

    y = a b, with broadcasting

    Shape:
        a and b of shapes that broadcast; y the broadcast shape.

    vjp:
        da = dy b and db = dy a, summed over the axes that were broadcast. Saves a and b.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import Multiply
        >>> Multiply()(np.full((1, 2), 3, np.float32), np.full((1, 2), 4, np.float32)).tolist()
        [[12.0, 12.0]]

    Source: PyTorch: `a * b`.
    """

    def forward(self, a: Array, b: Array) -> tuple[Array, Any]:
        """(a, b) -> y; saves both."""
        return a * b, (a, b)

    def vjp(self, saved: Any, grad_output: Array) -> tuple[Array, Array]:
        """Dy -> (da, db)."""
        a, b = saved
        expect_grad(grad_output, broadcast(tuple(a.shape), tuple(b.shape)))
        return sum_to(grad_output * b, a.shape), sum_to(grad_output * a, b.shape)


class Divide(_OfTwo):
    """The elementwise quotient of two inputs.

    y = a / b, with broadcasting

    Shape:
        a and b of shapes that broadcast; y the broadcast shape.

    vjp:
        da = dy / b and db = -dy y / b, summed over the axes that were broadcast. Saves a's shape, b and y.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import Divide
        >>> Divide()(np.full((1, 2), 3, np.float32), np.full((1, 2), 4, np.float32)).tolist()
        [[0.75, 0.75]]

    Source: PyTorch: `a / b`.
    """

    def forward(self, a: Array, b: Array) -> tuple[Array, Any]:
        """(a, b) -> y; saves a's shape, b and y."""
        y = a / b
        return y, (tuple(a.shape), b, y)

    def vjp(self, saved: Any, grad_output: Array) -> tuple[Array, Array]:
        """Dy -> (da, db)."""
        a, b, y = saved
        expect_grad(grad_output, tuple(y.shape))
        da = grad_output / b
        return sum_to(da, a), -sum_to(da * y, b.shape)


class Affine(Module):
    """y = scale x + shift, with constants: what a number does to a value."""

    def __init__(self, scale: float, shift: float):
        self.scale, self.shift = scale, shift

    def gives(self, width: Width | None) -> Width | None:
        """The input's width."""
        return width

    def extra_repr(self) -> str:
        """Both constants."""
        return f"{self.scale:g}, {self.shift:g}"

    def forward(self, x: Array) -> tuple[Array, None]:
        """X -> scale x + shift."""
        y = x if self.scale == 1 else x * self.scale
        return (y if self.shift == 0 else y + self.shift), None

    def vjp(self, saved: None, grad_output: Array) -> Array:
        """Dy -> scale dy."""
        return grad_output if self.scale == 1 else grad_output * self.scale


# ---- the operators of values -----------------------------------------------------------------------------------------


def _operator(module: type[Module], constant: Callable[[float], tuple[float, float]]) -> Callable[[Value, Any], Any]:
    def apply(self: Value, other: Any) -> Any:
        if isinstance(other, Value):
            return module()(self, other)
        if isinstance(other, int | float | np.number):
            return Affine(*constant(float(other)))(self)
        raise TypeError(
            f"expected a number or a value that a module gave, got {type(other).__name__}, which would get no "
            f"gradient: {RULE}"
        )

    return apply


def _no_reciprocal(self: Value, other: Any) -> Any:
    raise TypeError(f"a value cannot divide {other!r}: {RULE}")


for _name, _module, _constant in (
    ("__add__", Add, lambda c: (1.0, c)),
    ("__radd__", Add, lambda c: (1.0, c)),
    ("__sub__", Subtract, lambda c: (1.0, -c)),
    ("__rsub__", Subtract, lambda c: (-1.0, c)),
    ("__mul__", Multiply, lambda c: (c, 0.0)),
    ("__rmul__", Multiply, lambda c: (c, 0.0)),
    ("__truediv__", Divide, lambda c: (1.0 / c, 0.0)),
):
    setattr(Value, _name, _operator(_module, _constant))
Value.__rtruediv__ = _no_reciprocal  # type: ignore[attr-defined]
Value.__neg__ = lambda self: Affine(-1.0, 0.0)(self)  # type: ignore[attr-defined]
