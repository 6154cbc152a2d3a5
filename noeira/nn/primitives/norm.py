"""Normalisation of rows: LayerNorm, RMSNorm, GroupNorm and their relatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from noeira.nn.core.arguments import number, positive, positive_number, positives
from noeira.nn.core.initializer import Constant, Zero
from noeira.nn.core.module import Module, Width
from noeira.nn.core.param import Param
from noeira.ops.activation import SAVES_OUTPUT, activation_grad, code
from noeira.ops.dispatch import Array, expect_grad
from noeira.ops.elementwise import sqrt
from noeira.ops.norm import min_max_norm, min_max_norm_grad, row_norm, row_norm_grad
from noeira.ops.reduce import sum_axis, sum_channels
from noeira.ops.shape import reshape
from noeira.ops.softmax import softmax, softmax_grad


def scale_param(size: int) -> Param:
    """A scale: starts at 1, is not decayed."""
    return Param((size,), init=Constant(1.0), decay=False)


def shift_param(size: int) -> Param:
    """A shift: starts at 0, is not decayed."""
    return Param((size,), init=Zero(), decay=False)


class RowNorm(Module):
    """Base of the layers that normalise the last axis."""

    tokenwise = True

    center = True
    """Whether the mean is subtracted."""
    weight: Param | None
    bias: Param | None
    eps: float | None

    def __init__(self, normalized_shape: int | Sequence[int], eps: float | None, affine: bool, bias: bool):
        width = normalized_shape
        if isinstance(width, Sequence) and not isinstance(width, str):
            if len(width) != 1:
                raise ValueError(
                    f"{type(self).__name__}: expected normalized_shape to be the width of the last axis, got "
                    f"{normalized_shape!r}; flatten the axes to be normalised together"
                )
            width = width[0]
        self.normalized_shape = positive(self, "normalized_shape", width)
        self.eps = None if eps is None and not self.center else number(self, "eps", eps, 0)
        self.weight = scale_param(self.normalized_shape) if affine else None
        self.bias = shift_param(self.normalized_shape) if affine and bias else None

    def expects(self) -> Width:
        """`normalized_shape` on the last axis."""
        return -1, self.normalized_shape

    def gives(self, width: Width | None) -> Width:
        """The input's width."""
        return -1, self.normalized_shape

    def extra_repr(self) -> str:
        """Width, eps, and what is missing."""
        missing = ", elementwise_affine=False" if self.weight is None else ""
        return (
            f"{self.normalized_shape}, eps={self.eps:g}{missing}"
            if self.eps is not None
            else (f"{self.normalized_shape}{missing}")
        )

    def _eps(self, x: Array) -> float:
        return float(np.finfo(x.dtype).eps) if self.eps is None else self.eps

    def _norm(self, x: Array, activation: str = "identity") -> tuple[Array, Array]:
        weight, bias = (None if param is None else param.val for param in (self.weight, self.bias))
        return row_norm(x, weight, bias, self._eps(x), self.center, 0, activation)

    def _grad(self, grad: Array, x: Array, stats: Array) -> Array:
        dw, db = (None if param is None else param.grd for param in (self.weight, self.bias))
        weight = None if self.weight is None else self.weight.val
        return row_norm_grad(dw, db, grad, x, stats, weight, self.center)

    def forward(self, x: Array) -> tuple[Array, Any]:
        """X -> y; saves x and each row's statistics."""
        y, stats = self._norm(x)
        return y, (x, stats)

    def vjp(self, saved: Any, grad_output: Array) -> Array:
        """Dy -> dx; adds dw and db."""
        return self._grad(grad_output, *saved)


