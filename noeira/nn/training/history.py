"""What a training run leaves: a record an epoch, as objects, as metrics.csv, as a picture."""

from __future__ import annotations

import csv
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from noeira.nn.training.pictures import draw_curve

log = logging.getLogger("noeira.training")

COLUMNS = {
    "epoch": "epoch",
    "step": "step",
    "train_loss": "train/loss",
    "test_loss": "test/loss",
    "test_accuracy": "test/accuracy",
    "lr": "lr",
    "grad_norm": "grad_norm",
    "skipped": "skipped",
    "seconds": "seconds",
    "samples_per_second": "samples/s",
}
"""Field of `EpochRecord` and its column in metrics.csv."""


@dataclass(frozen=True)
class EpochRecord:
    """One epoch.

    `train_loss` is the mean over all samples seen, each batch weighing by its rows; `test_*` are None without a
    test set, `test_accuracy` also where the loss does not classify; `grad_norm` is the mean over steps before clipping;
    `seconds` cover the training part alone.
    """

    epoch: int
    step: int
    train_loss: float
    test_loss: float | None
    test_accuracy: float | None
    lr: float
    grad_norm: float
    skipped: int
    seconds: float
    samples_per_second: float

    def __str__(self) -> str:
        parts = [f"epoch {self.epoch}", f"train/loss {self.train_loss:.4f}"]
        if self.test_loss is not None:
            parts.append(f"test/loss {self.test_loss:.4f}")
        if self.test_accuracy is not None:
            parts.append(f"test/accuracy {self.test_accuracy:.2%}")
        parts += [f"lr {self.lr:.3g}", f"grad_norm {self.grad_norm:.3g}", f"{self.seconds:.2f} s"]
        parts.append(f"{self.samples_per_second:,.0f} samples/s")
        if self.skipped:
            parts.append(f"{self.skipped} steps skipped")
        return "  ".join(parts)


@dataclass
class History:
    """All epochs of a `fit`, and where their files lie."""

    epochs: list[EpochRecord] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    """Training loss of every batch."""
    run_dir: Path | None = None
    interrupted: bool = False
    compiled: bool = False
    """Whether this fit had to compile, rather than find its programs in the store."""
    seconds_to_first_step: float = 0.0

    @property
    def test_accuracy(self) -> float | None:
        """The last epoch's test accuracy."""
        return self.epochs[-1].test_accuracy if self.epochs else None

    @property
    def seconds(self) -> float:
        """All epochs' seconds of training."""
        return sum(epoch.seconds for epoch in self.epochs)

    def append(self, record: EpochRecord) -> None:
        """Add an epoch, and write it to metrics.csv at once."""
        self.epochs.append(record)
        if self.run_dir is not None:
            row = {COLUMNS[item.name]: getattr(record, item.name) for item in fields(record)}
            append_row(self.run_dir / "metrics.csv", row)

    def finish(self) -> None:
        """Draw the learning curve into the run folder."""
        if self.run_dir is not None and self.losses:
            accuracy = [(epoch.step, epoch.test_accuracy) for epoch in self.epochs if epoch.test_accuracy is not None]
            draw_curve(self.losses, accuracy, self.run_dir / "learning_curve.png")


def new_run_dir(parent: str | Path) -> Path:
    """Make a folder named by the time, with a number behind it where two runs share a second."""
    stamp = time.strftime("%Y-%m-%dT%H-%M-%S")
    for attempt in range(1000):
        path = Path(parent) / (stamp if attempt == 0 else f"{stamp}-{attempt}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        return path
    raise FileExistsError(f"no free run folder named {stamp} in {parent}")


def append_row(path: Path, row: Mapping[str, object]) -> None:
    """Add a row to a CSV file, under a header of its own if the file is new; None is an empty cell."""
    is_new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(row))
        if is_new:
            writer.writeheader()
        writer.writerow(row)
