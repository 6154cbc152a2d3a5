"""A linear map whose matrix is block-diagonal."""

from __future__ import annotations

from noeira.nn.core.arguments import positives
from noeira.nn.core.initializer import Initializer, Zero
from noeira.nn.core.module import Module, Width
from noeira.nn.core.param import Param
from noeira.ops.dispatch import Array, expect_grad
from noeira.ops.layout import transpose_samples
from noeira.ops.linear import linear, linear_input_grad, sum_rows
from noeira.ops.pieces import concat, slice_axis, split
from noeira.ops.shape import flatten_leading, reshape


class BlockLinear(Module):
    """Affine map in which each block of outputs sees its own block of inputs only.

    y_k = x_k W_k + b_k for the blocks k of the last axis

    Args:
        in_features: Width of the input's last axis.
        out_features: Width of the output's last axis.
        blocks: Number of blocks; divides both. 1 is `Linear`.
        bias: Whether there is a b.
        init: Initializer of W, each block with its own fan-in; the model's by default. b starts at 0.

    Shape:
        x [..., in_features], y [..., out_features]; W [blocks, in_features / blocks, out_features / blocks].

    vjp:
        dx_k = dy_k W_k^T, dW_k += x_k^T dy_k, db += sum of dy over rows. Saves x.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import BlockLinear
        >>> layer = BlockLinear(8, 12, 4)
        >>> layer(np.ones((5, 8), np.float32)).shape, layer.weight.shape
        ((5, 12), (4, 2, 3))

    Source: the recurrent cell of DreamerV3 (Hafner et al. 2023).
    """

    tokenwise = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        blocks: int,
        bias: bool = True,
        *,
        init: Initializer | None = None,
    ):
        in_features, out_features, blocks = positives(
            self, in_features=in_features, out_features=out_features, blocks=blocks
        )
        if in_features % blocks or out_features % blocks:
            raise ValueError(
                f"BlockLinear: expected widths that {blocks} blocks divide, got {in_features} and {out_features}"
            )
        self.in_features, self.out_features, self.blocks = in_features, out_features, blocks
        shape = (blocks, in_features // blocks, out_features // blocks)
        self.weight = Param(shape, init=init, fan_in=shape[1], fan_out=shape[2])
        self.bias = Param((out_features,), init=Zero(), decay=False) if bias else None

    def expects(self) -> Width:
        """`in_features` on the last axis."""
        return -1, self.in_features

    def gives(self, width: Width | None) -> Width:
        """`out_features` on the last axis."""
        return -1, self.out_features

    def extra_repr(self) -> str:
        """Both widths, the number of blocks, and the absence of a bias."""
        sizes = f"{self.in_features}, {self.out_features}, {self.blocks}"
        return sizes + ("" if self.bias else ", bias=False")

    def _blocks(self, x: Array, axis: int = -1) -> tuple[Array, ...]:
        """X cut into blocks."""
        return split(x, (int(x.shape[axis]) // self.blocks,) * self.blocks, axis)

    def _weights(self) -> list[Array]:
        weight = self.weight.val
        return [reshape(slice_axis(weight, k, k + 1, 0), self.weight.shape[1:]) for k in range(self.blocks)]

    def forward(self, x: Array) -> tuple[Array, Array]:
        """X [..., in] -> y [..., out]; saves x."""
        biases = self._blocks(self.bias.val) if self.bias else (None,) * self.blocks
        parts = zip(self._blocks(x), self._weights(), biases, strict=True)
        return concat([linear(part, weight, bias) for part, weight, bias in parts]), x

    def vjp(self, saved: Array, grad_output: Array) -> Array:
        """Dy [..., out] -> dx [..., in]; adds dW and db."""
        expect_grad(grad_output, (*saved.shape[:-1], self.out_features))
        grads = self._blocks(grad_output)
        if self.weight.trainable:
            x = flatten_leading(saved)
            columns = transpose_samples(reshape(x, (1, *x.shape)))  # [1, in, rows]
            columns = self._blocks(reshape(columns, (self.in_features, x.shape[0])), 0)
            products = [linear(c, flatten_leading(g)) for c, g in zip(columns, grads, strict=True)]
            self.weight.accumulate(reshape(concat(products, 0), self.weight.shape))
        if self.bias:
            self.bias.accumulate(sum_rows(grad_output))
        return concat([linear_input_grad(g, weight) for g, weight in zip(grads, self._weights(), strict=True)])
