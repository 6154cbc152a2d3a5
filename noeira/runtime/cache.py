"""Where noeira keeps what it may throw away (kernel libraries, programs, data sets), and how it writes there."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def cache_root() -> Path:
    """Return `$NOEIRA_CACHE`, or `~/.cache/noeira`; the folder is not made here.

    Example:
        >>> cache_root().name  # doctest: +SKIP
        'noeira'
    """
    return Path(os.environ.get("NOEIRA_CACHE") or "~/.cache/noeira").expanduser()


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a `.part` file beside `path`; give it its final name only after the block succeeded.

    Each writer has a `.part` file of its own, so two processes filling one cache do not mix.
    The folder is made when it is missing. When the block raises, the `.part` file is removed.

    Args:
        path: The final name.

    Raises:
        OSError: The folder cannot be written, or the disk is full.

    Example:
        >>> with atomic_write("greeting.txt") as file:  # doctest: +SKIP
        ...     file.write(b"hello")
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex[:12]}.part")
    try:
        # open() rather than tempfile: a shared cache needs the umask's permissions, not 0600.
        with open(part, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def build_atomically(path: Path, build: Callable[[Path], None]) -> None:
    """Let a tool write the file itself: `build` fills a file of the same name in a scratch folder, which is renamed.

    Raises:
        OSError: The folder cannot be written; nothing stays behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=path.parent, prefix=".part-"))
    try:
        build(scratch / path.name)
        os.replace(scratch / path.name, path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
