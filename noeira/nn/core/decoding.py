"""Decoding: running a model on one token at a time, with memory of the tokens before it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from noeira.ops.dispatch import Array
from noeira.ops.elementwise import equal, less_equal, where
from noeira.ops.embedding import embedding
from noeira.ops.memory import assign, load
from noeira.ops.shape import reshape

Memory = Callable[[str, tuple[int, ...]], Array]
"""Gives the memory of a name and a shape, zeros at first; what is written there is found there at the next token."""


class Decoding:
    """The place of the token that `Module.step` gets, and rows kept of the tokens before it.

    Args:
        position: int32 [1]: the token's place, from 0 on.
        length: Places there are.
        memory: Where rows are kept.
    """

    def __init__(self, position: Array, length: int, memory: Memory):
        self.position, self.length, self._memory = position, length, memory
        self._places, self._used = np.arange(length, dtype=np.int32), 0

    def append(self, row: Array) -> Array:
        """Keep a row [1, 1, D] under this token's place; returns all rows [1, length, D] (later ones: stale).

        Every call of a step has a memory of its own, so a step has to make its calls in one order.
        """
        memory = self._memory(f"kept {self._used}", (1, self.length, int(row.shape[-1])))
        self._used += 1
        here = equal(self._places[None, :, None], reshape(self.position, (1, 1, 1)))
        rows = where(here, row, load(memory))
        assign(memory, rows)
        return rows

    def state(self, width: int) -> Array:
        """What `keep_state` was given at the token before [1, width]; zeros at the first."""
        memory = self._memory(f"kept {self._used}", (1, width))
        self._used += 1
        self._last = memory
        return where(equal(reshape(self.position, (1, 1)), 0), np.zeros(1, memory.dtype), load(memory))

    def keep_state(self, state: Array) -> None:
        """Keep a state [1, width] for the token after, in place of the one `state` gave last."""
        assign(self._last, state)

    def seen(self) -> Array:
        """Booleans [1, length]: which places are not behind this token's."""
        return less_equal(self._places[None], reshape(self.position, (1, 1)))

    def row(self, table: Array) -> Array:
        """This place's row [1, 1, D] of a table [length or more, D]."""
        return reshape(embedding(self.position, table), (1, 1, table.shape[-1]))
