"""AdamW on ten million parameters: the update alone, and as a training step has it (norm, clip, update, zeroing).

Noeira runs its optimizer program, which looks at the norm for non-finite gradients in either case.
"""

from __future__ import annotations

import functools

import numpy as np

from bench.case import Case, Inputs, Job, Results, Setup, Work
from bench.programs import ProgramSet
from noeira.nn import AdamW
from noeira.nn.training.staging import optimizer_step
from noeira.ops import control

SIZE = 10_000_000
LR, DECAY, CLIP = 1e-3, 0.01, 1.0
STEPS_COMPARED = 3

PROGRAMS = ProgramSet("AdamW benchmarks", [lambda: optimizer_step(AdamW(), "float32")])


def _inputs() -> Inputs:
    draw = np.random.default_rng(0)
    return {name: draw.standard_normal(SIZE, np.float32) for name in ("val", "grd")}


def _memory(inputs: Inputs, optimizer: AdamW, *, clear: bool) -> Inputs:
    size = len(inputs["val"])
    counters = np.zeros(control.COUNTERS, np.int64)
    counters[[control.CURSOR, control.BAD_INDEX]] = (1, -1)
    return {
        **inputs,
        "m": np.zeros(size, np.float32),
        "v": np.zeros(size, np.float32),
        "counters": counters,
        "accumulated": np.ones(1, np.float32),
        "record": np.zeros((1, control.LOG_COLUMNS), np.float32),
        "segments": np.array([[0, size]], np.int64),
        "multipliers": np.ones((1, 2)),
        "hyper": optimizer.hyper(clear=clear),
        "lr_table": np.array([LR]),
    }


def _noeira(clip: bool, inputs: Inputs, setup: Setup) -> Job:
    optimizer = AdamW(LR, weight_decay=DECAY, clip_norm=CLIP if clip else None)
    tiny = {name: array[:1] for name, array in inputs.items()}
    bound, empty = (
        PROGRAMS.bind("optimizer_step", _memory(arrays, optimizer, clear=clip), setup.noeira_device)
        for arrays in (inputs, tiny)
    )
    weight = np.ones(1, np.float32)

    def run() -> None:
        bound.memory["accumulated"].write(weight)  # the step sets it to 0; forward and backward would add to it
        bound.run()

    def result() -> Results:
        for _ in range(STEPS_COMPARED):
            bound.memory["grd"].write(inputs["grd"])
            run()
        return {"parameters": bound.array("val")}

    return Job(run, result, empty=empty.run)


def _torch(clip: bool, inputs: Inputs, setup: Setup, *, fused: bool = False, compiled: bool = False) -> Job:
    import torch

    parameter = torch.nn.Parameter(torch.from_numpy(inputs["val"].copy()).to(setup.device))
    given = torch.from_numpy(inputs["grd"].copy()).to(setup.device)
    gradient = parameter.grad = given.clone()
    optimizer = torch.optim.AdamW([parameter], LR, weight_decay=DECAY, fused=True if fused or compiled else None)
    step = torch.compile(optimizer.step) if compiled else optimizer.step

    def run() -> None:
        if clip:
            torch.nn.utils.clip_grad_norm_([parameter], CLIP)
        step()
        if clip:
            optimizer.zero_grad(set_to_none=False)
        if setup.device != "cpu":
            torch.cuda.synchronize()

    def result() -> Results:
        for _ in range(STEPS_COMPARED):
            gradient.copy_(given)
            run()
        return {"parameters": parameter.detach().cpu().numpy().copy()}

    return Job(run, result)


def cases() -> list[Case]:
    """The update alone, and with clipping and zeroing."""
    found = []
    for name, clip in (("adamw-10M", False), ("adamw-10M-clip", True)):
        builders = {
            "noeira": _noeira,
            "torch": _torch,
            "torch-fused": functools.partial(_torch, fused=True),
            "torch-compile": functools.partial(_torch, compiled=True),
        }
        found.append(
            Case(
                name=name,
                family="optimizer",
                inputs=_inputs,
                builders={key: functools.partial(builder, clip) for key, builder in builders.items()},
                tolerance=1e-6,
                # Read parameter, gradient and moments, write all but the gradient; a clip reads the gradient once
                # more before, and zeroing writes it.
                work=Work(bytes=4 * SIZE * (9 if clip else 7)),
            )
        )
    return found
