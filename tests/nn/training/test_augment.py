"""Augmentations as values: each is its op, and a chain gives each of its steps a draw of its own."""

import numpy as np
import pytest

from noeira import nn, ops
from noeira.nn.training.augment import STREAM, Augment, CropFlip, Cutout, Mixup, Normalize
from noeira.ops.random import fold_in, stream_of

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


@pytest.mark.compiled
def test_the_trainer_augments_what_it_trains_on_and_nothing_else() -> None:
    rng = np.random.default_rng(0)
    images, labels = rng.random((12, 1, 6, 5)).astype(np.float32), np.arange(12) % 3
    augment = nn.Augment([nn.Normalize((0.5,), (0.25,)), nn.CropFlip(2), nn.Cutout(3), nn.Mixup(3)])

    def trainer(seed: int = 7) -> nn.Trainer:
        net = nn.Sequential(nn.Flatten(), nn.Linear(30, 3)).init(seed=1)
        options = {"seed": seed, "run_dir": None, "progress": False, "device": "cpu"}
        return nn.Trainer(net, loss=nn.CrossEntropyLoss(), optimizer=nn.SGD(0.1), augment=augment, **options)

    def by_hand(seed: int = 7) -> list[float]:
        net, losses = nn.Sequential(nn.Flatten(), nn.Linear(30, 3)).init(seed=1), []
        for step in range(6):
            rows = slice(4 * (step % 3), 4 * (step % 3) + 4)
            x, y = augment(images[rows], labels[rows], fold_in(np.array([seed, step, 0]), STREAM))
            loss = nn.CrossEntropyLoss()
            net.zero_grad()
            prediction, saved = net.forward(x)
            value, kept = loss.forward(prediction, y)
            net.vjp(saved, loss.vjp(kept))
            for param in net.named_parameters().values():
                param.val = param.val - np.float32(0.1) * param.grd
            losses.append(float(value))
        return losses

    first, again, other = trainer(), trainer(), trainer(seed=8)
    found = first.fit((images, labels), epochs=2, batch_size=4, shuffle=False)
    np.testing.assert_allclose(found.losses, by_hand(), rtol=1e-5)
    # Cut in two, the run draws what it would have drawn.
    cut = [again.fit((images, labels), epochs=1, batch_size=4, shuffle=False).losses for _ in range(2)]
    assert [*cut[0], *cut[1]] == found.losses
    assert other.fit((images, labels), epochs=2, batch_size=4, shuffle=False).losses != found.losses
    plain = nn.Trainer(first.model, loss=nn.CrossEntropyLoss(), optimizer=nn.SGD(0.1), run_dir=None, progress=False)
    assert first.evaluate((images, labels)) == plain.evaluate((images, labels))


def test_an_augmentation_that_is_none_is_refused() -> None:
    net = nn.Linear(3, 2)
    with pytest.raises(TypeError, match="expected an Augmentation as 'augment', got str"):
        nn.Trainer(net, loss=nn.CrossEntropyLoss(), optimizer=nn.SGD(0.1), augment="flip")  # type: ignore[arg-type]
