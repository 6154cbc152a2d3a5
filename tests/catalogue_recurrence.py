"""Rows of the recurrent layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn as tnn
from torch.func import functional_call

from noeira import nn
from tests.catalogue import Mistake, Row, Sample, _zeros
from tests.compare import Twin


def _weights(params: dict[str, torch.Tensor], suffix: str) -> dict[str, torch.Tensor]:
    """Under PyTorch's names, weights transposed."""
    return {f"{name}{suffix}": p.T if name.startswith("weight") else p for name, p in params.items()}


def _cell_twin(kind: str) -> Any:
    def make(layer: Any) -> Twin:
        cell = getattr(tnn, kind)(layer.input_size, layer.hidden_size, bias=layer.bias_ih is not None)

        def twin(params: dict[str, torch.Tensor], x: torch.Tensor, state: torch.Tensor | None = None) -> torch.Tensor:
            if kind == "GRUCell":
                return functional_call(cell, _weights(params, ""), (x, state) if state is not None else (x,))
            parts = None if state is None else tuple(state.chunk(2, -1))
            return torch.cat(functional_call(cell, _weights(params, ""), (x, parts)), -1)

        return twin

    return make


def _sequence_twin(kind: str) -> Any:
    def make(layer: Any) -> Twin:
        net = getattr(tnn, kind)(layer.input_size, layer.hidden_size, bias=layer.bias_ih is not None, batch_first=True)

        def twin(params: dict[str, torch.Tensor], x: torch.Tensor, state: torch.Tensor | None = None) -> torch.Tensor:
            if state is not None:
                parts = [part[None].contiguous() for part in state.chunk(1 if kind == "GRU" else 2, -1)]
                state = parts[0] if kind == "GRU" else tuple(parts)  # type: ignore[assignment]
            if x.shape[0] == 0:  # which PyTorch refuses
                used = sum(p.sum() for p in (*params.values(), x, *(() if state is None else state)))
                return x.new_zeros(0, x.shape[1], layer.hidden_size) + 0 * used
            return functional_call(net, _weights(params, "_l0"), (x, state))[0]

        return twin

    return make


def _samples(rank: int, states: int) -> tuple[Sample, ...]:
    def sample(label: str, sizes: tuple[int, int], batch: int, steps: int, *, state: bool = True) -> Sample:
        x = (batch, steps, sizes[0]) if rank == 3 else (batch, sizes[0])
        compiled = rank == 3 or sizes == (3, 5)  # a cell is a sequence of one step
        return Sample(label, sizes, (x, (batch, states * sizes[1])) if state else (x,), compiled=compiled)

    return (
        sample("with a state", (3, 5), 4, 6),
        sample("no state", (3, 5), 4, 6, state=False),
        sample("batch 1", (7, 16), 1, 3),
        sample("size-1 dimensions", (1, 1), 1, 1),
        sample("primes", (11, 17), 5, 7, state=False),
        sample("wider than a vector", (5, 33), 3, 4),
        sample("empty batch", (3, 5), 0, 6),
    )


def _row(cls: Any, twin: Any, rank: int, states: int) -> Row:
    shape = (2, 4, 3) if rank == 3 else (2, 3)
    wrong = (*shape[:-1], 4)
    return Row(
        cls.__name__, cls, cls, twin, ("x", "kept", "before", "state"), _samples(rank, states),
        (
            Mistake("wrong width", lambda: cls(3, 5)(_zeros(*wrong)), r"expected an input of shape .*3\], got"),
            Mistake("wrong rank", lambda: cls(3, 5)(_zeros(2, 2, 2, 3)), r"expected an input of shape \[batch, .*got"),
            Mistake(
                "wrong state", lambda: cls(3, 5)(_zeros(*shape), _zeros(2, 4)),
                rf"expected a state of shape \[2, {5 * states}\], got \[2, 4\]",
            ),
            Mistake("no width", lambda: cls(3, 0), "hidden_size to be a positive integer, got 0", ValueError),
            *((Mistake("no steps", lambda: cls(3, 5)(_zeros(2, 0, 3)), "at least one step"),) if rank == 3 else ()),
        ),
        step=1e-3,
    )  # fmt: skip


def _without_bias(cls: Any, twin: Any, shape: tuple[int, ...]) -> Row:
    return Row(
        f"{cls.__name__}, no bias", cls, lambda *sizes: cls(*sizes, bias=False), twin,
        ("x", "kept", "before", "state"), (Sample("no state", (3, 5), (shape,)),), step=1e-3,
    )  # fmt: skip


ROWS: tuple[Row, ...] = (
    _row(nn.GRUCell, _cell_twin("GRUCell"), 2, 1),
    _row(nn.LSTMCell, _cell_twin("LSTMCell"), 2, 2),
    _row(nn.GRUSeq, _sequence_twin("GRU"), 3, 1),
    _row(nn.LSTMSeq, _sequence_twin("LSTM"), 3, 2),
    _without_bias(nn.GRUSeq, _sequence_twin("GRU"), (4, 6, 3)),
    _without_bias(nn.LSTMCell, _cell_twin("LSTMCell"), (4, 3)),
)
