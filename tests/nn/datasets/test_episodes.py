"""Windows within episodes, from arrays, Zarr and HDF5 files made here; every malformed file has its error."""

import importlib
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noeira.nn.datasets import DatasetError, EpisodeWindows, LeWMPushT, PushT


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 6))
def test_windows_are_all_those_within_an_episode(sizes, length):
    ends = np.cumsum(sizes)
    steps = np.arange(ends[-1])
    expected = [
        list(range(start, start + length))
        for size, end in zip(sizes, ends.tolist(), strict=True)
        for start in range(end - size, end - length + 1)
    ]
    if not expected:
        with pytest.raises(DatasetError, match=f"expected an episode of at least {length} steps"):
            EpisodeWindows({"step": steps}, ends, length)
        return
    windows = EpisodeWindows({"step": steps}, ends, length)
    assert [windows[i]["step"].tolist() for i in range(len(windows))] == expected
    assert windows.batch(range(len(windows)))["step"].tolist() == expected
    for wrong in (-1, len(expected)):
        with pytest.raises(IndexError, match="expected a window 0 to"):
            windows[wrong]


class Recorder:
    """An array on disk that remembers what was read of it."""

    shape = (100, 2)

    def __init__(self):
        self.read = []

    def __getitem__(self, key):
        self.read.append(key)
        return np.zeros((100, 2))[key]


def test_only_the_windows_steps_are_read():
    array = Recorder()
    windows = EpisodeWindows({"a": array}, [40, 100], 4)
    assert array.read == []
    windows[37]
    assert array.read == [slice(40, 44)]


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ([], "expected episode ends, integers"),
        ([[3]], r"received int64\[1, 1\]"),
        ([3.0], "received float64"),
        ([3, 3, 7], "increase from above 0, received 3 at position 1"),
        ([0, 7], "received 0 at position 0"),
        ([5, 3, 7], "received 3 at position 1"),
        ([3, 8], r"expected 8 steps, where the last episode ends, received shape \[7\]"),
    ],
)
def test_ends_that_do_not_fit(ends, message):
    with pytest.raises(DatasetError, match=message):
        EpisodeWindows({"a": np.zeros(7)}, ends, 2)


def test_lengths_and_empty_batches_are_refused():
    with pytest.raises(ValueError, match="expected a length of at least 1"):
        EpisodeWindows({"a": np.zeros(7)}, [7], 0)
    with pytest.raises(ValueError, match="expected at least one window"):
        EpisodeWindows({"a": np.zeros(7)}, [7], 2).batch([])


def content(steps=11):
    rng = np.random.default_rng(0)
    return {
        "image": rng.integers(0, 256, (steps, 6, 6, 3), np.uint8),
        "state": rng.standard_normal((steps, 5)).astype(np.float32),
        "action": rng.standard_normal((steps, 2)).astype(np.float32),
    }


def write_zarr(path, arrays, ends):
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(str(path), mode="w", zarr_format=2)
    for name, array in {
        "data/img": arrays["image"],
        "data/state": arrays["state"],
        "data/action": arrays["action"],
    }.items():
        group.create_array(name, data=array, chunks=(4, *array.shape[1:]))
    if ends is not None:
        group.create_array("meta/episode_ends", data=np.array(ends, np.int64))


def write_hdf5(path, arrays, **more):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        for name, array in {"pixels": arrays["image"], "state": arrays["state"], "action": arrays["action"]}.items():
            file.create_dataset(name, data=array)
        for name, array in more.items():
            file.create_dataset(name, data=array)


def check(windows, arrays):
    assert len(windows) == 5 and windows.start(1) == 4  # episodes of 4 and 7 steps
    for i, start in enumerate([0, 4, 5, 6, 7]):
        for key, value in windows[i].items():
            assert np.array_equal(value, arrays[key][start : start + 4]) and value.dtype == arrays[key].dtype
    assert windows.batch([4, 0])["image"].shape == (2, 4, 6, 6, 3)


def test_zarr(tmp_path):
    arrays = content()
    write_zarr(tmp_path / "a.zarr", arrays, [4, 11])
    check(PushT(tmp_path / "a.zarr", 4), arrays)
    only = PushT(tmp_path / "a.zarr", 4, names={"act": "data/action"})
    assert list(only[0]) == ["act"] and "2 episodes, 5 windows" in repr(only)
    with pytest.raises(DatasetError, match="expected an array data/keypoint, received only data, meta"):
        PushT(tmp_path / "a.zarr", 4, names={"k": "data/keypoint"})
    with pytest.raises(DatasetError, match="received a group of that name"):
        PushT(tmp_path / "a.zarr", 4, names={"k": "data"})


def test_malformed_zarr(tmp_path):
    write_zarr(tmp_path / "a.zarr", content(), None)
    with pytest.raises(DatasetError, match="expected an array meta/episode_ends"):
        PushT(tmp_path / "a.zarr", 4)
    write_zarr(tmp_path / "b.zarr", content(), [4, 12])
    with pytest.raises(DatasetError, match="expected 12 steps"):
        PushT(tmp_path / "b.zarr", 4)
    (tmp_path / "c.zarr").mkdir()
    with pytest.raises(DatasetError, match="expected a Zarr group"):
        PushT(tmp_path / "c.zarr", 4)
    with pytest.raises(DatasetError, match="nothing at this path"):
        PushT(tmp_path / "d.zarr", 4)


@pytest.mark.parametrize("ends", [{"episode_ends": [4, 11]}, {"ep_len": [4, 7], "ep_offset": [0, 4]}], ids=str)
def test_hdf5(tmp_path, ends):
    arrays = content()
    write_hdf5(tmp_path / "a.h5", arrays, **ends)
    with LeWMPushT(tmp_path / "a.h5", 4) as windows:
        check(windows, arrays)
    with pytest.raises(Exception):  # noqa: B017  (h5py's own, of a closed file)
        windows[0]


def test_malformed_hdf5(tmp_path):
    cases = {
        "expected an array ep_len, received only action, pixels, state": {},
        "episodes end to end": {"ep_len": [4, 7], "ep_offset": [0, 5]},
        "expected an array ep_offset": {"ep_len": [4, 7]},
        "expected 12 steps": {"episode_ends": [4, 12]},
    }
    for message, more in cases.items():
        write_hdf5(tmp_path / "a.h5", content(), **more)
        with pytest.raises(DatasetError, match=message):
            LeWMPushT(tmp_path / "a.h5", 4)
    (tmp_path / "b.h5").write_bytes(b"not HDF5")
    with pytest.raises(DatasetError, match="expected an HDF5 file, received"):
        LeWMPushT(tmp_path / "b.h5", 4)
    with pytest.raises(DatasetError, match="nothing at this path"):
        LeWMPushT(tmp_path / "c.h5", 4)


@pytest.mark.parametrize(("cls", "package"), [(PushT, "zarr"), (LeWMPushT, "h5py")])
def test_a_missing_package_is_named(monkeypatch, tmp_path, cls, package):
    monkeypatch.setitem(sys.modules, package, None)
    importlib.invalidate_caches()
    with pytest.raises(DatasetError, match=rf"expected {package}, which reads it.*noeira\[episodes\]"):
        cls(tmp_path / "a", 4)
