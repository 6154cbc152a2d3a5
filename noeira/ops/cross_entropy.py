"""Softmax cross-entropy over the last axis, fused with its softmax; integer or probability targets."""

from __future__ import annotations

import numpy as np

from noeira.ops.dispatch import Array, ShapeError, emit, known_size, op
from noeira.ops.shape import flatten_leading, reshape
from noeira.runtime.staging import Spec


def check_labels(labels: np.ndarray, classes: int, ignore_index: int, where: str = "") -> None:
    """Refuse labels that are neither a class nor `ignore_index`.

    Args:
        labels: Integers of any shape.
        classes: Number of classes.
        ignore_index: The label that does not count.
        where: Put behind what was expected, such as the name of a data set.

    Raises:
        ShapeError: There is one; the first is named with its place.
    """
    wrong = ((labels < 0) | (labels >= classes)) & (labels != ignore_index)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        place = f"in row {at[0]}" if len(at) == 1 else f"at {at}"
        raise ShapeError(f"expected class labels 0..{classes - 1}{where}, got {int(labels[at])} {place}")


def _statistics(logits: np.ndarray) -> np.ndarray:
    """Per row the maximum h and log sum_c e^{z_c - h}, kept apart: their sum would round the second away."""
    high = np.max(logits, axis=-1, keepdims=True)
    high = np.where(np.isneginf(high), logits.dtype.type(0), high)  # a row of -inf: h = 0, log-sum -inf, no NaN
    with np.errstate(divide="ignore", invalid="ignore"):  # inf - inf, where logits hold inf
        return np.concatenate([high, np.log(np.sum(np.exp(logits - high), axis=-1, keepdims=True))], axis=-1)


