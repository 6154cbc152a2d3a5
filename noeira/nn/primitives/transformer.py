"""Small pieces of transformers: positions, gates, learned tokens, means over tokens."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from noeira.nn.core.arguments import positive, positives
from noeira.nn.core.errors import ShapeError
from noeira.nn.core.initializer import Initializer, Zero
from noeira.nn.core.module import Module, Width
from noeira.nn.core.param import Param
from noeira.ops.dispatch import Array, expect_grad
from noeira.ops.formula import swiglu, swiglu_grad
from noeira.ops.reduce import sum_axis, sum_to
from noeira.runtime.staging import Shape


class BiasAdd(Module):
    """Add a learned array to every sample (learned positions: BiasAdd(seq, dim)).

    y = x + b

    Args:
        shape: Shape of b, that of the input's last axes.
        init: Initializer of b; 0 by default. b is not decayed.

    Shape:
        x [..., *shape], y the same; b [*shape].

    vjp:
        dx = dy, db += sum of dy over the leading axes. Saves the shape.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import BiasAdd
        >>> BiasAdd(3)(np.ones((4, 3), np.float32)).shape
        (4, 3)

    Source: Elementary.
    """

    def __init__(self, *shape: int, init: Initializer | None = None):
        if not shape:
            raise ValueError("BiasAdd: expected the shape of the last axes, got nothing")
        self.bias = Param(
            positives(self, **{f"shape[{i}]": size for i, size in enumerate(shape)}), init=init or Zero(), decay=False
        )

    def expects(self) -> Width:
        """The last size on the last axis."""
        return -1, self.bias.shape[-1]

    def gives(self, width: Width | None) -> Width:
        """The input's width."""
        return -1, self.bias.shape[-1]

    def check_inputs(self, *inputs: Array) -> None:
        """Refuse an input whose last axes are not b's."""
        super().check_inputs(*inputs)
        shape, size = tuple(inputs[0].shape), self.bias.shape
        if len(shape) <= len(size) or shape[-len(size) :] != size:
            wanted = ", ".join(map(str, size))
            raise ShapeError(f"expected an input of shape [..., {wanted}], got {list(shape)}")

    def extra_repr(self) -> str:
        """The shape."""
        return ", ".join(map(str, self.bias.shape))

    def forward(self, x: Array) -> tuple[Array, Shape]:
        """X -> x + b; saves the shape."""
        return x + self.bias.val, x.shape

    def vjp(self, saved: Shape, grad_output: Array) -> Array:
        """Dy -> dy; adds db."""
        expect_grad(grad_output, saved)
        if self.bias.trainable:
            self.bias.accumulate(sum_to(grad_output, self.bias.shape))
        return grad_output


class SwiGLU(Module):
    """Gate the first half of the last axis by the second.

    y = u silu(v), [u, v] = x

    Args:
        hidden: Width of either half.

    Shape:
        x [..., 2 hidden], y [..., hidden].

    vjp:
        du = dy silu(v), dv = dy u silu'(v). Saves x.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import SwiGLU
        >>> SwiGLU(4)(np.ones((2, 3, 8), np.float32)).shape
        (2, 3, 4)

    Source: Shazeer 2020.
    """

    tokenwise = True

    def __init__(self, hidden: int):
        self.hidden = positive(self, "hidden", hidden)

    def expects(self) -> Width:
        """Twice `hidden` on the last axis."""
        return -1, 2 * self.hidden

    def gives(self, width: Width | None) -> Width:
        """`hidden` on the last axis."""
        return -1, self.hidden

    def extra_repr(self) -> str:
        """The width."""
        return str(self.hidden)

    def forward(self, x: Array) -> tuple[Array, Array]:
        """X [..., 2 hidden] -> y [..., hidden]; saves x."""
        return swiglu(x), x

    def vjp(self, saved: Array, grad_output: Array) -> Array:
        """Dy -> dx."""
        return swiglu_grad(grad_output, saved)


class _Conditioned(Module):
    """Base of the pieces of adaptive norms: three inputs of one width."""

    def __init__(self, features: int):
        self.features = positive(self, "features", features)

    def expects(self) -> Width:
        """`features` on the last axis."""
        return -1, self.features

    def gives(self, width: Width | None) -> Width:
        """The input's width."""
        return -1, self.features

    def extra_repr(self) -> str:
        """The width."""
        return str(self.features)


def _expect_unchanged(x: Array, y: Array) -> None:
    if tuple(y.shape) != tuple(x.shape):
        raise ShapeError(
            f"expected inputs that broadcast to the shape {list(x.shape)} of the first, got {list(y.shape)}"
        )


class Gate(_Conditioned):
    """Add a gated branch.

    y = x + gate branch

    Args:
        features: Width of the last axis.

    Shape:
        x [..., features], gate and branch the same or of shapes that broadcast to it ([B, 1, features]).

    vjp:
        dx = dy, d gate = dy branch, d branch = dy gate, the latter two summed over broadcast axes. Saves gate,
        branch and the shape.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import Gate
        >>> x, gate, branch = np.ones((3, 2, 4, 8), np.float32)
        >>> Gate(8)(x, gate, branch).shape
        (2, 4, 8)

    Source: Peebles and Xie 2023.
    """

    def forward(self, x: Array, gate: Array, branch: Array) -> tuple[Array, Any]:
        """(x, gate, branch) -> y; saves gate, branch and the shape."""
        y = x + gate * branch
        _expect_unchanged(x, y)
        return y, (gate, branch, x.shape)

    def vjp(self, saved: Any, grad_output: Array) -> tuple[Array, Array, Array]:
        """Dy -> (dx, d gate, d branch)."""
        gate, branch, shape = saved
        expect_grad(grad_output, shape)
        return grad_output, sum_to(grad_output * branch, gate.shape), sum_to(grad_output * gate, branch.shape)


