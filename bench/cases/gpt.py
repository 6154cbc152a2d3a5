"""Character-level language models: a whole training step of a GPT, Adam, dropout off."""

from __future__ import annotations

import functools
from typing import Any

from bench.case import Case
from bench.training import Task, training_case
from noeira.nn import GPT

VOCAB = 65
SIZES = {"gpt-2x64": (2, 64, 4, 64, 16), "gpt-6x384": (6, 384, 6, 256, 4)}
"""Layers, width, heads, sequence, batch."""


def net(layers: int, width: int, heads: int, sequence: int) -> GPT:
    """The model in noeira."""
    return GPT(VOCAB, block_size=sequence, num_layers=layers, num_heads=heads, embed_dim=width)


def torch_net(layers: int, width: int, heads: int, sequence: int) -> Any:
    """The model in PyTorch, with its fused attention."""
    import torch
    from torch import nn
    from torch.nn.functional import scaled_dot_product_attention

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm_1 = nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.norm_2 = nn.LayerNorm(width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            batch, tokens, _ = x.shape
            q, k, v = (
                part.view(batch, tokens, heads, -1).transpose(1, 2) for part in self.qkv(self.norm_1(x)).chunk(3, -1)
            )
            y = scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(batch, tokens, width))
            return x + self.down(nn.functional.gelu(self.up(self.norm_2(x)), approximate="tanh"))

    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(sequence, width))

        def forward(self, x: Any) -> Any:
            return x + self.weight

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.positions = nn.Embedding(VOCAB, width), Positions()
            self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCAB)

        def forward(self, ids: Any) -> Any:
            return self.head(self.norm(self.blocks(self.positions(self.tokens(ids)))))

    return Net()


def _flops(layers: int, width: int, heads: int, sequence: int, batch: int) -> float:
    """Products with weights, three times (all but the embeddings), and causal attention with its five products."""
    weights = layers * 12 * width * width + width * VOCAB
    pairs = sequence * (sequence + 1) / 2
    return batch * (6 * sequence * weights + layers * 2 * width * pairs * (2 + 5))


def task(layers: int, width: int, heads: int, sequence: int, batch: int) -> Task:
    """Training of one size."""
    sizes = (layers, width, heads, sequence)
    return Task(
        functools.partial(net, *sizes), functools.partial(torch_net, *sizes), (sequence,), VOCAB, batch, tokens=True
    )


def cases() -> list[Case]:
    """One training step of each size."""
    return [training_case(name, task(*sizes), flops=_flops(*sizes)) for name, sizes in SIZES.items()]
