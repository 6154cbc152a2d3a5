"""Attention along time, token by token, as world models have it."""

from __future__ import annotations

from typing import Any

from noeira.nn.core.arguments import positive
from noeira.nn.core.errors import ShapeError
from noeira.nn.core.initializer import Initializer
from noeira.nn.core.module import Module, Width
from noeira.nn.models.transformer import MultiHeadAttention
from noeira.ops.dispatch import Array, size
from noeira.ops.pieces import pad_axis, slice_axis
from noeira.ops.rope import swap_axes
from noeira.ops.shape import reshape


class TimeAttentionLatents(Module):
    """Attention of each latent token to its own past: the same position in the frames so far.

    y[b, :, s] = W_o attention(W_qkv x[b, :, s]) for s < num_latents, causal in time; y[b, :, s] = 0 for the others, so
    that a residual connection around the layer leaves them as they are

    Args:
        embed_dim: Width of a token.
        num_heads: Number of heads.
        num_latents: How many tokens of a frame, at the front, look back.
        bias: Whether the projections have biases.
        dropout_p: Probability of dropping an attention probability while training.
        init: Initializer of W_qkv; the model's by default.
        out_init: Initializer of W_o; `init` by default.

    Shape:
        x [B, T, S, embed_dim] with a known S >= num_latents: T frames of S tokens; y the same.

    vjp:
        That of `MultiHeadAttention` on [B num_latents, T, embed_dim]; dx = 0 for the other tokens. Saves what it saves,
        and S.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import TimeAttentionLatents
        >>> y = TimeAttentionLatents(8, 2, 3)(np.ones((2, 4, 5, 8), np.float32))
        >>> y.shape, bool((y[:, :, 3:] == 0).all())
        ((2, 4, 5, 8), True)

    Source: Hafner, Yan, Lillicrap 2025 (Dreamer 4).
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_latents: int,
        *,
        bias: bool = True,
        dropout_p: float = 0.0,
        init: Initializer | None = None,
        out_init: Initializer | None = None,
    ):
        self.num_latents = positive(self, "num_latents", num_latents)
        self.attention = MultiHeadAttention(
            embed_dim, num_heads, is_causal=True, bias=bias, dropout_p=dropout_p, init=init, out_init=out_init
        )

    def expects(self) -> Width:
        """`embed_dim` on the last axis."""
        return self.attention.expects()

    def gives(self, width: Width | None) -> Width:
        """The input's width."""
        return self.attention.expects()

    def check_inputs(self, *inputs: Array) -> None:
        """Refuse other ranks, and frames with fewer tokens than latents."""
        super().check_inputs(*inputs)
        shape = tuple(inputs[0].shape)
        if len(shape) != 4 or isinstance(shape[2], str) or shape[2] < self.num_latents:
            raise ShapeError(
                f"expected an input of shape [B, T, S, {self.expects()[1]}] with a known S >= {self.num_latents}, "
                f"got {list(shape)}"
            )

    def extra_repr(self) -> str:
        """The number of latents."""
        return f"num_latents={self.num_latents}"

    def forward(self, x: Array) -> tuple[Array, Any]:
        """X [B, T, S, D] -> y; saves what the attention saves, and S."""
        y, saved = self.attention.forward(self._histories(x))
        return self._frames(y, x.shape[0], x.shape[2]), (saved, x.shape[2])

    def vjp(self, saved: Any, grad_output: Array) -> Array:
        """Dy -> dx."""
        kept, tokens = saved
        grad = self.attention.vjp(kept, self._histories(grad_output))
        return self._frames(grad, grad_output.shape[0], tokens)

    def _histories(self, x: Array) -> Array:
        """[B, T, S, D] -> the latents' [B num_latents, T, D]."""
        latents = swap_axes(slice_axis(x, 0, self.num_latents, 2))
        return reshape(latents, (size(tuple(latents.shape[:2])), *latents.shape[2:]))

    def _frames(self, x: Array, batch: int | str, tokens: int) -> Array:
        """[B num_latents, T, D] -> [B, T, S, D], with zeros for the others."""
        latents = swap_axes(reshape(x, (batch, self.num_latents, *x.shape[1:])))
        return pad_axis(latents, 0, tokens - self.num_latents, 2)
