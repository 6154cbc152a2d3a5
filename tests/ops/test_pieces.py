"""Cutting, joining and picking: what is refused, and parts of free shapes."""

import numpy as np
import pytest

from noeira import ops
from noeira.runtime.staging import StagedGraph, staging


def test_parts_come_back_together():
    x = np.random.default_rng(0).standard_normal((4, 9, 3))
    for axis, sizes in ((1, (2, 0, 7)), (-2, (9,)), (2, (1, 1, 1)), (0, (3, 1))):
        parts = ops.split(x, sizes, axis)
        assert [part.shape[axis] for part in parts] == list(sizes)
        assert np.array_equal(ops.concat(parts, axis), x)


def test_a_part_is_a_copy():
    x = np.zeros((2, 3))
    ops.slice_axis(x, 0, 3)[...] = 1
    assert not x.any()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: ops.slice_axis(x, 0, 1, 0), r"expected an axis of known size, got axis 0 of \['b', 5\]"),
        (lambda x: ops.pad_axis(x, 1, 1, 0), r"expected an axis of known size"),
        (lambda x: ops.concat([x, x], 0), r"expected an axis of known size"),
        (lambda x: ops.slice_axis(x, 4, 6), r"expected positions 4 to 6 on axis 1, got an array \['b', 5\]"),
        (lambda x: ops.split(x, (2, 2)), r"expected 4 positions on axis -1 to cut up, got an array \['b', 5\]"),
        (lambda x: ops.broadcast_to(x, ("b", 6)), r"do not broadcast"),
        (lambda x: ops.broadcast_to(x, (5,)), r"expected a shape that broadcasts to \[5\], got \['b', 5\]"),
        (lambda x: ops.max_axis(x, 0), r"expected a known, positive size of axis 0 and of those behind it"),
    ],
)
def test_what_a_free_shape_cannot_do_is_said(call, message):
    graph = StagedGraph("g")
    with staging(graph), pytest.raises(ops.ShapeError, match=message):
        call(graph.input("x", ("b", 5), "float32"))


def test_a_maximum_is_the_first_of_equal_ones_and_nan_wins():
    x = np.array([[1.0, 3.0, 3.0], [np.nan, 5.0, 1.0], [-np.inf, -np.inf, -np.inf]])
    y, index = ops.max_axis(x, 1)
    assert np.array_equal(y, [3, np.nan, -np.inf], equal_nan=True)
    dx = ops.max_axis_grad(np.array([1.0, 2.0, 4.0]), index, x.shape, 1)
    assert dx.tolist() == [[0, 1, 0], [2, 0, 0], [4, 0, 0]]


@pytest.mark.parametrize("kind", ["uint8", "int8", "int16", "uint64", ">i4"])
def test_narrow_ids_pick_from_more_positions_than_they_can_name(kind):
    x = np.random.default_rng(0).standard_normal((2, 300))
    ids = np.array([[5, 100], [0, 5]], kind)
    assert np.array_equal(ops.pick_columns(x, ids), np.take_along_axis(x, ids.astype(int), 1))
    dx = ops.pick_columns_grad(np.ones((2, 2)), ids, 300)
    assert [np.flatnonzero(row).tolist() for row in dx] == [[5, 100], [0, 5]]
    dx = ops.pick_grad(np.ones((2, 1)), ids[:, 0], 300)
    assert [np.flatnonzero(row).tolist() for row in dx] == [[5], [0]]


def test_narrow_ids_are_widened_when_recorded():
    graph = StagedGraph("g")
    with staging(graph):
        x, ids = graph.input("x", ("b", 300), "float32"), graph.input("ids", ("b", 1), "uint8")
        y = ops.pick_columns(x, ids)
        graph.finish(y, ops.pick_columns_grad(y, ids, 300))
    positions = [array for array in graph.constants.values() if array.size == 300]
    assert positions and all(array.dtype == np.int64 and array[-1] == 299 for array in positions)
