"""A process that runs every call of every kernel between guard pages, and prints a digest of each call's results.

python -m tests.mojo_kernels.guarded SOURCES PLACEMENT

Every operand lies so that it ends where a page begins that may not be touched (PLACEMENT "end"), or begins where one
ends ("start"): a read or write outside ends the process, whose last words name the call. The kernels are
those in SOURCES.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import mmap
import sys
from pathlib import Path

import numpy as np

from noeira.runtime import kernel_library, programs
from noeira.runtime.devices import Device, DeviceArray, to_numpy
from tests.mojo_kernels.calls import SIZES, Call, Plan, plans

CPU = Device("cpu")
PAGE = mmap.PAGESIZE
RUNNING = "running"
"""What the process says, with the kernel and the call, before every call."""


class Fence:
    """Memory between two pages that may not be touched."""

    def __init__(self, size: int):
        self._map = mmap.mmap(-1, (-(-size // PAGE) + 2) * PAGE)
        self._window = (ctypes.c_char * len(self._map)).from_buffer(self._map)
        self._address, self._size = ctypes.addressof(self._window), size
        self._protect(0)

    def _protect(self, mode: int) -> None:
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for start in (self._address, self._address + len(self._map) - PAGE):
            if protect(start, PAGE, mode) != 0:
                raise OSError(ctypes.get_errno(), "mprotect")

    def bytes(self, placement: str) -> np.ndarray:
        """The memory, against the page behind it or the one before it."""
        start = len(self._map) - PAGE - self._size if placement == "end" else PAGE
        return np.frombuffer(self._window, np.uint8, self._size, start)

    def open(self) -> None:
        """Lift the protection, so that the memory can be given back."""
        self._protect(mmap.PROT_READ | mmap.PROT_WRITE)


def run(program: programs.Program, plan: Plan, call: Call, placement: str) -> str:
    """Digest of all results and of all memory that the call wrote."""
    draw = np.random.default_rng(0)
    fences: list[Fence] = []
    arrays: dict[str, np.ndarray] = {}
    for i, operand in enumerate(call.operands):
        array = operand.array(draw)
        fences.append(Fence(array.nbytes))
        arrays[f"x{i}"] = fences[-1].bytes(placement).view(array.dtype).reshape(array.shape)
        arrays[f"x{i}"][...] = array
    if plan.derived():
        arrays[SIZES] = np.zeros(plan.sizes(call), np.int8)
    memory = {name: DeviceArray.of(array, CPU) for name, array in arrays.items()}
    for name, array in arrays.items():
        if memory[name].numpy().ctypes.data != array.ctypes.data:
            raise AssertionError(f"{name} was copied out of its fence")
    results = [np.array(to_numpy(result)) for result in program.bind(memory).run()]
    digest = hashlib.sha256()
    for result in results:
        digest.update(result.tobytes())
    for i, operand in enumerate(call.operands):
        if operand.memory:
            digest.update(arrays[f"x{i}"].tobytes())
    for fence in fences:
        fence.open()
    return digest.hexdigest()[:16]


def main(sources: str, placement: str) -> None:
    """Run everything twice; the last line of output is all digests as JSON."""
    kernel_library.kernel_sources = lambda: Path(sources)
    compiled = programs.build([plan.graph() for plan in plans()], CPU, f"all kernels, {len(plans())} programs")
    digests: dict[str, str] = {}
    for plan in plans():
        for i, call in enumerate(plan.calls):
            label = f"{plan.name} {i}: {call.where} {[list(op.shape) for op in call.operands]}"
            print(f"{RUNNING} {call.kernel} {label}", file=sys.stderr, flush=True)
            digests[label] = run(compiled[plan.name], plan, call, placement)
            if run(compiled[plan.name], plan, call, placement) != digests[label]:
                print(f"a second run differs: {label}", flush=True)
                sys.exit(3)
    print(json.dumps(digests), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
