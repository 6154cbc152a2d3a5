"""The progress bar of an epoch: loss, rate and time left; plain lines where there is no terminal."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self


class EpochBar:
    """A rich progress bar on standard error, or nothing where that is not a terminal.

    Args:
        title: What stands before the bar.
        batches: Number of batches.
        batch_size: Samples a batch, for the rate.
        enabled: False for silence.
    """

    def __init__(self, title: str, batches: int, batch_size: int, *, enabled: bool):
        self._bar: Any = None
        self._batch_size = batch_size
        if enabled and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn(
                    "{task.completed}/{task.total}  loss {task.fields[loss]:.4f}  {task.fields[rate]:,.0f} samples/s"
                ),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task(title, total=batches, loss=float("nan"), rate=0.0)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def update(self, batches: int, loss: float, seconds: float) -> None:
        """Show that `batches` are done after `seconds`."""
        if self._bar is not None:
            rate = batches * self._batch_size / max(seconds, 1e-9)
            self._bar.update(self._task, completed=batches, loss=loss, rate=rate)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
