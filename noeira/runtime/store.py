"""The program store: compiled programs on disk, found again by the hash of everything they depend on.

One file a program set: a header line (magic, format), a JSON line (sha256 and size of the payload, names, target)
and the MEF bytes. Files are written to a temporary name and renamed; a file that is cut, altered or foreign is
reported, ignored and rebuilt. The folder's size is bounded: least recently used files go first.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path

from noeira.runtime import kernel_library
from noeira.runtime.cache import atomic_write, cache_root
from noeira.runtime.devices import Device
from noeira.runtime.staging import StagedGraph

log = logging.getLogger("noeira.store")

MAGIC = b"noeira program 1\n"
DEFAULT_LIMIT = 2 << 30
"""Bytes the store may hold; `NOEIRA_STORE_BYTES` overrides it."""

CODE_SETTINGS = ("MODULAR_DEBUG", "MODULAR_MAX_DEBUG", "MODULAR_MAX_DEBUG_ASSERT_LEVEL")
"""Environment variables that change the code MAX generates."""


class StoreWarning(UserWarning):
    """A stored program could not be used or kept; it is compiled again, nothing is lost but time."""


@cache
def _toolchain() -> str:
    """What turns a recording into code: versions of MAX, Mojo and Python's ABI, and our lowering's source."""
    lowering = Path(__file__).with_name("lowering.py").read_bytes()
    return "\n".join(
        (
            f"max {version('max')}",
            f"mojo {version('mojo-compiler')}",
            f"python {sys.version_info.major}.{sys.version_info.minor}",
            f"lowering {hashlib.sha256(lowering).hexdigest()}",
        )
    )


def program_key(graphs: Sequence[StagedGraph], device: Device) -> str:
    """Hash of all that the machine code depends on.

    The recordings' text (structure, shapes, dtypes, modes, constants), the kernel sources, the toolchain, the
    device and its instruction sets, and the environment variables that change code generation.
    """
    parts = [
        MAGIC.decode(),
        _toolchain(),
        f"kernels {kernel_library.library_hash()}",
        f"target {device.target}",
        *(f"{name}={os.environ.get(name, '')}" for name in CODE_SETTINGS),
        *(graph.text() for graph in graphs),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


def _folder() -> Path:
    return cache_root() / "programs"


def load(key: str) -> bytes | None:
    """The MEF stored under `key`, or None where there is none that can be trusted."""
    path = _folder() / f"{key}.noeira"
    try:
        blob = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        _warn(f"cannot read the stored program {path}: {error}")
        return None
    try:
        payload = _unpack(blob, key)
    except ValueError as error:
        _warn(f"ignoring the stored program {path}: {error}")
        return None
    with contextlib.suppress(OSError):  # a read-only store: the time of last use stays as it is
        os.utime(path)
    return payload


def reject(key: str, error: Exception) -> None:
    """Report and forget a program that MAX would not load."""
    _warn(f"MAX refuses the stored program {key}: {error}; compiling it again")
    with contextlib.suppress(OSError):
        (_folder() / f"{key}.noeira").unlink()


def _unpack(blob: bytes, key: str) -> bytes:
    if not blob.startswith(MAGIC):
        raise ValueError("not a noeira program file")
    end = blob.find(b"\n", len(MAGIC))
    try:
        header = json.loads(blob[len(MAGIC) : end if end > 0 else 0])
        size, digest, stored_key = int(header["size"]), header["sha256"], header["key"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError("its header is damaged") from error
    payload = blob[end + 1 :]
    if stored_key != key:
        raise ValueError(f"it was stored under another key ({stored_key})")
    if len(payload) != size:
        raise ValueError(f"expected {size} bytes of program, found {len(payload)}")
    if hashlib.sha256(payload).hexdigest() != digest:
        raise ValueError("its checksum does not match")
    return payload


def save(key: str, mef: bytes, names: Sequence[str]) -> bool:
    """Store a MEF under `key`; False (with a warning) where the folder cannot be written."""
    header = {
        "key": key,
        "size": len(mef),
        "sha256": hashlib.sha256(mef).hexdigest(),
        "programs": list(names),
        "toolchain": _toolchain().splitlines(),
    }
    blob = MAGIC + json.dumps(header).encode() + b"\n" + mef
    path = _folder() / f"{key}.noeira"
    try:
        with atomic_write(path) as file:
            file.write(blob)
    except OSError as error:
        _warn(f"cannot keep the compiled program in {path.parent}: {error}; it will be compiled again next time")
        return False
    _enforce_limit(path)
    return True


def limit_bytes() -> int:
    """Upper bound of the store's size in bytes.

    Raises:
        ValueError: `NOEIRA_STORE_BYTES` is not a non-negative integer.
    """
    value = os.environ.get("NOEIRA_STORE_BYTES", str(DEFAULT_LIMIT))
    if not value.isdecimal():
        raise ValueError(f"NOEIRA_STORE_BYTES: expected a number of bytes, got {value!r}")
    return int(value)


def _enforce_limit(newest: Path) -> None:
    """Delete least recently used programs until the store fits; the one just written always stays."""
    entries = []
    for path in newest.parent.glob("*.noeira"):
        with contextlib.suppress(OSError):  # another process may have deleted it meanwhile
            status = path.stat()
            entries.append((path == newest, status.st_mtime_ns, status.st_size, path))
    total = sum(size for _, _, size, _ in entries)
    for is_newest, _, size, path in sorted(entries):
        if total <= limit_bytes() or is_newest:
            break
        with contextlib.suppress(OSError):
            path.unlink()
            log.info("removed the stored program %s: the store is larger than %d bytes", path, limit_bytes())
        total -= size


def _warn(message: str) -> None:
    warnings.warn(message, StoreWarning, stacklevel=4)
