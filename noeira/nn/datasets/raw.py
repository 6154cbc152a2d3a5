"""Files kept as they are (texts, archives): found in the cache, a folder of the user's, or on mirrors, and checked.

No source is trusted: what it gives is compared with size and digest before it is used or kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from noeira.nn.datasets.fetch import say
from noeira.nn.datasets.idx import DatasetError
from noeira.runtime.cache import cache_root


@dataclass(frozen=True)
class RawFile:
    """One file, identified by its size and digest.

    Args:
        name: Its name in the cache.
        nbytes: Its size.
        digest: Algorithm and value, such as "sha256:86c4...".
        urls: Where it may be had.
        spellings: Other names it goes by in a user's folder.

    Example:
        >>> RawFile("a.txt", 3, "md5:900150983cd24fb0d6963f7d28e17f72").algorithm
        'md5'
    """

    name: str
    nbytes: int
    digest: str
    urls: tuple[str, ...] = ()
    spellings: tuple[str, ...] = ()

    @property
    def algorithm(self) -> str:
        """The digest's algorithm."""
        return self.digest.partition(":")[0]

    def verify(self, path: Path, where: str | os.PathLike[str] | None = None) -> None:
        """Compare a file's size and digest with what they must be.

        Args:
            path: The file.
            where: What an error calls it, in place of its path.

        Raises:
            DatasetError: They differ.
            OSError: It cannot be read.
        """
        where, size = where or path, path.stat().st_size
        if size != self.nbytes:
            raise DatasetError(where, f"{self.nbytes} bytes", f"{size} bytes", "Fetch it again.")
        received = f"{self.algorithm}:{digest_of(path, self.algorithm)}"
        if received != self.digest:
            raise DatasetError(where, self.digest, received, "Fetch it again.")


def digest_of(path: Path, algorithm: str = "sha256") -> str:
    """The digest of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()


def cache_folder(dataset: str, root: str | os.PathLike[str] | None) -> Path:
    """A data set's folder in the cache."""
    return (cache_root() if root is None else Path(root).expanduser()) / dataset


def local_folders(dataset: str, env: str, root: str | os.PathLike[str] | None) -> list[tuple[str, Path]]:
    """Where a user may have put files: the cache, and the folder that a variable names; each with a label.

    Raises:
        DatasetError: The variable names no folder.
    """
    folders = [("cache", cache_folder(dataset, root))]
    if given := os.environ.get(env):
        folder = Path(given).expanduser()
        if not folder.is_dir():
            raise DatasetError(f"{env}={given}", "a folder", "no such folder")
        folders.append((f"{env}={given}", folder))
    return folders


def obtain_raw(
    dataset: str, file: RawFile, env: str, root: str | os.PathLike[str] | None = None, *, download: bool = True
) -> Path:
    """Return the path of a verified file, from the cache, the folder `$env`, or a mirror.

    A damaged file in the cache gives a warning and is replaced; files in the user's folder are used where they are.

    Args:
        dataset: The data set, which is the cache's folder.
        file: Which file, and what it must be.
        env: The environment variable that may name a folder with the file.
        root: The cache to use in place of `cache_root()`.
        download: Whether mirrors may be asked.

    Raises:
        DatasetError: No source had it; the message says which file to put where.

    Example:
        >>> path = obtain_raw("tinyshakespeare", TinyShakespeare.file, "NOEIRA_TINYSHAKESPEARE_DIR")  # doctest: +SKIP
    """
    tried: list[str] = []
    for label, folder in local_folders(dataset, env, root):
        for name in (file.name, *file.spellings):
            path = folder / name
            if not path.is_file():
                continue
            try:
                file.verify(path)
            except (DatasetError, OSError) as error:
                warnings.warn(f"damaged file, not used: {error}", stacklevel=3)
                tried.append(f"{label}: {error}")
                continue
            return path
        tried.append(f"{label} ({folder}): no intact {file.name}")
    folder = cache_folder(dataset, root)
    for url in file.urls if download else ():
        try:
            path = _download(url, folder, file)
        except (DatasetError, OSError) as error:
            tried.append(f"mirror {urlsplit(url).hostname}: {error}")
            say(f"{dataset}: {tried[-1]}")
            continue
        say(f"{dataset}: {file.name} from {urlsplit(url).hostname}")
        return path
    raise not_found(dataset, [f"{file.name}  {file.digest}  {file.nbytes} bytes"], folder, env, tried, download)


def not_found(
    dataset: str, wanted: Sequence[str], folder: Path, env: str, tried: Sequence[str], download: bool
) -> DatasetError:
    """The error that tells a user without a network what to put where."""
    lines = [
        "Tried:",
        *(f"  {line}" for line in tried),
        f"Put this into {folder},",
        f"or into a folder named by the environment variable {env}:",
        *(f"  {line}" for line in wanted),
    ]
    if not download:
        lines.append("Or allow the network: download=True")
    return DatasetError(dataset, "its files", "none that are intact", "\n".join(lines))


def _download(url: str, folder: Path, file: RawFile) -> Path:
    """Fetch to a scratch folder beside the final place, verify there, rename."""
    from noeira.nn.datasets.download import download  # a warm cache needs none of Python's network modules

    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder, prefix=".part-")))
        path = download(url, scratch / file.name, max_bytes=file.nbytes)
        file.verify(path, url)
        os.replace(path, folder / file.name)
    return folder / file.name
