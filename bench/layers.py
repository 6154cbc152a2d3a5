"""Single layers, forward and backward: noeira's `forward` and `vjp` as one program, against PyTorch's autograd.

Both get the same input, output gradient and parameters; both add into the parameters' gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.case import Case, Inputs, Job, Results, Setup, Work
from bench.programs import Bound
from noeira.nn import Module
from noeira.nn.core.binding import binder, bindings
from noeira.ops import control
from noeira.runtime.devices import Device
from noeira.runtime.programs import Program, build
from noeira.runtime.staging import StagedGraph, staging


@dataclass(frozen=True)
class Layer:
    """A layer to time.

    Args:
        name: Of the case.
        make: The noeira layer.
        torch: Takes (torch, parameters in noeira's order and layout) and gives the same as a function of x.
        shape: Of x.
        flops: Of forward and backward, where products dominate.
        tolerance: See `Case`.
        quick: See `Case`.
    """

    name: str
    make: Callable[[], Module]
    torch: Callable[[Any, list[Any]], Callable[[Any], Any]]
    shape: tuple[int, ...]
    flops: float = 0
    tolerance: float = 1e-4
    quick: bool = False


@dataclass
class LayerSet:
    """Layers of one family, compiled together on first use."""

    family: str
    layers: Sequence[Layer]
    _built: dict[Device, dict[str, Program]] = field(default_factory=dict)

    def cases(self) -> list[Case]:
        """A case for each layer."""
        return [self._case(layer) for layer in self.layers]

    def _case(self, layer: Layer) -> Case:
        builders = {
            "noeira": functools.partial(self._noeira, layer),
            "torch": functools.partial(_torch, layer),
            "torch-compile": functools.partial(_torch, layer, compiled=True),
        }
        x = 4 * int(np.prod(layer.shape))
        return Case(
            name=layer.name,
            family=self.family,
            inputs=functools.partial(_inputs, layer),
            builders=builders,
            tolerance=layer.tolerance,
            work=Work(layer.flops, 4 * x),  # x twice, dx and y or their like
            quick=layer.quick,
        )

    def _noeira(self, layer: Layer, inputs: Inputs, setup: Setup) -> Job:
        device = setup.noeira_device
        if device not in self._built:
            graphs = [_record(other) for other in self.layers]
            self._built[device] = build(graphs, device, f"{self.family} benchmarks")
        module = _module(layer, inputs)
        program = self._built[device][_identifier(layer.name)]
        known = {name: array.numpy() for name, array in bindings(module).items()}
        known |= {"x": inputs["x"], "u": inputs["u"], "counters": np.zeros(control.COUNTERS, np.int64)}
        bound = Bound(program, {name: known[name] for name in program.inputs}, device)

        def result() -> Results:
            outputs = dict(zip(("y", "dx"), bound.outputs(), strict=True))
            grads = {name: bound.array(f"grd {name}") for name in module.named_parameters()}
            return outputs | grads

        return Job(bound.run, result)


def _identifier(name: str) -> str:
    return name.replace("-", "_").replace(".", "_")


def _module(layer: Layer, inputs: Inputs | None = None) -> Module:
    module = layer.make().init(seed=0)
    for name, param in module.named_parameters().items():
        if inputs is not None:
            param.val = inputs[f"val {name}"]
    return module


def _inputs(layer: Layer) -> Inputs:
    draw = np.random.default_rng(0)
    x = draw.standard_normal(layer.shape, np.float32)
    module = layer.make().init(seed=0)
    u = draw.standard_normal(_output_shape(module, layer.shape), np.float32)
    values = {f"val {name}": np.array(param.val) for name, param in module.named_parameters().items()}
    return {"x": x, "u": u, **values}


def _output_shape(module: Module, shape: tuple[int, ...]) -> tuple[int, ...]:
    graph = StagedGraph("shape")
    graph.bind = binder(module)
    with staging(graph):
        return tuple(int(n) for n in module.forward(graph.input("x", shape, "float32"))[0].shape)


def _record(layer: Layer) -> StagedGraph:
    module = _module(layer)
    graph = StagedGraph(_identifier(layer.name))
    graph.bind = binder(module, graph.input("counters", (control.COUNTERS,), "int64", mutable=True))
    with staging(graph):
        y, saved = module.forward(graph.input("x", layer.shape, "float32"))
        dx = module.vjp(saved, graph.input("u", y.shape, "float32"))
    return graph.finish(y, dx)


def _torch(layer: Layer, inputs: Inputs, setup: Setup, *, compiled: bool = False) -> Job:
    import torch

    names = [name for name in inputs if name.startswith("val ")]
    params = [torch.from_numpy(inputs[name].copy()).to(setup.device).requires_grad_() for name in names]
    function = layer.torch(torch, params)
    if compiled:
        function = torch.compile(function, dynamic=False)
    x, u = (torch.from_numpy(inputs[name].copy()).to(setup.device) for name in "xu")
    x.requires_grad_()

    def run() -> Any:
        x.grad = None
        y = function(x)
        y.backward(u)
        if setup.device != "cpu":
            torch.cuda.synchronize()
        return y

    def result() -> Results:
        y = run()
        assert x.grad is not None
        found = {"y": y.detach().cpu().numpy(), "dx": x.grad.cpu().numpy()}
        return found | {
            name[4:]: p.grad.cpu().numpy().copy() for name, p in zip(names, params, strict=True) if p.grad is not None
        }

    return Job(run, result)
