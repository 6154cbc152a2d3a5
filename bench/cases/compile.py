"""Compiling: a fresh process until its first training step, with caches cold, warm and stored, by depth of the model.

The figure to watch is the CPU seconds in the notes: a compile keeps several cores busy.
"""

from __future__ import annotations

import functools

from bench.case import Case, Inputs, Job, Setup
from bench.processes import Caches, FreshProcess, perceptron

RUNS = {"cold": 2, "warm": 2, "stored": 4}
DEPTHS = (1, 6, 12)


def _noeira(state: str, inputs: Inputs, setup: Setup) -> Job:
    setup.require_cpu("the compile case")
    return FreshProcess("noeira", inputs, Caches(state)).job()


def _torch(inputs: Inputs, setup: Setup) -> Job:
    setup.require_cpu("the compile case")
    return FreshProcess("torch-compile", inputs).job()


def _case(state: str, depth: int) -> Case:
    # torch.compile keeps a cache of its own on disk, which the first start fills: it is comparable with "warm".
    others = {"torch-compile": _torch} if state == "warm" else {}
    return Case(
        name=f"compile-{state}-depth-{depth}",
        family="compile",
        inputs=functools.partial(perceptron, depth),
        builders={"noeira": functools.partial(_noeira, state), **others},
        tolerance=1e-4,
        quick=False,
        runs=RUNS[state],
    )


def cases() -> list[Case]:
    """Cold by depth; warm and stored for one depth."""
    return [_case("cold", depth) for depth in DEPTHS] + [_case("warm", 6), _case("stored", 6)]
