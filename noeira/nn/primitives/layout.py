"""Layers that only change the shape."""

from __future__ import annotations

from noeira.nn.core.module import Module
from noeira.ops.dispatch import Array, size
from noeira.ops.shape import reshape
from noeira.runtime.staging import Shape


class Flatten(Module):
    """All axes after the first merged into one.

    Shape:
        x [B, d1, d2, ...], y [B, d1 d2 ...]; moves no data.

    vjp:
        dx = dy in x's shape. Saves the shape.
    """

    def forward(self, x: Array) -> tuple[Array, Shape]:
        """[B, ...] -> [B, features]; saves the shape."""
        return reshape(x, (x.shape[0], size(x.shape[1:]))), x.shape

    def vjp(self, saved: Shape, grad_output: Array) -> Array:
        """[B, features] -> [B, ...]."""
        return reshape(grad_output, saved)
