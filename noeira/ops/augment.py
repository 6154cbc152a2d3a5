"""Random changes of image batches, and random windows of a corpus, drawn by counter hash.

Sample i of a batch takes the words of the counters WORDS i, WORDS i + 1, ... under the draw's key: so the same key
gives the same pixels on every device and path, whatever the size of the batch. Source of the hash: `noeira.ops.random`.
"""

from __future__ import annotations

import numpy as np

from noeira.ops.dispatch import Array, ShapeError, emit, is_staged, known_size, op
from noeira.ops.elementwise import (
    add,
    cast,
    divide,
    equal,
    floor_divide,
    greater_equal,
    less,
    multiply,
    subtract,
    where,
)
from noeira.ops.embedding import embedding
from noeira.ops.pieces import concat, slice_axis
from noeira.ops.random import below, in_memory, positions, words
from noeira.ops.reduce import count_axis
from noeira.ops.shape import reshape
from noeira.runtime.staging import Dim

LAYOUTS = ("nchw", "nhwc")
WORDS = 4
"""Random words a sample may use in one draw."""
_TWO32 = 1 << 32


# ---- shared ----------------------------------------------------------------------------------------------------------


def _uint(number: int) -> np.ndarray:
    return np.array([number], np.uint64)


def _sample_words(key: Array, count: Dim) -> tuple[Array, ...]:
    """WORDS words a sample, each uint64 [count]."""
    drawn = words(key, (count, WORDS))
    columns = (reshape(slice_axis(drawn, i, i + 1, 1), (count,)) for i in range(WORDS))
    return tuple(in_memory(column, (count,)) if is_staged(column) else column for column in columns)


def _sizes(x: Array, layout: str) -> tuple[Dim, int, int, int]:
    """Batch, channels, height and width."""
    if layout not in LAYOUTS:
        raise ShapeError(f"expected a layout out of {', '.join(LAYOUTS)}, got {layout!r}")
    if len(x.shape) != 4 or any(isinstance(n, str) for n in x.shape[1:]):
        raise ShapeError(f"expected images {_named(layout)} of known size, got shape {list(x.shape)}")
    if x.dtype not in (np.float32, np.float64):
        raise ShapeError(f"expected images of float32 or float64, got {x.dtype}")
    n, *rest = x.shape
    c, h, w = rest if layout == "nchw" else (rest[2], *rest[:2])
    return n, c, h, w


def _named(layout: str) -> str:
    return "[N, C, H, W]" if layout == "nchw" else "[N, H, W, C]"


# ---- crop and flip ---------------------------------------------------------------------------------------------------


@op
def crop_flip(x: Array, key: Array, padding: int = 4, flip: float = 0.5, layout: str = "nchw") -> Array:
    """Shift every image by up to `padding` pixels each way, zeros coming in, and mirror it with probability `flip`.

    Per sample dx, dy are uniform in -padding .. padding: output pixel (row, column) is source pixel
    (row + dy, column + dx), 0 outside the image; the mirror comes after the shift. Equal to padding by zeros, cropping
    at random, and flipping at random. Words of a sample: 0 dx, 1 dy, 2 the mirror.

    Args:
        x: Images, float, [N, C, H, W] or [N, H, W, C]; normalised ones, so that the zeros are the mean colour.
        key: int64 [3], names the draw (`fold_in`).
        padding: The most a picture moves.
        flip: Probability of the mirror.
        layout: "nchw" or "nhwc"; both give the same pixels.
    """
    n, _, h, w = _checked_crop(x, padding, flip, layout)
    limit = np.uint64(2 * padding + 1)
    first, second, third, _ = _sample_words(key, n)
    dx, dy = (below(drawn, limit).astype(np.int64) for drawn in (first, second))
    mirrored = third < round(flip * _TWO32)
    images = np.asarray(x) if layout == "nhwc" else np.moveaxis(x, 1, 3)
    margin = ((0, 0), (padding, padding), (padding, padding), (0, 0))
    padded, result = np.pad(images, margin), np.empty_like(images)
    for i in range(int(n)):
        cut = padded[i, dy[i] : dy[i] + h, dx[i] : dx[i] + w]
        result[i] = cut[:, ::-1] if mirrored[i] else cut
    return result if layout == "nhwc" else np.ascontiguousarray(np.moveaxis(result, 3, 1))


