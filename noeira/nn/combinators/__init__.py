"""Modules made of modules."""

from noeira.nn.combinators.sequential import Sequential

__all__ = ["Sequential"]
