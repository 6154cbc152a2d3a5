"""The loop's memory on the device, and the bound programs that run over it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from noeira.nn.core.binding import bindings
from noeira.nn.core.module import Module
from noeira.nn.datasets import ArrayDataset
from noeira.nn.optimizer import Optimizer
from noeira.nn.training.batches import Batches
from noeira.ops import control
from noeira.runtime.devices import Device, DeviceArray
from noeira.runtime.programs import BoundProgram, Program


class Evaluation:
    """A data set and the evaluation program on it."""

    def __init__(self, model: Module, program: Program, data: ArrayDataset, batch_size: int, *, short: bool = False):
        device = program.device
        self._batches = Batches.of(data, batch_size, device)
        self._count = 1 if short else len(self._batches)
        self._counters = DeviceArray.zeros((control.COUNTERS,), np.int64, device)
        self._totals = DeviceArray.zeros((control.EVAL_TOTALS,), np.float64, device)
        arrays = {**bindings(model), "counters": self._counters, "totals": self._totals}
        self._programs = self._batches.bind(program, arrays)

    def outputs(self) -> Iterator[Any]:
        """The model's output of every batch, on the device, while loss and accuracy are added up."""
        self._totals.write(np.zeros(control.EVAL_TOTALS))
        counters = np.zeros(control.COUNTERS, np.int64)
        self._counters.write(counters)
        self._batches.open(counters, None)
        try:
            for batch in range(self._count):
                yield self._programs[self._batches.bring(batch)].run()[0]
        finally:
            self._batches.close()

    def run(self) -> tuple[float, float | None]:
        """Mean loss and accuracy over the data set; no accuracy where the loss does not classify."""
        for _ in self.outputs():
            pass
        loss, weight, correct, rows = self._totals.numpy().tolist()
        return loss / max(weight, 1e-300), correct / rows if rows else None


class Loop:
    """One `fit`: control memory, data, and what runs on them. The host decides only how often.

    Args:
        model: Its arena is bound; its gradients are cleared.
        optimizer: Claims its slots of the arena, and goes on from the steps it has applied.
        counters: Control counters to start from.
        compiled: The programs by name.
        data: Training set.
        epochs: Length of the learning-rate table.
        batch_size: Rows a batch.
        shuffle: Whether every epoch has an order of its own.
        accumulate: Batches per optimizer step.
        short: Only one batch an epoch.
    """

    def __init__(
        self,
        model: Module,
        optimizer: Optimizer,
        counters: np.ndarray,
        compiled: Mapping[str, Program],
        data: ArrayDataset,
        *,
        epochs: int = 1,
        batch_size: int = 32,
        shuffle: bool = True,
        accumulate: int = 1,
        short: bool = False,
    ):
        device = compiled["train_step"].device
        self.accumulate, self.shuffle = accumulate, shuffle
        self._train = Batches.of(data, batch_size, device)
        self.batch_size = self._train.size
        self.batches = 1 if short else len(self._train)
        self._arena = model.arena()
        table = optimizer.schedule.table(optimizer.lr, epochs, -(-self.batches // accumulate))
        arrays = training_memory(model, optimizer, counters, table, self.batches, device)
        arrays["permutation"] = self._train.permutation
        self._counters, self._record = arrays["counters"], arrays["record"]
        self._arena.clear("grd")
        self._steps = self._train.bind(compiled["train_step"], arrays)
        self._optimizer = bind_known(compiled["optimizer_step"], arrays)
        self._shuffle = bind_known(compiled["shuffle"], arrays)
        self.batches_done = 0

    @property
    def epoch(self) -> int:
        """Epochs begun, the current one included; counted over all fits of the trainer."""
        return int(self.counters()[control.EPOCH])

    def counters(self) -> np.ndarray:
        """A copy of the control counters."""
        return self._counters.numpy().copy()

    def finish(self) -> np.ndarray:
        """End the reading, and tell the arena how many steps were applied; returns the counters."""
        self._train.close()
        counters = self.counters()
        self._arena.applied = int(counters[control.APPLIED])
        return counters

    def _set(self, position: int, value: int) -> None:
        counters = self.counters()
        counters[position] = value
        self._counters.write(counters)

    def forget_bad_index(self) -> None:
        """Make room for the next report of a non-finite gradient."""
        self._set(control.BAD_INDEX, -1)

    def begin_epoch(self) -> None:
        """Count the epoch, go to the first batch, draw the order."""
        counters = self.counters()
        counters[control.EPOCH] += 1
        counters[control.CURSOR] = 0
        self._counters.write(counters)
        self.batches_done = 0
        self._train.open(counters, self._shuffle if self.shuffle else None)

    def train_batch(self, batch: int) -> None:
        """Forward and backward of one batch."""
        self._steps[self._train.bring(batch)].run()
        self.batches_done = batch + 1

    def optimizer_step(self) -> None:
        """Update the parameters with the gradients gathered since the last step, and clear them."""
        self._optimizer.run()

    def record(self, start: int, stop: int) -> np.ndarray:
        """Rows start..stop of the epoch's record (waits for the device)."""
        return self._record.numpy()[start:stop].copy()

    def stepped(self, done: int) -> np.ndarray:
        """The batches, out of the first `done`, after which the optimizer stepped."""
        index = np.arange(done)
        return index[((index + 1) % self.accumulate == 0) | (index + 1 == self.batches)]

    def rows(self, done: int) -> int:
        """Samples in the first `done` batches."""
        return min(done * self._train.size, len(self._train.data))

    def host_batch(self, batch: int, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
        """The inputs and targets of a batch as the model sees them."""
        rows, data = self._train.rows(batch), self._train.data
        inputs = data.inputs[rows]
        if inputs.dtype != np.int32:  # ids stay ids
            inputs = inputs.astype(dtype) * dtype.type(data.input_scale)
        targets = data.targets[rows]
        return inputs, targets if np.issubdtype(targets.dtype, np.integer) else targets.astype(dtype)


def training_memory(
    model: Module, optimizer: Optimizer, counters: np.ndarray, lr_table: np.ndarray, rows: int, device: Device
) -> dict[str, DeviceArray]:
    """What the step programs read and write, by name: arenas, control memory, a record of `rows` batches.

    The optimizer claims its slots of the arena; the learning-rate table begins with the next step.
    """
    arena = model.arena()
    start = counters.copy()
    start[control.APPLIED] = start[control.LR_BASE] = arena.claim(optimizer.kind, optimizer.slots)
    segments, multipliers = arena.segments()
    tables = {
        "segments": segments,
        "multipliers": multipliers,
        "hyper": optimizer.hyper(clear=True),
        "lr_table": lr_table,
        "counters": start,
    }
    return {
        **bindings(model),
        **arena.memory,
        **{name: DeviceArray.of(table, device) for name, table in tables.items()},
        "record": DeviceArray.zeros((rows, control.LOG_COLUMNS), np.float32, device),
        "accumulated": DeviceArray.zeros((1,), np.float32, device),
    }


def bind_known(program: Program, arrays: Mapping[str, DeviceArray]) -> BoundProgram:
    """The program on those of the arrays that it takes."""
    return program.bind({name: arrays[name] for name in program.inputs})
