"""Finding where a number stopped being finite, by running the step again on the NumPy reference."""

from __future__ import annotations

from typing import Any

import numpy as np

from noeira.nn.core import context
from noeira.nn.core.module import Module
from noeira.nn.loss import Loss


def first_non_finite(
    model: Module, loss: Loss, inputs: np.ndarray, targets: np.ndarray, seed: int, step: int
) -> str | None:
    """Name the first thing of a training step that is not finite: input, parameter, layer, loss or gradient.

    Args:
        model: In its state before the step.
        loss: The loss.
        inputs: The batch as the model gets it.
        targets: Its targets.
        seed: Seed of the random draws.
        step: Their step, so that Dropout draws the mask of the failing step.
    """
    if not np.isfinite(inputs).all():
        row = int(np.argwhere(~np.isfinite(inputs))[0][0])
        return f"the batch itself (row {row} of it)"
    for name, param in model.named_parameters().items():
        if not np.isfinite(param.val).all():
            return f"parameter '{name}'"
    found: list[str] = []

    def observe(path: str, module: Module, output: Any, saved: Any) -> None:
        is_leaf = not any(True for _ in module.named_children())
        if is_leaf and not found and not np.isfinite(output).all():
            found.append(f"the output of module '{path}' ({module!r})")

    rng, states = context.running.rng.copy(), {state: state.val for state in model.named_states().values()}
    context.running.rng[:] = (seed, step - model.training, 0)  # the outermost forward advances it to `step`
    gradients = {name: param.grd.copy() for name, param in model.named_parameters().items() if param.grd is not None}
    try:
        with np.errstate(all="ignore"), context.observing(observe):
            prediction, saved = model.forward(inputs)
            value, kept = loss.forward(prediction, targets)
            if found:
                return found[0]
            if not np.isfinite(value):
                return f"the loss {loss!r} (its input, the model's output, is finite)"
            model.zero_grad()
            model.vjp(saved, loss.vjp(kept, 1.0))
        for name, param in model.named_parameters().items():
            if param.grd is not None and not np.isfinite(param.grd).all():
                return f"the gradient of parameter '{name}'"
    finally:
        context.running.rng[:] = rng
        for state, value in states.items():
            state.val = value
        for name, param in model.named_parameters().items():
            if name in gradients:
                param.grd = gradients[name]
    return None
