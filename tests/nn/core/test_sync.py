"""Target networks: every parameter and state follows, nothing else moves, and other structures are refused."""

import numpy as np
import pytest

from noeira import nn, ops
from noeira.nn.core.sync import hard_copy_, polyak_
from noeira.runtime.devices import Device
from noeira.runtime.programs import run_once
from noeira.runtime.staging import StagedGraph, staging


def net(seed: int) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1D(4), nn.Linear(4, 2)).init(seed=seed)
    x = np.random.default_rng(seed).standard_normal((5, 3)).astype(np.float32)
    model.vjp(model.forward(x)[1], np.ones((5, 2), np.float32))
    return model


def values(model: nn.Module, kind: str) -> dict[str, np.ndarray]:
    named = model.named_states() if kind == "state" else model.named_parameters()
    return {name: np.array(t.grd if kind == "grd" else t.val) for name, t in named.items()}


def test_a_hard_copy_copies_everything_but_gradients() -> None:
    target, source = net(0), net(1)
    gradients = values(target, "grd")
    hard_copy_(target, source)
    for kind in ("val", "state"):
        for name, value in values(source, kind).items():
            np.testing.assert_array_equal(values(target, kind)[name], value)
    for name, value in gradients.items():
        np.testing.assert_array_equal(values(target, "grd")[name], value)
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(target.eval()(x), source.eval()(x))


@pytest.mark.parametrize("tau", [0.0, 0.005, 0.5, 1.0])
def test_polyak_averages_parameters_and_copies_states(tau: float) -> None:
    target, source = net(0), net(1)
    before = values(target, "val")
    polyak_(target, source, tau)
    for name, value in values(source, "val").items():
        np.testing.assert_allclose(
            values(target, "val")[name], (1 - tau) * before[name] + tau * value, rtol=1e-5, atol=1e-7
        )
    for name, value in values(source, "state").items():
        np.testing.assert_array_equal(values(target, "state")[name], value)


@pytest.mark.parametrize(
    ("source", "match"),
    [
        (lambda: nn.Sequential(nn.Linear(3, 5)), r"'0.weight' \[3, 4\] in the target and \[3, 5\] in the source"),
        (lambda: nn.Sequential(nn.Linear(3, 4, bias=False)), r"no '0.bias' in the source"),
        (lambda: nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1)), r"no '1.weight' in the target"),
    ],
)
def test_another_structure_is_refused_and_nothing_moves(source, match: str) -> None:
    target = nn.Sequential(nn.Linear(3, 4)).init()
    before = values(target, "val")
    with pytest.raises(nn.CompositionError, match=match):
        polyak_(target, source().init(), 0.5)
    for name, value in before.items():
        np.testing.assert_array_equal(values(target, "val")[name], value)


@pytest.mark.parametrize("tau", [-0.1, 1.5, float("nan")])
def test_tau_is_a_share(tau: float) -> None:
    with pytest.raises(ValueError, match="expected tau from 0 to 1"):
        polyak_(net(0), net(1), tau)


@pytest.mark.compiled
def test_compiled_polyak_and_axpy() -> None:
    graph = StagedGraph("polyak")
    with staging(graph):
        memory, value = graph.input("memory", ("n",), "float32", mutable=True), graph.input("value", ("n",), "float32")
        copied = graph.input("copied", ("n",), "float32", mutable=True)
        ops.polyak(memory, value, 0.25)
        ops.polyak(copied, value, 1.0)
        ops.axpy(memory, -2.0, value)
    draw = np.random.default_rng(0)
    start, goal = (draw.standard_normal(1037).astype(np.float32) for _ in range(2))
    arrays = {"memory": start.copy(), "value": goal, "copied": start.copy()}
    run_once(graph.finish(), arrays, Device("cpu"))
    np.testing.assert_allclose(arrays["memory"], 0.75 * start + 0.25 * goal - 2 * goal, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(arrays["copied"], goal)
