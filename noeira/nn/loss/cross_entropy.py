"""Cross-entropy of a softmax against labels or probability rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from noeira.nn.loss.loss import Loss
from noeira.ops.cross_entropy import cross_entropy, cross_entropy_grad
from noeira.ops.dispatch import Array, ShapeError


class CrossEntropyLoss(Loss):
    """Softmax cross-entropy over the last axis; PyTorch's definition and defaults.

    loss = sum_rows w_y ((1-s)(lse - z_y) + s/C sum_c w_c/w_y (lse - z_c)) / sum_rows w_y, lse = log sum_c e^{z_c}

    Args:
        weight: A weight for each class, or None for equal ones.
        ignore_index: Label of rows that count neither in the loss nor in the mean.
        label_smoothing: s in [0, 1]: the share of the target spread evenly over all classes.

    Shape:
        logits [..., C]; targets integers [...] or probabilities [..., C]; loss a scalar.

    vjp:
        dz_c = (p_c sum_k m_k - m_c) dloss / sum w, with p = softmax(z) and m the row's weighted target mass;
        exactly 0 in ignored rows. Saves logits, targets, each row's maximum and log-sum-exp, and the
        total weight, no probabilities.

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
    ):
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
        return loss, (prediction, target, statistics, weight)

    def weight(self, saved: Any) -> Array:
        """Sum of the weights of the rows that count."""
        return saved[3]

    def vjp(self, saved: Any, grad_loss: Array | float = 1.0) -> Array:
        """Dloss -> dlogits [..., C]."""
        logits, target, statistics, weight = saved
        grad = grad_loss if hasattr(grad_loss, "dtype") else np.asarray(grad_loss, logits.dtype)
        return cross_entropy_grad(logits, target, statistics, weight, grad, **self._options)

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

    def __repr__(self) -> str:
        shown = []
        if self.class_weight is not None:
            shown.append(f"weight={self.class_weight.tolist()}")
        if self.ignore_index != -100:
            shown.append(f"ignore_index={self.ignore_index}")
        if self.label_smoothing:
            shown.append(f"label_smoothing={self.label_smoothing:g}")
        return f"CrossEntropyLoss({', '.join(shown)})"
