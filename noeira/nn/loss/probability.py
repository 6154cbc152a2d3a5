"""Losses between probabilities: binary cross-entropy with logits, Kullback-Leibler divergence, two-hot regression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from noeira.nn.core.arguments import flag, integer, number, numbers, refuse
from noeira.nn.loss.reduction import ElementwiseLoss
from noeira.ops.dispatch import Array, ShapeError
from noeira.ops.elementwise import absolute, equal, exp, log, maximum, where
from noeira.ops.formula import formula
from noeira.ops.reduce import sum_axis
from noeira.ops.shape import reshape
from noeira.ops.softmax import log_softmax, softmax
from noeira.runtime.staging import Shape

ALWAYS = 1e30
"""A threshold of `softplus` that no number passes."""


class BCEWithLogitsLoss(ElementwiseLoss):
    """Binary cross-entropy of a sigmoid: l = w ((1 - t) log(1 + e^p) + pos_weight t log(1 + e^-p)).

    That is -w (pos_weight t log s(p) + (1 - t) log(1 - s(p))) with the sigmoid s, without its overflow.

    Args:
        weight: w, one number or one for each place of the last axis.
        reduction: See `ElementwiseLoss`.
        pos_weight: Weight of the positive class, likewise.
        factor: Factor of every element.

    Shape:
        As `ElementwiseLoss`; logits p, targets t in [0, 1].

    vjp:
        dp = factor w ((1 - t) s(p) - pos_weight t s(-p)) dloss / weight. Saves p, t, the mask and the weight.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import BCEWithLogitsLoss
        >>> print(BCEWithLogitsLoss()(np.zeros((2, 1), np.float32), np.ones((2, 1), np.float32)).round(4))
        0.6931

    Source: PyTorch: `torch.nn.BCEWithLogitsLoss`.
    """

    def __init__(
        self,
        weight: float | Sequence[float] | np.ndarray | None = None,
        reduction: str = "mean",
        pos_weight: float | Sequence[float] | np.ndarray | None = None,
        *,
        factor: float = 1.0,
    ):
        super().__init__(reduction, factor=factor)
        self.element_weight, self.pos_weight = self._weights("weight", weight), self._weights("pos_weight", pos_weight)

    def _weights(self, name: str, value: Any) -> np.ndarray | None:
        if value is None:
            return None
        wanted = "a finite number or one a column"
        array = np.atleast_1d(numbers(self, name, value, wanted))
        if array.ndim != 1:
            refuse(self, name, wanted, value)
        return array

    def _check_shapes(self, prediction: Shape, target: Shape, where_: str = "") -> None:
        super()._check_shapes(prediction, target, where_)
        for name, value in (("weight", self.element_weight), ("pos_weight", self.pos_weight)):
            if value is not None and len(value) not in (1, prediction[-1]):
                raise ShapeError(f"expected 1 or {prediction[-1]} numbers as {name}, got {len(value)}")

    def _positive(self, target: Array) -> Array:
        """T, times pos_weight."""
        return target if self.pos_weight is None else target * self.pos_weight.astype(target.dtype)

    def element(self, prediction: Array, target: Array) -> Array:
        """W ((1 - t) softplus(p) + pos_weight t softplus(-p)): each end keeps its digits."""
        above, below = (formula(p, "softplus", 1.0, ALWAYS) for p in (prediction, -prediction))
        values = (1.0 - target) * above + self._positive(target) * below
        return values if self.element_weight is None else values * self.element_weight.astype(prediction.dtype)

    def slope(self, prediction: Array, target: Array) -> Array:
        """W ((1 - t) s(p) - pos_weight t s(-p))."""
        slope = (1.0 - target) / (exp(-prediction) + 1.0) - self._positive(target) / (exp(prediction) + 1.0)
        return slope if self.element_weight is None else slope * self.element_weight.astype(prediction.dtype)

    def _shown(self) -> list[str]:
        shown = [] if self.element_weight is None else [f"weight={self.element_weight.tolist()}"]
        shown += super()._shown()
        return shown + ([] if self.pos_weight is None else [f"pos_weight={self.pos_weight.tolist()}"])


class KLDivLoss(ElementwiseLoss):
    """Kullback-Leibler divergence from a predicted distribution to the target: l = t (log t - p).

    The prediction p is a logarithm of probabilities; l is 0 where t is. "batchmean" is the divergence of a sample.

    Args:
        reduction: See `ElementwiseLoss`.
        log_target: The targets are logarithms too: l = e^t (t - p).
        factor: Factor of every element.

    Shape:
        As `ElementwiseLoss`.

    vjp:
        dp = -factor t dloss / weight, with e^t for t where `log_target`. Saves p, t, the mask and the weight.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import KLDivLoss
        >>> p = np.log(np.full((1, 2), 0.5, np.float32))
        >>> print(KLDivLoss("batchmean")(p, np.array([[1.0, 0.0]], np.float32)).round(4))
        0.6931

    Source: Kullback and Leibler 1951. PyTorch: `torch.nn.KLDivLoss`.
    """

    def __init__(self, reduction: str = "mean", log_target: bool = False, *, factor: float = 1.0):
        super().__init__(reduction, factor=factor)
        self.log_target = flag(self, "log_target", log_target)

    def element(self, prediction: Array, target: Array) -> Array:
        """T (log t - p), 0 where t is 0."""
        if self.log_target:
            return exp(target) * (target - prediction)
        none = equal(target, 0.0)
        return where(none, 0.0, target * (log(where(none, 1.0, target)) - prediction))

    def slope(self, prediction: Array, target: Array) -> Array:
        """-t."""
        return -exp(target) if self.log_target else -target

    def _shown(self) -> list[str]:
        return super()._shown() + (["log_target=True"] if self.log_target else [])


class TwoHotLoss(ElementwiseLoss):
    """Cross-entropy against a number spread over the two bins next to it: regression as classification.

    l = -sum_k q_k log softmax(z)_k, with q_k = max(0, 1 - |x - b_k| / step) for the bins b_k

    Args:
        bins: K, the number of bins, evenly spaced.
        low: The lowest bin.
        high: The highest bin; targets beyond the ends count as the end.
        symlog: Bins and x are of symlog(t); otherwise x = t.
        reduction: See `ElementwiseLoss`; what is reduced is a number a target.

    Shape:
        logits [..., K], targets and mask [...]; loss a scalar, or [...].

    vjp:
        dz = (softmax(z) - q) dloss / weight, 0 where the mask is False; the target gets none. Saves logits, target, the
        mask and the weight.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import TwoHotLoss
        >>> loss = TwoHotLoss(5, -2.0, 2.0, symlog=False)
        >>> print(loss.encode(np.array([0.25], np.float32)))
        [[0.   0.   0.75 0.25 0.  ]]

    Source: Hafner et al. 2023.
    """

    def __init__(
        self, bins: int = 255, low: float = -20.0, high: float = 20.0, *, symlog: bool = True, reduction: str = "mean"
    ):
        super().__init__(reduction)
        self.bins = integer(self, "bins", bins, 2)
        self.low, self.high = number(self, "low", low), number(self, "high", high)
        if not self.low < self.high:
            raise ValueError(f"TwoHotLoss: expected low < high, got {low!r} and {high!r}")
        self.symlog = flag(self, "symlog", symlog)

    @property
    def centres(self) -> np.ndarray:
        """The bins, float64 [K]."""
        return np.linspace(self.low, self.high, self.bins)

    def encode(self, targets: Array) -> Array:
        """Targets [...] -> weights of the bins [..., K]."""
        step = (self.high - self.low) / (self.bins - 1)
        x = formula(targets, "symlog") if self.symlog else targets
        place = (formula(x, "clamp", self.low, self.high) - self.low) * (1 / step)
        away = absolute(_each(place) - np.arange(self.bins).astype(place.dtype))
        return maximum(1.0 - away, 0.0)

    def decode(self, logits: Array) -> Array:
        """Logits [..., K] -> the expected bin, symexp of it where bins are of symlog(t): [...]."""
        x = sum_axis(softmax(logits) * self.centres.astype(logits.dtype), -1)
        return formula(x, "symexp") if self.symlog else x

    def element(self, prediction: Array, target: Array) -> Array:
        """A number a target [...]; a bin that has no share adds nothing, however unlikely it is."""
        spread = self.encode(target)
        return -sum_axis(where(equal(spread, 0.0), 0.0, spread * log_softmax(prediction)), -1)

    def slope(self, prediction: Array, target: Array) -> Array:
        """Softmax(z) - q [..., K]."""
        return softmax(prediction) - self.encode(target)

    def spread(self, x: Array) -> Array:
        """Once for all bins."""
        return _each(x)

    def expected_target(self, prediction: Shape) -> Shape:
        """The logits' shape without the bins."""
        return prediction[:-1]

    def _check_shapes(self, prediction: Shape, target: Shape, where_: str = "") -> None:
        if len(prediction) < 2 or prediction[-1] != self.bins or tuple(target) != tuple(prediction[:-1]):
            raise ShapeError(
                f"expected logits [..., {self.bins}] and targets [...]{where_}, "
                f"got {list(prediction)} and {list(target)}"
            )

    def __repr__(self) -> str:
        options = [f"{self.bins}, {self.low:g}, {self.high:g}", *([] if self.symlog else ["symlog=False"])]
        return f"TwoHotLoss({', '.join(options + self._shown())})"


def _each(x: Array) -> Array:
    """A last axis of one, along which the bins go."""
    return reshape(x, (*x.shape, 1))
