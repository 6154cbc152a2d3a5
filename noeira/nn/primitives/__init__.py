"""Leaf layers, one family a file."""

from noeira.nn.primitives.activation import GELU, Activation, Mish, ReLU, Sigmoid, SiLU, Swish, Tanh
from noeira.nn.primitives.dropout import Dropout
from noeira.nn.primitives.layout import Flatten
from noeira.nn.primitives.linear import (
    Linear,
    LinearAct,
    LinearGELU,
    LinearMish,
    LinearReLU,
    LinearSigmoid,
    LinearSwish,
    LinearTanh,
)

__all__ = [
    "GELU",
    "Activation",
    "Dropout",
    "Flatten",
    "Linear",
    "LinearAct",
    "LinearGELU",
    "LinearMish",
    "LinearReLU",
    "LinearSigmoid",
    "LinearSwish",
    "LinearTanh",
    "Mish",
    "ReLU",
    "SiLU",
    "Sigmoid",
    "Swish",
    "Tanh",
]
