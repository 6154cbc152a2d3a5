"""Where in a model we are: the stack of running modules, their dotted paths, and the current random draw."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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


@dataclass(eq=False)
class DrawScope:
    """Where draws take their key from, and how many there were by name."""

    make: Callable[[], Array]
    depth: int
    prefix: str
    draws: dict[str, int]
    made: Array | None = None

    @property
    def key(self) -> Array:
        """The key, made at the first draw, in the scope around this one."""
        if self.made is None:
            index = running.scopes.index(self)
            inner = running.scopes[index:]
            del running.scopes[index:]
            try:
                self.made = self.make()
            finally:
                running.scopes += inner
        return self.made


class _Running(threading.local):
    def __init__(self) -> None:
        self.stack: list[Module] = []
        self.observers: list[Observer] = []
        self.draws: dict[str, int] = {}
        self.scopes: list[DrawScope] = []
        self.called: dict[int, str] = {}
        self.replaying = False
        self.rng = np.zeros(3, np.int64)


running = _Running()

RNG = object()
"""What a staged program's root key is bound to (`StagedGraph.owned(RNG, "rng")`)."""


def path(depth: int = 0) -> str:
    """Dotted path of the innermost running module below the one at `depth` of the stack; "" for that one itself."""
    names: list[str] = []
    for index, (parent, child) in enumerate(pairwise(running.stack[depth:]), depth + 1):
        if child is parent:  # a subclass calling super().forward
            continue
        found = running.called.get(index)
        if found is None:
            found = next((name for name, module in parent.named_children() if module is child), None)
        names.append(type(child).__name__ if found is None else found)
    return join(*names)


@contextmanager
def called(name: str) -> Iterator[None]:
    """Let the module that runs next go by this name in its parent; "" leaves it the name it has there."""
    depth = len(running.stack)
    before = running.called.pop(depth, None)
    if name:
        running.called[depth] = name
    try:
        yield
    finally:
        running.called.pop(depth, None)
        if before is not None:
            running.called[depth] = before


def join(*names: str) -> str:
    """The dotted path; a child called "" is transparent: what is in it seems to lie in its parent."""
    return ".".join(name for name in names if name)


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


def fold(name: str) -> Array:
    """The key of a name, derived from the root key."""
    return fold_in(root_key(), stream_of(name))


def place() -> str:
    """Dotted path of the innermost running module within the enclosing `draw_scope`, or the model."""
    if not running.scopes:
        return path()
    return join(running.scopes[-1].prefix, path(running.scopes[-1].depth))


def draw_counts() -> dict[str, int]:
    """How often each module has drawn within the enclosing `draw_scope`, or the model."""
    if running.scopes:
        return running.scopes[-1].draws
    graph = staging.active()
    return running.draws if graph is None else graph.draws


def draw() -> Array:
    """A key for random numbers that no other draw of this step shares (`ops.random`).

    A module calls it in `forward` and saves the key, so that `vjp` draws the same numbers again.
    """
    draws = draw_counts()
    name = place() or (type(running.stack[-1]).__name__ if running.stack else "loss")
    draws[name] = draws.get(name, 0) + 1
    return fold(f"{name}#{draws[name]}")


@contextmanager
def draw_scope(make: Callable[[], Array], prefix: str = "", draws: dict[str, int] | None = None) -> Iterator[DrawScope]:
    """Let draws inside derive from the key that `make` makes, named relative to the module that runs next.

    So modules of equal structure emit equal programs, whatever their place in the model; and the same key in a new
    scope gives the same draws again.

    Args:
        make: Makes the key, at the first draw.
        prefix: Put before the names.
        draws: Draws counted so far.
    """
    scope = DrawScope(make, len(running.stack), prefix, dict(draws or {}))
    running.scopes.append(scope)
    try:
        yield scope
    finally:
        running.scopes.pop()


@contextmanager
def replaying() -> Iterator[None]:
    """A forward that runs a second time: states are not written and observers not called."""
    before, running.replaying = running.replaying, True
    try:
        yield
    finally:
        running.replaying = before


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
