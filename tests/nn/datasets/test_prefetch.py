"""Batches read ahead: the trainer's order, errors in the reading thread, an early end, memory maps."""

import threading

import numpy as np
import pytest

from noeira import ops
from noeira.nn.datasets import ArrayDataset, Prefetch
from noeira.ops import control


def make(rows=23):
    return ArrayDataset(np.arange(2 * rows, dtype=np.float32).reshape(rows, 2), np.arange(rows))


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "noeira-prefetch"]


@pytest.fixture(autouse=True)
def no_thread_stays():
    yield
    assert not threads()


@pytest.mark.parametrize("size", [1, 4, 23, 100])
@pytest.mark.parametrize("depth", [1, 5])
def test_every_row_once_in_the_trainers_order(size, depth):
    data = make()
    batches = Prefetch(data, size, seed=3, epoch=2, depth=depth)
    assert len(batches) == -(-23 // size)
    inputs, targets = (np.concatenate(part) for part in zip(*batches, strict=True))
    counters, order = np.zeros(control.COUNTERS, np.int64), np.zeros(23, np.int32)
    counters[[control.SEED, control.EPOCH]] = (3, 2)
    ops.shuffle(order, counters)
    assert np.array_equal(targets, order) and np.array_equal(inputs, data.inputs[order])
    assert list(batches) == []


def test_memory_maps_stay_on_disk_and_batches_are_copies(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(40, dtype=np.uint8).reshape(20, 2))
    inputs = np.load(tmp_path / "x.npy", mmap_mode="r")
    data = ArrayDataset(inputs, np.arange(20))
    assert isinstance(data.inputs, np.memmap)
    for x, y in Prefetch(data, 6, shuffle=False):
        assert type(x) is np.ndarray and x.flags.writeable
        assert np.array_equal(x, inputs[y])


class Failing(np.ndarray):
    """An array whose row 13 cannot be read."""

    def __getitem__(self, key):
        if isinstance(key, np.ndarray) and 13 in key:
            raise OSError("the disk is gone")
        return super().__getitem__(key)


def test_an_error_comes_where_its_batch_would_have():
    data = make()
    object.__setattr__(data, "inputs", data.inputs.view(Failing))
    batches = Prefetch(data, 5, shuffle=False)
    assert [next(batches)[1].tolist() for _ in range(2)] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    with pytest.raises(OSError, match="the disk is gone"):
        next(batches)
    with pytest.raises(StopIteration):
        next(batches)


def test_leaving_early_ends_the_thread():
    with Prefetch(make(), 2, depth=1) as batches:
        next(batches)
        assert threads()
    batches.close()
    with pytest.raises(StopIteration):
        next(batches)


def test_no_more_than_depth_and_two_batches_are_read(monkeypatch):
    read = []

    class Counting(np.ndarray):
        def __getitem__(self, key):
            read.append(key)
            return super().__getitem__(key)

    data = make()
    object.__setattr__(data, "inputs", data.inputs.view(Counting))
    with Prefetch(data, 1, depth=3) as batches:
        next(batches)
        batches._thread.join(0.2)  # it cannot end: no place is free
        assert batches._thread.is_alive() and len(read) <= 5


def test_an_empty_data_set_has_no_batch():
    assert list(Prefetch(make()[:0], 4)) == []


@pytest.mark.parametrize("sizes", [(0, 1), (1, 0), (-1, 1)])
def test_sizes_below_one_are_refused(sizes):
    with pytest.raises(ValueError, match="expected batch_size and depth of at least 1"):
        Prefetch(make(), sizes[0], depth=sizes[1])