class LayerNorm(RowNorm):
    """Normalise the last axis to mean 0 and variance 1, then scale and shift.

    y = (x - mean) / sqrt(var + eps) w + b, with the biased variance

    Args:
        normalized_shape: Width of the last axis.
        eps: Added to the variance.
        elementwise_affine: Whether there are w (starts at 1) and b (starts at 0); neither is decayed.
        bias: Whether there is a b.

    Shape:
        x [..., normalized_shape], y the same; w and b [normalized_shape].

    vjp:
        With n = (x - mean) rstd and g = dy w: dx = rstd (g - mean(g) - n mean(g n)), dw += sum of dy n over rows,
        db += sum of dy over rows. Saves x and three numbers a row (the mean in two parts, rstd).

    Example:
        >>> import numpy as np
        >>> from noeira.nn import LayerNorm
        >>> f"{LayerNorm(4)(np.array([[40000, 40001, 40002, 40003]], np.float32))[0, 0]:.3f}"
        '-1.342'

    Source: Ba, Kiros, Hinton 2016.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
    ):
        super().__init__(normalized_shape, eps, elementwise_affine, bias)


class LayerNormNoAffine(RowNorm):
    """LayerNorm without parameters: y = (x - mean) / sqrt(var + eps).

    Args:
        normalized_shape: Width of the last axis.
        eps: Added to the variance.

    Shape:
        x [..., normalized_shape], y the same.

    vjp:
        dx = rstd (dy - mean(dy) - n mean(dy n)), n = (x - mean) rstd. Saves x and three numbers a row.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import LayerNormNoAffine
        >>> LayerNormNoAffine(5)(np.ones((4, 5), np.float32)).shape
        (4, 5)

    Source: Ba et al. 2016.
    """

    def __init__(self, normalized_shape: int | Sequence[int], eps: float = 1e-5):
        super().__init__(normalized_shape, eps, False, False)

    def extra_repr(self) -> str:
        """Width and eps."""
        return f"{self.normalized_shape}, eps={self.eps:g}"


class LayerNormAct(RowNorm):
    """LayerNorm and an activation in one kernel.

    y = f(z), z = (x - mean) / sqrt(var + eps) w + b

    Args:
        normalized_shape: Width of the last axis.
        activation: Name of f, out of `ops.activation.ACTIVATIONS`.
        eps: Added to the variance.

    Shape:
        x [..., normalized_shape], y the same; w and b [normalized_shape].

    vjp:
        dz = dy f'(.), then as LayerNorm. Saves x, three numbers a row, and y for relu, tanh and sigmoid; for the
        others z is computed again.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import LayerNormAct
        >>> LayerNormAct(5, "tanh")(np.ones((4, 5), np.float32)).shape
        (4, 5)

    Source: Ba et al. 2016.
    """

    def __init__(self, normalized_shape: int | Sequence[int], activation: str, eps: float = 1e-5):
        super().__init__(normalized_shape, eps, True, True)
        code(activation)
        self.function = activation

    def extra_repr(self) -> str:
        """Width, activation and eps."""
        return f"{self.normalized_shape}, {self.function!r}, eps={self.eps:g}"

    def forward(self, x: Array) -> tuple[Array, Any]:
        """X -> f(z); saves x, the statistics, and y where f' is a function of it."""
        y, stats = self._norm(x, self.function)
        return y, (x, stats, y) if self.function in SAVES_OUTPUT else (x, stats)

    def vjp(self, saved: Any, grad_output: Array) -> Array:
        """Dy -> dx; adds dw and db."""
        x, stats, *output = saved
        kept = output[0] if output else self._norm(x)[0]
        return self._grad(activation_grad(grad_output, kept, self.function), x, stats)


class RMSNorm(RowNorm):
    """Divide the last axis by its root mean square, then scale.

    y = x / sqrt(mean(x^2) + eps) w

    Args:
        normalized_shape: Width of the last axis.
        eps: Added to the mean square; None takes the machine epsilon of x's dtype, as PyTorch does (Llama uses 1e-5).
        elementwise_affine: Whether there is a w (starts at 1, not decayed).

    Shape:
        x [..., normalized_shape], y the same; w [normalized_shape].

    vjp:
        With n = x rstd and g = dy w: dx = rstd (g - n mean(g n)), dw += sum of dy n over rows. Saves x and three
        numbers a row.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import RMSNorm
        >>> RMSNorm(5)(np.ones((4, 5), np.float32)).shape
        (4, 5)

    Source: Zhang and Sennrich 2019.
    """

    center = False

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float | None = None, elementwise_affine: bool = True
    ):
        super().__init__(normalized_shape, eps, elementwise_affine, False)


