"""Device names, and memory on devices."""

import numpy as np
import pytest

from noeira.runtime import devices
from noeira.runtime.devices import ALIGNMENT, Device, DeviceArray, DeviceError, aligned_zeros, resolve


@pytest.mark.parametrize("name", ["auto", "cpu", "cpu:0", Device("cpu")])
def test_the_cpu_by_every_name(name):
    assert resolve(name) == Device("cpu")


@pytest.mark.parametrize("name", ["", "gpu", "cuda:x", "cuda:-1", "CPU", "auto:1", "cpu0"])
def test_what_is_not_a_device_name_is_refused(name):
    with pytest.raises(DeviceError, match=r"expected a device 'auto', 'cpu', .* got"):
        resolve(name)


def test_a_second_cpu_is_refused():
    with pytest.raises(DeviceError, match="one CPU device"):
        resolve("cpu:1")


@pytest.mark.parametrize("name", ["cuda", "metal", "cuda:3"])
def test_a_device_without_kernels_is_refused_not_replaced(name, monkeypatch):
    monkeypatch.setattr(devices, "KERNEL_TARGETS", ("cpu",))
    with pytest.raises(DeviceError, match=f"device '{name}': this version's kernels run on cpu only"):
        resolve(name)


def test_a_missing_device_is_refused_not_replaced(monkeypatch):
    monkeypatch.setattr(devices, "KERNEL_TARGETS", ("cpu", "cuda"))
    monkeypatch.setattr(devices, "accelerator_kind", lambda: None)
    with pytest.raises(DeviceError, match="no accelerator on this machine"):
        resolve("cuda")
    assert resolve("auto") == Device("cpu")


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5), (1000,)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8])
def test_aligned_zeros(shape, dtype):
    array = aligned_zeros(shape, dtype)
    assert array.shape == shape
    assert array.dtype == dtype
    assert not array.any()
    assert array.size == 0 or array.ctypes.data % ALIGNMENT == 0


def test_cpu_memory_is_shared_with_numpy():
    source = np.arange(12, dtype=np.float32)
    array = DeviceArray.of(source, Device("cpu"))
    part = array.slice(4, (2, 3))
    part.numpy()[...] = -1
    assert source.tolist() == [0, 1, 2, 3, -1, -1, -1, -1, -1, -1, 10, 11]
    array.write(np.zeros(12))
    assert not source.any()


def test_writing_another_shape_is_refused():
    array = DeviceArray.zeros((2, 3), np.float32, Device("cpu"))
    with pytest.raises(ValueError, match=r"shape \(2, 3\) to write, got \(3, 2\)"):
        array.write(np.zeros((3, 2)))


@pytest.mark.parametrize(
    "source",
    [np.arange(12, dtype=">f4").reshape(3, 4), np.arange(24, dtype=np.float32).reshape(3, 8)[:, ::2]],
    ids=["big-endian", "strided"],
)
def test_foreign_layouts_become_native(source):
    array = DeviceArray.of(source, Device("cpu"))
    assert array.numpy().dtype.isnative
    assert array.numpy().flags.c_contiguous
    np.testing.assert_array_equal(array.numpy(), source)


def test_a_buffer_shares_the_memory():
    array = DeviceArray.zeros((4,), np.float32, Device("cpu"))
    array.numpy()[...] = 7
    assert array.buffer.to_numpy().tolist() == [7, 7, 7, 7]
