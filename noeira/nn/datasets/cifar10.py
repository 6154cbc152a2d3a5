"""CIFAR-10: 60 000 colour images of 32 x 32 pixels in 10 classes, in the binary format of its authors.

A record is a label and 3072 pixels: the planes red, green, blue, each 32 rows of 32. A file holds 10 000 records and
nothing else. Nothing here reads pickles.

References:
    A. Krizhevsky, "Learning multiple layers of features from tiny images", 2009.
"""

from __future__ import annotations

import gzip
import os
import tarfile
import warnings
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from noeira.nn.datasets.array import ArrayDataset
from noeira.nn.datasets.idx import DatasetError
from noeira.nn.datasets.raw import RawFile, cache_folder, digest_of, local_folders, not_found, obtain_raw
from noeira.runtime.cache import atomic_write

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_SHAPE = (3, 32, 32)
_RECORD = 1 + 3 * 32 * 32
_FOLDER = "cifar-10-batches-bin"
_SUMS = "SHA256SUMS"


@dataclass(frozen=True)
class CIFARSpec:
    """What the data set consists of.

    Args:
        name: Its folder in the cache.
        env: The environment variable that may name a folder with the files.
        archive: The authors' archive.
        rows: Records a file.
        train: Names of the training files.
        test: Names of the test files.

    Example:
        >>> CIFAR10.spec.rows * len(CIFAR10.spec.train)
        50000
    """

    name: str
    env: str
    archive: RawFile
    rows: int
    train: tuple[str, ...]
    test: tuple[str, ...]


