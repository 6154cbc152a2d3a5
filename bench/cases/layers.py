"""Convolutions, attention, and layers that work row by row, each forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.case import Case
from bench.layers import Layer, LayerSet
from noeira import nn


def _conv(
    name: str, n: int, c: int, side: int, m: int, kernel: int, stride: int = 1, groups: int = 1, *, quick: bool = False
) -> Layer:
    padding = kernel // 2
    out = (side + 2 * padding - kernel) // stride + 1

    def torch(torch: Any, params: list[Any]) -> Callable[[Any], Any]:
        conv2d = torch.nn.functional.conv2d
        return lambda x: conv2d(x, *params, stride=stride, padding=padding, groups=groups)

    return Layer(
        f"conv-{name}",
        lambda: nn.Conv2D(c, m, kernel, stride=stride, padding=padding, groups=groups, bias=False),
        torch,
        (n, c, side, side),
        flops=3 * 2 * n * out * out * m * (c // groups) * kernel * kernel,
        quick=quick,
    )


CONVOLUTIONS = LayerSet(
    "convolution",
    [
        _conv("mnist-1", 100, 1, 28, 16, 5, quick=True),
        _conv("conv6-1", 100, 3, 32, 32, 3),
        _conv("conv6-2", 100, 32, 32, 32, 3, quick=True),
        _conv("conv6-4", 100, 64, 16, 64, 3),
        _conv("conv6-6", 100, 128, 8, 128, 3, quick=True),
        _conv("resnet-stem", 4, 3, 112, 64, 7, 2),
        _conv("resnet-down", 8, 64, 28, 128, 3, 2),
        _conv("pointwise", 8, 256, 14, 64, 1),
        _conv("depthwise", 16, 96, 28, 96, 3, groups=96),
        _conv("grouped", 8, 64, 28, 64, 3, groups=4),
    ],
)


def _attention(
    name: str, batch: int, tokens: int, heads: int, width: int, *, causal: bool, quick: bool = False
) -> Layer:
    embed = heads * width

    def torch(torch: Any, params: list[Any]) -> Callable[[Any], Any]:
        attend = torch.nn.functional.scaled_dot_product_attention

        def run(x: Any) -> Any:
            q, k, v = (part.view(batch, tokens, heads, width).transpose(1, 2) for part in x.chunk(3, -1))
            return attend(q, k, v, is_causal=causal).transpose(1, 2).reshape(batch, tokens, embed)

        return run

    pairs = batch * heads * tokens * (tokens + 1) / 2 if causal else batch * heads * tokens * tokens
    return Layer(
        f"attention-{name}",
        lambda: nn.ScaledDotProductAttention(embed, heads, is_causal=causal),
        torch,
        (batch, tokens, 3 * embed),
        flops=2 * pairs * width * (2 + 5),
        quick=quick,
    )


ATTENTION = LayerSet(
    "attention",
    [
        _attention("gpt-2x64", 16, 64, 4, 16, causal=True, quick=True),
        _attention("gpt-6x384", 4, 256, 6, 64, causal=True, quick=True),
        _attention("vit-tiny", 4, 197, 3, 64, causal=False),
        _attention("gpt2-1024", 1, 1024, 12, 64, causal=True),
        _attention("long-4096", 1, 4096, 2, 64, causal=True),
    ],
)


def _rowwise(
    name: str, make: Callable[[], nn.Module], function: Any, shape: tuple[int, ...], *, quick: bool = False
) -> Layer:
    return Layer(name, make, lambda torch, params: lambda x: function(torch, x, *params), shape, quick=quick)


ROWS = LayerSet(
    "row kernels",
    [
        _rowwise("layer-norm-1024x384", lambda: nn.LayerNorm(384),
                 lambda t, x, w, b: t.nn.functional.layer_norm(x, (384,), w, b), (1024, 384), quick=True),
        _rowwise("layer-norm-8192x768", lambda: nn.LayerNorm(768),
                 lambda t, x, w, b: t.nn.functional.layer_norm(x, (768,), w, b), (8192, 768)),
        _rowwise("rms-norm-4096x512", lambda: nn.RMSNorm(512),
                 lambda t, x, w: t.nn.functional.rms_norm(x, (512,), w, 1.1920929e-07), (4096, 512)),
        _rowwise("batch-norm-100x32x32x32", lambda: nn.BatchNorm2D(32, track_running_stats=False),
                 lambda t, x, w, b: t.nn.functional.batch_norm(x, None, None, w, b, True), (100, 32, 32, 32)),
        _rowwise("batch-norm-relu-100x64x16x16", lambda: nn.BatchNorm2DAct(64, "relu", track_running_stats=False),
                 lambda t, x, w, b: t.relu(t.nn.functional.batch_norm(x, None, None, w, b, True)), (100, 64, 16, 16)),
        _rowwise("group-norm-16x64x32x32", lambda: nn.GroupNorm(8, 64),
                 lambda t, x, w, b: t.nn.functional.group_norm(x, 8, w, b), (16, 64, 32, 32)),
        _rowwise("softmax-4096x256", lambda: nn.Softmax(), lambda t, x: t.softmax(x, -1), (4096, 256), quick=True),
        _rowwise("log-softmax-1024x1000", lambda: nn.LogSoftmax(), lambda t, x: t.log_softmax(x, -1), (1024, 1000)),
        _rowwise("gelu-1024x1536", lambda: nn.GELU(), lambda t, x: t.nn.functional.gelu(x), (1024, 1536), quick=True),
        _rowwise("gelu-tanh-1024x1536", lambda: nn.GELU("tanh"),
                 lambda t, x: t.nn.functional.gelu(x, approximate="tanh"), (1024, 1536)),
        _rowwise("silu-1024x1536", lambda: nn.SiLU(), lambda t, x: t.nn.functional.silu(x), (1024, 1536)),
        _rowwise("mish-1024x1536", lambda: nn.Mish(), lambda t, x: t.nn.functional.mish(x), (1024, 1536)),
        _rowwise("max-pool-100x32x32x32", lambda: nn.MaxPool2D(2),
                 lambda t, x: t.nn.functional.max_pool2d(x, 2), (100, 32, 32, 32)),
    ],
)  # fmt: skip


def cases() -> list[Case]:
    """All of them."""
    return CONVOLUTIONS.cases() + ATTENTION.cases() + ROWS.cases()
