"""Pieces of transformers: multi-head attention, the feed-forward net, and the pre-norm block of both."""

from __future__ import annotations

from typing import Any

from noeira.nn.combinators.sequential import Sequential
from noeira.nn.core.arguments import positives
from noeira.nn.core.decoding import Decoding
from noeira.nn.core.initializer import Initializer
from noeira.nn.core.module import Module, Width
from noeira.nn.primitives import GELU, Dropout, FeedForwardGELU, LayerNorm, Linear, LinearAct, ScaledDotProductAttention
from noeira.nn.primitives.activation import gelu_function
from noeira.ops.dispatch import Array
from noeira.ops.pieces import split


class MultiHeadAttention(Module):
    """Self-attention with its projections.

    y = W_o attention(W_qkv x)

    Args:
        embed_dim: Width of a token.
        num_heads: Number of heads, a divisor of embed_dim.
        is_causal: Token i sees tokens 0..i only.
        bias: Whether the projections have biases.
        dropout_p: Probability of dropping an attention probability while training.
        init: Initializer of W_qkv; the model's by default.
        out_init: Initializer of W_o; `init` by default.

    Shape:
        x [B, S, embed_dim], y the same.

    vjp:
        Those of the projections and of `ScaledDotProductAttention`. Saves what they save.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import MultiHeadAttention
        >>> MultiHeadAttention(8, 2)(np.ones((2, 5, 8), np.float32)).shape
        (2, 5, 8)

    Source: Vaswani et al. 2017.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        is_causal: bool = False,
        bias: bool = True,
        dropout_p: float = 0.0,
        init: Initializer | None = None,
        out_init: Initializer | None = None,
    ):
        embed_dim, num_heads = positives(self, embed_dim=embed_dim, num_heads=num_heads)
        self.attention = ScaledDotProductAttention(embed_dim, num_heads, is_causal=is_causal, dropout_p=dropout_p)
        self.qkv = Linear(embed_dim, 3 * embed_dim, bias, init=init)
        self.out = Linear(embed_dim, embed_dim, bias, init=out_init or init)

    def expects(self) -> Width:
        """`embed_dim` on the last axis."""
        return -1, self.out.out_features

    def gives(self, width: Width | None) -> Width:
        """The input's width."""
        return -1, self.out.out_features

    def forward(self, x: Array) -> tuple[Array, Any]:
        """X -> y; saves what the three parts save."""
        qkv, saved_qkv = self.qkv.forward(x)
        y, saved_attention = self.attention.forward(qkv)
        y, saved_out = self.out.forward(y)
        return y, (saved_qkv, saved_attention, saved_out)

    def step(self, x: Array, decoding: Decoding) -> Array:
        """One token, which sees the keys and values kept of those before it; for causal attention."""
        if not self.attention.is_causal:
            raise NotImplementedError(f"{self.describe()} sees later tokens, so it cannot run token by token")
        q, k, v = split(self.qkv.step(x, decoding), (self.out.in_features,) * 3)
        k, v = decoding.append(k), decoding.append(v)
        return self.out.step(self.attention.look_back(q, k, v, decoding.seen()), decoding)

    def vjp(self, saved: Any, grad_output: Array) -> Array:
        """Dy -> dx."""
        saved_qkv, saved_attention, saved_out = saved
        grad = self.out.vjp(saved_out, grad_output)
        grad = self.attention.vjp(saved_attention, grad)
        return self.qkv.vjp(saved_qkv, grad)


class TransformerFFN(Sequential):
    """The feed-forward net of a transformer, token by token.

    y = W_2 gelu(W_1 x)

    Args:
        embed_dim: Width of a token.
        hidden: Width in between.
        approximate: "tanh" or "none", the exact one: which GELU.
        bias: Whether the two maps have biases.
        init: Initializer of W_1; the model's by default.
        out_init: Initializer of W_2; `init` by default.

    Shape:
        x [..., embed_dim], y the same.

    vjp:
        Those of its two layers. Saves what they save.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import TransformerFFN
        >>> TransformerFFN(8, 32)(np.ones((2, 5, 8), np.float32)).shape
        (2, 5, 8)

    Source: Vaswani et al. 2017.
    """

    def __init__(
        self,
        embed_dim: int,
        hidden: int,
        *,
        approximate: str = "tanh",
        bias: bool = True,
        init: Initializer | None = None,
        out_init: Initializer | None = None,
    ):
        embed_dim, hidden = positives(self, embed_dim=embed_dim, hidden=hidden)
        second = Linear(hidden, embed_dim, bias, init=out_init or init)
        if bias:
            super().__init__(LinearAct(embed_dim, hidden, gelu_function(approximate), init=init), second)
        else:
            super().__init__(Linear(embed_dim, hidden, False, init=init), GELU(approximate), second)


