"""A Llama-style decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU, no biases."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from noeira.nn.combinators import Repeat, Sequential
from noeira.nn.core.arguments import positive, positives
from noeira.nn.core.decoding import Decoding
from noeira.nn.core.errors import ShapeError
from noeira.nn.core.initializer import Initializer, Normal
from noeira.nn.core.module import Module, Width
from noeira.nn.primitives import CrossAttention, Embedding, Linear, RMSNorm, RoPE, SwiGLU, TiedLinear
from noeira.ops.dispatch import Array


class GroupedQueryAttention(Module):
    """Causal self-attention whose query heads share heads of keys and values, with rotary positions.

    y = W_o attention(rope(W_q x), rope(W_k x), W_v x)

    Args:
        embed_dim: Width of a token.
        num_heads: Heads of queries, a divisor of embed_dim.
        num_kv_heads: Heads of keys and values, a divisor of num_heads; as many by default.
        theta: Base of the rotary frequencies.
        init: Initializer of the four weights; the model's by default.

    Shape:
        x [B, S, embed_dim], y the same.

    vjp:
        Those of the projections, the rotation and the attention; dx is the sum over the three projections. Saves what
        they save.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import GroupedQueryAttention
        >>> GroupedQueryAttention(16, 4, 2)(np.ones((2, 5, 16), np.float32)).shape
        (2, 5, 16)

    Source: Ainslie et al. 2023; Touvron et al. 2023.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        *,
        theta: float = 10000.0,
        init: Initializer | None = None,
    ):
        self.attention = CrossAttention(embed_dim, num_heads, num_kv_heads=num_kv_heads, is_causal=True)
        head = embed_dim // num_heads
        narrow = head * self.attention.num_kv_heads
        self.query = Linear(embed_dim, embed_dim, False, init=init)
        self.key = Linear(embed_dim, narrow, False, init=init)
        self.value = Linear(embed_dim, narrow, False, init=init)
        self.rope = RoPE(head, theta=theta)
        self.out = Linear(embed_dim, embed_dim, False, init=init)

    def expects(self) -> Width:
        """`embed_dim` on the last axis."""
        return -1, self.out.out_features

    def gives(self, width: Width | None) -> Width:
        """The input's width."""
        return -1, self.out.out_features

    def forward(self, x: Array) -> tuple[Array, Any]:
        """X -> y; saves what the parts save."""
        q, saved_q = self.query.forward(x)
        k, saved_k = self.key.forward(x)
        v, saved_v = self.value.forward(x)
        q, k = self.rope.forward(q)[0], self.rope.forward(k)[0]
        y, saved_attention = self.attention.forward(q, k, v)
        y, saved_out = self.out.forward(y)
        return y, (saved_q, saved_k, saved_v, saved_attention, saved_out)

    def step(self, x: Array, decoding: Decoding) -> Array:
        """One token, which sees the keys and values kept of those before it."""
        q, k = (self.rope.step(part.step(x, decoding), decoding) for part in (self.query, self.key))
        k, v = decoding.append(k), decoding.append(self.value.step(x, decoding))
        return self.out.step(self.attention.look_back(q, k, v, decoding.seen()), decoding)

    def vjp(self, saved: Any, grad_output: Array) -> Array:
        """Dy -> dx."""
        saved_q, saved_k, saved_v, saved_attention, saved_out = saved
        dq, dk, dv = self.attention.vjp(saved_attention, self.out.vjp(saved_out, grad_output))
        dx = self.query.vjp(saved_q, self.rope.vjp(None, dq))
        dx = dx + self.key.vjp(saved_k, self.rope.vjp(None, dk))
        return dx + self.value.vjp(saved_v, dv)


