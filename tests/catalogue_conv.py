"""Rows of the catalogue for convolution, pooling and layout; `tests/catalogue.py` says what a row is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from noeira import nn
from tests.catalogue import KINKS, Mistake, Row, Sample
from tests.compare import Twin


def _zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def _empty_safe(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """PyTorch refuses some empty batches: the result for one zero image, without the image."""

    def run(x: torch.Tensor, *args: Any) -> torch.Tensor:
        if x.shape[0]:
            return function(x, *args)
        return function(torch.cat([x, torch.zeros(1, *x.shape[1:], dtype=x.dtype)]), *args)[:0]

    return run


# ---- convolution -----------------------------------------------------------------------------------------------------
#
# Arguments: in, out, kernel, stride, padding, dilation, groups.

CONV2D = (
    Sample("3x3", (3, 5, 3), ((2, 3, 6, 7),)),
    Sample("padded", (4, 6, 3, 1, 1), ((2, 4, 5, 6),)),
    Sample("batch 1", (2, 3, 3, 1, 1), ((1, 2, 5, 5),)),
    Sample("size-1 dimensions", (1, 1, 1), ((1, 1, 1, 1),)),
    Sample("pointwise", (7, 5, 1), ((3, 7, 4, 3),)),
    Sample("strided pointwise", (5, 7, 1, 2), ((2, 5, 5, 6),)),
    Sample("a stride that does not divide", (3, 4, 3, 2), ((2, 3, 8, 6),)),
    Sample("a stride beyond the kernel", (2, 3, 2, 3), ((2, 2, 7, 9),)),
    Sample("everything uneven", (3, 5, (3, 2), (2, 3), (2, 1), (1, 2)), ((2, 3, 7, 11),)),
    Sample("dilation and stride share a factor", (2, 3, 3, 2, 2, 2), ((2, 2, 7, 8),)),
    Sample("dilation 3", (2, 3, 3, 1, 3, 3), ((2, 2, 5, 6),)),
    Sample("groups", (6, 4, 3, 1, 1, 1, 2), ((2, 6, 5, 4),)),
    Sample("depthwise", (5, 5, 3, 1, 1, 1, 5), ((2, 5, 6, 5),)),
    Sample("depthwise, multiplied, strided", (3, 6, 3, 2, 1, 1, 3), ((2, 3, 6, 7),)),
    Sample("padding beyond the input", (2, 2, 3, 1, 4), ((2, 2, 1, 2),)),
    Sample("kernel as large as the input", (3, 4, (5, 4)), ((2, 3, 5, 4),)),
    Sample("same, even kernel", (2, 3, (2, 4), 1, "same"), ((2, 2, 4, 5),)),
    Sample("valid", (2, 3, 2, 1, "valid"), ((2, 2, 4, 5),)),
    Sample("primes", (13, 17, 3, 1, 1), ((3, 13, 5, 7),)),
    Sample("over the tiles", (33, 25, 3, 1, 1), ((2, 33, 5, 7),)),
    Sample("wide rows", (2, 3, 3, 1, 1), ((1, 2, 3, 67),)),
    Sample("deep", (50, 4, 3, 1, 1), ((1, 50, 4, 5),)),
    Sample("large magnitudes", (3, 4, 3, 1, 1), ((2, 3, 5, 5),), 1e4, step=1e-7),
    Sample("empty batch", (3, 4, 3, 1, 1), ((0, 3, 5, 5),)),
)

CONV1D = (
    Sample("kernel 3", (3, 5, 3), ((2, 3, 9),)),
    Sample("strided, padded", (3, 5, 4, 3, 2), ((2, 3, 11),)),
    Sample("batch 1", (1, 1, 1), ((1, 1, 1),)),
    Sample("dilated", (4, 2, 3, 1, 0, 4), ((2, 4, 13),)),
    Sample("grouped", (4, 6, 3, 1, 1, 1, 2), ((2, 4, 7),)),
    Sample("same", (2, 3, 4, 1, "same"), ((2, 2, 6),)),
    Sample("long", (2, 3, 3, 1, 1), ((1, 2, 401),)),
    Sample("empty batch", (3, 5, 3), ((0, 3, 9),)),
)

# Arguments: in, out, kernel, stride, padding, output_padding, groups, bias, dilation.

TRANSPOSE = (
    Sample("doubling", (3, 5, 2, 2), ((2, 3, 4, 5),)),
    Sample("overlapping", (3, 4, 3, 2, 1, 1), ((2, 3, 4, 3),)),
    Sample("stride 1", (4, 3, 3, 1, 1), ((2, 4, 5, 4),)),
    Sample("batch 1", (1, 1, 1), ((1, 1, 1, 1),)),
    Sample("gaps", (2, 3, 2, 3), ((2, 2, 3, 4),)),
    Sample("groups", (4, 6, 3, 2, 1, 1, 2), ((2, 4, 3, 4),)),
    Sample("everything uneven", (3, 4, (3, 2), (2, 3), (1, 0), (1, 2), 1, True, (2, 1)), ((2, 3, 4, 3),)),
    Sample("output padding beyond the stride", (2, 3, 3, 1, 0, 1, 1, True, 2), ((2, 2, 4, 4),)),
    Sample("no bias", (3, 4, 3, 2, 1, 0, 1, False), ((2, 3, 4, 4),)),
    Sample("empty batch", (3, 4, 3, 2), ((0, 3, 4, 4),)),
)


def _conv_twin(layer: Any) -> Twin:
    function = F.conv1d if layer.axes == 1 else F.conv2d

    def twin(params: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        padding = layer.padding
        if padding == "same":  # PyTorch warns here; written out, it pads an odd total once more behind
            spans = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
            x = F.pad(x, [n for span in reversed(spans) for n in (span // 2, span - span // 2)])
            padding = 0
        bias = params.get("bias")
        return function(x, params["weight"], bias, layer.stride, padding, layer.dilation, layer.groups)

    return twin


def _transpose_twin(layer: nn.Conv2DTranspose) -> Twin:
    def twin(params: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        options = (layer.stride, layer.padding, layer.output_padding, layer.groups, layer.dilation)
        return F.conv_transpose2d(x, params["weight"], params.get("bias"), *options)

    return twin


def _conv_mistakes(cls: type, axes: int) -> tuple[Mistake, ...]:
    name, sizes = cls.__name__, ", ".join("L" if axes == 1 else "HW")
    tail = (9,) * axes
    return (
        Mistake(
            "wrong channels",
            lambda: cls(3, 5, 3)(_zeros(2, 4, *tail)),
            rf"module {name}\(3, 5, kernel_size=3\): expected an input of shape \[B, 3, {sizes}\], got \[2, 4",
        ),
        Mistake(
            "no batch axis",
            lambda: cls(3, 5, 3)(_zeros(3, *tail)),
            rf"expected an input of shape \[B, 3, {sizes}\], got \[3, 9",
        ),
        Mistake(
            "groups that do not divide",
            lambda: cls(4, 6, 3, groups=4),
            rf"{name}: expected out_channels to be divisible by groups=4, got 6",
            ValueError,
        ),
        Mistake(
            "no kernel",
            lambda: cls(3, 5, 0),
            rf"{name}: expected kernel_size to be a positive integer .*, got 0",
            ValueError,
        ),
        Mistake(
            "negative padding",
            lambda: cls(3, 5, 3, padding=-1),
            rf"{name}: expected padding to be a non-negative integer .*, got -1",
            ValueError,
        ),
        Mistake(
            "another padding mode",
            lambda: cls(3, 5, 3, padding_mode="reflect"),
            rf"{name}: expected padding_mode 'zeros', got 'reflect'",
            ValueError,
        ),
    )


def _too_small(cls: type, axes: int) -> tuple[Mistake, ...]:
    return (
        Mistake(
            "a kernel longer than the input",
            lambda: cls(3, 5, 5)(_zeros(2, 3, *(4,) * axes)),
            rf"module {cls.__name__}.*: expected at least 5 padded positions for a kernel of 5 .*, got 4 \+ 2 \* 0",
        ),
        Mistake(
            "same with a stride",
            lambda: cls(3, 5, 3, 2, "same"),
            r"expected a stride of 1 with padding='same', got 2",
            ValueError,
        ),
        Mistake("an unknown padding", lambda: cls(3, 5, 3, 1, "full"), r"'same' or 'valid', got 'full'", ValueError),
    )


# ---- pooling ---------------------------------------------------------------------------------------------------------
#
# Arguments: kernel, stride, padding, then dilation and ceil_mode, or ceil_mode, count_include_pad and divisor.

SHAPES = (
    Sample("halving", (2,), ((2, 3, 6, 8),)),
    Sample("a window that does not divide", (2,), ((2, 3, 5, 7),)),
    Sample("overlapping, padded", (3, 2, 1), ((2, 3, 7, 6),)),
    Sample("stride 1", (3, 1, 1), ((2, 2, 4, 5),)),
    Sample("uneven", ((3, 2), (2, 1), (1, 0)), ((2, 2, 6, 5),)),
    Sample("batch 1", (1,), ((1, 1, 1, 1),)),
    Sample("gaps", (2, 3), ((2, 2, 8, 7),)),
    Sample("wide", (2,), ((1, 2, 4, 75),)),
    Sample("large magnitudes", (2,), ((2, 3, 4, 4),), 1e4),
    Sample("empty batch", (2,), ((0, 3, 4, 4),)),
)
MAX = (
    *SHAPES,
    Sample("dilated", (2, 1, 1, 2), ((2, 2, 5, 6),)),
    Sample("ceil", (2, 2, 0, 1, True), ((2, 2, 5, 7),)),
    Sample("ceil, padded", (3, 3, 1, 1, True), ((2, 2, 6, 7),)),
)
AVG = (
    *SHAPES,
    Sample("padding not counted", (3, 2, 1, False, False), ((2, 2, 6, 7),)),
    Sample("ceil", (3, 2, 1, True), ((2, 2, 6, 7),)),
    Sample("ceil, padding not counted", (3, 3, 1, True, False), ((2, 2, 6, 7),)),
    Sample("a divisor", (3, 2, 1, False, True, 5), ((2, 2, 6, 7),)),
    Sample("global", ((7, 33),), ((2, 3, 7, 33),)),
)
ADAPTIVE = (
    Sample("global", (1,), ((2, 3, 5, 7),)),
    Sample("uneven", ((3, 4),), ((2, 3, 7, 6),)),
    Sample("rows as they are", ((None, 2),), ((2, 2, 5, 7),), compiled=False),
    Sample("columns as they are", ((3, None),), ((1, 2, 4, 5),), compiled=False),
    Sample("more outputs than inputs", (5,), ((2, 2, 3, 2),)),
    Sample("batch 1", (1,), ((1, 1, 1, 1),)),
    Sample("large magnitudes", (2,), ((2, 2, 5, 5),), 1e4),
    Sample("empty batch", (2,), ((0, 2, 5, 5),)),
)
ADAPTIVE_MISTAKES = (
    Mistake("no rows", lambda: nn.AdaptiveAvgPool2D(1)(_zeros(2, 3, 0, 4)),
            r"AdaptiveAvgPool2D\(1\): expected maps of at least one row and one column, got \[2, 3, 0, 4\]"),
    Mistake("no columns", lambda: nn.AdaptiveAvgPool2D((None, 1))(_zeros(2, 3, 4, 0)),
            r"expected maps of at least one row and one column, got \[2, 3, 4, 0\]"),
    *(
        Mistake(f"output_size {size!r}", lambda size=size: nn.AdaptiveAvgPool2D(size),
                r"AdaptiveAvgPool2D: expected output_size to be a positive integer or 2 of them", ValueError)
        for size in (None, (2,), (None, 0), (1, True), "22")
    ),
)  # fmt: skip


def _max_twin(layer: nn.MaxPool2D) -> Twin:
    options = (layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.ceil_mode)
    return lambda params, x: _empty_safe(F.max_pool2d)(x, *options)


def _avg_twin(layer: nn.AvgPool2D) -> Twin:
    options = (layer.kernel_size, layer.stride, layer.padding, layer.ceil_mode, layer.count_include_pad)
    return lambda params, x: _empty_safe(F.avg_pool2d)(x, *options, layer.divisor_override)


def _pool_mistakes(cls: type, *args: Any) -> tuple[Mistake, ...]:
    return (
        Mistake(
            "rank 3", lambda: cls(*args)(_zeros(3, 4, 4)), r"expected an input of shape \[B, C, H, W\], got \[3, 4, 4\]"
        ),
        Mistake("no window", lambda: cls(0), r"to be a positive integer or 2 of them, got 0", ValueError),
    )


def _window_mistakes(cls: type) -> tuple[Mistake, ...]:
    return (
        *_pool_mistakes(cls, 2),
        Mistake(
            "padding beyond half a window",
            lambda: cls(3, 1, 2),
            r"expected padding of at most half the kernel of 3, got 2",
            ValueError,
        ),
        Mistake(
            "a window longer than the input",
            lambda: cls(5)(_zeros(1, 1, 4, 4)),
            r"expected at least 5 padded positions for a window of 5 .*, got 4 \+ 2 \* 0",
        ),
    )


# ---- layout ----------------------------------------------------------------------------------------------------------

MAPS = (
    Sample("a map", (), ((2, 3, 4, 5),)),
    Sample("size-1 dimensions", (), ((1, 1, 1, 1),)),
    Sample("wide", (), ((2, 2, 3, 37),)),
    Sample("many channels last", (), ((1, 3, 2, 32),)),
    Sample("vectors high", (), ((1, 4, 4, 3),)),
    Sample("empty batch", (), ((0, 3, 4, 5),)),
)
MATRICES = (
    Sample("a matrix", (), ((2, 3, 5),)),
    Sample("size-1 dimensions", (), ((1, 1, 1),)),
    Sample("whole vectors", (), ((2, 32, 19),)),
    Sample("primes", (), ((3, 17, 37),)),
    Sample("empty batch", (), ((0, 3, 5),)),
)
SHUFFLES = (
    Sample("by 2", (2,), ((2, 12, 3, 4),)),
    Sample("by 3", (3,), ((2, 9, 2, 5),)),
    Sample("by 1", (1,), ((1, 3, 2, 2),)),
    Sample("empty batch", (2,), ((0, 4, 3, 4),)),
)
TOKENS = (
    Sample("by 2", (2, 4), ((2, 16, 3),)),
    Sample("by 3", (3, 6), ((1, 36, 5),)),
    Sample("empty batch", (2, 4), ((0, 16, 3),)),
)


def _token_twin(layer: nn.PixelShuffle) -> Twin:
    """As SmolVLM's connector writes it."""
    side, r = layer.grid or 0, layer.upscale_factor

    def twin(params: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        batch, embed = x.shape[0], x.shape[2]
        x = x.view(batch, side, side // r, embed * r).permute(0, 2, 1, 3)
        x = x.reshape(batch, side // r, side // r, embed * r**2).permute(0, 2, 1, 3)
        return x.reshape(batch, side**2 // r**2, embed * r**2)

    return twin


def _rank_mistake(cls: type, pattern: str) -> tuple[Mistake, ...]:
    return (Mistake("rank 2", lambda: cls()(_zeros(2, 3)), rf"expected an input of shape {pattern}, got \[2, 3\]"),)


ROWS: tuple[Row, ...] = (
    Row(
        "Conv2D", nn.Conv2D, nn.Conv2D, _conv_twin, ("x",), CONV2D,
        (*_conv_mistakes(nn.Conv2D, 2), *_too_small(nn.Conv2D, 2)), step=1e-3,
    ),
    Row("Conv2D, no bias", nn.Conv2D, lambda *a: nn.Conv2D(*a, bias=False), _conv_twin, ("x",), CONV2D[:2], step=1e-3),
    Row(
        "Conv1D", nn.Conv1D, nn.Conv1D, _conv_twin, ("x",), CONV1D,
        (*_conv_mistakes(nn.Conv1D, 1), *_too_small(nn.Conv1D, 1)), step=1e-3,
    ),
    Row(
        "Conv2DTranspose", nn.Conv2DTranspose, nn.Conv2DTranspose, _transpose_twin, ("x",), TRANSPOSE,
        (
            *_conv_mistakes(nn.Conv2DTranspose, 2),
            Mistake(
                "too much output padding",
                lambda: nn.Conv2DTranspose(3, 5, 3, 2, 0, 2),
                r"expected output_padding below stride or dilation, got 2",
                ValueError,
            ),
        ),
        step=1e-3,
    ),
    Row(
        "MaxPool2D", nn.MaxPool2D, nn.MaxPool2D, _max_twin, ("z", "shape"), MAX, _window_mistakes(nn.MaxPool2D),
        step=KINKS,
    ),
    Row("AvgPool2D", nn.AvgPool2D, nn.AvgPool2D, _avg_twin, ("shape",), AVG, _window_mistakes(nn.AvgPool2D)),
    Row(
        "AdaptiveAvgPool2D", nn.AdaptiveAvgPool2D, nn.AdaptiveAvgPool2D,
        lambda layer: lambda params, x: _empty_safe(F.adaptive_avg_pool2d)(x, layer.output_size),
        ("shape",), ADAPTIVE, (*_pool_mistakes(nn.AdaptiveAvgPool2D, 1), *ADAPTIVE_MISTAKES),
    ),
    Row(
        "Upsample2x", nn.Upsample2x, nn.Upsample2x,
        lambda _: lambda params, x: _empty_safe(lambda x: F.interpolate(x, scale_factor=2, mode="nearest"))(x),
        (), MAPS, _rank_mistake(nn.Upsample2x, r"\[B, C, H, W\]"),
    ),
    Row(
        "ToNCHW", nn.ToNCHW, nn.ToNCHW, lambda _: lambda params, x: x.permute(0, 3, 1, 2), (), MAPS,
        _rank_mistake(nn.ToNCHW, r"\[B, H, W, C\]"),
    ),
    Row(
        "Transpose2D", nn.Transpose2D, nn.Transpose2D, lambda _: lambda params, x: x.transpose(1, 2), (), MATRICES,
        _rank_mistake(nn.Transpose2D, r"\[B, R, C\]"),
    ),
    Row(
        "PixelShuffle", nn.PixelShuffle, nn.PixelShuffle,
        lambda layer: lambda params, x: _empty_safe(F.pixel_shuffle)(x, layer.upscale_factor), ("shape",), SHUFFLES,
        (
            Mistake(
                "channels that do not divide",
                lambda: nn.PixelShuffle(2)(_zeros(1, 6, 2, 2)),
                r"expected an input of shape \[B, C \* 4, H, W\], got \[1, 6, 2, 2\]",
            ),
            Mistake(
                "a grid that does not divide",
                lambda: nn.PixelShuffle(3, grid=4),
                r"PixelShuffle: expected a grid divisible by 3, got 4",
                ValueError,
            ),
            Mistake(
                "another number of tokens",
                lambda: nn.PixelShuffle(2, grid=4)(_zeros(1, 15, 2)),
                r"expected an input of shape \[B, 16, E\], got \[1, 15, 2\]",
            ),
        ),
    ),
    Row(
        "PixelShuffle, tokens", nn.PixelShuffle, lambda r, grid: nn.PixelShuffle(r, grid=grid), _token_twin, ("shape",),
        TOKENS,
    ),
)  # fmt: skip
