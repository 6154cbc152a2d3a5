"""Rows of the pieces that agents are built from: parts, reductions, losses a sample, heads, block-diagonal maps."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from noeira import nn
from tests.catalogue import KINKS, Input, Mistake, Row, Sample, _labels, _zeros
from tests.compare import Twin

Params = dict[str, torch.Tensor]


def _mask(*shape: int, none: bool = False) -> Input:
    """Booleans; with `none` the first row has not one True."""

    def draw(rng: np.random.Generator) -> np.ndarray:
        valid = rng.random(shape) < 0.6
        if none and valid.size:
            valid[0] = False
        return valid

    return draw


# ---- cutting, joining, picking ---------------------------------------------------------------------------------------


def _slice_twin(layer: nn.Slice) -> Twin:
    return lambda params, x: x.narrow(layer.axis, layer.start, layer.stop - layer.start)


SLICE = (
    Sample("in the middle", (1, 4), ((7, 5),)),
    Sample("the first", (0, 1), ((3, 5),), compiled=False),
    Sample("everything", (0, 5), ((3, 5),), compiled=False),
    Sample("an axis of three", (2, 7, 1), ((2, 11, 3),)),
    Sample("one element", (0, 1), ((1, 1),), compiled=False),
    Sample("large magnitudes", (1, 4), ((4, 5),), 1e4),
    Sample("empty batch", (1, 4), ((0, 5),)),
)

CONCAT = (
    Sample("two", (), ((7, 5), (7, 3))),
    Sample("three of different widths", (), ((3, 1), (3, 13), (3, 2))),
    Sample("one", (), ((3, 5),), compiled=False),
    Sample("tokens", (1,), ((2, 3, 5), (2, 1, 5))),
    Sample("empty batch", (), ((0, 5), (0, 3))),
)

GATHER = (
    Sample("one a row", (), ((7, 5), _labels(7, 1))),
    Sample("several, some twice", (), ((4, 5), _labels(4, 7))),
    Sample("rank 3", (), ((2, 3, 5), _labels(2, 3, 2))),
    Sample("one column", (), ((3, 1), _labels(3, 1, classes=1)), compiled=False),
    Sample("many rows", (), ((211, 5), _labels(211, 1))),
    Sample("empty batch", (), ((0, 5), _labels(0, 1))),
)

ACTION = (
    Sample("atoms", (), ((7, 5, 11), _labels(7))),
    Sample("rank 4", (), ((2, 3, 5, 4), _labels(2, 3)), compiled=False),
    Sample("one action, one atom", (), ((3, 1, 1), _labels(3, classes=1)), compiled=False),
    Sample("large magnitudes", (), ((4, 5, 11), _labels(4)), 1e4),
    Sample("empty batch", (), ((0, 5, 11), _labels(0))),
)


def _action_twin(layer: Any) -> Twin:
    def twin(params: Params, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        index = ids.long()[..., None, None].expand(*ids.shape, 1, x.shape[-1])
        return x.gather(-2, index).squeeze(-2)

    return twin


# ---- reductions ------------------------------------------------------------------------------------------------------


def _reduce_twin(layer: nn.Reduce) -> Twin:
    function = torch.sum if layer.mode == "sum" else torch.mean
    return lambda params, x: function(x, layer.axis, layer.keepdims)


def _reduce(mode: str) -> tuple[Sample, ...]:
    return (
        Sample("last axis", (mode,), ((7, 5),)),
        Sample("kept", (mode, -1, True), ((7, 5),), compiled=False),
        Sample("an axis of three", (mode, 1), ((2, 7, 3),)),
        Sample("kept, from the end", (mode, -2, True), ((2, 7, 3),)),
        Sample("size-1 dimensions", (mode, 1), ((1, 1, 1),), compiled=False),
        Sample("many", (mode,), ((3, 257),), compiled=mode == "sum"),
        Sample("large magnitudes", (mode,), ((4, 5),), 1e4),
        Sample("empty batch", (mode,), ((0, 5),)),
    )


def _distinct(*shape: int) -> Input:
    """Numbers at least 0.1 apart: no step of a difference makes another the largest."""
    return lambda rng: (0.1 * rng.permutation(int(np.prod(shape))) - 1).reshape(shape).astype(np.float32)


MAXIMA = (
    Sample("last axis", (), (_distinct(7, 5),)),
    Sample("kept", (-1, True), (_distinct(7, 5),), compiled=False),
    Sample("an axis of three", (1,), (_distinct(2, 7, 3),)),
    Sample("kept, from the end", (-2, True), (_distinct(2, 7, 3),)),
    Sample("size-1 dimensions", (1,), (_distinct(1, 1, 1),), compiled=False),
    Sample("many", (), (_distinct(3, 257),), compiled=False),
    Sample("empty batch", (), ((0, 5),)),
)

PAIRS = (
    Sample("square", (), ((7, 5), (7, 5))),
    Sample("primes", (), ((13, 17), (13, 17))),
    Sample("one pair", (), ((1, 1), (1, 1))),
    Sample("empty batch", (), ((0, 5), (0, 5))),
)

# ---- losses a sample -------------------------------------------------------------------------------------------------


def _mse_twin(layer: Any) -> Twin:
    return lambda params, x, t: F.mse_loss(x, t, reduction="none").flatten(1).mean(1, keepdim=True)


def _l1_twin(layer: nn.L1MaskedPerSample) -> Twin:
    def twin(params: Params, x: torch.Tensor, t: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        mask = valid.reshape(*valid.shape, *(1,) * (x.ndim - 2))
        off = F.l1_loss(torch.where(mask, x, 0), torch.where(mask, t, 0), reduction="none").flatten(1)
        if layer.over == "all":
            return off.mean(1, keepdim=True)
        elements = mask.expand(x.shape).flatten(1).sum(1, keepdim=True).clamp(min=1)
        return off.sum(1, keepdim=True) / elements

    return twin


MSE = (
    Sample("rank 2", (), ((7, 5), (7, 5))),
    Sample("rank 4", (), ((2, 3, 4, 5), (2, 3, 4, 5))),
    Sample("batch 1", (), ((1, 1), (1, 1)), compiled=False),
    Sample("many", (), ((3, 257), (3, 257))),
    Sample("large magnitudes", (), ((4, 5), (4, 5)), 1e3),
    Sample("empty batch", (), ((0, 5), (0, 5))),
)


def _l1(over: str) -> tuple[Sample, ...]:
    return (
        Sample("rank 3", (over,), ((4, 7, 3), (4, 7, 3), _mask(4, 7))),
        Sample("rank 2", (over,), ((4, 7), (4, 7), _mask(4, 7)), compiled=over == "all"),
        Sample("nothing valid in one", (over,), ((3, 7, 3), (3, 7, 3), _mask(3, 7, none=True))),
        Sample("batch 1", (over,), ((1, 1, 1), (1, 1, 1), lambda rng: np.ones((1, 1), bool)), compiled=False),
        Sample("empty batch", (over,), ((0, 7, 3), (0, 7, 3), _mask(0, 7))),
    )


# ---- heads and maps --------------------------------------------------------------------------------------------------


def _dueling_twin(layer: nn.DuelingHead) -> Twin:
    def twin(params: Params, x: torch.Tensor) -> torch.Tensor:
        value, advantage = x[..., :1], x[..., 1:]
        return value + advantage - advantage.mean(-1, keepdim=True)

    return twin


def _dueling_c51_twin(layer: nn.DuelingHeadC51) -> Twin:
    def twin(params: Params, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(*x.shape[:-1], 1 + layer.num_actions, layer.num_atoms)
        value, advantage = rows[..., :1, :], rows[..., 1:, :]
        return value + advantage - advantage.mean(-2, keepdim=True)

    return twin


DUELING = (
    Sample("rank 2", (5,), ((7, 6),)),
    Sample("rank 3", (3,), ((2, 3, 4),)),
    Sample("one action", (1,), ((3, 2),), compiled=False),
    Sample("batch 1", (5,), ((1, 6),)),
    Sample("large magnitudes", (5,), ((4, 6),), 1e4),
    Sample("empty batch", (5,), ((0, 6),)),
)

DUELING_C51 = (
    Sample("rank 2", (3, 11), ((7, 44),)),
    Sample("rank 3", (2, 5), ((2, 3, 15),), compiled=False),
    Sample("one action, one atom", (1, 1), ((3, 2),), compiled=False),
    Sample("many atoms", (2, 51), ((5, 153),), compiled=False),
    Sample("empty batch", (3, 11), ((0, 44),)),
)


def _block_twin(layer: nn.BlockLinear) -> Twin:
    def twin(params: Params, x: torch.Tensor) -> torch.Tensor:
        parts = [part @ weight for part, weight in zip(x.chunk(layer.blocks, -1), params["weight"], strict=True)]
        y = torch.cat(parts, -1)
        return y + params["bias"] if "bias" in params else y

    return twin


BLOCKS = (
    Sample("two blocks", (6, 4, 2), ((7, 6),)),
    Sample("one block", (5, 3, 1), ((7, 5),), compiled=False),
    Sample("blocks of one", (3, 3, 3), ((4, 3),), compiled=False),
    Sample("rank 3", (6, 9, 3), ((2, 5, 6),), compiled=False),
    Sample("primes", (55, 65, 5), ((13, 55),)),
    Sample("batch 1", (6, 4, 2), ((1, 6),)),
    Sample("large magnitudes", (6, 4, 2), ((9, 6),), 1e4, step=1e-7),
    Sample("empty batch", (6, 4, 2), ((0, 6),)),
)


def _wide(layer: type, *args: Any) -> Mistake:
    return Mistake("wrong width", lambda: layer(*args)(_zeros(2, 99)), r"expected an input of shape .*, got \[2, 99\]")


ROWS: tuple[Row, ...] = (
    Row("Slice", nn.Slice, nn.Slice, _slice_twin, (), SLICE,
        (Mistake("past the end", lambda: nn.Slice(3, 6)(_zeros(2, 5)), r"expected positions 3 to 6 on axis 1, got"),
         Mistake("no such axis", lambda: nn.Slice(0, 1, 2)(_zeros(2, 5)), r"expected an axis of \[2, 5\], got 2"),
         Mistake("nothing", lambda: nn.Slice(2, 2), r"positions 0 <= start < stop, got 2 and 2", ValueError))),
    Row("Concat", nn.Concat, nn.Concat, lambda layer: lambda params, *xs: torch.cat(xs, layer.axis), (), CONCAT,
        (Mistake("rows", lambda: nn.Concat()(_zeros(2, 5), _zeros(3, 5)),
                 r"expected arrays that differ on axis 1 only, got \[2, 5\] and \[3, 5\]"),
         Mistake("dtypes", lambda: nn.Concat().forward(_zeros(2, 5), _zeros(2, 5, dtype=np.float64)),
                 r"module Concat\(\): expected an input of dtype float32, got float64"),
         Mistake("none", lambda: nn.Concat()(), r"expected at least one input to join, got none"))),
    Row("GatherCols", nn.GatherCols, nn.GatherCols, lambda _: lambda params, x, ids: x.gather(-1, ids.long()),
        (), GATHER,
        (Mistake("too large", lambda: nn.GatherCols()(_zeros(2, 5), np.array([[0], [5]])),
                 r"expected ids 0\.\.4, got 5 at position \[1, 0\]"),
         Mistake("negative", lambda: nn.GatherCols()(_zeros(1, 5), np.array([[-1]])), r"expected ids 0\.\.4, got -1"),
         Mistake("overflowing", lambda: nn.GatherCols()(_zeros(1, 5), np.array([[2**40]])), r"got 1099511627776"),
         Mistake("floats", lambda: nn.GatherCols()(_zeros(1, 5), _zeros(1, 1)), r"expected integer ids, got float32"),
         Mistake("rows", lambda: nn.GatherCols()(_zeros(2, 5), np.zeros((3, 1), int)),
                 r"expected inputs of shapes \[\.\.\., N\] and ids \[\.\.\., K\], got \[2, 5\] and \[3, 1\]"))),
    Row("GatherActionSlice", nn.GatherActionSlice, nn.GatherActionSlice, _action_twin, (), ACTION,
        (Mistake("too large", lambda: nn.GatherActionSlice()(_zeros(2, 5, 3), np.array([0, 5])),
                 r"expected ids 0\.\.4, got 5 at position \[1\]"),
         Mistake("rows", lambda: nn.GatherActionSlice()(_zeros(2, 5, 3), np.zeros((2, 1), int)),
                 r"expected inputs of shapes \[\.\.\., A, K\] and ids \[\.\.\.\], got \[2, 5, 3\] and \[2, 1\]"))),
    Row("Reduce, sum", nn.Reduce, nn.Reduce, _reduce_twin, (), _reduce("sum"),
        (Mistake("mode", lambda: nn.Reduce("max"), r"expected mode 'sum' or 'mean', got 'max'", ValueError),
         Mistake("axis", lambda: nn.Reduce("sum", 1.5), r"Reduce: expected axis to be an axis number, got 1\.5", ValueError),
         Mistake("no such axis", lambda: nn.Reduce("sum", 2)(_zeros(2, 5)), r"that has an axis 2, got \[2, 5\]"),
         Mistake("nothing", lambda: nn.Reduce("mean")(_zeros(2, 0)), r"positive size of axis -1, got \[2, 0\]"))),
    Row("Reduce, mean", nn.Reduce, nn.Reduce, _reduce_twin, (), _reduce("mean")),
    Row("ReduceMax", nn.ReduceMax, nn.ReduceMax,
        lambda layer: lambda params, x: x.max(layer.axis, layer.keepdims).values, (), MAXIMA,
        (Mistake("nothing", lambda: nn.ReduceMax()(_zeros(2, 0)), r"positive size of axis -1, got \[2, 0\]"),
         Mistake("no such axis", lambda: nn.ReduceMax(-3)(_zeros(2, 5)), r"that has an axis -3, got \[2, 5\]")),
        step=KINKS),
    Row("PairwiseDot", nn.PairwiseDot, nn.PairwiseDot, lambda _: lambda params, a, c: a @ c.T, (), PAIRS,
        (Mistake("widths", lambda: nn.PairwiseDot()(_zeros(2, 5), _zeros(2, 4)),
                 r"expected inputs of shapes \[M, D\] and \[N, D\], got \[2, 5\] and \[2, 4\]"),)),
    Row("MSEPerSample", nn.MSEPerSample, nn.MSEPerSample, _mse_twin, (), MSE,
        (Mistake("shapes", lambda: nn.MSEPerSample()(_zeros(2, 5), _zeros(2, 1)),
                 r"expected two inputs of one shape \[B, \.\.\.\], got \[2, 5\] and \[2, 1\]"),
         Mistake("nothing", lambda: nn.MSEPerSample()(_zeros(2, 0), _zeros(2, 0)),
                 r"expected known, positive sizes behind the batch, got \[2, 0\]"))),
    Row("L1MaskedPerSample", nn.L1MaskedPerSample, nn.L1MaskedPerSample, _l1_twin, (), _l1("all"),
        (Mistake("mask", lambda: nn.L1MaskedPerSample()(_zeros(2, 5, 3), _zeros(2, 5, 3), _zeros(2, 5)),
                 r"expected a boolean mask of shape \[2, 5\], got float32 \[2, 5\]"),
         Mistake("mask shape", lambda: nn.L1MaskedPerSample()(_zeros(2, 5), _zeros(2, 5), np.ones((2, 4), bool)),
                 r"expected a boolean mask of shape \[2, 5\], got bool \[2, 4\]"),
         Mistake("over", lambda: nn.L1MaskedPerSample("some"), r"expected over 'all' or 'valid', got 'some'",
                 ValueError)), step=KINKS),
    Row("L1MaskedPerSample, valid", nn.L1MaskedPerSample, nn.L1MaskedPerSample, _l1_twin, (), _l1("valid"),
        step=KINKS),
    Row("DuelingHead", nn.DuelingHead, nn.DuelingHead, _dueling_twin, (), DUELING,
        (_wide(nn.DuelingHead, 5),
         Mistake("no actions", lambda: nn.DuelingHead(0), r"num_actions to be a positive integer, got 0", ValueError))),
    Row("DuelingHeadC51", nn.DuelingHeadC51, nn.DuelingHeadC51, _dueling_c51_twin, (), DUELING_C51,
        (_wide(nn.DuelingHeadC51, 3, 11),
         Mistake("no atoms", lambda: nn.DuelingHeadC51(3, 0), r"num_atoms to be a positive integer, got 0",
                 ValueError))),
    Row("BlockLinear", nn.BlockLinear, nn.BlockLinear, _block_twin, ("x",), BLOCKS,
        (_wide(nn.BlockLinear, 6, 4, 2),
         Mistake("blocks", lambda: nn.BlockLinear(6, 5, 2), r"expected widths that 2 blocks divide, got 6 and 5",
                 ValueError))),
    Row("BlockLinear, no bias", nn.BlockLinear, lambda *a: nn.BlockLinear(*a, bias=False), _block_twin, ("x",),
        BLOCKS[:1]),
)  # fmt: skip


# ---- parameters that get no gradient ---------------------------------------------------------------------------------


def _frozen_net() -> nn.Module:
    return nn.StopGradParams(nn.Sequential(nn.LinearTanh(5, 4), nn.Linear(4, 3)))


def _frozen_twin(net: Any) -> Twin:
    def twin(params: Params, x: torch.Tensor) -> torch.Tensor:
        w = {name: value.detach() for name, value in params.items()}
        return torch.tanh(x @ w["0.weight"] + w["0.bias"]) @ w["1.weight"] + w["1.bias"]

    return twin


GATED: tuple[Row, ...] = (
    Row("StopGradParams", nn.StopGradParams, _frozen_net, _frozen_twin, (),
        (Sample("rank 2", (), ((7, 5),)), Sample("batch 1", (), ((1, 5),)), Sample("empty batch", (), ((0, 5),))),
        (Mistake("not a module", lambda: nn.StopGradParams(np.tanh), r"StopGradParams: expected a module, got ufunc",
                 nn.CompositionError),
         Mistake("wrong input", lambda: _frozen_net()(_zeros(2, 4)), r"expected an input of shape .*, got \[2, 4\]"))),
)  # fmt: skip
"""Their vjp is not the derivative with respect to the parameters, by design: compared with PyTorch only."""
