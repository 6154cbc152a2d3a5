import gzip
import hashlib
import pickle
import struct

import numpy as np
import pytest

from noeira.nn.datasets import DatasetError, read_idx, write_idx
from noeira.nn.datasets.idx import idx_header, idx_md5

IMAGES = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
RAW = struct.pack(">BBBBIII", 0, 0, 8, 3, 2, 3, 4) + bytes(range(24))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "images-idx3-ubyte"


@pytest.mark.parametrize("compress", [False, True])
def test_reads_hand_made_bytes(path, compress):
    path.write_bytes(gzip.compress(RAW) if compress else RAW)
    array = read_idx(path, expected_shape=(2, 3, 4), md5=hashlib.md5(RAW).hexdigest().upper())
    assert array.dtype == np.uint8 and array.flags.writeable
    np.testing.assert_array_equal(array, IMAGES)


@pytest.mark.parametrize("shape", [(5,), (0,), (2, 0, 3), (1, 2, 3, 4), (3_000_001,)])
@pytest.mark.parametrize("name", ["a", "a.gz"])
def test_round_trip(tmp_path, shape, name):
    array = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    write_idx(tmp_path / "new" / name, array)
    np.testing.assert_array_equal(read_idx(tmp_path / "new" / name, expected_shape=shape, md5=idx_md5(array)), array)
    assert [entry.name for entry in (tmp_path / "new").iterdir()] == [name]


def test_written_bytes_are_exact_and_repeatable(tmp_path):
    write_idx(tmp_path / "a", IMAGES.transpose(2, 1, 0).copy().transpose(2, 1, 0))  # not contiguous
    assert (tmp_path / "a").read_bytes() == RAW
    write_idx(tmp_path / "a.gz", IMAGES)
    write_idx(tmp_path / "b.gz", IMAGES)
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
    assert idx_md5(IMAGES) == hashlib.md5(RAW).hexdigest()


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("length", range(len(RAW)))
def test_cut_at_every_byte(path, length, compress):
    path.write_bytes(gzip.compress(RAW[:length]) if compress else RAW[:length])
    with pytest.raises(DatasetError) as caught:
        read_idx(path)
    assert str(path) in str(caught.value)
    if 4 <= length < 16:
        assert caught.value.expected == "a 16-byte header for 3 dimensions"
        assert caught.value.received == f"a file of {length} bytes"
    elif length >= 16:
        assert caught.value.expected.startswith("40 bytes (16 of header")


@pytest.mark.parametrize(
    ("content", "expected", "received"),
    [
        (RAW + b"!", "the end of the file after 40 bytes", "trailing bytes"),
        (b"<!doctype html>", "an IDX file (first bytes 00 00)", "first bytes 3c 21"),
        (b"\0\0\x0d\x03" + RAW[4:], "code 0x08 (uint8)", "code 0x0d (float32)"),
        (b"\0\0\x99\x03" + RAW[4:], "code 0x08 (uint8)", "code 0x99 (unknown)"),
        (b"\0\0\x08\x00", "at least 1 dimension", "0 dimensions"),
        (b"", "an IDX header", "a file of 0 bytes"),
        # A header that claims 64 GiB must not be believed before memory is taken.
        (idx_header((2**16, 2**10, 2**10)) + bytes(9), "68719476752 bytes", "at most 25 bytes"),
    ],
)
@pytest.mark.parametrize("compress", [False, True])
def test_malformed(path, content, expected, received, compress):
    path.write_bytes(gzip.compress(content) if compress else content)
    with pytest.raises(DatasetError) as caught:
        read_idx(path)
    assert expected in caught.value.expected
    assert received in caught.value.received or (compress and "at most" in received)


def test_another_shape_or_md5(path):
    path.write_bytes(RAW)
    with pytest.raises(DatasetError, match=r"expected shape \(2, 3, 5\), received shape \(2, 3, 4\)"):
        read_idx(path, expected_shape=(2, 3, 5))
    with pytest.raises(DatasetError, match=f"expected MD5 {'0' * 32} .*received MD5 {idx_md5(IMAGES)}"):
        read_idx(path, md5="0" * 32)


@pytest.mark.parametrize("length", [2, 9, 12, 30, -8, -4, -1])
def test_cut_gzip(path, length):
    path.write_bytes(gzip.compress(RAW)[:length])
    with pytest.raises(DatasetError, match="expected an intact gzip file"):
        read_idx(path)


def test_gzip_with_a_wrong_checksum(path):
    content = bytearray(gzip.compress(RAW))
    content[-8] ^= 1
    path.write_bytes(content)
    with pytest.raises(DatasetError, match="CRC"):
        read_idx(path)


def test_every_flipped_byte_is_noticed_by_md5(path):
    for at in range(len(RAW)):
        content = bytearray(RAW)
        content[at] ^= 0xFF
        path.write_bytes(content)
        with pytest.raises(DatasetError):
            read_idx(path, md5=idx_md5(IMAGES))


def test_a_missing_file_is_file_not_found(path):
    with pytest.raises(FileNotFoundError):
        read_idx(path)


@pytest.mark.parametrize("array", [IMAGES.astype(np.int32), np.uint8(3).reshape(())])
def test_write_refuses_other_arrays(path, array):
    with pytest.raises(DatasetError, match="expected a uint8 array of at least 1 dimension"):
        write_idx(path, array)
    assert not path.exists()


def test_a_failed_write_leaves_the_old_file(path, monkeypatch):
    write_idx(path, IMAGES)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("noeira.runtime.cache.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_idx(path, IMAGES + 1)
    assert path.read_bytes() == RAW
    assert list(path.parent.iterdir()) == [path]


def test_error_survives_pickling():
    error = pickle.loads(pickle.dumps(DatasetError("f", "a", "b", "c")))
    assert str(error) == "f: expected a, received b. c" and isinstance(error, ValueError)
