"""Sequential: modules in a chain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from noeira.nn.combinators.width import entering, fits, text
from noeira.nn.core.decoding import Decoding
from noeira.nn.core.errors import CompositionError
from noeira.nn.core.module import Module, Width
from noeira.ops.dispatch import Array


class Sequential(Module):
    """The modules applied one after the other.

    y = f_n(... f_2(f_1(x)))

    Args:
        modules: The chain, first to last. Widths that do not fit are refused here.

    Shape:
        That of the first module's input and of the last one's output.

    vjp:
        The modules' vjps in reverse order. Saves what each of them saves.

    Raises:
        CompositionError: A module expects another width than the one before it gives.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import Linear, LinearReLU, Sequential
        >>> net = Sequential(LinearReLU(784, 256), Linear(256, 10))
        >>> net(np.zeros((5, 784), np.float32)).shape
        (5, 10)

    Source: PyTorch: `torch.nn.Sequential`.
    """

    def __init__(self, *modules: Module):
        for index, module in enumerate(modules):
            if not isinstance(module, Module):
                raise CompositionError(f"Sequential: expected modules, got {type(module).__name__} at position {index}")
        self.layers = list(modules)
        self._check_widths()

    def _check_widths(self) -> None:
        width: Width | None = None
        giver = ""
        for index, module in enumerate(self.layers):
            expected = module.expects()
            if width is not None and expected is not None and not fits(width, expected):
                raise CompositionError(
                    f"Sequential: module '{index}' ({module.describe()}) expects {text(expected)}, "
                    f"but {giver} gives {text(width)}"
                )
            given = module.gives(entering(width, expected))
            if given != width or not giver:
                giver = f"module '{index}' ({module.describe()})"
            width = given

    def expects(self) -> Width | None:
        """The first width any module insists on, as long as those before it keep widths."""
        for module in self.layers:
            if (width := module.expects()) is not None:
                return width
            if module.gives((-1, 1)) != (-1, 1):
                return None
        return None

    def gives(self, width: Width | None) -> Width | None:
        """The chain's output width."""
        for module in self.layers:
            width = module.gives(entering(width, module.expects()))
        return width

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules under their positions: "0", "1", ..."""
        for index, module in enumerate(self.layers):
            yield str(index), module

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, index: int) -> Module:
        return self.layers[index]

    def __iter__(self) -> Iterator[Module]:
        return iter(self.layers)

    def check_inputs(self, *inputs: Array) -> None:
        """Leave it to the first module, which is named in the error."""

    def forward(self, x: Array) -> tuple[Array, Any]:
        """Run the chain; saves a tuple of what each module saves."""
        saved = []
        for module in self.layers:
            x, kept = module.forward(x)
            saved.append(kept)
        return x, tuple(saved)

    def step(self, x: Array, decoding: Decoding) -> Array:
        """One token through the chain."""
        for module in self.layers:
            x = module.step(x, decoding)
        return x

    def vjp(self, saved: Any, grad_output: Array) -> Array:
        """Run the chain's vjps backwards."""
        for module, kept in zip(reversed(self.layers), reversed(saved), strict=True):
            grad_output = module.vjp(kept, grad_output)
        return grad_output