def _target_mass(
    logits: np.ndarray,
    targets: np.ndarray,
    class_weight: np.ndarray | None,
    ignore_index: int,
    smoothing: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Per row: w_c q_c for the smoothed target distribution q, and the row's weight in the mean."""
    classes = logits.shape[-1]
    weights = np.ones(classes, logits.dtype) if class_weight is None else class_weight.astype(logits.dtype)
    if targets.ndim == logits.ndim:
        mass = ((1 - smoothing) * targets + smoothing / classes) * weights
        return mass.astype(logits.dtype), np.ones(len(targets), logits.dtype)
    kept = targets != ignore_index
    labels = np.where(kept, targets, 0)
    mass = np.broadcast_to(smoothing / classes * weights, logits.shape).astype(logits.dtype)
    mass[np.arange(len(labels)), labels] += ((1 - smoothing) * weights[labels]).astype(logits.dtype)
    mass[~kept] = 0
    return mass, np.where(kept, weights[labels], logits.dtype.type(0))


@op
def _cross_entropy(
    logits: Array, targets: Array, class_weight: np.ndarray | None, ignore_index: int, smoothing: float
) -> tuple[Array, Array, Array]:
    statistics = _statistics(logits)
    mass, weight = _target_mass(logits, targets, class_weight, ignore_index, smoothing)
    with np.errstate(invalid="ignore"):
        shifted = logits - statistics[:, :1]
        gap = np.subtract(statistics[:, 1:], shifted, where=mass != 0, out=np.zeros_like(logits))  # 0 * log 0 is 0
    total = np.sum(weight, dtype=np.float64)
    loss = np.sum(mass * gap, dtype=np.float64) / total if total else 0.0
    return logits.dtype.type(loss), logits.dtype.type(total), statistics


@_cross_entropy.staged
def _(
    logits: Array, targets: Array, class_weight: np.ndarray | None, ignore_index: int, smoothing: float
) -> tuple[Array, Array, Array]:
    name = _kernel(logits, targets)
    dtype = logits.spec.dtype
    results = [Spec((), dtype), Spec((), dtype), Spec((logits.shape[0], 2), dtype)]
    operands = [logits, targets, *_options(logits, class_weight, ignore_index, smoothing)]
    return emit(name, operands, results, flops=5 * known_size(logits.shape))  # type: ignore[return-value]


def _kernel(logits: Array, targets: Array) -> str:
    return "noeira.soft_cross_entropy" if targets.ndim == logits.ndim else "noeira.cross_entropy"


def _options(logits: Array, class_weight: np.ndarray | None, ignore_index: int, smoothing: float) -> list[np.ndarray]:
    weights = np.zeros(0) if class_weight is None else class_weight
    return [weights.astype(logits.dtype), np.array([ignore_index], np.int32), np.array([smoothing], logits.dtype)]


def cross_entropy(
    logits: Array,
    targets: Array,
    *,
    class_weight: np.ndarray | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> tuple[Array, Array, Array]:
    """Mean cross-entropy between softmax(logits) and the targets, PyTorch's definition.

    With weights w, smoothing s and C classes, a row with label y costs
    (1-s) w_y (lse - z_y) + s/C sum_c w_c (lse - z_c), lse = log sum_c e^{z_c}, and the mean divides by the sum
    of w_y over rows whose label is not `ignore_index`. A row with probabilities q costs
    sum_c w_c ((1-s) q_c + s/C) (lse - z_c), and the mean divides by the number of rows. No row at all gives 0.

    Args:
        logits: [..., C].
        targets: Integer labels [...], or probabilities [..., C].
        class_weight: [C] constants.
        ignore_index: Label of rows that do not count.
        label_smoothing: s, 0 to 1.

    Returns:
        The loss, the weight it is a mean over, and each row's maximum and log-sum-exp above it [rows, 2]
        (for `cross_entropy_grad`).

    Raises:
        ShapeError: A label is out of range (reference path; compiled programs give a NaN loss).
    """
    rows, flat = _flat(logits, targets, ignore_index)
    return _cross_entropy(rows, flat, class_weight, ignore_index, label_smoothing)


def _flat(logits: Array, targets: Array, ignore_index: int) -> tuple[Array, Array]:
    """Logits [rows, C], and probabilities [rows, C] or labels [rows], those in arrays checked."""
    rows = flatten_leading(logits)
    if len(targets.shape) == len(logits.shape):
        return rows, flatten_leading(targets)
    if isinstance(targets, np.ndarray):
        check_labels(targets, logits.shape[-1], ignore_index)
    return rows, targets if len(targets.shape) == 1 else reshape(targets, rows.shape[:1])


@op
def _cross_entropy_grad(
    logits: Array,
    targets: Array,
    statistics: Array,
    weight: Array,
    grad_loss: Array,
    class_weight: np.ndarray | None,
    ignore_index: int,
    smoothing: float,
) -> Array:
    mass, _ = _target_mass(logits, targets, class_weight, ignore_index, smoothing)
    scale = grad_loss / weight if weight else 0
    log_sum = np.where(np.isneginf(statistics[:, 1:]), 0, statistics[:, 1:])
    total = mass.sum(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        grad = (np.exp((logits - statistics[:, :1]) - log_sum) * total - mass) * scale
    return np.where(total == 0, 0, grad).astype(logits.dtype)  # a row that does not count gets 0, whatever is in it


@_cross_entropy_grad.staged
def _(
    logits: Array,
    targets: Array,
    statistics: Array,
    weight: Array,
    grad_loss: Array,
    class_weight: np.ndarray | None,
    ignore_index: int,
    smoothing: float,
) -> Array:
    options = _options(logits, class_weight, ignore_index, smoothing)
    operands = [logits, targets, statistics, weight, grad_loss, *options]
    return emit(f"{_kernel(logits, targets)}_grad", operands, [logits.spec], flops=4 * known_size(logits.shape))[0]


def cross_entropy_grad(
    logits: Array,
    targets: Array,
    statistics: Array,
    weight: Array,
    grad_loss: Array,
    *,
    class_weight: np.ndarray | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Array:
    """Gradient of `cross_entropy` with respect to the logits, times `grad_loss`.

    dz_c = (p_c sum_k m_k - m_c) grad_loss / weight with p = softmax(z) and m the row's weighted target mass;
    exactly 0 in ignored rows.
    """
    rows, flat = _flat(logits, targets, ignore_index)
    grad = _cross_entropy_grad(rows, flat, statistics, weight, grad_loss, class_weight, ignore_index, label_smoothing)
    return grad if len(logits.shape) == 2 else reshape(grad, logits.shape)
