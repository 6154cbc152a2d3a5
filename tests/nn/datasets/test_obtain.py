import dataclasses
import gzip
import logging
import os

import numpy as np
import pytest

from noeira.nn.datasets import ArrayDataset, DatasetError
from noeira.nn.datasets import cache as cache_module
from noeira.nn.datasets.fetch import obtain
from noeira.nn.datasets.idx import read_idx
from noeira.nn.datasets.mnist import ImageDataset
from noeira.runtime.cache import cache_root

IMAGES = "train-images-idx3-ubyte"
SPELLINGS = {
    "plain": lambda name: name,
    "gzip": lambda name: f"{name}.gz",
    "dotted": lambda name: name.replace("-idx", ".idx"),
    "dotted-gzip": lambda name: name.replace("-idx", ".idx") + ".gz",
}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache" / "small"


def test_cache_root(monkeypatch, tmp_path):
    monkeypatch.setenv("NOEIRA_CACHE", str(tmp_path))
    assert cache_root() == tmp_path
    for unset in ("", None):
        if unset is None:
            monkeypatch.delenv("NOEIRA_CACHE")
        else:
            monkeypatch.setenv("NOEIRA_CACHE", unset)
        monkeypatch.setenv("HOME", "/home/somebody")
        assert str(cache_root()) == "/home/somebody/.cache/noeira"


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_folder_named_by_the_variable(small, folder, tmp_path, monkeypatch, capsys, spelling):
    monkeypatch.setenv("NOEIRA_SMALL_DIR", str(small.fill(tmp_path / "given", SPELLINGS[spelling])))
    small.check(obtain(small.spec))
    small.check_cache(folder)
    assert capsys.readouterr().err.splitlines() == [
        f"noeira: small: cache {folder}: 0 of 4 files",
        f"noeira: small: NOEIRA_SMALL_DIR={tmp_path / 'given'}: 4 of 4 files",
    ]


@pytest.mark.parametrize("spelling", ["gzip", "dotted"])
def test_files_put_into_the_cache_by_hand(small, folder, spelling):
    small.fill(folder, SPELLINGS[spelling])
    small.check(obtain(small.spec))
    assert all((folder / name).read_bytes() == small.raw(name) for name in small.arrays)


def test_system_folder(small, folder, tmp_path):
    given = small.fill(tmp_path / "system", SPELLINGS["gzip"])
    spec = dataclasses.replace(small.spec, system_dir=str(given), system_package="small-data")
    small.check(obtain(spec, download=False))
    small.check_cache(folder)


def test_root_takes_the_place_of_the_cache(small, folder, tmp_path):
    small.fill(tmp_path / "mine" / "small")
    small.check(obtain(small.spec, tmp_path / "mine"))
    assert not folder.exists()


def test_warm_cache_is_silent_and_hashes_nothing(small, folder, monkeypatch, capsys):
    small.fill(folder)
    obtain(small.spec)  # verifies, and leaves the markers
    asked = []

    def spy(path, *, expected_shape, md5):
        asked.append(md5)
        return read_idx(path, expected_shape=expected_shape, md5=md5)

    monkeypatch.setattr(cache_module, "read_idx", spy)
    capsys.readouterr()
    small.check(obtain(small.spec))
    assert asked == [None] * 4
    assert capsys.readouterr().err == ""

    # The same bytes with a later time are verified once more, no longer.
    os.utime(folder / IMAGES, ns=(1, 1))
    for expected in (1, 0):
        asked.clear()
        small.check(obtain(small.spec))
        assert sum(md5 is not None for md5 in asked) == expected


def test_a_marker_holds_for_one_md5_only(small, folder):
    small.fill(folder)
    obtain(small.spec)
    other = dataclasses.replace(small.spec.train_images, md5="0" * 32)
    with pytest.raises(DatasetError, match="expected MD5 0000"):
        cache_module.read_cached(folder, other)