class LlamaBlock(Module):
    """Grouped-query attention and a gated feed-forward net, each behind an RMSNorm and around a residual connection.

    h = x + attention(norm_1 x), y = h + W_2 (u silu(v)) with [u, v] = W_1 norm_2 h

    Args:
        embed_dim: Width of a token.
        num_heads: Heads of queries.
        num_kv_heads: Heads of keys and values; as many by default.
        hidden_dim: Width of u and of v.
        theta: Base of the rotary frequencies.
        eps: Of the norms; None as in `RMSNorm`.
        init: Initializer of the weights; the model's by default.

    Shape:
        x [B, S, embed_dim], y the same.

    vjp:
        dh = dy + norm_2.vjp(ffn.vjp(dy)), dx = dh + norm_1.vjp(attention.vjp(dh)). Saves what the parts save.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import LlamaBlock
        >>> LlamaBlock(16, 4, 2, hidden_dim=24)(np.ones((2, 5, 16), np.float32)).shape
        (2, 5, 16)

    Source: Touvron et al. 2023.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        *,
        hidden_dim: int,
        theta: float = 10000.0,
        eps: float | None = 1e-5,
        init: Initializer | None = None,
    ):
        embed_dim, hidden_dim = positives(self, embed_dim=embed_dim, hidden_dim=hidden_dim)
        self.norm_1 = RMSNorm(embed_dim, eps)
        self.attention = GroupedQueryAttention(embed_dim, num_heads, num_kv_heads, theta=theta, init=init)
        self.norm_2 = RMSNorm(embed_dim, eps)
        self.ffn = Sequential(
            Linear(embed_dim, 2 * hidden_dim, False, init=init),
            SwiGLU(hidden_dim),
            Linear(hidden_dim, embed_dim, False, init=init),
        )

    def expects(self) -> Width | None:
        """`embed_dim` on the last axis."""
        return self.norm_1.expects()

    def gives(self, width: Width | None) -> Width | None:
        """The input's width."""
        return self.norm_1.expects()

    def forward(self, x: Array) -> tuple[Array, Any]:
        """X -> y; saves what the parts save."""
        saved = []
        for norm, inner in self._branches():
            branch, kept_norm = norm.forward(x)
            branch, kept_inner = inner.forward(branch)
            x = x + branch
            saved.append((kept_norm, kept_inner))
        return x, tuple(saved)

    def step(self, x: Array, decoding: Decoding) -> Array:
        """One token through both branches."""
        for norm, inner in self._branches():
            x = x + inner.step(norm.step(x, decoding), decoding)
        return x

    def vjp(self, saved: Any, grad_output: Array) -> Array:
        """Dy -> dx."""
        for (norm, inner), (kept_norm, kept_inner) in zip(reversed(self._branches()), reversed(saved), strict=True):
            grad_output = grad_output + norm.vjp(kept_norm, inner.vjp(kept_inner, grad_output))
        return grad_output

    def _branches(self) -> tuple[tuple[Module, Module], ...]:
        return (self.norm_1, self.attention), (self.norm_2, self.ffn)


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes and options of a `Llama`.

    Args:
        vocab_size: Number of tokens there are.
        block_size: Longest sequence.
        num_layers: Number of blocks.
        num_heads: Heads of queries of each block.
        embed_dim: Width of a token.
        num_kv_heads: Heads of keys and values; as many as of queries by default.
        hidden_dim: Width of the feed-forward nets; by default 8/3 embed_dim, rounded up to a multiple of 32.
        theta: Base of the rotary frequencies.
        eps: Of the norms; None as in `RMSNorm`.
        tied: Whether the head is the token embedding, transposed.
    """

    vocab_size: int
    block_size: int
    num_layers: int
    num_heads: int
    embed_dim: int
    num_kv_heads: int | None = None
    hidden_dim: int | None = None
    theta: float = 10000.0
    eps: float | None = 1e-5
    tied: bool = False

    @staticmethod
    def llama2_7b(**changes: Any) -> LlamaConfig:
        """Llama 2 7B: 6,738,415,616 parameters."""
        return LlamaConfig(
            **{
                "vocab_size": 32000, "block_size": 4096, "num_layers": 32, "num_heads": 32, "embed_dim": 4096,
                "hidden_dim": 11008, **changes,
            }
        )  # fmt: skip

    @staticmethod
    def llama32_1b(**changes: Any) -> LlamaConfig:
        """The sizes of Llama 3.2 1B: 1,235,814,400 parameters. Its stretched frequencies are not those of `RoPE`."""
        return LlamaConfig(
            **{
                "vocab_size": 128256, "block_size": 8192, "num_layers": 16, "num_heads": 32, "embed_dim": 2048,
                "num_kv_heads": 8, "hidden_dim": 8192, "theta": 500000.0, "tied": True, **changes,
            }
        )  # fmt: skip


class Llama(Module):
    """Decoder-only transformer without biases: embedding, `LlamaBlock`s, a final RMSNorm, a head.

    logits = head(norm(block_n(... block_1(E[ids]))))

    Weights are drawn from N(0, 0.02^2).

    Args:
        vocab_size: Number of tokens there are; see `LlamaConfig` for all options.
        block_size: Longest sequence.
        num_layers: Number of blocks.
        num_heads: Heads of queries of each block.
        embed_dim: Width of a token.
        options: The others of `LlamaConfig`.

    Shape:
        ids [B, T] integers, T <= block_size where it is known; logits [B, T, vocab_size].

    vjp:
        Those of the parts in reverse order; nothing for ids. Saves what the parts save.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import Llama
        >>> net = Llama(65, block_size=8, num_layers=2, num_heads=4, embed_dim=16, num_kv_heads=2)
        >>> net(np.zeros((3, 8), np.int32)).shape
        (3, 8, 65)

    Source: Touvron et al. 2023.
    """

    def __init__(
        self, vocab_size: int, block_size: int, num_layers: int, num_heads: int, embed_dim: int, **options: Any
    ):
        self.config = config = LlamaConfig(vocab_size, block_size, num_layers, num_heads, embed_dim, **options)
        positives(
            self,
            vocab_size=vocab_size,
            block_size=block_size,
            num_layers=num_layers,
            num_heads=num_heads,
            embed_dim=embed_dim,
        )
        narrow = Normal(0.0, 0.02)
        hidden = -(-8 * embed_dim // 96) * 32
        if config.hidden_dim is not None:
            hidden = positive(self, "hidden_dim", config.hidden_dim)
        self.tokens = Embedding(vocab_size, embed_dim, init=narrow)
        self.blocks = Repeat(
            num_layers,
            lambda: LlamaBlock(
                embed_dim,
                num_heads,
                config.num_kv_heads,
                hidden_dim=hidden,
                theta=config.theta,
                eps=config.eps,
                init=narrow,
            ),
        )
        self.norm = RMSNorm(embed_dim, config.eps)
        self.head: Module = (
            TiedLinear(self.tokens) if config.tied else Linear(embed_dim, vocab_size, False, init=narrow)
        )

    @classmethod
    def from_config(cls, config: LlamaConfig) -> Self:
        """The model of a configuration."""
        return cls(**asdict(config))

    def gives(self, width: Width | None) -> Width:
        """`vocab_size` on the last axis."""
        return -1, self.config.vocab_size

    def extra_repr(self) -> str:
        """The sizes."""
        c = self.config
        return f"{c.vocab_size}, block_size={c.block_size}, num_layers={c.num_layers}, embed_dim={c.embed_dim}"

    def check_inputs(self, *inputs: Array) -> None:
        """Refuse what is not [B, T] integers, and sequences longer than `block_size`."""
        shape = tuple(inputs[0].shape)
        if len(shape) != 2 or not np.issubdtype(inputs[0].dtype, np.integer):
            raise ShapeError(f"expected integer ids of shape [B, T], got {inputs[0].dtype} of shape {list(shape)}")
        if isinstance(shape[1], int) and shape[1] > self.config.block_size:
            raise ShapeError(f"expected a sequence of at most {self.config.block_size} tokens, got {shape[1]}")

    def forward(self, ids: Array) -> tuple[Array, Any]:
        """Ids [B, T] -> logits [B, T, vocab_size]; saves what the parts save."""
        saved, x = [], ids
        for module in self._chain():
            x, kept = module.forward(x)
            saved.append(kept)
        return x, tuple(saved)

    def step(self, ids: Array, decoding: Decoding) -> Array:
        """The logits [1, 1, vocab_size] at one token."""
        x = ids
        for module in self._chain():
            x = module.step(x, decoding)
        return x

    def vjp(self, saved: Any, grad_output: Array) -> None:
        """Dlogits -> nothing."""
        for module, kept in zip(reversed(self._chain()), reversed(saved), strict=True):
            grad_output = module.vjp(kept, grad_output)

    def _chain(self) -> tuple[Module, ...]:
        return self.tokens, self.blocks, self.norm, self.head
