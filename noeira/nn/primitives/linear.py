"""Linear and LinearAct: the affine map, alone or fused with an activation."""

from __future__ import annotations

from typing import Any, ClassVar

from noeira.nn.core.arguments import positives
from noeira.nn.core.initializer import Initializer, Zero
from noeira.nn.core.module import Module, Width
from noeira.nn.core.param import Param
from noeira.ops.activation import SAVES_OUTPUT, activation_grad, code
from noeira.ops.dispatch import Array
from noeira.ops.linear import linear, linear_input_grad, linear_param_grad, linear_pre


class Linear(Module):
    """Affine map of the last axis.

    y = x W + b

    Args:
        in_features: Width of the input's last axis.
        out_features: Width of the output's last axis.
        bias: Whether there is a b.
        init: Initializer of W; the model's by default. b starts at 0.

    Shape:
        x [..., in_features], y [..., out_features]; W [in_features, out_features], b [out_features].

    vjp:
        dx = dy W^T, dW += x^T dy, db += sum of dy over rows. Saves x.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import Linear
        >>> Linear(3, 2)(np.ones((4, 3), np.float32)).shape
        (4, 2)

    Source: PyTorch: `torch.nn.Linear`, whose weight is the transpose.
    """

    tokenwise = True

    def __init__(self, in_features: int, out_features: int, bias: bool = True, *, init: Initializer | None = None):
        shape = positives(self, in_features=in_features, out_features=out_features)
        self.in_features, self.out_features = shape
        self.weight = Param(shape, init=init)
        self.bias = Param(shape[1:], init=Zero(), decay=False) if bias else None

    def expects(self) -> Width:
        """`in_features` on the last axis."""
        return -1, self.in_features

    def gives(self, width: Width | None) -> Width:
        """`out_features` on the last axis."""
        return -1, self.out_features

    def extra_repr(self) -> str:
        """Both widths, and the absence of a bias."""
        return f"{self.in_features}, {self.out_features}" + ("" if self.bias else ", bias=False")

    def forward(self, x: Array) -> tuple[Array, Array]:
        """X [..., in] -> y [..., out]; saves x."""
        return linear(x, self.weight.val, self.bias.val if self.bias else None), x

    def vjp(self, saved: Array, grad_output: Array) -> Array:
        """Dy [..., out] -> dx [..., in]; adds dW and db."""
        self._param_grad(saved, grad_output)
        return linear_input_grad(grad_output, self.weight.val)

    def _param_grad(self, x: Array, grad: Array) -> None:
        linear_param_grad(self.weight.grd, self.bias.grd if self.bias else None, x, grad)


