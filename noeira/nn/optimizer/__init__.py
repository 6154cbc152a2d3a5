"""Optimizers over arenas, and learning-rate schedules."""

from noeira.nn.optimizer import schedule
from noeira.nn.optimizer.adam import Adam, AdamW
from noeira.nn.optimizer.optimizer import Optimizer
from noeira.nn.optimizer.schedule import Cosine, LinearWarmup, Schedule, Step, WarmupCosine
from noeira.nn.optimizer.sgd import SGD

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Cosine",
    "LinearWarmup",
    "Optimizer",
    "Schedule",
    "Step",
    "WarmupCosine",
    "schedule",
]
