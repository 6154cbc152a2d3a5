"""Cross-entropy of a softmax against labels or probability rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from noeira.nn.loss.loss import Loss, upstream
from noeira.ops.cross_entropy import cross_entropy, cross_entropy_grad
from noeira.ops.dispatch import Array, ShapeError
from noeira.ops.elementwise import cast, equal, where
from noeira.ops.reduce import sum_axis
from noeira.ops.shape import reshape
from noeira.ops.softmax import log_softmax, softmax


class CrossEntropyLoss(Loss):
    """Softmax cross-entropy over the last axis; PyTorch's definition and defaults.

    loss = sum_rows w_y ((1-s)(lse - z_y) + s/C sum_c w_c/w_y (lse - z_c)) / sum_rows w_y, lse = log sum_c e^{z_c}

    Args:
        weight: A weight for each class, or None for equal ones.
        ignore_index: Label of rows that count neither in the loss nor in the mean.
        label_smoothing: s in [0, 1]: the share of the target spread evenly over all classes.
        reduction: "mean"; "sum" without the division; "none" for a loss each row, [...].

    Shape:
        logits [..., C]; targets integers [...] or probabilities [..., C]; loss a scalar.

    vjp:
        dz_c = (p_c sum_k m_k - m_c) dloss / sum w, with p = softmax(z) and m the row's weighted target mass; without
        the division for "sum" and "none"; exactly 0 in ignored rows. Saves logits, targets, each row's maximum and
        log-sum-exp, and the total weight, no probabilities.

    Raises:
        ShapeError: A label is out of range, or the shapes do not fit.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import CrossEntropyLoss
        >>> loss = CrossEntropyLoss()
        >>> print(loss(np.zeros((2, 4), np.float32), np.array([1, 3])).round(4))
        1.3863

    Source: PyTorch: `torch.nn.CrossEntropyLoss`.
    """

    def __init__(
        self,
        weight: Sequence[float] | np.ndarray | None = None,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
    ):
        if reduction not in ("mean", "sum", "none"):
            raise ValueError(f"{type(self).__name__}: expected reduction 'mean', 'sum' or 'none', got {reduction!r}")
        self.reduction = reduction
        if not 0 <= label_smoothing <= 1:
            raise ValueError(f"CrossEntropyLoss: expected label_smoothing in [0, 1], got {label_smoothing!r}")
        self.class_weight = None if weight is None else np.asarray(weight, np.float64)
        if self.class_weight is not None and self.class_weight.ndim != 1:
            raise ValueError(f"CrossEntropyLoss: expected one weight a class, got shape {self.class_weight.shape}")
        self.ignore_index, self.label_smoothing = int(ignore_index), float(label_smoothing)

    @property
    def _options(self) -> dict[str, Any]:
        return {
            "class_weight": self.class_weight,
            "ignore_index": self.ignore_index,
            "label_smoothing": self.label_smoothing,
        }

    def forward(self, prediction: Array, target: Array) -> tuple[Array, Any]:
        """Logits [..., C] and targets -> mean loss; saves (logits, targets, row statistics, weight)."""
        self._check_shapes(tuple(prediction.shape), tuple(target.shape), np.dtype(target.dtype))
        loss, weight, statistics = cross_entropy(prediction, target, **self._options)
        saved = (prediction, target, statistics, weight)
        if self.reduction == "none":
            return self._rows(prediction, target), saved
        return (loss if self.reduction == "mean" else loss * weight), saved

    def weight(self, saved: Any) -> Array:
        """Sum of the weights of the rows that count; 1 for "sum"."""
        return saved[3] if self.reduction == "mean" else np.asarray(1, saved[0].dtype)

    def vjp(self, saved: Any, grad_loss: Array | float = 1.0) -> Array:
        """Dloss -> dlogits [..., C]."""
        logits, target, statistics, weight = saved
        grad = upstream(grad_loss, logits)
        if self.reduction == "none":
            mass = self._mass(logits, target)
            dz = softmax(logits) * sum_axis(mass, -1, keepdims=True) - mass
            return dz * (reshape(grad, (*grad.shape, 1)) if np.ndim(grad) else grad)
        grad = grad if self.reduction == "mean" else grad * weight
        return cross_entropy_grad(logits, target, statistics, weight, grad, **self._options)

    def _mass(self, logits: Array, target: Array) -> Array:
        """M: what of the target falls on each class, times its weight [..., C]."""
        classes = logits.shape[-1]
        weights = np.ones(classes) if self.class_weight is None else self.class_weight
        smooth = (self.label_smoothing / classes * weights).astype(logits.dtype)
        weights = weights.astype(logits.dtype)
        if len(target.shape) == len(logits.shape):
            return cast(target, logits.dtype.name) * (weights * logits.dtype.type(1 - self.label_smoothing)) + smooth
        label = reshape(target, (*target.shape, 1))
        own = where(equal(label, np.arange(classes, dtype=np.int32)), weights, np.zeros(1, logits.dtype))
        if self.label_smoothing:
            own = own * (1 - self.label_smoothing) + smooth
        return where(equal(label, self.ignore_index), np.zeros(1, logits.dtype), own)

    def _rows(self, logits: Array, target: Array) -> Array:
        """The loss of each row [...]."""
        mass = self._mass(logits, target)
        there = equal(mass, np.zeros(1, logits.dtype))
        return -sum_axis(where(there, np.zeros(1, logits.dtype), mass * log_softmax(logits)), -1)

    def check_targets(self, targets: np.ndarray, prediction_shape: tuple[int | str, ...], name: str) -> None:
        """Refuse labels that are neither a class nor `ignore_index`, and probability rows of the wrong width."""
        self._check_shapes((len(targets), *prediction_shape[1:]), targets.shape, targets.dtype)
        if not np.issubdtype(targets.dtype, np.integer):
            return
        classes = prediction_shape[-1]
        wrong = ((targets < 0) | (targets >= classes)) & (targets != self.ignore_index)
        if wrong.any():
            row = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise ShapeError(
                f"CrossEntropyLoss: expected class labels 0..{int(classes) - 1} (or ignore_index {self.ignore_index}) "
                f"in data set '{name}', got {int(targets[row])} in row {', '.join(map(str, row))}"
            )

    def _check_shapes(
        self, logits: tuple[int | str, ...], targets: tuple[int | str, ...], dtype: np.dtype[Any]
    ) -> None:
        wanted = logits[:-1] if np.issubdtype(dtype, np.integer) else logits
        if len(logits) < 2 or targets != wanted:
            kind = "integer labels" if np.issubdtype(dtype, np.integer) else f"probabilities ({dtype})"
            raise ShapeError(
                f"CrossEntropyLoss: for logits {list(logits)} expected {kind} of shape {list(wanted)}, "
                f"got {list(targets)}"
            )
        if self.class_weight is not None and len(self.class_weight) != logits[-1]:
            raise ShapeError(f"CrossEntropyLoss: expected {logits[-1]} class weights, got {len(self.class_weight)}")

    classifies = True

    def __repr__(self) -> str:
        shown = [] if self.reduction == "mean" else [f"reduction={self.reduction!r}"]
        if self.class_weight is not None:
            shown.append(f"weight={self.class_weight.tolist()}")
        if self.ignore_index != -100:
            shown.append(f"ignore_index={self.ignore_index}")
        if self.label_smoothing:
            shown.append(f"label_smoothing={self.label_smoothing:g}")
        return f"{type(self).__name__}({', '.join(shown)})"


class SequenceCrossEntropyLoss(CrossEntropyLoss):
    """Cross-entropy of every token of a sequence; the mean is over tokens, not over sequences.

    loss = sum_{b, t} w_y (lse - z_y) / sum_{b, t} w_y

    Args:
        weight: A weight for each class, or None for equal ones.
        ignore_index: Label of tokens that do not count, such as padding.
        label_smoothing: See `CrossEntropyLoss`.
        reduction: See `CrossEntropyLoss`.

    Shape:
        logits [B, T, C], labels [B, T]; loss a scalar.

    vjp:
        That of `CrossEntropyLoss` over B T rows. Saves the same.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import SequenceCrossEntropyLoss
        >>> print(SequenceCrossEntropyLoss()(np.zeros((2, 3, 4), np.float32), np.zeros((2, 3), np.int32)).round(4))
        1.3863

    Source: PyTorch: `torch.nn.CrossEntropyLoss` on rows [B T, C].
    """

    def __init__(
        self,
        weight: Sequence[float] | np.ndarray | None = None,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
    ):
        super().__init__(weight, ignore_index, label_smoothing, reduction)

    def _check_shapes(
        self, logits: tuple[int | str, ...], targets: tuple[int | str, ...], dtype: np.dtype[Any]
    ) -> None:
        if len(logits) != 3 or not np.issubdtype(dtype, np.integer):
            raise ShapeError(
                f"SequenceCrossEntropyLoss: expected logits [B, T, C] and integer labels [B, T], got {list(logits)} "
                f"and {dtype} {list(targets)}"
            )
        super()._check_shapes(logits, targets, dtype)


class SoftCrossEntropyLoss(CrossEntropyLoss):
    """Cross-entropy against distributions, such as another model's.

    loss = mean over rows of -sum_c q_c log softmax(z)_c

    Args:
        reduction: See `CrossEntropyLoss`.

    Shape:
        logits and probabilities [..., C]; loss a scalar.

    vjp:
        dz = (softmax(z) sum_c q_c - q) dloss / rows. Saves what `CrossEntropyLoss` saves.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import SoftCrossEntropyLoss
        >>> print(SoftCrossEntropyLoss()(np.zeros((2, 4), np.float32), np.full((2, 4), 0.25, np.float32)).round(4))
        1.3863

    Source: PyTorch: `torch.nn.CrossEntropyLoss` on probabilities.
    """

    def __init__(self, reduction: str = "mean"):
        super().__init__(reduction=reduction)

    def _check_shapes(
        self, logits: tuple[int | str, ...], targets: tuple[int | str, ...], dtype: np.dtype[Any]
    ) -> None:
        if np.issubdtype(dtype, np.integer):
            raise ShapeError(
                f"SoftCrossEntropyLoss: expected probabilities of shape {list(logits)}, got integers {list(targets)}"
            )
        super()._check_shapes(logits, targets, dtype)
