"""Random windows of a corpus, for language models."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from noeira import ops
from noeira.ops import control


class TokenWindows:
    """Inputs and targets of `length` ids, cut from a corpus at places drawn by counter hash.

    The windows of a step are a pure function of (seed, step): drawn again, or on the device by
    `AutoregressiveTrainer`, they are the same.

    Args:
        ids: The corpus, int32 [n] with n > length.
        length: Ids a window.
        seed: Names all draws.

    Raises:
        ShapeError: The corpus is not int32 [n], or too short.

    Example:
        >>> windows = TokenWindows(np.arange(100, dtype=np.int32), length=4)
        >>> x, y = windows.batch(step=0, batch_size=3)
        >>> x.shape, (y == x + 1).all().item()
        ((3, 4), True)
    """

    def __init__(self, ids: NDArray[np.int32], length: int, *, seed: int = 0) -> None:
        """See the class."""
        self.ids, self.length, self.seed = ids, length, seed
        self.batch(0, 1)  # refuses a corpus that does not fit

    def batch(self, step: int, batch_size: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the inputs and targets of a step, each int32 [batch_size, length]."""
        counters = np.zeros(control.COUNTERS, np.int64)
        counters[[control.SEED, control.STEP]] = (self.seed, step)
        return ops.windows(self.ids, counters, batch_size, self.length)

    def in_order(self, count: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return up to `count` windows end to end from the beginning: the fixed ones to evaluate on."""
        fit = min(count, (len(self.ids) - 1) // self.length)
        x, y = (self.ids[shift : shift + fit * self.length] for shift in (0, 1))
        return x.reshape(fit, self.length), y.reshape(fit, self.length)

    def __len__(self) -> int:
        """Return the number of places a window may begin at."""
        return len(self.ids) - self.length

    def __repr__(self) -> str:
        """Show the sizes."""
        return f"TokenWindows(int32[{len(self.ids)}], length={self.length}, seed={self.seed})"
