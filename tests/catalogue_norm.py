"""Rows of the normalisation, softmax, embedding and elementwise families."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from noeira import nn, ops
from tests.catalogue import ACTIVATIONS, ELEMENTWISE, KINKS, Input, Make, Mistake, Row, Sample, _labels, _zeros
from tests.compare import Twin

Params = dict[str, torch.Tensor]


def _offset(shape: tuple[int, ...], offset: float, scale: float = 1.0) -> Input:
    return lambda rng: (offset + scale * rng.standard_normal(shape)).astype(np.float32)


def _unary(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], Twin]:
    return lambda _: lambda params, x: function(x)


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
        Mistake("wrong width", lambda: cls(5, *args)(_zeros(2, 4)), rf"{name}\(5.*\): expected an input of shape \[.*\.\.\., 5\]"),
        Mistake("zero width", lambda: cls(0, *args), rf"{name}: expected normalized_shape to be a positive .*, got 0", ValueError),
        Mistake("two axes", lambda: cls((2, 3), *args), rf"{name}: expected the width of the last axis, got \(2, 3\)", ValueError),
    )  # fmt: skip


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
        running = [torch.tensor(np.array(s.val, x.numpy(force=True).dtype)) for s in (layer.running_mean, layer.running_var)]
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
        Mistake("wrong channels", lambda: cls(4)(_zeros(*shape)), rf"{name}\(4.*\): expected an input of shape 4 on axis 1"),
        Mistake("wrong rank", lambda: cls(3)(_zeros(3)), rf"{name}\(3.*\): expected an input of shape \[B, 3.*\], got \[3\]"),
        Mistake("batch of one", lambda: cls(one[1])(_zeros(*one)), rf"{name}.*: while training, BatchNorm needs more than one value"),
        Mistake("no batch", lambda: cls(one[1])(_zeros(0, *one[1:])), r"BatchNorm needs more than one value per channel"),
        Mistake("momentum", lambda: cls(3, momentum=2.0), rf"{name}: expected a momentum between 0 and 1, got 2\.0", ValueError),
        Mistake("frozen without statistics", lambda: cls(3, track_running_stats=False, frozen=True), r"to freeze", ValueError),
    )  # fmt: skip


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


# ---- embeddings ------------------------------------------------------------------------------------------------------


def _embedding(layer: nn.Embedding) -> Twin:
    return lambda params, ids: F.embedding(ids.long(), params["weight"], layer.padding_idx)


EMBEDDING = (
    Sample("rank 1", (5, 3), (_labels(7),)),
    Sample("rank 2", (5, 16), (_labels(4, 6),)),
    Sample("rank 3", (5, 17), (_labels(2, 3, 4),)),
    Sample("one row", (1, 1), (_labels(3, classes=1),)),
    Sample("many ids", (5, 35), (_labels(300),)),
    Sample("empty batch", (5, 3), (_labels(0),)),
)

# ---- elementwise -----------------------------------------------------------------------------------------------------


class _Halted(torch.autograd.Function):
    """The identity with its gradient times a gate."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, gate: float) -> torch.Tensor:
        ctx.gate = gate
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0] * ctx.gate, None


def _symlog(x: torch.Tensor) -> torch.Tensor:
    return torch.copysign(torch.log1p(x.abs()), x)


def _symexp(x: torch.Tensor) -> torch.Tensor:
    return torch.copysign(torch.expm1(x.abs()), x)


COARSE = tuple(sample for sample in ELEMENTWISE if 1 <= sample.scale <= 4)
MODERATE = tuple(sample for sample in ELEMENTWISE if sample.scale <= 4)


def _formula(cls: type, function: Callable[[torch.Tensor], torch.Tensor], *args: Any, **options: Any) -> Row:
    options = {"samples": ELEMENTWISE, "saves": ("x",), "step": KINKS} | options
    make: Make = lambda: cls(*args)  # noqa: E731
    return Row(f"{cls.__name__} {args}" if args else cls.__name__, cls, make, _unary(function), **options)


def _cube(x: ops.Array) -> ops.Array:
    return x * x * x


def _logistic(x: ops.Array) -> ops.Array:
    return 1.0 / (ops.exp(-x) + 1.0)


BINARY = (
    Sample("same shapes", (), ((7, 5), (7, 5))),
    Sample("a broadcast row", (), ((7, 5), (1, 5))),
    Sample("fewer axes", (), ((3, 4, 5), (5,))),
    Sample("empty batch", (), ((0, 5), (1, 5))),
)
CONDITIONED = (
    Sample("same shapes", (5,), ((2, 3, 5), (2, 3, 5), (2, 3, 5))),
    Sample("one condition a sample", (5,), ((2, 3, 5), (2, 1, 5), (2, 1, 5))),
    Sample("rank 2", (5,), ((4, 5), (4, 5), (4, 5))),
    Sample("empty batch", (5,), ((0, 3, 5), (0, 1, 5), (0, 1, 5))),
)


