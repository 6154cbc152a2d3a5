"""GPT: a decoder-only transformer over tokens."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from noeira.nn.combinators.repeat import Repeat
from noeira.nn.core.arguments import positives
from noeira.nn.core.decoding import Decoding
from noeira.nn.core.errors import ShapeError
from noeira.nn.core.initializer import Normal
from noeira.nn.core.module import Module, Width
from noeira.nn.models.transformer import TransformerBlock
from noeira.nn.primitives import Dropout, Embedding, LayerNorm, Linear, PositionEmbedding, TiedLinear
from noeira.ops.dispatch import Array


@dataclass(frozen=True)
class GPTConfig:
    """Sizes and options of a `GPT`.

    Args:
        vocab_size: Number of tokens there are.
        block_size: Longest sequence.
        num_layers: Number of blocks.
        num_heads: Heads of each block.
        embed_dim: Width of a token.
        ff_mult: Width of the feed-forward nets in multiples of embed_dim.
        dropout: Of the sum of embeddings and of every branch; attention probabilities are not dropped.
        bias: Whether maps and norms have biases (a tied head never has one).
        tied: Whether the head is the token embedding, transposed.
        scale_residual: Draw the weights that end a branch 1 / sqrt(2 num_layers) narrower.
        causal: Token i sees tokens 0..i only.
    """

    vocab_size: int
    block_size: int
    num_layers: int
    num_heads: int
    embed_dim: int
    ff_mult: int = 4
    dropout: float = 0.0
    bias: bool = True
    tied: bool = False
    scale_residual: bool = False
    causal: bool = True

    @staticmethod
    def gpt2(**changes: Any) -> GPTConfig:
        """GPT-2 small: 124,439,808 parameters."""
        return GPTConfig(
            **{
                "vocab_size": 50257, "block_size": 1024, "num_layers": 12, "num_heads": 12, "embed_dim": 768,
                "dropout": 0.1, "tied": True, "scale_residual": True, **changes,
            }
        )  # fmt: skip

    @staticmethod
    def char(vocab_size: int = 65, **changes: Any) -> GPTConfig:
        """NanoGPT's model of TinyShakespeare: 10.65 M parameters without the positions."""
        return GPTConfig(
            **{
                "vocab_size": vocab_size, "block_size": 256, "num_layers": 6, "num_heads": 6, "embed_dim": 384,
                "dropout": 0.2, "bias": False, "tied": True, "scale_residual": True, **changes,
            }
        )  # fmt: skip


class GPT(Module):
    """Decoder-only transformer: embeddings, pre-norm blocks, a final norm, a head.

    logits = head(norm(block_n(... block_1(dropout(E[ids] + P)))))

    Weights are drawn from N(0, 0.02^2), positions start at 0, biases at 0.

    Args:
        vocab_size: Number of tokens there are; see `GPTConfig` for all options.
        block_size: Longest sequence.
        num_layers: Number of blocks.
        num_heads: Heads of each block.
        embed_dim: Width of a token.
        options: The others of `GPTConfig`.

    Shape:
        ids [B, T] integers with a known T <= block_size; logits [B, T, vocab_size].

    vjp:
        Those of the parts in reverse order; nothing for ids. Saves what the parts save.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import GPT
        >>> GPT(65, block_size=8, num_layers=2, num_heads=2, embed_dim=16)(np.zeros((3, 8), np.int32)).shape
        (3, 8, 65)

    Source: Radford et al. 2019.
    """

    def __init__(
        self, vocab_size: int, block_size: int, num_layers: int, num_heads: int, embed_dim: int, **options: Any
    ):
        self.config = GPTConfig(vocab_size, block_size, num_layers, num_heads, embed_dim, **options)
        config, narrow = self.config, Normal(0.0, 0.02)
        positives(
            self,
            vocab_size=vocab_size,
            block_size=block_size,
            num_layers=num_layers,
            num_heads=num_heads,
            embed_dim=embed_dim,
            ff_mult=config.ff_mult,
        )
        ends = Normal(0.0, 0.02 / math.sqrt(2 * num_layers)) if config.scale_residual else narrow
        self.tokens = Embedding(vocab_size, embed_dim, init=narrow)
        self.positions = PositionEmbedding(block_size, embed_dim)
        self.drop = Dropout(config.dropout)
        self.blocks = Repeat(
            num_layers,
            lambda: TransformerBlock(
                embed_dim,
                num_heads,
                config.ff_mult,
                is_causal=config.causal,
                dropout=config.dropout,
                bias=config.bias,
                init=narrow,
                out_init=ends,
            ),
        )
        self.norm = LayerNorm(embed_dim, bias=config.bias)
        self.head: Module = (
            TiedLinear(self.tokens) if config.tied else Linear(embed_dim, vocab_size, config.bias, init=narrow)
        )

    @classmethod
    def from_config(cls, config: GPTConfig) -> Self:
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
        """Refuse what is not [B, T] integers."""
        shape = tuple(inputs[0].shape)
        if len(shape) != 2 or not np.issubdtype(inputs[0].dtype, np.integer):
            raise ShapeError(f"expected integer ids of shape [B, T], got {inputs[0].dtype} of shape {list(shape)}")

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
        return self.tokens, self.positions, self.drop, self.blocks, self.norm, self.head
