"""Rows of the linear layers in other guises."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from noeira import nn
from tests.catalogue import Mistake, Row, Sample, _zeros
from tests.compare import Twin


def _tied_twin(layer: Any) -> Twin:
    return lambda params, x: x @ params["weight"].T


def _zero_twin(layer: Any) -> Twin:
    return lambda params, x: x @ params["weight"] + params["bias"]


def _ffn_twin(layer: Any) -> Twin:
    def twin(params: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        h = F.gelu(x @ params["fc1.weight"] + params["fc1.bias"], approximate="tanh")
        return h @ params["fc2.weight"] + params["fc2.bias"]

    return twin


SAMPLES = (
    Sample("rank 3", (5, 7), ((2, 3, 5),)),
    Sample("batch 1", (5, 7), ((1, 3, 5),)),
    Sample("size-1 dimensions", (1, 1), ((1, 1),)),
    Sample("primes", (13, 17), ((11, 13),)),
    Sample("empty batch", (5, 7), ((0, 3, 5),)),
)


def _wrong(make: Any) -> Mistake:
    return Mistake("wrong width", lambda: make(5, 7)(_zeros(2, 4)), r"expected an input of shape .*5\], got \[2, 4\]")


def _tied(features: int, rows: int) -> nn.TiedLinear:
    return nn.TiedLinear(nn.Embedding(rows, features))


ROWS: tuple[Row, ...] = (
    Row("TiedLinear", nn.TiedLinear, _tied, _tied_twin, ("x",), SAMPLES,
        (_wrong(_tied),
         Mistake("no weight", lambda: nn.TiedLinear(nn.Tanh()), r"expected a layer with a weight .*, got Tanh",
                 ValueError))),
    Row("ZeroLinear", nn.ZeroLinear, nn.ZeroLinear, _zero_twin, ("x",), SAMPLES, (_wrong(nn.ZeroLinear),)),
    Row("FeedForwardGELU", nn.FeedForwardGELU, nn.FeedForwardGELU, _ffn_twin, ("x", "z", "h"), SAMPLES,
        (_wrong(nn.FeedForwardGELU),
         Mistake("no width", lambda: nn.FeedForwardGELU(5, 0), r"hidden_dim to be a positive integer, got 0",
                 ValueError)), step=1e-3),
)  # fmt: skip
