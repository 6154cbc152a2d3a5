"""Confusion matrices by hand, and that pictures appear."""

from pathlib import Path

import numpy as np
import pytest

from noeira import nn


def test_counts_by_hand() -> None:
    targets, called = np.array([0, 0, 1, 2, 2, 2]), np.array([0, 1, 1, 2, 0, 2])
    expected = [[1, 1, 0], [0, 1, 0], [1, 0, 2]]
    assert nn.confusion_matrix(targets, called, 3).tolist() == expected
    assert nn.confusion_matrix(targets, np.eye(3)[called], 3).tolist() == expected
    assert nn.confusion_matrix(np.zeros(0, int), np.zeros(0, int), 2).tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize(
    ("targets", "called", "match"),
    [
        ([0, 1], [0], "expected targets"),
        ([0, 3], [0, 1], r"expected targets 0..2, got 0..3"),
        ([0, 1], [0, -1], r"expected predictions 0..2, got -1..0"),
    ],
)
def test_what_does_not_fit_is_refused(targets: list[int], called: list[int], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        nn.confusion_matrix(np.array(targets), np.array(called), 3)


def test_a_confusion_matrix_is_drawn(tmp_path: Path) -> None:
    assert nn.draw_confusion(np.array([[3, 1], [0, 0]]), ["cat", "dog"], tmp_path / "confusion.png")
    assert (tmp_path / "confusion.png").read_bytes().startswith(b"\x89PNG")
