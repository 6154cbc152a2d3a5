"""Wrappers: modules that change how another one is run, and are invisible in its parameters' names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from noeira.nn.core.decoding import Decoding
from noeira.nn.core.errors import CompositionError
from noeira.nn.core.initializer import Initializer
from noeira.nn.core.module import Module, Width
from noeira.ops.dispatch import Array, ShapeError, size
from noeira.ops.shape import reshape


class Wrapper(Module):
    """Base of the wrappers: the module inside keeps its inputs, its widths and its parameters' names.

    Args:
        module: What is wrapped.
    """

    def __init__(self, module: Module):
        if not isinstance(module, Module):
            raise CompositionError(f"{type(self).__name__}: expected a module, got {type(module).__name__}")
        self.module = module

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The module, under no name of its own."""
        yield "", self.module

    def expects(self) -> Width | None:
        """What the module inside expects."""
        return self.module.expects()

    def gives(self, width: Width | None) -> Width | None:
        """What the module inside gives."""
        return self.module.gives(width)

    def check_inputs(self, *inputs: Array) -> None:
        """Leave it to the module inside, which is named in the error."""

    def forward(self, *inputs: Array) -> tuple[Array, Any]:
        """Run the module inside; saves what it saves."""
        return self.module.forward(*inputs)

    def step(self, x: Array, decoding: Decoding) -> Array:
        """One token through the module inside."""
        return self.module.step(x, decoding)

    def vjp(self, saved: Any, grad_output: Array) -> Any:
        """The vjp of the module inside."""
        return self.module.vjp(saved, grad_output)


class InitWith(Wrapper):
    """A module whose weights are drawn by another rule than the rest of the model.

    y = f(x)

    Args:
        module: f.
        initializer: For f's weights whose layer does not name its own; biases and norms stay as they are.

    Shape:
        As f.

    vjp:
        That of f. Saves what f saves.

    Example:
        >>> from noeira.nn import InitWith, Linear, Zero
        >>> float(abs(InitWith(Linear(3, 2), Zero()).init().named_parameters()["weight"].val).max())
        0.0

    Source: Elementary.
    """

    def __init__(self, module: Module, initializer: Initializer):
        super().__init__(module)
        for param in module.named_parameters().values():
            param.init = param.init or initializer


class Tokenwise(Wrapper):
    """A module applied to every token by itself, the tokens of all sequences in one batch.

    y[b, s] = f(x[b, s])

    Layers that work on the last axis do so anyway; this is for those that want one sample a row (BatchNorm1D, images
    in a sequence).

    Args:
        module: f; takes [B S, ...].

    Shape:
        x [B, S, ...], y [B, S, ...].

    vjp:
        That of f on the merged axes. Saves what f saves, and both shapes.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import BatchNorm1D, Tokenwise
        >>> Tokenwise(BatchNorm1D(4))(np.ones((2, 5, 4), np.float32)).shape
        (2, 5, 4)

    Source: Elementary.
    """

    def check_inputs(self, *inputs: Array) -> None:
        """Refuse what has no tokens."""
        if len(inputs[0].shape) < 3:
            raise ShapeError(f"expected an input of shape [B, S, ...], got {list(inputs[0].shape)}")

    def forward(self, x: Array) -> tuple[Array, Any]:
        """X [B, S, ...] -> y [B, S, ...]."""
        batch, tokens = x.shape[:2]
        y, saved = self.module.forward(reshape(x, (size((batch, tokens)), *x.shape[2:])))
        return reshape(y, (batch, tokens, *y.shape[1:])), (saved, x.shape, y.shape)

    def vjp(self, saved: Any, grad_output: Array) -> Array | None:
        """Dy -> dx."""
        kept, shape, inner = saved
        grad = self.module.vjp(kept, reshape(grad_output, inner))
        return None if grad is None else reshape(grad, shape)


class StopGradParams(Wrapper):
    """A module used without being trained by this use: its parameters get no gradient, its input does.

    y = f(x)

    So an actor's loss goes through a critic that another loss trains: elsewhere in the model, or in another model, the
    same module is trained as ever. (`Module.freeze` stops a module's training everywhere, its weight decay included.
    An optimizer over a model that holds f only in here sees gradients of 0.)

    Args:
        module: f.

    Shape:
        As f.

    vjp:
        dx as that of f; nothing is added to the parameters' gradients, and nothing computed for them. Saves what f
        saves.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import Linear, StopGradParams
        >>> net = StopGradParams(Linear(3, 2))
        >>> y, saved = net.forward(np.ones((4, 3), np.float32))
        >>> net.vjp(saved, y).shape, float(abs(net.module.weight.grd).max())
        ((4, 3), 0.0)

    Source: Haarnoja et al. 2018 (an actor's loss through a critic).
    """

    def vjp(self, saved: Any, grad_output: Array) -> Any:
        """The input gradient of the module inside."""
        params = [param for param in self.module.named_parameters().values() if param.trainable]
        for param in params:
            param.trainable = False
        try:
            return self.module.vjp(saved, grad_output)
        finally:
            for param in params:
                param.trainable = True
