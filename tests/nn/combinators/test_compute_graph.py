"""ComputeGraph: random graphs against PyTorch, shared and external nodes, several outputs, parts of a graph."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noeira import nn
from tests.catalogue_combinators import WIDTH, Borrower, by_autograd, diamond, grow
from tests.compare import (
    Case,
    assert_accumulates,
    assert_central_differences,
    assert_dot_product,
    assert_torch,
    reference,
)


@st.composite
def graphs(draw: st.DrawFn) -> nn.ComputeGraph:
    """Graphs of all shapes."""
    return grow(lambda items: draw(st.sampled_from(items)))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(graphs(), st.integers(0, 3), st.integers(0, 2**31))
def test_random_graph_agrees_with_pytorch(graph: nn.ComputeGraph, batch: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    inputs = tuple((0.5 * rng.standard_normal((batch, WIDTH))).astype(np.float32) for _ in graph.inputs)
    case = Case(f"graph {seed}", graph, inputs, by_autograd(graph), step=1e-3)
    assert_torch(case)
    assert_accumulates(case)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(graphs(), st.integers(0, 2**31))
def test_random_graph_agrees_with_differences(graph: nn.ComputeGraph, seed: int) -> None:
    rng = np.random.default_rng(seed)
    inputs = tuple((0.5 * rng.standard_normal((2, WIDTH))).astype(np.float32) for _ in graph.inputs)
    case = Case(f"graph {seed}", graph, inputs, step=1e-3)
    assert_central_differences(case)
    assert_dot_product(case)


def test_a_lost_reader_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: a fan-out whose gradients overwrite each other."""
    case = Case("diamond", diamond(), (np.ones((2, 5), np.float32), np.ones((2, 3), np.float32)))
    assert_dot_product(case)

    def overwrite(grads: dict[int, Any], numbers: Any, grad: Any) -> None:
        if isinstance(numbers, tuple):
            for number, item in zip(numbers, grad, strict=True):
                overwrite(grads, number, item)
        elif numbers is not None:
            grads[numbers] = grad

    monkeypatch.setattr("noeira.nn.core.composition._add", overwrite)
    with pytest.raises(AssertionError, match="diamond"):
        assert_dot_product(case)


def test_shared_and_external_nodes_give_the_gradients_of_the_net_written_by_hand() -> None:
    actor, critic = nn.LinearTanh(3, 2).init(seed=1), nn.Linear(5, 1).init(seed=2)
    for module in (actor, critic):
        module.to(dtype="float64")
    body = nn.LinearTanh(3, 3)
    graph = nn.ComputeGraph(
        nn.InputSlot("s"),
        nn.Node("first", body, "s"),
        nn.Node("second", body, "first"),
        nn.ExternalNode("action", actor, "second"),
        nn.ExternalNode("target", actor, "s"),
        nn.Node("y", nn.Multiply(), "action", "target"),
    )
    assert list(graph.named_parameters()) == ["first.weight", "first.bias"]
    graph.init(seed=3).to(dtype="float64")
    s, dy = np.random.default_rng(0).standard_normal((2, 4, 3)), np.random.default_rng(1).normal(size=(2, 4, 2))
    y, saved = graph.forward(s)
    ds = graph.vjp(saved, dy)
    got = {"body": body.weight.grd.copy(), "actor": actor.weight.grd.copy(), "s": ds}
    graph.zero_grad()
    assert not body.weight.grd.any() and actor.weight.grd.any()  # the actor belongs to somebody else
    actor.zero_grad()

    first, kept_first = body.forward(s)
    second, kept_second = body.forward(first)
    action, kept_action = actor.forward(second)
    target, kept_target = actor.forward(s)
    np.testing.assert_array_equal(y, action * target)
    d_second = actor.vjp(kept_action, dy * target)
    d_s = actor.vjp(kept_target, dy * action) + body.vjp(kept_first, body.vjp(kept_second, d_second))
    want = {"body": body.weight.grd, "actor": actor.weight.grd, "s": d_s}
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-12, err_msg=name)


def test_an_external_module_keeps_its_mode_and_its_memory() -> None:
    dropout = nn.Dropout(0.5)
    graph = nn.ComputeGraph(nn.InputSlot("x"), nn.ExternalNode("y", dropout, "x"))
    graph.eval()
    assert dropout.training and not graph.training
    model = Borrower().init(seed=0)
    assert list(model.named_parameters()) == ["encoder.weight", "encoder.bias", "graph.y.weight", "graph.y.bias"]


def two_headed() -> nn.ComputeGraph:
    return nn.ComputeGraph(
        nn.InputSlot("x", 4),
        nn.InputSlot("z"),
        nn.Node("body", nn.LinearTanh(4, 4), "x"),
        nn.Node("policy", nn.Linear(4, 3), "body"),
        nn.Node("value", nn.Linear(4, 1), "body"),
        nn.Node("other", nn.Linear(2, 2), "z"),
        outputs=("policy", "value", "body"),
    )


