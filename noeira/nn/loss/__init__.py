"""Losses, each with its vjp and the weight its mean is over."""

from noeira.nn.loss.cross_entropy import CrossEntropyLoss, SequenceCrossEntropyLoss, SoftCrossEntropyLoss
from noeira.nn.loss.loss import Loss
from noeira.nn.loss.probability import BCEWithLogitsLoss, KLDivLoss, TwoHotLoss
from noeira.nn.loss.reduction import ElementwiseLoss
from noeira.nn.loss.regression import GaussianNLLLoss, HuberLoss, L1Loss, MSELoss, SmoothL1Loss

__all__ = [
    "BCEWithLogitsLoss",
    "CrossEntropyLoss",
    "ElementwiseLoss",
    "GaussianNLLLoss",
    "HuberLoss",
    "KLDivLoss",
    "L1Loss",
    "Loss",
    "MSELoss",
    "SequenceCrossEntropyLoss",
    "SmoothL1Loss",
    "SoftCrossEntropyLoss",
    "TwoHotLoss",
]
