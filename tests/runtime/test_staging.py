"""Recording: what is emitted, what is dropped, and what a staged value refuses."""

import numpy as np
import pytest

from noeira import ops
from noeira.nn import Dropout, Linear, LinearGELU, LinearReLU, Sequential
from noeira.nn.core.summary import trace
from noeira.runtime.staging import Spec, StagedGraph, StagingError, active, staging


def small_graph(name="g", width=4, dtype="float32"):
    graph = StagedGraph(name)
    with staging(graph):
        x = graph.input("x", ("b", width), dtype)
        y = ops.add(ops.multiply(x, x), x)
    return graph.finish(y)


def names(graph):
    return [op.name for op in graph.ops]


def test_text_is_the_identity_of_a_program():
    assert small_graph().text() == small_graph().text()
    assert small_graph(width=5).text() != small_graph().text()
    assert small_graph(dtype="float64").text() != small_graph().text()
    assert small_graph(name="h").text() != small_graph().text()


def test_constants_are_part_of_the_text():
    def with_constant(values):
        graph = StagedGraph("g")
        x = graph.input("x", (3,), "float32")
        return graph.finish(ops.add(x, np.array(values, np.float32))).text()

    assert with_constant([1, 2, 3]) == with_constant([1, 2, 3])
    assert with_constant([1, 2, 3]) != with_constant([1, 2, 4])


def test_attributes_and_operand_order_are_part_of_the_text():
    def text(build):
        graph = StagedGraph("g")
        a, b = graph.input("a", (3,), "float32"), graph.input("b", (3,), "float32")
        return graph.finish(build(a, b)).text()

    variants = [
        lambda a, b: a - b,
        lambda a, b: b - a,
        lambda a, b: ops.activation(a + b, "relu"),
        lambda a, b: ops.activation(a + b, "tanh"),
    ]
    assert len({text(build) for build in variants}) == len(variants)


def test_unneeded_ops_and_inputs_are_dropped():
    graph = StagedGraph("g")
    x, unused = graph.input("x", (2, 4), "float32"), graph.input("unused", (4, 4), "float32")
    ops.linear(x, unused)
    graph.finish(ops.negative(x))
    assert names(graph) == ["negative"]
    assert [value.name for value in graph.inputs] == ["x"]


def test_an_op_that_writes_memory_is_kept():
    graph = StagedGraph("g")
    x = graph.input("x", (2, 4), "float32")
    dw = graph.input("dw", (4, 3), "float32", mutable=True)
    ops.linear_param_grad(dw, None, x, graph.input("dy", (2, 3), "float32"))
    graph.finish()
    assert names(graph) == ["noeira.linear_weight_grad"]


def test_the_first_layers_input_gradient_is_not_computed():
    graph, _ = trace(Sequential(LinearReLU(4, 8), Linear(8, 2)), (3, 4))
    net = Sequential(LinearReLU(4, 8), Linear(8, 2))

    def bind(graph, owner, role):
        return graph.input(f"{role} {len(graph.inputs)}", owner.shape, "float32", mutable=role == "grd")

    graph = StagedGraph("step", bind)
    with staging(graph):
        y, saved = net.forward(graph.input("x", (3, 4), "float32"))
        net.vjp(saved, y)
    graph.finish()
    assert names(graph).count("noeira.linear_input_grad") == 1
    assert names(graph).count("noeira.linear_param_grad") == 2


def test_frozen_parameters_have_no_gradient_op():
    net = Sequential(LinearReLU(4, 8), Linear(8, 2))
    net[0].freeze()

    def bind(graph, owner, role):
        return graph.input(f"{role} {len(graph.inputs)}", owner.shape, "float32", mutable=role == "grd")

    graph = StagedGraph("step", bind)
    with staging(graph):
        y, saved = net.forward(graph.input("x", (3, 4), "float32"))
        net.vjp(saved, y)
    graph.finish()
    assert names(graph).count("noeira.linear_param_grad") == 1
    assert names(graph).count("noeira.linear_input_grad") == 0


def test_a_pre_activation_nobody_reads_is_not_written():
    graph, _ = trace(LinearGELU(4, 8), (3, 4))
    graph.finish(graph.ops[-1].outputs[0])
    assert names(graph) == ["noeira.linear"]


