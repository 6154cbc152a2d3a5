"""Losses, each with its vjp and the weight its mean is over."""

from noeira.nn.loss.cross_entropy import CrossEntropyLoss
from noeira.nn.loss.loss import Loss

__all__ = ["CrossEntropyLoss", "Loss"]
