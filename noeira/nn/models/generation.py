"""Generating tokens: one at a time, each drawn from the model's distribution given those before."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from noeira.nn.core.arguments import positive
from noeira.nn.core.binding import binder, bindings
from noeira.nn.core.decoding import Decoding
from noeira.nn.core.errors import ShapeError
from noeira.nn.core.module import Module
from noeira.ops.random import bits, stream_of
from noeira.runtime.devices import Device, DeviceArray, resolve, to_numpy
from noeira.runtime.programs import BoundProgram, build
from noeira.runtime.staging import Staged, StagedGraph, staging


class Generator:
    """A model, compiled for generating, that keeps its programs and what it knows of the last prompt.

    With a cache a new token costs one pass over that token and a look at the keys and values kept of those before:
    O(T), where running the whole sequence again costs O(T^2). A prompt that begins as the last sequence did is run
    from where they part. Past `block_size` tokens the places of all tokens shift, and the whole block is run.

    Args:
        model: Maps ids [B, T] to logits [B, T, V]; a position may not see later ones.
        block_size: T, the context: the model sees the last `block_size` tokens.
        device: Where the model runs.
        cache: Whether to keep keys and values (recurrent layers: their state); layers that mix tokens define `step`.

    Raises:
        NotImplementedError: `cache`, and a layer mixes tokens without defining `step`; its path is in the notes.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import GPT, Generator
        >>> model = GPT(65, block_size=8, num_layers=1, num_heads=2, embed_dim=16)
        >>> generator = Generator(model, block_size=8)  # doctest: +SKIP
        >>> generator(np.array([1, 2, 3]), 4).shape  # doctest: +SKIP
        (7,)
    """

    def __init__(self, model: Module, *, block_size: int, device: str | Device = "auto", cache: bool = True):
        self.block_size, self._known = positive(self, "block_size", block_size), list[int]()
        device = resolve(device)
        model.init_missing()
        model.to(device=device)
        self._step = _compiled_step(model, block_size, device) if cache else None
        self._block: Callable[[np.ndarray], np.ndarray] | None = None
        self._compile_block = lambda: _compiled(model, block_size, device)

    def __call__(
        self,
        prompt: np.ndarray,
        max_new_tokens: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        stop: Collection[int] = (),
        on_token: Callable[[int], object] | None = None,
    ) -> np.ndarray:
        """Continue a prompt; see `generate`."""
        _check(prompt, max_new_tokens, temperature, top_k, top_p)
        tokens = np.asarray(prompt).astype(np.int32).tolist()
        for _ in range(max_new_tokens):
            word = int(bits(1, seed=seed, stream=stream_of("generate"), step=len(tokens))[0])
            uniform = (word + 0.5) / 2**32
            tokens.append(choose(self.logits(tokens), uniform, temperature=temperature, top_k=top_k, top_p=top_p))
            if on_token is not None:
                on_token(tokens[-1])
            if tokens[-1] in stop:
                break
        return np.array(tokens, np.int32)

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """What the model says of the token after these [V]."""
        if self._step is None or len(tokens) > self.block_size:
            self._block = self._block or self._compile_block()
            context = tokens[-self.block_size :]
            return self._block(np.array(context, np.int32))[len(context) - 1]
        known = self._known
        first = len(known) if known == list(tokens[: len(known)]) and len(known) < len(tokens) else 0
        self._known = []  # nothing is known if a step fails
        for place in range(first, len(tokens) - 1):
            self._step(tokens[place], place)
        row = self._step(tokens[-1], len(tokens) - 1)
        self._known = list(tokens)
        return row


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
    cache: bool = True,
) -> np.ndarray:
    """Continue a prompt.

    Each token is drawn from softmax(logits / temperature), cut to the `top_k` likeliest tokens and then to the fewest
    that hold `top_p` of the probability; the draw is a function of the seed and the token's place. The model sees the
    last `block_size` tokens. Who generates more than once keeps a `Generator`.

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
        cache: See `Generator`.

    Returns:
        Prompt and continuation, int32.

    Raises:
        ShapeError: The prompt is no vector of ids.
        ValueError: An option is out of range.
        NotImplementedError: `cache`, and a layer mixes tokens without defining `step`.
    """
    _check(prompt, max_new_tokens, temperature, top_k, top_p)  # before anything is compiled
    return Generator(model, block_size=block_size, device=device, cache=cache)(
        prompt,
        max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop=stop,
        on_token=on_token,
    )


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


def _check(prompt: np.ndarray, tokens: int, temperature: float, top_k: int | None, top_p: float | None) -> None:
    ids = np.asarray(prompt)
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or not len(ids):
        raise ShapeError(f"generate: expected a prompt of integer ids [T], got {ids.dtype} {list(ids.shape)}")
    if tokens < 0:
        raise ValueError(f"generate: expected max_new_tokens >= 0, got {tokens}")
    if not (np.isfinite(temperature) and temperature >= 0):
        raise ValueError(f"generate: expected a temperature >= 0, got {temperature!r}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"generate: expected top_k >= 1, got {top_k!r}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"generate: expected top_p in (0, 1], got {top_p!r}")


def _compiled(model: Module, block_size: int, device: Device) -> Callable[[np.ndarray], np.ndarray]:
    """Logits [T, V] of at most `block_size` ids: what follows them cannot change theirs."""
    with _evaluating(model):
        graph = StagedGraph("logits")
        graph.bind = binder(model)
        with staging(graph):
            y = model.forward(graph.input("ids", (1, block_size), "int32"))[0]
        bound, (ids,) = _bound(model, graph.finish(y), device, {"ids": (1, block_size)})

    def logits(context: np.ndarray) -> np.ndarray:
        padded = np.zeros((1, block_size), np.int32)
        padded[0, : len(context)] = context
        ids.write(padded)
        return np.array(to_numpy(bound.run()[0]))[0]

    return logits


def _compiled_step(model: Module, block_size: int, device: Device) -> Callable[[int, int], np.ndarray]:
    """Logits [V] at an id in a place, all places before it having been run."""
    kept: dict[str, tuple[int, ...]] = {}
    dtype = model.arena().dtype.name
    with _evaluating(model):
        graph = StagedGraph("decoding_step")
        graph.bind = binder(model)

        def memory(name: str, shape: tuple[int, ...]) -> Staged:
            kept[name] = shape
            return graph.input(name, shape, dtype, mutable=True)

        with staging(graph):
            ids, place = graph.input("ids", (1, 1), "int32"), graph.input("place", (1,), "int32")
            y = model.step(ids, Decoding(place, block_size, memory))
        small = {"ids": (1, 1), "place": (1,)}
        bound, (ids_memory, place_memory) = _bound(model, graph.finish(y), device, small, kept)

    def logits(token: int, at: int) -> np.ndarray:
        ids_memory.write(np.full((1, 1), token, np.int32))
        place_memory.write(np.full(1, at, np.int32))
        return np.array(to_numpy(bound.run()[0]))[0, 0]

    return logits


def _bound(
    model: Module,
    graph: StagedGraph,
    device: Device,
    integers: dict[str, tuple[int, ...]],
    kept: dict[str, tuple[int, ...]] | None = None,
) -> tuple[BoundProgram, list[DeviceArray]]:
    """The program over the model's memory, and its integer inputs."""
    program = build([graph], device, f"{type(model).__name__} for generating on {device}")[graph.name]
    inputs = {name: DeviceArray.zeros(shape, np.int32, device) for name, shape in integers.items()}
    known = {**bindings(model), **inputs}
    known |= {name: DeviceArray.zeros(shape, model.arena().dtype, device) for name, shape in (kept or {}).items()}
    return program.bind({name: known[name] for name in program.inputs}), list(inputs.values())


@contextmanager
def _evaluating(model: Module) -> Iterator[None]:
    """Evaluation mode for a while."""
    modes = [(module, module.training) for _, module in model.named_modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
