"""The systems that can be compared with noeira: how each is prepared, and whether it is here at all."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from bench.case import Unsupported

OURS = "noeira"


@dataclass(frozen=True)
class System:
    """One system: its package, what it is, and what has to be set before it runs with `threads` threads."""

    package: str
    what: str
    prepare: Callable[[int], None]


def _torch(threads: int) -> None:
    torch = importlib.import_module("torch")
    torch.set_num_threads(threads)


def _numpy(threads: int) -> None:
    control = importlib.import_module("threadpoolctl")
    control.threadpool_limits(limits=threads, user_api="blas")


def _jax(threads: int) -> None:
    importlib.import_module("jax").config.update("jax_platforms", "cpu")  # takes the cores this process may use


def _max(threads: int) -> None:
    importlib.import_module("max.engine")  # takes the cores this process may use


SYSTEMS = {
    OURS: System("max", "compiled programs, as Trainer runs them", _max),
    "torch": System("torch", "PyTorch, eager, defaults", _torch),
    "torch-fused": System("torch", "PyTorch, eager, with the fused optimizer", _torch),
    "torch-compile": System("torch", "PyTorch under torch.compile, with the fused optimizer", _torch),
    "jax": System("jax", "JAX, one jitted function", _jax),
    "numpy": System("numpy", "NumPy on OpenBLAS", _numpy),
}
DEFAULT = ("torch", "torch-fused", "numpy")
"""The systems `--against` names by itself."""


def prepare(name: str, threads: int) -> str:
    """Import a system and set its threads.

    Returns:
        Its version.

    Raises:
        Unsupported: It is not installed.
    """
    system = SYSTEMS[name]
    try:
        system.prepare(threads)
        return version(system.package)
    except (ImportError, PackageNotFoundError) as error:
        raise Unsupported(f"{system.package} is not installed here ({error}); pip install {system.package}") from None
