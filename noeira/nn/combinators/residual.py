"""Residual connections: a branch added to its input, or to another branch."""

from __future__ import annotations

from typing import Any

from noeira.nn.combinators.width import text
from noeira.nn.core.decoding import Decoding
from noeira.nn.core.errors import CompositionError, ShapeError
from noeira.nn.core.module import Module, Width
from noeira.ops.dispatch import Array


class Residual(Module):
    """A module's output added to its input.

    y = x + f(x)

    Args:
        module: f; keeps its input's shape. Refused here where its widths say otherwise.

    Shape:
        x and y have one shape.

    vjp:
        dx = dy + f.vjp(dy). Saves what f saves.

    Raises:
        CompositionError: f gives another width than it expects.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import LinearReLU, Residual
        >>> Residual(LinearReLU(8, 8))(np.ones((2, 8), np.float32)).shape
        (2, 8)

    Source: He et al. 2015.
    """

    def __init__(self, module: Module):
        self.module = _module(self, module)
        expected = module.expects()
        given = module.gives(expected)
        if expected is not None and given is not None and expected != given:
            raise CompositionError(
                f"Residual: expected a module that keeps its input's width, got {module.describe()}, "
                f"which expects {text(expected)} and gives {text(given)}; see ProjectedResidual"
            )

    def expects(self) -> Width | None:
        """The branch's."""
        return self.module.expects()

    def gives(self, width: Width | None) -> Width | None:
        """The input's."""
        return self.module.expects() or width

    def check_inputs(self, *inputs: Array) -> None:
        """Leave it to the branch, which is named in the error."""

    def forward(self, x: Array) -> tuple[Array, Any]:
        """X -> x + f(x); saves what f saves."""
        branch, saved = self.module.forward(x)
        if tuple(branch.shape) != tuple(x.shape):
            raise ShapeError(f"expected a branch output of the input's shape {list(x.shape)}, got {list(branch.shape)}")
        return x + branch, saved

    def step(self, x: Array, decoding: Decoding) -> Array:
        """One token: x + f(x)."""
        return x + self.module.step(x, decoding)

    def vjp(self, saved: Any, grad_output: Array) -> Array:
        """Dy -> dx."""
        return grad_output + self.module.vjp(saved, grad_output)


class ProjectedResidual(Module):
    """Two modules on one input, added.

    y = main(x) + skip(x)

    Args:
        main: The branch that does the work.
        skip: The shortcut: a projection where shapes change.

    Shape:
        x as both expect, y as both give.

    vjp:
        dx = main.vjp(dy) + skip.vjp(dy). Saves what both save.

    Raises:
        CompositionError: The two expect or give different widths.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import Linear, LinearReLU, ProjectedResidual
        >>> ProjectedResidual(LinearReLU(8, 4), Linear(8, 4, bias=False))(np.ones((2, 8), np.float32)).shape
        (2, 4)

    Source: He et al. 2015.
    """

    def __init__(self, main: Module, skip: Module):
        self.main, self.skip = _module(self, main), _module(self, skip)
        expected = main.expects() or skip.expects()
        for what, a, b in (
            ("expect", main.expects(), skip.expects()),
            ("give", main.gives(expected), skip.gives(expected)),
        ):
            if a is not None and b is not None and a != b:
                raise CompositionError(
                    f"ProjectedResidual: expected two modules that {what} one width, got {main.describe()} with "
                    f"{text(a)} and {skip.describe()} with {text(b)}"
                )

    def expects(self) -> Width | None:
        """What either branch insists on."""
        return self.main.expects() or self.skip.expects()

    def gives(self, width: Width | None) -> Width | None:
        """What either branch is known to give."""
        expected = self.expects() or width
        return self.main.gives(expected) or self.skip.gives(expected)

    def check_inputs(self, *inputs: Array) -> None:
        """Leave it to the branches, which are named in the error."""

    def forward(self, x: Array) -> tuple[Array, Any]:
        """X -> main(x) + skip(x); saves what both save."""
        main, saved_main = self.main.forward(x)
        skip, saved_skip = self.skip.forward(x)
        if tuple(main.shape) != tuple(skip.shape):
            raise ShapeError(f"expected branches of one output shape, got {list(main.shape)} and {list(skip.shape)}")
        return main + skip, (saved_main, saved_skip)

    def vjp(self, saved: Any, grad_output: Array) -> Array:
        """Dy -> dx."""
        saved_main, saved_skip = saved
        return self.main.vjp(saved_main, grad_output) + self.skip.vjp(saved_skip, grad_output)


def _module(owner: Module, module: object) -> Module:
    if not isinstance(module, Module):
        raise CompositionError(f"{type(owner).__name__}: expected a module, got {type(module).__name__}")
    return module
