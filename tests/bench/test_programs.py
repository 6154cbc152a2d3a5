"""Recording ops for timing, and taking a step apart; nothing is compiled."""

import numpy as np
import pytest

from bench.breakdown import Sizes, alone, arrays_for
from bench.cases import gemm
from bench.programs import Operand, record
from bench.training import Task, data, load_into_torch, weights_of
from noeira import ops
from noeira.nn import Linear, LinearReLU, Sequential


def test_record_keeps_sizes_free():
    graph = record("p", {"x": Operand(("rows", "in")), "w": Operand(("in", "out"))}, lambda x, w: ops.linear(x, w))
    assert [op.name for op in graph.ops] == ["noeira.linear_no_bias"]
    assert graph.outputs[0].shape == ("rows", "out")


def test_every_gemm_pass_is_one_kernel_of_linear():
    graphs = {graph.name: graph for graph in (make() for make in gemm.PROGRAMS.recordings)}
    names = {name: [op.name for op in graph.ops] for name, graph in graphs.items()}
    kernels = {"forward": "linear_no_bias", "input_grad": "linear_input_grad", "weight_grad": "linear_weight_grad"}
    assert names == {
        f"{name}_{links}": [f"noeira.{kernel}"] * links for name, kernel in kernels.items() for links in (1, gemm.LINKS)
    }


@pytest.mark.parametrize("pass_", gemm.FACTORS)
def test_what_gemm_cases_expect(pass_):
    inputs = gemm._inputs(5, 3, 2)
    x, w, dz = (inputs[name].astype(np.float64) for name in ("x", "w", "dz"))
    expected = {"forward": x @ w, "input-grad": dz @ w.T, "weight-grad": x.T @ dz}[pass_]
    assert np.array_equal(gemm._expected(pass_, inputs)["product"], expected)


def test_one_op_alone_takes_its_operands_as_inputs():
    operands = {"x": Operand(("rows", "in")), "w": Operand(("in", "out")), "dw": Operand(("in", "out"), memory=True)}

    def body(x, w, dw):
        y = ops.linear(x, w)
        ops.linear_param_grad(dw, None, x, y)
        return y

    recording = record("p", operands, body)
    sizes = Sizes([recording], {"x": np.zeros((4, 3)), "w": np.zeros((3, 2)), "dw": np.zeros((3, 2))})
    assert sizes.shape(("rows*5", 7)) == (20, 7)
    graph = alone(recording.ops[1], recording, "op1", sizes)
    assert [op.name for op in graph.ops] == ["noeira.linear_weight_grad"]
    arrays = arrays_for(graph, sizes, {"x": np.ones((4, 3), np.float32)})
    assert {name: array.shape for name, array in arrays.items()} == {"dw": (3, 2), "x": (4, 3), "value 3": (4, 2)}
    assert arrays["x"][0, 0] == 1 and [v.name for v in graph.inputs if v.mutable] == ["dw"]


def task():
    torch = pytest.importorskip("torch")
    return Task(
        lambda: Sequential(LinearReLU(3, 3), Linear(3, 2)),
        lambda: torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2)),
        (3,),
        2,
        4,
    )


def test_torch_gets_the_same_model():
    torch = pytest.importorskip("torch")
    made = task()
    inputs, net = data(made), made.torch_net()
    load_into_torch(net, weights_of(inputs))
    ours = made.net().init(seed=0)
    x = inputs["x"][:4]
    assert np.allclose(ours(x), net(torch.from_numpy(x)).detach().numpy(), atol=1e-6)


def test_models_that_differ_are_refused():
    torch = pytest.importorskip("torch")
    weights = weights_of(data(task()))
    with pytest.raises(ValueError, match="4 and 2 parameters"):
        load_into_torch(torch.nn.Linear(3, 3), weights)
    with pytest.raises(ValueError, match=r"\[2, 3\], PyTorch's 1.weight is \[5, 3\]"):
        load_into_torch(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 5)), weights)
