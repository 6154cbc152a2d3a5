"""Activations as layers."""

from __future__ import annotations

from typing import ClassVar

from noeira.nn.core.module import Module, Width
from noeira.ops.activation import SAVES_OUTPUT, activation, activation_grad
from noeira.ops.dispatch import Array


class Activation(Module):
    """Base of the elementwise layers y = f(x).

    Shape:
        Any; the output has the input's.

    vjp:
        dx = dy f'(x). Saves y where f' is a function of y (relu, tanh, sigmoid), else x.
    """

    function: ClassVar[str]
    """Name of f in `ops.activation`."""

    def gives(self, width: Width | None) -> Width | None:
        """The input's width."""
        return width

    def forward(self, x: Array) -> tuple[Array, Array]:
        """X -> f(x); saves y or x."""
        y = activation(x, self._name())
        return y, y if self._name() in SAVES_OUTPUT else x

    def vjp(self, saved: Array, grad_output: Array) -> Array:
        """Dy -> dy f'(x)."""
        return activation_grad(grad_output, saved, self._name())

    def _name(self) -> str:
        return self.function


class ReLU(Activation):
    """y = max(x, 0); the derivative at 0 is 0."""

    function = "relu"


class Tanh(Activation):
    """y = tanh(x)."""

    function = "tanh"


class Sigmoid(Activation):
    """y = 1 / (1 + e^-x)."""

    function = "sigmoid"


class SiLU(Activation):
    """y = x / (1 + e^-x), also called Swish (Ramachandran et al. 2017)."""

    function = "silu"


class Mish(Activation):
    """y = x tanh(log(1 + e^x)) (Misra 2019)."""

    function = "mish"


class GELU(Activation):
    """y = x Phi(x) with the normal distribution Phi (Hendrycks and Gimpel 2016).

    Args:
        approximate: "none" for the exact function, "tanh" for x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
    """

    function = "gelu"

    def __init__(self, approximate: str = "none"):
        if approximate not in ("none", "tanh"):
            raise ValueError(f"GELU: expected approximate to be 'none' or 'tanh', got {approximate!r}")
        self.approximate = approximate

    def extra_repr(self) -> str:
        """The approximation, where there is one."""
        return "approximate='tanh'" if self.approximate == "tanh" else ""

    def _name(self) -> str:
        return "gelu_tanh" if self.approximate == "tanh" else "gelu"


Swish = SiLU
