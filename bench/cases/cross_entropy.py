"""Softmax cross-entropy with its gradient: class counts from ten digits to a language model's vocabulary."""

from __future__ import annotations

import functools

import numpy as np

from bench.case import Case, Inputs, Job, Results, Setup, Work
from bench.programs import Operand, ProgramSet, record
from noeira import ops
from noeira.ops.dispatch import Array

SHAPES = {"100x10": (100, 10), "1024x65": (1024, 65), "128x1000": (128, 1000), "256x50257": (256, 50257)}


def _loss_and_gradient(logits: Array, labels: Array) -> tuple[Array, Array]:
    loss, weight, lse = ops.cross_entropy(logits, labels)
    return loss, ops.cross_entropy_grad(logits, labels, lse, weight, np.ones((), np.float32))


PROGRAMS = ProgramSet(
    "cross-entropy benchmarks",
    [
        lambda: record(
            "cross_entropy",
            {"logits": Operand(("rows", "classes")), "labels": Operand(("rows",), "int32")},
            _loss_and_gradient,
        )
    ],
)


def _inputs(rows: int, classes: int) -> Inputs:
    draw = np.random.default_rng(0)
    logits = draw.standard_normal((rows, classes), np.float32) * np.float32(3)
    return {"logits": logits, "labels": draw.integers(0, classes, rows).astype(np.int32)}


def _expected(inputs: Inputs) -> Results:
    loss, weight, lse = ops.cross_entropy(logits := inputs["logits"].astype(np.float64), labels := inputs["labels"])
    return {"loss": loss, "gradient": ops.cross_entropy_grad(logits, labels, lse, weight, np.ones(()))}


def _noeira(inputs: Inputs, setup: Setup) -> Job:
    bound = PROGRAMS.bind("cross_entropy", inputs, setup.noeira_device)
    empty = PROGRAMS.bind("cross_entropy", _inputs(1, 1), setup.noeira_device)
    return Job(bound.run, lambda: dict(zip(("loss", "gradient"), bound.outputs(), strict=True)), empty=empty.run)


def _torch(inputs: Inputs, setup: Setup, *, compiled: bool = False) -> Job:
    import torch
    from torch.nn.functional import cross_entropy

    logits = torch.from_numpy(inputs["logits"].copy()).to(setup.device).requires_grad_()
    labels = torch.from_numpy(inputs["labels"].astype(np.int64)).to(setup.device)
    function = torch.compile(cross_entropy, dynamic=False) if compiled else cross_entropy

    def run() -> tuple[torch.Tensor, torch.Tensor]:
        loss = function(logits, labels)
        (gradient,) = torch.autograd.grad(loss, logits)
        if setup.device != "cpu":
            torch.cuda.synchronize()
        return loss.detach(), gradient

    return Job(run, lambda: {name: t.cpu().numpy() for name, t in zip(("loss", "gradient"), run(), strict=True)})


def _jax(inputs: Inputs, setup: Setup) -> Job:
    setup.require_cpu("JAX")
    import jax

    logits, labels = jax.device_put(inputs["logits"]), jax.device_put(inputs["labels"])

    def loss(z: jax.Array) -> jax.Array:
        rows = jax.numpy.arange(len(labels))
        return -jax.nn.log_softmax(z)[rows, labels].mean()

    both = jax.jit(jax.value_and_grad(loss))
    names = ("loss", "gradient")
    return Job(
        lambda: jax.block_until_ready(both(logits)),
        lambda: {name: np.array(value) for name, value in zip(names, both(logits), strict=True)},
    )


def cases() -> list[Case]:
    """Loss and gradient in one call."""
    return [
        Case(
            name=f"cross-entropy-{name}",
            family="cross-entropy",
            inputs=functools.partial(_inputs, rows, classes),
            builders={
                "noeira": _noeira,
                "torch": _torch,
                "torch-compile": functools.partial(_torch, compiled=True),
                "jax": _jax,
            },
            expected=_expected,
            work=Work(bytes=8 * rows * classes + 4 * rows),
            quick=rows * classes < 1_000_000,
        )
        for name, (rows, classes) in SHAPES.items()
    ]
