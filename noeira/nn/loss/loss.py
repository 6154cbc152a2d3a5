"""Loss: compares predictions with targets; a mean with the weight it is a mean over."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from noeira.ops.dispatch import Array, ShapeError, expect_grad, is_staged
from noeira.ops.elementwise import cast
from noeira.runtime.staging import Shape


class Loss:
    """Base of all losses.

    `forward(prediction, target, mask=None) -> (loss, saved)` gives a scalar mean over what the mask, if there is one,
    lets count; `weight(saved)` is what the mean divides by (rows, or the sum of their weights), so that batches of any
    size add up right; `vjp(saved, grad_loss)` is the gradient with respect to the prediction.

    Errors of shape and dtype begin with the class's name.
    """

    reduction: str = "mean"
    """How `forward` brings rows or elements together."""
    classifies: bool = False
    """Whether the largest element of a prediction's last axis is its class, so that it can be right or wrong."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("forward", "vjp", "check_targets"):
            if name in cls.__dict__:
                setattr(cls, name, _named(cls.__dict__[name]))

    def forward(self, prediction: Array, target: Array, mask: Array | None = None) -> tuple[Array, Any]:
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

    def __call__(self, prediction: Array, target: Array, mask: Array | None = None) -> Array:
        """Return the mean loss alone."""
        return self.forward(prediction, target, *([] if mask is None else [mask]))[0]


def _named(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let the method's errors of shape and dtype begin with the class's name; once."""

    @functools.wraps(method)
    def run(self: Loss, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except ShapeError as error:
            name = f"{type(self).__name__}: "
            if not str(error).startswith(name):
                error.args = (name + str(error),)
            raise

    return run


def is_array(x: object) -> bool:
    """Whether it is an array, or stands for one."""
    return is_staged(x) or isinstance(x, np.ndarray | np.generic)


def check_arrays(prediction: Array, target: Array) -> None:
    """Refuse what is no array, and predictions that are no floating-point numbers.

    Raises:
        ShapeError: They are not.
    """
    for x in (prediction, target):
        if not is_array(x):
            raise ShapeError(f"expected an array, got {type(x).__name__}")
    if not np.issubdtype(prediction.dtype, np.floating):
        raise ShapeError(f"expected floating-point predictions, got {prediction.dtype} {list(prediction.shape)}")


def check_mask(mask: Array, shape: Shape) -> None:
    """Refuse a mask that is not booleans of this shape.

    Raises:
        ShapeError: It is not.
    """
    if not is_array(mask) or mask.dtype != np.bool_ or tuple(mask.shape) != tuple(shape):
        got = f"{mask.dtype} {list(mask.shape)}" if is_array(mask) else type(mask).__name__
        raise ShapeError(f"expected a boolean mask of shape {list(shape)}, got {got}")


def upstream(grad_loss: Array | float, like: Array, shape: Shape) -> Array:
    """The loss's own gradient as an array or staged value in the dtype of `like`.

    Args:
        grad_loss: A number, or an array.
        like: The prediction.
        shape: The loss's shape.

    Raises:
        ShapeError: It has another shape, or is no floating-point array.
    """
    plain = isinstance(grad_loss, int | float) and not isinstance(grad_loss, bool)
    grad: Array = np.asarray(grad_loss, like.dtype) if plain else grad_loss
    if not is_array(grad):
        raise ShapeError(f"expected an array or a number as output gradient, got {type(grad).__name__}")
    expect_grad(grad, shape)
    if not np.issubdtype(grad.dtype, np.floating):
        raise ShapeError(f"expected a floating-point output gradient, got {grad.dtype} {list(grad.shape)}")
    return cast(grad, like.dtype.name)
