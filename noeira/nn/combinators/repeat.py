"""Repeat: a chain of modules of equal structure, compiled once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from noeira.nn.combinators.sequential import Sequential
from noeira.nn.core import context, subgraph
from noeira.nn.core.arguments import positive
from noeira.nn.core.module import Module
from noeira.ops.dispatch import Array


class Repeat(Sequential):
    """`count` modules in a chain, each with its own parameters.

    y = f_n(... f_2(f_1(x)))

    In compiled programs the modules' common body is a subgraph, forward and backward, called `count` times: compile
    time does not grow with depth. Modules that differ (one is frozen, say) get a body of their own.

    Args:
        count: Number of modules.
        make: Makes one module; called `count` times.

    Shape:
        Input and output have one shape.

    vjp:
        The modules' vjps in reverse order. Saves what each of them saves.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import LinearReLU, Repeat
        >>> Repeat(3, lambda: LinearReLU(8, 8))(np.ones((2, 8), np.float32)).shape
        (2, 8)

    Source: Elementary.
    """

    def __init__(self, count: int, make: Callable[[], Module]):
        super().__init__(*(make() for _ in range(positive(self, "count", count))))

    def forward(self, x: Array) -> tuple[Array, Any]:
        """Run the chain; saves a tuple of what each module saves."""
        saved, place = [], context.place()
        for index, module in enumerate(self.layers):
            key = partial(context.fold, f"{place}[{index}]")
            if subgraph.wanted():
                x, kept = subgraph.forward(module, key, x)
            else:
                with context.draw_scope(key):
                    x, kept = module.forward(x)
            saved.append(kept)
        return x, tuple(saved)

    def vjp(self, saved: Any, grad_output: Array) -> Array:
        """Run the chain's vjps backwards."""
        for module, kept in zip(reversed(self.layers), reversed(saved), strict=True):
            if subgraph.wanted():
                grad_output = subgraph.vjp(module, kept, grad_output)
            else:
                grad_output = module.vjp(kept, grad_output)
        return grad_output


class RepeatConditional(Repeat):
    """Several modules of one make in a chain, each of which also gets a conditioning input.

    y = f_n(... f_2(f_1(x, c), c) ..., c)

    In a compiled program the modules that emit the same ops are one subgraph, as in `Repeat`.

    Args:
        count: Number of modules.
        make: Makes one module, which takes x and c; called `count` times.

    Shape:
        Input and output have one shape; c is what the modules take, the same for all.

    vjp:
        The modules' vjps in reverse order; dc is the sum of theirs (None where they give none: ids, masks). Saves what
        each of them saves.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import Add, RepeatConditional
        >>> RepeatConditional(3, Add)(np.zeros((1, 2), np.float32), np.full((1, 2), 5, np.float32)).tolist()
        [[15.0, 15.0]]

    Source: Hafner et al. 2025 (Dreamer 4).
    """

    def forward(self, x: Array, condition: Array) -> tuple[Array, Any]:  # type: ignore[override]
        """(x, c) -> y; saves a tuple of what each module saves."""
        saved, place = [], context.place()
        for index, module in enumerate(self.layers):
            key = partial(context.fold, f"{place}[{index}]")
            if subgraph.wanted():
                x, kept = subgraph.forward(module, key, x, condition)
            else:
                with context.draw_scope(key):
                    x, kept = module.forward(x, condition)
            saved.append(kept)
        return x, tuple(saved)

    def vjp(self, saved: Any, grad_output: Array) -> tuple[Array, Array | None]:  # type: ignore[override]
        """Dy -> (dx, dc)."""
        total: Array | None = None
        for module, kept in zip(reversed(self.layers), reversed(saved), strict=True):
            run = subgraph.vjp if subgraph.wanted() else type(module).vjp
            grad_output, grad = run(module, kept, grad_output)
            if grad is not None:
                total = grad if total is None else total + grad
        return grad_output, total
