"""Losses that are a number an element: reduction, masks, and the weight of a mean, shared by all of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from noeira.nn.core.arguments import choice, number
from noeira.nn.loss.loss import Loss, check_arrays, check_mask, upstream
from noeira.ops.dispatch import Array, ShapeError, is_staged, size
from noeira.ops.elementwise import cast, greater, maximum, where
from noeira.ops.reduce import count_axis, sum_axes, sum_axis
from noeira.ops.shape import reshape
from noeira.runtime.staging import Shape

REDUCTIONS = ("mean", "sum", "batchmean", "none")


def total(x: Array) -> Array:
    """Sum of all elements, a scalar."""
    return reshape(sum_axis(reshape(x, (1, size(tuple(x.shape)))), 1), ())


def count(x: Array, axes: int | None = None) -> Array:
    """Number of elements, or of places along the first `axes` axes, as a scalar of x's dtype."""
    known, free = 1, np.ones(1, x.dtype)
    for axis, n in enumerate(x.shape[:axes]):
        if isinstance(n, str):
            free = free * count_axis(x, axis)
        else:
            known *= int(n)
    return reshape(free * np.array(known, x.dtype), ()) if is_staged(free) else np.asarray(known, x.dtype)


class ElementwiseLoss(Loss):
    """Base of the losses l(p, t) of elements, of which a subclass defines `element` and `slope`.

    loss = sum of factor l(p, t) over the elements that count / weight

    with the weight by reduction: "mean" the number of elements that count, "batchmean" the number of samples of which
    one does, "sum" 1; "none" leaves the elements apart. Where nothing counts the loss is 0.

    Args:
        reduction: "mean", "sum", "batchmean" or "none".
        factor: Factor of every element.

    Shape:
        prediction and target the same [B, ...]; mask, if there is one, booleans of that shape, True where an element
        counts; loss a scalar, or for "none" of the prediction's shape.

    vjp:
        dp = factor dl/dp dloss / weight, exactly 0 where the mask is False. Saves prediction, target, mask and weight.

    Source: PyTorch's losses.
    """

    def __init__(self, reduction: str = "mean", *, factor: float = 1.0):
        self.reduction, self.factor = choice(self, "reduction", reduction, REDUCTIONS), number(self, "factor", factor)

    def element(self, prediction: Array, target: Array) -> Array:
        """L(p, t), elementwise."""
        raise NotImplementedError(f"{type(self).__name__} does not define element")

    def slope(self, prediction: Array, target: Array) -> Array:
        """Derivative of l with respect to p, elementwise."""
        raise NotImplementedError(f"{type(self).__name__} does not define slope")

    def forward(self, prediction: Array, target: Array, mask: Array | None = None) -> tuple[Array, Any]:
        """(p, t) -> loss; saves p, t, mask and weight."""
        target = self._checked(prediction, target, mask)
        values = self.element(prediction, target)
        if self.factor != 1:
            values = values * self.factor
        if mask is not None:
            values = where(mask, values, 0.0)
        weight = self._weight(values, mask)
        saved = (prediction, target, mask, weight)
        if self.reduction == "none":
            return values, saved
        result = total(values)
        return (result if self.reduction == "sum" else result / maximum(weight, 1.0)), saved

    def weight(self, saved: Any) -> Array:
        """What the mean divides by."""
        return saved[-1]

    def vjp(self, saved: Any, grad_loss: Array | float = 1.0) -> Array:
        """Dloss -> dp."""
        prediction, target, mask, weight = saved
        apart = self.reduction == "none"
        grad = upstream(grad_loss, prediction, tuple(target.shape) if apart else ())
        if self.reduction in ("mean", "batchmean"):
            grad = grad / maximum(weight, 1.0)
        if self.factor != 1:
            grad = grad * self.factor
        slope = self.slope(prediction, target) * (self.spread(grad) if apart else grad)
        return slope if mask is None else where(self.spread(mask), slope, 0.0)

    def check_targets(self, targets: np.ndarray, prediction_shape: Shape, name: str) -> None:
        """Refuse targets of another shape than the prediction's, and such as are no real numbers."""
        self._check_kind(targets)
        self._check_shapes((len(targets), *prediction_shape[1:]), targets.shape, f" in data set '{name}'")

    def expected_target(self, prediction: Shape) -> Shape:
        """Shape of the target for a prediction of this shape."""
        return prediction

    def spread(self, x: Array) -> Array:
        """What belongs to a target, for every number of the prediction that belongs to it."""
        return x

    def _check_kind(self, target: Array) -> None:
        if not np.can_cast(target.dtype, np.longdouble):
            raise ShapeError(f"expected targets that are real numbers, got {target.dtype} {list(target.shape)}")

    def _check_shapes(self, prediction: Shape, target: Shape, where_: str = "") -> None:
        if not prediction:
            raise ShapeError(f"expected a prediction [batch, ...], got {list(prediction)}")
        wanted = self.expected_target(tuple(prediction))
        if tuple(target) != tuple(wanted):
            raise ShapeError(
                f"for a prediction {list(prediction)} expected targets of shape {list(wanted)}{where_}, "
                f"got {list(target)}"
            )

    def _checked(self, prediction: Array, target: Array, mask: Array | None) -> Array:
        """The target in the prediction's dtype."""
        check_arrays(prediction, target)
        self._check_kind(target)
        self._check_shapes(tuple(prediction.shape), tuple(target.shape))
        if mask is not None:
            check_mask(mask, target.shape)
        return cast(target, prediction.dtype.name)

    def _weight(self, values: Array, mask: Array | None) -> Array:
        if self.reduction not in ("mean", "batchmean"):
            return np.asarray(1, values.dtype)
        if mask is None:
            return count(values, 1 if self.reduction == "batchmean" else None)
        one = np.ones(1, values.dtype)
        counted = where(mask, one, 0.0)
        if self.reduction == "batchmean":
            counted = where(greater(sum_axes(counted, tuple(range(1, counted.ndim))), 0.0), one, 0.0)
        return total(counted)

    def _shown(self) -> list[str]:
        """Arguments that are not the defaults."""
        shown = [] if self.reduction == "mean" else [f"reduction={self.reduction!r}"]
        return shown + ([] if self.factor == 1 else [f"factor={self.factor:g}"])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._shown())})"
