"""Pictures of a training run: its learning curve, and a classifier's confusion matrix."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

log = logging.getLogger("noeira.training")


def draw_curve(losses: Sequence[float], accuracy: Sequence[tuple[int, float]], path: Path) -> None:
    """Plot the loss of every batch, and the test accuracy as (step, value) pairs; see `draw_confusion`."""
    figure = _figure(7, 4, path)
    if figure is None:
        return
    axes = figure.add_subplot()
    axes.plot(range(1, len(losses) + 1), losses, linewidth=0.6, alpha=0.8, label="train/loss")
    axes.set(xlabel="step", ylabel="loss", ylim=(0, None))
    if accuracy:
        right = axes.twinx()
        right.plot(*zip(*accuracy, strict=True), "o-", color="tab:green", label="test/accuracy")
        right.set(ylabel="accuracy", ylim=(None, 1))
        right.legend(loc="center right", frameon=False)
    axes.legend(loc="upper right", frameon=False)
    axes.spines[["top"]].set_visible(False)
    figure.savefig(path)


def confusion_matrix(targets: np.ndarray, predictions: np.ndarray, classes: int) -> np.ndarray:
    """Count how often a class was taken for which: [i, j] counts rows of class i that were called j.

    Args:
        targets: Class ids [N].
        predictions: Class ids [N], or logits [N, classes], of which the largest counts.
        classes: Number of classes.

    Returns:
        int64 [classes, classes].

    Raises:
        ValueError: Shapes differ, or an id is not in 0..classes - 1.

    Example:
        >>> confusion_matrix(np.array([0, 1, 1]), np.array([0, 1, 0]), 2).tolist()
        [[1, 0], [1, 1]]
    """
    called = np.argmax(predictions, axis=-1) if predictions.ndim == 2 else predictions
    if targets.ndim != 1 or called.shape != targets.shape:
        raise ValueError(
            f"confusion_matrix: expected targets [N] and predictions for them, got {targets.shape} and "
            f"{predictions.shape}"
        )
    for what, ids in (("targets", targets), ("predictions", called)):
        if len(ids) and not (ids.min() >= 0 and ids.max() < classes):
            raise ValueError(f"confusion_matrix: expected {what} 0..{classes - 1}, got {ids.min()}..{ids.max()}")
    pairs = targets.astype(np.int64) * classes + called
    return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def draw_confusion(matrix: np.ndarray, class_names: Sequence[str], path: Path) -> bool:
    """Draw a confusion matrix, each row as shares of its class.

    Args:
        matrix: As `confusion_matrix` gives it.
        class_names: A name for each class.
        path: The picture to write.

    Returns:
        Whether there is a picture: without matplotlib (extra `logging`) a line says so and none is made.

    Example:
        >>> draw_confusion(np.eye(2), ["cat", "dog"], Path("confusion.png"))  # doctest: +SKIP
    """
    figure = _figure(6.4, 5.8, path)
    if figure is None:
        return False
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    axes = figure.add_subplot()
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for row, column in np.argwhere(matrix > 0):
        color = "white" if shares[row, column] > 0.5 else "black"
        axes.text(column, row, f"{matrix[row, column]:g}", ha="center", va="center", color=color, fontsize=7)
    places = range(len(class_names))
    axes.set_xticks(places, class_names, rotation=45, ha="right")
    axes.set_yticks(places, class_names)
    axes.set(xlabel="predicted", ylabel="true")
    figure.savefig(path)
    return True


def _figure(width: float, height: float, path: Path) -> Any:
    """A figure in inches, None without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        log.warning("no %s: matplotlib is not installed (pip install 'noeira[logging]')", path.name)
        return None
    figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    return figure
