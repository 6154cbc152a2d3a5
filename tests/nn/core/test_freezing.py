"""What is staged for a frozen parameter: nothing. An op without a reader is not emitted either."""

from collections.abc import Callable

import numpy as np
import pytest

from noeira import nn
from noeira.runtime.staging import StagedGraph
from tests.compare import Case, reference
from tests.compiled import stage

GRADIENT_OPS = {"noeira.linear_param_grad", "noeira.linear_weight_grad", "noeira.sum_rows"}


def staged(net: nn.Module) -> StagedGraph:
    return stage("frozen", net, [(("b", 5), "float32")])


def names(graph: StagedGraph) -> list[str]:
    return [op.name for op in graph.ops]


def test_no_gradient_op_is_staged_for_a_frozen_subtree() -> None:
    net = nn.Sequential(nn.LinearReLU(5, 4), nn.Linear(4, 4, bias=False), nn.Linear(4, 3)).init()
    assert sum(name in GRADIENT_OPS for name in names(staged(net))) == 3
    net[1].freeze()
    graph = staged(net)
    assert sum(name in GRADIENT_OPS for name in names(graph)) == 2
    assert not any(value.name == "grd 1.weight" for value in graph.inputs)
    net.freeze()
    graph = staged(net)
    assert not GRADIENT_OPS & set(names(graph))
    assert not any(value.name.startswith("grd") for value in graph.inputs)
    assert names(graph).count("noeira.linear_input_grad") == 3  # input gradients still flow
    net.unfreeze()
    assert sum(name in GRADIENT_OPS for name in names(staged(net))) == 3


@pytest.mark.parametrize(
    ("frozen", "ops"),
    [
        ("weight", ["noeira.sum_rows"]),
        ("bias", ["noeira.linear_weight_grad"]),
        ("", ["noeira.linear_param_grad"]),
    ],
)
def test_a_single_frozen_parameter(frozen: str, ops: list[str]) -> None:
    layer = nn.Linear(5, 3).init()
    if frozen:
        getattr(layer, frozen).trainable = False
    assert [name for name in names(staged(layer)) if name in GRADIENT_OPS] == ops


@pytest.mark.parametrize("freeze", [lambda net: net[0], lambda net: net[1], lambda net: net])
def test_freezing_changes_no_other_gradient(freeze: Callable[[nn.Sequential], nn.Module]) -> None:
    def net() -> nn.Sequential:
        return nn.Sequential(nn.LinearTanh(5, 4), nn.Linear(4, 3))

    x = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
    want, frozen = reference(Case("chain", net(), (x,))), Case("chain", net(), (x,))
    freeze(frozen.subject).freeze()  # type: ignore[arg-type]
    y, saved = frozen.forward(frozen.inputs_as("float32"))
    dx = frozen.subject.vjp(saved, frozen.upstream(y.shape, "float32"))
    np.testing.assert_allclose(dx, want["dx0"], rtol=1e-4, atol=1e-6)
    for name, param in frozen.params.items():
        if param.trainable:
            np.testing.assert_allclose(param.grd, want[name], rtol=1e-4, atol=1e-6)
        else:
            assert param.grd is None and not param.memory["grd"].numpy().any()


def test_the_first_layers_input_gradient_is_not_computed_when_nobody_reads_it() -> None:
    net = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)).init()
    graph = staged(net)
    assert names(graph).count("noeira.linear_input_grad") == 2
    graph.finish(graph.outputs[0])
    assert names(graph).count("noeira.linear_input_grad") == 1


def test_a_pre_activation_nobody_reads_is_not_stored() -> None:
    net = nn.LinearGELU(5, 3).init()
    graph = staged(net)
    assert "noeira.linear_pre" in names(graph)
    net.freeze()
    graph = staged(net)
    graph.finish(graph.outputs[0])  # the output alone
    assert names(graph) == ["noeira.linear"]


@pytest.mark.parametrize("frozen", ["weight", "bias"])
@pytest.mark.parametrize("activation", ["relu", "tanh", "gelu"])
def test_half_a_fused_batch_norm(activation: str, frozen: str) -> None:
    x = np.random.default_rng(0).standard_normal((4, 3, 2, 5)).astype(np.float32)
    whole, half = (Case("norm", nn.BatchNorm2DAct(3, activation), (x,)) for _ in range(2))
    want = reference(whole)
    half.subject.named_parameters()[frozen].trainable = False  # type: ignore[union-attr]
    half.convert("float64")
    y, saved = half.forward(half.inputs_as("float64"))
    dx = half.subject.vjp(saved, half.upstream(y.shape, "float64"))
    np.testing.assert_allclose(dx, want["dx0"], rtol=1e-9, atol=1e-12)
    for name, param in half.params.items():
        if name != frozen:
            np.testing.assert_allclose(param.grd, want[name], rtol=1e-9, atol=1e-12)
