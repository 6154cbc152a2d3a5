"""A transformer's decoder: attention to a memory with its projections, and the pre-norm block around it."""

from __future__ import annotations

from typing import Any

from noeira.nn.core.arguments import positive, positives
from noeira.nn.core.errors import ShapeError
from noeira.nn.core.initializer import Initializer
from noeira.nn.core.module import Module, Width
from noeira.nn.models.transformer import MultiHeadAttention, feed_forward
from noeira.nn.primitives import CrossAttention, Dropout, LayerNorm, Linear
from noeira.ops.dispatch import Array


class MultiHeadCrossAttention(Module):
    """Attention to a memory, with its projections.

    y = W_o attention(W_q x, W_k m, W_v m)

    Args:
        embed_dim: Width of a token.
        num_heads: Number of heads, a divisor of embed_dim.
        memory_dim: Width of a token of the memory; embed_dim by default.
        bias: Whether the projections have biases; never that of the keys, which would not change y.
        dropout_p: Probability of dropping an attention probability while training.
        init: Initializer of W_q, W_k and W_v; the model's by default.
        out_init: Initializer of W_o; `init` by default.

    Shape:
        x [B, S, embed_dim], memory m [B, M, memory_dim], and optionally a mask of the memory [B, M]: True, or a number
        above 0.5, is attended to; y [B, S, embed_dim]. A sample whose memory is all masked gets W_o's bias.

    vjp:
        Those of the projections and of `CrossAttention`, to (dx, dm), and None for the mask. Saves what they save.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import MultiHeadCrossAttention
        >>> x, memory = np.ones((2, 3, 8), np.float32), np.ones((2, 5, 6), np.float32)
        >>> MultiHeadCrossAttention(8, 2, memory_dim=6)(x, memory).shape
        (2, 3, 8)

    Source: Vaswani et al. 2017. PyTorch: `torch.nn.MultiheadAttention` with kdim = vdim = memory_dim, whose
    bias of the keys has no effect.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        memory_dim: int | None = None,
        bias: bool = True,
        dropout_p: float = 0.0,
        init: Initializer | None = None,
        out_init: Initializer | None = None,
    ):
        width = embed_dim if memory_dim is None else positive(self, "memory_dim", memory_dim)
        self.attention = CrossAttention(embed_dim, num_heads, dropout_p=dropout_p)
        self.query = Linear(embed_dim, embed_dim, bias, init=init)
        self.key = Linear(width, embed_dim, False, init=init)
        self.value = Linear(width, embed_dim, bias, init=init)
        self.out = Linear(embed_dim, embed_dim, bias, init=out_init or init)

    def expects(self) -> Width:
        """`embed_dim` on the last axis."""
        return -1, self.out.out_features

    def gives(self, width: Width | None) -> Width:
        """The input's width."""
        return -1, self.out.out_features

    def check_inputs(self, *inputs: Array) -> None:
        """Refuse a missing memory, and one of another width or batch."""
        super().check_inputs(*inputs)
        check_memory(self.key.in_features, *inputs)

    def forward(self, x: Array, memory: Array, memory_mask: Array | None = None) -> tuple[Array, Any]:
        """(x, memory) -> y; saves what the parts save."""
        q, saved_q = self.query.forward(x)
        k, saved_k = self.key.forward(memory)
        v, saved_v = self.value.forward(memory)
        y, saved_attention = self.attention.forward(q, k, v, memory_mask)
        y, saved_out = self.out.forward(y)
        return y, (saved_q, saved_k, saved_v, saved_attention, saved_out, memory_mask is not None)

    def vjp(self, saved: Any, grad_output: Array) -> Any:
        """Dy -> (dx, d memory), and None for a mask."""
        saved_q, saved_k, saved_v, saved_attention, saved_out, masked = saved
        grad = self.out.vjp(saved_out, grad_output)
        dq, dk, dv, *_ = self.attention.vjp(saved_attention, grad)
        dx = self.query.vjp(saved_q, dq)
        dm = self.key.vjp(saved_k, dk) + self.value.vjp(saved_v, dv)
        return (dx, dm, None) if masked else (dx, dm)


