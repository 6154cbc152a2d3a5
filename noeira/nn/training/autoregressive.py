"""AutoregressiveTrainer: next-token prediction on a corpus that lies on the device."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from noeira.nn.core.binding import bindings
from noeira.nn.core.errors import NonFiniteError, ShapeError
from noeira.nn.core.module import Module
from noeira.nn.loss import CrossEntropyLoss, Loss
from noeira.nn.optimizer import Optimizer
from noeira.nn.training import staging
from noeira.nn.training.history import append_row, new_run_dir
from noeira.nn.training.interrupt import catching_interrupt
from noeira.nn.training.loop import bind_known, training_memory
from noeira.nn.training.pictures import draw_curve
from noeira.ops import control
from noeira.runtime.devices import Device, DeviceArray, resolve
from noeira.runtime.programs import Program, build

EVALUATION_SEED = 0x5EED
"""Names the windows of every evaluation, whatever the trainer's seed: figures of different runs can be compared."""


@dataclass(frozen=True)
class Interval:
    """What happened between two evaluations.

    `train_loss` is the mean over the interval's windows, `val_loss` that over fixed windows (None without a validation
    corpus), `lr` the last rate, `grad_norm` the mean before clipping; `tokens_per_second` counts training alone;
    `flops_per_second` counts the matrix products of forward and backward, `mfu` is its share of the trainer's
    `peak_flops` (None without).
    """

    iteration: int
    train_loss: float
    val_loss: float | None
    lr: float
    grad_norm: float
    skipped: int
    tokens_per_second: float
    flops_per_second: float
    mfu: float | None = None

    def __str__(self) -> str:
        parts = [f"iteration {self.iteration}", f"train/loss {self.train_loss:.4f}"]
        if self.val_loss is not None:
            parts.append(f"val/loss {self.val_loss:.4f}")
        parts += [f"lr {self.lr:.3g}", f"grad_norm {self.grad_norm:.3g}", f"{self.tokens_per_second:,.0f} tokens/s"]
        parts.append(f"{self.flops_per_second / 1e9:.1f} GFLOP/s")
        if self.mfu is not None:
            parts.append(f"MFU {self.mfu:.1%}")
        return "  ".join(parts) + (f"  {self.skipped} steps skipped" if self.skipped else "")


@dataclass
class IterationHistory:
    """All intervals of a `fit`, the loss of every iteration, and where the files lie."""

    intervals: list[Interval] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    run_dir: Path | None = None
    interrupted: bool = False
    compiled: bool = False
    seconds: float = 0.0
    """Of training, without evaluations."""

    @property
    def val_loss(self) -> float | None:
        """The last validation loss."""
        return self.intervals[-1].val_loss if self.intervals else None

    def append(self, interval: Interval) -> None:
        """Add an interval, and write it to metrics.csv at once."""
        self.intervals.append(interval)
        if self.run_dir is not None:
            append_row(self.run_dir / "metrics.csv", asdict(interval))

    def finish(self) -> None:
        """Draw the learning curve into the run folder."""
        if self.run_dir is not None and self.losses:
            draw_curve(self.losses, [], self.run_dir / "learning_curve.png")


