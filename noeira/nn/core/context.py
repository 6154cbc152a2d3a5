"""Where in a model we are: the stack of running modules, their dotted paths, and the current random draw."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from noeira.ops.dispatch import Array
from noeira.ops.random import fold_in, stream_of
from noeira.runtime import staging

if TYPE_CHECKING:
    from noeira.nn.core.module import Module

Observer = Callable[[str, "Module", Any, Any], None]
"""Called after each module's forward with its path, itself, its output and what it saved."""


@dataclass
class _DrawScope:
    key: Array
    depth: int
    draws: dict[str, int] = field(default_factory=dict)


class _Running(threading.local):
    def __init__(self) -> None:
        self.stack: list[Module] = []
        self.observers: list[Observer] = []
        self.draws: dict[str, int] = {}
        self.scopes: list[_DrawScope] = []
        self.rng = np.zeros(3, np.int64)


running = _Running()

RNG = object()
"""What a staged program's root key is bound to (`StagedGraph.owned(RNG, "rng")`)."""


def path(depth: int = 0) -> str:
    """Dotted path of the innermost running module below the one at `depth` of the stack; "" for that one itself."""
    names: list[str] = []
    for parent, child in pairwise(running.stack[depth:]):
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


def root_key() -> Array:
    """The key all draws of this place derive from: the step's, or that of the enclosing `draw_scope`."""
    if running.scopes:
        return running.scopes[-1].key
    graph = staging.active()
    return running.rng if graph is None else graph.owned(RNG, "rng")


def draw() -> Array:
    """A key for random numbers that no other draw of this step shares (`ops.random`).

    A module calls it in `forward` and saves the key, so that `vjp` draws the same numbers again.
    """
    graph = staging.active()
    depth, draws = 0, running.draws if graph is None else graph.draws
    if running.scopes:
        depth, draws = running.scopes[-1].depth, running.scopes[-1].draws
    name = path(depth) or (type(running.stack[-1]).__name__ if running.stack else "loss")
    draws[name] = draws.get(name, 0) + 1
    return fold_in(root_key(), stream_of(f"{name}#{draws[name]}"))


@contextmanager
def draw_scope(key: Array) -> Iterator[None]:
    """Let draws inside derive from `key`, named relative to the module that runs next.

    So modules of equal structure emit equal programs, whatever their place in the model.
    """
    running.scopes.append(_DrawScope(key, len(running.stack)))
    try:
        yield
    finally:
        running.scopes.pop()


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