class LinearAct(Linear):
    """Affine map and activation in one kernel (the GEMM's epilogue).

    y = f(x W + b)

    Args:
        in_features: Width of the input's last axis.
        out_features: Width of the output's last axis.
        activation: Name of f: relu, tanh, sigmoid, silu, mish, gelu (exact) or gelu_tanh.
        init: Initializer of W; the model's by default. b starts at 0.

    Shape:
        x [..., in_features], y [..., out_features].

    vjp:
        dz = dy f'(z), dx = dz W^T, dW += x^T dz, db += sum of dz over rows. Saves x, and y for relu, tanh and
        sigmoid, z = x W + b for the others.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import LinearAct
        >>> LinearAct(3, 2, "relu")(np.ones((4, 3), np.float32)).shape
        (4, 2)

    Source: PyTorch: `torch.nn.Linear`, then the activation.
    """

    activation: ClassVar[str | None] = None
    """Name of f where a subclass fixes it."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        activation: str | None = None,
        *,
        init: Initializer | None = None,
    ):
        super().__init__(in_features, out_features, init=init)
        name = activation or type(self).activation
        if name is None:
            raise ValueError("LinearAct: expected an activation name, got None")
        code(name)  # refuses an unknown name here, not at the first call
        self.function = name

    def extra_repr(self) -> str:
        """Both widths, and the activation where the class does not say it."""
        return f"{self.in_features}, {self.out_features}" + ("" if type(self).activation else f", {self.function!r}")

    def forward(self, x: Array) -> tuple[Array, Any]:
        """X [..., in] -> y [..., out]; saves (x, y or z)."""
        assert self.bias is not None
        if self.function in SAVES_OUTPUT:
            y = linear(x, self.weight.val, self.bias.val, self.function)
            return y, (x, y)
        y, z = linear_pre(x, self.weight.val, self.bias.val, self.function)
        return y, (x, z)

    def vjp(self, saved: Any, grad_output: Array) -> Array:
        """Dy [..., out] -> dx [..., in]; adds dW and db."""
        x, kept = saved
        grad = activation_grad(grad_output, kept, self.function)
        self._param_grad(x, grad)
        return linear_input_grad(grad, self.weight.val)


class LinearReLU(LinearAct):
    """y = max(x W + b, 0) in one kernel; see `LinearAct`.

    Shape:
        x [..., in_features], y [..., out_features]; W [in_features, out_features], b [out_features].

    vjp:
        As `LinearAct` with relu. Saves x and y.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import LinearReLU
        >>> LinearReLU(3, 2)(np.ones((4, 3), np.float32)).shape
        (4, 2)

    Source: PyTorch: `torch.nn.Linear`, then `torch.nn.ReLU`.
    """

    activation = "relu"


class LinearTanh(LinearAct):
    """y = tanh(x W + b) in one kernel; see `LinearAct`.

    Shape:
        x [..., in_features], y [..., out_features]; W [in_features, out_features], b [out_features].

    vjp:
        As `LinearAct` with tanh. Saves x and y.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import LinearTanh
        >>> LinearTanh(3, 2)(np.ones((4, 3), np.float32)).shape
        (4, 2)

    Source: PyTorch: `torch.nn.Linear`, then `torch.nn.Tanh`.
    """

    activation = "tanh"


class LinearSigmoid(LinearAct):
    """y = 1 / (1 + exp(-(x W + b))) in one kernel; see `LinearAct`.

    Shape:
        x [..., in_features], y [..., out_features]; W [in_features, out_features], b [out_features].

    vjp:
        As `LinearAct` with sigmoid. Saves x and y.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import LinearSigmoid
        >>> LinearSigmoid(3, 2)(np.ones((4, 3), np.float32)).shape
        (4, 2)

    Source: PyTorch: `torch.nn.Linear`, then `torch.nn.Sigmoid`.
    """

    activation = "sigmoid"


class LinearSwish(LinearAct):
    """y = z sigmoid(z), z = x W + b, in one kernel; see `LinearAct`.

    Shape:
        x [..., in_features], y [..., out_features]; W [in_features, out_features], b [out_features].

    vjp:
        As `LinearAct` with silu. Saves x and z.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import LinearSwish
        >>> LinearSwish(3, 2)(np.ones((4, 3), np.float32)).shape
        (4, 2)

    Source: PyTorch: `torch.nn.Linear`, then `torch.nn.SiLU`.
    """

    activation = "silu"


class LinearMish(LinearAct):
    """y = z tanh(log(1 + e^z)), z = x W + b, in one kernel; see `LinearAct`.

    Shape:
        x [..., in_features], y [..., out_features]; W [in_features, out_features], b [out_features].

    vjp:
        As `LinearAct` with mish. Saves x and z.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import LinearMish
        >>> LinearMish(3, 2)(np.ones((4, 3), np.float32)).shape
        (4, 2)

    Source: PyTorch: `torch.nn.Linear`, then `torch.nn.Mish`.
    """

    activation = "mish"


class LinearGELU(LinearAct):
    """y = z Phi(z), z = x W + b, Phi the normal distribution (exact), in one kernel; see `LinearAct`.

    Shape:
        x [..., in_features], y [..., out_features]; W [in_features, out_features], b [out_features].

    vjp:
        As `LinearAct` with gelu. Saves x and z.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import LinearGELU
        >>> LinearGELU(3, 2)(np.ones((4, 3), np.float32)).shape
        (4, 2)

    Source: PyTorch: `torch.nn.Linear`, then `torch.nn.GELU`.
    """

    activation = "gelu"
