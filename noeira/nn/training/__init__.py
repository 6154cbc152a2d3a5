"""Training: the trainers, their histories and their programs."""

from noeira.nn.training.autoregressive import AutoregressiveTrainer, Interval, IterationHistory
from noeira.nn.training.history import EpochRecord, History
from noeira.nn.training.trainer import Trainer

__all__ = ["AutoregressiveTrainer", "EpochRecord", "History", "Interval", "IterationHistory", "Trainer"]
