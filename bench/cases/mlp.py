"""The MNIST multilayer perceptron: 784-256-128-10, batch 100, Adam, cross-entropy."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np

from bench.case import Case, Inputs, Job, Setup
from bench.training import STEPS_COMPARED, Task, training_case, weights_of
from noeira.nn import Linear, LinearReLU, Sequential

WIDTHS, BATCH = (784, 256, 128, 10), 100


def net() -> Sequential:
    """The model in noeira."""
    return Sequential(LinearReLU(784, 256), LinearReLU(256, 128), Linear(128, 10))


def torch_net() -> Any:
    """The model in PyTorch."""
    from torch.nn import Linear, ReLU, Sequential

    return Sequential(Linear(784, 256), ReLU(), Linear(256, 128), ReLU(), Linear(128, 10))


TASK = Task(net, torch_net, (784,), 10, BATCH)


def _jax(inputs: Inputs, setup: Setup) -> Job:
    """One jitted step, buffers donated; Adam written out as in the paper."""
    setup.require_cpu("JAX")
    import jax
    import jax.numpy as jnp

    def loss_of(weights: list[jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
        for i in range(0, len(weights), 2):
            x = x @ weights[i] + weights[i + 1]
            x = jax.nn.relu(x) if i < len(weights) - 2 else x
        return -jax.nn.log_softmax(x)[jnp.arange(len(y)), y].mean()

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: tuple[Any, Any, Any, Any], x: jax.Array, y: jax.Array) -> tuple[Any, jax.Array]:
        p, m, v, t = state
        loss, g = jax.value_and_grad(loss_of)(p, x, y)
        t = t + 1
        m = [0.9 * a + 0.1 * b for a, b in zip(m, g, strict=True)]
        v = [0.999 * a + 0.001 * b * b for a, b in zip(v, g, strict=True)]
        scale, root = TASK.lr / (1 - 0.9**t), jnp.sqrt(1 - 0.999**t)
        p = [a - scale * b / (jnp.sqrt(c) / root + 1e-8) for a, b, c in zip(p, m, v, strict=True)]
        return (p, m, v, t), loss

    weights = [jnp.array(array) for array in weights_of(inputs).values()]
    state: Any = (weights, [jnp.zeros_like(w) for w in weights], [jnp.zeros_like(w) for w in weights], jnp.zeros(()))
    count = len(inputs["x"]) // BATCH
    batches = [tuple(jnp.array(inputs[k][i * BATCH : (i + 1) * BATCH]) for k in "xy") for i in range(count)]
    done = 0

    def run() -> jax.Array:
        nonlocal state, done
        state, loss = step(state, *batches[done % count])
        done += 1
        return jax.block_until_ready(loss)

    return Job(run, lambda: {"losses": np.array([float(run()) for _ in range(STEPS_COMPARED)], np.float32)})


def cases() -> list[Case]:
    """One training step."""
    products = sum(a * b for a, b in itertools.pairwise(WIDTHS))
    # Forward and weight gradient of every layer; an input gradient of all but the first.
    return [training_case("mlp", TASK, flops=2 * BATCH * (3 * products - 784 * 256), others={"jax": _jax})]
