"""Modules: the walk, modes, errors that say where, and running without compiling."""

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest

from noeira import nn, ops
from noeira.nn import (
    Adam,
    CompositionError,
    Dropout,
    Flatten,
    Linear,
    LinearReLU,
    Module,
    Param,
    ReLU,
    Sequential,
    ShapeError,
    State,
    UninitializedError,
    Zero,
)
from noeira.nn.core import context
from tests.repo.test_manifests import ROOT


class Block(Module):
    """Children in a list, a dict and an attribute; a parameter and a state of its own."""

    def __init__(self):
        self.scale = Param((3,), init=Zero(), decay=False)
        self.count = State((), dtype="int64")
        self.parts = [Linear(3, 3), Linear(3, 3, bias=False)]
        self.named = {"a": Linear(3, 3)}
        self.last = ReLU()

    def forward(self, x):
        saved = []
        for part in (*self.parts, self.named["a"], self.last):
            x, kept = part.forward(x)
            saved.append(kept)
        return x, saved

    def vjp(self, saved, grad_output):
        for part, kept in zip((self.last, self.named["a"], *self.parts[::-1]), saved[::-1], strict=True):
            grad_output = part.vjp(kept, grad_output)
        return grad_output


def test_dotted_names():
    net = Sequential(Linear(3, 3), Block())
    assert list(net.named_parameters()) == [
        "0.weight",
        "0.bias",
        "1.scale",
        "1.parts.0.weight",
        "1.parts.0.bias",
        "1.parts.1.weight",
        "1.named.a.weight",
        "1.named.a.bias",
    ]
    assert list(net.named_states()) == ["1.count"]
    assert [name for name, _ in net.named_modules()] == [
        "", "0", "1", "1.parts.0", "1.parts.1", "1.named.a", "1.last",
    ]  # fmt: skip
    assert net.num_parameters == 12 + 3 + 12 + 9 + 12


def test_a_shared_module_appears_once():
    layer = Linear(4, 4)
    net = Sequential(layer, ReLU(), layer)
    assert list(net.named_parameters()) == ["0.weight", "0.bias"]
    assert net.num_parameters == 20


def test_a_module_applied_twice_gets_both_gradients():
    layer = Linear(4, 4)
    net = Sequential(layer, layer).init(seed=0).to(dtype="float64")
    x, dy = np.random.default_rng(0).normal(size=(2, 3, 4))
    _, saved = net.forward(x)
    net.vjp(saved, dy)
    w = layer.weight.val
    hidden = x @ w + layer.bias.val
    np.testing.assert_allclose(layer.weight.grd, hidden.T @ dy + x.T @ (dy @ w.T))


def test_modes_reach_every_module():
    net = Sequential(Block(), Dropout(0.5), Sequential(Dropout(0.1)))
    net.eval()
    assert not any(module.training for _, module in net.named_modules())
    net.train()
    assert all(module.training for _, module in net.named_modules())


def test_freezing_stops_gradients_of_a_subtree():
    net = Sequential(Linear(3, 3), Linear(3, 3)).init(seed=0)
    net[0].freeze()
    _, saved = net.forward(np.ones((2, 3), np.float32))
    net.vjp(saved, np.ones((2, 3), np.float32))
    assert net[0].weight.grd is None
    assert not net[0].weight.memory["grd"].numpy().any()
    assert net[1].weight.grd.any()
    net.unfreeze()
    assert net[0].weight.grd is not None


def test_repr_shows_structure_and_sizes():
    net = Sequential(LinearReLU(784, 256), Sequential(Dropout(0.1), Linear(256, 10, bias=False)))
    assert repr(net) == (
        "Sequential(\n"
        "  (0): LinearReLU(784, 256)\n"
        "  (1): Sequential(\n"
        "    (0): Dropout(p=0.1)\n"
        "    (1): Linear(256, 10, bias=False)\n"
        "  )\n"
        ")"
    )


def test_summary():
    text = Sequential(Flatten(), LinearReLU(784, 256), Linear(256, 10)).summary((100, 1, 28, 28))
    assert "LinearReLU(784, 256)  [100, 256]     200,960     40,140,800" in text
    assert "parameters 203,530 (0 frozen), forward 40,652,800 FLOPs" in text
    assert "parameters 795.0 KiB, gradients 795.0 KiB, moments 1.6 MiB (Adam), activations 406.2 KiB" in text


