"""What a benchmark case is, and where cases come from.

A case file in `bench/cases/` defines `cases()`, which returns a list of `Case`. A case has inputs, one builder a
system, and the least work any implementation must do. Nothing in a case file may import another system at the top:
builders do, so that a system is needed only where it is asked for.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from noeira.runtime.devices import Device, resolve

Inputs = dict[str, np.ndarray]
Results = dict[str, np.ndarray]


@dataclass(frozen=True)
class Setup:
    """What builders need to know of the run."""

    threads: int
    device: str = "cpu"

    @property
    def noeira_device(self) -> Device:
        """The device as noeira names it."""
        return resolve(self.device)

    def require_cpu(self, system: str) -> None:
        """For builders of systems that run on the CPU only."""
        if self.device != "cpu":
            raise Unsupported(f"{system} runs on the CPU only, not on {self.device!r}")


class Unsupported(RuntimeError):
    """A system that cannot run a case here; the message says why, and the run goes on without it."""


@dataclass(frozen=True)
class Job:
    """One system's way to run one case.

    Args:
        run: One complete unit of work; it has ended when `run` returns.
        result: What the system computes, for the comparison; called once, before any timing.
        empty: The same call with nothing to compute; its time is the cost of the call.
        chain: One call that does the same work `links` times: where the work is shorter than the cost of a call, only
            many of them in one call tell how long it takes. `empty` is then such a chain with nothing to compute.
        links: How often `chain` does it.
        measure: Runs one unit and returns its seconds, for jobs that time themselves (a process they start).
        notes: Remarks for the report, read after the last run.
    """

    run: Callable[[], Any]
    result: Callable[[], Results]
    empty: Callable[[], Any] | None = None
    chain: Callable[[], Any] | None = None
    links: int = 1
    measure: Callable[[], float] | None = None
    notes: Callable[[], dict[str, float | str]] = dict


Builder = Callable[[Inputs, Setup], Job]


@dataclass(frozen=True)
class Work:
    """The least any implementation must do: floating-point operations, and bytes read or written once."""

    flops: float = 0
    bytes: float = 0


@dataclass(frozen=True)
class Case:
    """One benchmark.

    Args:
        name: Unique; what `--case` takes (a shell pattern works too).
        family: Cases reported together.
        inputs: Makes the inputs, the same ones every time.
        builders: Builder of each system. "noeira" is the one the others are compared with.
        expected: The results in float64 arithmetic; without it systems are compared with the first other one.
        tolerance: Largest difference, relative to the largest magnitude in the expected array; for all results,
            or by result name (the key "" holds for the others).
        work: The floor.
        quick: Whether `--quick` runs it.
        runs: Timed runs a system at least; fewer than 25 only where one run starts processes.
    """

    name: str
    family: str
    inputs: Callable[[], Inputs]
    builders: Mapping[str, Builder]
    expected: Callable[[Inputs], Results] | None = None
    tolerance: float | Mapping[str, float] = 1e-5
    work: Work = field(default_factory=Work)
    quick: bool = True
    runs: int = 25


def discover(package: str = "bench.cases") -> list[Case]:
    """All cases of all files, in file order.

    Raises:
        ValueError: Two cases have one name.
    """
    found: list[Case] = []
    folder = importlib.import_module(package)
    for module in pkgutil.iter_modules(folder.__path__):
        found += importlib.import_module(f"{package}.{module.name}").cases()
    names = [case.name for case in found]
    if len(set(names)) != len(names):
        raise ValueError(f"cases with one name: {sorted({name for name in names if names.count(name) > 1})}")
    return found
