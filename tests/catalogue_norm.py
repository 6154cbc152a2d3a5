"""Rows of the normalisation and softmax families, and (from `catalogue_elementwise`) of their relatives."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from noeira import nn
from tests import catalogue_elementwise
from tests.catalogue import ACTIVATIONS, KINKS, Input, Mistake, Row, Sample, _zeros
from tests.catalogue_elementwise import GATED, Params, _unary
from tests.compare import Twin

__all__ = ["GATED", "ROWS"]


def _offset(shape: tuple[int, ...], offset: float, scale: float = 1.0) -> Input:
    return lambda rng: (offset + scale * rng.standard_normal(shape)).astype(np.float32)


# ---- rows ------------------------------------------------------------------------------------------------------------

ROWS_OF = (
    Sample("rank 2", (5,), ((7, 5),)),
    Sample("batch 1", (13,), ((1, 13),)),
    Sample("one vector", (16,), ((3, 16),)),
    Sample("one over a vector", (17,), ((35, 17),)),
    Sample("rank 3", (5,), ((2, 3, 5),)),
    Sample("large mean", (24,), (_offset((9, 24), 30.0),), step=1e-3),
    Sample("large magnitudes", (8,), ((6, 8),), 1e4, step=10.0),
    Sample("wide", (515,), ((3, 515),)),
    Sample("many rows", (7,), ((211, 7),)),
    Sample("empty batch", (5,), ((0, 5),)),
)


def _layer_norm(layer: nn.Module) -> Twin:
    act = ACTIVATIONS.get(getattr(layer, "function", ""), lambda z: z)
    size, eps = (layer.normalized_shape,), layer.eps
    return lambda params, x: act(F.layer_norm(x, size, params.get("weight"), params.get("bias"), eps))


def _rms_norm(layer: nn.RMSNorm) -> Twin:
    def twin(params: Params, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (layer.normalized_shape,), params.get("weight"), layer.eps)

    return twin


def _row_mistakes(cls: type, *args: Any) -> tuple[Mistake, ...]:
    name = cls.__name__
    return (
        Mistake(
            "wrong width",
            lambda: cls(5, *args)(_zeros(2, 4)),
            rf"{name}\(5.*\): expected an input of shape \[.*\.\.\., 5\]",
        ),
        Mistake(
            "zero width",
            lambda: cls(0, *args),
            rf"{name}: expected normalized_shape to be a positive .*, got 0",
            ValueError,
        ),
        Mistake(
            "two axes",
            lambda: cls((2, 3), *args),
            rf"{name}: expected normalized_shape to be the width of the last axis, got \(2, 3\)",
            ValueError,
        ),
    )


# ---- channels --------------------------------------------------------------------------------------------------------

GROUPS = (
    Sample("rank 4", (2, 6), ((3, 6, 4, 5),)),
    Sample("rank 3", (3, 6), ((2, 6, 7),)),
    Sample("rank 2", (2, 6), ((5, 6),)),
    Sample("one group", (1, 6), ((2, 6, 3, 3),)),
    Sample("a group a channel", (6, 6), ((2, 6, 17),)),
    Sample("one channel", (1, 1), ((3, 1, 6),)),
    Sample("large mean", (2, 4), (_offset((3, 4, 9), 30.0),), step=1e-3),
    Sample("many samples", (1, 4), ((67, 4),), step=1e-3),
    Sample("empty batch", (2, 6), ((0, 6, 7),)),
)


def _group_norm(layer: nn.GroupNorm) -> Twin:
    return lambda params, x: F.group_norm(x, layer.num_groups, params.get("weight"), params.get("bias"), layer.eps)


def _conv_rms(layer: nn.ConvRMSNorm) -> Twin:
    def twin(params: Params, x: torch.Tensor) -> torch.Tensor:
        y = F.rms_norm(x.movedim(1, -1), (layer.num_channels,), params["weight"], layer.eps)
        return y.movedim(-1, 1)

    return twin


def _batch_norm(layer: nn.BatchNorm) -> Twin:
    def twin(params: Params, x: torch.Tensor) -> torch.Tensor:
        by_batch = layer.running_mean is None or (layer.training and not layer.frozen)
        if by_batch:
            return F.batch_norm(x, None, None, params.get("weight"), params.get("bias"), True, 0.1, layer.eps)
        running = [
            torch.tensor(np.array(s.val, x.numpy(force=True).dtype)) for s in (layer.running_mean, layer.running_var)
        ]
        return F.batch_norm(x, *running, params.get("weight"), params.get("bias"), False, 0.1, layer.eps)

    return twin


def _settled(layer: nn.BatchNorm) -> nn.BatchNorm:
    """With running statistics that are not those of a fresh layer."""
    assert layer.running_mean is not None and layer.running_var is not None
    layer.running_mean.fill, layer.running_var.fill = 0.25, 2.5
    return layer


BATCH_1D = (
    Sample("features", (5,), ((7, 5),)),
    Sample("two rows", (3,), ((2, 3),)),
    Sample("one over a vector", (17,), ((129, 17),)),
    Sample("sequences", (3,), ((4, 3, 9),)),
    Sample("one long sequence", (2,), ((1, 2, 700),)),
    Sample("large mean", (5,), (_offset((40, 5), 30.0),), step=1e-3),
    Sample("large mean of sequences", (3,), (_offset((4, 3, 9), 30.0),), step=1e-3),
)
BATCH_2D = (
    Sample("images", (3,), ((4, 3, 5, 6),)),
    Sample("one image", (2,), ((1, 2, 3, 3),)),
    Sample("one pixel", (4,), ((6, 4, 1, 1),)),
    Sample("larger maps", (3,), ((2, 3, 70, 65),)),
)
EMPTY_1D = (*BATCH_1D, Sample("empty batch", (5,), ((0, 5),)), Sample("one row", (5,), ((1, 5),)))


def _batch_mistakes(cls: type, shape: tuple[int, ...], one: tuple[int, ...]) -> tuple[Mistake, ...]:
    name = cls.__name__
    return (
        Mistake(
            "wrong channels", lambda: cls(4)(_zeros(*shape)), rf"{name}\(4.*\): expected an input of shape 4 on axis 1"
        ),
        Mistake(
            "wrong rank", lambda: cls(3)(_zeros(3)), rf"{name}\(3.*\): expected an input of shape \[B, 3.*\], got \[3\]"
        ),
        Mistake(
            "batch of one",
            lambda: cls(one[1])(_zeros(*one)),
            rf"{name}.*: while training, BatchNorm needs more than one value",
        ),
        Mistake(
            "no batch", lambda: cls(one[1])(_zeros(0, *one[1:])), r"BatchNorm needs more than one value per channel"
        ),
        Mistake(
            "momentum",
            lambda: cls(3, momentum=2.0),
            rf"{name}: expected momentum to be a number between 0 and 1, got 2\.0",
            ValueError,
        ),
        Mistake(
            "frozen without statistics",
            lambda: cls(3, track_running_stats=False, frozen=True),
            r"to freeze",
            ValueError,
        ),
    )


# ---- simplexes and ranges --------------------------------------------------------------------------------------------

SOFTMAX = (
    Sample("rank 2", (), ((7, 5),)),
    Sample("batch 1", (), ((1, 13),)),
    Sample("one class", (), ((3, 1),)),
    Sample("rank 3", (), ((2, 3, 17),)),
    Sample("large magnitudes", (), ((5, 8),), 20.0, step=1e-3),
    Sample("wide", (), ((3, 515),)),
    Sample("many rows", (), ((211, 7),)),
    Sample("empty batch", (), ((0, 5),)),
)
SOFTMAX_MISTAKES = lambda cls: (  # noqa: E731
    Mistake("another axis", lambda: cls(dim=0)(_zeros(2, 3)), r"expected dim to be the last axis of \[2, 3\], got 0"),
)


def _sim_norm(layer: nn.SimNorm) -> Twin:
    return lambda params, x: x.unflatten(-1, (layer.groups, -1)).softmax(-1).flatten(-2)


def _min_max(layer: nn.MinMaxNorm) -> Twin:
    def twin(params: Params, x: torch.Tensor) -> torch.Tensor:
        low, high = x.gather(-1, x.argmin(-1, keepdim=True)), x.gather(-1, x.argmax(-1, keepdim=True))
        span = high - low
        y = (x - low) / torch.where(span > layer.eps, span, torch.full_like(span, layer.eps))
        return torch.where(span > layer.eps, y, y.detach())

    return twin


ROWS: tuple[Row, ...] = (
    Row("LayerNorm", nn.LayerNorm, nn.LayerNorm, _layer_norm, ("x", "stats"), ROWS_OF, _row_mistakes(nn.LayerNorm)),
    Row(
        "LayerNorm, no bias",
        nn.LayerNorm,
        lambda n: nn.LayerNorm(n, bias=False),
        _layer_norm,
        ("x", "stats"),
        ROWS_OF[:4],
    ),
    Row(
        "LayerNorm, no affine",
        nn.LayerNorm,
        lambda n: nn.LayerNorm(n, 0.1, False),
        _layer_norm,
        ("x", "stats"),
        ROWS_OF[:4],
    ),
    Row(
        "LayerNormNoAffine",
        nn.LayerNormNoAffine,
        nn.LayerNormNoAffine,
        _layer_norm,
        ("x", "stats"),
        ROWS_OF[:6],
        _row_mistakes(nn.LayerNormNoAffine),
    ),
    Row(
        "LayerNormAct tanh",
        nn.LayerNormAct,
        lambda n: nn.LayerNormAct(n, "tanh"),
        _layer_norm,
        ("x", "stats", "y"),
        ROWS_OF[:6],
        _row_mistakes(nn.LayerNormAct, "tanh"),
        step=1e-3,
    ),
    Row(
        "LayerNormAct gelu",
        nn.LayerNormAct,
        lambda n: nn.LayerNormAct(n, "gelu"),
        _layer_norm,
        ("x", "stats"),
        ROWS_OF[:6],
        step=1e-3,
    ),
    Row(
        "RMSNorm",
        nn.RMSNorm,
        nn.RMSNorm,
        _rms_norm,
        ("x", "stats"),
        ROWS_OF[:5] + ROWS_OF[6:],
        _row_mistakes(nn.RMSNorm),
    ),
    Row("RMSNorm, eps 1", nn.RMSNorm, lambda n: nn.RMSNorm(n, 1.0), _rms_norm, ("x", "stats"), ROWS_OF[:4]),
    Row(
        "GroupNorm",
        nn.GroupNorm,
        nn.GroupNorm,
        _group_norm,
        ("x", "stats"),
        GROUPS,
        (
            Mistake(
                "groups",
                lambda: nn.GroupNorm(4, 6),
                r"GroupNorm: expected num_channels to be a multiple of 4, got 6",
                ValueError,
            ),
            Mistake(
                "channels", lambda: nn.GroupNorm(2, 6)(_zeros(2, 5, 3)), r"expected an input of shape 6 on axis 1, got"
            ),
        ),
    ),
    Row(
        "GroupNorm, no affine",
        nn.GroupNorm,
        lambda *a: nn.GroupNorm(*a, affine=False),
        _group_norm,
        ("x", "stats"),
        GROUPS[:3],
    ),
    Row(
        "ConvRMSNorm",
        nn.ConvRMSNorm,
        nn.ConvRMSNorm,
        _conv_rms,
        ("x",),
        (
            Sample("rank 4", (6,), ((3, 6, 4, 5),)),
            Sample("rank 3", (3,), ((2, 3, 7),)),
            Sample("one channel", (1,), ((2, 1, 3),)),
            Sample("empty batch", (3,), ((0, 3, 7),)),
        ),
        (
            Mistake(
                "channels", lambda: nn.ConvRMSNorm(6)(_zeros(2, 5, 3)), r"expected an input of shape 6 on axis 1, got"
            ),
        ),
    ),
    Row(
        "BatchNorm1D",
        nn.BatchNorm1D,
        nn.BatchNorm1D,
        _batch_norm,
        ("x", "stats", "flag"),
        BATCH_1D,
        _batch_mistakes(nn.BatchNorm1D, (4, 3), (1, 3)),
    ),
    Row(
        "BatchNorm1D, no affine",
        nn.BatchNorm1D,
        lambda n: nn.BatchNorm1D(n, affine=False),
        _batch_norm,
        ("x", "stats", "flag"),
        BATCH_1D[:4:3],
    ),
    Row(
        "BatchNorm1D, no running statistics",
        nn.BatchNorm1D,
        lambda n: nn.BatchNorm1D(n, track_running_stats=False),
        _batch_norm,
        ("x", "stats", "flag"),
        BATCH_1D[:4:3],
        (
            Mistake(
                "batch of one in evaluation",
                lambda: nn.BatchNorm1D(3, track_running_stats=False).eval()(_zeros(1, 3)),
                r"BatchNorm1D\(3.*\): without running statistics, BatchNorm needs more than one value per channel .*, "
                r"got an input of shape \[1, 3\]; use a larger batch, or track_running_stats=True",
            ),
        ),
        prepare=nn.BatchNorm1D.eval,
    ),
    Row(
        "BatchNorm1D, evaluation",
        nn.BatchNorm1D,
        lambda n: _settled(nn.BatchNorm1D(n)),
        _batch_norm,
        ("x", "stats", "flag"),
        EMPTY_1D,
        prepare=nn.BatchNorm1D.eval,
    ),
    Row(
        "BatchNorm2D",
        nn.BatchNorm2D,
        nn.BatchNorm2D,
        _batch_norm,
        ("x", "stats", "flag"),
        BATCH_2D,
        _batch_mistakes(nn.BatchNorm2D, (4, 3, 2, 2), (1, 3, 1, 1)),
    ),
    Row(
        "BatchNorm2D, frozen",
        nn.BatchNorm2D,
        lambda n: _settled(nn.BatchNorm2D(n, frozen=True)),
        _batch_norm,
        ("x", "stats", "flag"),
        BATCH_2D,
    ),
    *(
        Row(
            f"BatchNorm2DAct, {function}{label}",
            nn.BatchNorm2DAct,
            make,
            lambda layer: lambda params, x: ACTIVATIONS[layer.function](_batch_norm(layer)(params, x)),
            ("x", "stats", "flag"),
            BATCH_2D,
            _batch_mistakes(nn.BatchNorm2DAct, (4, 3, 2, 2), (1, 3, 1, 1)) if function == "relu" else (),
            step=KINKS if function == "relu" else 1e-2,
        )
        for function, label, make in (
            ("relu", "", nn.BatchNorm2DAct),
            ("gelu", "", lambda n: nn.BatchNorm2DAct(n, "gelu")),
            ("tanh", ", no affine", lambda n: nn.BatchNorm2DAct(n, "tanh", affine=False)),
            ("sigmoid", ", frozen", lambda n: _settled(nn.BatchNorm2DAct(n, "sigmoid", frozen=True))),
        )
    ),
    Row(
        "SimNorm",
        nn.SimNorm,
        nn.SimNorm,
        _sim_norm,
        ("y",),
        (
            Sample("rank 2", (12, 3), ((5, 12),)),
            Sample("rank 3", (6, 2), ((2, 3, 6),)),
            Sample("one group", (5, 1), ((3, 5),)),
            Sample("empty batch", (6, 2), ((0, 6),)),
        ),
        (
            Mistake(
                "groups",
                lambda: nn.SimNorm(6, 4),
                r"SimNorm: expected features to be a multiple of 4, got 6",
                ValueError,
            ),
        ),
    ),
    Row(
        "MinMaxNorm",
        nn.MinMaxNorm,
        nn.MinMaxNorm,
        _min_max,
        ("x",),
        (
            Sample("rank 2", (7,), ((5, 7),)),
            Sample("rank 3", (4,), ((2, 3, 4),)),
            Sample("one feature", (1,), ((3, 1),)),
            Sample("wide", (131,), ((3, 131),)),
            Sample("empty batch", (7,), ((0, 7),)),
        ),
        (
            Mistake(
                "eps",
                lambda: nn.MinMaxNorm(4, 0),
                r"MinMaxNorm: expected eps to be a positive finite number, got 0",
                ValueError,
            ),
        ),
        step=KINKS,
    ),
    Row(
        "Softmax",
        nn.Softmax,
        nn.Softmax,
        _unary(lambda x: x.softmax(-1)),
        ("y",),
        SOFTMAX,
        SOFTMAX_MISTAKES(nn.Softmax),
    ),
    Row(
        "LogSoftmax",
        nn.LogSoftmax,
        nn.LogSoftmax,
        _unary(lambda x: x.log_softmax(-1)),
        ("y",),
        SOFTMAX,
        SOFTMAX_MISTAKES(nn.LogSoftmax),
    ),
    *catalogue_elementwise.ROWS,
)
