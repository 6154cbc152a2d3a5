"""Module, Param, State, arenas and initializers."""

from noeira.nn.core.composition import composed
from noeira.nn.core.context import seed
from noeira.nn.core.diagram import Diagram, diagram
from noeira.nn.core.errors import CompositionError, NonFiniteError, ShapeError, UninitializedError
from noeira.nn.core.initializer import (
    Constant,
    Deterministic,
    Initializer,
    Kaiming,
    Normal,
    ScaledKaiming,
    TruncNormalIn,
    Uniform,
    Xavier,
    Zero,
)
from noeira.nn.core.module import Module, Width
from noeira.nn.core.param import Param, State
from noeira.nn.core.sync import hard_copy_, polyak_

__all__ = [
    "CompositionError",
    "Constant",
    "Deterministic",
    "Diagram",
    "Initializer",
    "Kaiming",
    "Module",
    "NonFiniteError",
    "Normal",
    "Param",
    "ScaledKaiming",
    "ShapeError",
    "State",
    "TruncNormalIn",
    "Uniform",
    "UninitializedError",
    "Width",
    "Xavier",
    "Zero",
    "composed",
    "diagram",
    "hard_copy_",
    "polyak_",
    "seed",
]