def test_summary_draws_nothing():
    net = Sequential(Linear(3, 3))
    net.summary((1, 3))
    assert not net.initialized


# ---- running on arrays --------------------------------------------------------------------------------------------


def test_arrays_run_without_max():
    code = (
        "import sys, numpy as np\n"
        "from noeira.nn import *\n"
        "net = Sequential(LinearReLU(4, 8), Dropout(0.5), Linear(8, 3))\n"
        "loss = CrossEntropyLoss()\n"
        "y, saved = net.forward(np.ones((2, 4), np.float32))\n"
        "value, kept = loss.forward(y, np.array([0, 2]))\n"
        "net.vjp(saved, loss.vjp(kept))\n"
        "Adam(1e-3).step(net)\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'max', 'mojo', 'rich', 'matplotlib'}))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_a_call_converts_floats_to_the_models_dtype():
    net = Sequential(Linear(3, 2)).init(seed=0)
    assert net(np.ones((1, 3))).dtype == np.float32
    assert net(np.ones((1, 3), np.float16)).dtype == np.float32
    assert net.to(dtype="float64")(np.ones((1, 3), np.float32)).dtype == np.float64


def test_forward_does_not_convert():
    with pytest.raises(
        ShapeError, match=r"module '0' \(Linear\(3, 2\)\): expected an input of dtype float32, got float64"
    ):
        Sequential(Linear(3, 2)).forward(np.ones((1, 3)))


def test_dropout_masks_differ_between_calls_and_layers_but_not_between_runs():
    def run():
        net = Sequential(Dropout(0.5), Dropout(0.5))
        context.seed(5)
        x = np.ones((4, 64), np.float32)
        one, saved = net.forward(x)
        two, _ = net.forward(x)
        first = net[0].vjp(saved[0], x) > 0
        second = net[1].vjp(saved[1], x) > 0
        return one, two, first, second

    one, two, first, second = run()
    assert not np.array_equal(one, two)
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(one > 0, first & second)
    for again, before in zip(run(), (one, two, first, second), strict=True):
        np.testing.assert_array_equal(again, before)


# ---- errors -------------------------------------------------------------------------------------------------------


def test_widths_are_checked_when_modules_are_composed():
    with pytest.raises(CompositionError) as caught:
        Sequential(Linear(4, 8), ReLU(), Dropout(0.1), Linear(9, 2))
    assert str(caught.value) == (
        "Sequential: module '3' (Linear(9, 2)) expects 9 features on axis -1, "
        "but module '0' (Linear(4, 8)) gives 8 features on axis -1"
    )


def test_widths_are_checked_through_nested_chains():
    with pytest.raises(CompositionError, match=r"module '1' .* expects 9 features .* gives 8 features"):
        Sequential(Sequential(ReLU(), Linear(4, 8)), Sequential(ReLU(), Linear(9, 2)))
    Sequential(Linear(4, 8), Flatten(), Linear(9, 2))  # unknown until shapes are: refused when called


def test_what_is_not_a_module_is_refused():
    with pytest.raises(CompositionError, match="expected modules, got function at position 1"):
        Sequential(Linear(3, 3), lambda x: x)


@pytest.mark.parametrize("shape", [(3,), (2, 4), (2, 3, 5), ()])
def test_wrong_inputs_name_the_module(shape):
    net = Sequential(ReLU(), Sequential(Linear(3, 2)))
    with pytest.raises(ShapeError) as caught:
        net(np.ones(shape, np.float32))
    assert str(caught.value).startswith("module '1.0' (Linear(3, 2)): expected an input of shape [batch, ..., 3], got ")


def test_a_users_error_gets_a_note_and_stays_what_it_is():
    class Broken(Module):
        def forward(self, x):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        Sequential(ReLU(), Broken())(np.ones((1, 1), np.float32))
    assert caught.value.__notes__ == ["in module '1' (Broken())"]


def test_a_forward_without_saved_is_refused():
    class OutputOnly(Module):
        def forward(self, x):
            return x

    with pytest.raises(TypeError, match=r"expected forward to return \(output, saved\), got ndarray") as caught:
        Sequential(OutputOnly())(np.ones((1, 1), np.float32))
    assert caught.value.__notes__ == ["in module '0' (OutputOnly())"]


def test_the_stack_is_empty_after_an_error():
    net = Sequential(Linear(3, 2))
    for _ in range(2):
        with pytest.raises(ShapeError, match="module '0'"):
            net(np.ones((1, 4), np.float32))
    assert context.running.stack == []
    assert net(np.ones((1, 3), np.float32)).shape == (1, 2)


def test_missing_forward_and_vjp_say_so():
    with pytest.raises(NotImplementedError, match=r"Module does not define forward\(\*inputs\)"):
        Module().forward(1)
    with pytest.raises(NotImplementedError, match="does not define vjp"):
        Module().vjp(1, 2)


@pytest.mark.parametrize("arguments", [(0, 3), (3, -1), (2.5, 3), ("3", 3)])
def test_sizes_are_checked_at_construction(arguments):
    with pytest.raises(ValueError, match=r"Linear: expected (in|out)_features to be a positive integer, got"):
        Linear(*arguments)


def test_reading_before_there_is_anything():
    layer = Linear(3, 2)
    with pytest.raises(UninitializedError, match=r"call `init\(seed=...\)` on its model"):
        _ = layer.weight.val
    layer.init()
    with pytest.raises(UninitializedError, match="no optimizer has stepped"):
        _ = layer.weight.m


def test_assigning_another_shape_is_refused():
    net = Sequential(Linear(3, 2)).init()
    with pytest.raises(ShapeError, match=r"parameter '0.weight': expected shape \(3, 2\), got \(2, 3\)"):
        net[0].weight.val = np.zeros((2, 3))


# ---- copies -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))], ids=["copy", "pickle"]
)
def test_copies_have_memory_of_their_own(duplicate):
    net = Sequential(Linear(3, 2)).init(seed=0)
    twin = duplicate(net)
    x = np.ones((1, 3), np.float32)
    np.testing.assert_array_equal(net(x), twin(x))
    twin[0].weight.val = twin[0].weight.val + 1
    assert not np.array_equal(net(x), twin(x))
    assert twin.arena() is not net.arena()
    np.testing.assert_array_equal(twin.arena().memory["val"].numpy()[:6].reshape(3, 2), twin[0].weight.val)


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))], ids=["copy", "pickle"]
)
def test_copies_go_on_with_the_moments_and_their_count(duplicate):
    net, optimizer = Sequential(Linear(3, 2)).init(seed=0), Adam(1e-2)
    net[0].weight.grd += 1
    optimizer.step(net)
    twin = duplicate(net)
    for model in (net, twin):
        optimizer.step(model)
    assert twin.arena().applied == net.arena().applied == 2
    np.testing.assert_array_equal(twin[0].weight.val, net[0].weight.val)


