"""Losses between numbers: squared, absolute, Huber, Gaussian likelihood."""

from __future__ import annotations

import math

from noeira.nn.core.arguments import choice, flag, is_number, positive_number, refuse
from noeira.nn.loss.reduction import ElementwiseLoss
from noeira.ops.dispatch import Array, ShapeError
from noeira.ops.elementwise import absolute, exp, greater, log, maximum, sign, where
from noeira.ops.formula import formula, formula_grad
from noeira.ops.pieces import concat, split
from noeira.runtime.staging import Shape


class MSELoss(ElementwiseLoss):
    """Mean squared error: l = (p - t)^2.

    Args:
        reduction: See `ElementwiseLoss`. The sum over features of half the squares, averaged over samples, is
            `MSELoss("batchmean", factor=0.5)`.
        factor: Factor of every element.

    Shape:
        As `ElementwiseLoss`.

    vjp:
        dp = 2 factor (p - t) dloss / weight. Saves p, t, the mask and the weight.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import MSELoss
        >>> print(MSELoss()(np.array([[1.0, 3.0]], np.float32), np.zeros((1, 2), np.float32)))
        5.0

    Source: PyTorch: `torch.nn.MSELoss`.
    """

    def element(self, prediction: Array, target: Array) -> Array:
        """(p - t)^2."""
        off = prediction - target
        return off * off

    def slope(self, prediction: Array, target: Array) -> Array:
        """2 (p - t)."""
        return (prediction - target) * 2.0


class L1Loss(ElementwiseLoss):
    """Mean absolute error: l = |p - t|.

    Args:
        reduction: See `ElementwiseLoss`.
        factor: Factor of every element.

    Shape:
        As `ElementwiseLoss`.

    vjp:
        dp = factor sign(p - t) dloss / weight, 0 where p = t. Saves p, t, the mask and the weight.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import L1Loss
        >>> print(L1Loss()(np.array([[1.0, -3.0]], np.float32), np.zeros((1, 2), np.float32)))
        2.0

    Source: PyTorch: `torch.nn.L1Loss`.
    """

    def element(self, prediction: Array, target: Array) -> Array:
        """|p - t|."""
        return absolute(prediction - target)

    def slope(self, prediction: Array, target: Array) -> Array:
        """sign(p - t)."""
        return sign(prediction - target)


class SmoothL1Loss(ElementwiseLoss):
    """Absolute error, squared near 0: with d = |p - t|, l = d^2 / (2 beta) where d < beta, else d - beta / 2.

    Args:
        reduction: See `ElementwiseLoss`.
        beta: Where the square ends.
        factor: Factor of every element.

    Shape:
        As `ElementwiseLoss`.

    vjp:
        dp = factor (p - t) / max(d, beta) dloss / weight. Saves p, t, the mask and the weight.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import SmoothL1Loss
        >>> print(SmoothL1Loss("none")(np.array([[0.5, -3.0]], np.float32), np.zeros((1, 2), np.float32)))
        [[0.125 2.5  ]]

    Source: Girshick 2015. PyTorch: `torch.nn.SmoothL1Loss`.
    """

    def __init__(self, reduction: str = "mean", beta: float = 1.0, *, factor: float = 1.0):
        super().__init__(reduction, factor=factor)
        self.beta = positive_number(self, "beta", beta)

    def element(self, prediction: Array, target: Array) -> Array:
        """Square below beta, line above."""
        off = absolute(prediction - target)
        return where(greater(off, self.beta), off - 0.5 * self.beta, off * off * (0.5 / self.beta))

    def slope(self, prediction: Array, target: Array) -> Array:
        """(p - t) / beta limited to [-1, 1]."""
        return formula((prediction - target) * (1 / self.beta), "clamp", -1.0, 1.0)

    def _shown(self) -> list[str]:
        return super()._shown() + ([] if self.beta == 1 else [f"beta={self.beta:g}"])


class HuberLoss(ElementwiseLoss):
    """Squared error, a line far from 0: with d = |p - t|, l = d^2 / 2 where d <= delta, else delta (d - delta / 2).

    Args:
        reduction: See `ElementwiseLoss`.
        delta: Where the line begins.
        factor: Factor of every element.

    Shape:
        As `ElementwiseLoss`.

    vjp:
        dp = factor (p - t limited to [-delta, delta]) dloss / weight. Saves p, t, the mask and the weight.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import HuberLoss
        >>> print(HuberLoss("none", delta=2.0)(np.array([[1.0, -3.0]], np.float32), np.zeros((1, 2), np.float32)))
        [[0.5 4. ]]

    Source: Huber 1964. PyTorch: `torch.nn.HuberLoss`.
    """

    def __init__(self, reduction: str = "mean", delta: float = 1.0, *, factor: float = 1.0):
        super().__init__(reduction, factor=factor)
        self.delta = positive_number(self, "delta", delta)

    def element(self, prediction: Array, target: Array) -> Array:
        """Square up to delta, line above."""
        off = absolute(prediction - target)
        return where(greater(off, self.delta), (off - 0.5 * self.delta) * self.delta, off * off * 0.5)

    def slope(self, prediction: Array, target: Array) -> Array:
        """P - t limited to [-delta, delta]."""
        return formula(prediction - target, "clamp", -self.delta, self.delta)

    def _shown(self) -> list[str]:
        return super()._shown() + ([] if self.delta == 1 else [f"delta={self.delta:g}"])


