"""Pure functions on values: each op is a NumPy reference, which defines it, and a staging rule."""

from noeira.ops.activation import ACTIVATIONS, activation, activation_grad
from noeira.ops.batching import advance, gather_rows, shuffle
from noeira.ops.cross_entropy import cross_entropy, cross_entropy_grad
from noeira.ops.dispatch import Array, Op, ShapeError, is_staged, op
from noeira.ops.dropout import dropout
from noeira.ops.elementwise import add, cast, divide, multiply, negative, subtract
from noeira.ops.linear import linear, linear_input_grad, linear_param_grad, linear_pre, sum_rows
from noeira.ops.memory import accumulate, assign, load
from noeira.ops.metrics import accumulate_totals, record_loss
from noeira.ops.optimizer import adam, gradient_norm, sgd
from noeira.ops.random import fold_in
from noeira.ops.shape import flatten_leading, reshape

__all__ = [
    "ACTIVATIONS",
    "Array",
    "Op",
    "ShapeError",
    "accumulate",
    "accumulate_totals",
    "activation",
    "activation_grad",
    "adam",
    "add",
    "advance",
    "assign",
    "cast",
    "cross_entropy",
    "cross_entropy_grad",
    "divide",
    "dropout",
    "flatten_leading",
    "fold_in",
    "gather_rows",
    "gradient_norm",
    "is_staged",
    "linear",
    "linear_input_grad",
    "linear_param_grad",
    "linear_pre",
    "load",
    "multiply",
    "negative",
    "op",
    "record_loss",
    "reshape",
    "sgd",
    "shuffle",
    "subtract",
    "sum_rows",
]
