"""A transformer block steered by a condition: adaptive layer norm that starts as the identity (adaLN-zero)."""

from __future__ import annotations

from typing import Any

from noeira.nn.core.arguments import positive, positives
from noeira.nn.core.errors import ShapeError
from noeira.nn.core.initializer import Initializer
from noeira.nn.core.module import Module, Width
from noeira.nn.models.transformer import MultiHeadAttention
from noeira.nn.primitives import FeedForwardGELU, Gate, LayerNormNoAffine, Modulate, SiLU, ZeroLinear
from noeira.ops.dispatch import Array
from noeira.ops.pieces import concat, split
from noeira.ops.shape import reshape


class ConditionalTransformerBlock(Module):
    """Attention and feed-forward net whose norms are scaled and shifted, and whose branches gated, by a condition.

    [s_1, c_1, g_1, s_2, c_2, g_2] = silu(c) W + b, with W and b 0 at the start, so that the block is the identity;
    h = x + g_1 attention(norm(x) (1 + c_1) + s_1), y = h + g_2 ffn(norm(h) (1 + c_2) + s_2)

    Args:
        embed_dim: Width of a token.
        num_heads: Number of heads.
        ff_mult: Width of the feed-forward net in multiples of embed_dim.
        cond_dim: Width of the condition; embed_dim by default.
        is_causal: Token i sees tokens 0..i only.
        eps: Of the norms, which have no parameters.
        init: Initializer of the weights other than W; the model's by default.
        out_init: Initializer of the two weights that end a branch; `init` by default.

    Shape:
        x [B, S, embed_dim], condition c [B, cond_dim] or [B, 1, cond_dim] for the whole sample, or [B, S, cond_dim],
        token by token; y [B, S, embed_dim].

    vjp:
        dx and the gradients of s, c and g those of the gates, the branches, `Modulate` and the norms;
        dc = silu'(c) ([ds_1, dc_1, dg_1, ds_2, dc_2, dg_2] W^T). Saves what the parts save.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import ConditionalTransformerBlock
        >>> x, c = np.ones((2, 3, 8), np.float32), np.ones((2, 8), np.float32)
        >>> bool((ConditionalTransformerBlock(8, 2)(x, c) == x).all())
        True

    Source: Peebles and Xie 2022 (DiT).
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        ff_mult: int = 4,
        *,
        cond_dim: int | None = None,
        is_causal: bool = False,
        eps: float = 1e-6,
        init: Initializer | None = None,
        out_init: Initializer | None = None,
    ):
        embed_dim, ff_mult = positives(self, embed_dim=embed_dim, ff_mult=ff_mult)
        width = embed_dim if cond_dim is None else positive(self, "cond_dim", cond_dim)
        self.activation, self.modulation = SiLU(), ZeroLinear(width, 6 * embed_dim)
        self.norm_1, self.modulate_1 = LayerNormNoAffine(embed_dim, eps), Modulate(embed_dim)
        self.attention = MultiHeadAttention(embed_dim, num_heads, is_causal=is_causal, init=init, out_init=out_init)
        self.gate_1 = Gate(embed_dim)
        self.norm_2, self.modulate_2 = LayerNormNoAffine(embed_dim, eps), Modulate(embed_dim)
        self.ffn = FeedForwardGELU(embed_dim, ff_mult * embed_dim, init=init, out_init=out_init)
        self.gate_2 = Gate(embed_dim)

    def expects(self) -> Width | None:
        """`embed_dim` on the last axis."""
        return self.norm_1.expects()

    def gives(self, width: Width | None) -> Width | None:
        """The input's width."""
        return self.norm_1.expects()

    def check_inputs(self, *inputs: Array) -> None:
        """Refuse a missing condition, and one that fits neither the sample nor its tokens."""
        super().check_inputs(*inputs)
        x, c = (tuple(array.shape) for array in inputs)
        if len(x) != 3:
            raise ShapeError(f"expected x of shape [B, S, {self.norm_1.normalized_shape}], got {list(x)}")
        width = self.modulation.in_features
        if c not in ((x[0], width), (x[0], 1, width), (x[0], x[1], width)):
            raise ShapeError(
                f"expected a condition of shape [{x[0]}, {width}], [{x[0]}, 1, {width}] or [{x[0]}, {x[1]}, {width}], "
                f"got {list(c)}"
            )

    def forward(self, x: Array, condition: Array) -> tuple[Array, Any]:
        """(x, c) -> y; saves what the parts save."""
        active, saved_activation = self.activation.forward(condition)
        steering, saved_modulation = self.modulation.forward(active)
        if steering.ndim == 2:
            steering = reshape(steering, (steering.shape[0], 1, steering.shape[1]))
        pieces = split(steering, (self.norm_1.normalized_shape,) * 6)
        saved = []
        for (norm, modulate, inner, gate), (shift, scale, amount) in zip(
            self._branches(), (pieces[:3], pieces[3:]), strict=True
        ):
            branch, kept_norm = norm.forward(x)
            branch, kept_modulate = modulate.forward(branch, scale, shift)
            branch, kept_inner = inner.forward(branch)
            x, kept_gate = gate.forward(x, amount, branch)
            saved.append((kept_norm, kept_modulate, kept_inner, kept_gate))
        return x, (tuple(saved), saved_activation, saved_modulation, condition.shape)

    def vjp(self, saved: Any, grad_output: Array) -> tuple[Array, Array]:
        """Dy -> (dx, dc)."""
        branches, saved_activation, saved_modulation, shape = saved
        pieces: list[Array] = []
        for (norm, modulate, inner, gate), (kept_norm, kept_modulate, kept_inner, kept_gate) in zip(
            reversed(self._branches()), reversed(branches), strict=True
        ):
            grad_output, d_amount, grad = gate.vjp(kept_gate, grad_output)
            grad, d_scale, d_shift = modulate.vjp(kept_modulate, inner.vjp(kept_inner, grad))
            grad_output = grad_output + norm.vjp(kept_norm, grad)
            pieces = [d_shift, d_scale, d_amount, *pieces]
        steering = concat(pieces)
        steering = reshape(steering, (*shape[:-1], steering.shape[-1]))
        return grad_output, self.activation.vjp(saved_activation, self.modulation.vjp(saved_modulation, steering))

    def _branches(self) -> tuple[tuple[Module, Modulate, Module, Gate], ...]:
        return (
            (self.norm_1, self.modulate_1, self.attention, self.gate_1),
            (self.norm_2, self.modulate_2, self.ffn, self.gate_2),
        )