@pytest.mark.parametrize("use", [bool, float, int, len, np.asarray, np.exp, lambda v: [1] if v else [2]])
def test_numbers_of_a_staged_value_are_refused(use):
    graph = StagedGraph("g")
    with pytest.raises((StagingError, TypeError), match=r"exist only when the program runs|ufunc"):
        use(graph.input("x", (3,), "float32"))


def test_arrays_on_the_left_become_constants():
    graph = StagedGraph("g")
    x, a = graph.input("x", (3,), "float32"), np.arange(3, dtype=np.float32)
    for value in (a + x, a - x, a * x, a / x):
        assert value.shape == (3,)
    assert names(graph) == ["add", "subtract", "multiply", "divide"]
    assert all(len(op.inputs) == 2 and op.inputs[1] is x for op in graph.ops)


def test_indexing_is_refused():
    with pytest.raises(StagingError, match="indexing needs the numbers"):
        StagedGraph("g").input("x", (3,), "float32")[0]


@pytest.mark.parametrize("width", [7, 9, 1])
def test_gradients_of_another_shape_are_refused_before_a_kernel_reads_them(width):
    graph = StagedGraph("g")
    x, dy = graph.input("x", ("b", 4), "float32"), graph.input("dy", ("b", width), "float32")
    w, dw = graph.input("w", (4, 8), "float32"), graph.input("dw", (4, 8), "float32", mutable=True)
    y = graph.input("y", ("b", 8), "float32")
    for use in (
        lambda: ops.linear_param_grad(dw, None, x, dy),
        lambda: ops.linear_input_grad(dy, w),
        lambda: ops.activation_grad(dy, y, "relu"),
    ):
        with pytest.raises(ops.ShapeError, match=rf"expected an output gradient .*8\], got \['b', {width}\]"):
            use()


def test_values_of_two_programs_do_not_mix():
    a, b = StagedGraph("a"), StagedGraph("b")
    x, y = a.input("x", (3,), "float32"), b.input("y", (3,), "float32")
    with pytest.raises(StagingError, match="belongs to program 'b', not to 'a'"):
        ops.add(x, y)


def test_an_input_name_is_used_once():
    graph = StagedGraph("g")
    graph.input("x", (3,), "float32")
    with pytest.raises(StagingError, match="already has an input named 'x'"):
        graph.input("x", (3,), "float32")


def test_a_parameter_needs_a_bound_program():
    graph = StagedGraph("g")
    with staging(graph), pytest.raises(StagingError, match="staged without parameters"):
        Linear(3, 2).forward(graph.input("x", (1, 3), "float32"))


def test_staging_ends_with_its_block_even_after_an_error():
    with pytest.raises(ZeroDivisionError), staging(StagedGraph("g")):
        assert active() is not None
        _ = 1 / 0
    assert active() is None


def test_mode_changes_the_recording():
    net = Sequential(Linear(4, 4), Dropout(0.5))
    train, _ = trace(net.train(), (2, 4))
    evaluation, _ = trace(net.eval(), (2, 4))
    assert "noeira.dropout" in names(train)
    assert "noeira.dropout" not in names(evaluation)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [(("b", 4), (4,), ("b", 4)), ((3, 1), (1, 5), (3, 5)), (("b", 1), ("b", 6), ("b", 6)), ((), (2,), (2,))],
)
def test_broadcast(a, b, expected):
    graph = StagedGraph("g")
    assert ops.add(graph.input("a", a, "float32"), graph.input("b", b, "float32")).shape == expected


def test_broadcast_refuses_what_numpy_refuses():
    graph = StagedGraph("g")
    with pytest.raises(ops.ShapeError, match=r"\[2, 3\] and \[4\] do not broadcast"):
        ops.add(graph.input("a", (2, 3), "float32"), graph.input("b", (4,), "float32"))


def test_reshape_keeps_a_free_dimension():
    graph = StagedGraph("g")
    x = graph.input("x", ("b", 2, 3), "float32")
    assert ops.reshape(x, ("b", 6)).shape == ("b", 6)
    assert ops.flatten_leading(x).shape == ("b*2", 3)
    with pytest.raises(ops.ShapeError, match="number of elements differs"):
        ops.reshape(x, ("b", 5))


def test_spec_text():
    assert str(Spec(("b", 3), "float32")) == "float32[b, 3]"
