"""Batches read ahead by a thread, for data larger than memory."""

from __future__ import annotations

import queue
import threading
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noeira import ops
from noeira.nn.datasets.array import ArrayDataset
from noeira.ops import control

_Batch = tuple[NDArray[Any], NDArray[Any]]


class Prefetch:
    """The batches of one epoch, in order, read in the background; never more than `depth + 2` are in memory.

    The order is that of `Trainer`: the permutation that (seed, epoch) names. It does not depend on timing. An error
    while reading is raised where its batch would have come. Leaving the loop early is fine inside a `with` block, or
    with `close()`.

    Args:
        data: Arrays or memory maps.
        batch_size: Rows a batch; the last one may have fewer.
        shuffle: Whether the epoch has an order of its own.
        seed: Names the order.
        epoch: Names the order.
        depth: Batches that may wait.

    Raises:
        ValueError: `batch_size` or `depth` is below 1.

    Example:
        >>> data = ArrayDataset(np.zeros((5, 2), np.float32), np.arange(5))
        >>> with Prefetch(data, 2, shuffle=False) as batches:
        ...     [targets.tolist() for _, targets in batches]
        [[0, 1], [2, 3], [4]]
    """

    def __init__(
        self,
        data: ArrayDataset,
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        epoch: int = 1,
        depth: int = 2,
    ) -> None:
        """See the class."""
        if batch_size < 1 or depth < 1:
            raise ValueError(f"Prefetch: expected batch_size and depth of at least 1, received {batch_size}, {depth}.")
        self._data, self._size = data, batch_size
        self.order = np.arange(len(data), dtype=np.int32)
        """Row numbers, batch after batch."""
        if shuffle:
            counters = np.zeros(control.COUNTERS, np.int64)
            counters[[control.SEED, control.EPOCH]] = (seed, epoch)
            ops.shuffle(self.order, counters)
        self._ready: queue.Queue[_Batch | BaseException | None] = queue.Queue(depth)
        self._stop = threading.Event()
        self._done = False
        self._thread = threading.Thread(target=self._work, name="noeira-prefetch", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """Return the number of batches."""
        return -(-len(self.order) // self._size)

    def __iter__(self) -> Prefetch:
        """Return itself: one pass."""
        return self

    def __next__(self) -> _Batch:
        """Return the next batch, inputs and targets.

        Raises:
            Exception: Whatever reading the batch raised, in the reading thread.
        """
        if self._done:
            raise StopIteration
        item = self._ready.get()
        if isinstance(item, tuple):
            return item
        self.close()
        if item is None:
            raise StopIteration
        raise item

    def close(self) -> None:
        """End the thread; what it has read is dropped. May be called again."""
        self._done = True
        self._stop.set()
        while self._thread.is_alive():
            try:  # it may wait for a free place
                self._ready.get_nowait()
            except queue.Empty:
                self._thread.join(0.01)

    def __enter__(self) -> Prefetch:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def _work(self) -> None:
        end: BaseException | None = None
        try:
            for start in range(0, len(self.order), self._size):
                if self._stop.is_set():
                    return
                rows = self.order[start : start + self._size]
                # np.array copies: a memory map is read here, not where the batch is used.
                self._ready.put((np.array(self._data.inputs[rows]), np.array(self._data.targets[rows])))
        except BaseException as error:
            end = error
        self._ready.put(end)
