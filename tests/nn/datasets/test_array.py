import dataclasses

import numpy as np
import pytest

from noeira.nn.datasets import ArrayDataset


def pixels(n=5, **kwargs):
    inputs = np.arange(n * 4, dtype=np.uint8).reshape(n, 1, 2, 2)
    return ArrayDataset(inputs, np.arange(n), input_scale=1 / 255, name="pixels", **kwargs)


def test_fields_and_defaults():
    ds = ArrayDataset(np.zeros((2, 3), np.float32), np.array([0, 1]))
    assert (ds.input_scale, ds.class_names, ds.name, len(ds)) == (1.0, (), "dataset", 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        ds.input_scale = 2.0  # type: ignore[misc]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64])
def test_class_ids_become_int32(dtype):
    assert ArrayDataset(np.zeros((2, 3), np.float32), np.array([0, 1], dtype)).targets.dtype == np.int32


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_probability_rows_become_float32(dtype):
    ds = ArrayDataset(np.zeros((2, 3), np.float32), np.full((2, 4), 0.25, dtype))
    assert ds.targets.dtype == np.float32 and ds.targets.shape == (2, 4)


def test_slice_shares_memory_and_keeps_the_rest():
    ds = pixels(class_names=tuple("abcde"))
    part = ds[1:3]
    assert np.shares_memory(part.inputs, ds.inputs)
    assert part.targets.tolist() == [1, 2]
    assert (part.name, part.class_names, part.input_scale) == (ds.name, ds.class_names, ds.input_scale)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ([3, 0], [3, 0]),
        ([], []),
        (np.array([4, 4], np.uint8), [4, 4]),
        (np.array([-1]), [4]),
        (np.array([True, False, False, True, False]), [0, 3]),
        (slice(None, None, -2), [4, 2, 0]),
    ],
)
def test_index(key, expected):
    part = pixels()[key]
    assert part.targets.tolist() == expected
    np.testing.assert_array_equal(part.inputs, pixels().inputs[expected].reshape(-1, 1, 2, 2))


@pytest.mark.parametrize("key", [0, np.int64(0), (0, 1), "a", None, np.zeros((1, 1), int), np.zeros(2)])
def test_index_of_another_kind(key):
    with pytest.raises(TypeError, match=r"pixels.*expected a slice, .* received .*ds\[i : i \+ 1\]"):
        pixels()[key]


def test_index_out_of_range():
    with pytest.raises(IndexError):
        pixels()[[5]]


def test_arrays_scales_to_float32():
    ds = pixels()
    inputs, targets = ds.arrays()
    assert inputs.dtype == np.float32 and inputs.shape == ds.inputs.shape
    np.testing.assert_array_equal(inputs, ds.inputs.astype(np.float32) * np.float32(1 / 255))
    assert targets is ds.targets
    assert ds.inputs.dtype == np.uint8


def test_arrays_of_unscaled_floats_is_no_copy():
    ds = ArrayDataset(np.ones((2, 3), np.float32), np.zeros(2, np.int32))
    assert ds.arrays()[0] is ds.inputs
    scaled = ArrayDataset(np.ones((2, 3), np.float32), np.zeros(2, np.int32), input_scale=0.5)
    assert scaled.arrays()[0].tolist() == [[0.5] * 3] * 2


def test_memory_maps_are_kept(tmp_path):
    np.arange(12, dtype=np.float32).tofile(tmp_path / "a")
    mapped = np.memmap(tmp_path / "a", np.float32, "r", shape=(4, 3))
    ds = ArrayDataset(mapped, np.zeros(4, int))
    assert ds.inputs is mapped and isinstance(ds[:2].inputs, np.memmap)


def test_repr_shows_sizes():
    assert repr(pixels(class_names=tuple("abcde"))) == (
        "ArrayDataset('pixels', inputs=uint8[5, 1, 2, 2] * 0.00392157, targets=int32[5], 5 classes)"
    )


X, Y = np.zeros((3, 2), np.float32), np.zeros(3, np.int32)


@pytest.mark.parametrize(
    ("inputs", "targets", "kwargs", "error", "match"),
    [
        ([[1.0]], Y, {}, TypeError, "inputs to be a numpy.ndarray, received list"),
        (X, [0, 0, 0], {}, TypeError, "targets to be a numpy.ndarray, received list"),
        (X.astype(np.float64), Y, {}, TypeError, r"float32, uint8 or a wider integer \(ids\), received float64"),
        (X[:, 0], Y, {}, ValueError, r"at least 2 dimensions, received shape \(3,\)"),
        (X, Y[:2], {}, ValueError, r"as many targets as inputs \(3\), received 2"),
        (X, np.array(1), {}, ValueError, r"integer targets \[N\] or \[N, T\], received a single number"),
        (np.full((3, 2), -1), Y, {}, ValueError, r"ids from 0 to 2147483647, received -1 to -1"),
        (np.full((3, 2), 2**31), Y, {}, ValueError, r"ids from 0 to 2147483647, received 2147483648 to 2147483648"),
        (np.zeros((3, 2), int), Y, {"input_scale": 0.5}, ValueError, r"input_scale 1 for ids \(int64\), received 0.5"),
        (X, np.array(1.0), {}, ValueError, r"floating targets \[N, ...\], received shape \(\)"),
        (X, Y / 2, {"class_names": ("a", "b")}, ValueError, r"\[N, 2\] \(probability rows\), received shape \(3,\)"),
        (X, Y.astype(bool), {}, TypeError, "received dtype bool"),
        (X, Y.astype(np.int64) + 2**31, {}, ValueError, r"class ids below 2147483647"),
        (X, Y + 2, {"class_names": ("a", "b")}, ValueError, r"class ids below 2, received ids from 2 to 2"),
        (X, np.zeros((3, 3), np.float32), {"class_names": ("a", "b")}, ValueError, r"\[N, 2\]"),
        (X, Y, {"input_scale": 0.0}, ValueError, "input_scale > 0, received 0.0"),
        (X, Y, {"input_scale": float("nan")}, ValueError, "input_scale > 0, received nan"),
    ],
)
def test_errors_say_expected_and_received(inputs, targets, kwargs, error, match):
    with pytest.raises(error, match=match) as caught:
        ArrayDataset(inputs, targets, name="mine", **kwargs)
    assert str(caught.value).startswith("ArrayDataset 'mine': expected ")
