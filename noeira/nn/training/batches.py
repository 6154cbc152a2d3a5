"""Where the loop's batches come from: a data set on the device, or a memory map read ahead by a thread."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from noeira.nn.datasets import ArrayDataset, Prefetch
from noeira.ops import control
from noeira.runtime.devices import Device, DeviceArray
from noeira.runtime.programs import BoundProgram, Program


class Batches:
    """A data set on the device, cut into full batches and a shorter last one.

    `permutation` is one flat order; the full batches and the rest are two views of it, so the programs, whose
    batch dimension is free, see the last batch at its true size.
    """

    def __init__(self, data: ArrayDataset, batch_size: int, device: Device):
        self.data, self.size = data, min(batch_size, len(data))
        self.full, self.rest = divmod(len(data), self.size)
        self.inputs, self.targets, rows = self._memory(device)
        self.permutation = DeviceArray.zeros((rows,), np.int32, device)
        self.permutation.write(np.arange(rows, dtype=np.int32))

    @staticmethod
    def of(data: ArrayDataset, batch_size: int, device: Device) -> Batches:
        """The batches of a data set: on the device, unless its inputs are a memory map."""
        return (Streamed if isinstance(data.inputs, np.memmap) else Batches)(data, batch_size, device)

    def __len__(self) -> int:
        return self.full + (self.rest > 0)

    def bind(self, program: Program, arrays: Mapping[str, DeviceArray]) -> list[BoundProgram]:
        """The program on the full batches, and on the rest where there is one."""
        known = {**arrays, "inputs": self.inputs, "targets": self.targets}
        return [
            program.bind({name: known[name] if name != "order" else view for name in program.inputs})
            for view in self._views()
        ]

    def open(self, counters: np.ndarray, shuffle: BoundProgram | None) -> None:
        """Begin a pass over the data, in the order that the counters name, or in its own (`shuffle` is None)."""
        if shuffle is not None:
            shuffle.run()

    def bring(self, batch: int) -> int:
        """Have a batch in memory; tells which of the bound programs is for it."""
        return int(batch >= self.full)

    def rows(self, batch: int) -> np.ndarray:
        """Row numbers of a batch, read back."""
        return self.permutation.numpy()[batch * self.size : min((batch + 1) * self.size, len(self.data))]

    def close(self) -> None:
        """End the pass. May be called again."""

    def _memory(self, device: Device) -> tuple[DeviceArray, DeviceArray, int]:
        """The inputs and targets that the programs read, and how many rows they have."""
        return DeviceArray.of(self.data.inputs, device), DeviceArray.of(self.data.targets, device), len(self.data)

    def _views(self) -> list[DeviceArray]:
        views = [self.permutation.slice(0, (self.full, self.size))]
        if self.rest:
            views.append(self.permutation.slice(self.full * self.size, (1, self.rest)))
        return views


class Streamed(Batches):
    """The same batches in the same order, of which only a few are in memory at a time (`Prefetch`)."""

    _ahead: Prefetch | None = None

    def open(self, counters: np.ndarray, shuffle: BoundProgram | None) -> None:
        """Begin a pass: a thread reads ahead from here on."""
        self.close()
        seed, epoch = int(counters[control.SEED]), int(counters[control.EPOCH])
        self._ahead = Prefetch(self.data, self.size, shuffle=shuffle is not None, seed=seed, epoch=epoch)

    def bring(self, batch: int) -> int:
        """Write the next batch where the programs read it."""
        assert self._ahead is not None
        for memory, array in zip((self.inputs, self.targets), next(self._ahead), strict=True):
            memory.slice(0, array.shape).write(array)
        return super().bring(batch)

    def rows(self, batch: int) -> np.ndarray:
        """Row numbers of a batch."""
        assert self._ahead is not None
        return self._ahead.order[batch * self.size : (batch + 1) * self.size]

    def close(self) -> None:
        """End the thread."""
        if self._ahead is not None:
            self._ahead.close()

    def _memory(self, device: Device) -> tuple[DeviceArray, DeviceArray, int]:
        inputs, targets = self.data.inputs, self.data.targets
        return (
            DeviceArray.zeros((self.size, *inputs.shape[1:]), inputs.dtype, device),
            DeviceArray.zeros((self.size, *targets.shape[1:]), targets.dtype, device),
            self.size,
        )

    def _views(self) -> list[DeviceArray]:
        return [self.permutation.slice(0, (1, rows)) for rows in (self.size, self.rest) if rows]
