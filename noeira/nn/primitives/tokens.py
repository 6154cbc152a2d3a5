"""Tokens that do not come from the data: learned, positional, repeated, or put in place of what is hidden."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from noeira.nn.core import context
from noeira.nn.core.arguments import positive, positives, probability
from noeira.nn.core.errors import ShapeError
from noeira.nn.core.initializer import Initializer, Normal
from noeira.nn.core.module import Module, Width
from noeira.nn.core.param import Param
from noeira.nn.primitives.transformer import sinusoids
from noeira.ops.dispatch import Array, expect_grad
from noeira.ops.elementwise import where
from noeira.ops.pieces import broadcast_to, concat, split
from noeira.ops.reduce import sum_axis, sum_to
from noeira.ops.shape import reshape
from noeira.ops.tokens import dropped_tokens, repeat_batch, zeros_like
from noeira.runtime.staging import Shape


def _no_gradient(x: Array) -> Array | None:
    """The gradient of an input of which only the shape is read."""
    return zeros_like(x) if np.issubdtype(x.dtype, np.floating) else None


class LearnedQueries(Module):
    """Learned tokens, the same for every sample; of the input only the number of samples is read.

    y[b, i] = Q[i]

    Args:
        num_queries: Number of tokens.
        embed_dim: Width of a token.
        init: Initializer of Q; N(0, 1) by default: queries that start alike stay alike. Q is not decayed.

    Shape:
        x [B, ...] of any dtype, y [B, num_queries, embed_dim]; Q [num_queries, embed_dim].

    vjp:
        dQ[i] += sum over b of dy[b, i]; dx = 0 (None for integers). Saves x.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import LearnedQueries
        >>> LearnedQueries(5, 8)(np.zeros((2, 3), np.float32)).shape
        (2, 5, 8)

    Source: Carion et al. 2020 (DETR's object queries).
    """

    integers = (0,)

    def __init__(self, num_queries: int, embed_dim: int, *, init: Initializer | None = None):
        shape = positives(self, num_queries=num_queries, embed_dim=embed_dim)
        self.weight = Param(shape, init=init or Normal(), decay=False)

    def gives(self, width: Width | None) -> Width:
        """`embed_dim` on the last axis."""
        return -1, self.weight.shape[1]

    def check_inputs(self, *inputs: Array) -> None:
        """Refuse what has no samples."""
        _check_samples(*inputs)

    def extra_repr(self) -> str:
        """Both sizes."""
        return ", ".join(map(str, self.weight.shape))

    def forward(self, x: Array) -> tuple[Array, Array]:
        """X [B, ...] -> y [B, num_queries, embed_dim]; saves x."""
        return repeat_batch(self.weight.val, x), x

    def vjp(self, saved: Array, grad_output: Array) -> Array | None:
        """Dy -> 0; adds dQ."""
        expect_grad(grad_output, (saved.shape[0], *self.weight.shape))
        if self.weight.trainable:
            self.weight.accumulate(sum_axis(grad_output, 0))
        return _no_gradient(saved)


class LearnedTokens(Module):
    """Learned tokens before or after those of every sample (a class token, registers).

    y = [T, x], or [x, T]

    Args:
        num_tokens: Number of learned tokens.
        embed_dim: Width of a token.
        prepend: Whether they come first.
        init: Initializer of T; N(0, 0.02^2) by default. T is not decayed.

    Shape:
        x [B, S, embed_dim] with a known S, y [B, S + num_tokens, embed_dim]; T [num_tokens, embed_dim].

    vjp:
        dx = dy at x's tokens, dT += sum over b of dy at the others. Saves the shape.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import LearnedTokens
        >>> LearnedTokens(1, 8)(np.zeros((2, 3, 8), np.float32)).shape
        (2, 4, 8)

    Source: Devlin et al. 2018; Dosovitskiy et al. 2020; Darcet et al. 2023 (registers).
    """

    def __init__(self, num_tokens: int, embed_dim: int, prepend: bool = True, *, init: Initializer | None = None):
        shape = positives(self, num_tokens=num_tokens, embed_dim=embed_dim)
        self.weight = Param(shape, init=init or Normal(0.0, 0.02), decay=False)
        self.prepend = bool(prepend)

    def expects(self) -> Width:
        """`embed_dim` on the last axis."""
        return -1, self.weight.shape[1]

    def gives(self, width: Width | None) -> Width:
        """The input's width."""
        return -1, self.weight.shape[1]

    def check_inputs(self, *inputs: Array) -> None:
        """Refuse other ranks, and an unknown number of tokens."""
        super().check_inputs(*inputs)
        shape = tuple(inputs[0].shape)
        if len(shape) != 3 or isinstance(shape[1], str):
            raise ShapeError(
                f"expected an input of shape [B, S, {self.weight.shape[1]}] with a known S, got {list(shape)}"
            )

    def extra_repr(self) -> str:
        """Both sizes, and where they go."""
        return ", ".join(map(str, self.weight.shape)) + ("" if self.prepend else ", prepend=False")

    def forward(self, x: Array) -> tuple[Array, Shape]:
        """X [B, S, D] -> y [B, S + num_tokens, D]; saves the shape."""
        learned = repeat_batch(self.weight.val, x)
        return concat([learned, x] if self.prepend else [x, learned], 1), x.shape

    def vjp(self, saved: Shape, grad_output: Array) -> Array:
        """Dy -> dx; adds dT."""
        count, batch, tokens, width = self.weight.shape[0], saved[0], int(saved[1]), saved[2]
        expect_grad(grad_output, (batch, count + tokens, width))
        if self.prepend:
            learned, grad = split(grad_output, (count, tokens), 1)
        else:
            grad, learned = split(grad_output, (tokens, count), 1)
        if self.weight.trainable:
            self.weight.accumulate(sum_axis(learned, 0))
        return grad


class BroadcastTokens(Module):
    """One token for each sample, repeated.

    y[b, i] = x[b]

    Args:
        num_tokens: How often.

    Shape:
        x [B, D], y [B, num_tokens, D].

    vjp:
        dx[b] = sum over i of dy[b, i]. Saves nothing.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import BroadcastTokens
        >>> BroadcastTokens(3)(np.zeros((2, 8), np.float32)).shape
        (2, 3, 8)

    Source: Watters et al. 2019 (the spatial broadcast decoder).
    """

    def __init__(self, num_tokens: int):
        self.num_tokens = positive(self, "num_tokens", num_tokens)

    def gives(self, width: Width | None) -> Width | None:
        """The input's width."""
        return width

    def check_inputs(self, *inputs: Array) -> None:
        """Refuse other ranks."""
        super().check_inputs(*inputs)
        if len(inputs[0].shape) != 2:
            raise ShapeError(f"expected an input of shape [B, D], got {list(inputs[0].shape)}")

    def extra_repr(self) -> str:
        """The number of tokens."""
        return str(self.num_tokens)

    def forward(self, x: Array) -> tuple[Array, None]:
        """X [B, D] -> y [B, num_tokens, D]."""
        batch, width = x.shape
        return broadcast_to(reshape(x, (batch, 1, width)), (batch, self.num_tokens, width)), None

    def vjp(self, saved: None, grad_output: Array) -> Array:
        """Dy [B, num_tokens, D] -> dx [B, D]."""
        return sum_axis(grad_output, 1)


class _Positions(Module):
    """Base of fixed tokens, the same for every sample; of the input only the number of samples and dtype are read."""

    def _table(self) -> np.ndarray:
        raise NotImplementedError

    def check_inputs(self, *inputs: Array) -> None:
        """Refuse what has no samples, and integers, whose dtype the positions cannot have."""
        _check_samples(*inputs)
        if not np.issubdtype(inputs[0].dtype, np.floating):
            raise ShapeError(f"expected a floating-point input, got {inputs[0].dtype} {list(inputs[0].shape)}")

    def forward(self, x: Array) -> tuple[Array, Array]:
        """X [B, ...] -> y [B, tokens, D]; saves x."""
        return repeat_batch(self._table().astype(x.dtype), x), x

    def vjp(self, saved: Array, grad_output: Array) -> Array:
        """Dy -> 0."""
        expect_grad(grad_output, (saved.shape[0], *self._table().shape))
        return zeros_like(saved)


class SinusoidalPos1DTokens(_Positions):
    """Fixed sinusoidal positions as tokens of their own, for keys and queries that values do not share.

    y[b, p, 2i] = sin(p / 10000^(2i/D)), y[b, p, 2i + 1] = cos(p / 10000^(2i/D))

    Args:
        seq_len: Number of tokens.
        features: Width D of a token.

    Shape:
        x [B, ...], of which only B and the dtype are read; y [B, seq_len, features].

    vjp:
        dx = 0. Saves x.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import SinusoidalPos1DTokens
        >>> SinusoidalPos1DTokens(2, 4)(np.zeros((1, 3), np.float32)).round(2).tolist()[0][0]
        [0.0, 1.0, 0.0, 1.0]

    Source: Vaswani et al. 2017; Zhao et al. 2023 (ACT).
    """

    def __init__(self, seq_len: int, features: int):
        self.seq_len, self.features = positives(self, seq_len=seq_len, features=features)

    def gives(self, width: Width | None) -> Width:
        """`features` on the last axis."""
        return -1, self.features

    def extra_repr(self) -> str:
        """Both sizes."""
        return f"{self.seq_len}, {self.features}"

    def _table(self) -> np.ndarray:
        return sinusoids(self.seq_len, self.features)


class SinusoidalPos2DTokens(_Positions):
    """Fixed sinusoidal positions of the cells of a map as tokens, row by row: half of the features for either axis.

    With h = 2 pi (row + 1) / (height + 1e-6), w = 2 pi (column + 1) / (width + 1e-6), n = D / 2 and
    s(a)_2i = sin(a / 10000^(2i/n)), s(a)_2i+1 = cos(a / 10000^(2i/n)): y[b, row width + column] = [s(h), s(w)]

    Args:
        height: Rows of the map.
        width: Columns of the map.
        features: Width D of a token, even.
        repeats: Maps behind each other, all with the same positions (several cameras).

    Shape:
        x [B, ...], of which only B and the dtype are read; y [B, repeats height width, features].

    vjp:
        dx = 0. Saves x.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import SinusoidalPos2DTokens
        >>> SinusoidalPos2DTokens(3, 4, 8)(np.zeros((2, 5), np.float32)).shape
        (2, 12, 8)

    Source: Carion et al. 2020 (DETR, normalised positions); Zhao et al. 2023 (ACT).
    """

    def __init__(self, height: int, width: int, features: int, repeats: int = 1):
        self.height, self.width = positives(self, height=height, width=width)
        self.features, self.repeats = positives(self, features=features, repeats=repeats)
        if features % 2:
            raise ValueError(f"SinusoidalPos2DTokens: expected an even number of features, got {features}")

    def gives(self, width: Width | None) -> Width:
        """`features` on the last axis."""
        return -1, self.features

    def extra_repr(self) -> str:
        """The sizes."""
        repeats = "" if self.repeats == 1 else f", repeats={self.repeats}"
        return f"{self.height}, {self.width}, {self.features}{repeats}"

    def _axis(self, count: int) -> np.ndarray:
        """[count, features / 2]."""
        half = self.features // 2
        angle = 2 * math.pi * np.arange(1, count + 1)[:, None] / (count + 1e-6)
        angle = angle / 10000.0 ** (2 * (np.arange(half) // 2) / half)
        return np.where(np.arange(half) % 2 == 0, np.sin(angle), np.cos(angle))

    def _table(self) -> np.ndarray:
        shape = (self.height, self.width, self.features // 2)
        rows = np.broadcast_to(self._axis(self.height)[:, None], shape)
        columns = np.broadcast_to(self._axis(self.width)[None], shape)
        table = np.concatenate([rows, columns], axis=-1).reshape(-1, self.features)
        return np.tile(table, (self.repeats, 1))


class MAEReplacer(Module):
    """Put a learned token in place of a random part of each frame's tokens while training (a masked autoencoder).

    y[f, i] = m where token i of frame f is dropped, x[f, i] elsewhere; a frame drops each of its tokens with
    probability p_f ~ U(p_min, p_max)

    The decisions are a pure function of (seed, layer, step, frame, token), made in integers: the same on every device.

    Args:
        embed_dim: Width of a token.
        p_min: Least probability of dropping.
        p_max: Largest probability of dropping.
        init: Initializer of m; N(0, 0.02^2) by default. m is not decayed.

    Shape:
        x [..., N, embed_dim] with a known N: frames of N tokens, [B, N, D] or [B, T, N, D]; y the same;
        m [embed_dim]. What was dropped is the saved value: booleans [..., N, 1], None in evaluation.

    vjp:
        dx = dy where the token was kept, 0 elsewhere; dm += sum of dy over the dropped tokens. Saves which were
        dropped.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import MAEReplacer
        >>> layer = MAEReplacer(8, 0.5, 0.5)
        >>> y, dropped = layer.forward(np.ones((4, 64, 8), np.float32))
        >>> bool(0.3 < dropped.mean() < 0.7), layer.eval().forward(y)[1]
        (True, None)

    Source: He et al. 2021; Hafner, Yan, Lillicrap 2025 (a rate for each frame).
    """

    def __init__(self, embed_dim: int, p_min: float = 0.0, p_max: float = 0.9, *, init: Initializer | None = None):
        self.p_min, self.p_max = probability(self, "p_min", p_min), probability(self, "p_max", p_max)
        if p_min > p_max:
            raise ValueError(f"MAEReplacer: expected p_min <= p_max, got {p_min!r} and {p_max!r}")
        self.mask_token = Param((positive(self, "embed_dim", embed_dim),), init=init or Normal(0.0, 0.02), decay=False)

    def expects(self) -> Width:
        """`embed_dim` on the last axis."""
        return -1, self.mask_token.shape[0]

    def gives(self, width: Width | None) -> Width:
        """The input's width."""
        return -1, self.mask_token.shape[0]

    def check_inputs(self, *inputs: Array) -> None:
        """Refuse what is not frames of a known number of tokens."""
        super().check_inputs(*inputs)
        shape = tuple(inputs[0].shape)
        if len(shape) < 3 or isinstance(shape[-2], str):
            raise ShapeError(
                f"expected an input of shape [..., N, {self.mask_token.shape[0]}] with a known N, got {list(shape)}"
            )

    def extra_repr(self) -> str:
        """Width and probabilities."""
        return f"{self.mask_token.shape[0]}, p_min={self.p_min:g}, p_max={self.p_max:g}"

    def forward(self, x: Array) -> tuple[Array, Array | None]:
        """X -> y while training, x itself in evaluation; saves which tokens were dropped."""
        if not self.training:
            return x, None
        dropped = dropped_tokens(context.draw(), x, self.p_min, self.p_max)
        return where(dropped, self.mask_token.val, x), dropped

    def vjp(self, saved: Array | None, grad_output: Array) -> Array:
        """Dy -> dx; adds dm."""
        if saved is None:
            return grad_output
        expect_grad(grad_output, (*saved.shape[:-1], *self.mask_token.shape))
        if self.mask_token.trainable:
            self.mask_token.accumulate(sum_to(where(saved, grad_output, 0.0), self.mask_token.shape))
        return where(saved, 0.0, grad_output)


def _check_samples(*inputs: Any) -> None:
    if not inputs or not getattr(inputs[0], "shape", ()):
        raise ShapeError("expected an input of shape [B, ...], got no samples to count")
