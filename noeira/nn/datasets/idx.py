"""The IDX file format of MNIST: reading and writing of uint8 arrays, plain or gzip.

Layout: two zero bytes, a dtype code, the number of dimensions d, d big-endian uint32 sizes, then
the values in C order. The header is therefore 4 + 4 d bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import math
import os
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from noeira.runtime.cache import atomic_write

_UINT8 = 0x08
_DTYPE_NAMES = {
    _UINT8: "uint8",
    0x09: "int8",
    0x0B: "int16",
    0x0C: "int32",
    0x0D: "float32",
    0x0E: "float64",
}
_GZIP_MAGIC = b"\x1f\x8b"
# Deflate cannot expand by more than 1032 : 1, so a header that claims more is known to lie.
_MAX_EXPANSION = 1100
_CHUNK = 1 << 20


class DatasetError(ValueError):
    """Data that is not what it should be.

    Args:
        where: The file, URL or data set concerned.
        expected: What should have been there.
        received: What was there.
        fix: The likely remedy; may be empty.

    Example:
        >>> print(DatasetError("a.idx", "16 bytes", "15 bytes", "Fetch it again."))
        a.idx: expected 16 bytes, received 15 bytes. Fetch it again.
    """

    def __init__(self, where: str | os.PathLike[str], expected: str, received: str, fix: str = "") -> None:
        """Keep the four parts as attributes; `str(error)` joins them."""
        super().__init__(str(where), expected, received, fix)
        self.where = str(where)
        self.expected = expected
        self.received = received
        self.fix = fix

    def __str__(self) -> str:
        """Return one sentence, and the fix if there is one."""
        text = f"{self.where}: expected {self.expected}, received {self.received}."
        return f"{text} {self.fix}" if self.fix else text


def idx_header(shape: tuple[int, ...]) -> bytes:
    """Return the header of a uint8 IDX file.

    Args:
        shape: The sizes of the array, 1 to 255 of them.

    Example:
        >>> idx_header((3,)).hex()
        '0000080100000003'
    """
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, _UINT8, len(shape), *shape)


def idx_md5(array: NDArray[np.uint8]) -> str:
    """Return the MD5 that `array` has as an uncompressed IDX file.

    Args:
        array: The values; made contiguous if they are not.

    Example:
        >>> idx_md5(np.arange(3, dtype=np.uint8))
        '2dab5672e75db8be26c5d98d167b573d'
    """
    digest = hashlib.md5(idx_header(array.shape), usedforsecurity=False)
    digest.update(np.ascontiguousarray(array).reshape(-1).data)
    return digest.hexdigest()


def read_idx(
    path: str | os.PathLike[str],
    *,
    expected_shape: tuple[int, ...] | None = None,
    md5: str | None = None,
) -> NDArray[np.uint8]:
    """Read a uint8 array from an IDX file, plain or gzip (told apart by content, not by name).

    Args:
        path: The file.
        expected_shape: When given, the shape the header must state; checked before any allocation.
        md5: When given, the MD5 of the uncompressed file, in hexadecimal.

    Returns:
        A new, writable array.

    Raises:
        DatasetError: The file is not IDX, holds another dtype or shape, ends early or late, is
            damaged gzip, or has another MD5.
        OSError: The file cannot be opened.

    Example:
        >>> images = read_idx("train-images-idx3-ubyte.gz", expected_shape=(60000, 28, 28))  # doctest: +SKIP
    """
    path = Path(path)
    with open(path, "rb") as raw:
        size = os.fstat(raw.fileno()).st_size
        is_gzip = raw.read(2) == _GZIP_MAGIC
        raw.seek(0)
        if not is_gzip:
            return _parse(raw, path, size, expected_shape, md5)
        try:
            with gzip.GzipFile(fileobj=raw) as stream:
                return _parse(stream, path, size * _MAX_EXPANSION, expected_shape, md5)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DatasetError(path, "an intact gzip file", f"a damaged one ({error})", "Fetch it again.") from error


def write_idx(path: str | os.PathLike[str], array: NDArray[np.uint8]) -> None:
    """Write a uint8 array as an IDX file, gzip when the name ends in `.gz`.

    The file appears under its name only when complete.

    Args:
        path: The file to write; its folder is made when missing.
        array: uint8, of at least one dimension.

    Raises:
        DatasetError: The array is not uint8, or has no dimension.
        OSError: The file cannot be written.

    Example:
        >>> write_idx("labels-idx1-ubyte", np.array([7, 2, 1], np.uint8))  # doctest: +SKIP
    """
    path = Path(path)
    if array.dtype != np.uint8 or array.ndim < 1:
        raise DatasetError(
            path,
            "a uint8 array of at least 1 dimension to write",
            f"{array.dtype} of shape {array.shape}",
            "Convert with array.astype(np.uint8).",
        )
    parts = (idx_header(array.shape), np.ascontiguousarray(array).reshape(-1).data)
    with atomic_write(path) as file:
        if path.suffix == ".gz":
            # No name and no time in the gzip header: equal arrays give equal files.
            with gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as stream:
                for part in parts:
                    stream.write(part)
        else:
            for part in parts:
                file.write(part)


def _parse(
    stream: io.BufferedIOBase,
    path: Path,
    most: int,
    expected_shape: tuple[int, ...] | None,
    md5: str | None,
) -> NDArray[np.uint8]:
    """Read header and values from `stream`, which can hold no more than `most` bytes."""
    header, shape = _read_header(stream, path)
    if expected_shape is not None and shape != tuple(expected_shape):
        raise DatasetError(path, f"shape {tuple(expected_shape)}", f"shape {shape}", "Is it another file?")
    total = len(header) + math.prod(shape)
    stated = f"{total} bytes ({len(header)} of header and shape {shape})"
    if total > most:
        raise DatasetError(path, stated, f"at most {most} bytes", "Fetch it again.")
    array = np.empty(shape, np.uint8)
    view = array.reshape(-1).data
    filled = 0
    while filled < len(view):
        count = stream.readinto(view[filled : filled + _CHUNK])
        if not count:
            raise DatasetError(path, stated, f"{len(header) + filled} bytes", "Fetch it again.")
        filled += count
    # Reading on to the end is also what makes gzip compare its checksum.
    if stream.read(1):
        raise DatasetError(path, f"the end of the file after {stated}", "trailing bytes", "Fetch it again.")
    if md5 is not None:
        received = hashlib.md5(header, usedforsecurity=False)
        received.update(view)
        if received.hexdigest() != md5.lower():
            raise DatasetError(
                path,
                f"MD5 {md5.lower()} (of the uncompressed file)",
                f"MD5 {received.hexdigest()}",
                "Fetch it again.",
            )
    return array


def _read_header(stream: io.BufferedIOBase, path: Path) -> tuple[bytes, tuple[int, ...]]:
    """Read and check the header; return its bytes and the shape it states."""
    start = stream.read(4)
    if len(start) < 4:
        raise DatasetError(path, "an IDX header of 8 bytes or more", f"a file of {len(start)} bytes")
    if start[:2] != b"\0\0":
        raise DatasetError(
            path,
            "an IDX file (first bytes 00 00) or a gzip file (first bytes 1f 8b)",
            f"first bytes {start[:2].hex(' ')}",
            "Is it a web page, or an archive of another kind?",
        )
    code, ndim = start[2], start[3]
    if code != _UINT8:
        name = _DTYPE_NAMES.get(code, "unknown")
        raise DatasetError(path, "IDX dtype code 0x08 (uint8)", f"code 0x{code:02x} ({name})")
    if ndim == 0:
        raise DatasetError(path, "an IDX array of at least 1 dimension", "0 dimensions")
    sizes = stream.read(4 * ndim)
    if len(sizes) < 4 * ndim:
        raise DatasetError(
            path,
            f"a {4 + 4 * ndim}-byte header for {ndim} dimensions",
            f"a file of {4 + len(sizes)} bytes",
            "Fetch it again.",
        )
    return start + sizes, struct.unpack(f">{ndim}I", sizes)
