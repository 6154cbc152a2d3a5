"""Sizes that bite: one over and under every tile, block and chunk that a kernel divides its work into.

Rows of the catalogue with other samples. The numbers around which sizes lie are those of the kernels: register tiles
of 12 x 32, cache blocks of 192 x 384 and 384 x 1024, copies of A and B from 97 columns and 49 rows on, attention blocks
of 48 queries by 96 keys, norms in blocks of 4096 elements and 32 rows, softmax in blocks of 512, convolutions in
vectors of 16 outputs and tiles of 12 channels.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from noeira.runtime.staging import Shape
from tests import catalogue
from tests.catalogue import Row, Sample


@dataclass(frozen=True)
class Sized:
    """A row on its sizes, and the shapes that its program leaves free.

    Args:
        row: A row of the catalogue, its samples replaced.
        inputs: Names for the dimensions of each input, or how many of the leading ones are free.
        params: Names for those of each parameter.
    """

    row: Row
    inputs: tuple[Shape, ...] | int = 1
    params: tuple[tuple[str, Shape], ...] = ()


def _around(*numbers: int) -> list[int]:
    """Each number, one less and one more."""
    return sorted({n + d for n in numbers for d in (-1, 0, 1) if n + d > 0})


def _products() -> list[tuple[int, int, int]]:
    """Rows, in_features, out_features: one of them around the kernel's numbers, and some that are all so."""
    found = [(m, 17, 33) for m in _around(2, 4, 8, 12, 24, 49, 192)]
    found += [(13, k, 19) for k in _around(1, 16, 384, 768)]
    found += [(61, 5, n) for n in _around(1, 16, 32, 97, 1024)]
    found += [(1, k, n) for k in (1, 129, 385) for n in (1, 127, 128, 129, 1025)]
    found += [(m, k, 1) for m in (1, 15, 65) for k in (1, 15, 17, 129)]
    return [*found, (12, 384, 32), (13, 385, 33), (11, 383, 31), (193, 385, 97), (25, 769, 95), (0, 5, 3), (129, 1, 65)]


def _linear(m: int, k: int, n: int) -> Sample:
    return Sample(f"{m} x {k} x {n}", (k, n), ((m, k),))


def _rows(*sizes: tuple[int, int]) -> tuple[Sample, ...]:
    return tuple(Sample(f"{m} x {n}", (n,), ((m, n),)) for m, n in sizes)


def _attention(*sizes: tuple[int, int, int, int]) -> tuple[Sample, ...]:
    """Batch, tokens, heads, head width."""
    return tuple(
        Sample(f"{b} x {t}, {h} heads of {d}", (h * d, h), ((b, t, 3 * h * d),), step=1e-2) for b, t, h, d in sizes
    )


def _conv(*sizes: tuple[int, ...]) -> tuple[Sample, ...]:
    """Batch, channels, height, width, channels out, kernel, stride, padding, dilation, groups."""
    return tuple(
        Sample(f"{size}", (c, m, kernel, stride, padding, dilation, groups), ((n, c, h, w),))
        for size in sizes
        for n, c, h, w, m, kernel, stride, padding, dilation, groups in (size,)
    )


def _maps(*shapes: tuple[int, ...], args: tuple[object, ...] | None = None) -> tuple[Sample, ...]:
    return tuple(Sample(f"{shape}", (shape[1],) if args is None else args, (shape,)) for shape in shapes)


def _recurrent(states: int) -> tuple[Sample, ...]:
    """Batch, steps, width of x, width of h: around a depth block, a strip of one row, and a tile's rows."""
    return tuple(
        Sample(f"{b} x {t}, {d} to {h}", (d, h), ((b, t, d), (b, states * h)))
        for b, t, d, h in (
            (3, 2, 5, 385),
            (13, 2, 5, 385),
            (1, 4, 3, 43),
            (25, 4, 3, 43),
            (13, 3, 2, 33),
            (25, 2, 17, 16),
        )
    )


def _embedding(ids: int, rows: int, width: int) -> Sample:
    return Sample(
        f"{ids} ids of {rows}, width {width}", (rows, width),
        (lambda draw: draw.integers(0, rows, (ids,)).astype(np.int32),),
    )  # fmt: skip


NORM_SIZES = _rows(*((33, n) for n in _around(1, 16, 512, 4096)), *((m, 17) for m in _around(2, 32, 64)))
ELEMENTS = tuple(Sample(f"{n}", (), ((1, n),)) for n in (*_around(16, 32, 25_000), 50_001))
MATRIX = ((("b", "n"),), (("weight", ("n",)), ("bias", ("n",))))
FLAT = ((("b", "n"),), ())

