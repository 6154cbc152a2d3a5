"""The machine: what it is, what it can do at best, and how busy others keep it."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bench.case import Work
from bench.environment import cores
from noeira.runtime.cache import build_atomically, cache_root

SOURCE = Path(__file__).with_name("peaks.mojo")
COPY_SIZES = (64 << 10, 512 << 10, 4 << 20, 256 << 20)
"""Working sets, per core, whose copy rate is measured."""


def cpu_name() -> str:
    """What the CPU calls itself."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return platform.processor() or platform.machine()


def instruction_sets() -> list[str]:
    """The vector and matrix extensions that decide how fast a GEMM can be."""
    wanted = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16")
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(("flags", "Features")):
                return [name for name in wanted if name in line.split()]
    return []


def load_average() -> float | None:
    """Processes that ran or wanted to, over the last minute."""
    with suppress(OSError, AttributeError):
        return round(os.getloadavg()[0], 2)
    return None


@dataclass(frozen=True)
class Peaks:
    """Measured bests of the whole machine.

    Args:
        flops: float32 multiply-adds from registers, in FLOP/s.
        copy: (working set in bytes, bytes read and written a second), smallest set first.
    """

    flops: float
    copy: tuple[tuple[int, float], ...]

    def copy_rate(self, size: float) -> float:
        """Copy rate for a working set of `size` bytes: of the smallest measured set that is no smaller."""
        return next((rate for limit, rate in self.copy if size <= limit), self.copy[-1][1])

    def floor(self, work: Work) -> float | None:
        """Seconds no implementation on these cores can beat; None where a case names no work."""
        if not (work.flops or work.bytes):
            return None
        return max(work.flops / self.flops, work.bytes / self.copy_rate(work.bytes))


def _executable() -> Path:
    from mojo.run import subprocess_run_mojo

    digest = hashlib.sha256(SOURCE.read_bytes() + version("mojo-compiler").encode() + cpu_name().encode())
    path = cache_root() / "bench" / f"peaks-{digest.hexdigest()[:16]}"

    def build(target: Path) -> None:
        subprocess_run_mojo(["build", str(SOURCE), "-o", str(target)], check=True, capture_output=True, text=True)

    if not path.is_file():
        build_atomically(path, build)
    return path


def measure_peaks(threads: int, *, milliseconds: int = 100, attempts: int = 2) -> Peaks | None:
    """Run one measuring process a core, at the same time; the best of some attempts.

    Returns None, with a warning, where the program cannot be built or run.
    """
    try:
        command = [str(_executable()), str(milliseconds), *map(str, COPY_SIZES)]
        found = [_peaks_once(command, threads) for _ in range(attempts)]
    except (ImportError, OSError, ValueError, subprocess.CalledProcessError) as error:
        warnings.warn(f"no floors in this report: cannot measure the machine's peaks: {error}", stacklevel=2)
        return None
    flops, *copies = (max(values) for values in zip(*found, strict=True))
    sizes = [size * threads for size in COPY_SIZES]
    return Peaks(flops * 1e9, tuple((size, rate * 1e9) for size, rate in zip(sizes, copies, strict=True)))


def _peaks_once(command: Sequence[str], threads: int) -> list[float]:
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(threads)]
    outputs = [process.communicate()[0] for process in processes]
    for process in processes:
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command[0])
    return [sum(column) for column in zip(*(map(float, output.split()) for output in outputs), strict=True)]


def package_versions() -> dict[str, str]:
    """Versions of what is compared, where installed."""
    found = {"python": platform.python_version()}
    for package in ("noeira", "max", "mojo-compiler", "numpy", "torch", "jax"):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def describe(threads: int) -> dict[str, object]:
    """Everything a reader of the figures should know of the machine."""
    return {
        "cpu": cpu_name(),
        "instruction_sets": instruction_sets(),
        "cores": cores(),
        "threads": threads,
        "system": f"{platform.system()} {platform.machine()}",
        "date": time.strftime("%Y-%m-%d %H:%M %Z"),
        "versions": package_versions(),
    }
