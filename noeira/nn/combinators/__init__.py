"""Modules made of modules."""

from noeira.nn.combinators.repeat import Repeat
from noeira.nn.combinators.sequential import Sequential

__all__ = ["Repeat", "Sequential"]
