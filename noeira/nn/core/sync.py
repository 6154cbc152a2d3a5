"""Making one model follow another of the same structure: target networks, moving averages of weights."""

from __future__ import annotations

import numpy as np

from noeira.nn.core.errors import CompositionError
from noeira.nn.core.module import Module
from noeira.ops.memory import polyak


def hard_copy_(target: Module, source: Module) -> None:
    """Copy all values of `source`, parameters and states, into the memory of `target`.

    Raises:
        CompositionError: The models have other names or shapes; nothing is copied then.

    Example:
        >>> from noeira.nn import Linear, hard_copy_
        >>> online, target = Linear(3, 2).init(seed=0), Linear(3, 2).init(seed=1)
        >>> hard_copy_(target, online)
        >>> bool((target.weight.val == online.weight.val).all())
        True
    """
    polyak_(target, source, 1.0)


def polyak_(target: Module, source: Module, tau: float) -> None:
    """Move the parameters of `target` towards those of `source`: p = (1 - tau) p + tau p_source.

    States (running statistics) are copied: a network with another one's weights and its own statistics is no average.

    Args:
        target: Follows; gradients and moments stay.
        source: Is followed; has values.
        tau: How far, 0 to 1.

    Raises:
        CompositionError: The models have other names or shapes; nothing is moved then.
        ValueError: tau is no number from 0 to 1.
    """
    if not 0 <= tau <= 1:
        raise ValueError(f"polyak_: expected tau from 0 to 1, got {tau!r}")
    mine, theirs = ({**m.named_parameters(), **m.named_states()} for m in (target, source))
    for name in [*mine, *theirs]:
        if name not in mine or name not in theirs:
            where = "target" if name not in mine else "source"
            raise CompositionError(f"polyak_: expected models of one structure, got no '{name}' in the {where}")
        if mine[name].shape != theirs[name].shape:
            shapes = f"{list(mine[name].shape)} in the target and {list(theirs[name].shape)} in the source"
            raise CompositionError(f"polyak_: expected models of one structure, got '{name}' {shapes}")
    target.init_missing()
    for name, param in target.named_parameters().items():
        moved = np.array(param.val)
        polyak(moved, np.asarray(source.named_parameters()[name].val, moved.dtype), tau)
        param.val = moved
    for name, state in target.named_states().items():
        state.val = source.named_states()[name].val
