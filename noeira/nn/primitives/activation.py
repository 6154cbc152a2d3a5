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

    Source: The functions of `noeira.ops.activation`.
    """

    tokenwise = True

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
    """y = max(x, 0); the derivative at 0 is 0.

    Shape:
        Any; the output has the input's.

    vjp:
        dx = dy where x > 0, else 0. Saves y.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import ReLU
        >>> print(ReLU()(np.array([-1.0, 2.0], np.float32)).round(3))
        [0. 2.]

    Source: Nair and Hinton 2010. PyTorch: `torch.nn.ReLU`.
    """

    function = "relu"


class Tanh(Activation):
    """y = tanh(x).

    Shape:
        Any; the output has the input's.

    vjp:
        dx = dy (1 - y^2). Saves y.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import Tanh
        >>> print(Tanh()(np.array([0.0, 1.0], np.float32)).round(3))
        [0.    0.762]

    Source: PyTorch: `torch.nn.Tanh`.
    """

    function = "tanh"


class Sigmoid(Activation):
    """y = 1 / (1 + e^-x).

    Shape:
        Any; the output has the input's.

    vjp:
        dx = dy y (1 - y). Saves y.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import Sigmoid
        >>> print(Sigmoid()(np.array([0.0, 1.0], np.float32)).round(3))
        [0.5   0.731]

    Source: PyTorch: `torch.nn.Sigmoid`.
    """

    function = "sigmoid"


class SiLU(Activation):
    """y = x / (1 + e^-x), also called Swish (Ramachandran et al. 2017).

    Shape:
        Any; the output has the input's.

    vjp:
        dx = dy s (1 + x (1 - s)), s = 1 / (1 + e^-x). Saves x.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import SiLU
        >>> print(SiLU()(np.array([0.0, 1.0], np.float32)).round(3))
        [0.    0.731]

    Source: Ramachandran et al. 2017. PyTorch: `torch.nn.SiLU`.
    """

    function = "silu"


class Mish(Activation):
    """y = x tanh(log(1 + e^x)) (Misra 2019).

    Shape:
        Any; the output has the input's.

    vjp:
        dx = dy (t + x s (1 - t^2)), t = tanh(log(1 + e^x)), s = 1 / (1 + e^-x). Saves x.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import Mish
        >>> print(Mish()(np.array([0.0, 1.0], np.float32)).round(3))
        [0.    0.865]

    Source: Misra 2019. PyTorch: `torch.nn.Mish`.
    """

    function = "mish"


class GELU(Activation):
    """y = x Phi(x) with the normal distribution Phi (Hendrycks and Gimpel 2016).

    Args:
        approximate: "none" for the exact function, "tanh" for x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).

    Shape:
        Any; the output has the input's.

    vjp:
        dx = dy (Phi(x) + x phi(x)) with the normal density phi; of the approximation its own derivative. Saves
        x.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import GELU
        >>> print(GELU()(np.array([0.0, 1.0], np.float32)).round(3))
        [0.    0.841]

    Source: Hendrycks and Gimpel 2016. PyTorch: `torch.nn.GELU`.
    """

    function = "gelu"

    def __init__(self, approximate: str = "none"):
        gelu_function(approximate)
        self.approximate = approximate

    def extra_repr(self) -> str:
        """The approximation, where there is one."""
        return "approximate='tanh'" if self.approximate == "tanh" else ""

    def _name(self) -> str:
        return gelu_function(self.approximate)


def gelu_function(approximate: str) -> str:
    """The name of the function that PyTorch's option `approximate` asks for.

    Raises:
        ValueError: It is neither "none" nor "tanh".
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"GELU: expected approximate to be 'none' or 'tanh', got {approximate!r}")
    return "gelu_tanh" if approximate == "tanh" else "gelu"


Swish = SiLU