class AutoregressiveTrainer:
    """Trains a model that maps ids [B, T] to logits [B, T, V] to predict the next token of a corpus.

    The corpus is uploaded once; each iteration draws its windows on the device from (seed, iteration), so a run is a
    function of its seed, and a resumed run sees the windows it would have seen.

    Args:
        model: The model. If it has no values yet, they are drawn with `seed`.
        optimizer: Updates its parameters; a schedule made with `per="step"` moves every iteration.
        block_size: T, tokens in a window.
        batch_size: B, windows an iteration.
        loss: Compares logits [B, T, V] with ids [B, T]; cross-entropy by default.
        device: "auto", "cpu", "cuda", "cuda:1" or "metal".
        seed: Names the weights (unless the model has some), the windows and the dropout masks.
        run_dir: Parent of the run folder with metrics.csv and learning_curve.png; None writes no files.
        progress: Print a line an interval.
        peak_flops: What the machine could do at best, floating-point operations a second, for the model FLOPs
            utilisation; `python -m bench` prints a CPU's.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import GPT, AdamW, AutoregressiveTrainer
        >>> model = GPT(vocab_size=5, block_size=8, num_layers=1, num_heads=1, embed_dim=8)
        >>> trainer = AutoregressiveTrainer(model, AdamW(1e-2), block_size=8, batch_size=4, run_dir=None)
        >>> history = trainer.fit(np.arange(100) % 5, iterations=20)  # doctest: +SKIP
    """

    def __init__(
        self,
        model: Module,
        optimizer: Optimizer,
        *,
        block_size: int,
        batch_size: int,
        loss: Loss | None = None,
        device: str | Device = "auto",
        seed: int = 0,
        run_dir: str | Path | None = "runs",
        progress: bool = True,
        peak_flops: float | None = None,
    ):
        if peak_flops is not None and not (np.isfinite(peak_flops) and peak_flops > 0):
            raise ValueError(f"AutoregressiveTrainer: expected peak_flops > 0, got {peak_flops!r}")
        for name, value in (("block_size", block_size), ("batch_size", batch_size)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"AutoregressiveTrainer: expected {name} to be an integer >= 1, got {value!r}")
        self.model, self.optimizer, self.loss = model, optimizer, loss or CrossEntropyLoss()
        self.block_size, self.batch_size = block_size, batch_size
        self.device, self.seed = resolve(device), int(seed)
        self.run_dir, self.progress, self.peak_flops = run_dir, progress, peak_flops
        self._counters = np.zeros(control.COUNTERS, np.int64)
        self._counters[[control.SEED, control.BAD_INDEX]] = (self.seed, -1)
        self._flops = 0

    @property
    def iteration(self) -> int:
        """Iterations done, over all fits."""
        return int(self._counters[control.STEP])

    def fit(
        self,
        corpus: np.ndarray,
        validation: np.ndarray | None = None,
        *,
        iterations: int,
        evaluate_every: int = 250,
        evaluation_batches: int = 20,
    ) -> IterationHistory:
        """Train; calling it again goes on from where it stopped.

        Args:
            corpus: Ids to train on, a vector.
            validation: Ids to validate on, every `evaluate_every` iterations and at the end.
            iterations: Optimizer steps.
            evaluate_every: Iterations of an interval.
            evaluation_batches: Batches of windows of an evaluation, always the same ones.

        Returns:
            The history. After Ctrl-C it ends with the last finished iteration and `interrupted` is True.

        Raises:
            ShapeError: A corpus is no vector of ids, or too short, or the model does not give logits for each token.
            NonFiniteError: The loss became NaN or infinite.
        """
        for name, value in (("iterations", iterations), ("evaluate_every", evaluate_every)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"AutoregressiveTrainer.fit: expected {name} to be an integer >= 1, got {value!r}")
        data = self._corpus(corpus, "corpus")
        held_out = None if validation is None else self._corpus(validation, "validation")
        self.model.init_missing(seed=self.seed)
        self.model.to(device=self.device)
        programs = self._programs()
        history = IterationHistory(compiled=any(program.compiled for program in programs.values()))
        if self.run_dir is not None:
            history.run_dir = new_run_dir(self.run_dir)
        table = self.optimizer.schedule.table(self.optimizer.lr, 1, iterations)
        memory = training_memory(
            self.model, self.optimizer, self._counters, table, min(evaluate_every, iterations), self.device
        )
        memory["corpus"] = DeviceArray.of(data, self.device)
        self.model.arena().clear("grd")
        step, update = (bind_known(programs[name], memory) for name in ("train_step", "optimizer_step"))
        evaluation = None
        if held_out is not None:
            evaluation = _Evaluation(self.model, programs["evaluation"], held_out, evaluation_batches)
        try:
            with catching_interrupt() as interrupt:
                done = 0
                while done < iterations and not interrupt.requested:
                    self._rewind(memory)
                    start, count = time.perf_counter(), 0
                    while count < min(evaluate_every, iterations - done) and not interrupt.requested:
                        step.run()
                        update.run()
                        count += 1
                    record = memory["record"].numpy()[:count].astype(np.float64)  # waits for the device
                    seconds = time.perf_counter() - start
                    done += count
                    history.seconds += seconds
                    self._check(record[:, control.LOG_LOSS], history)
                    value = None if evaluation is None or interrupt.requested else evaluation.run()
                    self._finish(history, record, memory, seconds, value)
                history.interrupted = interrupt.requested
        finally:
            self._counters = memory["counters"].numpy().copy()
            self.model.arena().applied = int(self._counters[control.APPLIED])
            history.finish()
        return history

    def evaluate(self, corpus: np.ndarray, *, batches: int = 20) -> float:
        """Mean loss over fixed windows of a corpus, in evaluation mode."""
        data = self._corpus(corpus, "corpus")
        self.model.init_missing(seed=self.seed)
        self.model.to(device=self.device)
        return _Evaluation(self.model, self._programs()["evaluation"], data, batches).run()

    def _corpus(self, ids: np.ndarray, name: str) -> np.ndarray:
        array = np.asarray(ids)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise ShapeError(
                f"AutoregressiveTrainer: expected '{name}' to be a vector of integer ids, got {array.dtype} "
                f"{list(array.shape)}"
            )
        if len(array) <= self.block_size:
            raise ShapeError(
                f"AutoregressiveTrainer: expected '{name}' to have more than block_size = {self.block_size} tokens, "
                f"got {len(array)}"
            )
        low, high = int(array.min()), int(array.max())
        if low < 0 or high > np.iinfo(np.int32).max:
            raise ShapeError(
                f"AutoregressiveTrainer: expected ids >= 0 that fit int32, got {low} to {high} in '{name}'"
            )
        vocabulary = self.model.gives(None)
        if vocabulary is not None and high >= vocabulary[1]:
            raise ShapeError(
                f"AutoregressiveTrainer: expected ids below {vocabulary[1]}, the model's vocabulary, got {high} in "
                f"'{name}'"
            )
        return np.ascontiguousarray(array, np.int32)

    def _programs(self) -> dict[str, Program]:
        step, shape = staging.windows_step(self.model, self.loss, self.batch_size, self.block_size)
        if len(shape) != 3:
            raise ShapeError(f"AutoregressiveTrainer: expected a model that gives logits [B, T, V], got {list(shape)}")
        self._flops = sum(op.flops for op in step.ops)
        graphs = [
            step,
            staging.optimizer_step(self.optimizer, self.model.arena().dtype.name),
            staging.windows_evaluation(self.model, self.loss, self.batch_size, self.block_size),
        ]
        return build(graphs, self.device, f"{type(self.model).__name__} for training on {self.device}")

    def _rewind(self, memory: dict[str, DeviceArray]) -> None:
        """Write the record from its first row again."""
        counters = memory["counters"].numpy().copy()
        counters[[control.CURSOR, control.BAD_INDEX]] = (0, -1)
        memory["counters"].write(counters)

    def _check(self, losses: np.ndarray, history: IterationHistory) -> None:
        first = len(history.losses)
        history.losses.extend(losses.tolist())
        if not np.isfinite(losses).all():
            at = first + int(np.argmin(np.isfinite(losses)))
            raise NonFiniteError(f"the loss became {history.losses[at]} in iteration {at + 1}")

    def _finish(
        self,
        history: IterationHistory,
        record: np.ndarray,
        memory: dict[str, DeviceArray],
        seconds: float,
        val_loss: float | None,
    ) -> None:
        kept = record[record[:, control.LOG_SKIPPED] == 0]
        rate = len(record) * self._flops / max(seconds, 1e-9)
        interval = Interval(
            iteration=int(memory["counters"].numpy()[control.STEP]),
            train_loss=float(record[:, control.LOG_LOSS].mean()),
            val_loss=val_loss,
            lr=float(record[-1, control.LOG_LR]),
            grad_norm=float(kept[:, control.LOG_NORM].mean()) if len(kept) else float("nan"),
            skipped=len(record) - len(kept),
            tokens_per_second=len(record) * self.batch_size * self.block_size / max(seconds, 1e-9),
            flops_per_second=rate,
            mfu=None if self.peak_flops is None else rate / self.peak_flops,
        )
        history.append(interval)
        if self.progress:
            print(interval, file=sys.stderr, flush=True)


class _Evaluation:
    """The evaluation program on fixed windows of a corpus."""

    def __init__(self, model: Module, program: Program, corpus: np.ndarray, batches: int):
        device = program.device
        self._batches = batches
        self._counters = DeviceArray.zeros((control.COUNTERS,), np.int64, device)
        self._totals = DeviceArray.zeros((control.EVAL_TOTALS,), np.float64, device)
        memory = {**bindings(model), "counters": self._counters, "totals": self._totals}
        self._program = bind_known(program, memory | {"corpus": DeviceArray.of(corpus, device)})

    def run(self) -> float:
        """Mean loss."""
        counters = np.zeros(control.COUNTERS, np.int64)
        counters[control.SEED] = EVALUATION_SEED
        self._counters.write(counters)
        self._totals.write(np.zeros(control.EVAL_TOTALS))
        for _ in range(self._batches):
            self._program.run()
        totals = self._totals.numpy()
        return float(totals[control.EVAL_LOSS] / max(totals[control.EVAL_WEIGHT], 1e-300))
