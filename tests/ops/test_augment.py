"""Augmentation and windows: the definitions by hand, statistics of the draws, and the same pixels on every path."""

from functools import cache

import numpy as np
import pytest

from noeira import ops
from noeira.ops import augment
from noeira.ops.random import below, bits, words
from noeira.runtime.devices import Device
from noeira.runtime.programs import build
from noeira.runtime.staging import StagedGraph, staging
from tests.compiled import run

KEY = np.array([5, 7, 11], np.int64)
SHAPES = [(3, 3, 8, 8), (1, 1, 1, 1), (0, 3, 4, 4), (5, 2, 7, 3), (2, 1, 1, 9), (7, 3, 32, 32)]


def images(shape, dtype="float32"):
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def last(x):
    return np.ascontiguousarray(np.moveaxis(x, 1, 3))


def squares(counter: int, key: int) -> int:
    y, mask = counter * key % 2**64, 2**64 - 1
    z, x = (y + key) & mask, y
    for term in (y, z, y):
        x = (x * x + term) & mask
        x = (x >> 32 | x << 32) & mask
    return (x * x + z & mask) >> 32


def inner_key(key):
    tops = [int(word) >> 31 for word in bits(64, seed=int(key[0]), step=int(key[1]), stream=int(key[2]))]
    return sum(bit << i for i, bit in enumerate(tops)) | 1


def by_hand(x, key, padding, flip):
    """The definition of parity, pixel by pixel, in Python's integers."""
    n, _, h, w = x.shape
    result, inner = np.zeros_like(x), inner_key(key)
    for i in range(n):
        first, second, third = (squares(4 * i + j, inner) for j in range(3))
        dx, dy = (word * (2 * padding + 1) // 2**32 - padding for word in (first, second))
        mirrored = third < flip * 2**32
        for row in range(h):
            for column in range(w):
                sy, sx = row + dy, (w - 1 - column if mirrored else column) + dx
                if 0 <= sy < h and 0 <= sx < w:
                    result[i, :, row, column] = x[i, :, sy, sx]
    return result


def test_words_are_squares():
    assert words(KEY, (3, 4)).ravel().tolist() == [squares(counter, inner_key(KEY)) for counter in range(12)]


def test_below_reaches_both_ends_and_no_further():
    ends = np.array([0, 2**32 - 1], np.uint64)
    for limit in (1, 2, 9, 65, 2**31, 2**32):
        assert below(ends, np.uint64(limit)).tolist() == [0, limit - 1]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("padding", "flip"), [(4, 0.5), (0, 1.0), (1, 0.0), (0, 0.0)])
def test_crop_flip_is_its_definition(shape, padding, flip):
    x = images(shape)
    want = by_hand(x, KEY, padding, flip)
    got = ops.crop_flip(x, KEY, padding, flip)
    assert np.array_equal(got, want) and got.dtype == x.dtype and got.flags.c_contiguous
    assert np.array_equal(ops.crop_flip(last(x), KEY, padding, flip, "nhwc"), last(want))
    if (padding, flip) == (0, 0.0):
        assert np.array_equal(got, x)
    if (padding, flip) == (0, 1.0):
        assert np.array_equal(got, x[..., ::-1])


def test_every_shift_and_mirror_comes_equally_often():
    n, p = 20_000, 4
    x = np.zeros((n, 1, 9, 9), np.float32)
    x[:, 0, 4, 4], x[:, 0, 4, 3] = 1, 2  # the point that moves, and its left neighbour
    y = ops.crop_flip(x, KEY, p, 0.5)[:, 0]
    where = np.argwhere(y == 1)
    assert len(where) == n  # the centre never leaves
    counts = np.histogram2d(where[:, 1], where[:, 2], bins=9, range=((0, 9), (0, 9)))[0]
    assert abs(counts - n / 81).max() < 5 * np.sqrt(n / 81)
    right = (y[where[:, 0], where[:, 1], np.minimum(where[:, 2] + 1, 8)] == 2).mean()
    left = (y[where[:, 0], where[:, 1], np.maximum(where[:, 2] - 1, 0)] == 2).mean()
    assert abs(right - 4 / 9) < 0.02 and abs(left - 4 / 9) < 0.02  # a ninth of the neighbours is outside