class GroupNorm(Module):
    """Normalise groups of channels, all positions together, then scale and shift each channel.

    y = (x - mean) / sqrt(var + eps) w_c + b_c, mean and biased variance over a group's channels and positions

    Args:
        num_groups: Number of groups; 1 normalises a whole sample, `num_channels` each channel (instance norm).
        num_channels: Channels, a multiple of num_groups.
        eps: Added to the variance.
        affine: Whether there are w (starts at 1) and b (starts at 0); neither is decayed.

    Shape:
        x [B, C, ...], y the same; w and b [C].

    vjp:
        As LayerNorm with the group as the row; dw_c and db_c are summed over samples and positions. Saves x and three
        numbers a group.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import GroupNorm
        >>> GroupNorm(2, 6)(np.ones((4, 6, 5, 5), np.float32)).shape
        (4, 6, 5, 5)

    Source: Wu and He 2018.
    """

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True):
        self.num_groups, self.num_channels = positives(self, num_groups=num_groups, num_channels=num_channels)
        if num_channels % num_groups:
            raise ValueError(f"GroupNorm: expected num_channels to be a multiple of {num_groups}, got {num_channels}")
        self.eps = number(self, "eps", eps, 0)
        self.weight = scale_param(self.num_channels) if affine else None
        self.bias = shift_param(self.num_channels) if affine else None

    def expects(self) -> Width:
        """`num_channels` on axis 1."""
        return 1, self.num_channels

    def gives(self, width: Width | None) -> Width:
        """The input's width."""
        return 1, self.num_channels

    def extra_repr(self) -> str:
        """Groups, channels, eps, and the absence of parameters."""
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps:g}" + ("" if self.weight else ", affine=False")

    def forward(self, x: Array) -> tuple[Array, Any]:
        """X [B, C, ...] -> y; saves x and the statistics."""
        weight, bias = (None if param is None else param.val for param in (self.weight, self.bias))
        y, stats = row_norm(x, weight, bias, self.eps, True, self.num_groups)
        return y, (x, stats)

    def vjp(self, saved: Any, grad_output: Array) -> Array:
        """Dy -> dx; adds dw and db."""
        dw, db = (None if param is None else param.grd for param in (self.weight, self.bias))
        weight = None if self.weight is None else self.weight.val
        x, stats = saved
        return row_norm_grad(dw, db, grad_output, x, stats, weight, True, self.num_groups)


class ConvRMSNorm(Module):
    """RMSNorm over the channels of each position of a map.

    y_c = x_c / sqrt(mean over channels of x^2 + eps) w_c

    Args:
        num_channels: Channels.
        eps: Added to the mean square.

    Shape:
        x [B, C, ...], y the same; w [C] (starts at 1, not decayed).

    vjp:
        With r = 1 / sqrt(mean(x^2) + eps) and g = dy w: dx = r (g - x r^2 mean(g x)), dw_c += sum of dy x r over
        samples and positions. Saves x.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import ConvRMSNorm
        >>> ConvRMSNorm(6)(np.ones((4, 6, 5, 5), np.float32)).shape
        (4, 6, 5, 5)

    Source: Zhang and Sennrich 2019, over the channels of each position.
    """

    def __init__(self, num_channels: int, eps: float = 1e-4):
        self.num_channels, self.eps = positive(self, "num_channels", num_channels), number(self, "eps", eps, 0)
        self.weight = scale_param(self.num_channels)

    def expects(self) -> Width:
        """`num_channels` on axis 1."""
        return 1, self.num_channels

    def gives(self, width: Width | None) -> Width:
        """The input's width."""
        return 1, self.num_channels

    def extra_repr(self) -> str:
        """Channels and eps."""
        return f"{self.num_channels}, eps={self.eps:g}"

    def _parts(self, x: Array) -> tuple[Array, Array]:
        mean = sum_axis(x * x, 1, keepdims=True) * (1 / self.num_channels)
        return 1.0 / sqrt(mean + self.eps), reshape(self.weight.val, (self.num_channels, *(1,) * (x.ndim - 2)))

    def forward(self, x: Array) -> tuple[Array, Array]:
        """X [B, C, ...] -> y; saves x."""
        r, w = self._parts(x)
        return x * r * w, x

    def vjp(self, saved: Array, grad_output: Array) -> Array:
        """Dy -> dx; adds dw."""
        x = saved
        expect_grad(grad_output, tuple(x.shape))
        r, w = self._parts(x)
        n, g = x * r, grad_output * w
        self.weight.accumulate(sum_channels(grad_output * n))
        return r * (g - n * (sum_axis(g * n, 1, keepdims=True) * (1 / self.num_channels)))


