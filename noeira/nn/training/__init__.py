"""Training: the Trainer, its history and its programs."""

from noeira.nn.training.history import EpochRecord, History
from noeira.nn.training.trainer import Trainer

__all__ = ["EpochRecord", "History", "Trainer"]
