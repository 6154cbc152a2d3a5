"""Loss: compares predictions with targets; a mean with the weight it is a mean over."""

from __future__ import annotations

from typing import Any

import numpy as np

from noeira.ops.dispatch import Array


class Loss:
    """Base of all losses.

    `forward(prediction, target) -> (loss, saved)` gives a scalar mean; `weight(saved)` is what the mean divides by
    (rows, or the sum of their weights), so that batches of any size add up right; `vjp(saved, grad_loss)` is the
    gradient with respect to the prediction.
    """

    reduction: str = "mean"
    """How `forward` brings rows or elements together."""
    classifies: bool = False
    """Whether the largest element of a prediction's last axis is its class, so that it can be right or wrong."""

    def forward(self, prediction: Array, target: Array) -> tuple[Array, Any]:
        """Compute the mean loss, and what `vjp` needs."""
        raise NotImplementedError(f"{type(self).__name__} does not define forward")

    def weight(self, saved: Any) -> Array:
        """What the mean divides by."""
        raise NotImplementedError(f"{type(self).__name__} does not define weight")

    def vjp(self, saved: Any, grad_loss: Array | float = 1.0) -> Array:
        """Gradient with respect to the prediction, times `grad_loss`."""
        raise NotImplementedError(f"{type(self).__name__} does not define vjp")

    def check_targets(self, targets: np.ndarray, prediction_shape: tuple[int | str, ...], name: str) -> None:
        """Refuse targets of a data set that this loss cannot use, before any step.

        Args:
            targets: All targets of the data set.
            prediction_shape: Shape of a batch's prediction.
            name: The data set, for the message.
        """

    def __call__(self, prediction: Array, target: Array) -> Array:
        """Return the mean loss alone."""
        return self.forward(prediction, target)[0]


def upstream(grad_loss: Array | float, like: Array) -> Array:
    """The loss's own gradient as an array or staged value; a plain number in the dtype of `like`."""
    return grad_loss if hasattr(grad_loss, "dtype") else np.asarray(grad_loss, like.dtype)
