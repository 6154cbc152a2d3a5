"""Trainer: supervised training with everything that repeats on the device."""

from __future__ import annotations

import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np

import noeira
from noeira.nn.core.errors import NonFiniteError, ShapeError
from noeira.nn.core.module import Module
from noeira.nn.datasets import ArrayDataset
from noeira.nn.loss import Loss
from noeira.nn.optimizer import Optimizer
from noeira.nn.training import staging as programs
from noeira.nn.training.augment import STREAM, Augmentation
from noeira.nn.training.diagnosis import first_non_finite
from noeira.nn.training.history import EpochRecord, History, log, new_run_dir
from noeira.nn.training.interrupt import Interrupt, catching_interrupt
from noeira.nn.training.loop import Evaluation, Loop
from noeira.nn.training.progress import EpochBar
from noeira.ops import control
from noeira.ops.random import fold_in
from noeira.runtime.devices import Device, resolve, to_numpy
from noeira.runtime.programs import Program, build

Data = ArrayDataset | tuple[np.ndarray, np.ndarray]


class Trainer:
    """Trains a model: forward, backward, optimizer, shuffling and evaluation run as compiled programs.

    The data set is uploaded once; every batch is gathered on the device by a permutation made on the device; the
    host reads the losses every `log_every` steps and at the end of an epoch. Inputs that are a memory map
    (`np.load(file, mmap_mode="r")`) stay on disk: a thread reads their batches ahead, in the same order.

    Args:
        model: The model. If it has no values yet, they are drawn with `seed`.
        loss: Compares its output with the targets.
        optimizer: Updates its parameters.
        augment: Changes every training batch, drawn anew each step from the seed, but nothing that is evaluated;
            `Augment` joins several.
        device: "auto", "cpu", "cuda", "cuda:1" or "metal".
        seed: Names the weights (unless the model has some), the shuffles and the dropout masks.
        run_dir: Parent of the run folder with metrics.csv and learning_curve.png; None writes no files.
        log_every: Batches between two reads of the loss.
        debug: Check the loss after every batch, before the optimizer steps, so that a non-finite one is traced to
            the first layer that made it, with exactly the parameters it had.
        fast_dev_run: Run one batch of training and one of evaluation, an epoch, and write no files.
        progress: Show the banner, a progress bar and a line an epoch.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import Adam, CrossEntropyLoss, Linear, LinearReLU, Sequential, Trainer
        >>> net = Sequential(LinearReLU(4, 16), Linear(16, 3))
        >>> trainer = Trainer(net, loss=CrossEntropyLoss(), optimizer=Adam(1e-2), seed=0)
        >>> x, y = np.random.rand(90, 4).astype(np.float32), np.arange(90) % 3
        >>> history = trainer.fit((x, y), epochs=2, batch_size=16)  # doctest: +SKIP
    """

    def __init__(
        self,
        model: Module,
        *,
        loss: Loss,
        optimizer: Optimizer,
        augment: Augmentation | None = None,
        device: str | Device = "auto",
        seed: int = 0,
        run_dir: str | Path | None = "runs",
        log_every: int = 50,
        debug: bool = False,
        fast_dev_run: bool = False,
        progress: bool = True,
    ):
        if loss.reduction == "none":
            raise ValueError(
                f"Trainer: expected a loss that is one number, got {loss!r}; use reduction='mean' or 'sum'"
            )
        if log_every < 1:
            raise ValueError(f"Trainer: expected log_every >= 1, got {log_every}")
        if not -(2**63) <= int(seed) < 2**63:
            raise ValueError(f"Trainer: expected a seed that fits 64 bits, got {seed}")
        if augment is not None and not callable(augment):
            raise TypeError(f"Trainer: expected an Augmentation as 'augment', got {type(augment).__name__}")
        self.model, self.loss, self.optimizer, self.augment = model, loss, optimizer, augment
        self.device, self.seed = resolve(device), int(seed)
        self.run_dir, self.log_every = run_dir, log_every
        self.debug, self.fast_dev_run, self.progress = debug, fast_dev_run, progress
        self._counters = np.zeros(control.COUNTERS, np.int64)
        self._counters[[control.SEED, control.BAD_INDEX]] = (self.seed, -1)
        self._start = time.perf_counter()

    @property
    def skipped(self) -> int:
        """Optimizer steps skipped because a gradient was not finite."""
        return int(self._counters[control.SKIPPED])

    def fit(
        self,
        train: Data,
        test: Data | None = None,
        *,
        epochs: int = 1,
        batch_size: int = 32,
        shuffle: bool = True,
        accumulate_grad_batches: int = 1,
    ) -> History:
        """Train for a number of epochs; calling it again goes on from where it stopped.

        Args:
            train: Training set: an `ArrayDataset`, or (inputs, targets).
            test: Evaluated after every epoch.
            epochs: Passes over `train`.
            batch_size: Rows a batch; the last one of an epoch may have fewer and weighs by its rows.
            shuffle: Draw a new order every epoch.
            accumulate_grad_batches: Batches whose gradients are added up before the optimizer steps.

        Returns:
            The history. After Ctrl-C it ends with the last finished step and `interrupted` is True.

        Raises:
            ShapeError: Inputs or targets do not fit the model or the loss.
            NonFiniteError: The loss became NaN or infinite.
        """
        sizes = {"epochs": epochs, "batch_size": batch_size, "accumulate_grad_batches": accumulate_grad_batches}
        for name, value in sizes.items():
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"Trainer.fit: expected {name} to be an integer >= 1, got {value!r}")
        train_set, test_set = _dataset(train, "train"), None if test is None else _dataset(test, "test")
        self._prepare()
        compiled = self._programs(train_set, test_set)
        history = History(compiled=any(program.compiled for program in compiled.values()))
        if self.run_dir is not None and not self.fast_dev_run:
            history.run_dir = new_run_dir(self.run_dir)
        if self.progress:
            print(self.banner(), file=sys.stderr, flush=True)
        loop = Loop(
            self.model,
            self.optimizer,
            self._counters,
            compiled,
            train_set,
            epochs=epochs,
            batch_size=batch_size,
            shuffle=shuffle,
            accumulate=accumulate_grad_batches,
            short=self.fast_dev_run,
        )
        evaluation = None
        if test_set is not None:
            evaluation = Evaluation(self.model, compiled["evaluation"], test_set, batch_size, short=self.fast_dev_run)
        try:
            with catching_interrupt() as interrupt:
                for _ in range(epochs):
                    self._epoch(loop, evaluation, history, interrupt)
                    if interrupt.requested:
                        history.interrupted = True
                        break
        finally:
            self._counters = loop.finish()
            history.finish()
        return history

    def evaluate(self, data: Data, *, batch_size: int = 256) -> tuple[float, float | None]:
        """Mean loss and accuracy on a data set, in evaluation mode; no accuracy where the loss does not classify."""
        return self._evaluation(data, batch_size).run()

    def predict(self, data: Data, *, batch_size: int = 256) -> np.ndarray:
        """The model's output for every row of a data set [N, ...], in evaluation mode, as `evaluate` runs it."""
        return np.concatenate([np.array(to_numpy(y)) for y in self._evaluation(data, batch_size).outputs()])

    def _evaluation(self, data: Data, batch_size: int) -> Evaluation:
        dataset = _dataset(data, "data")
        self._prepare()
        compiled = self._programs(dataset, None)
        return Evaluation(self.model, compiled["evaluation"], dataset, batch_size)

    def _prepare(self) -> None:
        """Draw what has no values, and bring the model to the device."""
        self.model.init_missing(seed=self.seed)
        self.model.to(device=self.device)
        self.model.arena()

    def banner(self) -> str:
        """One line: version, device, precision, parameters, MAX version."""
        precision = {"float32": "32-true", "float64": "64-true"}[self.model.arena().dtype.name]
        parts = (
            f"noeira {noeira.__version__}",
            str(self.device),
            precision,
            f"{self.model.num_parameters:,} parameters",
            f"MAX {version('max')}",
        )
        return " | ".join(parts)

    def _programs(self, train: ArrayDataset, test: ArrayDataset | None) -> dict[str, Program]:
        dtype = self.model.arena().dtype.name
        train_spec, test_spec = (
            programs.DataSpec.of(train),
            programs.DataSpec.of(test if test is not None else train),
        )
        step, prediction_shape = programs.train_step(self.model, self.loss, train_spec, dtype, self.augment)
        for data in (train, test):
            if data is not None:
                self.loss.check_targets(data.targets, prediction_shape, data.name)
        graphs = [
            step,
            programs.optimizer_step(self.optimizer, dtype),
            programs.shuffle(),
            programs.evaluation(self.model, self.loss, test_spec, dtype),
        ]
        return build(graphs, self.device, f"{type(self.model).__name__} for training on {self.device}")

    def _epoch(self, loop: Loop, evaluation: Evaluation | None, history: History, interrupt: Interrupt) -> None:
        loop.begin_epoch()
        start = time.perf_counter()
        read, done = 0, 0
        if not history.losses:
            history.seconds_to_first_step = start - self._start
        with EpochBar(f"epoch {loop.epoch}", loop.batches, loop.batch_size, enabled=self.progress) as bar:
            for batch in range(loop.batches):
                loop.train_batch(batch)
                done = batch + 1
                if self.debug:
                    read = self._read(loop, history, read, batch + 1)
                if (batch + 1) % loop.accumulate == 0 or batch + 1 == loop.batches:
                    loop.optimizer_step()
                if (batch + 1) % self.log_every == 0:
                    read = self._read(loop, history, read, batch + 1)
                    bar.update(batch + 1, history.losses[-1], time.perf_counter() - start)
                if interrupt.requested:
                    break
            self._read(loop, history, read, done)
        seconds = time.perf_counter() - start
        test_loss, test_accuracy = None, None
        if evaluation is not None and not interrupt.requested:
            test_loss, test_accuracy = evaluation.run()
        self._finish_epoch(loop, history, done, seconds, test_loss, test_accuracy)

    def _finish_epoch(
        self,
        loop: Loop,
        history: History,
        done: int,
        seconds: float,
        test_loss: float | None,
        test_accuracy: float | None,
    ) -> None:
        rows = loop.record(0, done).astype(np.float64)
        weights = rows[:, control.LOG_WEIGHT]
        stepped = rows[loop.stepped(done)]
        skipped = int(stepped[:, control.LOG_SKIPPED].sum())
        if skipped:
            counters = loop.counters()
            name = self.model.arena().name_at(max(int(counters[control.BAD_INDEX]), 0))
            log.warning("%d steps of epoch %d skipped: non-finite gradient, first in '%s'", skipped, loop.epoch, name)
            loop.forget_bad_index()
        norms = stepped[stepped[:, control.LOG_SKIPPED] == 0, control.LOG_NORM]
        record = EpochRecord(
            epoch=loop.epoch,
            step=len(history.losses),
            train_loss=float(rows[:, control.LOG_LOSS] @ weights / max(weights.sum(), 1e-300)),
            test_loss=test_loss,
            test_accuracy=test_accuracy,
            lr=float(stepped[-1, control.LOG_LR]) if len(stepped) else self.optimizer.lr,
            grad_norm=float(norms.mean()) if len(norms) else float("nan"),
            skipped=skipped,
            seconds=seconds,
            samples_per_second=loop.rows(done) / max(seconds, 1e-9),
        )
        history.append(record)
        if self.progress:
            print(record, flush=True)

    def _read(self, loop: Loop, history: History, start: int, stop: int) -> int:
        """Read the losses of batches start..stop; stop the run at the first that is not finite."""
        losses = loop.record(start, stop)[:, control.LOG_LOSS]
        history.losses.extend(losses.tolist())
        finite = np.isfinite(losses)
        if not finite.all():
            batch = start + int(np.argmin(finite))
            raise NonFiniteError(self._explain(loop, batch, float(losses[batch - start])))
        return stop

    def _explain(self, loop: Loop, batch: int, value: float) -> str:
        inputs, targets = loop.host_batch(batch, self.model.arena().dtype)
        step = int(loop.counters()[control.STEP]) - loop.batches_done + batch
        if self.augment is not None:
            key = fold_in(np.array([self.seed, step, 0]), STREAM)
            inputs, targets = self.augment(inputs, targets, key)  # type: ignore[assignment]
        cause = first_non_finite(self.model, self.loss, inputs, targets, self.seed, step)
        text = f"the loss became {value} in epoch {loop.epoch}, batch {batch}"
        if cause is not None:
            return f"{text}: the first non-finite value is {cause}"
        return f"{text}; the parameters have moved on since: run with Trainer(debug=True) to name the first layer"


def _dataset(data: Data, name: str) -> ArrayDataset:
    if isinstance(data, ArrayDataset):
        dataset = data
    elif isinstance(data, tuple) and len(data) == 2:
        dataset = ArrayDataset(np.asanyarray(data[0]), np.asanyarray(data[1]), name=name)  # keeps memory maps
    else:
        raise ShapeError(
            f"Trainer: expected an ArrayDataset or (inputs, targets) as '{name}', got {type(data).__name__}"
        )
    if len(dataset) == 0:
        raise ShapeError(f"Trainer: data set '{dataset.name}' is empty")
    return dataset
