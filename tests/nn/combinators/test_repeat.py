"""Repeat: one body for many modules, the same numbers as the chain written out."""

import numpy as np
import pytest

from noeira.nn import (
    Adam,
    CompositionError,
    CrossEntropyLoss,
    Dropout,
    Embedding,
    Linear,
    LinearGELU,
    Module,
    Parallel,
    Param,
    ReLU,
    Repeat,
    RepeatConditional,
    Sequential,
    SkipConcat,
    Trainer,
    Zero,
    composed,
    seed,
)  # fmt: skip
from noeira.nn.core.summary import trace
from noeira.nn.training.staging import DataSpec, train_step
from noeira.runtime.staging import StagedGraph
from tests.compiled import stage
from tests.nn.training.conftest import make_data


class Block(Module):
    """x + dropout(gelu(x W + b)) a: a residual block with its own parameter."""

    def __init__(self, width, p=0.0):
        self.inner = Sequential(LinearGELU(width, width), Dropout(p))
        self.scale = Param((width,), init=Zero(), decay=False)

    def forward(self, x):
        y, saved = self.inner.forward(x)
        return x + y * (1.0 + self.scale.val), (y, saved)

    def vjp(self, saved, grad_output):
        from noeira import ops

        y, kept = saved
        self.scale.accumulate(ops.sum_rows(y * grad_output))
        return grad_output + self.inner.vjp(kept, grad_output * (1.0 + self.scale.val))


def net_of(depth, p=0.0, repeat=True):
    blocks = Repeat(depth, lambda: Block(12, p)) if repeat else Sequential(*(Block(12, p) for _ in range(depth)))
    return Sequential(blocks, Linear(12, 3))


def step(net):
    net.init_missing()
    return train_step(net, CrossEntropyLoss(), DataSpec((12,), "float32", (), "int32", 1.0), "float32")[0]


def bodies(graph: StagedGraph):
    return sorted(name.rpartition("_")[0] for name in graph.bodies())


def test_names_are_positions():
    assert list(net_of(2).named_parameters())[:3] == ["0.0.scale", "0.0.inner.0.weight", "0.0.inner.0.bias"]


def test_one_body_each_way_whatever_the_depth():
    shallow, deep = step(net_of(2)), step(net_of(7))
    assert bodies(shallow) == bodies(deep) == ["Block_forward", "Block_vjp"]
    assert [op.name for op in deep.ops].count("call") == 14


def test_a_module_that_differs_gets_its_own_body():
    net = net_of(4)
    net[0][2].freeze()
    assert bodies(step(net)) == ["Block_forward", "Block_vjp", "Block_vjp"]


def test_summary_lists_every_layer():
    graph, rows = trace(net_of(3), (5, 12))
    assert [row.path for row in rows if "Linear" in row.module] == ["0.0.inner.0", "0.1.inner.0", "0.2.inner.0", "1"]
    assert not graph.bodies()


def test_eager_dropout_masks_differ_between_repetitions():
    net = Repeat(2, lambda: Dropout(0.5))
    seed(1)
    x = np.ones((4, 64), np.float32)
    _, saved = net.forward(x)
    masks = [layer.vjp(kept, x) for layer, kept in zip(net, saved, strict=True)]
    assert not np.array_equal(masks[0], masks[1])


def test_a_bad_count_is_refused():
    with pytest.raises(ValueError, match="Repeat: expected count to be a positive integer, got 0"):
        Repeat(0, lambda: Linear(2, 2))


@pytest.mark.compiled
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_training_equals_the_chain_written_out_and_the_reference(p):
    """Losses of compiled Repeat, compiled Sequential, and the NumPy path with the same draws."""
    inputs, labels = make_data(64)
    losses = []
    for repeat in (True, False):
        net = net_of(3, p, repeat).init(seed=0)
        trainer = Trainer(net, loss=CrossEntropyLoss(), optimizer=Adam(1e-2), run_dir=None, progress=False, seed=4)
        losses.append(trainer.fit((inputs, labels), epochs=4, batch_size=32, shuffle=False).losses)
    if p == 0:
        np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    net, loss, optimizer = net_of(3, p).init(seed=0), CrossEntropyLoss(), Adam(1e-2)
    seed(4)
    for i in range(8):
        rows = slice(32 * (i % 2), 32 * (i % 2) + 32)
        net.zero_grad()
        from noeira.nn.core import context

        context.running.rng[1] = i - 1  # the trainer counts its steps from 0
        y, saved = net.forward(inputs[rows])
        value, kept = loss.forward(y, labels[rows])
        net.vjp(saved, loss.vjp(kept))
        optimizer.step(net)
        assert float(value) == pytest.approx(losses[0][i], rel=2e-4)


class Conditioned(Module):
    """x + gelu(x W + b) (c V + a), with dropout."""

    def __init__(self, p):
        self.inner, self.condition = Sequential(LinearGELU(12, 12), Dropout(p)), Linear(4, 12)

    @composed
    def forward(self, x, c):
        return x + self.inner(x) * self.condition(c)


def test_a_conditional_stack_is_one_body_each_way_whatever_the_depth():
    def staged(depth):
        net = RepeatConditional(depth, lambda: Conditioned(0.1))
        return stage("stack", net, [(("b", 12), "float32"), (("b", 4), "float32")])

    shallow, deep = staged(2), staged(7)
    assert bodies(shallow) == bodies(deep) == ["Conditioned_forward", "Conditioned_vjp"]
    assert [op.name for op in deep.ops].count("call") == 14


def test_a_conditional_stack_takes_ids_and_draws_a_mask_a_copy():
    class Looked(Module):
        def __init__(self):
            self.table, self.drop = Embedding(5, 4), Dropout(0.5)

        @composed
        def forward(self, x, ids):
            return self.drop(x) + self.table(ids)

    net = RepeatConditional(2, Looked).init(seed=0)
    y, saved = net.forward(np.ones((3, 4), np.float32), np.array([1, 2, 2]))
    dx, nothing = net.vjp(saved, np.ones_like(y))
    assert nothing is None and set(np.unique(dx)) == {0.0, 4.0}  # kept by both masks, or lost by one
    kept = [layer.vjp(kept, np.ones_like(y))[0] for layer, kept in zip(net, saved, strict=True)]
    assert not np.array_equal(*kept)


def test_widths_of_branches_go_on():
    net = Sequential(Parallel(Linear(4, 3), ReLU()), SkipConcat(Linear(7, 2)), Linear(9, 1))
    assert net.expects() == (-1, 4) and net.gives(None) == (-1, 1)
    with pytest.raises(CompositionError, match=r"module '1' \(Linear\(6, 1\)\) expects 6 .* gives 7"):
        Sequential(Parallel(Linear(4, 3), Linear(4, 4)), Linear(6, 1))