def read_cifar_batch(
    path: str | os.PathLike[str], *, rows: int | None = None
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Read a file of CIFAR-10's binary format.

    Args:
        path: The file.
        rows: When given, how many records it must hold; checked before anything is read.

    Returns:
        Images uint8 [N, 3, 32, 32] (planes red, green, blue), and labels uint8 [N].

    Raises:
        DatasetError: It is empty, ends inside a record, holds another number of them, or a label is above 9.
        OSError: It cannot be read.

    Example:
        >>> images, labels = read_cifar_batch("data_batch_1.bin", rows=10000)  # doctest: +SKIP
    """
    path = Path(path)
    size = path.stat().st_size
    if size == 0 or size % _RECORD:
        raise DatasetError(
            path,
            f"records of {_RECORD} bytes (a label and 3 x 32 x 32 pixels)",
            f"{size} bytes, which is {size // _RECORD} records and {size % _RECORD} bytes",
            "Fetch it again; CIFAR-100 and the Python version have other formats.",
        )
    if rows is not None and size != rows * _RECORD:
        raise DatasetError(
            path, f"{rows} records ({rows * _RECORD} bytes)", f"{size // _RECORD} records ({size} bytes)"
        )
    records = np.fromfile(path, np.uint8).reshape(-1, _RECORD)
    labels = records[:, 0].copy()
    if labels.max() >= len(CLASSES):
        row = int(np.argmax(labels >= len(CLASSES)))
        raise DatasetError(path, "labels 0 to 9", f"label {labels[row]} in record {row}", "Is it CIFAR-100?")
    return records[:, 1:].reshape(-1, *_SHAPE), labels


def write_cifar_batch(path: str | os.PathLike[str], images: NDArray[np.uint8], labels: NDArray[np.integer]) -> None:
    """Write images and labels in CIFAR-10's binary format; the file appears only when complete.

    Args:
        path: The file to write.
        images: uint8 [N, 3, 32, 32].
        labels: [N], 0 to 9.

    Raises:
        DatasetError: Shapes, dtype or labels do not fit the format.

    Example:
        >>> write_cifar_batch("a.bin", np.zeros((2, 3, 32, 32), np.uint8), np.array([3, 9]))  # doctest: +SKIP
    """
    if images.dtype != np.uint8 or images.shape[1:] != _SHAPE or labels.shape != images.shape[:1]:
        raise DatasetError(
            path,
            "images uint8 [N, 3, 32, 32] and labels [N]",
            f"{images.dtype}{list(images.shape)} and {list(labels.shape)}",
            "Pixels last? images.transpose(0, 3, 1, 2).",
        )
    if labels.size and not (0 <= labels.min() and labels.max() < len(CLASSES)):
        raise DatasetError(path, "labels 0 to 9", f"labels {labels.min()} to {labels.max()}")
    records = np.concatenate([labels.astype(np.uint8)[:, None], images.reshape(len(images), -1)], axis=1)
    with atomic_write(path) as file:
        file.write(records.tobytes())


class CIFAR10:
    """Colour images of 10 kinds of animals and vehicles: 50 000 to train on, 10 000 to test on.

    Sources, in order: the `.bin` files in the cache or in `$NOEIRA_CIFAR10_DIR`, the archive
    `cifar-10-binary.tar.gz` in one of them, the authors' site. Files out of the archive are kept with their SHA-256
    and compared with it at each start. Bare `.bin` files, of which no digest is published, must hold 5000 training
    and 1000 test images of each class, as the data set does.

    Args:
        root: The cache to use in place of `$NOEIRA_CACHE` or `~/.cache/noeira`; the files lie in its folder `cifar10`.
        download: Whether the network may be used. Local sources are always tried.

    Shape:
        inputs: uint8 [50000, 3, 32, 32] and [10000, 3, 32, 32], `input_scale` 1/255.
        targets: int32 [50000] and [10000].

    Raises:
        DatasetError: No source had all files; the message says which files to put where.

    Example:
        >>> cifar = CIFAR10()  # doctest: +SKIP
        >>> cifar.train.class_names[cifar.train.targets[0]]  # doctest: +SKIP
        'frog'
    """

    spec: ClassVar[CIFARSpec] = CIFARSpec(
        name="cifar10",
        env="NOEIRA_CIFAR10_DIR",
        archive=RawFile(
            "cifar-10-binary.tar.gz",
            170_052_171,
            "md5:c32a1d4ab5d03f1284b67883e8d87530",
            (
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "https://cave.cs.toronto.edu/kriz/cifar-10-binary.tar.gz",
            ),
        ),
        rows=10_000,
        train=tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
        test=("test_batch.bin",),
    )
    mean: ClassVar[tuple[float, ...]] = (0.4914, 0.4822, 0.4465)
    """Mean of each channel over the training images, of pixels in [0, 1]."""
    std: ClassVar[tuple[float, ...]] = (0.2470, 0.2435, 0.2616)
    """Standard deviation of each channel over the training images."""
    train: ArrayDataset
    test: ArrayDataset

    def __init__(self, root: str | os.PathLike[str] | None = None, *, download: bool = True) -> None:
        """Load both parts; see the class for the arguments."""
        spec, tried = self.spec, list[str]()
        found = None
        for label, base in local_folders(spec.name, spec.env, root):
            for folder in (base, base / _FOLDER):
                if found is None and any((folder / name).is_file() for name in (*spec.train, *spec.test)):
                    try:
                        found = _read_folder(spec, folder)
                    except (DatasetError, OSError) as error:
                        warnings.warn(f"files not used: {error}", stacklevel=2)
                        tried.append(f"{label}: {error}")
        if found is None:
            found = self._from_archive(root, download, tried)
        self.train = self._part("train", *found[0])
        self.test = self._part("test", *found[1])

    def _from_archive(self, root: str | os.PathLike[str] | None, download: bool, tried: list[str]) -> _Parts:
        spec, folder = self.spec, cache_folder(self.spec.name, root)
        try:
            archive = obtain_raw(spec.name, spec.archive, spec.env, root, download=download)
        except DatasetError as error:
            size = spec.rows * _RECORD
            wanted = [f"{name}  {size} bytes" for name in (*spec.train, *spec.test)]
            wanted.append(f"or {spec.archive.name}  {spec.archive.digest}  {spec.archive.nbytes} bytes")
            raise not_found(spec.name, wanted, folder, spec.env, [*tried, error.fix], download) from error
        try:
            _unpack(spec, archive, folder)
        except OSError as error:
            raise DatasetError(folder, "a folder that can be written", str(error), "Set NOEIRA_CACHE.") from error
        return _read_folder(spec, folder)

    def _part(self, name: str, images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> ArrayDataset:
        name = f"{self.spec.name}/{name}"
        return ArrayDataset(images, labels, input_scale=1 / 255, class_names=CLASSES, name=name)

    def __repr__(self) -> str:
        """Show both parts."""
        return f"{type(self).__name__}(\n  train={self.train!r},\n  test={self.test!r},\n)"


_Part = tuple[NDArray[np.uint8], NDArray[np.uint8]]
_Parts = tuple[_Part, _Part]


def _read_folder(spec: CIFARSpec, folder: Path) -> _Parts:
    sums = _read_sums(folder / _SUMS)
    for name in (*spec.train, *spec.test):
        path = folder / name
        if not path.is_file():
            raise DatasetError(folder, f"{len(spec.train) + len(spec.test)} files", f"no {name}")
        if name in sums and (received := digest_of(path)) != sums[name]:
            raise DatasetError(path, f"sha256:{sums[name]} as it was unpacked", f"sha256:{received}", "Delete it.")
    return _read_part(spec, folder, spec.train), _read_part(spec, folder, spec.test)


def _read_part(spec: CIFARSpec, folder: Path, names: tuple[str, ...]) -> _Part:
    total = spec.rows * len(names)
    images, labels = np.empty((total, *_SHAPE), np.uint8), np.empty(total, np.uint8)
    for i, name in enumerate(names):
        rows = slice(i * spec.rows, (i + 1) * spec.rows)
        images[rows], labels[rows] = read_cifar_batch(folder / name, rows=spec.rows)
    counts = np.bincount(labels, minlength=len(CLASSES))
    if len(set(counts.tolist())) != 1:
        where = ", ".join(names)
        raise DatasetError(folder / names[0], f"{total // 10} images of each class in {where}", str(counts.tolist()))
    return images, labels


def _read_sums(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    pairs = (line.split() for line in lines)
    return {pair[1]: pair[0] for pair in pairs if len(pair) == 2}


def _unpack(spec: CIFARSpec, archive: Path, folder: Path) -> None:
    """Write the archive's records to the folder: by name, as bytes, whatever paths and links it holds."""
    wanted, sums = {*spec.train, *spec.test}, dict[str, str]()
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                name = Path(member.name).name
                if name not in wanted or not member.isreg():
                    continue
                if member.size != spec.rows * _RECORD:
                    raise DatasetError(
                        f"{archive}: {name}", f"{spec.rows * _RECORD} bytes", f"{member.size} bytes", "Fetch it again."
                    )
                content = tar.extractfile(member)
                assert content is not None  # a regular file has content
                with atomic_write(folder / name) as file:
                    file.write(content.read())
                sums[name] = digest_of(folder / name)
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DatasetError(archive, "an intact tar.gz archive", str(error), "Fetch it again.") from error
    if missing := sorted(wanted - sums.keys()):
        raise DatasetError(archive, f"the members {', '.join(sorted(wanted))}", f"no {', '.join(missing)}")
    with atomic_write(folder / _SUMS) as file:
        file.write("".join(f"{sums[name]}  {name}\n" for name in sorted(sums)).encode())
