"""Matrix products of real layers: forward y = x W, input gradient dx = dz W^T, weight gradient dW += x^T dz.

Noeira runs them as the compiled ops behind `Linear`, a program call each. The cost of such a call, some 30 µs that a
training step pays once or twice and not once a layer, is measured with the same program on 1 x 1 x 1. Small products
are also run many in one program, as a step runs them, and that is compared with as many of 1 x 1 x 1: the net figure.
"""

from __future__ import annotations

import functools
from typing import Any

import ml_dtypes
import numpy as np

from bench.case import Case, Inputs, Job, Results, Setup, Work
from bench.programs import Bound, Operand, ProgramSet, record
from noeira import ops
from noeira.runtime.staging import Staged, StagedGraph

LAYERS = {
    "mlp-1": (100, 784, 256), "mlp-2": (100, 256, 128), "mlp-3": (100, 128, 10),
    "gpt-2x64-qkv": (1024, 64, 192), "gpt-2x64-up": (1024, 64, 256), "gpt-2x64-down": (1024, 256, 64),
    "gpt-6x384-qkv": (1024, 384, 1152), "gpt-6x384-out": (1024, 384, 384), "gpt-6x384-up": (1024, 384, 1536),
    "gpt-6x384-down": (1024, 1536, 384), "gpt-6x384-head": (1024, 384, 65), "vit-tiny-qkv": (520, 192, 576),
    "gpt2-up-batch-1": (1, 768, 3072), "regression-head": (256, 512, 1), "scalar-input": (512, 1, 512),
    "small": (32, 64, 64), "odd": (127, 251, 61), "large": (4096, 384, 1536), "square-2048": (2048, 2048, 2048),
}  # fmt: skip
"""Rows (batch times positions), in_features, out_features."""

QUICK = ("mlp-1", "mlp-3", "gpt-2x64-up", "gpt-6x384-up", "small")

X, W, DZ = Operand(("rows", "in")), Operand(("in", "out")), Operand(("rows", "out"))
DW = Operand(("in", "out"), memory=True)

LINKS = 16
"""Products in a chain."""
CHAINED_TO = 30_000_000
"""FLOPs up to which a product is also run in a chain: some 150 microseconds."""
CHAINED_BYTES = 10 << 20
"""Bytes of the links' own operands and results up to which a chain runs from the caches a single product runs from."""

PASSES: dict[str, tuple[dict[str, Operand], str, Any]] = {
    "forward": ({"x": X}, "w", lambda x, w: ops.linear(x, w)),
    "input-grad": ({"dz": DZ}, "w", lambda dz, w: ops.linear_input_grad(dz, w)),
    "weight-grad": ({"x": X, "dz": DZ}, "dw", lambda x, dz, dw: ops.linear_param_grad(dw, None, x, dz)),
}
"""Operands that the links of a chain share, the one that each has for itself, and the op."""


def _recording(pass_: str, links: int) -> StagedGraph:
    shared, own, op = PASSES[pass_]
    operands = shared | {f"{own}{i}": DW if own == "dw" else W for i in range(links)}

    def body(**values: Staged) -> list[Staged] | None:
        results = [op(*(values[name] for name in shared), values[f"{own}{i}"]) for i in range(links)]
        return None if own == "dw" else results

    return record(_program(pass_, links), operands, body)


def _program(pass_: str, links: int) -> str:
    return f"{pass_.replace('-', '_')}_{links}"


def _operands(pass_: str, inputs: Inputs, links: int) -> Inputs:
    own = PASSES[pass_][1]
    return inputs | {f"{own}{i}": inputs[own] for i in range(links)}


PROGRAMS = ProgramSet(
    "GEMM benchmarks",
    [functools.partial(_recording, pass_, links) for pass_ in PASSES for links in (1, LINKS)],
)

FACTORS = {"forward": ("x", "w"), "input-grad": ("dz", "wt"), "weight-grad": ("xt", "dz")}
"""What is multiplied, "t" marking the transposed one."""


def _factors(pass_: str, arrays: dict) -> list:
    return [arrays[name[0]].T if name.endswith("t") else arrays[name] for name in FACTORS[pass_]]


