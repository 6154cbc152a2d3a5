"""Branches side by side: several modules whose outputs are joined along one axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from noeira.nn.combinators.width import text
from noeira.nn.core.arguments import axis_number
from noeira.nn.core.errors import CompositionError, ShapeError
from noeira.nn.core.module import Module, Width
from noeira.ops.dispatch import Array
from noeira.ops.pieces import concat, split


class _Branches(Module):
    """Base: modules under their positions, and an axis on which outputs are joined."""

    def __init__(self, *modules: Module, axis: int = -1):
        name = type(self).__name__
        if not modules:
            raise CompositionError(f"{name}: expected at least one module, got none")
        for index, module in enumerate(modules):
            if not isinstance(module, Module):
                raise CompositionError(f"{name}: expected modules, got {type(module).__name__} at position {index}")
        self.branches, self.axis = list(modules), axis_number(self, "axis", axis)
        for index, module in enumerate(modules):
            _check_axis(f"{name}: module '{index}' ({module.describe()})", module.gives(module.expects()), axis)

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules under their positions: "0", "1", ..."""
        for index, module in enumerate(self.branches):
            yield str(index), module

    def __len__(self) -> int:
        return len(self.branches)

    def __getitem__(self, index: int) -> Module:
        return self.branches[index]

    def __iter__(self) -> Iterator[Module]:
        return iter(self.branches)

    def extra_repr(self) -> str:
        """The axis unless it is the last."""
        return "" if self.axis == -1 else f"axis={self.axis}"

    def check_inputs(self, *inputs: Array) -> None:
        """Leave it to the branches, which are named in the error."""

    def _gives(self, widths: Sequence[Width | None]) -> Width | None:
        given = [module.gives(width) for module, width in zip(self.branches, widths, strict=True)]
        if any(width is None or width[0] != self.axis for width in given):
            return None
        return self.axis, sum(width[1] for width in given if width is not None)

    def _run(self, inputs: Sequence[Array]) -> tuple[Array, Any]:
        """Each branch on its input, joined; saves what they save, and the sizes of their outputs on the axis."""
        outputs, saved = [], []
        for module, x in zip(self.branches, inputs, strict=True):
            y, kept = module.forward(x)
            outputs.append(y)
            saved.append(kept)
        return concat(outputs, self.axis), (tuple(saved), tuple(y.shape[self.axis] for y in outputs))

    def _grads(self, saved: Any, grad_output: Array) -> list[Array | None]:
        kept, sizes = saved
        parts = split(grad_output, sizes, self.axis)
        return [module.vjp(k, part) for module, k, part in zip(self.branches, kept, parts, strict=True)]


class Parallel(_Branches):
    """Several modules on one input, their outputs joined.

    y = [f_1(x), f_2(x), ..., f_n(x)]

    Args:
        modules: The branches.
        axis: Where outputs are joined: the last axis, or 1 for the channels of images.

    Shape:
        x as all branches expect; y as they give, with the sum of their sizes on the axis.

    vjp:
        dx = f_1.vjp(dy_1) + ... + f_n.vjp(dy_n) with dy cut up on the axis (None where no branch gives one: ids).
        Saves what the branches save, and their sizes.

    Raises:
        CompositionError: Branches expect different widths, or give their features on another axis.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import Linear, LinearReLU, Parallel
        >>> Parallel(LinearReLU(8, 4), Linear(8, 3))(np.ones((2, 8), np.float32)).shape
        (2, 7)

    Source: Szegedy et al. 2014 (Inception).
    """

    def __init__(self, *modules: Module, axis: int = -1):
        super().__init__(*modules, axis=axis)
        first: tuple[int, Width] | None = None
        for index, module in enumerate(modules):
            expected = module.expects()
            if first is not None and expected is not None and expected != first[1]:
                raise CompositionError(
                    f"Parallel: module '{index}' ({module.describe()}) expects {text(expected)}, "
                    f"but module '{first[0]}' ({modules[first[0]].describe()}) expects {text(first[1])}"
                )
            if first is None and expected is not None:
                first = index, expected

    def expects(self) -> Width | None:
        """What any branch insists on."""
        return next((width for module in self.branches if (width := module.expects()) is not None), None)

    def gives(self, width: Width | None) -> Width | None:
        """The sum of what the branches give."""
        return self._gives([self.expects() or width] * len(self.branches))

    def forward(self, x: Array) -> tuple[Array, Any]:
        """X -> y; saves what the branches save, and their sizes."""
        return self._run([x] * len(self.branches))

    def vjp(self, saved: Any, grad_output: Array) -> Array | None:
        """Dy -> dx."""
        total: Array | None = None
        for grad in self._grads(saved, grad_output):
            if grad is not None:
                total = grad if total is None else total + grad
        return total


