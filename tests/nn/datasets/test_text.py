"""Texts and character vocabularies; TinyShakespeare from the shared copy where there is one."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noeira import ops
from noeira.nn.datasets import CharTokenizer, DatasetError, TextFile, TinyShakespeare, TokenWindows

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"


@given(st.text(min_size=1))
def test_round_trip_of_any_text(text):
    tokenizer = CharTokenizer(text)
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int32 and tokenizer.decode(ids) == text
    assert tokenizer.vocab_size == len(set(text))
    assert tokenizer.characters == "".join(sorted(set(text)))
    assert ids.tolist() == [sorted(set(text)).index(c) for c in text]


def test_tokenizer_errors():
    with pytest.raises(ValueError, match="received an empty one"):
        CharTokenizer("")
    tokenizer = CharTokenizer("abc")
    for text, character, at in (("ab!c", "'!'", 2), ("\x00", r"'\\x00'", 0), ("z", "'z'", 0)):
        with pytest.raises(ValueError, match=f"received {character} at position {at}"):
            tokenizer.encode(text)
    for ids in ([3], [-1]):
        with pytest.raises(ValueError, match="expected ids 0 to 2"):
            tokenizer.decode(ids)
    assert tokenizer.encode("").tolist() == [] and tokenizer.decode([]) == ""
    assert "3 characters" in repr(tokenizer)


@pytest.mark.parametrize(("fraction", "count"), [(0.1, 9), (0, 11), (0.5, 5)])
def test_split_of_a_file(tmp_path, fraction, count):
    (tmp_path / "a.txt").write_text("hello world")
    text = TextFile(tmp_path / "a.txt", val_fraction=fraction)
    assert len(text.train) == count
    assert text.tokenizer.decode([*text.train, *text.val]) == text.text == "hello world"
    assert f"train=int32[{count}]" in repr(text)


def test_file_errors(tmp_path):
    (tmp_path / "empty.txt").touch()
    with pytest.raises(DatasetError, match="received an empty file"):
        TextFile(tmp_path / "empty.txt")
    (tmp_path / "latin.txt").write_bytes("naïve".encode("latin-1"))
    with pytest.raises(DatasetError, match="expected text in utf-8, received byte 0xef at offset 2"):
        TextFile(tmp_path / "latin.txt")
    assert TextFile(tmp_path / "latin.txt", encoding="latin-1").text == "naïve"
    for fraction in (-0.1, 1.0, float("nan")):
        with pytest.raises(ValueError, match="val_fraction in"):
            TextFile(tmp_path / "latin.txt", val_fraction=fraction)
    with pytest.raises(FileNotFoundError):
        TextFile(tmp_path / "gone.txt")


def test_a_tokenizer_of_ones_own(tmp_path):
    (tmp_path / "a.txt").write_text("abab")
    wide = CharTokenizer("xyzab")
    assert TextFile(tmp_path / "a.txt", tokenizer=wide, val_fraction=0).train.tolist() == [0, 1, 0, 1]


@pytest.fixture
def shakespeare(monkeypatch, tmp_path):
    monkeypatch.setenv("NOEIRA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("NOEIRA_TINYSHAKESPEARE_DIR", raising=False)
    return tmp_path / "cache" / "tinyshakespeare"


@pytest.mark.skipif(not (SHARED / "tinyshakespeare.txt").is_file(), reason=f"no tinyshakespeare.txt in {SHARED}")
def test_tiny_shakespeare(shakespeare, monkeypatch):
    monkeypatch.setenv("NOEIRA_TINYSHAKESPEARE_DIR", str(SHARED))
    corpus = TinyShakespeare(download=False)
    assert corpus.tokenizer.vocab_size == 65
    assert (len(corpus.train), len(corpus.val)) == (1_003_854, 111_540)  # nanoGPT's own figures
    assert corpus.text.startswith("First Citizen:\nBefore we proceed any further, hear me speak.")
    assert corpus.tokenizer.decode(corpus.train[:13]) == "First Citizen"


def small_dataset(*urls):
    class Small(TinyShakespeare):
        file = replace(TinyShakespeare.file, nbytes=3, digest="md5:900150983cd24fb0d6963f7d28e17f72", urls=urls)

    return Small


def test_mirrors_in_turn_and_the_cache(shakespeare, server):
    server.body("/long", b"abcd")
    server.body("/wrong", b"abd")
    server.body("/right", b"abc")
    dataset = small_dataset(*(f"{server.url}/{name}" for name in ("long", "wrong", "right")))
    assert dataset(val_fraction=0).text == "abc"
    assert server.asked == ["/long", "/wrong", "/right"]
    assert [path.name for path in shakespeare.iterdir()] == ["input.txt"]
    assert dataset(val_fraction=0).text == "abc" and len(server.asked) == 3

    (shakespeare / "input.txt").write_bytes(b"abx")
    with pytest.warns(UserWarning, match="damaged file, not used: .*expected md5:"):
        assert dataset(val_fraction=0).text == "abc"
    assert (shakespeare / "input.txt").read_bytes() == b"abc"


def test_error_without_a_network(shakespeare):
    with pytest.raises(DatasetError) as caught:
        TinyShakespeare(download=False)
    text = str(caught.value)
    for part in (str(shakespeare), "NOEIRA_TINYSHAKESPEARE_DIR", "input.txt  sha256:86c4e6aa", "download=True"):
        assert part in text


def test_error_when_every_mirror_fails(shakespeare, server):
    with pytest.raises(DatasetError, match=r"mirror 127.0.0.1: .*HTTP status 404"):
        small_dataset(f"{server.url}/gone")()


def test_windows_are_named_by_seed_and_step():
    windows = TokenWindows(np.arange(1000, dtype=np.int32), 8, seed=1)
    x, y = windows.batch(3, 16)
    assert x.shape == (16, 8) and np.array_equal(y, x + 1)
    assert np.array_equal(windows.batch(3, 4)[0], x[:4])
    assert not np.array_equal(windows.batch(4, 16)[0], x)
    assert not np.array_equal(TokenWindows(windows.ids, 8, seed=2).batch(3, 16)[0], x)
    assert len(windows) == 992 and "length=8" in repr(windows)


@pytest.mark.parametrize(("n", "count", "fit"), [(17, 5, 2), (16, 5, 1), (100, 3, 3)])
def test_fixed_windows_lie_end_to_end(n, count, fit):
    x, y = TokenWindows(np.arange(n, dtype=np.int32), 8).in_order(count)
    assert np.array_equal(x, np.arange(8 * fit).reshape(fit, 8)) and np.array_equal(y, x + 1)


def test_a_corpus_that_does_not_fit_is_refused():
    with pytest.raises(ops.ShapeError, match=r"expected a corpus of 9 to 2\^31 - 1 ids for windows of 8, got 8"):
        TokenWindows(np.zeros(8, np.int32), 8)
    with pytest.raises(ops.ShapeError, match="int32"):
        TokenWindows(np.zeros(80), 8)