SIZES: dict[str, tuple[tuple[Sample, ...], tuple[Shape, ...] | int, tuple[tuple[str, Shape], ...]]] = {
    "Linear": (
        tuple(_linear(*size) for size in _products()), (("b", "k"),), (("weight", ("k", "n")), ("bias", ("n",)))
    ),
    "LinearAct gelu": (
        tuple(_linear(*size) for size in ((12, 384, 32), (13, 385, 33), (193, 17, 97), (1, 129, 65), (65, 129, 1))),
        (("b", "k"),), (("weight", ("k", "n")), ("bias", ("n",))),
    ),
    "Conv2D": (
        _conv(
            (2, 13, 17, 17, 25, 3, 1, 1, 1, 1), (2, 11, 15, 31, 13, 3, 1, 1, 1, 1), (2, 7, 33, 31, 11, 5, 2, 2, 1, 1),
            (5, 193, 4, 4, 97, 1, 1, 0, 1, 1), (2, 8, 19, 35, 8, 3, 1, 1, 1, 8), (17, 3, 32, 32, 33, 3, 2, 1, 1, 1),
            (2, 8, 9, 17, 12, 3, 1, 0, 2, 4), (3, 12, 16, 16, 12, 3, 1, 1, 1, 1), (1, 24, 7, 33, 24, 3, 1, 1, 1, 1),
            (1, 1, 65, 1, 1, 3, 1, 1, 1, 1), (0, 3, 8, 8, 5, 3, 1, 1, 1, 1),
        ), 1, (),
    ),
    "Conv2DTranspose": (tuple(
        Sample(f"{n} x {c} x {h} x {w} to {m}, stride {s}", (c, m, k, s), ((n, c, h, w),))
        for n, c, h, w, m, k, s in ((2, 13, 7, 17, 11, 3, 2), (1, 25, 5, 4, 12, 2, 2), (3, 1, 33, 2, 17, 4, 1))
    ), 1, ()),
    "ScaledDotProductAttention": (
        _attention(*((1, t, 1, 16) for t in _around(1, 48, 96, 144)), (2, 49, 3, 65), (3, 97, 2, 33), (1, 131, 2, 1)),
        2, (),
    ),
    "ScaledDotProductAttention, causal": (
        _attention(*((1, t, 1, 16) for t in _around(1, 48, 96, 192)), (1, 131, 2, 80), (3, 97, 2, 33), (2, 49, 3, 65)),
        2, (),
    ),
    "GRUSeq": (_recurrent(1), 1, ()),
    "LSTMSeq": (_recurrent(2), 1, ()),
    "LayerNorm": (NORM_SIZES, *MATRIX),
    "RMSNorm": (NORM_SIZES, (("b", "n"),), (("weight", ("n",)),)),
    "GroupNorm": (
        tuple(Sample(f"{shape}", (groups, shape[1]), (shape,))
              for groups, shape in ((2, (3, 6, 31, 17)), (3, (2, 33, 5, 13)), (1, (1, 1, 65, 63)), (7, (2, 7, 1, 1)))),
        1, (),
    ),
    "ConvRMSNorm": (_maps((3, 33, 5, 17), (1, 1, 31, 1), (2, 65, 4, 4)), 1, ()),
    "BatchNorm1D, no running statistics": (_rows((63, 33), (64, 16), (65, 17), (129, 1), (2, 31)), *MATRIX),
    "BatchNorm2D": (_maps((3, 5, 37, 29), (2, 17, 8, 8), (65, 3, 1, 1), (9, 1, 16, 17)), 1, ()),
    "BatchNorm2DAct, relu": (_maps((3, 5, 37, 29), (2, 17, 8, 8), (9, 1, 16, 17)), 1, ()),
    "MaxPool2D": (_maps((2, 3, 67, 35), (1, 5, 34, 66), (1, 1, 2, 2), args=(2,)), 1, ()),
    "AvgPool2D": (_maps((2, 3, 67, 35), (1, 5, 34, 66), (1, 1, 2, 2), args=(2,)), 1, ()),
    "AdaptiveAvgPool2D": (_maps((2, 3, 67, 35), (1, 5, 8, 66), args=(1,)), 1, ()),
    "Softmax": (tuple(replace(s, args=()) for s in NORM_SIZES), *FLAT),
    "LogSoftmax": (tuple(replace(s, args=()) for s in NORM_SIZES), *FLAT),
    "GELU": (ELEMENTS, *FLAT),
    "Mish": (ELEMENTS, *FLAT),
    "ELU": (ELEMENTS, *FLAT),
    "Softplus": (ELEMENTS, *FLAT),
    "RoPE": (tuple(Sample(f"{b} x {t} x {d}", (d,), ((b, t, d),))
                   for b, t, d in ((2, 63, 34), (1, 64, 32), (3, 65, 30), (1, 129, 2), (1, 1, 66))), 2, ()),
    "RoPE, interleaved": (tuple(Sample(f"{b} x {t} x {d}", (d,), ((b, t, d),))
                                for b, t, d in ((2, 63, 34), (1, 129, 2), (1, 65, 34))), 2, ()),
    "Transpose2D": (_maps((2, 15, 17), (1, 16, 33), (3, 31, 1), args=()), 1, ()),
    "Upsample2x": (_maps((2, 3, 5, 15), (1, 2, 3, 16), (1, 1, 1, 17), args=()), 1, ()),
    "Embedding": (tuple(_embedding(*size) for size in ((67, 5, 33), (1, 1, 1), (257, 65, 16), (0, 3, 4))), 1, ()),
}  # fmt: skip
"""Samples, free dimensions of the inputs, and those of the parameters, by row."""


def sized() -> Iterator[Sized]:
    """Every row that has sizes."""
    left = dict(SIZES)
    for path in sorted(Path(catalogue.__file__).parent.glob("catalogue*.py")):
        for row in importlib.import_module(f"tests.{path.stem}").ROWS:
            if row.name in left:
                samples, inputs, params = left.pop(row.name)
                yield Sized(replace(row, samples=samples), inputs, params)
    if left:
        raise LookupError(f"no row of the catalogue is called {sorted(left)}")