class DecoderBlock(Module):
    """Self-attention, attention to a memory, and a feed-forward net, each behind a layer norm, all residual.

    h = x + dropout(self_attention(norm_1 x)), g = h + dropout(cross_attention(norm_2 h, m)),
    y = g + dropout(ffn(norm_3 g)); the memory m is not normalised

    Args:
        embed_dim: Width of a token.
        num_heads: Number of heads.
        ff_mult: Width of the feed-forward net in multiples of embed_dim.
        memory_dim: Width of a token of the memory; embed_dim by default.
        is_causal: Token i sees tokens 0..i of x only; the memory is seen by all.
        dropout: Probability of dropping an element of each branch while training.
        bias: Whether maps and norms have biases; never the map to the keys of the memory, whose would not change y.
        init: Initializer of the weights; the model's by default.
        out_init: Initializer of the three weights that end a branch; `init` by default.

    Shape:
        x [B, S, embed_dim], memory m [B, M, memory_dim] (M = 1: one token conditions the block), and optionally a mask
        of the memory [B, M] (True is attended to); y [B, S, embed_dim].

    vjp:
        dg = dy + norm_3.vjp(ffn.vjp(dy)), (a, dm) = cross_attention.vjp(dg), dh = dg + norm_2.vjp(a),
        dx = dh + norm_1.vjp(self_attention.vjp(dh)), each branch behind its dropout's vjp; None for the mask.
        Saves what the parts save.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import DecoderBlock
        >>> DecoderBlock(8, 2)(np.ones((2, 3, 8), np.float32), np.ones((2, 5, 8), np.float32)).shape
        (2, 3, 8)

    Source: Vaswani et al. 2017; Xiong et al. 2020 (pre-norm). PyTorch: `torch.nn.TransformerDecoderLayer` with
    norm_first=True and the tanh form of GELU.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        ff_mult: int = 4,
        *,
        memory_dim: int | None = None,
        is_causal: bool = False,
        dropout: float = 0.0,
        bias: bool = True,
        init: Initializer | None = None,
        out_init: Initializer | None = None,
    ):
        embed_dim, ff_mult = positives(self, embed_dim=embed_dim, ff_mult=ff_mult)
        self.norm_1 = LayerNorm(embed_dim, bias=bias)
        self.self_attention = MultiHeadAttention(
            embed_dim, num_heads, is_causal=is_causal, bias=bias, init=init, out_init=out_init
        )
        self.norm_2 = LayerNorm(embed_dim, bias=bias)
        self.cross_attention = MultiHeadCrossAttention(
            embed_dim, num_heads, memory_dim=memory_dim, bias=bias, init=init, out_init=out_init
        )
        self.norm_3 = LayerNorm(embed_dim, bias=bias)
        self.ffn = feed_forward(embed_dim, ff_mult * embed_dim, bias=bias, init=init, out_init=out_init)
        self.drop_1, self.drop_2, self.drop_3 = Dropout(dropout), Dropout(dropout), Dropout(dropout)

    def expects(self) -> Width | None:
        """`embed_dim` on the last axis."""
        return self.norm_1.expects()

    def gives(self, width: Width | None) -> Width | None:
        """The input's width."""
        return self.norm_1.expects()

    def check_inputs(self, *inputs: Array) -> None:
        """Refuse a missing memory, and one of another width or batch."""
        super().check_inputs(*inputs)
        check_memory(self.cross_attention.key.in_features, *inputs)

    def forward(self, x: Array, memory: Array, memory_mask: Array | None = None) -> tuple[Array, Any]:
        """(x, memory) -> y; saves what the parts save."""
        mask = () if memory_mask is None else (memory_mask,)
        saved = []
        for norm, inner, drop in self._branches():
            branch, kept_norm = norm.forward(x)
            others = (memory, *mask) if inner is self.cross_attention else ()
            branch, kept_inner = inner.forward(branch, *others)
            branch, kept_drop = drop.forward(branch)
            x = x + branch
            saved.append((kept_norm, kept_inner, kept_drop))
        return x, (tuple(saved), memory_mask is not None)

    def vjp(self, saved: Any, grad_output: Array) -> Any:
        """Dy -> (dx, d memory), and None for a mask."""
        branches, masked = saved
        grad_memory = None
        for (norm, inner, drop), (kept_norm, kept_inner, kept_drop) in zip(
            reversed(self._branches()), reversed(branches), strict=True
        ):
            grad = inner.vjp(kept_inner, drop.vjp(kept_drop, grad_output))
            if inner is self.cross_attention:
                grad, grad_memory, *_ = grad
            grad_output = grad_output + norm.vjp(kept_norm, grad)
        return (grad_output, grad_memory, None) if masked else (grad_output, grad_memory)

    def _branches(self) -> tuple[tuple[Module, Module, Module], ...]:
        return (
            (self.norm_1, self.self_attention, self.drop_1),
            (self.norm_2, self.cross_attention, self.drop_2),
            (self.norm_3, self.ffn, self.drop_3),
        )


def check_memory(width: int, *inputs: Array) -> None:
    """Refuse inputs that are not x [B, S, E], a memory [B, M, width], and at most one mask [B, M].

    Raises:
        ShapeError: They are something else.
    """
    x, memory = (tuple(array.shape) for array in inputs[:2])
    if len(x) != 3:
        raise ShapeError(f"expected x of shape [B, S, E], got {list(x)}")
    if len(memory) != 3 or memory[0] != x[0] or memory[2] != width:
        raise ShapeError(f"expected a memory of shape [{x[0]}, M, {width}], got {list(memory)}")
    if len(inputs) == 3 and inputs[2] is not None and tuple(inputs[2].shape) != memory[:2]:
        raise ShapeError(f"expected a mask of the memory of shape {list(memory[:2])}, got {list(inputs[2].shape)}")
