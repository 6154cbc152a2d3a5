"""Rotary positions, and the layers that rearrange heads."""

from __future__ import annotations

from typing import Any

import numpy as np

from noeira.nn.core.arguments import integer, positive, positive_number, refuse
from noeira.nn.core.decoding import Decoding
from noeira.nn.core.errors import ShapeError
from noeira.nn.core.module import Module, Width
from noeira.ops.dispatch import Array
from noeira.ops.pieces import concat, slice_axis
from noeira.ops.rope import repeat_heads, repeat_heads_grad, rope, swap_axes
from noeira.ops.shape import reshape


class RoPE(Module):
    """Rotary position embedding: pairs of features turn by an angle that grows with the position.

    y_j = x_j cos(t w_j) - x_j' sin(t w_j),  y_j' = x_j' cos(t w_j) + x_j sin(t w_j),  w_j = theta^(-2 j / head_dim)

    Args:
        head_dim: Features of a head, even.
        theta: Base of the frequencies.
        interleaved: Pairs are neighbours (2j, 2j + 1); by default j goes with j + head_dim / 2.
        offset: Position of the first token.

    Shape:
        x [..., S, n head_dim], such as [B, H, S, head_dim] or [B, S, H head_dim]; y the same.

    vjp:
        The rotation back: dx = R^T dy. Saves nothing.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import RoPE
        >>> np.allclose(RoPE(4)(np.ones((1, 2, 4)))[0, 1], [-0.3012, 0.9900, 1.3818, 1.0099], atol=1e-4)  # position 1
        True

    Source: Su et al., "RoFormer", 2021.
    """

    def __init__(self, head_dim: int, *, theta: float = 10000.0, interleaved: bool = False, offset: int = 0):
        self.head_dim, self.theta = positive(self, "head_dim", head_dim), positive_number(self, "theta", theta)
        if head_dim % 2:
            refuse(self, "head_dim", "a positive even integer", head_dim)
        self.interleaved, self.offset = bool(interleaved), integer(self, "offset", offset)

    def gives(self, width: Width | None) -> Width | None:
        """The input's width."""
        return width

    def extra_repr(self) -> str:
        """Width of a head, base and pairing."""
        return f"{self.head_dim}, theta={self.theta:g}" + (", interleaved=True" if self.interleaved else "")

    def check_inputs(self, *inputs: Array) -> None:
        """Refuse widths that are not whole heads."""
        super().check_inputs(*inputs)
        shape = list(inputs[0].shape)
        if len(shape) < 2 or not isinstance(shape[-1], int) or shape[-1] % self.head_dim:
            raise ShapeError(f"expected an input of shape [..., S, n x {self.head_dim}], got {shape}")

    def _rotate(self, x: Array, inverse: bool) -> Array:
        return rope(x, self.head_dim, self.theta, self.offset, self.interleaved, inverse)

    def forward(self, x: Array) -> tuple[Array, None]:
        """[..., S, n head_dim] -> the same shape; saves nothing."""
        return self._rotate(x, False), None

    def step(self, x: Array, decoding: Decoding) -> Array:
        """One token, turned by its place's angle."""
        half, groups = self.head_dim // 2, int(x.shape[-1]) // self.head_dim
        places = np.arange(self.offset, self.offset + decoding.length)
        angle = places[:, None] * np.float64(self.theta) ** (-np.arange(half) / half)
        cos, sin = (decoding.row(table.astype(x.dtype)) for table in (np.cos(angle), np.sin(angle)))
        pairs = reshape(x, (groups, half, 2) if self.interleaved else (groups, 2, half))
        axis = -1 if self.interleaved else 1
        a, b = (reshape(slice_axis(pairs, i, i + 1, axis), (groups, 1, half)) for i in (0, 1))
        turned = [a * cos - b * sin, b * cos + a * sin]
        if self.interleaved:
            turned = [reshape(part, (groups, half, 1)) for part in turned]
        return reshape(concat(turned, axis), x.shape)

    def vjp(self, saved: None, grad_output: Array) -> Array:
        """Dy turned back."""
        return self._rotate(grad_output, True)


class RepeatKVHeads(Module):
    """Repeat each head of keys or values for the query heads that share it (grouped-query attention).

    y[b, g] = x[b, g // repeats]

    Args:
        repeats: Query heads for one head of keys.

    Shape:
        x [B, K, S, D], y [B, K repeats, S, D].

    vjp:
        dx[b, k] = sum of dy[b, g] over g // repeats = k. Saves nothing. Attention itself takes fewer key heads
        directly (`num_kv_heads`), without copies.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import RepeatKVHeads
        >>> RepeatKVHeads(3)(np.ones((2, 2, 5, 7), np.float32)).shape
        (2, 6, 5, 7)

    Source: Ainslie et al. 2023.
    """

    def __init__(self, repeats: int):
        self.repeats = positive(self, "repeats", repeats)

    def gives(self, width: Width | None) -> Width | None:
        """The input's width where it is on the last axis."""
        return width if width is not None and width[0] == -1 else None

    def extra_repr(self) -> str:
        """The number of copies."""
        return f"{self.repeats}"

    def check_inputs(self, *inputs: Array) -> None:
        """Refuse other ranks."""
        super().check_inputs(*inputs)
        if len(inputs[0].shape) != 4:
            raise ShapeError(f"expected an input of shape [B, K, S, D], got {list(inputs[0].shape)}")

    def forward(self, x: Array) -> tuple[Array, None]:
        """[B, K, S, D] -> [B, K repeats, S, D]; saves nothing."""
        return repeat_heads(x, self.repeats), None

    def vjp(self, saved: None, grad_output: Array) -> Array:
        """Sum over the copies."""
        return repeat_heads_grad(grad_output, self.repeats)


class QKVToMajor(Module):
    """Queries, keys and values of each token to all queries, all keys, all values.

    y[b, i, s] = x[b, s, i D : (i + 1) D]

    Args:
        embed_dim: D, the width of q, of k and of v.

    Shape:
        x [B, S, 3 D], y [B, 3, S, D].

    vjp:
        The same permutation back. Saves nothing.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import QKVToMajor
        >>> QKVToMajor(4)(np.ones((2, 5, 12), np.float32)).shape
        (2, 3, 5, 4)

    Source: Elementary.
    """

    def __init__(self, embed_dim: int):
        self.embed_dim = positive(self, "embed_dim", embed_dim)

    def expects(self) -> Width:
        """3 D on the last axis."""
        return -1, 3 * self.embed_dim

    def gives(self, width: Width | None) -> Width:
        """D on the last axis."""
        return -1, self.embed_dim

    def extra_repr(self) -> str:
        """The width of q, of k and of v."""
        return f"{self.embed_dim}"

    def check_inputs(self, *inputs: Array) -> None:
        """Refuse other ranks."""
        super().check_inputs(*inputs)
        if len(inputs[0].shape) != 3:
            raise ShapeError(f"expected an input of shape [B, S, {3 * self.embed_dim}], got {list(inputs[0].shape)}")

    def forward(self, x: Array) -> tuple[Array, Any]:
        """[B, S, 3 D] -> [B, 3, S, D]; saves nothing."""
        return swap_axes(reshape(x, (*x.shape[:2], 3, self.embed_dim))), None

    def vjp(self, saved: Any, grad_output: Array) -> Array:
        """[B, 3, S, D] -> [B, S, 3 D]."""
        batch, _, tokens, _ = grad_output.shape
        return reshape(swap_axes(grad_output), (batch, tokens, 3 * self.embed_dim))