def _swiglu(params: Params, x: torch.Tensor) -> torch.Tensor:
    u, v = x.chunk(2, -1)
    return u * F.silu(v)


def _positions(params: Params, x: torch.Tensor) -> torch.Tensor:
    length, width = x.shape[-2:]
    angle = torch.arange(length)[:, None].double() / 10000.0 ** (torch.arange(0, width, 2).double() / width)
    table = torch.stack([angle.sin(), angle.cos()], -1).flatten(1)[:, :width]
    return x + table.to(x.dtype)


ROWS: tuple[Row, ...] = (
    Row("LayerNorm", nn.LayerNorm, nn.LayerNorm, _layer_norm, ("x", "stats"), ROWS_OF, _row_mistakes(nn.LayerNorm)),
    Row("LayerNorm, no bias", nn.LayerNorm, lambda n: nn.LayerNorm(n, bias=False), _layer_norm, ("x", "stats"), ROWS_OF[:4]),
    Row("LayerNorm, no affine", nn.LayerNorm, lambda n: nn.LayerNorm(n, 0.1, False), _layer_norm, ("x", "stats"), ROWS_OF[:4]),
    Row("LayerNormNoAffine", nn.LayerNormNoAffine, nn.LayerNormNoAffine, _layer_norm, ("x", "stats"), ROWS_OF[:6],
        _row_mistakes(nn.LayerNormNoAffine)),
    Row("LayerNormAct tanh", nn.LayerNormAct, lambda n: nn.LayerNormAct(n, "tanh"), _layer_norm, ("x", "stats", "y"),
        ROWS_OF[:6], _row_mistakes(nn.LayerNormAct, "tanh"), step=1e-3),
    Row("LayerNormAct gelu", nn.LayerNormAct, lambda n: nn.LayerNormAct(n, "gelu"), _layer_norm, ("x", "stats"), ROWS_OF[:6],
        step=1e-3),
    Row("RMSNorm", nn.RMSNorm, nn.RMSNorm, _rms_norm, ("x", "stats"), ROWS_OF[:5] + ROWS_OF[6:], _row_mistakes(nn.RMSNorm)),
    Row("RMSNorm, eps 1", nn.RMSNorm, lambda n: nn.RMSNorm(n, 1.0), _rms_norm, ("x", "stats"), ROWS_OF[:4]),
    Row("GroupNorm", nn.GroupNorm, nn.GroupNorm, _group_norm, ("x", "stats"), GROUPS, (
        Mistake("groups", lambda: nn.GroupNorm(4, 6), r"GroupNorm: expected num_channels to be a multiple of 4, got 6", ValueError),
        Mistake("channels", lambda: nn.GroupNorm(2, 6)(_zeros(2, 5, 3)), r"expected an input of shape 6 on axis 1, got"))),
    Row("GroupNorm, no affine", nn.GroupNorm, lambda *a: nn.GroupNorm(*a, affine=False), _group_norm, ("x", "stats"), GROUPS[:3]),
    Row("ConvRMSNorm", nn.ConvRMSNorm, nn.ConvRMSNorm, _conv_rms, ("x",), (
        Sample("rank 4", (6,), ((3, 6, 4, 5),)), Sample("rank 3", (3,), ((2, 3, 7),)), Sample("one channel", (1,), ((2, 1, 3),)),
        Sample("empty batch", (3,), ((0, 3, 7),))), (
        Mistake("channels", lambda: nn.ConvRMSNorm(6)(_zeros(2, 5, 3)), r"expected an input of shape 6 on axis 1, got"),)),
    Row("BatchNorm1D", nn.BatchNorm1D, nn.BatchNorm1D, _batch_norm, ("x", "stats", "flag"), BATCH_1D,
        _batch_mistakes(nn.BatchNorm1D, (4, 3), (1, 3))),
    Row("BatchNorm1D, no affine", nn.BatchNorm1D, lambda n: nn.BatchNorm1D(n, affine=False), _batch_norm,
        ("x", "stats", "flag"), BATCH_1D[:4:3]),
    Row("BatchNorm1D, no running statistics", nn.BatchNorm1D, lambda n: nn.BatchNorm1D(n, track_running_stats=False),
        _batch_norm, ("x", "stats", "flag"), BATCH_1D[:4:3], prepare=nn.BatchNorm1D.eval),
    Row("BatchNorm1D, evaluation", nn.BatchNorm1D, lambda n: _settled(nn.BatchNorm1D(n)), _batch_norm,
        ("x", "stats", "flag"), EMPTY_1D, prepare=nn.BatchNorm1D.eval),
    Row("BatchNorm2D", nn.BatchNorm2D, nn.BatchNorm2D, _batch_norm, ("x", "stats", "flag"), BATCH_2D,
        _batch_mistakes(nn.BatchNorm2D, (4, 3, 2, 2), (1, 3, 1, 1))),
    Row("BatchNorm2D, frozen", nn.BatchNorm2D, lambda n: _settled(nn.BatchNorm2D(n, frozen=True)), _batch_norm,
        ("x", "stats", "flag"), BATCH_2D),
    Row("SimNorm", nn.SimNorm, nn.SimNorm, _sim_norm, ("y",), (
        Sample("rank 2", (12, 3), ((5, 12),)), Sample("rank 3", (6, 2), ((2, 3, 6),)), Sample("one group", (5, 1), ((3, 5),)),
        Sample("empty batch", (6, 2), ((0, 6),))), (
        Mistake("groups", lambda: nn.SimNorm(6, 4), r"SimNorm: expected features to be a multiple of 4, got 6", ValueError),)),
    Row("MinMaxNorm", nn.MinMaxNorm, nn.MinMaxNorm, _min_max, ("x",), (
        Sample("rank 2", (7,), ((5, 7),)), Sample("rank 3", (4,), ((2, 3, 4),)), Sample("one feature", (1,), ((3, 1),)),
        Sample("wide", (131,), ((3, 131),)), Sample("empty batch", (7,), ((0, 7),))), (
        Mistake("eps", lambda: nn.MinMaxNorm(4, 0), r"MinMaxNorm: expected a positive eps, got 0", ValueError),), step=KINKS),
    Row("Softmax", nn.Softmax, nn.Softmax, _unary(lambda x: x.softmax(-1)), ("y",), SOFTMAX, SOFTMAX_MISTAKES(nn.Softmax)),
    Row("LogSoftmax", nn.LogSoftmax, nn.LogSoftmax, _unary(lambda x: x.log_softmax(-1)), ("y",), SOFTMAX,
        SOFTMAX_MISTAKES(nn.LogSoftmax)),
    Row("Embedding", nn.Embedding, nn.Embedding, _embedding, ("x",), EMBEDDING, (
        Mistake("id too large", lambda: nn.Embedding(5, 3)(np.array([[0, 5]])), r"expected ids 0\.\.4, got 5 at position \[0, 1\]"),
        Mistake("negative id", lambda: nn.Embedding(5, 3)(np.array([-1])), r"expected ids 0\.\.4, got -1 at position \[0\]"),
        Mistake("overflowing id", lambda: nn.Embedding(5, 3)(np.array([2**40])), r"expected ids 0\.\.4, got 1099511627776"),
        Mistake("floats", lambda: nn.Embedding(5, 3)(_zeros(2)), r"expected integer ids, got float32 of shape \[2\]"),
        Mistake("padding", lambda: nn.Embedding(5, 3, 5), r"expected padding_idx within 5 embeddings, got 5", ValueError))),
    _formula(nn.LeakyReLU, F.leaky_relu, samples=COARSE),
    _formula(nn.LeakyReLU, lambda x: F.leaky_relu(x, 0.25), 0.25, samples=ELEMENTWISE[:2]),
    _formula(nn.ELU, F.elu),
    _formula(nn.ELU, lambda x: F.elu(x, 1.5), 1.5, samples=ELEMENTWISE[:2]),
    _formula(nn.Softplus, F.softplus),
    _formula(nn.Softplus, lambda x: F.softplus(x, 2.0, 1.0), 2.0, 1.0, samples=ELEMENTWISE[:2], mistakes=(
        Mistake("beta", lambda: nn.Softplus(0), r"Softplus: expected a positive beta, got 0", ValueError),)),
    _formula(nn.Symlog, _symlog),
    _formula(nn.Symexp, _symexp, samples=MODERATE),
    _formula(nn.Clamp, lambda x: x.clamp(-0.5, 0.75), -0.5, 0.75, mistakes=(
        Mistake("limits", lambda: nn.Clamp(1, 0), r"Clamp: expected min <= max, got 1 and 0", ValueError),)),
    _formula(nn.Scale, lambda x: x * -2.5, -2.5, saves=()),
    _formula(nn.CenterHalf, lambda x: x - 0.5, saves=()),
    Row("Elementwise", nn.Elementwise, lambda: nn.Elementwise(_cube, lambda x: 3.0 * x * x), _unary(lambda x: x**3), ("x",),
        COARSE, (Mistake("not callable", lambda: nn.Elementwise(_cube, 3), r"expected derivative to be callable", ValueError),
                   Mistake("shape", lambda: nn.Elementwise(lambda x: ops.sum_axis(x, 0), _cube)(_zeros(2, 3)),
                           r"expected the function to give shape \[2, 3\], got \[3\]"))),
    Row("Elementwise, from the output", nn.Elementwise,
        lambda: nn.Elementwise(_logistic, lambda y: y * (1.0 - y), from_output=True), _unary(torch.sigmoid), ("y",), MODERATE),
    Row("BinaryElementwise", nn.BinaryElementwise, lambda: nn.BinaryElementwise(lambda a, b: a * b, lambda a, b: (b, a)),
        lambda _: lambda params, a, b: a * b, ("x", "second"), BINARY,
        (Mistake("not callable", lambda: nn.BinaryElementwise(1, _cube), r"expected function to be callable", ValueError),)),
    Row("BiasAdd", nn.BiasAdd, nn.BiasAdd, lambda _: lambda params, x: x + params["bias"], (), (
        Sample("rank 2", (5,), ((7, 5),)), Sample("positions", (3, 5), ((2, 3, 5),)), Sample("rank 4", (5,), ((2, 3, 4, 5),)),
        Sample("empty batch", (3, 5), ((0, 3, 5),))), (
        Mistake("shape", lambda: nn.BiasAdd(3, 5)(_zeros(2, 4, 5)), r"expected an input of shape \[\.\.\., 3, 5\], got"),
        Mistake("nothing", lambda: nn.BiasAdd(), r"BiasAdd: expected the shape of the last axes", ValueError))),
    Row("SwiGLU", nn.SwiGLU, nn.SwiGLU, lambda _: _swiglu, ("x",), (
        Sample("rank 2", (5,), ((7, 10),)), Sample("rank 3", (17,), ((2, 3, 34),)), Sample("one", (1,), ((3, 2),)),
        Sample("large magnitudes", (4,), ((5, 8),), 1e3, step=1e-3), Sample("empty batch", (5,), ((0, 10),))), (
        Mistake("width", lambda: nn.SwiGLU(4)(_zeros(2, 7)), r"expected an input of shape \[.*\.\.\., 8\], got \[2, 7\]"),)),
    Row("Gate", nn.Gate, nn.Gate, lambda _: lambda params, x, g, b: x + g * b, ("second", "third"), CONDITIONED, (
        Mistake("width", lambda: nn.Gate(4)(_zeros(2, 7), _zeros(2, 7), _zeros(2, 7)), r"shape \[.*\.\.\., 4\], got \[2, 7\]"),)),
    Row("Modulate", nn.Modulate, nn.Modulate, lambda _: lambda params, x, s, t: x * (1 + s) + t, ("x", "second", "third shape"),
        CONDITIONED),
    Row("TokenMean", nn.TokenMean, nn.TokenMean, lambda _: lambda params, x: x.mean(1), ("shape",), (
        Sample("rank 3", (), ((2, 7, 5),)), Sample("one token", (), ((3, 1, 4),)), Sample("empty batch", (), ((0, 3, 4),))), (
        Mistake("rank", lambda: nn.TokenMean()(_zeros(2, 3)), r"expected an input of shape \[B, S, D\] .*, got \[2, 3\]"),)),
    Row("SinusoidalPosAdd", nn.SinusoidalPosAdd, nn.SinusoidalPosAdd, lambda _: _positions, (), (
        Sample("even", (7, 6), ((2, 7, 6),)), Sample("odd", (3, 5), ((2, 3, 5),)), Sample("empty batch", (3, 4), ((0, 3, 4),))), (
        Mistake("tokens", lambda: nn.SinusoidalPosAdd(3, 4)(_zeros(1, 2, 4)), r"shape \[\.\.\., 3, 4\], got \[1, 2, 4\]"),)),
)  # fmt: skip

GATED: tuple[Row, ...] = (
    Row("Embedding, padding", nn.Embedding, lambda *a: nn.Embedding(*a, padding_idx=-1), _embedding, ("x",), EMBEDDING[:3]),
    Row("StopGrad", nn.StopGrad, nn.StopGrad, _unary(lambda x: _Halted.apply(x, 0.0)), (), ELEMENTWISE[:3]),
    Row("GradGate", nn.GradGate, nn.GradGate, _unary(lambda x: x), (), ELEMENTWISE[:2]),
    Row("GradGate, reversed", nn.GradGate, lambda: nn.GradGate(-0.5), _unary(lambda x: _Halted.apply(x, -0.5)), (), ELEMENTWISE[:2]),
    Row("GradGate, closed", nn.GradGate, lambda: nn.GradGate(0), _unary(lambda x: _Halted.apply(x, 0.0)), (), ELEMENTWISE[:2]),
)  # fmt: skip
"""Layers whose vjp is not the derivative of their forward, by design: compared with PyTorch, not with differences."""
