"""Training: the trainers, their histories and their programs; augmentation."""

from noeira.nn.training.augment import Augment, Augmentation, CropFlip, Cutout, Mixup, Normalize
from noeira.nn.training.autoregressive import AutoregressiveTrainer, Interval, IterationHistory
from noeira.nn.training.history import EpochRecord, History
from noeira.nn.training.pictures import confusion_matrix, draw_confusion
from noeira.nn.training.trainer import Trainer

__all__ = [
    "Augment",
    "Augmentation",
    "AutoregressiveTrainer",
    "CropFlip",
    "Cutout",
    "EpochRecord",
    "History",
    "Interval",
    "IterationHistory",
    "Mixup",
    "Normalize",
    "Trainer",
    "confusion_matrix",
    "draw_confusion",
]
