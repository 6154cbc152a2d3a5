"""A decoder block's special cases: one token of memory, none at all, the future, and dropout."""

import numpy as np
import pytest

from noeira import nn


def _draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.fixture
def block() -> nn.DecoderBlock:
    return nn.DecoderBlock(6, 2, is_causal=True, memory_dim=4).init(seed=3).to(dtype="float64")


def test_one_token_of_memory_conditions_all_tokens_alike() -> None:
    """There is nothing to choose: y is the token's value whatever the query is, and nothing flows back to the query."""
    net = nn.MultiHeadCrossAttention(6, 2, memory_dim=4).init(seed=1).to(dtype="float64")
    x, memory = _draw(2, 3, 6), _draw(2, 1, 4, seed=1)
    y, saved = net.forward(x, memory)
    np.testing.assert_allclose(y, np.repeat(net.out(net.value(memory)), 3, axis=1), rtol=1e-12)
    dx, dm = net.vjp(saved, np.ones_like(y))
    assert np.abs(dx).max() < 1e-14 < np.abs(dm).max()


@pytest.mark.parametrize("hidden", [np.nan, np.inf])
def test_masked_memory_does_not_leak(block: nn.DecoderBlock, hidden: float) -> None:
    x, memory, u = _draw(2, 3, 6), _draw(2, 4, 4, seed=1), _draw(2, 3, 6, seed=2)
    mask = np.array([[True, True, False, False], [True, False, True, False]])
    y, saved = block.forward(x, memory, mask)
    dx, dm, none = block.vjp(saved, u)
    assert none is None and not dm[~mask].any() and dm[mask].any()
    changed = np.where(mask[..., None], memory, hidden)
    with np.errstate(invalid="ignore"):
        again, saved = block.forward(x, changed, mask)
        moved, _, _ = block.vjp(saved, u)
    np.testing.assert_array_equal(again, y)
    np.testing.assert_array_equal(moved, dx)


def test_a_memory_of_which_nothing_is_seen_is_as_good_as_none(block: nn.DecoderBlock) -> None:
    x, memory = _draw(2, 3, 6), _draw(2, 4, 4, seed=1)
    y, saved = block.forward(x, memory, np.zeros((2, 4), bool))
    other, _ = block.forward(x, -memory, np.zeros((2, 4), bool))
    np.testing.assert_array_equal(y, other)
    _, dm, _ = block.vjp(saved, np.ones_like(y))
    assert not dm.any() and np.isfinite(y).all()


@pytest.mark.parametrize("causal", [True, False])
def test_the_future_is_seen_only_where_it_may_be(causal: bool) -> None:
    block = nn.DecoderBlock(6, 2, is_causal=causal).init(seed=2)
    x, memory = _draw(1, 5, 6).astype(np.float32), _draw(1, 4, 6, seed=1).astype(np.float32)
    moved = x.copy()
    moved[:, 3] *= -2
    before, after = block(x, memory), block(moved, memory)
    assert (before[:, :3] == after[:, :3]).all() == causal and (before[:, 3:] != after[:, 3:]).any()


def test_dropout_drops_each_branch_on_its_own() -> None:
    block = nn.DecoderBlock(6, 2, dropout=1.0).init(seed=1)
    x, memory = _draw(2, 3, 6).astype(np.float32), _draw(2, 4, 6, seed=1).astype(np.float32)
    np.testing.assert_array_equal(block(x, memory), x)
    assert (block.eval()(x, memory) != x).any()
    half = nn.DecoderBlock(6, 2, dropout=0.5).init(seed=1)
    nn.seed(5)
    first = half(x, memory)
    nn.seed(5)
    np.testing.assert_array_equal(half(x, memory), first)
    assert (half(x, memory) != first).any()


def test_no_bias_means_none_anywhere() -> None:
    names = nn.DecoderBlock(6, 2, bias=False).named_parameters()
    assert not [name for name in names if name.endswith("bias")]
