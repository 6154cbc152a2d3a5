"""Cross-entropy of a softmax against labels or probability rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from noeira.nn.core.arguments import choice, integer, numbers, probability, refuse
from noeira.nn.loss.loss import Loss, check_arrays, check_mask, upstream
from noeira.nn.loss.reduction import total
from noeira.ops.cross_entropy import check_labels, cross_entropy, cross_entropy_grad
from noeira.ops.dispatch import Array, ShapeError
from noeira.ops.elementwise import cast, equal, greater, greater_equal, maximum, where
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
        logits [..., C]; targets integers [...] or probabilities [..., C]; mask, if there is one, booleans [...], True
        where a row counts, in the loss and in the mean; loss a scalar, or [...].

    vjp:
        dz_c = (p_c sum_k m_k - m_c) dloss / sum w, with p = softmax(z) and m the row's weighted target mass; without
        the division for "sum" and "none"; exactly 0 in rows that do not count. Saves logits, targets, each row's
        maximum and log-sum-exp, and the total weight, no probabilities; for "none", and with a mask of rows of
        probabilities, logits, targets, the mask and the weight.

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
        self.reduction = choice(self, "reduction", reduction, ("mean", "sum", "none"))
        self.label_smoothing = probability(self, "label_smoothing", label_smoothing)
        self.ignore_index = integer(self, "ignore_index", ignore_index)
        if not -(2**31) <= self.ignore_index < 2**31:
            refuse(self, "ignore_index", "an integer of 32 bits", ignore_index)
        self.class_weight = None if weight is None else self._class_weight(weight)

    def _class_weight(self, weight: Any) -> np.ndarray:
        array = numbers(self, "weight", weight, "a finite number >= 0 for each class")
        if array.ndim != 1:
            raise ValueError(f"{type(self).__name__}: expected one weight a class, got shape {array.shape}")
        if (array < 0).any():
            raise ValueError(f"{type(self).__name__}: expected weights >= 0, got {array.tolist()}")
        return array

    @property
    def _options(self) -> dict[str, Any]:
        return {
            "class_weight": self.class_weight,
            "ignore_index": self.ignore_index,
            "label_smoothing": self.label_smoothing,
        }

    def forward(self, prediction: Array, target: Array, mask: Array | None = None) -> tuple[Array, Any]:
        """Logits [..., C], targets and mask -> mean loss; saves (logits, targets, row statistics, weight, mask)."""
        check_arrays(prediction, target)
        self._check_shapes(tuple(prediction.shape), tuple(target.shape), np.dtype(target.dtype))
        if mask is not None:
            check_mask(mask, prediction.shape[:-1])
            if not _soft(prediction, target):  # a row that is masked out has the label that does not count
                target, mask = where(mask, _holding(target, self.ignore_index), self.ignore_index), None
        if self.reduction == "none" or mask is not None:
            return self._apart(prediction, target, mask)
        loss, weight, statistics = cross_entropy(prediction, target, **self._options)
        return (loss if self.reduction == "mean" else loss * weight), (prediction, target, statistics, weight, None)

    def _apart(self, prediction: Array, target: Array, mask: Array | None) -> tuple[Array, Any]:
        """`forward` by way of the loss of each row, without row statistics."""
        rows = self._rows(prediction, target, mask)
        weight = np.asarray(1, prediction.dtype)
        if self.reduction == "mean" and mask is not None:
            weight = total(where(mask, np.ones(1, prediction.dtype), 0.0))
        saved = (prediction, target, None, weight, mask)
        return (rows if self.reduction == "none" else total(rows) / maximum(weight, 1.0)), saved

    def weight(self, saved: Any) -> Array:
        """Sum of the weights of the rows that count; 1 for "sum"."""
        return saved[3] if self.reduction == "mean" else np.asarray(1, saved[0].dtype)

    def vjp(self, saved: Any, grad_loss: Array | float = 1.0) -> Array:
        """Dloss -> dlogits [..., C]."""
        logits, target, statistics, weight, mask = saved
        grad = upstream(grad_loss, logits, tuple(logits.shape[:-1]) if self.reduction == "none" else ())
        if statistics is not None:
            grad = grad if self.reduction == "mean" else grad * weight
            return cross_entropy_grad(logits, target, statistics, weight, grad, **self._options)
        mass = self._mass(logits, target)
        dz = softmax(logits) * sum_axis(mass, -1, keepdims=True) - mass
        grad = reshape(grad, (*grad.shape, 1)) if self.reduction == "none" else grad / maximum(weight, 1.0)
        return self._counted(dz * grad, logits, target, mask)

    def _mass(self, logits: Array, target: Array) -> Array:
        """M: what of the target falls on each class, times its weight [..., C]."""
        classes = logits.shape[-1]
        weights = np.ones(classes) if self.class_weight is None else self.class_weight
        smooth = (self.label_smoothing / classes * weights).astype(logits.dtype)
        weights = weights.astype(logits.dtype)
        if _soft(logits, target):
            return cast(target, logits.dtype.name) * (weights * logits.dtype.type(1 - self.label_smoothing)) + smooth
        label = reshape(target, (*target.shape, 1))
        own = where(equal(label, np.arange(classes, dtype=np.int32)), weights, np.zeros(1, logits.dtype))
        return own * (1 - self.label_smoothing) + smooth if self.label_smoothing else own

    def _rows(self, logits: Array, target: Array, mask: Array | None) -> Array:
        """The loss of each row [...]; NaN where a compiled program meets a label that is no class."""
        mass = self._mass(logits, target)
        rows = 0.0 - sum_axis(mass * where(equal(mass, 0.0), 0.0, log_softmax(logits)), -1)  # 0 * log 0 is 0
        if not _soft(logits, target):
            if isinstance(target, np.ndarray):
                check_labels(target, logits.shape[-1], self.ignore_index)
            rows = where(greater(0, target), np.nan, where(greater_equal(target, logits.shape[-1]), np.nan, rows))
        return self._counted(rows, logits, target, mask)

    def _counted(self, x: Array, logits: Array, target: Array, mask: Array | None) -> Array:
        """X, [...] or [..., C], and exactly 0 in rows that do not count, whatever is in them."""
        rows = tuple(logits.shape[:-1])
        shape = rows if len(x.shape) == len(rows) else (*rows, 1)
        if not _soft(logits, target):
            return where(equal(reshape(target, shape), self.ignore_index), 0.0, x)
        return x if mask is None else where(reshape(mask, shape), x, 0.0)

    def check_targets(self, targets: np.ndarray, prediction_shape: tuple[int | str, ...], name: str) -> None:
        """Refuse labels that are neither a class nor `ignore_index`, and probability rows of the wrong width."""
        self._check_shapes((len(targets), *prediction_shape[1:]), targets.shape, targets.dtype)
        if np.issubdtype(targets.dtype, np.integer):
            source = f" (or ignore_index {self.ignore_index}) in data set '{name}'"
            check_labels(targets, int(prediction_shape[-1]), self.ignore_index, source)

    def _check_shapes(
        self, logits: tuple[int | str, ...], targets: tuple[int | str, ...], dtype: np.dtype[Any]
    ) -> None:
        labels = np.issubdtype(dtype, np.integer)
        if not labels and not np.issubdtype(dtype, np.floating):
            raise ShapeError(f"expected integer labels or floating-point probabilities, got {dtype} {list(targets)}")
        if len(logits) < 2 or logits[-1] == 0:
            raise ShapeError(f"expected logits [batch, ..., C] of at least one class, got {list(logits)}")
        wanted = logits[:-1] if labels else logits
        if targets != wanted:
            kind = "integer labels" if labels else f"probabilities ({dtype})"
            raise ShapeError(f"for logits {list(logits)} expected {kind} of shape {list(wanted)}, got {list(targets)}")
        if self.class_weight is not None and len(self.class_weight) != logits[-1]:
            raise ShapeError(f"expected {logits[-1]} class weights, got {len(self.class_weight)}")

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
        logits [B, T, C], labels and mask [B, T]; loss a scalar, or [B, T].

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
                f"expected logits [B, T, C] and integer labels [B, T], got {list(logits)} and {dtype} {list(targets)}"
            )
        super()._check_shapes(logits, targets, dtype)


class SoftCrossEntropyLoss(CrossEntropyLoss):
    """Cross-entropy against distributions, such as another model's.

    loss = mean over rows of -sum_c q_c log softmax(z)_c

    Args:
        reduction: See `CrossEntropyLoss`.

    Shape:
        logits and probabilities [..., C], mask [...]; loss a scalar, or [...].

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
            raise ShapeError(f"expected probabilities of shape {list(logits)}, got integers {list(targets)}")
        super()._check_shapes(logits, targets, dtype)


def _soft(logits: Array, target: Array) -> bool:
    """Whether the targets are rows of probabilities, not labels."""
    return len(target.shape) == len(logits.shape)


def _holding(labels: Array, extra: int) -> Array:
    """The labels in a dtype that holds `extra` too: bytes hold no -100."""
    info = np.iinfo(labels.dtype)
    return labels if info.min <= extra <= info.max else cast(labels, "int64")