class GaussianNLLLoss(ElementwiseLoss):
    """Negative log-likelihood of a normal distribution whose mean m and variance v are both predicted.

    l = (log v + (t - m)^2 / v) / 2, plus log(2 pi) / 2 where `full`

    Args:
        reduction: See `ElementwiseLoss`.
        full: Whether the constant is added.
        eps: Least v, where the variance itself is predicted.
        variance: What the second half of the prediction is: "value", v as in PyTorch, or "log", its logarithm.
        limits: Least and largest logarithm of v, which get no gradient beyond; for "log".
        factor: Factor of every element.

    Shape:
        prediction [..., 2 D], the means and then the variances; target and mask [..., D]; loss a scalar, or [..., D].

    vjp:
        dm = (m - t) / v, d log v = (1 - (t - m)^2 / v) / 2 (0 beyond the limits), dv = (1 / v - (t - m)^2 / v^2) / 2,
        each times factor dloss / weight. Saves prediction, target, the mask and the weight.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import GaussianNLLLoss
        >>> print(GaussianNLLLoss()(np.array([[1.0, 1.0]], np.float32), np.array([[3.0]], np.float32)))
        2.0

    Source: Nix and Weigend 1994. PyTorch: `torch.nn.GaussianNLLLoss`, which takes the variances apart.
    """

    def __init__(
        self,
        reduction: str = "mean",
        full: bool = False,
        eps: float = 1e-6,
        *,
        variance: str = "value",
        limits: tuple[float, float] | None = None,
        factor: float = 1.0,
    ):
        super().__init__(reduction, factor=factor)
        self.full, self.eps = flag(self, "full", full), positive_number(self, "eps", eps)
        self.variance = choice(self, "variance", variance, ("value", "log"))
        self.limits = None if limits is None else self._ends(limits)

    def _ends(self, limits: tuple[float, float]) -> tuple[float, float]:
        ends = list(limits) if isinstance(limits, list | tuple) else []
        if self.variance != "log" or len(ends) != 2 or not all(map(is_number, ends)) or not ends[0] < ends[1]:
            refuse(self, "limits", "(low, high) of log variances, with variance='log'", limits)
        return float(ends[0]), float(ends[1])

    def expected_target(self, prediction: Shape) -> Shape:
        """Half as wide as the prediction."""
        width = prediction[-1] if prediction else 0
        if not isinstance(width, int) or width < 2 or width % 2:
            raise ShapeError(f"expected a prediction [..., 2 D], means and then variances, got {list(prediction)}")
        return (*prediction[:-1], width // 2)

    def _halves(self, prediction: Array) -> tuple[Array, Array]:
        width = prediction.shape[-1] // 2
        mean, second = split(prediction, [width, width], -1)
        return mean, second

    def _log_variance(self, second: Array) -> Array:
        if self.variance == "value":
            return log(maximum(second, self.eps))
        return second if self.limits is None else formula(second, "clamp", *self.limits)

    def element(self, prediction: Array, target: Array) -> Array:
        """Half of log v + (t - m)^2 / v."""
        mean, second = self._halves(prediction)
        off, logs = target - mean, self._log_variance(second)
        ratio = off * off / maximum(second, self.eps) if self.variance == "value" else off * off * exp(-logs)
        values = (logs + ratio) * 0.5
        return values + 0.5 * math.log(2 * math.pi) if self.full else values

    def slope(self, prediction: Array, target: Array) -> Array:
        """[dm, d second]."""
        mean, second = self._halves(prediction)
        off = mean - target
        if self.variance == "value":
            v = maximum(second, self.eps)
            return concat([off / v, (1.0 - off * off / v) / v * 0.5], -1)
        precision = exp(-self._log_variance(second))
        dlog = (1.0 - off * off * precision) * 0.5
        if self.limits is not None:
            dlog = formula_grad(dlog, second, "clamp", *self.limits)
        return concat([off * precision, dlog], -1)

    def spread(self, x: Array) -> Array:
        """Once for the means, once for the variances."""
        return concat([x, x], -1)

    def _shown(self) -> list[str]:
        shown = super()._shown() + (["full=True"] if self.full else [])
        shown += [] if self.variance == "value" else ["variance='log'"]
        return shown + ([] if self.limits is None else [f"limits={self.limits}"])
