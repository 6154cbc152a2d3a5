"""Elementwise layers with parameters, and the way to add one from a formula and its derivative."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

from noeira.nn.core.arguments import number, positive_number
from noeira.nn.core.errors import ShapeError
from noeira.nn.core.module import Module, Width
from noeira.ops.dispatch import Array, broadcast, expect_grad
from noeira.ops.formula import formula, formula_grad
from noeira.ops.reduce import sum_to
from noeira.ops.tokens import zeros_like


class _Same(Module):
    """Base: the output has the input's shape."""

    tokenwise = True

    def gives(self, width: Width | None) -> Width | None:
        """The input's width."""
        return width


class Formula(_Same):
    """Base of the layers y = f(x) that `ops.formula` knows.

    Shape:
        Any; the output has the input's.

    vjp:
        dx = dy f'(x). Saves x.

    Source: The functions of `noeira.ops.formula`.
    """

    function: ClassVar[str]
    """Name of f."""

    def _options(self) -> tuple[float, float]:
        return 0.0, 0.0

    def forward(self, x: Array) -> tuple[Array, Array]:
        """X -> f(x); saves x."""
        return formula(x, self.function, *self._options()), x

    def vjp(self, saved: Array, grad_output: Array) -> Array:
        """Dy -> dy f'(x)."""
        return formula_grad(grad_output, saved, self.function, *self._options())


class LeakyReLU(Formula):
    """y = x, or negative_slope x below 0; the derivative at 0 is the slope.

    Args:
        negative_slope: The slope below 0.

    Shape:
        Any; the output has the input's.

    vjp:
        dx = dy where x > 0, else negative_slope dy. Saves x.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import LeakyReLU
        >>> print(LeakyReLU()(np.array([-1.0, 2.0], np.float32)).round(3))
        [-0.01  2.  ]

    Source: Maas et al. 2013. PyTorch: `torch.nn.LeakyReLU`.
    """

    function = "leaky_relu"

    def __init__(self, negative_slope: float = 0.01):
        self.negative_slope = number(self, "negative_slope", negative_slope)

    def _options(self) -> tuple[float, float]:
        return self.negative_slope, 0.0

    def extra_repr(self) -> str:
        """The slope."""
        return f"negative_slope={self.negative_slope:g}"


class ELU(Formula):
    """y = x, or alpha (e^x - 1) below 0 (Clevert et al. 2015).

    Args:
        alpha: What y tends to, negated, far below 0.

    Shape:
        Any; the output has the input's.

    vjp:
        dx = dy where x > 0, else dy alpha e^x. Saves x.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import ELU
        >>> print(ELU()(np.array([-1.0, 2.0], np.float32)).round(3))
        [-0.632  2.   ]

    Source: Clevert et al. 2015. PyTorch: `torch.nn.ELU`.
    """

    function = "elu"

    def __init__(self, alpha: float = 1.0):
        self.alpha = number(self, "alpha", alpha)

    def _options(self) -> tuple[float, float]:
        return self.alpha, 0.0

    def extra_repr(self) -> str:
        """Alpha."""
        return f"alpha={self.alpha:g}"


class Softplus(Formula):
    """y = log(1 + e^{beta x}) / beta, and x itself where beta x > threshold.

    Args:
        beta: Sharpness of the bend, positive.
        threshold: Where the function counts as linear.

    Shape:
        Any; the output has the input's.

    vjp:
        dx = dy / (1 + e^{-beta x}), and dy where beta x > threshold. Saves x.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import Softplus
        >>> print(Softplus()(np.array([0.0, 1.0], np.float32)).round(3))
        [0.693 1.313]

    Source: Dugas et al. 2001. PyTorch: `torch.nn.Softplus`.
    """

    function = "softplus"

    def __init__(self, beta: float = 1.0, threshold: float = 20.0):
        self.beta = positive_number(self, "beta", beta)
        self.threshold = number(self, "threshold", threshold, high=math.inf)

    def _options(self) -> tuple[float, float]:
        return self.beta, self.threshold

    def extra_repr(self) -> str:
        """Beta and threshold."""
        return f"beta={self.beta:g}, threshold={self.threshold:g}"


