"""Dueling heads: action values from a state's value and the actions' advantages."""

from __future__ import annotations

from noeira.nn.core.arguments import positive, positives
from noeira.nn.core.module import Module, Width
from noeira.ops.dispatch import Array
from noeira.ops.pieces import concat, split
from noeira.ops.reduce import sum_axis
from noeira.ops.shape import reshape


class DuelingHead(Module):
    """Action values from a value and advantages in one vector, the value first.

    q_a = v + adv_a - mean over b of adv_b

    Args:
        num_actions: A.

    Shape:
        x = [v, adv] [..., 1 + A], q [..., A].

    vjp:
        dv = sum of dq, dadv_a = dq_a - mean over b of dq_b. Saves nothing.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import DuelingHead
        >>> DuelingHead(2)(np.array([[10.0, 1.0, 3.0]], np.float32)).tolist()
        [[9.0, 11.0]]

    Source: Wang et al. 2016.
    """

    def __init__(self, num_actions: int):
        self.num_actions = positive(self, "num_actions", num_actions)

    def expects(self) -> Width:
        """The value and the advantages on the last axis."""
        return -1, 1 + self.num_actions

    def gives(self, width: Width | None) -> Width:
        """The actions on the last axis."""
        return -1, self.num_actions

    def extra_repr(self) -> str:
        """The number of actions."""
        return f"{self.num_actions}"

    def forward(self, x: Array) -> tuple[Array, None]:
        """X [..., 1 + A] -> q [..., A]."""
        value, advantage = split(x, (1, self.num_actions))
        return _centred(advantage, -1) + value, None

    def vjp(self, saved: None, grad_output: Array) -> Array:
        """Dq [..., A] -> dx [..., 1 + A]."""
        return concat([sum_axis(grad_output, -1, keepdims=True), _centred(grad_output, -1)])


class DuelingHeadC51(Module):
    """The dueling head of a distributional agent: `DuelingHead` at each atom by itself.

    q_{a,k} = v_k + adv_{a,k} - mean over b of adv_{b,k}

    Args:
        num_actions: A.
        num_atoms: K.

    Shape:
        x [..., (1 + A) K]: the value's K atoms, then K atoms an action; q [..., A, K].

    vjp:
        dv_k = sum over a of dq_{a,k}, dadv_{a,k} = dq_{a,k} - mean over b of dq_{b,k}. Saves nothing.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import DuelingHeadC51
        >>> DuelingHeadC51(3, 51)(np.zeros((2, 204), np.float32)).shape
        (2, 3, 51)

    Source: Bellemare et al. 2017; Hessel et al. 2018.
    """

    def __init__(self, num_actions: int, num_atoms: int):
        self.num_actions, self.num_atoms = positives(self, num_actions=num_actions, num_atoms=num_atoms)

    def expects(self) -> Width:
        """All atoms on the last axis."""
        return -1, (1 + self.num_actions) * self.num_atoms

    def gives(self, width: Width | None) -> Width:
        """The atoms on the last axis."""
        return -1, self.num_atoms

    def extra_repr(self) -> str:
        """The numbers of actions and atoms."""
        return f"{self.num_actions}, {self.num_atoms}"

    def forward(self, x: Array) -> tuple[Array, None]:
        """X [..., (1 + A) K] -> q [..., A, K]."""
        rows = reshape(x, (*x.shape[:-1], 1 + self.num_actions, self.num_atoms))
        value, advantage = split(rows, (1, self.num_actions), -2)
        return _centred(advantage, -2) + value, None

    def vjp(self, saved: None, grad_output: Array) -> Array:
        """Dq [..., A, K] -> dx [..., (1 + A) K]."""
        rows = concat([sum_axis(grad_output, -2, keepdims=True), _centred(grad_output, -2)], -2)
        return reshape(rows, (*grad_output.shape[:-2], (1 + self.num_actions) * self.num_atoms))


def _centred(x: Array, axis: int) -> Array:
    """X minus its mean over the axis; the map is its own transpose."""
    return x - sum_axis(x, axis, keepdims=True) * (1 / int(x.shape[axis]))
