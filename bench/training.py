"""Whole training steps: the programs `Trainer` runs, against the same model in another framework.

Every system gets the same initial weights and the same batches, all resident, and each step zeroes the gradients,
runs forward, loss and backward, and updates. Noeira gathers its batch from the data set inside the step; the others
are handed batches cut beforehand.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.case import Builder, Case, Inputs, Job, Results, Setup, Work
from noeira.nn import Adam, CrossEntropyLoss
from noeira.nn.core.module import Module
from noeira.nn.datasets import ArrayDataset
from noeira.nn.training import staging as trainer_programs
from noeira.nn.training.loop import Loop
from noeira.ops import control
from noeira.runtime.devices import Device
from noeira.runtime.programs import build

STEPS_COMPARED = 20
BATCHES = 20
"""Different batches, taken in turn."""
TOLERANCE = 1e-4
"""Of the losses of the compared steps."""


@dataclass(frozen=True)
class Task:
    """A model and its training.

    Args:
        net: Makes the noeira model.
        torch_net: Makes the same model in PyTorch, parameters in the same order; called after torch was imported.
        shape: Shape of one sample.
        classes: Number of classes.
        batch_size: Rows a step.
        lr: Adam's learning rate.
        tokens: Whether samples are token ids below `classes`, each with the next one as its label.
    """

    net: Callable[[], Module]
    torch_net: Callable[[], Any]
    shape: tuple[int, ...]
    classes: int
    batch_size: int
    lr: float = 1e-3
    tokens: bool = False


def data(task: Task) -> Inputs:
    """The training set, and the initial weights under their noeira names."""
    draw = np.random.default_rng(0)
    rows = BATCHES * task.batch_size
    weights = {f"val {name}": np.array(p.val) for name, p in task.net().init(seed=0).named_parameters().items()}
    if task.tokens:
        ids = draw.integers(0, task.classes, (rows, task.shape[0] + 1)).astype(np.int32)
        return {"x": ids[:, :-1].copy(), "y": ids[:, 1:].copy(), **weights}
    x = draw.standard_normal((rows, *task.shape), np.float32)
    return {"x": x, "y": draw.integers(0, task.classes, rows).astype(np.int32), **weights}


def weights_of(inputs: Inputs) -> dict[str, np.ndarray]:
    """The initial weights by parameter name."""
    return {name[4:]: array for name, array in inputs.items() if name.startswith("val ")}


class NoeiraStep:
    """A training step of noeira, over the trainer's own loop and programs.

    The four recordings are those of a `Trainer`, hence the same entry of the program store.
    """

    def __init__(self, task: Task, inputs: Inputs, device: Device):
        self.device, self.model = device, task.net().init(seed=0)
        loss, optimizer = CrossEntropyLoss(), Adam(task.lr)
        for name, param in self.model.named_parameters().items():
            param.val = inputs[f"val {name}"]
        self.model.to(device=device)
        self.model.arena()
        train = ArrayDataset(inputs["x"], inputs["y"])
        spec, dtype = trainer_programs.DataSpec.of(train), self.model.arena().dtype.name
        self.recordings = [
            trainer_programs.train_step(self.model, loss, spec, dtype)[0],
            trainer_programs.optimizer_step(optimizer, dtype),
        ]
        others = [trainer_programs.shuffle(), trainer_programs.evaluation(self.model, loss, spec, dtype)]
        what = f"{type(self.model).__name__} for training on {device}"
        self.programs = build([*self.recordings, *others], device, what)
        self.loop = Loop(
            self.model, optimizer, _counters(), self.programs, train, batch_size=task.batch_size, shuffle=False
        )
        self.loop.begin_epoch()

    def train(self) -> None:
        """Forward and backward of the next batch."""
        if self.loop.batches_done == self.loop.batches:
            self.loop.begin_epoch()
        self.loop.train_batch(self.loop.batches_done)

    def run(self) -> None:
        """One whole step."""
        self.train()
        self.loop.optimizer_step()
        if self.device.kind != "cpu":
            self.device.max_device.synchronize()

    def losses(self) -> Results:
        """The losses of the first steps."""
        for _ in range(STEPS_COMPARED):
            self.run()
        return {"losses": self.loop.record(0, STEPS_COMPARED)[:, control.LOG_LOSS]}


def noeira(task: Task, inputs: Inputs, setup: Setup) -> Job:
    """The train-step and optimizer-step programs."""
    step = NoeiraStep(task, inputs, setup.noeira_device)
    return Job(step.run, step.losses)


def _counters() -> np.ndarray:
    counters = np.zeros(control.COUNTERS, np.int64)
    counters[control.BAD_INDEX] = -1
    return counters


def load_into_torch(net: Any, weights: Mapping[str, np.ndarray]) -> None:
    """Copy noeira's weights, in order; `nn.Linear` keeps its matrix transposed.

    Raises:
        ValueError: The two models do not have the same parameters in the same order.
    """
    import torch

    transposed = {id(m.weight) for m in net.modules() if isinstance(m, torch.nn.Linear)}
    theirs = dict(net.named_parameters())
    if len(theirs) != len(weights):
        raise ValueError(f"the models have {len(weights)} and {len(theirs)} parameters")
    with torch.no_grad():
        for (name, array), (other, parameter) in zip(weights.items(), theirs.items(), strict=True):
            source = array.T if id(parameter) in transposed else array
            if source.shape != tuple(parameter.shape):
                raise ValueError(f"{name} is {list(source.shape)}, PyTorch's {other} is {list(parameter.shape)}")
            parameter.copy_(torch.from_numpy(source.copy()))


def torch(task: Task, inputs: Inputs, setup: Setup, *, fused: bool = False, compiled: bool = False) -> Job:
    """The usual training step, batches resident."""
    import torch
    from torch.nn.functional import cross_entropy

    net = task.torch_net()
    load_into_torch(net, weights_of(inputs))
    net.to(setup.device)
    optimizer = torch.optim.Adam(net.parameters(), task.lr, fused=True if fused or compiled else None)

    def loss_of(x: Any, y: Any) -> Any:
        return cross_entropy(net(x).flatten(0, -2), y.flatten())

    compute = torch.compile(loss_of, dynamic=False) if compiled else loss_of
    x, y = torch.from_numpy(inputs["x"]).to(setup.device), torch.from_numpy(inputs["y"].astype(np.int64))
    batches = list(zip(x.split(task.batch_size), y.to(setup.device).split(task.batch_size), strict=True))
    done = 0

    def run() -> Any:
        nonlocal done
        x, y = batches[done % len(batches)]
        done += 1
        optimizer.zero_grad()
        loss = compute(x, y)
        loss.backward()
        optimizer.step()
        if setup.device != "cpu":
            torch.cuda.synchronize()
        return loss

    return Job(run, lambda: {"losses": np.array([run().item() for _ in range(STEPS_COMPARED)], np.float32)})


def training_case(
    name: str,
    task: Task,
    *,
    flops: float,
    others: Mapping[str, Builder] | None = None,
    tolerance: float = TOLERANCE,
) -> Case:
    """A case of family "training".

    Args:
        name: Its name.
        task: What is trained.
        flops: Floating-point operations of a step's matrix products.
        others: Builders of systems besides noeira and PyTorch.
        tolerance: Of the losses of the compared steps.
    """
    builders: dict[str, Builder] = {
        "noeira": functools.partial(noeira, task),
        "torch": functools.partial(torch, task),
        "torch-fused": functools.partial(torch, task, fused=True),
        "torch-compile": functools.partial(torch, task, compiled=True),
        **(others or {}),
    }
    parameters = sum(math.prod(p.shape) for p in task.net().named_parameters().values())
    sample = math.prod(task.shape)
    return Case(
        name=name,
        family="training",
        inputs=functools.partial(data, task),
        builders=builders,
        tolerance=tolerance,
        # Adam reads and writes parameters and both moments and reads the gradient, which backward wrote.
        work=Work(flops, 4 * (8 * parameters + task.batch_size * sample)),
    )