class Symlog(Formula):
    """y = sign(x) log(1 + |x|), the inverse of Symexp (Hafner et al. 2023).

    Shape:
        Any; the output has the input's.

    vjp:
        dx = dy / (1 + |x|). Saves x.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import Symlog
        >>> print(Symlog()(np.array([-1.0, 0.0], np.float32)).round(3))
        [-0.693  0.   ]

    Source: Hafner et al. 2023.
    """

    function = "symlog"


class Symexp(Formula):
    """y = sign(x) (e^|x| - 1), the inverse of Symlog (Hafner et al. 2023).

    Shape:
        Any; the output has the input's.

    vjp:
        dx = dy e^|x|. Saves x.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import Symexp
        >>> print(Symexp()(np.array([-1.0, 0.0], np.float32)).round(3))
        [-1.718  0.   ]

    Source: Hafner et al. 2023.
    """

    function = "symexp"


class Clamp(Formula):
    """y = x limited to [min, max]; the derivative is 1 inside and on the borders, 0 outside.

    Args:
        min: Lower limit.
        max: Upper limit.

    Shape:
        Any; the output has the input's.

    vjp:
        dx = dy where min <= x <= max, else 0. Saves x.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import Clamp
        >>> print(Clamp(-1.0, 1.0)(np.array([-3.0, 0.5], np.float32)).round(3))
        [-1.   0.5]

    Source: PyTorch: `torch.clamp`.
    """

    function = "clamp"

    def __init__(self, min: float, max: float):
        self.min = number(self, "min", min, -math.inf, math.inf)
        self.max = number(self, "max", max, -math.inf, math.inf)
        if min > max:
            raise ValueError(f"Clamp: expected min <= max, got {min!r} and {max!r}")

    def _options(self) -> tuple[float, float]:
        return self.min, self.max

    def extra_repr(self) -> str:
        """Both limits."""
        return f"{self.min:g}, {self.max:g}"


class Scale(_Same):
    """y = multiplier x.

    Args:
        multiplier: A constant; changing the attribute changes the program.

    Shape:
        Any; the output has the input's.

    vjp:
        dx = multiplier dy. Saves nothing.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import Scale
        >>> print(Scale(2.0)(np.array([-3.0, 0.5], np.float32)).round(3))
        [-6.  1.]

    Source: Elementary.
    """

    def __init__(self, multiplier: float = 1.0):
        self.multiplier = number(self, "multiplier", multiplier)

    def extra_repr(self) -> str:
        """The multiplier."""
        return f"{self.multiplier:g}"

    def forward(self, x: Array) -> tuple[Array, None]:
        """X -> multiplier x."""
        return x * self.multiplier, None

    def vjp(self, saved: None, grad_output: Array) -> Array:
        """Dy -> multiplier dy."""
        return grad_output * self.multiplier


class CenterHalf(_Same):
    """y = x - 1/2: pixels in [0, 1] become centred.

    Shape:
        Any; the output has the input's.

    vjp:
        dx = dy. Saves nothing.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import CenterHalf
        >>> print(CenterHalf()(np.array([0.0, 1.0], np.float32)).round(3))
        [-0.5  0.5]

    Source: Elementary.
    """

    def forward(self, x: Array) -> tuple[Array, None]:
        """X -> x - 1/2."""
        return x - 0.5, None

    def vjp(self, saved: None, grad_output: Array) -> Array:
        """Dy -> dy."""
        return grad_output


class StopGrad(_Same):
    """y = x, through which no gradient passes.

    Shape:
        Any; the output has the input's.

    vjp:
        dx = 0, whatever dy is. Saves nothing.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import StopGrad
        >>> print(StopGrad()(np.array([0.0, 1.0], np.float32)).round(3))
        [0. 1.]

    Source: PyTorch: `torch.Tensor.detach`.
    """

    def forward(self, x: Array) -> tuple[Array, None]:
        """X -> x."""
        return x, None

    def vjp(self, saved: None, grad_output: Array) -> Array:
        """Dy -> 0."""
        return zeros_like(grad_output)


