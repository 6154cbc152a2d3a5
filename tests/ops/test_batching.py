"""Windows of a corpus: where they lie, and the same on both paths."""

import numpy as np
import pytest

from noeira import ops
from noeira.ops import control
from noeira.runtime.devices import Device
from noeira.runtime.programs import run_once
from noeira.runtime.staging import StagedGraph, staging


def _counters(step: int, seed: int = 0) -> np.ndarray:
    counters = np.zeros(control.COUNTERS, np.int64)
    counters[[control.SEED, control.STEP]] = (seed, step)
    return counters


def test_windows_are_pieces_of_the_corpus_from_evenly_drawn_places() -> None:
    corpus = np.arange(50, dtype=np.int32)
    x, y = ops.windows(corpus, _counters(0), 5000, 8)
    assert x.shape == y.shape == (5000, 8) and np.array_equal(y, x + 1)
    assert np.array_equal(x, x[:, :1] + np.arange(8))
    counts = np.bincount(x[:, 0], minlength=42)
    assert len(counts) == 42, "0 to n - length - 1, both ends included"
    assert abs(counts - 5000 / 42).max() < 5 * np.sqrt(5000 / 42)
    x, y = ops.windows(corpus[:9], _counters(1), 3, 8)
    assert (x == np.arange(8)).all() and (y == np.arange(1, 9)).all()


@pytest.mark.parametrize(
    ("corpus", "sizes", "message"),
    [
        (np.zeros(9, np.int32), (1, 9), r"expected a corpus of 10 to 2\^31 - 1 ids .* got 9"),
        (np.zeros(9, np.int32), (0, 2), "at least one window of one id, got 0 of 2"),
        (np.zeros(9, np.int64), (1, 2), r"int32 \[n\], got int64\[9\]"),
    ],
)
def test_mistakes_are_refused_in_words(corpus: np.ndarray, sizes: tuple[int, int], message: str) -> None:
    with pytest.raises(ops.ShapeError, match=message):
        ops.windows(corpus, _counters(0), *sizes)


@pytest.mark.compiled
def test_compiled_windows_are_the_references() -> None:
    graph = StagedGraph("windows")
    with staging(graph):
        counters = graph.input("counters", (control.COUNTERS,), "int64", mutable=True)
        graph.finish(*ops.windows(graph.input("corpus", ("n",), "int32"), counters, 6, 7))
    for n in (8, 9, 1000, 70_001):
        corpus = np.random.default_rng(n).integers(0, 65, n).astype(np.int32)
        for step in (0, 1, 2**33):
            want = ops.windows(corpus, _counters(step, -3), 6, 7)
            got = run_once(graph, {"corpus": corpus, "counters": _counters(step, -3)}, Device("cpu"))
            assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))