class SimNorm(Module):
    """Softmax inside each group of features: every group becomes a point of a simplex.

    y = softmax of each run of features / groups neighbours

    Args:
        features: Width of the last axis.
        groups: Number of groups, a divisor of features.

    Shape:
        x [..., features], y the same.

    vjp:
        dx = y (dy - sum of y dy over the group). Saves y.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import SimNorm
        >>> SimNorm(12, 3)(np.ones((4, 12), np.float32)).shape
        (4, 12)

    Source: Lavoie et al. 2022; TD-MPC2, Hansen et al. 2024.
    """

    tokenwise = True

    def __init__(self, features: int, groups: int):
        self.features, self.groups = positives(self, features=features, groups=groups)
        if features % groups:
            raise ValueError(f"SimNorm: expected features to be a multiple of {groups}, got {features}")

    def expects(self) -> Width:
        """`features` on the last axis."""
        return -1, self.features

    def gives(self, width: Width | None) -> Width:
        """The input's width."""
        return -1, self.features

    def extra_repr(self) -> str:
        """Features and groups."""
        return f"{self.features}, {self.groups}"

    def _split(self, x: Array) -> Array:
        return reshape(x, (*x.shape[:-1], self.groups, self.features // self.groups))

    def forward(self, x: Array) -> tuple[Array, Array]:
        """X -> y; saves y."""
        y = reshape(softmax(self._split(x)), x.shape)
        return y, y

    def vjp(self, saved: Array, grad_output: Array) -> Array:
        """Dy -> dx."""
        return reshape(softmax_grad(self._split(grad_output), self._split(saved)), saved.shape)


class MinMaxNorm(Module):
    """Scale each row to [0, 1].

    y = (x - min) / max(max - min, eps)

    Args:
        features: Width of the last axis.
        eps: Least width of a row; a row no wider passes no gradient.

    Shape:
        x [..., features], y the same.

    vjp:
        With s = 1 / (max - min): dx = s dy, plus s (sum dy y - sum dy) at the first minimum and - s sum dy y at the
        first maximum. Saves x.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import MinMaxNorm
        >>> print(MinMaxNorm(3)(np.array([[1.0, 2.0, 5.0]], np.float32)).round(3))
        [[0.   0.25 1.  ]]

    Source: Schrittwieser et al. 2020.
    """

    tokenwise = True

    def __init__(self, features: int, eps: float = 1e-5):
        self.features, self.eps = positive(self, "features", features), positive_number(self, "eps", eps)

    def expects(self) -> Width:
        """`features` on the last axis."""
        return -1, self.features

    def gives(self, width: Width | None) -> Width:
        """The input's width."""
        return -1, self.features

    def extra_repr(self) -> str:
        """Features and eps."""
        return f"{self.features}, eps={self.eps:g}"

    def forward(self, x: Array) -> tuple[Array, Array]:
        """X -> y; saves x."""
        return min_max_norm(x, self.eps), x

    def vjp(self, saved: Array, grad_output: Array) -> Array:
        """Dy -> dx."""
        return min_max_norm_grad(grad_output, saved, self.eps)
