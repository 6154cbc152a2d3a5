"""Hand-checkable cases of norms, softmax, embeddings and elementwise ops, on the reference and compiled (one set)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from noeira import nn, ops
from noeira.nn.core.binding import bindings
from noeira.ops import control
from noeira.runtime.programs import Program, build
from noeira.runtime.staging import StagedGraph, staging
from tests.compiled import CPU, run, stage

INF, NAN = np.inf, np.nan
SPECIAL = np.array(
    [[0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 1e-30, -1e-30, 1e30, INF, -INF, NAN, 80.0, -80.0, 1e-3, 7.0]], "f"
)
OTHER = np.array([[1.0, 0.0, NAN, -1.0, 2.0, 3.0, 0.5, 2.0, 0.25, 1.0, INF, 2.0, 1.0, 2.0, -1.0, NAN]], "f")

OPS: dict[str, Callable[..., Any]] = {
    "maximum": ops.maximum,
    "minimum": ops.minimum,
    "power": lambda a, b: ops.power(b, 3),
    "negative power": lambda a, b: ops.power(b, -2),
    "no power": lambda a, b: ops.power(b, 0),
    "exp": lambda a, b: ops.exp(a),
    "log": lambda a, b: ops.log(a),
    "sqrt": lambda a, b: ops.sqrt(a),
    "absolute": lambda a, b: ops.absolute(a),
    "sign": lambda a, b: ops.sign(a),
    "greater": lambda a, b: ops.where(ops.greater(a, b), a, b),
    "greater_equal": lambda a, b: ops.where(ops.greater_equal(a, b), a, b),
    "equal": lambda a, b: ops.where(ops.equal(a, b), 1.0, a),
    "less": lambda a, b: ops.where(ops.less(a, b), a, 0.0),
}


def _layers() -> dict[str, nn.Module]:
    batch_norm = nn.BatchNorm1D(1)
    return {
        "layer_norm": nn.LayerNorm(4),
        "layer_norm_eps": nn.LayerNorm(2, eps=3.0),
        "layer_norm_no_affine": nn.LayerNormNoAffine(4),
        "layer_norm_act": nn.LayerNormAct(4, "relu"),
        "rms_norm": nn.RMSNorm(2, eps=3.0),
        "group_norm": nn.GroupNorm(1, 4),
        "batch_norm": batch_norm,
        "batch_norm_4": nn.BatchNorm1D(4),
        "softmax": nn.Softmax(),
        "log_softmax": nn.LogSoftmax(),
        "embedding": nn.Embedding(3, 1),
        "padded": nn.Embedding(3, 1, padding_idx=2),
    }


WIDTHS = {"layer_norm_eps": 2, "rms_norm": 2, "batch_norm": 1, "softmax": 3, "log_softmax": 3}


@cache
def programs() -> dict[str, Program]:
    """All programs of this file."""
    graphs = []
    for name, layer in _layers().items():
        layer.init()
        ids = isinstance(layer, nn.Embedding)
        inputs = [(("b",), "int32")] if ids else [(("b", WIDTHS.get(name, 4)), "float32")]
        graphs.append(stage(name, layer, inputs))  # type: ignore[arg-type]
    graph = StagedGraph("elementwise")
    with staging(graph):
        a, b = graph.input("a", ("b", "n"), "float32"), graph.input("b", ("b", "n"), "float32")
        graph.finish(*(function(a, b) for function in OPS.values()))
    graphs.append(graph)
    graph = StagedGraph("log_sum_exp")
    with staging(graph):
        x, u = graph.input("x", ("b", "n"), "float32"), graph.input("u", ("b",), "float32")
        lse = ops.log_sum_exp(x)
        graph.finish(lse, ops.log_sum_exp_grad(u, x, lse))
    graphs.append(graph)
    return build(graphs, CPU, f"{len(graphs)} corner cases of norms")


PATHS = ("reference", pytest.param("compiled", marks=pytest.mark.compiled))


def both(path: str, name: str, x: Any, u: Any, layer: nn.Module | None = None) -> tuple[np.ndarray, Any, nn.Module]:
    """Output, input gradient (None for ids) and the layer, whose gradients and states are then what they became."""
    layer = layer or _layers()[name].init()
    layer.zero_grad()
    x = np.asarray(x, np.int32 if isinstance(layer, nn.Embedding) else np.float32)
    u = np.asarray(u, np.float32)
    if path == "reference":
        y, saved = layer.forward(x)
        return y, layer.vjp(saved, u), layer
    counters = np.zeros(control.COUNTERS, np.int64)
    y, *dx = run(programs()[name], {**bindings(layer), "x0": x, "u": u, "counters": counters})
    return y, (dx[0] if dx else None), layer


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ["layer_norm", "layer_norm_no_affine", "layer_norm_act", "group_norm"])
@pytest.mark.parametrize("mean", [0.0, 40000.0, -40000.0, 1e6])
def test_a_large_mean_costs_no_accuracy(path: str, name: str, mean: float) -> None:
    x = np.array([[mean, mean + 1, mean + 2, mean + 3]])
    y, dx, _ = both(path, name, x, [[1, 0, 0, 0]])
    want = np.array([[-1.341635, -0.447212, 0.447212, 1.341635]])
    np.testing.assert_allclose(y, np.maximum(want, 0) if name == "layer_norm_act" else want, rtol=2e-6)
    if name != "layer_norm_act":  # there the first output is cut off
        np.testing.assert_allclose(dx, [[0.268329, -0.357770, -0.089441, 0.178883]], rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("mean", [0.0, 40000.0, 1e6])
def test_a_large_mean_of_a_channel_costs_no_accuracy(path: str, mean: float) -> None:
    x = np.array([[0.0], [1], [2], [3]]) + mean + np.zeros((4, 4))
    y, _, _ = both(path, "batch_norm_4", x, np.zeros((4, 4)))
    np.testing.assert_allclose(y[:, 0], [-1.341635, -0.447212, 0.447212, 1.341635], rtol=2e-6)


@pytest.mark.parametrize("path", PATHS)
def test_eps_is_honoured(path: str) -> None:
    y, _, _ = both(path, "layer_norm_eps", [[1, -1]], [[0, 0]])
    np.testing.assert_allclose(y, [[0.5, -0.5]], rtol=1e-6)
    y, _, _ = both(path, "rms_norm", [[1, -1]], [[0, 0]])
    np.testing.assert_allclose(y, [[0.5, -0.5]], rtol=1e-6)


@pytest.mark.parametrize("path", PATHS)
def test_running_statistics_follow_pytorch(path: str) -> None:
    layer = _layers()["batch_norm"].init()
    twin = torch.nn.BatchNorm1d(1)
    assert isinstance(layer, nn.BatchNorm1D) and layer.running_mean and layer.running_var
    y, _, _ = both(path, "batch_norm", [[0], [2]], [[0], [0]], layer)
    twin(torch.tensor([[0.0], [2.0]]))
    np.testing.assert_allclose(y, [[-0.999995], [0.999995]], rtol=1e-6)
    np.testing.assert_allclose([layer.running_mean.val[0], layer.running_var.val[0]], [0.1, 1.1], rtol=1e-6)
    for x in ([[5.0], [7.0], [-3.0]], [[1.0], [1.5]]):
        both(path, "batch_norm", x, np.zeros_like(x), layer)
        twin(torch.tensor(x))
    assert twin.running_mean is not None and twin.running_var is not None
    np.testing.assert_allclose(layer.running_mean.val, twin.running_mean.numpy(), rtol=1e-6)
    np.testing.assert_allclose(layer.running_var.val, twin.running_var.numpy(), rtol=1e-6)


@pytest.mark.parametrize("path", PATHS)
def test_a_batch_that_is_not_finite_leaves_the_running_statistics_of_its_channel(path: str) -> None:
    layer = nn.BatchNorm1D(4).init()
    assert layer.running_mean and layer.running_var
    x = np.array([[0.0, 0, 1, 1e30], [2, NAN, INF, -1e30]])
    y, _, _ = both(path, "batch_norm_4", x, np.zeros_like(x), layer)
    np.testing.assert_allclose(y[:, 0], [-0.999995, 0.999995], rtol=1e-6)
    assert np.isnan(y[:, 1]).all() and np.isnan(y[1, 2])
    np.testing.assert_allclose(layer.running_mean.val, [0.1, 0, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(layer.running_var.val, [1.1, 1, 1, 1], rtol=1e-6)  # 1e60 is more than float32 holds
    both(path, "batch_norm_4", np.array([[0.0] * 4, [2.0] * 4]), np.zeros_like(x), layer)
    np.testing.assert_allclose(layer.running_mean.val, [0.19, 0.1, 0.1, 0.1], rtol=1e-6)
    np.testing.assert_allclose(layer.running_var.val, [1.19, 1.1, 1.1, 1.1], rtol=1e-6)


@pytest.mark.compiled
def test_a_compiled_batch_of_one_is_refused() -> None:
    with pytest.raises(Exception, match="more than one value per channel"):
        both("compiled", "batch_norm", [[1.0]], [[0.0]])


def test_evaluation_and_frozen_layers_leave_the_running_statistics() -> None:
    for layer in (nn.BatchNorm1D(2).eval(), nn.BatchNorm1D(2, frozen=True)):
        layer.init()(np.ones((3, 2), np.float32))
        assert isinstance(layer, nn.BatchNorm1D) and layer.running_mean and layer.running_var
        assert layer.running_mean.val.tolist() == [0, 0] and layer.running_var.val.tolist() == [1, 1]


@pytest.mark.parametrize("path", PATHS)
def test_softmax_of_huge_and_absent_logits(path: str) -> None:
    x = [[1e4, 0, -INF], [-INF, -INF, -INF], [-1e4, -1e4, -1e4], [NAN, 0, 1]]
    u = [[1, 2, 3]] * 4
    y, dx, _ = both(path, "softmax", x, u)
    np.testing.assert_array_equal(y[:2], [[1, 0, 0], [0, 0, 0]])
    np.testing.assert_allclose(y[2], [1 / 3] * 3, rtol=1e-6)
    np.testing.assert_array_equal(dx[:2], np.zeros((2, 3)))
    assert np.isnan(y[3]).all()
    y, dx, _ = both(path, "log_softmax", x, u)
    np.testing.assert_array_equal(y[:2], [[0, -1e4, -INF], [-INF] * 3])
    np.testing.assert_array_equal(dx[:2], [[-5, 2, 3], [0, 0, 0]])
    assert np.isnan(y[3]).all()


@pytest.mark.parametrize("path", PATHS)
def test_log_sum_exp_of_nothing_is_minus_infinity_without_gradient(path: str) -> None:
    x, u = np.array([[-INF, -INF], [1e4, 1e4], [0, -INF]], np.float32), np.array([5, 2, 3], np.float32)
    if path == "reference":
        lse = ops.log_sum_exp(x)
        dx = ops.log_sum_exp_grad(u, x, lse)
    else:
        lse, dx = run(programs()["log_sum_exp"], {"x": x, "u": u})
    np.testing.assert_allclose(lse, [-INF, 1e4 + np.log(2), 0], rtol=1e-6)
    np.testing.assert_allclose(dx, [[0, 0], [1, 1], [3, 0]], rtol=1e-3)


@pytest.mark.parametrize("path", PATHS)
def test_repeated_ids_add_up(path: str) -> None:
    _, _, layer = both(path, "embedding", [2, 2, 0], np.ones((3, 1)))
    assert isinstance(layer, nn.Embedding) and layer.weight.grd is not None
    np.testing.assert_array_equal(layer.weight.grd, [[1], [0], [2]])
    _, _, layer = both(path, "padded", [2, 2, 0], np.ones((3, 1)))
    assert isinstance(layer, nn.Embedding) and layer.weight.grd is not None
    np.testing.assert_array_equal(layer.weight.grd, [[1], [0], [0]])
    assert layer.weight.val[2] == 0


@pytest.mark.compiled
@pytest.mark.parametrize("wrong", [3, -1, 2**31 - 1, -(2**31)])
def test_a_compiled_id_out_of_range_gives_nan_and_no_gradient(wrong: int) -> None:
    y, _, layer = both("compiled", "embedding", [0, wrong, 1], np.ones((3, 1)))
    assert isinstance(layer, nn.Embedding) and layer.weight.grd is not None
    assert np.isnan(y[:, 0]).tolist() == [False, True, False]
    np.testing.assert_array_equal(layer.weight.grd, [[1], [1], [0]])


@pytest.mark.compiled
@pytest.mark.parametrize("name", OPS)
def test_native_ops_agree_with_the_reference_on_special_numbers(name: str) -> None:
    got = run(programs()["elementwise"], {"a": SPECIAL, "b": OTHER})[list(OPS).index(name)]
    with np.errstate(divide="ignore"):
        want = OPS[name](SPECIAL, OTHER)
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=3e-7)


@pytest.mark.parametrize("cls", [nn.StopGrad, lambda: nn.GradGate(0)])
def test_a_stopped_gradient_is_zero_even_where_it_is_not_finite(cls: Callable[[], nn.Module]) -> None:
    layer = cls()
    _, saved = layer.forward(SPECIAL)
    np.testing.assert_array_equal(layer.vjp(saved, SPECIAL), np.zeros_like(SPECIAL))
