"""Augmentation as values: what is done to a batch before the model sees it, drawn by counter hash."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from noeira import ops
from noeira.ops.random import stream_of

Pair = tuple[ops.Array, ops.Array]


STREAM = stream_of("augment")
"""The draws of a training step's augmentation, next to those of its layers."""


class Augmentation:
    """One change of a batch; subclasses define `__call__`."""

    def __call__(self, x: ops.Array, targets: ops.Array, key: ops.Array) -> Pair:
        """Return inputs and targets, changed as the key says.

        Args:
            x: Inputs, float.
            targets: Their targets.
            key: int64 [3], names the draw.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Normalize(Augmentation):
    """Channel by channel (x - mean) / std.

    Example:
        >>> import numpy as np
        >>> x, _ = Normalize((0.5,), (0.5,))(np.ones((1, 1, 2, 2), np.float32), None, None)
        >>> float(x.max())
        1.0
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    layout: str = "nchw"

    def __call__(self, x: ops.Array, targets: ops.Array, key: ops.Array) -> Pair:
        """Return x normalised, and the targets."""
        return ops.normalize(x, tuple(self.mean), tuple(self.std), self.layout), targets


@dataclass(frozen=True)
class CropFlip(Augmentation):
    """Pad by zeros, crop at random, mirror with probability `flip` (`ops.crop_flip`)."""

    padding: int = 4
    flip: float = 0.5
    layout: str = "nchw"

    def __call__(self, x: ops.Array, targets: ops.Array, key: ops.Array) -> Pair:
        """Return x shifted and mirrored, and the targets."""
        return ops.crop_flip(x, key, self.padding, self.flip, self.layout), targets


@dataclass(frozen=True)
class Cutout(Augmentation):
    """Zero a square of every image (`ops.cutout`)."""

    length: int = 16
    layout: str = "nchw"

    def __call__(self, x: ops.Array, targets: ops.Array, key: ops.Array) -> Pair:
        """Return x with holes, and the targets."""
        return ops.cutout(x, key, self.length, self.layout), targets


@dataclass(frozen=True)
class Mixup(Augmentation):
    """Blend samples and targets (`ops.mixup`); class ids become rows of probabilities."""

    num_classes: int
    alpha: float = 0.2

    def __call__(self, x: ops.Array, targets: ops.Array, key: ops.Array) -> Pair:
        """Return blended inputs and rows of probabilities."""
        rows = ops.one_hot(targets, self.num_classes, x.dtype.name) if len(targets.shape) == 1 else targets
        return ops.mixup(x, rows, key, self.alpha)


@dataclass(frozen=True)
class Augment(Augmentation):
    """Several changes, one after the other, each with a draw of its own.

    Args:
        steps: The changes.

    Example:
        >>> import numpy as np
        >>> augment = Augment([Normalize((0.5,), (0.5,)), CropFlip(1)])
        >>> x, labels = np.ones((2, 1, 4, 4), np.float32), np.array([1, 0])
        >>> augment(x, labels, np.array([0, 1, 2]))[0].shape
        (2, 1, 4, 4)
    """

    steps: Sequence[Augmentation] = field(default_factory=tuple)

    def __call__(self, x: ops.Array, targets: ops.Array, key: ops.Array) -> Pair:
        """Return what the changes make of inputs and targets."""
        for i, step in enumerate(self.steps):
            x, targets = step(x, targets, ops.fold_in(key, stream_of(f"augment {i}")))
        return x, targets
