"""Binding: how a staged program refers to the memory a model owns."""

from __future__ import annotations

from collections.abc import Callable

from noeira.nn.core import context
from noeira.nn.core.module import Module
from noeira.nn.core.param import Param, State
from noeira.ops.memory import load
from noeira.runtime.devices import DeviceArray
from noeira.runtime.staging import Staged, StagedGraph, StagingError


def binder(model: Module, counters: Staged | None = None) -> Callable[[StagedGraph, object, str], Staged]:
    """What `StagedGraph` calls for a tensor of `model`: one program input each, under its role and dotted name.

    Args:
        model: Owner of all parameters and states the program may use.
        counters: Control memory that begins with the root key of random draws, where the program has any.
    """
    params = {id(param): name for name, param in model.named_parameters().items()}
    states = {id(state): name for name, state in model.named_states().items()}

    def bind(graph: StagedGraph, owner: object, role: str) -> Staged:
        if isinstance(owner, Param) and id(owner) in params:
            dtype = owner.memory["val"].dtype if owner.memory else "float32"
            return graph.input(f"{role} {params[id(owner)]}", owner.shape, dtype, mutable=role != "val")
        if isinstance(owner, State) and id(owner) in states:
            dtype = owner.memory.dtype if owner.memory is not None else "float32"
            return graph.input(f"state {states[id(owner)]}", owner.shape, dtype, mutable=True)
        if owner is context.RNG and counters is not None:
            return load(counters)
        if owner is context.RNG:
            raise StagingError(f"program '{graph.name}' draws random numbers but has no counters")
        raise StagingError(f"{owner!r} is used in a forward or vjp but is no attribute of {model.describe()}")

    return bind


def bindings(model: Module) -> dict[str, DeviceArray]:
    """The memory behind the inputs that `binder` declares."""
    arrays: dict[str, DeviceArray] = {}
    for name, param in model.named_parameters().items():
        arrays |= {f"{role} {name}": memory for role, memory in param.memory.items()}
    for name, state in model.named_states().items():
        if state.memory is not None:
            arrays[f"state {name}"] = state.memory
    return arrays
