"""CIFAR-10's binary format, on files made here: right ones come back pixel for pixel, each wrong one has its error."""

import gzip
import hashlib
import io
import re
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from noeira.nn.datasets import CIFAR10, DatasetError, read_cifar_batch, write_cifar_batch

ROWS = 20
FILES = (*CIFAR10.spec.train, *CIFAR10.spec.test)


class Tiny:
    """Six files of 20 records, two a class, and the archive of them."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.images = {name: rng.integers(0, 256, (ROWS, 3, 32, 32), np.uint8) for name in FILES}
        self.labels = {name: rng.permutation(np.repeat(np.arange(10), 2)).astype(np.uint8) for name in FILES}

    def raw(self, name: str) -> bytes:
        """Record by record, plane by plane, as the format is described."""
        records = []
        for label, image in zip(self.labels[name], self.images[name], strict=True):
            records.append(bytes([label]) + image[0].tobytes() + image[1].tobytes() + image[2].tobytes())
        return b"".join(records)

    def fill(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            (folder / name).write_bytes(self.raw(name))
        return folder

    def archive(self, leave_out: str = "", change: bytes = b"") -> bytes:
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w:gz") as tar:
            for name in ("batches.meta.txt", *FILES):
                content = b"airplane\n" if name.endswith("txt") else self.raw(name) + change
                info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
                info.size = len(content)
                if name != leave_out:
                    tar.addfile(info, io.BytesIO(content))
            link = tarfile.TarInfo("../../outside")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(link)
        return stream.getvalue()

    def dataset(self, archive: bytes, *urls: str) -> type[CIFAR10]:
        digest = f"md5:{hashlib.md5(archive, usedforsecurity=False).hexdigest()}"
        file = replace(CIFAR10.spec.archive, nbytes=len(archive), digest=digest, urls=urls)

        class Small(CIFAR10):
            spec = replace(CIFAR10.spec, rows=ROWS, archive=file)

        return Small

    def check(self, dataset: CIFAR10) -> None:
        for part, names in ((dataset.train, FILES[:5]), (dataset.test, FILES[5:])):
            np.testing.assert_array_equal(part.inputs, np.concatenate([self.images[n] for n in names]))
            np.testing.assert_array_equal(part.targets, np.concatenate([self.labels[n] for n in names]))
            assert part.input_scale == 1 / 255 and part.class_names[6] == "frog"


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    monkeypatch.setenv("NOEIRA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("NOEIRA_CIFAR10_DIR", raising=False)
    return Tiny()


def test_one_record_by_hand(tmp_path):
    pixels = np.zeros((3, 32, 32), np.uint8)
    pixels[0, 0, 1], pixels[1, 2, 0], pixels[2, 31, 31] = 10, 20, 30
    raw = bytearray(3073)
    raw[0], raw[1 + 1], raw[1 + 1024 + 64], raw[3072] = 7, 10, 20, 30
    (tmp_path / "a.bin").write_bytes(raw)
    images, labels = read_cifar_batch(tmp_path / "a.bin", rows=1)
    assert labels.tolist() == [7]
    np.testing.assert_array_equal(images[0], pixels)
    write_cifar_batch(tmp_path / "b.bin", images, labels)
    assert (tmp_path / "b.bin").read_bytes() == raw


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "expected records of 3073 bytes"),
        (bytes(3072), "received 3072 bytes, which is 0 records and 3072 bytes"),
        (bytes(3073 + 1), "1 records and 1 bytes"),
        (bytes(3 * 3073), r"expected 2 records \(6146 bytes\), received 3 records"),
        (bytes(3073) + b"\x0a" + bytes(3072), "expected labels 0 to 9, received label 10 in record 1"),
    ],
)
def test_malformed_batch(tmp_path, raw, message):
    (tmp_path / "a.bin").write_bytes(raw)
    with pytest.raises(DatasetError, match=message):
        read_cifar_batch(tmp_path / "a.bin", rows=2)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.zeros((1, 32, 32, 3), np.uint8), [0], r"images.transpose\(0, 3, 1, 2\)"),
        (np.zeros((1, 3, 32, 32), np.float32), [0], "received float32"),
        (np.zeros((1, 3, 32, 32), np.uint8), [0, 1], r"labels \[N\]"),
        (np.zeros((1, 3, 32, 32), np.uint8), [10], "labels 10 to 10"),
    ],
)
def test_what_cannot_be_written(tmp_path, images, labels, message):
    with pytest.raises(DatasetError, match=message):
        write_cifar_batch(tmp_path / "a.bin", images, np.array(labels))
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("inner", ["", "cifar-10-batches-bin"])
def test_folder_named_by_the_variable(tiny, tmp_path, monkeypatch, inner):
    tiny.fill(tmp_path / "given" / inner)
    monkeypatch.setenv("NOEIRA_CIFAR10_DIR", str(tmp_path / "given"))
    tiny.check(tiny.dataset(b"")(download=False))


def test_files_in_the_cache(tiny, tmp_path):
    tiny.fill(tmp_path / "cache" / "cifar10")
    tiny.check(tiny.dataset(b"")(download=False))
    assert "inputs=uint8[100, 3, 32, 32]" in repr(tiny.dataset(b"")(download=False))


def test_archive_from_a_mirror_then_from_the_cache(tiny, server, tmp_path, capsys):
    archive = tiny.archive()
    server.body("/a.tar.gz", archive)
    dataset = tiny.dataset(archive, f"{server.url}/gone", f"{server.url}/a.tar.gz")
    tiny.check(dataset())
    folder = tmp_path / "cache" / "cifar10"
    assert {path.name for path in folder.iterdir()} == {*FILES, "SHA256SUMS", "cifar-10-binary.tar.gz"}
    assert server.asked == ["/gone", "/a.tar.gz"]
    tiny.check(dataset())
    assert len(server.asked) == 2
    assert "mirror 127.0.0.1" in capsys.readouterr().err
    assert not (tmp_path / "outside").exists()

    # A pixel that changed since, which size and labels cannot show.
    raw = bytearray((folder / FILES[2]).read_bytes())
    raw[5] ^= 1
    (folder / FILES[2]).write_bytes(raw)
    with pytest.warns(UserWarning, match=r"data_batch_3.bin: expected sha256:\w+ as it was unpacked"):
        tiny.check(dataset(download=False))  # unpacked again


def test_bare_files_must_have_the_classes_of_the_data_set(tiny, tmp_path):
    tiny.labels[FILES[5]][:] = 3
    tiny.fill(tmp_path / "cache" / "cifar10")
    expected = r"expected 2 images of each class in test_batch.bin, received \[0, 0, 0, 20, 0"
    with pytest.warns(UserWarning, match=expected), pytest.raises(DatasetError, match=expected):
        tiny.dataset(b"")(download=False)


def test_a_missing_file_is_named(tiny, tmp_path):
    (tiny.fill(tmp_path / "cache" / "cifar10") / FILES[3]).unlink()
    with pytest.warns(UserWarning, match="no data_batch_4.bin"), pytest.raises(DatasetError) as caught:
        tiny.dataset(b"", "http://127.0.0.1:1/a")(download=False)
    text = str(caught.value)
    for part in ("data_batch_4.bin  61460 bytes", "NOEIRA_CIFAR10_DIR", str(tmp_path / "cache" / "cifar10")):
        assert part in text
    assert "cifar-10-binary.tar.gz  md5:" in text and "download=True" in text


def test_a_variable_that_names_no_folder(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("NOEIRA_CIFAR10_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(DatasetError, match="no such folder"):
        tiny.dataset(b"")(download=False)


def test_bad_archives(tiny, tmp_path, server):
    folder = tmp_path / "cache" / "cifar10"
    folder.mkdir(parents=True)
    cases = {
        "no test_batch.bin": tiny.archive("test_batch.bin"),
        "expected 61460 bytes, received 61461 bytes": tiny.archive(change=b"x"),
        "an intact tar.gz archive": tiny.archive()[:-4000],
        "an intact tar.gz": gzip.compress(b"not a tar"),
    }
    for message, archive in cases.items():
        (folder / "cifar-10-binary.tar.gz").write_bytes(archive)
        for name in FILES:
            (folder / name).unlink(missing_ok=True)
        with pytest.raises(DatasetError, match=message):
            tiny.dataset(archive)(download=False)
        assert not list(folder.glob("*.part"))

    # Another archive than the one that is wanted, in the cache and from a mirror.
    server.body("/other", tiny.archive()[:-1] + b"x")
    with pytest.warns(UserWarning, match="damaged file"), pytest.raises(DatasetError, match="expected md5:"):
        tiny.dataset(tiny.archive(), f"{server.url}/other")()
    assert not list(folder.glob(".part*"))


def test_the_real_specification():
    assert CIFAR10.spec.rows == 10_000 and len(CIFAR10.spec.train) == 5
    assert re.fullmatch("md5:[0-9a-f]{32}", CIFAR10.spec.archive.digest)