def _inputs(rows: int, inner: int, outer: int) -> Inputs:
    draw = np.random.default_rng(0)
    shapes = {"x": (rows, inner), "w": (inner, outer), "dz": (rows, outer)}
    arrays = {name: draw.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    return arrays | {"dw": np.zeros((inner, outer), np.float32)}


def _expected(pass_: str, inputs: Inputs) -> Results:
    a, b = _factors(pass_, {name: array.astype(np.float64) for name, array in inputs.items()})
    return {"product": a @ b}


def _noeira(pass_: str, inputs: Inputs, setup: Setup) -> Job:
    def bind(inputs: Inputs, links: int) -> Bound:
        return PROGRAMS.bind(_program(pass_, links), _operands(pass_, inputs, links), setup.noeira_device)

    bound = bind(inputs, 1)
    (rows, inner), outer = inputs["x"].shape, inputs["dz"].shape[1]

    def result() -> Results:
        outputs = bound.outputs()
        return {"product": outputs[0] if outputs else bound.array("dw0")}

    own = {"forward": inner * outer + rows * outer, "input-grad": inner * outer + rows * inner}
    own_bytes = 4 * LINKS * own.get(pass_, inner * outer)
    if 2 * rows * inner * outer > CHAINED_TO or own_bytes > CHAINED_BYTES:
        return Job(bound.run, result, empty=bind(_inputs(1, 1, 1), 1).run)
    chain, empty = bind(inputs, LINKS), bind(_inputs(1, 1, 1), LINKS)
    return Job(bound.run, result, empty=empty.run, chain=chain.run, links=LINKS)


def _numpy(pass_: str, inputs: Inputs, setup: Setup) -> Job:
    """Without the addition of a weight gradient, which NumPy would need a second pass for."""
    setup.require_cpu("NumPy")
    a, b = _factors(pass_, inputs)
    out = np.zeros((a.shape[0], b.shape[1]), np.float32)

    def run() -> None:
        np.matmul(a, b, out=out)

    def result() -> Results:
        run()
        return {"product": out.copy()}

    return Job(run, result)


def _torch(pass_: str, inputs: Inputs, setup: Setup) -> Job:
    import torch

    tensors = {name: torch.from_numpy(array.copy()).to(setup.device) for name, array in inputs.items()}
    a, b = _factors(pass_, tensors)
    out = torch.zeros(a.shape[0], b.shape[1], device=setup.device)
    multiply = out.addmm_ if pass_ == "weight-grad" else functools.partial(torch.mm, out=out)

    def run() -> None:
        multiply(a, b)
        if setup.device != "cpu":
            torch.cuda.synchronize()

    def result() -> Results:
        run()
        return {"product": out.cpu().numpy().copy()}

    return Job(run, result)


def _jax(pass_: str, inputs: Inputs, setup: Setup) -> Job:
    setup.require_cpu("JAX")
    import jax

    a, b = (jax.device_put(np.ascontiguousarray(factor)) for factor in _factors(pass_, inputs))
    multiply = jax.jit(lambda a, b: a @ b)
    return Job(lambda: multiply(a, b).block_until_ready(), lambda: {"product": np.array(multiply(a, b))})


def _case(layer: str, pass_: str) -> Case:
    rows, inner, outer = LAYERS[layer]
    elements = rows * inner + inner * outer + rows * outer + (inner * outer if pass_ == "weight-grad" else 0)
    builders = {"noeira": _noeira, "torch": _torch, "numpy": _numpy, "jax": _jax}
    return Case(
        name=f"gemm-{layer}-{pass_}",
        family="gemm",
        inputs=functools.partial(_inputs, rows, inner, outer),
        builders={name: functools.partial(builder, pass_) for name, builder in builders.items()},
        expected=functools.partial(_expected, pass_),
        work=Work(2 * rows * inner * outer, 4 * elements),
        quick=layer in QUICK or (layer, pass_) == ("square-2048", "forward"),
    )


HALF = ProgramSet(
    "bfloat16 GEMM benchmarks",
    [
        lambda: record(
            "forward",
            {"x": Operand(("rows", "in"), "bfloat16"), "w": Operand(("in", "out"), "bfloat16")},
            lambda x, w: ops.linear(x, w),
        )
    ],
)


def _rounded(inputs: Inputs) -> Inputs:
    return {name: inputs[name].astype(ml_dtypes.bfloat16) for name in ("x", "w")}


def _half_noeira(inputs: Inputs, setup: Setup) -> Job:
    bound = HALF.bind("forward", _rounded(inputs), setup.noeira_device)
    empty = HALF.bind("forward", _rounded(_inputs(1, 1, 1)), setup.noeira_device)
    return Job(bound.run, lambda: {"product": bound.outputs()[0].astype(np.float32)}, empty=empty.run)


def _half_torch(inputs: Inputs, setup: Setup) -> Job:
    import torch

    x, w = (torch.from_numpy(inputs[name]).to(setup.device).bfloat16() for name in "xw")
    out = torch.zeros(x.shape[0], w.shape[1], device=setup.device, dtype=torch.bfloat16)

    def run() -> None:
        torch.mm(x, w, out=out)
        if setup.device != "cpu":
            torch.cuda.synchronize()

    def result() -> Results:
        run()
        return {"product": out.float().cpu().numpy()}

    return Job(run, result)


def _half_expected(inputs: Inputs) -> Results:
    x, w = (array.astype(np.float64) for array in _rounded(inputs).values())
    return {"product": x @ w}


def _half_case(layer: str) -> Case:
    """The forward product in bfloat16; its floor is the peak of float32, which units for bfloat16 may beat."""
    rows, inner, outer = LAYERS[layer]
    return Case(
        name=f"gemm-{layer}-forward-bf16",
        family="gemm bfloat16",
        inputs=functools.partial(_inputs, rows, inner, outer),
        builders={"noeira": _half_noeira, "torch": _half_torch},
        expected=_half_expected,
        tolerance=1e-2,
        work=Work(2 * rows * inner * outer, 2 * (rows * inner + inner * outer + rows * outer)),
        quick=False,
    )


def cases() -> list[Case]:
    """Every layer in its three passes, and some forward products in bfloat16."""
    half = [_half_case(layer) for layer in ("gpt-6x384-up", "large", "square-2048")]
    return [_case(layer, pass_) for layer in LAYERS for pass_ in FACTORS] + half
