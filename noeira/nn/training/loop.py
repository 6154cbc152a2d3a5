"""The loop's memory on the device, and the bound programs that run over it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from noeira.nn.core.module import Module
from noeira.nn.datasets import ArrayDataset
from noeira.nn.optimizer import Optimizer
from noeira.nn.training.staging import bindings
from noeira.ops import control
from noeira.runtime.devices import Device, DeviceArray
from noeira.runtime.programs import BoundProgram, Program


class Batches:
    """A data set on the device, cut into full batches and a shorter last one.

    `order` is one flat permutation; the full batches and the rest are two views of it, so the programs, whose
    batch dimension is free, see the last batch at its true size.
    """

    def __init__(self, data: ArrayDataset, batch_size: int, device: Device):
        self.data, self.size = data, min(batch_size, len(data))
        self.full, self.rest = divmod(len(data), self.size)
        self.inputs, self.targets = DeviceArray.of(data.inputs, device), DeviceArray.of(data.targets, device)
        self.permutation = DeviceArray.zeros((len(data),), np.int32, device)
        self.permutation.write(np.arange(len(data), dtype=np.int32))

    def __len__(self) -> int:
        return self.full + (self.rest > 0)

    def bind(self, program: Program, arrays: Mapping[str, DeviceArray]) -> list[BoundProgram]:
        """The program on the full batches, and on the rest where there is one."""
        views = [self.permutation.slice(0, (self.full, self.size))]
        if self.rest:
            views.append(self.permutation.slice(self.full * self.size, (1, self.rest)))
        data = {"inputs": self.inputs, "targets": self.targets}
        known = {**arrays, **data}
        return [
            program.bind({name: known[name] if name != "order" else view for name in program.inputs}) for view in views
        ]

    def rows(self, batch: int) -> np.ndarray:
        """Row numbers of a batch, read back."""
        return self.permutation.numpy()[batch * self.size : min((batch + 1) * self.size, len(self.data))]


class Loop:
    """One `fit`: control memory, data, and what runs on them. The host decides only how often."""

    def __init__(
        self,
        model: Module,
        optimizer: Optimizer,
        counters: np.ndarray,
        compiled: Mapping[str, Program],
        train: ArrayDataset,
        test: ArrayDataset | None,
        device: Device,
        *,
        epochs: int,
        batch_size: int,
        shuffle: bool,
        accumulate: int,
        short: bool,
    ):
        self.accumulate, self.shuffle, self.batch_size = accumulate, shuffle, batch_size
        self._train = Batches(train, batch_size, device)
        self._test = None if test is None else Batches(test, batch_size, device)
        self.batches = 1 if short else len(self._train)
        self._test_batches = 0 if self._test is None else (1 if short else len(self._test))
        self._counters = DeviceArray.of(counters.copy(), device)
        self._eval_counters = DeviceArray.of(counters.copy(), device)
        self._totals = DeviceArray.zeros((control.EVAL_TOTALS,), np.float64, device)
        self._record = DeviceArray.zeros((self.batches, control.LOG_COLUMNS), np.float32, device)
        self._set(control.LR_BASE, int(counters[control.APPLIED]))
        arena = model.arena()
        segments, multipliers = arena.segments()
        steps = -(-self.batches // accumulate)
        tables = {
            "segments": segments,
            "multipliers": multipliers,
            "hyper": optimizer.hyper(clear=True),
            "lr_table": optimizer.schedule.table(optimizer.lr, epochs, steps),
        }
        arrays = {
            **bindings(model),
            **arena.memory,
            **{name: DeviceArray.of(table, device) for name, table in tables.items()},
            "counters": self._counters,
            "record": self._record,
            "accumulated": DeviceArray.zeros((1,), np.float32, device),
            "permutation": self._train.permutation,
        }
        model.zero_grad()
        self._steps = self._train.bind(compiled["train_step"], arrays)
        self._optimizer = _bind(compiled["optimizer_step"], arrays)
        self._shuffle = _bind(compiled["shuffle"], arrays)
        self._evaluation: list[BoundProgram] = []
        if self._test is not None:
            memory = {**arrays, "counters": self._eval_counters, "totals": self._totals}
            self._evaluation = self._test.bind(compiled["evaluation"], memory)
        self.batches_done = 0

    @property
    def has_test(self) -> bool:
        """Whether there is something to evaluate on."""
        return self._test is not None

    @property
    def epoch(self) -> int:
        """Epochs begun, the current one included; counted over all fits of the trainer."""
        return int(self.counters()[control.EPOCH])

    def counters(self) -> np.ndarray:
        """A copy of the control counters."""
        return self._counters.numpy().copy()

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
        if self.shuffle:
            self._shuffle.run()

    def train_batch(self, batch: int) -> None:
        """Forward and backward of one batch."""
        self._steps[1 if batch >= self._train.full else 0].run()
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
        inputs = data.inputs[rows].astype(dtype) * dtype.type(data.input_scale)
        targets = data.targets[rows]
        return inputs, targets if np.issubdtype(targets.dtype, np.integer) else targets.astype(dtype)

    def evaluate(self) -> tuple[float, float]:
        """Mean loss and accuracy over the test set."""
        assert self._test is not None
        self._totals.write(np.zeros(control.EVAL_TOTALS))
        counters = self.counters()
        counters[control.CURSOR] = 0
        self._eval_counters.write(counters)
        for batch in range(self._test_batches):
            self._evaluation[1 if batch >= self._test.full else 0].run()
        loss, weight, correct, rows = self._totals.numpy().tolist()
        return loss / max(weight, 1e-300), correct / max(rows, 1)


def _bind(program: Program, arrays: Mapping[str, DeviceArray]) -> BoundProgram:
    return program.bind({name: arrays[name] for name in program.inputs})