def test_a_sample_depends_on_its_key_and_place_alone():
    x = images((64, 3, 8, 8))
    whole = ops.crop_flip(x, KEY)
    assert np.array_equal(ops.crop_flip(x[:5], KEY), whole[:5])
    same = np.broadcast_to(x[:1], x.shape)
    assert len({sample.tobytes() for sample in ops.crop_flip(same, KEY)}) > 40
    for other in ((6, 7, 11), (5, 8, 11), (5, 7, 12)):
        assert not np.array_equal(ops.crop_flip(x, np.array(other, np.int64)), whole)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("length", [1, 2, 5, 16, 1000])
def test_cutout_is_its_definition(shape, length):
    x = images(shape)
    want, inner = x.copy(), inner_key(KEY)
    for i in range(shape[0]):
        cx = squares(4 * i, inner) * shape[3] // 2**32
        cy = squares(4 * i + 1, inner) * shape[2] // 2**32
        for row in range(shape[2]):
            for column in range(shape[3]):
                if 0 <= row - cy + length // 2 < length and 0 <= column - cx + length // 2 < length:
                    want[i, :, row, column] = 0
    before = x.copy()
    assert np.array_equal(ops.cutout(x, KEY, length), want) and np.array_equal(x, before)
    assert np.array_equal(ops.cutout(last(x), KEY, length, "nhwc"), last(want))


def test_non_finite_pixels_outside_the_cut_stay_and_inside_go():
    x = np.full((40, 1, 6, 6), np.nan, np.float32)
    y = ops.crop_flip(x, KEY, 3)
    assert set(np.unique(np.isnan(y) | (y == 0))) == {True} and (y == 0).any()
    y = ops.cutout(x, KEY, 3)
    assert np.isnan(y).any() and (y == 0).any()


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.5, 1.0, 2.0, 8.0])
def test_mixup_weights_have_the_distribution(alpha):
    weights = augment.mixup_weights(KEY, 20_000, alpha)
    drawn = np.random.default_rng(1).beta(alpha, alpha, 200_000)
    assert weights.min() >= 0 and weights.max() <= 1
    assert abs(weights.mean() - 0.5) < 5 * drawn.std() / np.sqrt(20_000)
    for q in (0.05, 0.25, 0.5, 0.75, 0.95):
        rank = (weights <= np.quantile(drawn, q)).mean()
        assert abs(rank - q) < 0.02
    assert weights.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.05)
    table = augment.beta_quantiles(alpha)
    assert len(table) == 4097 and (np.diff(table) >= 0).all() and table[2048] == 0.5
    np.testing.assert_allclose(table + table[::-1], 1, atol=1e-15)


