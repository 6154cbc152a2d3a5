"""Compiling a GPT: a fresh process until its first training step, with caches cold, warm and stored, by depth.

The figure to watch is the CPU seconds in the notes: a compile keeps several cores busy.
"""

from __future__ import annotations

import functools

import numpy as np

from bench.case import Case, Inputs, Job, Setup
from bench.cases import gpt
from bench.processes import Caches, FreshProcess
from bench.training import data

RUNS = {"cold": 2, "warm": 2, "stored": 4}
DEPTHS = (1, 6, 12)


def _inputs(depth: int) -> Inputs:
    """One batch of the large model at another depth, and its weights."""
    _, width, heads, sequence, batch = gpt.SIZES["gpt-6x384"]
    inputs = data(gpt.task(depth, width, heads, sequence, batch))
    return inputs | {"x": inputs["x"][:batch], "y": inputs["y"][:batch], "heads": np.array(heads)}


def _noeira(state: str, depth: int, inputs: Inputs, setup: Setup) -> Job:
    setup.require_cpu("the compile case")
    return FreshProcess("noeira", inputs, depth, Caches(state)).job()


def _torch(depth: int, inputs: Inputs, setup: Setup) -> Job:
    setup.require_cpu("the compile case")
    return FreshProcess("torch-compile", inputs, depth).job()


def _case(state: str, depth: int) -> Case:
    # torch.compile keeps a cache of its own on disk, which the first start fills: it is comparable with "warm".
    others = {"torch-compile": functools.partial(_torch, depth)} if state == "warm" else {}
    return Case(
        name=f"compile-{state}-depth-{depth}",
        family="compile",
        inputs=functools.partial(_inputs, depth),
        builders={"noeira": functools.partial(_noeira, state, depth), **others},
        tolerance=1e-4,
        quick=False,
        runs=RUNS[state],
    )


def cases() -> list[Case]:
    """Cold by depth; warm and stored for one depth."""
    return [_case("cold", depth) for depth in DEPTHS] + [_case("warm", 6), _case("stored", 6)]
