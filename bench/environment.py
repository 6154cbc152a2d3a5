"""The process the harness needs: no variables that slow a system down, one thread count for all of them.

Nothing here may import NumPy: OpenBLAS reads its variables when it is loaded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

OVERRIDES = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
"""Variables that make OpenBLAS choose other kernels than this CPU's."""

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def cores() -> int:
    """Cores this process may use: `taskset` narrows every system alike."""
    with suppress(AttributeError):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def clean(environment: Mapping[str, str], threads: int) -> dict[str, str]:
    """The environment to run in."""
    kept = {name: value for name, value in environment.items() if name not in OVERRIDES}
    return kept | {name: str(threads) for name in THREADS}


def restart_if_needed(arguments: Sequence[str]) -> None:
    """Replace this process by one in a clean environment, unless it is."""
    wanted = clean(os.environ, cores())
    if wanted != dict(os.environ):
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, "-m", "bench", *arguments], wanted)
