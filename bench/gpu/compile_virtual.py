"""Compiles recordings for an NVIDIA GPU that need not exist: `python -m bench.gpu.compile_virtual ARCH [OP]`.

A process of its own, because a virtual device can only be set before any device was looked for. Without OP it
compiles the probe, with OP the recording that claims it. Prints the names of the GPU kernels found in the program.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from noeira.runtime.staging import Staged, StagedGraph

PROBE = Path(__file__).parent / "kernels" / "probe"
API = "cuda"


def gpu_kernels(program: bytes) -> list[str]:
    """Names of the GPU kernels in a compiled program: every one has an information section in its binary."""
    return sorted({name.decode() for name in re.findall(rb"\.nv\.info\.([\w$.]+)", program)})


def main(arguments: Sequence[str]) -> int:
    """Compile and print; 1 if the program holds no GPU kernel at all."""
    arch, *names = arguments
    from max import driver

    driver.set_virtual_device_api(API)
    driver.set_virtual_device_target_arch(arch)
    driver.set_virtual_device_count(1)

    from noeira.runtime import programs
    from noeira.runtime.devices import Device
    from noeira.runtime.kernel_library import kernel_library

    if names:
        from bench.gpu.claims import NVIDIA

        graphs, library = [NVIDIA[name]() for name in names], kernel_library()
    else:
        graphs, library = [_probe()], _probe_library()
    found = gpu_kernels(programs._export(programs._compile(graphs, Device(API), library)))
    print("\n".join(found))
    return 0 if found else 1


def _probe() -> StagedGraph:
    from bench.programs import Operand, record

    def body(x: Staged) -> Staged:
        return x.graph.emit("bench.scale", [x], [x.spec])[0]

    return record("probe", {"x": Operand(("n",))}, body)


def _probe_library() -> Path:
    from mojo.run import subprocess_run_mojo

    path = Path(tempfile.mkdtemp(prefix="noeira-probe-")) / "bench_probe.mojoc"
    subprocess_run_mojo(["precompile", str(PROBE), "-o", str(path)], check=True)
    return path


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # MAX's threads now and then abort the process while a virtual device is taken down
