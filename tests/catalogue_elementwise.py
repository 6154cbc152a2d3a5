"""Rows of embeddings, of elementwise layers with parameters, and of the small pieces of transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from noeira import nn, ops
from tests.catalogue import ELEMENTWISE, KINKS, Make, Mistake, Row, Sample, _labels, _zeros
from tests.compare import Twin

Params = dict[str, torch.Tensor]


def _unary(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], Twin]:
    return lambda _: lambda params, x: function(x)


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
    Row(
        "Embedding",
        nn.Embedding,
        nn.Embedding,
        _embedding,
        ("x",),
        EMBEDDING,
        (
            Mistake(
                "id too large",
                lambda: nn.Embedding(5, 3)(np.array([[0, 5]])),
                r"expected ids 0\.\.4, got 5 at position \[0, 1\]",
            ),
            Mistake(
                "negative id",
                lambda: nn.Embedding(5, 3)(np.array([-1])),
                r"expected ids 0\.\.4, got -1 at position \[0\]",
            ),
            Mistake(
                "overflowing id",
                lambda: nn.Embedding(5, 3)(np.array([2**40])),
                r"expected ids 0\.\.4, got 1099511627776",
            ),
            Mistake(
                "floats", lambda: nn.Embedding(5, 3)(_zeros(2)), r"expected integer ids, got float32 of shape \[2\]"
            ),
            Mistake(
                "padding", lambda: nn.Embedding(5, 3, 5), r"expected padding_idx within 5 embeddings, got 5", ValueError
            ),
        ),
    ),
    _formula(nn.LeakyReLU, F.leaky_relu, samples=COARSE),
    _formula(nn.LeakyReLU, lambda x: F.leaky_relu(x, 0.25), 0.25, samples=ELEMENTWISE[:2]),
    _formula(nn.ELU, F.elu),
    _formula(nn.ELU, lambda x: F.elu(x, 1.5), 1.5, samples=ELEMENTWISE[:2]),
    _formula(nn.Softplus, F.softplus),
    _formula(
        nn.Softplus,
        lambda x: F.softplus(x, 2.0, 1.0),
        2.0,
        1.0,
        samples=ELEMENTWISE[:2],
        mistakes=(
            Mistake(
                "beta",
                lambda: nn.Softplus(0),
                r"Softplus: expected beta to be a positive finite number, got 0",
                ValueError,
            ),
        ),
    ),
    _formula(nn.Symlog, _symlog),
    _formula(nn.Symexp, _symexp, samples=MODERATE),
    _formula(
        nn.Clamp,
        lambda x: x.clamp(-0.5, 0.75),
        -0.5,
        0.75,
        mistakes=(Mistake("limits", lambda: nn.Clamp(1, 0), r"Clamp: expected min <= max, got 1 and 0", ValueError),),
    ),
    _formula(nn.Scale, lambda x: x * -2.5, -2.5, saves=()),
    _formula(nn.CenterHalf, lambda x: x - 0.5, saves=()),
    Row(
        "Elementwise",
        nn.Elementwise,
        lambda: nn.Elementwise(_cube, lambda x: 3.0 * x * x),
        _unary(lambda x: x**3),
        ("x",),
        COARSE,
        (
            Mistake(
                "not callable", lambda: nn.Elementwise(_cube, 3), r"expected derivative to be callable", ValueError
            ),
            Mistake(
                "shape",
                lambda: nn.Elementwise(lambda x: ops.sum_axis(x, 0), _cube)(_zeros(2, 3)),
                r"expected the function to give shape \[2, 3\], got \[3\]",
            ),
        ),
    ),
    Row(
        "Elementwise, from the output",
        nn.Elementwise,
        lambda: nn.Elementwise(_logistic, lambda y: y * (1.0 - y), from_output=True),
        _unary(torch.sigmoid),
        ("y",),
        MODERATE,
    ),
    Row(
        "BinaryElementwise",
        nn.BinaryElementwise,
        lambda: nn.BinaryElementwise(lambda a, b: a * b, lambda a, b: (b, a)),
        lambda _: lambda params, a, b: a * b,
        ("x", "second"),
        BINARY,
        (
            Mistake(
                "not callable", lambda: nn.BinaryElementwise(1, _cube), r"expected function to be callable", ValueError
            ),
        ),
    ),
    Row(
        "BiasAdd",
        nn.BiasAdd,
        nn.BiasAdd,
        lambda _: lambda params, x: x + params["bias"],
        ("shape",),
        (
            Sample("rank 2", (5,), ((7, 5),)),
            Sample("positions", (3, 5), ((2, 3, 5),)),
            Sample("rank 4", (5,), ((2, 3, 4, 5),)),
            Sample("empty batch", (3, 5), ((0, 3, 5),)),
        ),
        (
            Mistake(
                "shape", lambda: nn.BiasAdd(3, 5)(_zeros(2, 4, 5)), r"expected an input of shape \[\.\.\., 3, 5\], got"
            ),
            Mistake("nothing", lambda: nn.BiasAdd(), r"BiasAdd: expected the shape of the last axes", ValueError),
        ),
    ),
    Row(
        "SwiGLU",
        nn.SwiGLU,
        nn.SwiGLU,
        lambda _: _swiglu,
        ("x",),
        (
            Sample("rank 2", (5,), ((7, 10),)),
            Sample("rank 3", (17,), ((2, 3, 34),)),
            Sample("one", (1,), ((3, 2),)),
            Sample("large magnitudes", (4,), ((5, 8),), 1e3, step=1e-3),
            Sample("empty batch", (5,), ((0, 10),)),
        ),
        (
            Mistake(
                "width", lambda: nn.SwiGLU(4)(_zeros(2, 7)), r"expected an input of shape \[.*\.\.\., 8\], got \[2, 7\]"
            ),
        ),
    ),
    Row(
        "Gate",
        nn.Gate,
        nn.Gate,
        lambda _: lambda params, x, g, b: x + g * b,
        ("second", "third", "shape"),
        CONDITIONED,
        (
            Mistake(
                "width",
                lambda: nn.Gate(4)(_zeros(2, 7), _zeros(2, 7), _zeros(2, 7)),
                r"shape \[.*\.\.\., 4\], got \[2, 7\]",
            ),
        ),
    ),
    Row(
        "Modulate",
        nn.Modulate,
        nn.Modulate,
        lambda _: lambda params, x, s, t: x * (1 + s) + t,
        ("x", "second", "third shape"),
        CONDITIONED,
    ),
    Row(
        "TokenMean",
        nn.TokenMean,
        nn.TokenMean,
        lambda _: lambda params, x: x.mean(1),
        ("shape",),
        (
            Sample("rank 3", (), ((2, 7, 5),)),
            Sample("one token", (), ((3, 1, 4),)),
            Sample("empty batch", (), ((0, 3, 4),)),
        ),
        (
            Mistake(
                "rank", lambda: nn.TokenMean()(_zeros(2, 3)), r"expected an input of shape \[B, S, D\] .*, got \[2, 3\]"
            ),
        ),
    ),
    Row(
        "SinusoidalPosAdd",
        nn.SinusoidalPosAdd,
        nn.SinusoidalPosAdd,
        lambda _: _positions,
        (),
        (
            Sample("even", (7, 6), ((2, 7, 6),)),
            Sample("odd", (3, 5), ((2, 3, 5),)),
            Sample("empty batch", (3, 4), ((0, 3, 4),)),
        ),
        (
            Mistake(
                "tokens", lambda: nn.SinusoidalPosAdd(3, 4)(_zeros(1, 2, 4)), r"shape \[\.\.\., 3, 4\], got \[1, 2, 4\]"
            ),
        ),
    ),
)

GATED: tuple[Row, ...] = (
    Row(
        "Embedding, padding",
        nn.Embedding,
        lambda *a: nn.Embedding(*a, padding_idx=-1),
        _embedding,
        ("x",),
        EMBEDDING[:3],
    ),
    Row("StopGrad", nn.StopGrad, nn.StopGrad, _unary(lambda x: _Halted.apply(x, 0.0)), (), ELEMENTWISE[:3]),
    Row("GradGate", nn.GradGate, nn.GradGate, _unary(lambda x: x), (), ELEMENTWISE[:2]),
    Row(
        "GradGate, reversed",
        nn.GradGate,
        lambda: nn.GradGate(-0.5),
        _unary(lambda x: _Halted.apply(x, -0.5)),
        (),
        ELEMENTWISE[:2],
    ),
    Row(
        "GradGate, closed",
        nn.GradGate,
        lambda: nn.GradGate(0),
        _unary(lambda x: _Halted.apply(x, 0.0)),
        (),
        ELEMENTWISE[:2],
    ),
)
"""Layers whose vjp is not the derivative of their forward, by design: compared with PyTorch, not with differences."""
