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
    """

    net: Callable[[], Module]
    torch_net: Callable[[], Any]
    shape: tuple[int, ...]
    classes: int
    batch_size: int
    lr: float = 1e-3


def data(task: Task) -> Inputs:
    """The training set, and the initial weights under their noeira names."""
    draw = np.random.default_rng(0)
    rows = BATCHES * task.batch_size
    weights = {f"val {name}": np.array(p.val) for name, p in task.net().init(seed=0).named_parameters().items()}
    x = draw.standard_normal((rows, *task.shape), np.float32)
    return {"x": x, "y": draw.integers(0, task.classes, rows).astype(np.int32), **weights}


def weights_of(inputs: Inputs) -> dict[str, np.ndarray]:
    """The initial weights by parameter name."""
    return {name[4:]: array for name, array in inputs.items() if name.startswith("val ")}


def noeira(task: Task, inputs: Inputs, setup: Setup) -> Job:
    """The train-step and optimizer-step programs over the trainer's loop."""
    device, model, loss, optimizer = setup.noeira_device, task.net().init(seed=0), CrossEntropyLoss(), Adam(task.lr)
    for name, param in model.named_parameters().items():
        param.val = inputs[f"val {name}"]
    model.to(device=device)
    model.arena().moments()
    train = ArrayDataset(inputs["x"], inputs["y"])
    loop = Loop(
        model, optimizer, _counters(), compile_programs(model, loss, optimizer, train, device), train, None, device,
        epochs=1, batch_size=task.batch_size, shuffle=False, accumulate=1, short=False,
    )  # fmt: skip
    loop.begin_epoch()

    def run() -> None:
        if loop.batches_done == loop.batches:
            loop.begin_epoch()
        loop.train_batch(loop.batches_done)
        loop.optimizer_step()
        if device.kind != "cpu":
            device.max_device.synchronize()

    def result() -> Results:
        for _ in range(STEPS_COMPARED):
            run()
        return {"losses": loop.record(0, STEPS_COMPARED)[:, control.LOG_LOSS]}

    return Job(run, result)


def compile_programs(model: Module, loss: Any, optimizer: Any, train: ArrayDataset, device: Any) -> dict[str, Any]:
    """The four programs of a `Trainer`: the same recordings, hence the same entry of the program store."""
    spec, dtype = trainer_programs.DataSpec.of(train), model.arena().dtype.name
    graphs = [
        trainer_programs.train_step(model, loss, spec, dtype)[0],
        trainer_programs.optimizer_step(optimizer, dtype),
        trainer_programs.shuffle(),
        trainer_programs.evaluation(model, loss, spec, dtype),
    ]
    return build(graphs, device, f"{type(model).__name__} for training on {device}")


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
        return cross_entropy(net(x), y)

    compute = torch.compile(loss_of) if compiled else loss_of
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


def training_case(name: str, task: Task, *, flops: float, others: Mapping[str, Builder] | None = None) -> Case:
    """A case of family "training".

    Args:
        name: Its name.
        task: What is trained.
        flops: Floating-point operations of a step's matrix products.
        others: Builders of systems besides noeira and PyTorch.
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
        tolerance=TOLERANCE,
        # Adam reads and writes parameters and both moments and reads the gradient, which backward wrote.
        work=Work(flops, 4 * (8 * parameters + task.batch_size * sample)),
    )
