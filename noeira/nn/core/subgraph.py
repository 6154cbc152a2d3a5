"""Calling a module as a subgraph: modules that emit the same ops are compiled once, forward and backward.

`saved` is a tree (tuples, lists, dicts) whose leaves are values and plain Python data; the values cross the call as
operands and results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from noeira.nn.core import context
from noeira.nn.core.module import Module
from noeira.ops.dispatch import Array
from noeira.runtime.staging import Staged, StagedGraph, StagingError, active, staging


def wanted() -> bool:
    """Whether calls are recorded as such here: in a program itself, not in a body, and not for a summary."""
    graph = active()
    return graph is not None and not graph.inline


def forward(module: Module, key: Callable[[], Array], *inputs: Array) -> tuple[Any, Any]:
    """`module.forward(*inputs)`, recorded as a call.

    Args:
        module: Any module.
        key: Makes the key that draws inside derive from, if there are any.
        inputs: Values of the graph being staged; arrays and None pass as they are.
    """
    return call(module, "forward", module.forward, key, inputs)[0]


def vjp(module: Module, saved: Any, grad_output: Any) -> Any:
    """`module.vjp(saved, grad_output)`, recorded as a call."""
    return call(module, "vjp", module.vjp, None, (saved, grad_output))[0]


def call(
    module: Module,
    name: str,
    function: Callable[..., Any],
    key: Callable[[], Array] | None,
    arguments: tuple[Any, ...],
    *,
    prefix: str = "",
    draws: dict[str, int] | None = None,
) -> tuple[Any, Array | None]:
    """`function(*arguments)`, which uses no tensors but those of `module`, recorded as a call.

    Args:
        module: Owner of the parameters and states.
        name: What the function does, for the body's name.
        function: What is recorded.
        key: Makes the key that draws inside derive from; None where nothing is drawn.
        arguments: Trees of values of the graph being staged.
        prefix: Put before the names of draws.
        draws: Draws counted so far; counts what is drawn.

    Returns:
        The result, and the key if something was drawn.
    """
    outer = active()
    assert outer is not None, "a subgraph is called while a program is staged"
    operands: dict[str, Staged] = {}
    names = {id(tensor): name for name, tensor in (module.named_parameters() | module.named_states()).items()}

    def bind(graph: StagedGraph, owner: object, role: str) -> Staged:
        if id(owner) not in names:
            raise StagingError(f"{owner!r} is used in a forward or vjp but is no attribute of {module.describe()}")
        label, value = f"{role} {names[id(owner)]}", outer.owned(owner, role)
        operands[label] = value
        return graph.input(label, value.shape, value.spec.dtype, mutable=value.mutable)

    body = StagedGraph(f"{type(module).__name__}_{name}", bind)
    body.scope, body.inline = outer.scope, True  # MAX crashes when it loads calls inside of called bodies
    inner: dict[int, Staged] = {}
    outer_of: dict[int, Staged] = {}

    def enter(value: Staged) -> Staged:
        if value.index not in inner:
            label = f"input {len(inner)}"
            inner[value.index] = body.input(label, value.shape, value.spec.dtype)
            outer_of[inner[value.index].index] = operands[label] = value
        return inner[value.index]

    def enter_key() -> Staged:
        """At the first draw inside: the key is made outside, and may be the step's counters as they are."""
        assert key is not None, "nothing is drawn without a key"
        with staging(outer):
            operands["key"] = made = key()
        inside = body.input("key", made.shape, made.spec.dtype)
        outer_of[inside.index] = made
        return inside

    placeholders = map_values(enter, arguments)
    with staging(body):
        if key is None:
            result = function(*placeholders)
        else:
            with context.draw_scope(enter_key, prefix, draws) as scope:
                result = function(*placeholders)
            if draws is not None:
                draws |= scope.draws
    outputs: dict[int, Staged] = {}

    def leave(value: Staged) -> Staged:
        if value.index not in outer_of:
            outputs.setdefault(value.index, value)
        return value

    map_values(leave, result)
    body.finish(*outputs.values())
    for inside, outside in zip(outputs.values(), outer.call(body, operands), strict=True):
        outer_of[inside.index] = outside
    return map_values(lambda value: outer_of[value.index], result), operands.get("key")


def map_values(function: Callable[[Staged], Any], tree: Any) -> Any:
    """The same tree with every staged value replaced."""
    if isinstance(tree, Staged):
        return function(tree)
    if isinstance(tree, tuple | list):
        return type(tree)(map_values(function, item) for item in tree)
    if isinstance(tree, dict):
        return {name: map_values(function, item) for name, item in tree.items()}
    return tree
