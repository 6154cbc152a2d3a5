"""Dropout by counter hash."""

from __future__ import annotations

from noeira.nn.core import context
from noeira.nn.core.arguments import probability
from noeira.nn.core.module import Module, Width
from noeira.ops.dispatch import Array
from noeira.ops.dropout import dropout


class Dropout(Module):
    """Zero each element with probability p while training, and scale the others by 1/(1-p).

    The mask is a pure function of (seed, layer, step, element): the same on every device, different between
    layers and steps, drawn again in the vjp instead of being stored.

    Args:
        p: Probability of zeroing, 0 to 1.

    Shape:
        Any; the output has the input's.

    vjp:
        dx = mask dy / (1-p), with the mask of the forward. Saves the key that names the draw.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import Dropout
        >>> print(Dropout(0.5).eval()(np.array([1.0, 2.0], np.float32)).round(3))
        [1. 2.]

    Source: Srivastava et al. 2014.
    """

    tokenwise = True

    def __init__(self, p: float = 0.5):
        self.p = probability(self, "p", p)

    @property
    def active(self) -> bool:
        """Whether it drops: while training."""
        return self.training

    def gives(self, width: Width | None) -> Width | None:
        """The input's width."""
        return width

    def extra_repr(self) -> str:
        """The probability."""
        return f"p={self.p:g}"

    def forward(self, x: Array) -> tuple[Array, Array | None]:
        """X -> masked x while training, x itself in evaluation; saves the key."""
        if not self.active or self.p == 0:
            return x, None
        key = context.draw()
        return dropout(x, key, self.p), key

    def vjp(self, saved: Array | None, grad_output: Array) -> Array:
        """Dy -> dy under the same mask."""
        return grad_output if saved is None else dropout(grad_output, saved, self.p)


class HashDropout(Dropout):
    """Dropout with a switch of its own, whatever the mode: on in evaluation, or off while batch norm goes on training.

    y = x mask / (1 - p) while `dropout` is True, x otherwise

    As in `Dropout` the mask is hashed from (seed, layer, step, element), and drawn again in the vjp. The step is that
    of training: in evaluation it stands still, and so do the masks.

    Args:
        p: Probability of zeroing, 0 to 1.
        dropout: The switch; changing the attribute changes the program.

    Shape:
        Any; the output has the input's.

    vjp:
        dx = mask dy / (1-p), with the mask of the forward. Saves the key that names the draw.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import HashDropout
        >>> layer, x = HashDropout(0.5).eval(), np.ones((4, 64), np.float32)
        >>> bool((layer(x) == 0).any())
        True
        >>> layer.dropout = False
        >>> bool((layer.train()(x) == x).all())
        True

    Source: Srivastava et al. 2014; Salmon et al. 2011 (the hash).
    """

    def __init__(self, p: float = 0.5, dropout: bool = True):
        super().__init__(p)
        self.dropout = bool(dropout)

    @property
    def active(self) -> bool:
        """The switch."""
        return self.dropout

    def extra_repr(self) -> str:
        """The probability, and the switch where it is off."""
        return super().extra_repr() + ("" if self.dropout else ", dropout=False")
