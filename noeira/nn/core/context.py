"""Where in a model we are: the stack of running modules, their dotted paths, and the current random draw."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from noeira.ops.dispatch import Array
from noeira.ops.random import fold_in, stream_of
from noeira.runtime import staging

if TYPE_CHECKING:
    from noeira.nn.core.module import Module

Observer = Callable[[str, "Module", Any, Any], None]
"""Called after each module's forward with its path, itself, its output and what it saved."""


class _Running(threading.local):
    def __init__(self) -> None:
        self.stack: list[Module] = []
        self.observers: list[Observer] = []
        self.draws: dict[str, int] = {}
        self.rng = np.zeros(3, np.int64)


running = _Running()

RNG = object()
"""What a staged program's root key is bound to (`StagedGraph.owned(RNG, "rng")`)."""


def path() -> str:
    """Dotted path of the innermost running module below the outermost one; "" for the outermost itself."""
    names: list[str] = []
    for parent, child in zip(running.stack, running.stack[1:], strict=False):
        if child is parent:  # a subclass calling super().forward
            continue
        found = next((name for name, module in parent.named_children() if module is child), None)
        names.append(found or type(child).__name__)
    return ".".join(names)


def where() -> str:
    """The innermost running module as error messages name it."""
    dotted = path()
    module = running.stack[-1]
    return f"module '{dotted}' ({module!r})" if dotted else f"module {module.describe()}"


def draw() -> Array:
    """A key for random numbers that no other draw of this step shares (`ops.random`).

    A module calls it in `forward` and saves the key, so that `vjp` draws the same numbers again.
    """
    name = path() or (type(running.stack[0]).__name__ if running.stack else "loss")
    graph = staging.active()
    draws = running.draws if graph is None else graph.draws
    draws[name] = draws.get(name, 0) + 1
    root = running.rng if graph is None else graph.owned(RNG, "rng")
    return fold_in(root, stream_of(f"{name}#{draws[name]}"))


def seed(value: int) -> None:
    """Seed the random draws of eager calls; compiled training has its own seed (`Trainer(seed=...)`)."""
    running.rng[:] = (value, 0, 0)


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Call `observer` after every module's forward inside the block."""
    running.observers.append(observer)
    try:
        yield
    finally:
        running.observers.remove(observer)