class Modulate(_Conditioned):
    """Scale and shift by inputs (adaptive layer norm).

    y = x (1 + scale) + shift

    Args:
        features: Width of the last axis.

    Shape:
        x [..., features], scale and shift the same or of shapes that broadcast to it ([B, 1, features]).

    vjp:
        dx = dy (1 + scale), d scale = dy x, d shift = dy, the latter two summed over broadcast axes. Saves x and
        scale.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import Modulate
        >>> x, scale, shift = np.ones((3, 2, 4, 8), np.float32)
        >>> Modulate(8)(x, scale, shift).shape
        (2, 4, 8)

    Source: Peebles and Xie 2022.
    """

    def forward(self, x: Array, scale: Array, shift: Array) -> tuple[Array, Any]:
        """(x, scale, shift) -> y; saves x, scale and the shape of shift."""
        y = x * (scale + 1.0) + shift
        _expect_unchanged(x, y)
        return y, (x, scale, shift.shape)

    def vjp(self, saved: Any, grad_output: Array) -> tuple[Array, Array, Array]:
        """Dy -> (dx, d scale, d shift)."""
        x, scale, shape = saved
        expect_grad(grad_output, tuple(x.shape))
        return grad_output * (scale + 1.0), sum_to(grad_output * x, scale.shape), sum_to(grad_output, shape)


class TokenMean(Module):
    """Mean over the tokens.

    y = mean over s of x[:, s, :]

    Shape:
        x [B, S, D] with a known S, y [B, D].

    vjp:
        dx[:, s, :] = dy / S. Saves the shape.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import TokenMean
        >>> TokenMean()(np.ones((2, 3, 8), np.float32)).shape
        (2, 8)

    Source: Elementary.
    """

    def gives(self, width: Width | None) -> Width | None:
        """The input's width on the last axis."""
        return width

    def check_inputs(self, *inputs: Array) -> None:
        """Refuse what is not [B, S, D] with a known, positive S."""
        shape = tuple(inputs[0].shape)
        if len(shape) != 3 or not isinstance(shape[1], int) or shape[1] < 1:
            raise ShapeError(f"expected an input of shape [B, S, D] with at least one token, got {list(shape)}")

    def forward(self, x: Array) -> tuple[Array, Any]:
        """X [B, S, D] -> y [B, D]; saves the number of tokens."""
        return sum_axis(x, 1) * (1 / x.shape[1]), x.shape

    def vjp(self, saved: Any, grad_output: Array) -> Array:
        """Dy [B, D] -> dx [B, S, D]."""
        from noeira.ops.shape import reshape

        batch, tokens, width = saved
        share = reshape(grad_output, (batch, 1, width)) * (1 / tokens)
        return share + np.zeros((tokens, 1), grad_output.dtype)


def sinusoids(length: int, features: int) -> np.ndarray:
    """Fixed positions [length, features]: sin(p / 10000^(2i/features)) at 2i, the cosine at 2i + 1, in float64."""
    position = np.arange(length)[:, None]
    frequency = np.exp(-math.log(10000.0) * np.arange(0, features, 2) / features)
    table = np.zeros((length, features))
    table[:, 0::2] = np.sin(position * frequency)
    table[:, 1::2] = np.cos(position * frequency[: features // 2])
    return table


class SinusoidalPosAdd(Module):
    """Add fixed sinusoidal positions.

    y[b, p, 2i] = x + sin(p / 10000^(2i/D)), y[b, p, 2i + 1] = x + cos(p / 10000^(2i/D))

    Args:
        seq_len: Number of tokens.
        features: Width D of a token.

    Shape:
        x [..., seq_len, features], y the same.

    vjp:
        dx = dy. Saves nothing.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import SinusoidalPosAdd
        >>> SinusoidalPosAdd(3, 8)(np.ones((2, 3, 8), np.float32)).shape
        (2, 3, 8)

    Source: Vaswani et al. 2017.
    """

    def __init__(self, seq_len: int, features: int):
        self.seq_len, self.features = positives(self, seq_len=seq_len, features=features)

    def expects(self) -> Width:
        """`features` on the last axis."""
        return -1, self.features

    def gives(self, width: Width | None) -> Width:
        """The input's width."""
        return -1, self.features

    def check_inputs(self, *inputs: Array) -> None:
        """Refuse another number of tokens."""
        super().check_inputs(*inputs)
        shape = tuple(inputs[0].shape)
        if len(shape) < 3 or shape[-2] != self.seq_len:
            raise ShapeError(f"expected an input of shape [..., {self.seq_len}, {self.features}], got {list(shape)}")

    def extra_repr(self) -> str:
        """Both sizes."""
        return f"{self.seq_len}, {self.features}"

    def forward(self, x: Array) -> tuple[Array, None]:
        """X -> x + positions."""
        return x + sinusoids(self.seq_len, self.features).astype(x.dtype), None

    def vjp(self, saved: None, grad_output: Array) -> Array:
        """Dy -> dy."""
        return grad_output
