"""Devices, and memory on them.

`resolve("auto")` names what a program runs on; `DeviceArray` is a flat or shaped piece of that device's memory.
On the CPU a `DeviceArray` IS a NumPy array (MAX shares its memory), so nothing here imports MAX until a program
needs a buffer.
"""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    from max.driver import Buffer
    from max.driver import Device as MaxDevice

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
ALIGNMENT = 128
"""Bytes: every allocation and every parameter starts on such a boundary (a cache line pair, a GPU transaction)."""

KERNEL_TARGETS = ("cpu",)
"""The device kinds that every kernel in `mojo_kernels/` has code for."""


class DeviceError(ValueError):
    """A device name that is not one, or a device this machine or this version does not have."""


@dataclass(frozen=True)
class Device:
    """A place programs run: `kind` is cpu, cuda or metal, `index` counts the devices of that kind."""

    kind: str
    index: int = 0

    def __str__(self) -> str:
        return self.kind if self.index == 0 else f"{self.kind}:{self.index}"

    @property
    def max_device(self) -> MaxDevice:
        """The MAX driver's handle."""
        from max.driver import CPU, Accelerator

        return CPU() if self.kind == "cpu" else Accelerator(self.index)

    @property
    def target(self) -> str:
        """What code is generated for: part of a compiled program's identity."""
        host = cpu_target()  # programs for an accelerator hold host code too
        return host if self.kind == "cpu" else f"{self} {self.max_device.architecture_name} on {host}"


def resolve(name: str | Device = "auto") -> Device:
    """Turn "auto", "cpu", "cuda", "cuda:1" or "metal" into a `Device` that exists.

    "auto" takes the first accelerator all kernels have code for, else the CPU.

    Raises:
        DeviceError: The name is not a device name, or there is no such device, or no kernels for it.
    """
    if isinstance(name, Device):
        return name
    kind, _, index = name.partition(":")
    if kind not in ("auto", "cpu", "cuda", "metal") or (index and (kind == "auto" or not index.isdecimal())):
        raise DeviceError(f"expected a device 'auto', 'cpu', 'cuda', 'cuda:1' or 'metal', got {name!r}")
    if kind == "auto":
        found = accelerator_kind() if len(KERNEL_TARGETS) > 1 else None
        return Device(found if found in KERNEL_TARGETS else "cpu")
    if kind == "cpu":
        if index not in ("", "0"):
            raise DeviceError(f"expected 'cpu' (there is one CPU device), got {name!r}")
        return Device("cpu")
    if kind not in KERNEL_TARGETS:
        raise DeviceError(
            f"device {name!r}: this version's kernels run on {', '.join(KERNEL_TARGETS)} only; use device='cpu'"
        )
    if accelerator_kind() != kind:
        raise DeviceError(f"device {name!r}: MAX finds {accelerator_kind() or 'no accelerator'} on this machine")
    from max.driver import accelerator_count

    if int(index or 0) >= accelerator_count():
        raise DeviceError(f"device {name!r}: this machine has {accelerator_count()} {kind} device(s)")
    return Device(kind, int(index or 0))


def accelerator_kind() -> str | None:
    """The kind of accelerator MAX finds here ("cuda", "metal", "hip"), or None."""
    from max.driver import accelerator_api, accelerator_count

    return accelerator_api() if accelerator_count() else None


@cache
def cpu_target() -> str:
    """Architecture and instruction sets of this CPU: code compiled here runs on CPUs that say the same."""
    features = ""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith(("flags", "Features")):
                    features = " ".join(sorted(line.partition(":")[2].split()))
                    break
    except OSError:  # macOS has no such file
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        features = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return f"cpu {platform.system()} {platform.machine()} {features}"