class GradGate(_Same):
    """y = x, with the gradient times a gate.

    Args:
        gate: Factor of the gradient: 1 lets it pass, 0 stops it (NaN and inf too), -1 reverses it.

    Shape:
        Any; the output has the input's.

    vjp:
        dx = gate dy. Saves nothing.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import GradGate
        >>> print(GradGate(0.1)(np.array([0.0, 1.0], np.float32)))
        [0. 1.]

    Source: Elementary.
    """

    def __init__(self, gate: float = 1.0):
        self.gate = number(self, "gate", gate)

    def extra_repr(self) -> str:
        """The gate."""
        return f"{self.gate:g}"

    def forward(self, x: Array) -> tuple[Array, None]:
        """X -> x."""
        return x, None

    def vjp(self, saved: None, grad_output: Array) -> Array:
        """Dy -> gate dy."""
        if self.gate == 1:
            return grad_output
        return zeros_like(grad_output) if self.gate == 0 else grad_output * self.gate


class Elementwise(_Same):
    """A layer of your own from a formula and its derivative, both written with `noeira.ops`.

    y = f(x)

    Args:
        function: f, from an array or staged value to another of the same shape.
        derivative: f' as a function of x, or of y with `from_output`.
        from_output: Whether `derivative` takes y: then y is saved instead of x.

    Shape:
        Any; the output has the input's.

    vjp:
        dx = dy f'(x). Saves x, or y.

    Example:
        >>> import numpy as np
        >>> from noeira import ops
        >>> from noeira.nn import Elementwise
        >>> square = Elementwise(lambda x: x * x, lambda x: 2 * x)
        >>> y, saved = square.forward(np.array([3.0]))
        >>> float(y[0]), float(square.vjp(saved, np.array([1.0]))[0])
        (9.0, 6.0)

    Source: Elementary.
    """

    def __init__(
        self,
        function: Callable[[Array], Array],
        derivative: Callable[[Array], Array],
        *,
        from_output: bool = False,
    ):
        for name, value in (("function", function), ("derivative", derivative)):
            if not callable(value):
                raise ValueError(f"Elementwise: expected {name} to be callable, got {value!r}")
        self.function, self.derivative, self.from_output = function, derivative, from_output

    def extra_repr(self) -> str:
        """Name of the function."""
        return getattr(self.function, "__name__", type(self.function).__name__)

    def forward(self, x: Array) -> tuple[Array, Array]:
        """X -> f(x); saves x or y."""
        y = self.function(x)
        if tuple(y.shape) != tuple(x.shape):
            raise ShapeError(f"expected the function to give shape {list(x.shape)}, got {list(y.shape)}")
        return y, y if self.from_output else x

    def vjp(self, saved: Array, grad_output: Array) -> Array:
        """Dy -> dy f'."""
        expect_grad(grad_output, tuple(saved.shape))
        return grad_output * self.derivative(saved)


class BinaryElementwise(Module):
    """A layer of two inputs of your own from a formula and its derivatives, written with `noeira.ops`.

    y = f(a, b), with broadcasting

    Args:
        function: f.
        derivatives: Gives (df/da, df/db) for (a, b).

    Shape:
        a and b of shapes that broadcast; y the broadcast shape.

    vjp:
        da = dy df/da and db = dy df/db, summed over the axes that were broadcast. Saves a and b.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import BinaryElementwise
        >>> product = BinaryElementwise(lambda a, b: a * b, lambda a, b: (b, a))
        >>> y, saved = product.forward(np.ones((2, 3)), np.full((3,), 4.0))
        >>> product.vjp(saved, np.ones((2, 3)))[1].tolist()
        [2.0, 2.0, 2.0]

    Source: Elementary.
    """

    def __init__(
        self,
        function: Callable[[Array, Array], Array],
        derivatives: Callable[[Array, Array], tuple[Array, Array]],
    ):
        for name, value in (("function", function), ("derivatives", derivatives)):
            if not callable(value):
                raise ValueError(f"BinaryElementwise: expected {name} to be callable, got {value!r}")
        self.function, self.derivatives = function, derivatives

    def extra_repr(self) -> str:
        """Name of the function."""
        return getattr(self.function, "__name__", type(self.function).__name__)

    def forward(self, a: Array, b: Array) -> tuple[Array, Any]:
        """(a, b) -> f(a, b); saves both."""
        return self.function(a, b), (a, b)

    def vjp(self, saved: Any, grad_output: Array) -> tuple[Array, Array]:
        """Dy -> (da, db)."""
        a, b = saved
        expect_grad(grad_output, broadcast(tuple(a.shape), tuple(b.shape)))
        da, db = self.derivatives(a, b)
        return sum_to(grad_output * da, a.shape), sum_to(grad_output * db, b.shape)
