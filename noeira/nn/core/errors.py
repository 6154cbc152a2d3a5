"""Errors of modules: each says where, what was expected, and what came."""

from __future__ import annotations

from noeira.ops.dispatch import ShapeError


class CompositionError(ValueError):
    """Modules that cannot be put together: one gives a width the next does not expect."""


class UninitializedError(RuntimeError):
    """A parameter was read before anything gave it values."""


class NonFiniteError(ArithmeticError):
    """A loss, activation or parameter became NaN or infinite."""


__all__ = ["CompositionError", "NonFiniteError", "ShapeError", "UninitializedError"]