@crop_flip.staged
def _(x: Array, key: Array, padding: int = 4, flip: float = 0.5, layout: str = "nchw") -> Array:
    n, *_ = _checked_crop(x, padding, flip, layout)
    limit = _uint(2 * padding + 1)
    first, second, third, _ = _sample_words(key, n)
    right, down = (subtract(cast(below(drawn, limit), "int64"), np.array([padding])) for drawn in (first, second))
    mirrored = where(less(third, _uint(round(flip * _TWO32))), np.array([1]), np.array([0]))
    moves = concat([reshape(column, (n, 1)) for column in (down, right, mirrored)], 1)
    last = np.array([layout == "nhwc"], np.int32)
    return emit("noeira.crop_flip", [x, moves, last], [x.spec])[0]


def _checked_crop(x: Array, padding: int, flip: float, layout: str) -> tuple[Dim, int, int, int]:
    if not 0 <= padding < 1 << 16:
        raise ShapeError(f"expected a padding of 0 to 65535 pixels, got {padding}")
    _check_probability("flip", flip)
    return _sizes(x, layout)


def _check_probability(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ShapeError(f"expected {name} in [0, 1], got {value}")


# ---- cutout ----------------------------------------------------------------------------------------------------------


@op
def cutout(x: Array, key: Array, length: int = 16, layout: str = "nchw") -> Array:
    """Zero a square of every image; its centre is any pixel, so part of it may lie outside.

    Rows cy - length // 2 to cy - length // 2 + length - 1, columns likewise around cx, with (cy, cx) uniform over the
    image. Words of a sample: 0 cx, 1 cy. Source: DeVries, Taylor, "Improved regularization of convolutional neural
    networks with cutout", 2017.

    Args:
        x: Images, float, [N, C, H, W] or [N, H, W, C].
        key: int64 [3], names the draw.
        length: Side of the square.
        layout: "nchw" or "nhwc"; both give the same pixels.
    """
    n, _, h, w = _checked_cutout(x, length, layout)
    first, second, *_ = _sample_words(key, n)
    cx, cy = below(first, np.uint64(w)).astype(np.int64), below(second, np.uint64(h)).astype(np.int64)
    result = np.array(x)
    images = result if layout == "nhwc" else np.moveaxis(result, 1, 3)  # a view
    for i in range(int(n)):
        top, left = int(cy[i]) - length // 2, int(cx[i]) - length // 2
        images[i, max(top, 0) : max(top + length, 0), max(left, 0) : max(left + length, 0)] = 0
    return result


@cutout.staged
def _(x: Array, key: Array, length: int = 16, layout: str = "nchw") -> Array:
    n, _, h, w = _checked_cutout(x, length, layout)
    first, second, *_ = _sample_words(key, n)
    result = np.zeros(1, x.dtype)
    for drawn, size, axis in ((first, w, 3), (second, h, 2)):
        axis -= layout == "nhwc"
        place = np.arange(size).reshape([size if i == axis else 1 for i in range(4)])
        start = subtract(reshape(cast(below(drawn, _uint(size)), "int64"), (n, 1, 1, 1)), np.array([length // 2]))
        result = where(greater_equal(place, start), result, x)
        result = where(less(place, add(start, np.array([length]))), result, x)
    return result


def _checked_cutout(x: Array, length: int, layout: str) -> tuple[Dim, int, int, int]:
    if length < 1:
        raise ShapeError(f"expected a square of 1 pixel or more, got length {length}")
    return _sizes(x, layout)


# ---- mixup -----------------------------------------------------------------------------------------------------------

_KNOTS = 4097


def beta_quantiles(alpha: float) -> np.ndarray:
    """Quantiles of the symmetric Beta(alpha, alpha) distribution at 0, 1/4096, ..., 1, in float64.

    With x = s^(1/alpha) / 2 the distribution below 1/2 is the integral of (1 - x)^(alpha - 1) over s, which is smooth
    for every alpha; above 1/2 it is its mirror image.
    """
    s = np.linspace(0, 1, 1 << 15)
    x = 0.5 * s ** (1 / alpha)
    density = (1 - x) ** (alpha - 1)
    mass = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2)])
    half = np.interp(np.linspace(0, 1, _KNOTS // 2 + 1), mass / mass[-1], s)
    lower = 0.5 * half ** (1 / alpha)
    return np.concatenate([lower, 1 - lower[-2::-1]])


def mixup_weights(key: Array, count: Dim, alpha: float) -> Array:
    """A Beta(alpha, alpha) number a sample: float64 [count]; linear between its tabulated quantiles. Word 0."""
    if not 0.01 <= alpha <= 100:
        raise ShapeError(f"expected alpha from 0.01 to 100, got {alpha}")
    table = beta_quantiles(alpha)
    drawn = _sample_words(key, count)[0]
    step = _uint(_TWO32 // (_KNOTS - 1))
    knot = floor_divide(drawn, step)
    rest = divide(cast(subtract(drawn, multiply(knot, step)), "float64"), float(step[0]))
    ids = cast(knot, "int64")
    low, high = (reshape(embedding(ids, part.reshape(-1, 1)), (count,)) for part in (table[:-1], table[1:]))
    return add(low, multiply(subtract(high, low), rest))


def mixup(x: Array, targets: Array, key: Array, alpha: float = 0.2) -> tuple[Array, Array]:
    """Blend every sample with its opposite number in the batch: l x_i + (1 - l) x_{N-1-i}, and the targets alike.

    The batch is in random order already, so the opposite number is a random one. l ~ Beta(alpha, alpha), one a sample.
    Source: Zhang, Cisse, Dauphin, Lopez-Paz, "mixup: beyond empirical risk minimization", ICLR 2018.

    Args:
        x: Float, [N, ...] of known size but for N.
        targets: Rows of probabilities, float, [N, C] (`one_hot` makes them of class ids).
        key: int64 [3], names the draw.
        alpha: 0.01 to 100; the larger, the more is blended.

    Returns:
        Inputs and targets.
    """
    for name, value in (("x", x), ("targets", targets)):
        if value.dtype not in (np.float32, np.float64) or len(value.shape) < 2:
            raise ShapeError(f"expected {name} of float32 or float64 [N, ...], got {value.dtype}{list(value.shape)}")
    if x.shape[0] != targets.shape[0]:
        raise ShapeError(f"expected as many targets as inputs ({x.shape[0]}), got {targets.shape[0]}")
    n = x.shape[0]
    weights = mixup_weights(key, n, alpha)
    numbers = positions(key, n)
    opposite = subtract(subtract(count_axis(numbers, 0), np.array([1])), numbers)

    def blend(values: Array) -> Array:
        flat = reshape(values, (n, known_size(tuple(values.shape[1:]))))
        part = reshape(cast(weights, np.dtype(values.dtype).name), (n, 1))
        other = embedding(opposite, flat)
        return reshape(add(other, multiply(subtract(flat, other), part)), tuple(values.shape))

    return blend(x), blend(targets)


def one_hot(ids: Array, classes: int, dtype: str = "float32") -> Array:
    """Rows of zeros with a one at the class: [N] becomes [N, classes]; a row of zeros for an id out of range."""
    if len(ids.shape) != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise ShapeError(f"expected integer class ids [N], got {ids.dtype}{list(ids.shape)}")
    same = equal(reshape(cast(ids, "int64"), (ids.shape[0], 1)), np.arange(classes)[None])
    return where(same, np.ones(1, dtype), np.zeros(1, dtype))


# ---- normalisation ---------------------------------------------------------------------------------------------------


def normalize(x: Array, mean: tuple[float, ...], std: tuple[float, ...], layout: str = "nchw") -> Array:
    """Channel by channel (x - mean) / std.

    Args:
        x: Images, float, [N, C, H, W] or [N, H, W, C].
        mean: C numbers.
        std: C numbers, none of them 0.
        layout: "nchw" or "nhwc".
    """
    _, c, _, _ = _sizes(x, layout)
    if len(mean) != c or len(std) != c:
        raise ShapeError(f"expected {c} means and deviations, one a channel, got {len(mean)} and {len(std)}")
    if not all(np.isfinite(s) and s > 0 for s in std):
        raise ShapeError(f"expected finite deviations above 0, got {list(std)}")
    shape = (1, c, 1, 1) if layout == "nchw" else (1, 1, 1, c)
    offset, scale = (np.array(values, x.dtype).reshape(shape) for values in (mean, std))
    return divide(subtract(x, offset), scale)