class BranchConcat(_Branches):
    """Several inputs, each through a module of its own, their outputs joined.

    y = [f_1(x_1), f_2(x_2), ..., f_n(x_n)]

    Args:
        modules: One for each input.
        axis: Where outputs are joined: the last axis, or 1 for the channels of images.

    Shape:
        x_i as branch i expects; y as they give, with the sum of their sizes on the axis.

    vjp:
        dx_i = f_i.vjp(dy_i) with dy cut up on the axis. Saves what the branches save, and their sizes.

    Raises:
        CompositionError: A branch gives its features on another axis.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import BranchConcat, Linear, LinearReLU
        >>> state, action = np.ones((2, 8), np.float32), np.ones((2, 3), np.float32)
        >>> BranchConcat(LinearReLU(8, 16), Linear(3, 4))(state, action).shape
        (2, 20)

    Source: Elementary.
    """

    def gives(self, width: Width | None) -> Width | None:
        """The sum of what the branches give; `width` is that of the first input."""
        widths = [module.expects() for module in self.branches]
        return self._gives([widths[0] or width, *widths[1:]])

    def expects(self) -> Width | None:
        """What the first branch expects of the first input."""
        return self.branches[0].expects()

    def check_inputs(self, *inputs: Array) -> None:
        """One input a branch."""
        if len(inputs) != len(self.branches):
            raise ShapeError(f"expected {len(self.branches)} inputs, one a branch, got {len(inputs)}")

    def forward(self, *inputs: Array) -> tuple[Array, Any]:
        """(x_1, ..., x_n) -> y; saves what the branches save, and their sizes."""
        return self._run(inputs)

    def vjp(self, saved: Any, grad_output: Array) -> tuple[Array | None, ...]:
        """Dy -> (dx_1, ..., dx_n)."""
        return tuple(self._grads(saved, grad_output))


class SkipConcat(Module):
    """A module's output joined to its input.

    y = [x, f(x)]

    Args:
        module: f; keeps x's shape but for the axis.
        axis: Where they are joined: the last axis, or 1 for the channels of images.

    Shape:
        x as f expects; y as x, with the sum of x's and f(x)'s sizes on the axis.

    vjp:
        dx = dy_x + f.vjp(dy_f) with dy cut up on the axis. Saves what f saves, and both sizes.

    Raises:
        CompositionError: f gives its features on another axis.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import LinearReLU, SkipConcat
        >>> SkipConcat(LinearReLU(8, 4))(np.ones((2, 8), np.float32)).shape
        (2, 12)

    Source: Ronneberger et al. 2015 (U-Net).
    """

    def __init__(self, module: Module, axis: int = -1):
        if not isinstance(module, Module):
            raise CompositionError(f"SkipConcat: expected a module, got {type(module).__name__}")
        self.module, self.axis = module, axis_number(self, "axis", axis)
        for width in (module.expects(), module.gives(module.expects())):
            _check_axis(f"SkipConcat: {module.describe()}", width, axis)

    def extra_repr(self) -> str:
        """The axis unless it is the last."""
        return "" if self.axis == -1 else f"axis={self.axis}"

    def expects(self) -> Width | None:
        """What f expects."""
        return self.module.expects()

    def gives(self, width: Width | None) -> Width | None:
        """The input's width and what f gives."""
        own = self.module.expects() or width
        given = self.module.gives(own)
        if own is None or given is None or own[0] != self.axis or given[0] != self.axis:
            return None
        return self.axis, own[1] + given[1]

    def check_inputs(self, *inputs: Array) -> None:
        """Leave it to the module inside, which is named in the error."""

    def forward(self, x: Array) -> tuple[Array, Any]:
        """X -> [x, f(x)]; saves what f saves, and both sizes."""
        y, saved = self.module.forward(x)
        return concat([x, y], self.axis), (saved, (x.shape[self.axis], y.shape[self.axis]))

    def vjp(self, saved: Any, grad_output: Array) -> Array:
        """Dy -> dx."""
        kept, sizes = saved
        through, branch = split(grad_output, sizes, self.axis)
        return through + self.module.vjp(kept, branch)


def _check_axis(what: str, width: Width | None, axis: int) -> None:
    """Refuse to join on the last axis what is known to have its features on another, and the reverse."""
    if width is not None and width[0] != axis and -1 in (width[0], axis) and 1 in (width[0], axis):
        raise CompositionError(
            f"{what} has {text(width)}, but outputs are joined on axis {axis}: expected axis={width[0]}"
        )
