"""A recurrent language model: embedding, LSTM layers, a head."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np

from noeira.nn.core.arguments import positives
from noeira.nn.core.decoding import Decoding
from noeira.nn.core.errors import ShapeError
from noeira.nn.core.module import Module, Width
from noeira.nn.primitives import Dropout, Embedding, Linear, LSTMSeq, TiedLinear
from noeira.ops.dispatch import Array


@dataclass(frozen=True)
class LSTMConfig:
    """Sizes and options of an `LSTMLM`.

    Args:
        vocab_size: Number of tokens there are.
        embed_dim: Width of a token.
        hidden_size: Width of the state.
        num_layers: Number of LSTM layers.
        dropout: Behind the embedding and behind every layer, while training.
        tied: Whether the head is the token embedding, transposed; the two widths are one then.
    """

    vocab_size: int
    embed_dim: int
    hidden_size: int
    num_layers: int = 1
    dropout: float = 0.0
    tied: bool = False

    @staticmethod
    def char(vocab_size: int = 65, **changes: Any) -> LSTMConfig:
        """Two layers of width 256 for characters."""
        return LSTMConfig(
            **{"vocab_size": vocab_size, "embed_dim": 256, "hidden_size": 256, "num_layers": 2, **changes}
        )


class LSTMLM(Module):
    """Language model of LSTM layers, each reading the states of the one below.

    logits = head(dropout(lstm_n(... dropout(lstm_1(dropout(E[ids]))))))

    Every sequence starts from the zero state.

    Args:
        vocab_size: Number of tokens there are; see `LSTMConfig` for all options.
        embed_dim: Width of a token.
        hidden_size: Width of the state.
        options: The others of `LSTMConfig`.

    Shape:
        ids [B, T] integers, logits [B, T, vocab_size].

    vjp:
        Those of the parts in reverse order; nothing for ids. Saves what the parts save.

    Raises:
        ShapeError: A tied head, and widths that differ.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import LSTMLM
        >>> LSTMLM(65, embed_dim=8, hidden_size=16, num_layers=2)(np.zeros((3, 5), np.int32)).shape
        (3, 5, 65)

    Source: Hochreiter and Schmidhuber 1997; Zaremba et al. 2014 (where dropout stands).
    """

    def __init__(self, vocab_size: int, embed_dim: int, hidden_size: int, **options: Any):
        self.config = config = LSTMConfig(vocab_size, embed_dim, hidden_size, **options)
        vocab_size, embed_dim, hidden_size, num_layers = positives(
            self, vocab_size=vocab_size, embed_dim=embed_dim, hidden_size=hidden_size, num_layers=config.num_layers
        )
        if config.tied and embed_dim != hidden_size:
            raise ShapeError(
                f"LSTMLM: expected one width where the head is tied, got embed_dim={embed_dim} and "
                f"hidden_size={hidden_size}"
            )
        self.tokens = Embedding(vocab_size, embed_dim)
        widths = [embed_dim] + [hidden_size] * num_layers
        self.layers = [LSTMSeq(a, b) for a, b in pairwise(widths)]
        self.drops = [Dropout(config.dropout) for _ in widths]
        self.head: Module = TiedLinear(self.tokens) if config.tied else Linear(hidden_size, vocab_size)

    @classmethod
    def from_config(cls, config: LSTMConfig) -> Self:
        """The model of a configuration."""
        return cls(**asdict(config))

    def gives(self, width: Width | None) -> Width:
        """`vocab_size` on the last axis."""
        return -1, self.config.vocab_size

    def extra_repr(self) -> str:
        """The sizes."""
        c = self.config
        return f"{c.vocab_size}, embed_dim={c.embed_dim}, hidden_size={c.hidden_size}, num_layers={c.num_layers}"

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
        """The logits [1, 1, vocab_size] at one token, from the states kept."""
        x = ids
        for module in self._chain():
            x = module.step(x, decoding)
        return x

    def vjp(self, saved: Any, grad_output: Array) -> None:
        """Dlogits -> nothing."""
        for module, kept in zip(reversed(self._chain()), reversed(saved), strict=True):
            grad_output = module.vjp(kept, grad_output)

    def _chain(self) -> tuple[Module, ...]:
        between = [part for pair in zip(self.layers, self.drops[1:], strict=True) for part in pair]
        return self.tokens, self.drops[0], *between, self.head
