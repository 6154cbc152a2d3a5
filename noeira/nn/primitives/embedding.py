"""Learned rows: one for each integer id, one for each position."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from noeira.nn.core.arguments import integer, positives
from noeira.nn.core.decoding import Decoding
from noeira.nn.core.errors import ShapeError
from noeira.nn.core.initializer import Draw, Initializer, Normal, Zero
from noeira.nn.core.module import Module, Width
from noeira.nn.core.param import Param
from noeira.ops.dispatch import Array, expect_grad
from noeira.ops.embedding import embedding, embedding_grad
from noeira.ops.reduce import sum_to
from noeira.runtime.staging import Shape


@dataclass(frozen=True)
class _ZeroRow:
    """Another initializer with one row set to 0."""

    rule: Initializer
    row: int
    width: int

    def __call__(self, count: int, fan_in: int, fan_out: int, draw: Draw) -> np.ndarray:
        values = np.array(self.rule(count, fan_in, fan_out, draw))
        values[self.row * self.width : (self.row + 1) * self.width] = 0
        return values


class Embedding(Module):
    """Look up a learned row for each integer id.

    y[..., :] = W[ids[...], :]

    Args:
        num_embeddings: Number of ids; ids are 0 to num_embeddings - 1, anything else is refused (in a compiled
            program: gives NaN).
        embedding_dim: Width of a row.
        padding_idx: An id whose row starts at 0 and gets no gradient; negative counts from the end.
        init: Initializer of W; N(0, 1) by default, as in PyTorch.

    Shape:
        ids [...] of any integer type, y [..., embedding_dim]; W [num_embeddings, embedding_dim].

    vjp:
        dW[ids[...], :] += dy[..., :], in the order of the ids, the padding row left out; no gradient for ids (None).
        Saves ids.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import Embedding
        >>> Embedding(10, 3)(np.array([[2, 2, 0]])).shape
        (1, 3, 3)

    Source: PyTorch: `torch.nn.Embedding`.
    """

    tokenwise = True

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        init: Initializer | None = None,
    ):
        shape = positives(self, num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        self.num_embeddings, self.embedding_dim = shape
        self.padding_idx, rule = None, init or Normal()
        if padding_idx is not None:
            row = integer(self, "padding_idx", padding_idx)
            if not -num_embeddings <= row < num_embeddings:
                raise ValueError(f"Embedding: expected padding_idx within {num_embeddings} embeddings, got {row}")
            self.padding_idx = row % self.num_embeddings
            rule = _ZeroRow(rule, self.padding_idx, self.embedding_dim)
        self.weight = Param(shape, init=rule)

    integers = (0,)

    def check_inputs(self, *inputs: Array) -> None:
        """Refuse what is not integers."""
        if not np.issubdtype(inputs[0].dtype, np.integer):
            raise ShapeError(f"expected integer ids, got {inputs[0].dtype} of shape {list(inputs[0].shape)}")

    def gives(self, width: Width | None) -> Width:
        """`embedding_dim` on the last axis."""
        return -1, self.embedding_dim

    def extra_repr(self) -> str:
        """Both sizes, and the padding id."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"

    def forward(self, ids: Array) -> tuple[Array, Array]:
        """Ids [...] -> y [..., embedding_dim]; saves ids."""
        return embedding(ids, self.weight.val), ids

    def vjp(self, saved: Array, grad_output: Array) -> None:
        """Dy -> nothing; adds dW."""
        if self.weight.grd is not None:
            embedding_grad(self.weight.grd, saved, grad_output, self.padding_idx)


class PositionEmbedding(Module):
    """Add a learned row for each position; sequences may be shorter than the table.

    y[b, t, :] = x[b, t, :] + P[t, :]

    Args:
        max_length: Number of positions.
        embedding_dim: Width of a token.
        init: Initializer of P; 0 by default. P is not decayed.

    Shape:
        x [B, T, embedding_dim] with a known T <= max_length, y the same; P [max_length, embedding_dim].

    vjp:
        dx = dy, dP[t, :] += sum over b of dy[b, t, :]. Saves the shape.

    Raises:
        ShapeError: The sequence is longer than the table.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import PositionEmbedding
        >>> PositionEmbedding(16, 4)(np.ones((2, 5, 4), np.float32)).shape
        (2, 5, 4)

    Source: Gehring et al. 2017.
    """

    def __init__(self, max_length: int, embedding_dim: int, *, init: Initializer | None = None):
        shape = positives(self, max_length=max_length, embedding_dim=embedding_dim)
        self.weight = Param(shape, init=init or Zero(), decay=False)

    def expects(self) -> Width:
        """`embedding_dim` on the last axis."""
        return -1, self.weight.shape[1]

    def gives(self, width: Width | None) -> Width:
        """The input's width."""
        return -1, self.weight.shape[1]

    def check_inputs(self, *inputs: Array) -> None:
        """Refuse sequences of unknown length, and those longer than the table."""
        super().check_inputs(*inputs)
        shape, (longest, width) = tuple(inputs[0].shape), self.weight.shape
        if len(shape) != 3 or not isinstance(shape[1], int):
            raise ShapeError(f"expected an input of shape [B, T, {width}] with a known T, got {list(shape)}")
        if shape[1] > longest:
            raise ShapeError(f"expected a sequence of at most {longest} tokens, got {shape[1]}")

    def step(self, x: Array, decoding: Decoding) -> Array:
        """One token: the row of its place is added."""
        return x + decoding.row(self.weight.val)

    def extra_repr(self) -> str:
        """Both sizes."""
        return ", ".join(map(str, self.weight.shape))

    def forward(self, x: Array) -> tuple[Array, Shape]:
        """X -> x + P[:T]; saves the shape."""
        tokens = x.shape[1]
        if tokens == self.weight.shape[0]:
            return x + self.weight.val, x.shape
        return x + embedding(np.arange(tokens, dtype=np.int32), self.weight.val), x.shape

    def vjp(self, saved: Shape, grad_output: Array) -> Array:
        """Dy -> dy; adds dP."""
        expect_grad(grad_output, saved)
        tokens = saved[1]
        if self.weight.grd is not None:
            total = sum_to(grad_output, (tokens, self.weight.shape[1]))
            if tokens == self.weight.shape[0]:
                self.weight.accumulate(total)
            else:
                embedding_grad(self.weight.grd, np.arange(tokens, dtype=np.int32), total)
        return grad_output
