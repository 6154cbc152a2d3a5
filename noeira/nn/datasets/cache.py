"""The cache folder: verified, uncompressed IDX files, each with a marker of its verification.

The MD5 of a file is compared when it is written, and again whenever its size or its time of change
differ from those in its marker (`<name>.verified`). A file with a true marker is only checked for
header and size, which is what makes a warm start cheap.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from noeira.nn.datasets.idx import DatasetError, idx_md5, read_idx, write_idx
from noeira.nn.datasets.spec import FileSpec
from noeira.runtime.cache import atomic_write


def read_cached(folder: Path, file: FileSpec) -> NDArray[np.uint8] | None:
    """Return the array of a cached file, or None when the file is absent.

    Args:
        folder: The data set's folder in the cache; may be read-only.
        file: Which file, and what it must be.

    Raises:
        DatasetError: The file is there, but is not what it must be.
        OSError: The file is there, but cannot be read.

    Example:
        >>> read_cached(cache_root() / "mnist", MNIST.spec.train_labels)  # doctest: +SKIP
    """
    path = folder / file.name
    try:
        # Taken before the read: a change during the read then shows as a stale marker.
        seen = _fingerprint(path, file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    verified = _read_marker(path) == seen
    array = read_idx(path, expected_shape=file.shape, md5=None if verified else file.md5)
    if not verified:
        _write_marker(path, seen)
    return array


def store(folder: Path, file: FileSpec, array: NDArray[np.uint8]) -> None:
    """Verify an array against its specification and write it to the cache.

    Args:
        folder: The data set's folder in the cache.
        file: Which file, and what it must be.
        array: The values.

    Raises:
        DatasetError: Shape or MD5 are not those of `file`; nothing is written.
        OSError: The folder cannot be written.

    Example:
        >>> store(folder, spec.train_labels, labels)  # doctest: +SKIP
    """
    verify(folder / file.name, file, array)
    write_idx(folder / file.name, array)
    _write_marker(folder / file.name, _fingerprint(folder / file.name, file))


def verify(where: str | os.PathLike[str], file: FileSpec, array: NDArray[np.uint8]) -> None:
    """Compare an array with the specification of its file.

    Args:
        where: What an error calls the array.
        file: What the array must be.
        array: The values.

    Raises:
        DatasetError: Shape, dtype or MD5 differ.

    Example:
        >>> verify("labels", spec.train_labels, labels)  # doctest: +SKIP
    """
    if array.dtype != np.uint8 or array.shape != file.shape:
        raise DatasetError(where, f"uint8 of shape {file.shape}", f"{array.dtype} of shape {array.shape}")
    if (md5 := idx_md5(array)) != file.md5:
        raise DatasetError(where, f"MD5 {file.md5} (of the uncompressed file)", f"MD5 {md5}")


def _fingerprint(path: Path, file: FileSpec) -> dict[str, int | str]:
    stat = path.stat()
    return {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "md5": file.md5}


def _marker(path: Path) -> Path:
    return path.with_name(f"{path.name}.verified")


def _read_marker(path: Path) -> object:
    try:
        return json.loads(_marker(path).read_text())
    except (OSError, ValueError):
        return None


def _write_marker(path: Path, seen: dict[str, int | str]) -> None:
    try:
        with atomic_write(_marker(path)) as file:
            file.write(json.dumps(seen).encode() + b"\n")
    except OSError:
        pass  # A read-only cache stays usable; it is verified anew at each start.
