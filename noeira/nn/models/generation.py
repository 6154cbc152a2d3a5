"""Generating tokens: one at a time, each drawn from the model's distribution given those before."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from noeira.nn.core.binding import binder, bindings
from noeira.nn.core.errors import ShapeError
from noeira.nn.core.module import Module
from noeira.ops.random import bits, stream_of
from noeira.runtime.devices import Device, DeviceArray, resolve, to_numpy
from noeira.runtime.programs import build
from noeira.runtime.staging import StagedGraph, staging


def generate(
    model: Module,
    prompt: np.ndarray,
    max_new_tokens: int,
    *,
    block_size: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    stop: Collection[int] = (),
    on_token: Callable[[int], object] | None = None,
    device: str | Device = "auto",
) -> np.ndarray:
    """Continue a prompt.

    Each token is drawn from softmax(logits / temperature), cut to the `top_k` likeliest tokens and then to the fewest
    that hold `top_p` of the probability; the draw is a function of the seed and the token's place. The model sees the
    last `block_size` tokens.

    Args:
        model: Maps ids [B, T] to logits [B, T, V]; a position may not see later ones.
        prompt: Ids, a vector of at least one.
        max_new_tokens: How many to generate at most.
        block_size: T, the context.
        temperature: Flattens the distribution above 1, sharpens it below; 0 always takes the likeliest token.
        top_k: Keep this many tokens.
        top_p: Keep tokens up to this share of the probability.
        seed: Names the draws.
        stop: Ids after which generation ends.
        on_token: Called with every new id, such as for printing.
        device: Where the model runs.

    Returns:
        Prompt and continuation, int32.

    Raises:
        ShapeError: The prompt is no vector of ids.
        ValueError: An option is out of range.
    """
    ids = np.asarray(prompt)
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or not len(ids):
        raise ShapeError(f"generate: expected a prompt of integer ids [T], got {ids.dtype} {list(ids.shape)}")
    _check_options(max_new_tokens, block_size, temperature, top_k, top_p)
    logits = _compiled(model, block_size, resolve(device))
    tokens = ids.astype(np.int32).tolist()
    for _ in range(max_new_tokens):
        context = tokens[-block_size:]
        row = logits(np.array(context, np.int32))[len(context) - 1]
        word = int(bits(1, seed=seed, stream=stream_of("generate"), step=len(tokens))[0])
        tokens.append(choose(row, (word + 0.5) / 2**32, temperature=temperature, top_k=top_k, top_p=top_p))
        if on_token is not None:
            on_token(tokens[-1])
        if tokens[-1] in stop:
            break
    return np.array(tokens, np.int32)


def choose(
    logits: np.ndarray,
    uniform: float,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> int:
    """The token that a uniform number in (0, 1) picks from logits [V].

    Raises:
        ValueError: A logit is NaN.
    """
    z = logits.astype(np.float64)
    if np.isnan(z).any():
        raise ValueError("generate: the model's logits are NaN")
    if temperature == 0:
        return int(np.argmax(z))
    order = np.argsort(-z, kind="stable")[: top_k or None]
    p = np.exp((z[order] - z[order[0]]) / temperature)
    p /= p.sum()
    if top_p is not None:
        kept = int(np.searchsorted(np.cumsum(p), top_p)) + 1
        order, p = order[:kept], p[:kept] / p[:kept].sum()
    return int(order[min(int(np.searchsorted(np.cumsum(p), uniform, side="right")), len(order) - 1)])


def _check_options(tokens: int, block_size: int, temperature: float, top_k: int | None, top_p: float | None) -> None:
    if tokens < 0 or block_size < 1:
        raise ValueError(f"generate: expected max_new_tokens >= 0 and block_size >= 1, got {tokens} and {block_size}")
    if not (np.isfinite(temperature) and temperature >= 0):
        raise ValueError(f"generate: expected a temperature >= 0, got {temperature!r}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"generate: expected top_k >= 1, got {top_k!r}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"generate: expected top_p in (0, 1], got {top_p!r}")


def _compiled(model: Module, block_size: int, device: Device) -> Callable[[np.ndarray], np.ndarray]:
    """Logits [T, V] of at most `block_size` ids: what follows them cannot change theirs."""
    model.init_missing()
    model.to(device=device)
    modes = [(module, module.training) for _, module in model.named_modules()]
    model.eval()
    try:
        graph = StagedGraph("logits")
        graph.bind = binder(model)
        with staging(graph):
            y = model.forward(graph.input("ids", (1, block_size), "int32"))[0]
        program = build([graph.finish(y)], device, f"{type(model).__name__} for generating on {device}")["logits"]
    finally:
        for module, mode in modes:
            module.training = mode
    memory = DeviceArray.zeros((1, block_size), np.int32, device)
    known = {**bindings(model), "ids": memory}
    bound = program.bind({name: known[name] for name in program.inputs})

    def logits(ids: np.ndarray) -> np.ndarray:
        padded = np.zeros((1, block_size), np.int32)
        padded[0, : len(ids)] = ids
        memory.write(padded)
        return np.array(to_numpy(bound.run()[0]))[0]

    return logits