def aligned_zeros(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """Zeros whose first byte lies on an `ALIGNMENT` boundary."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


class DeviceArray:
    """Memory on a device: shared with NumPy on the CPU, a MAX buffer elsewhere."""

    __slots__ = ("_buffer", "_host", "device", "dtype", "shape")

    def __init__(
        self, device: Device, host: np.ndarray | None, buffer: Buffer | None, shape: Sequence[int], dtype: Any
    ):
        self.device, self._host, self._buffer = device, host, buffer
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)

    @staticmethod
    def zeros(shape: Sequence[int], dtype: Any, device: Device) -> DeviceArray:
        """A new zero-filled array."""
        return DeviceArray.of(aligned_zeros(shape, dtype), device)

    @staticmethod
    def of(array: np.ndarray, device: Device) -> DeviceArray:
        """Upload `array`; on the CPU a C-contiguous native array is shared, not copied."""
        array = np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")
        if device.kind == "cpu":
            return DeviceArray(device, array, None, array.shape, array.dtype)
        return DeviceArray(device, None, _share(array).to(device.max_device), array.shape, array.dtype)

    @property
    def buffer(self) -> Buffer:
        """The MAX buffer over this memory."""
        if self._buffer is None:
            assert self._host is not None
            if not self._host.flags.writeable:  # a read-only memory map: programs only read such inputs
                self._host = self._host.copy()
            self._buffer = _share(self._host)
        return self._buffer

    def numpy(self) -> np.ndarray:
        """The numbers: a live view on the CPU, a copy from elsewhere (which waits for the device)."""
        return self._host if self._host is not None else to_numpy(self.buffer)

    def write(self, array: np.ndarray) -> None:
        """Overwrite the contents in place, keeping the memory that programs are bound to.

        Raises:
            ValueError: The shape differs.
        """
        if np.shape(array) != self.shape:
            raise ValueError(f"expected an array of shape {self.shape} to write, got {np.shape(array)}")
        if self._host is not None:
            self._host[...] = array
            return
        source = _share(np.ascontiguousarray(array, dtype=self.dtype))
        self.buffer.inplace_copy_from(source.to(self.device.max_device))

    def slice(self, start: int, shape: Sequence[int]) -> DeviceArray:
        """A shaped view of `prod(shape)` elements from flat position `start` on; shares the memory."""
        size = int(np.prod(shape, dtype=np.int64))
        if self._host is not None:
            view = self._host.reshape(-1)[start : start + size].reshape(shape)
            return DeviceArray(self.device, view, None, shape, self.dtype)
        from max.dtype import DType

        flat = self.buffer.view(DType.from_numpy(self.dtype), (int(np.prod(self.shape, dtype=np.int64)),))
        part = flat[start : start + size].view(DType.from_numpy(self.dtype), tuple(shape))
        return DeviceArray(self.device, None, part, shape, self.dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return _copy, (self.numpy(), self.device)

    def __repr__(self) -> str:
        return f"DeviceArray({self.dtype.name}{list(self.shape)} on {self.device})"


def _share(array: np.ndarray) -> Buffer:
    """A MAX buffer over the array's memory. NumPy cannot hand over bfloat16: its bits go as integers."""
    from max.driver import Buffer
    from max.dtype import DType

    if array.dtype == _BFLOAT16:
        return Buffer.from_numpy(array.view(np.uint16)).view(DType.bfloat16, array.shape)
    return Buffer.from_numpy(array)


def to_numpy(buffer: Buffer) -> np.ndarray:
    """The numbers of a MAX buffer, such as a program's result: a view where it lies on the CPU."""
    from max.dtype import DType

    if buffer.dtype == DType.bfloat16:
        return buffer.view(DType.uint16, buffer.shape).to_numpy().view(_BFLOAT16)
    return buffer.to_numpy()


def _copy(array: np.ndarray, device: Device) -> DeviceArray:
    """What copying or unpickling a `DeviceArray` gives: memory of its own."""
    result = DeviceArray.zeros(array.shape, array.dtype, device)
    result.write(array)
    return result