def test_beta_of_alpha_one_and_two_in_closed_form():
    u = np.linspace(0, 1, 4097)
    np.testing.assert_allclose(augment.beta_quantiles(1.0), u, atol=1e-12)
    x = augment.beta_quantiles(2.0)
    np.testing.assert_allclose(3 * x**2 - 2 * x**3, u, atol=1e-7)


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_mixup_blends_opposites(n):
    x, rows = images((n, 3, 2, 2), "float64"), ops.one_hot(np.arange(n) % 3, 3, "float64")
    y, targets = ops.mixup(x, rows, KEY, 0.4)
    weights = augment.mixup_weights(KEY, n, 0.4)
    for i in range(n):
        other = n - 1 - i
        np.testing.assert_allclose(y[i], weights[i] * x[i] + (1 - weights[i]) * x[other], rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(targets[i], weights[i] * rows[i] + (1 - weights[i]) * rows[other], atol=1e-14)
    np.testing.assert_allclose(targets.sum(axis=1), 1, atol=1e-12)


def test_one_hot_and_normalize():
    assert ops.one_hot(np.array([2, 0, -1, 3]), 3).tolist() == [[0, 0, 1], [1, 0, 0], [0, 0, 0], [0, 0, 0]]
    x = images((2, 2, 3, 4))
    want = (x - np.array([1, 2], np.float32)[:, None, None]) / np.array([0.5, 4], np.float32)[:, None, None]
    np.testing.assert_allclose(ops.normalize(x, (1, 2), (0.5, 4)), want, rtol=1e-6)
    assert np.array_equal(ops.normalize(last(x), (1, 2), (0.5, 4), "nhwc"), last(ops.normalize(x, (1, 2), (0.5, 4))))


X, Y = images((2, 3, 4, 4)), np.zeros((2, 3), np.float32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.crop_flip(X, KEY, layout="chw"), "expected a layout out of nchw, nhwc, got 'chw'"),
        (lambda: ops.crop_flip(X[0], KEY), r"expected images \[N, C, H, W\] of known size, got shape \[3, 4, 4\]"),
        (lambda: ops.cutout(X[0], KEY, layout="nhwc"), r"expected images \[N, H, W, C\]"),
        (lambda: ops.crop_flip(X.astype(np.uint8), KEY), "expected images of float32 or float64, got uint8"),
        (lambda: ops.crop_flip(X, KEY, -1), "expected a padding of 0 to 65535 pixels, got -1"),
        (lambda: ops.crop_flip(X, KEY, 4, 1.5), r"expected flip in \[0, 1\], got 1.5"),
        (lambda: ops.crop_flip(X, KEY, 4, float("nan")), "expected flip in"),
        (lambda: ops.cutout(X, KEY, 0), "expected a square of 1 pixel or more, got length 0"),
        (lambda: ops.mixup(X, Y, KEY, 0), "expected alpha from 0.01 to 100, got 0"),
        (lambda: ops.mixup(X, Y[:1], KEY), r"expected as many targets as inputs \(2\), got 1"),
        (lambda: ops.mixup(X, np.zeros(2, np.int64), KEY), r"expected targets of float32 or float64 \[N, ...\]"),
        (lambda: ops.one_hot(Y, 3), r"expected integer class ids \[N\], got float32\[2, 3\]"),
        (lambda: ops.normalize(X, (1,), (1,)), "expected 3 means and deviations, one a channel, got 1 and 1"),
        (lambda: ops.normalize(X, (0, 0, 0), (1, 0, 1)), "expected finite deviations above 0"),
    ],
)
def test_mistakes_are_refused_in_words(call, message):
    with pytest.raises(ops.ShapeError, match=message):
        call()


# ---- compiled --------------------------------------------------------------------------------------------------------


C, H, W = 3, 8, 5


def _program(name, dtype, shape, body):
    graph = StagedGraph(name)
    with staging(graph):
        x, key = graph.input("x", shape, dtype), graph.input("key", (3,), "int64")
        result = body(x, key)
        return graph.finish(*(result if isinstance(result, tuple) else (result,)))


BODIES = {
    "normalize": (("b", C, H, W), lambda x, key: ops.normalize(x, (0.1, 0.2, 0.3), (0.5, 2.0, 3.0))),
    "crop_flip": (("b", C, H, W), lambda x, key: ops.crop_flip(x, key, 2)),
    "crop_flip nhwc": (("b", H, W, C), lambda x, key: ops.crop_flip(x, key, 3, layout="nhwc")),
    "cutout": (("b", C, H, W), lambda x, key: ops.cutout(x, key, 4)),
    "mixup": (("b", C), lambda x, key: ops.mixup(x, x, key, 0.4)),
}


DOUBLE = ("normalize", "crop_flip")


@cache
def programs():
    graphs = [_program(name.replace(" ", "_"), "float32", *BODIES[name]) for name in BODIES]
    graphs += [_program(f"{name}_float64", "float64", *BODIES[name]) for name in DOUBLE]
    return build(graphs, Device("cpu"), "augmentation")


@pytest.mark.compiled
@pytest.mark.parametrize("n", [1, 2, 37, 0])
@pytest.mark.parametrize("name", [*BODIES, *(f"{name} float64" for name in DOUBLE)])
def test_compiled_gives_the_references_pixels(name, n):
    shape, body = BODIES[name.removesuffix(" float64")]
    dtype = "float64" if name.endswith("float64") else "float32"
    for key in (KEY, np.array([-1, 2**31, 2**32 - 1], np.int64)):
        x = images((n, *shape[1:]), dtype)
        x.reshape(-1)[: n // 2] = np.nan
        program = programs()[name.replace(" ", "_")]
        got, want = run(program, {"x": x, "key": key}), body(x, key)
        again = run(program, {"x": x, "key": key})
        for value, expected, repeated in zip(got, want if isinstance(want, tuple) else (want,), again, strict=True):
            assert value.tobytes() == repeated.tobytes()
            if name == "mixup":  # a product and a sum, which a compiler may contract
                np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
            else:
                np.testing.assert_allclose(value, expected, rtol=3e-7)
