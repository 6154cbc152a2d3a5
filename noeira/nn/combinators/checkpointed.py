"""Checkpointed: memory for time, by running the forward again in the backward."""

from __future__ import annotations

from typing import Any

import numpy as np

from noeira.nn.combinators.wrapper import Wrapper
from noeira.nn.core import context, subgraph
from noeira.ops.dispatch import Array


class Checkpointed(Wrapper):
    """A module of which only the inputs are kept for the backward; its forward runs again there.

    y = f(x)

    The second forward draws the same random numbers as the first, and writes no states: running statistics are
    updated once a step. Outputs and gradients are those of f, bit for bit. In compiled programs forward and
    backward are two subgraphs, so that nothing of the first outlives it.

    Args:
        module: f.

    Shape:
        As f.

    vjp:
        That of f, after its forward has been computed again. Saves the inputs, and the key and names of f's draws.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import Checkpointed, LinearReLU
        >>> Checkpointed(LinearReLU(3, 2))(np.ones((4, 3), np.float32)).shape
        (4, 2)

    Source: Chen et al. 2016.
    """

    def forward(self, *inputs: Array) -> tuple[Array, Any]:
        """Run the module inside; saves the inputs, and how to draw the same numbers again."""
        prefix, draws = context.place(), context.draw_counts()
        before = dict(draws)
        if subgraph.wanted():
            y, key = subgraph.call(
                self,
                "forward",
                lambda *x: self.module.forward(*x)[0],
                context.root_key,
                inputs,
                prefix=prefix,
                draws=draws,
            )
        else:
            with context.draw_scope(context.root_key, prefix, draws) as scope:
                y = self._output(*inputs)
            draws |= scope.draws
            key = np.copy(scope.made) if isinstance(scope.made, np.ndarray) else scope.made
        return y, (inputs, key, prefix, before)

    def vjp(self, saved: Any, grad_output: Array) -> Any:
        """Run the module's forward again, then its vjp."""
        inputs, key, prefix, draws = saved
        if subgraph.wanted():
            make = None if key is None else lambda: key
            return subgraph.call(
                self, "vjp", self._again, make, (inputs, grad_output), prefix=prefix, draws=dict(draws)
            )[0]
        with context.draw_scope(lambda: key, prefix, draws):
            return self._again(inputs, grad_output)

    def _output(self, *inputs: Array) -> Array:
        return self.module.forward(*inputs)[0]

    def _again(self, inputs: tuple[Array, ...], grad_output: Array) -> Any:
        with context.replaying():
            saved = self.module.forward(*inputs)[1]
        return self.module.vjp(saved, grad_output)
