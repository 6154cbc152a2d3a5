"""Recurrent layers as sequences: cells and sequences agree, later steps do not reach earlier ones."""

from typing import Any

import numpy as np
import pytest

from noeira import nn

PAIRS = [(nn.GRUSeq, nn.GRUCell, 1), (nn.LSTMSeq, nn.LSTMCell, 2)]


@pytest.mark.parametrize(("sequence", "cell", "states"), PAIRS)
def test_a_sequence_is_its_cell_step_by_step(sequence: Any, cell: Any, states: int) -> None:
    whole, one = sequence(3, 5).init(seed=1), cell(3, 5).init(seed=2)
    for name, param in one.named_parameters().items():
        param.val = whole.named_parameters()[name].val
    draw = np.random.default_rng(0)
    x, state = draw.standard_normal((4, 7, 3)).astype(np.float32), np.zeros((4, states * 5), np.float32)
    y = whole(x, state)
    for t in range(7):
        state = one(x[:, t], state)
        np.testing.assert_allclose(state[:, :5], y[:, t], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("sequence", "cell", "states"), PAIRS)
def test_a_state_carries_a_sequence_on(sequence: Any, cell: Any, states: int) -> None:
    whole, one = sequence(3, 5).init(seed=1), cell(3, 5).init(seed=2)
    for name, param in one.named_parameters().items():
        param.val = whole.named_parameters()[name].val
    x = np.random.default_rng(0).standard_normal((4, 6, 3)).astype(np.float32)
    state = np.zeros((4, states * 5), np.float32)
    for t in range(3):
        state = one(x[:, t], state)
    np.testing.assert_allclose(whole(x[:, 3:], state), whole(x)[:, 3:], rtol=1e-5, atol=1e-6)
    if states == 2:
        np.testing.assert_allclose(whole.last_state(whole.forward(x[:, :3])[1]), state, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sequence", [nn.GRUSeq, nn.LSTMSeq])
@pytest.mark.parametrize("t", [0, 3, 6])
def test_a_later_step_does_not_reach_an_earlier_one(sequence: Any, t: int) -> None:
    layer = sequence(3, 5).init(seed=1)
    x = np.random.default_rng(0).standard_normal((2, 7, 3)).astype(np.float32)
    moved = x.copy()
    moved[:, t] += 1
    before, after = layer(x), layer(moved)
    np.testing.assert_array_equal(before[:, :t], after[:, :t])
    assert (before[:, t:] != after[:, t:]).any(axis=(0, 2)).all()
    _, saved = layer.forward(x)
    dy = np.zeros((2, 7, 5), np.float32)
    dy[:, t] = 1
    dx = layer.vjp(saved, dy)
    assert not dx[:, t + 1 :].any() and (dx[:, : t + 1] != 0).any(axis=(0, 2)).all()


def test_recurrent_weights_start_within_the_bound_of_pytorch() -> None:
    for layer in (nn.GRUSeq(3, 16).init(), nn.LSTMCell(3, 16).init()):
        for name, param in layer.named_parameters().items():
            assert 0.2 < np.abs(param.val).max() <= 0.25, name
            assert param.decay == name.startswith("weight")