@pytest.mark.parametrize("change", ["values", "shape"])
def test_nothing_unverified_is_stored(small, folder, change):
    array = small.arrays[IMAGES]
    other = array + np.uint8(1) if change == "values" else array[:-1]
    with pytest.raises(DatasetError, match=f"{IMAGES}: expected (MD5|uint8 of shape)"):
        cache_module.store(folder, small.spec.train_images, other)
    assert not folder.exists()


DAMAGE = {
    "flipped": lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]),
    "cut": lambda raw: raw[:-1],
    "cut in the header": lambda raw: raw[:15],
    "longer": lambda raw: raw + b"\0",
    "empty": lambda raw: b"",
    "a web page": lambda raw: b"<html>",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_cache_is_reported_and_replaced(small, folder, tmp_path, monkeypatch, damage):
    small.fill(folder)
    obtain(small.spec)
    (folder / IMAGES).write_bytes(DAMAGE[damage](small.raw(IMAGES)))
    os.utime(folder / IMAGES, ns=(1, 1))  # a clock too coarse to see the change is not the point here

    with pytest.warns(UserWarning, match=f"damaged file in the cache.*{IMAGES}"):
        with pytest.raises(DatasetError, match="expected 4 files, received 3"):
            obtain(small.spec)

    monkeypatch.setenv("NOEIRA_SMALL_DIR", str(small.fill(tmp_path / "given")))
    with pytest.warns(UserWarning, match=f"damaged file in the cache.*{IMAGES}"):
        small.check(obtain(small.spec))
    small.check_cache(folder)


def test_bad_files_in_a_folder_are_passed_over(small, tmp_path, monkeypatch, capsys):
    given = small.fill(tmp_path / "given", SPELLINGS["gzip"])
    (given / IMAGES).write_bytes(b"bad")
    monkeypatch.setenv("NOEIRA_SMALL_DIR", str(given))
    small.check(obtain(small.spec))
    assert f"4 of 4 files; {given}: expected intact files" in capsys.readouterr().err


def test_missing_folder_is_named(small, monkeypatch, capsys):
    monkeypatch.setenv("NOEIRA_SMALL_DIR", "/no/such/folder")
    with pytest.raises(DatasetError):
        obtain(small.spec)
    assert "/no/such/folder: expected a folder with IDX files, received no such folder" in (capsys.readouterr().err)


def test_mirror(small, folder, server, capsys):
    spec = dataclasses.replace(small.spec, mirrors=(server.serve(small),))
    small.check(obtain(spec))
    small.check_cache(folder)
    assert capsys.readouterr().err.splitlines()[1:] == ["noeira: small: mirror 127.0.0.1: 4 of 4 files"]
    asked = len(server.asked)
    small.check(obtain(spec))
    assert len(server.asked) == asked == 4


@pytest.mark.parametrize("fault", ["404", "truncated", "md5", "not gzip", "shape"])
def test_bad_mirror_then_good(small, folder, server, fault, capsys):
    good, name = server.serve(small, "/good"), f"/bad/{IMAGES}.gz"
    whole = gzip.compress(small.raw(IMAGES))
    if fault == "truncated":
        server.body(name, whole[:-9], len(whole))
    elif fault == "md5":
        server.body(name, gzip.compress(DAMAGE["flipped"](small.raw(IMAGES))))
    elif fault == "not gzip":
        server.body(name, b"<html>please log in</html>")
    elif fault == "shape":
        server.body(name, gzip.compress(small.raw("t10k-images-idx3-ubyte")))
    bad = f"{server.url}/bad"
    with pytest.raises(DatasetError, match="received 0"):
        obtain(dataclasses.replace(small.spec, mirrors=(bad,)))
    assert not folder.exists() or not list(folder.iterdir())
    assert server.asked == [name]  # one failure, and the host is left alone

    small.check(obtain(dataclasses.replace(small.spec, mirrors=(bad, good))))
    small.check_cache(folder)
    assert f"0 of 4 files; {bad}/{IMAGES}.gz: expected " in capsys.readouterr().err


