"""Start-up: a fresh process until its first training step is done, programs in the store (the first start fills it)."""

from __future__ import annotations

import functools

from bench.case import Case, Inputs, Job, Setup
from bench.processes import FreshProcess, perceptron

DEPTH = 2
"""Hidden layers."""


def _job(system: str, inputs: Inputs, setup: Setup) -> Job:
    setup.require_cpu("the start-up case")
    return FreshProcess(system, inputs, DEPTH).job()


def cases() -> list[Case]:
    """One process start a run."""
    return [
        Case(
            name="startup",
            family="startup",
            inputs=functools.partial(perceptron, DEPTH),
            builders={system: functools.partial(_job, system) for system in ("noeira", "torch")},
            tolerance=1e-4,
            runs=6,
        )
    ]