def test_states_are_read_as_values_and_written_in_place():
    block = Block().init()
    before = block.count.val
    block.count.val = before + 5
    assert before == 0
    assert block.count.val == 5
    block.init()
    assert block.count.val == 0
    with pytest.raises(ShapeError, match=r"state 'count': expected shape \(\), got \(2,\)"):
        block.count.val = np.zeros(2)


def test_options_reach_forward():
    class Scaled(Module):
        def forward(self, x, *, factor=1.0):
            return ops.multiply(x, factor), None

    assert Scaled()(np.ones((1, 2), np.float32), factor=3.0).tolist() == [[3, 3]]


def test_batch_norm_fits_behind_a_linear_layer() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1D(4), nn.ReLU(), nn.Linear(4, 2))
    assert net(np.ones((5, 3), np.float32)).shape == (5, 2)
    tokens_as_channels = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1D(6))
    assert tokens_as_channels(np.ones((5, 6, 3), np.float32)).shape == (5, 6, 4)
    with pytest.raises(nn.ShapeError, match=r"module '1' .*expected an input of shape 6 on axis 1, got \[5, 4\]"):
        tokens_as_channels(np.ones((5, 3), np.float32))
    with pytest.raises(nn.CompositionError, match="expects 8 features on axis -1"):
        nn.Sequential(nn.Conv2D(3, 8, 3), nn.Linear(8, 2))
