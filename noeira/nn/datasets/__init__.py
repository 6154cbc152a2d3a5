"""Data sets for training and examples: NumPy arrays in memory, fetched once and verified.

Example:
    >>> from noeira.nn.datasets import MNIST
    >>> mnist = MNIST()  # doctest: +SKIP
    >>> mnist.train  # doctest: +SKIP
    ArrayDataset('mnist/train', inputs=uint8[60000, 1, 28, 28] * 0.00392157, targets=int32[60000], 10 classes)
    >>> images, labels = mnist.train[:1000].arrays()  # doctest: +SKIP
"""

from noeira.nn.datasets.array import ArrayDataset
from noeira.nn.datasets.cifar10 import CIFAR10, read_cifar_batch, write_cifar_batch
from noeira.nn.datasets.episodes import EpisodeWindows, LeWMPushT, PushT
from noeira.nn.datasets.idx import DatasetError, read_idx, write_idx
from noeira.nn.datasets.mnist import MNIST, FashionMNIST
from noeira.nn.datasets.prefetch import Prefetch
from noeira.nn.datasets.spec import DatasetSpec, FileSpec, WheelSpec
from noeira.nn.datasets.text import CharTokenizer, TextFile, TinyShakespeare
from noeira.nn.datasets.windows import TokenWindows

__all__ = [
    "CIFAR10",
    "MNIST",
    "ArrayDataset",
    "CharTokenizer",
    "DatasetError",
    "DatasetSpec",
    "EpisodeWindows",
    "FashionMNIST",
    "FileSpec",
    "LeWMPushT",
    "Prefetch",
    "PushT",
    "TextFile",
    "TinyShakespeare",
    "TokenWindows",
    "WheelSpec",
    "read_cifar_batch",
    "read_idx",
    "write_cifar_batch",
    "write_idx",
]
