"""Checkpointed: the very numbers of the module inside, with less kept."""

import numpy as np
import pytest

from noeira import nn
from noeira.runtime.programs import build
from tests.compiled import CPU, bindings, control, run, stage


def _pair(depth: int = 2) -> tuple[nn.Module, nn.Module]:
    """A stack of blocks with dropout, and the same with every block wrapped."""

    def block() -> nn.Module:
        return nn.TransformerBlock(8, 2, dropout=0.3)

    plain = nn.Repeat(depth, block)
    return plain.init(seed=1), nn.Repeat(depth, lambda: nn.Checkpointed(block())).init(seed=1)


def _same(a: nn.Module, b: nn.Module) -> bool:
    return all(
        (x.grd == y.grd).all()
        for x, y in zip(a.named_parameters().values(), b.named_parameters().values(), strict=True)
    )


def test_names_and_values_are_those_without_it() -> None:
    plain, wrapped = _pair()
    assert list(plain.named_parameters()) == list(wrapped.named_parameters())
    for name, param in plain.named_parameters().items():
        np.testing.assert_array_equal(param.val, wrapped.named_parameters()[name].val)


def test_same_bits_on_the_reference_even_when_other_draws_come_between() -> None:
    plain, wrapped = _pair()
    x = np.random.default_rng(0).standard_normal((2, 3, 8)).astype(np.float32)
    nn.seed(5)
    y, saved = plain.forward(x)
    dx = plain.vjp(saved, x)
    nn.seed(5)
    other, kept = wrapped.forward(x)
    nn.seed(99)
    nn.Dropout(0.5)(x)
    np.testing.assert_array_equal(other, y)
    np.testing.assert_array_equal(wrapped.vjp(kept, x), dx)
    assert _same(plain, wrapped)


@pytest.mark.compiled
def test_same_bits_compiled() -> None:
    plain, wrapped = _pair()
    x = np.random.default_rng(0).standard_normal((2, 3, 8)).astype(np.float32)
    graphs = [stage(name, net, [(("b", 3, 8), "float32")]) for name, net in (("plain", plain), ("wrapped", wrapped))]
    compiled = build(graphs, CPU, "a checkpointed stack")
    found = []
    for name, net in (("plain", plain), ("wrapped", wrapped)):
        net.zero_grad()
        counters = np.zeros(control.COUNTERS, np.int64)
        counters[[control.SEED, control.STEP]] = (7, 1)
        program = compiled[name]
        found.append(run(program, {**bindings(net), "x0": x, "u": x, "counters": counters}))
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)
    assert _same(plain, wrapped)


def test_running_statistics_move_once() -> None:
    plain, wrapped = nn.BatchNorm1D(4).init(), nn.Checkpointed(nn.BatchNorm1D(4)).init()
    x = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    for net in (plain, wrapped):
        net.vjp(net.forward(x)[1], x)
    for name, state in plain.named_states().items():
        np.testing.assert_array_equal(state.val, wrapped.named_states()[name].val)


def test_only_inputs_are_kept_between_forward_and_backward() -> None:
    def kept(net: nn.Module) -> int:
        """Elements a sample that the stack's first call hands on, its output included."""
        graph = stage("kept", net, [(("b", 3, 8), "float32")])
        call = next(op for op in graph.ops if op.name == "call")
        return sum(int(np.prod(value.shape[1:])) for value in call.outputs if value.shape[:1] == ("b",))

    plain, wrapped = _pair(1)
    assert kept(wrapped) == 3 * 8 and kept(plain) > 8 * 3 * 8
