"""Linear layers in other guises: a borrowed weight, a start at zero, and the feed-forward pair of a transformer."""

from __future__ import annotations

from typing import Any, Protocol

from noeira.nn.core.arguments import positives
from noeira.nn.core.initializer import Initializer, Zero
from noeira.nn.core.module import Module, Width
from noeira.nn.core.param import Param
from noeira.nn.primitives.activation import gelu_function
from noeira.nn.primitives.linear import Linear, LinearAct
from noeira.ops.dispatch import Array
from noeira.ops.linear import linear, linear_input_grad, linear_input_grad_act, linear_param_grad


class _Owner(Protocol):
    weight: Param


class TiedLinear(Module):
    """Linear map without bias whose weight is another layer's, transposed (a language model's head).

    y = x T^T

    Args:
        source: The layer that owns T, usually an `Embedding`. Both then hold one and the same `Param`: walks find it
            once, an optimizer updates it once, a file stores it once.

    Shape:
        x [..., features], y [..., rows]; T [rows, features].

    vjp:
        dx = dy T, dT += dy^T x, into the gradient of the source. Saves x.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import Embedding, TiedLinear
        >>> TiedLinear(Embedding(10, 3))(np.ones((2, 3), np.float32)).shape
        (2, 10)

    Source: Press and Wolf 2017.
    """

    tokenwise = True

    def __init__(self, source: _Owner):
        weight = getattr(source, "weight", None)
        if not isinstance(weight, Param) or len(weight.shape) != 2:
            raise ValueError(f"TiedLinear: expected a layer with a weight [rows, features], got {source!r}")
        self.weight = weight

    def expects(self) -> Width:
        """The width of T's rows on the last axis."""
        return -1, self.weight.shape[1]

    def gives(self, width: Width | None) -> Width:
        """The number of T's rows on the last axis."""
        return -1, self.weight.shape[0]

    def extra_repr(self) -> str:
        """Both widths, input first."""
        return f"{self.weight.shape[1]}, {self.weight.shape[0]}"

    def forward(self, x: Array) -> tuple[Array, Array]:
        """X [..., features] -> y [..., rows]; saves x."""
        return linear_input_grad(x, self.weight.val), x

    def vjp(self, saved: Array, grad_output: Array) -> Array:
        """Dy [..., rows] -> dx [..., features]; adds dT."""
        dx = linear(grad_output, self.weight.val)
        linear_param_grad(self.weight.grd, None, grad_output, saved)
        return dx


class ZeroLinear(Linear):
    """`Linear` whose weight starts at 0, whatever the model's initializer.

    y = x W + b

    Args:
        in_features: Width of the input's last axis.
        out_features: Width of the output's last axis.
        bias: Whether there is a b.

    Shape:
        x [..., in_features], y [..., out_features].

    vjp:
        As `Linear`. Saves x.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import ZeroLinear
        >>> print(ZeroLinear(2, 1)(np.array([[1.0, 2.0]], np.float32)).round(3))
        [[0.]]

    Source: Peebles and Xie 2023.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True):
        super().__init__(in_features, out_features, bias, init=Zero())


class FeedForwardGELU(Module):
    """The feed-forward part of a transformer block; GELU and its derivative are in the epilogues of the products.

    y = gelu(x W1 + b1) W2 + b2

    Args:
        embed_dim: Width of input and output.
        hidden_dim: Width in between.
        approximate: "tanh" or "none", the exact one: which GELU.
        init: Initializer of W1; the model's by default.
        out_init: Initializer of W2; as `init` by default.

    Shape:
        x [..., embed_dim], y the same.

    vjp:
        dz = (dy W2^T) gelu'(z), dx = dz W1^T, dW2 += h^T dy, db2 += sum of dy, dW1 += x^T dz, db1 += sum of dz.
        Saves x, z = x W1 + b1 and h = gelu(z).

    Example:
        >>> import numpy as np
        >>> from noeira.nn import FeedForwardGELU
        >>> FeedForwardGELU(8, 32)(np.ones((2, 5, 8), np.float32)).shape
        (2, 5, 8)

    Source: Vaswani et al. 2017; Hendrycks and Gimpel 2016.
    """

    tokenwise = True

    def __init__(
        self,
        embed_dim: int,
        hidden_dim: int,
        *,
        approximate: str = "tanh",
        init: Initializer | None = None,
        out_init: Initializer | None = None,
    ):
        embed_dim, hidden_dim = positives(self, embed_dim=embed_dim, hidden_dim=hidden_dim)
        self.fc1 = LinearAct(embed_dim, hidden_dim, gelu_function(approximate), init=init)
        self.fc2 = Linear(hidden_dim, embed_dim, init=out_init or init)

    def expects(self) -> Width:
        """`embed_dim` on the last axis."""
        return self.fc1.expects()

    def gives(self, width: Width | None) -> Width:
        """The input's width."""
        return self.fc1.expects()

    def forward(self, x: Array) -> tuple[Array, Any]:
        """X [..., embed_dim] -> y; saves (x, z, h)."""
        h, (x, z) = self.fc1.forward(x)
        y, h = self.fc2.forward(h)
        return y, (x, z, h)

    def vjp(self, saved: Any, grad_output: Array) -> Array:
        """Dy -> dx; adds the gradients of both maps."""
        x, z, h = saved
        self.fc2._param_grad(h, grad_output)
        grad = linear_input_grad_act(grad_output, self.fc2.weight.val, z, self.fc1.function)
        self.fc1._param_grad(x, grad)
        return linear_input_grad(grad, self.fc1.weight.val)
