"""Modules made of modules."""

from noeira.nn.combinators.checkpointed import Checkpointed
from noeira.nn.combinators.compute_graph import ComputeGraph, ExternalNode, InputSlot, Node
from noeira.nn.combinators.parallel import BranchConcat, Parallel, SkipConcat
from noeira.nn.combinators.repeat import Repeat, RepeatConditional
from noeira.nn.combinators.residual import ProjectedResidual, Residual
from noeira.nn.combinators.sequential import Sequential
from noeira.nn.combinators.wrapper import InitWith, StopGradParams, Tokenwise

__all__ = [
    "BranchConcat",
    "Checkpointed",
    "ComputeGraph",
    "ExternalNode",
    "InitWith",
    "InputSlot",
    "Node",
    "Parallel",
    "ProjectedResidual",
    "Repeat",
    "RepeatConditional",
    "Residual",
    "Sequential",
    "SkipConcat",
    "StopGradParams",
    "Tokenwise",
]