def test_several_outputs_and_their_gradients() -> None:
    graph = two_headed().init(seed=0).to(dtype="float64")
    x = np.random.default_rng(0).standard_normal((3, 4))
    (policy, value, body), saved = graph.forward(x)
    assert policy.shape == (3, 3) and value.shape == (3, 1)
    d_policy, d_value, d_body = np.ones((3, 3)), np.full((3, 1), 2.0), np.full((3, 4), 3.0)
    dx, dz = graph.vjp(saved, (d_policy, d_value, d_body))
    assert dz is None
    d_hidden = d_body + d_policy @ graph["policy"].weight.val.T + d_value @ graph["value"].weight.val.T
    want = (d_hidden * (1 - body**2)) @ graph["body"].weight.val.T
    np.testing.assert_allclose(dx, want)
    assert not graph["other"].weight.grd.any()
    alone, _ = graph.vjp(graph.forward(x)[1], (None, d_value, None))
    d_hidden = d_value @ graph["value"].weight.val.T
    np.testing.assert_allclose(alone, (d_hidden * (1 - body**2)) @ graph["body"].weight.val.T)


def test_a_part_of_the_graph_runs_only_what_it_needs() -> None:
    graph, ran = two_headed().init(seed=0), []
    for name, node in graph.nodes.items():
        plain = node.module.forward
        node.module.forward = lambda x, name=name, plain=plain: (ran.append(name), plain(x))[1]
    x, z = np.ones((2, 4), np.float32), np.ones((2, 2), np.float32)
    assert graph(z=z, outputs="other").shape == (2, 2)
    assert ran == ["other"]
    ran.clear()
    body, value = graph(x, outputs=["body", "value"])
    assert ran == ["body", "value"] and body.shape == (2, 4) and value.shape == (2, 1)
    y, saved = graph.forward(x=x, outputs="value")
    assert [array.shape for array in (y, graph.vjp(saved, y)[0])] == [(2, 1), (2, 4)]


def test_inputs_by_name_and_by_position_are_the_same() -> None:
    graph = diamond().init(seed=0)
    x, c = np.ones((2, 5), np.float32), np.full((2, 3), 2, np.float32)
    np.testing.assert_array_equal(graph(x, c), graph(c=c, x=x))
    np.testing.assert_array_equal(graph(x, c), graph(x, c=c.astype(np.float64)))


class Halves(nn.Module):
    """(2 x, 3 x)."""

    def forward(self, x):
        return (2 * x, 3 * x), None

    def vjp(self, saved, grad_output):
        a, b = grad_output
        return 2 * a + 3 * b


def test_a_node_that_gives_a_tuple_and_one_item_that_nobody_reads() -> None:
    parts = (nn.InputSlot("x"), nn.Node("two", Halves(), "x"), nn.Node("y", nn.Tanh(), "two.1"))
    graph = nn.ComputeGraph(*parts)
    x = np.full((1, 2), np.inf)
    _, saved = graph.forward(np.zeros((1, 2)))
    np.testing.assert_array_equal(graph.vjp(saved, np.ones((1, 2))), np.full((1, 2), 3.0))
    _, saved = graph.forward(x)
    np.testing.assert_array_equal(graph.vjp(saved, np.ones((1, 2))), np.zeros((1, 2)))
    both, saved = nn.ComputeGraph(*parts, outputs=("two.0", "two.1", "y")).forward(np.ones((1, 1)))
    assert [float(value[0, 0]) for value in both[:2]] == [2.0, 3.0]


def test_widths_go_through_a_graph() -> None:
    graph = nn.ComputeGraph(nn.InputSlot("x"), nn.Node("a", nn.Linear(4, 6), "x"), nn.Node("b", nn.ReLU(), "a"))
    assert graph.expects() == (-1, 4) and graph.gives(None) == (-1, 6)
    with pytest.raises(nn.CompositionError, match=r"module '1' .* expects 4 .* gives 3"):
        nn.Sequential(nn.Linear(2, 3), graph)
    assert nn.Sequential(nn.Linear(2, 4), graph, nn.Linear(6, 1))(np.ones((1, 2), np.float32)).shape == (1, 1)


def test_the_order_of_declaration_does_not_matter() -> None:
    graph = diamond().init(seed=0)
    assert list(graph.nodes) == ["once", "twice", "gate", "sum", "product", "y"]
    for duplicate in (copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
        x, c = np.ones((2, 5), np.float32), np.ones((2, 3), np.float32)
        np.testing.assert_array_equal(graph(x, c), duplicate(x, c))
    with pytest.raises(KeyError, match=r"no node is called 'gat'.*did you mean 'gate'"):
        graph["gat"]
    assert repr(graph).startswith("ComputeGraph(x, c -> y\n  (once): LinearTanh(5, 5)\n")


def test_gates_see_the_reference_of_a_graph_with_dropout() -> None:
    """Two nodes with one external Dropout draw two masks."""
    dropout = nn.Dropout(0.5)
    graph = nn.ComputeGraph(
        nn.InputSlot("x"), nn.ExternalNode("a", dropout, "x"), nn.ExternalNode("b", dropout, "x"), outputs=("a", "b")
    )
    nn.seed(0)
    a, b = graph(np.ones((8, 32), np.float32))
    assert not np.array_equal(a, b)


def test_reference_of_a_graph_is_repeatable() -> None:
    case = Case("diamond", diamond(), (np.ones((2, 5), np.float32), np.ones((2, 3), np.float32)))
    first, second = reference(case), reference(case)
    assert all(np.array_equal(first[key], second[key]) for key in first)
