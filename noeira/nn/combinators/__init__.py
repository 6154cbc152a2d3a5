"""Modules made of modules."""

from noeira.nn.combinators.checkpointed import Checkpointed
from noeira.nn.combinators.repeat import Repeat
from noeira.nn.combinators.residual import ProjectedResidual, Residual
from noeira.nn.combinators.sequential import Sequential
from noeira.nn.combinators.wrapper import InitWith, StopGradParams, Tokenwise

__all__ = [
    "Checkpointed",
    "InitWith",
    "ProjectedResidual",
    "Repeat",
    "Residual",
    "Sequential",
    "StopGradParams",
    "Tokenwise",
]