def test_mirrors_complete_each_other(small, folder, server):
    bad, good = server.serve(small, "/bad"), server.serve(small, "/good")
    del server.answers["/bad/t10k-images-idx3-ubyte.gz"]
    small.check(obtain(dataclasses.replace(small.spec, mirrors=(bad, good))))
    small.check_cache(folder)
    assert [path for path in server.asked if path.startswith("/good")] == [
        "/good/t10k-images-idx3-ubyte.gz",
        "/good/t10k-labels-idx1-ubyte.gz",
    ]


def test_no_network_without_download(small, server):
    spec = dataclasses.replace(small.spec, mirrors=(server.serve(small),))
    with pytest.raises(DatasetError, match="download=True"):
        obtain(spec, download=False)
    assert server.asked == []


def test_final_error_says_what_to_put_where(small, folder, server):
    spec = dataclasses.replace(
        small.spec, mirrors=(server.url,), system_dir="/no/such/folder", system_package="small-data"
    )
    with pytest.raises(DatasetError) as caught:
        obtain(spec)
    message = str(caught.value)
    for file in spec.files:
        assert f"{file.name}  MD5 {file.md5}  {file.nbytes} bytes" in message
    assert f"into {folder}," in message and "variable NOEIRA_SMALL_DIR" in message
    assert "mirror 127.0.0.1: 0 of 4 files" in message and "apt-get install small-data" in message


def deny(*args):
    raise PermissionError(13, "Permission denied")


def test_read_only_cache_that_is_full(small, folder, monkeypatch, capsys):
    small.fill(folder)
    monkeypatch.setattr("noeira.runtime.cache.open", deny, raising=False)
    small.check(obtain(small.spec))
    small.check(obtain(small.spec))
    assert capsys.readouterr().err == ""
    assert {path.name for path in folder.iterdir()} == set(small.arrays)


def test_read_only_cache_that_is_empty(small, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("NOEIRA_SMALL_DIR", str(small.fill(tmp_path / "given")))
    monkeypatch.setattr("noeira.runtime.cache.open", deny, raising=False)
    with pytest.warns(UserWarning, match="cannot keep .* in the cache .*set NOEIRA_CACHE"):
        small.check(obtain(small.spec))
    assert not list(folder.iterdir())


def test_lines_go_to_logging_when_it_shows_them(small, folder, tmp_path, monkeypatch, capsys, caplog):
    monkeypatch.setenv("NOEIRA_SMALL_DIR", str(small.fill(tmp_path / "given")))
    with caplog.at_level(logging.INFO, "noeira.datasets"):
        obtain(small.spec)
    assert caplog.records[0].getMessage() == f"small: cache {folder}: 0 of 4 files"
    assert capsys.readouterr().err == ""


def test_image_dataset(small, folder):
    small.fill(folder)

    class Mine(ImageDataset):
        spec = small.spec

    ds = Mine(download=False)
    for part, prefix, count in ((ds.train, "train", 6), (ds.test, "t10k", 3)):
        assert isinstance(part, ArrayDataset)
        assert part.inputs.dtype == np.uint8 and part.inputs.shape == (count, 1, 4, 5)
        np.testing.assert_array_equal(part.inputs[:, 0], small.arrays[f"{prefix}-images-idx3-ubyte"])
        assert part.targets.dtype == np.int32
        np.testing.assert_array_equal(part.targets, small.arrays[f"{prefix}-labels-idx1-ubyte"])
        assert part.input_scale == 1 / 255 and part.class_names == ("no", "yes")
    assert (ds.train.name, ds.test.name) == ("small/train", "small/test")
    assert repr(ds).startswith("Mine(\n  train=ArrayDataset('small/train', inputs=uint8[6, 1, 4, 5]")
