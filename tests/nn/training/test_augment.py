"""Augmentations as values: each is its op, and a chain gives each of its steps a draw of its own."""

import numpy as np
import pytest

from noeira import ops
from noeira.nn.training.augment import Augment, CropFlip, Cutout, Mixup, Normalize
from noeira.ops.random import stream_of

KEY = np.array([1, 2, 3], np.int64)
X = np.random.default_rng(0).standard_normal((6, 3, 8, 8)).astype(np.float32)
LABELS = np.arange(6) % 4


def key(i):
    return ops.fold_in(KEY, stream_of(f"augment {i}"))


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_a_chain_is_its_ops_in_order(layout):
    x = X if layout == "nchw" else np.ascontiguousarray(np.moveaxis(X, 1, 3))
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    chain = Augment([Normalize(mean, std, layout), CropFlip(2, 0.3, layout), Cutout(3, layout), Mixup(4, 0.5)])
    got, rows = chain(x, LABELS, KEY)
    want = ops.cutout(ops.crop_flip(ops.normalize(x, mean, std, layout), key(1), 2, 0.3, layout), key(2), 3, layout)
    want, want_rows = ops.mixup(want, ops.one_hot(LABELS, 4), key(3), 0.5)
    assert np.array_equal(got, want) and np.array_equal(rows, want_rows)
    assert not np.array_equal(got, x) and rows.shape == (6, 4)


def test_two_equal_steps_draw_differently():
    once = CropFlip(3, 0.0)(X, LABELS, key(0))[0]
    assert not np.array_equal(CropFlip(3, 0.0)(X, LABELS, key(1))[0], once)
    both, labels = Augment([CropFlip(3, 0.0), CropFlip(3, 0.0)])(X, LABELS, KEY)
    assert np.array_equal(both, ops.crop_flip(once, key(1), 3, 0.0)) and labels is LABELS


def test_mixup_takes_rows_as_they_are():
    rows = ops.one_hot(LABELS, 4)
    for a, b in zip(Mixup(4)(X, rows, KEY), Mixup(4)(X, LABELS, KEY), strict=True):
        assert np.array_equal(a, b)
    assert Augment()(X, LABELS, KEY)[0] is X