def feed_forward(embed_dim: int, hidden: int, *, bias: bool, **options: Any) -> Module:
    """A block's feed-forward net: the fused one where there are biases."""
    if bias:
        return FeedForwardGELU(embed_dim, hidden, **options)
    return TransformerFFN(embed_dim, hidden, bias=False, **options)


class TransformerBlock(Module):
    """Attention and feed-forward net, each behind a layer norm and around a residual connection.

    h = x + dropout(attention(norm_1 x)), y = h + dropout(ffn(norm_2 h))

    Args:
        embed_dim: Width of a token.
        num_heads: Number of heads.
        ff_mult: Width of the feed-forward net in multiples of embed_dim.
        is_causal: Token i sees tokens 0..i only.
        dropout: Probability of dropping an element of either branch while training.
        bias: Whether maps and norms have biases.
        eps: Of the norms.
        approximate: "tanh" or "none", the exact one: which GELU.
        init: Initializer of the weights; the model's by default.
        out_init: Initializer of the two weights that end a branch; `init` by default.

    Shape:
        x [B, S, embed_dim], y the same.

    vjp:
        dh = dy + norm_2.vjp(ffn.vjp(dropout.vjp(dy))), dx = dh + norm_1.vjp(attention.vjp(dropout.vjp(dh))).
        Saves what the parts save.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import TransformerBlock
        >>> TransformerBlock(8, 2)(np.ones((2, 5, 8), np.float32)).shape
        (2, 5, 8)

    Source: Radford et al. 2019 (pre-norm).
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        ff_mult: int = 4,
        *,
        is_causal: bool = False,
        dropout: float = 0.0,
        bias: bool = True,
        eps: float = 1e-5,
        approximate: str = "tanh",
        init: Initializer | None = None,
        out_init: Initializer | None = None,
    ):
        embed_dim, ff_mult = positives(self, embed_dim=embed_dim, ff_mult=ff_mult)
        self.norm_1 = LayerNorm(embed_dim, eps, bias=bias)
        self.attention = MultiHeadAttention(
            embed_dim, num_heads, is_causal=is_causal, bias=bias, init=init, out_init=out_init
        )
        self.norm_2 = LayerNorm(embed_dim, eps, bias=bias)
        self.ffn = feed_forward(
            embed_dim, ff_mult * embed_dim, bias=bias, approximate=approximate, init=init, out_init=out_init
        )
        self.drop_1, self.drop_2 = Dropout(dropout), Dropout(dropout)

    def expects(self) -> Width | None:
        """`embed_dim` on the last axis."""
        return self.norm_1.expects()

    def gives(self, width: Width | None) -> Width | None:
        """The input's width."""
        return self.norm_1.expects()

    def forward(self, x: Array) -> tuple[Array, Any]:
        """X -> y; saves what the parts save."""
        saved = []
        for chain in self._branches():
            branch, kept = x, []
            for module in chain:
                branch, saved_by_module = module.forward(branch)
                kept.append(saved_by_module)
            x = x + branch
            saved.append(tuple(kept))
        return x, tuple(saved)

    def step(self, x: Array, decoding: Decoding) -> Array:
        """One token through both branches."""
        for chain in self._branches():
            branch = x
            for module in chain:
                branch = module.step(branch, decoding)
            x = x + branch
        return x

    def vjp(self, saved: Any, grad_output: Array) -> Array:
        """Dy -> dx."""
        for chain, kept in zip(reversed(self._branches()), reversed(saved), strict=True):
            grad = grad_output
            for module, saved_by_module in zip(reversed(chain), reversed(kept), strict=True):
                grad = module.vjp(saved_by_module, grad)
            grad_output = grad_output + grad
        return grad_output

    def _branches(self) -> tuple[tuple[Module, ...], tuple[Module, ...]]:
        return (self.norm_1, self.attention, self.drop_1), (self.norm_2, self.ffn, self.drop_2)
