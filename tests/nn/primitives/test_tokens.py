"""What the rows of the catalogue do not say about learned, fixed and hidden tokens, and about space and time."""

from typing import Any

import numpy as np
import pytest

from noeira import nn
from noeira.ops.elementwise import cast
from noeira.ops.random import normal, words
from noeira.ops.tokens import dropped_tokens
from noeira.runtime.programs import Program, build
from noeira.runtime.staging import StagedGraph, staging
from tests.catalogue_tokens import masked
from tests.compare import SEED
from tests.compiled import CPU, run

KEY = np.array([3, 5, 7], np.int64)
RATES = ((0.0, 1.0), (0.0, 0.0), (1.0, 1.0), (0.25, 0.75), (0.5, 0.5))


def _draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_words_are_uniform() -> None:
    drawn = words(KEY, (1 << 16,))
    assert drawn.dtype == np.uint64 and drawn.max() < 2**32
    bits = drawn[:, None] >> np.arange(32, dtype=np.uint64) & np.uint64(1)
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 0.01
    assert len(np.unique(drawn)) > 65000
    assert (words(KEY + np.array([0, 1, 0]), (100,)) != drawn[:100]).all()


def test_each_frame_has_a_rate_of_its_own() -> None:
    dropped = dropped_tokens(KEY, np.zeros((4000, 64, 1), np.float32), 0.1, 0.9)
    rates = dropped.mean(axis=(1, 2))
    assert 0.48 < rates.mean() < 0.52
    assert abs(rates.std() - np.sqrt(0.8**2 / 12 + 0.197 / 64)) < 0.01  # uniform rates, and the tokens' own chance
    within = dropped[..., 0] - rates[:, None]
    assert np.abs((within[:, :-1] * within[:, 1:]).mean()) < 0.01  # one token's fate says nothing of its neighbour's


@pytest.mark.parametrize(("p_min", "p_max"), RATES)
def test_extreme_rates_are_exact(p_min: float, p_max: float) -> None:
    dropped = dropped_tokens(KEY, np.zeros((50, 40, 1), np.float32), p_min, p_max)
    assert dropped.shape == (50, 40, 1) and dropped.dtype == bool
    if p_min == p_max:
        assert {0.0: not dropped.any(), 1.0: dropped.all()}.get(p_min, 0.4 < dropped.mean() < 0.6)


def test_a_replacer_draws_anew_each_step_and_the_same_again() -> None:
    layer, x = nn.MAEReplacer(3).init(), _draw(4, 32, 3)
    nn.seed(SEED)
    first, second = (layer.forward(x)[1] for _ in range(2))
    nn.seed(SEED)
    again, _ = layer.forward(x)[1], None
    assert first is not None and second is not None and again is not None
    np.testing.assert_array_equal(first, again)
    assert (first != second).any()
    np.testing.assert_array_equal(first, masked(x.shape, 0.0, 0.9))


def test_two_replacers_draw_differently() -> None:
    net, x = nn.Sequential(nn.MAEReplacer(3, 0.5, 0.5), nn.MAEReplacer(3, 0.5, 0.5)).init(), _draw(8, 32, 3)
    a, b = net.forward(x)[1]
    assert (a != b).any()


def test_hidden_tokens_leave_no_trace() -> None:
    """Neither the numbers of a dropped token nor a NaN in it come through, forward or back."""
    layer, x = nn.MAEReplacer(3, 0.5, 0.5).init(), _draw(4, 16, 3)
    nn.seed(1)
    y, dropped = layer.forward(x)
    assert dropped is not None
    nn.seed(1)
    other, _ = layer.forward(np.where(dropped, np.float32(np.nan), x))
    np.testing.assert_array_equal(y, other)
    dx = layer.vjp(dropped, np.where(dropped, np.float32(np.inf), np.ones_like(x)))
    assert not dx[dropped[..., 0]].any() and (dx[~dropped[..., 0]] == 1).all()


def test_a_frozen_token_gets_no_gradient() -> None:
    for layer, x in (
        (nn.MAEReplacer(3), _draw(4, 16, 3)), (nn.LearnedTokens(2, 3), _draw(4, 16, 3)),
        (nn.LearnedQueries(2, 3), _draw(4, 3)),
    ):  # fmt: skip
        layer.init().freeze()
        y, saved = layer.forward(x)
        layer.vjp(saved, np.ones_like(y))
        assert not next(iter(layer.named_parameters().values())).memory["grd"].numpy().any()


def test_queries_differ_and_do_not_depend_on_the_input() -> None:
    layer = nn.LearnedQueries(100, 8).init()
    y, saved = layer.forward(_draw(2, 3))
    assert 0.9 < y.std() < 1.1
    np.testing.assert_array_equal(y, layer(np.full((2, 7), np.nan, np.float32)))
    assert not layer.vjp((saved * np.float32(np.nan)), np.ones_like(y)).any()


def test_transposing_twice_changes_nothing() -> None:
    layer, x = nn.SpaceTimeTranspose(), _draw(2, 3, 5, 4)
    np.testing.assert_array_equal(layer(layer(x)), x)


# ---- world models ----------------------------------------------------------------------------------------------------


def _frame(mode: str, moved: int) -> np.ndarray:
    """Which tokens of a frame change when one does: action, signal, step, two spatial, a register, two agents."""
    layer, x = nn.DynamicsSpaceAttention(4, 1, 2, 1, 2, mode), _draw(1, 2, 8, 12)
    other = x.copy()
    other[0, 1, moved] += _draw(12, seed=1)
    changed = (layer(x) != layer(other)).any(axis=-1)
    assert not changed[0, 0].any()  # another frame
    return changed[0, 1]


@pytest.mark.parametrize(
    ("mode", "world", "agents"),
    [("wm_agent", [1] * 8, [1] * 8), ("wm_agent_isolated", [1] * 6 + [0] * 2, [0] * 6 + [1] * 2),
     ("wm_agent_bc", [1] * 8, [0] * 6 + [1] * 2)],
)  # fmt: skip
def test_who_is_seen_by_whom(mode: str, world: list[int], agents: list[int]) -> None:
    assert _frame(mode, 3).astype(int).tolist() == world
    assert _frame(mode, 7).astype(int).tolist() == agents


def test_without_agents_the_mask_masks_nothing() -> None:
    x = _draw(2, 6, 12)
    want = nn.ScaledDotProductAttention(4, 2)(x)
    for mode in ("wm_agent", "wm_agent_isolated", "wm_agent_bc"):
        np.testing.assert_array_equal(nn.DynamicsSpaceAttention(4, 2, 2, 1, 0, mode)(x), want)


def test_time_attention_sees_the_own_past_only() -> None:
    net, x = nn.TimeAttentionLatents(4, 2, 3).init(), _draw(2, 5, 4, 4)
    other = x.copy()
    other[0, 2, 1] = _draw(4, seed=1)
    changed = (net(x) != net(other)).any(axis=-1)
    want = np.zeros((2, 5, 4), bool)
    want[0, 2:, 1] = True
    np.testing.assert_array_equal(changed, want)


def test_a_conditional_block_starts_as_the_identity() -> None:
    net, x, c = nn.ConditionalTransformerBlock(6, 2).init(seed=4), _draw(2, 3, 6), _draw(2, 6, seed=1)
    y, saved = net.forward(x, c)
    np.testing.assert_array_equal(y, x)
    u = _draw(2, 3, 6, seed=2)
    dx, dc = net.vjp(saved, u)
    np.testing.assert_array_equal(dx, u)
    assert not dc.any()
    moved = {name for name, param in net.named_parameters().items() if np.any(param.grd)}
    assert moved == {"modulation.weight", "modulation.bias"}  # the gates open first
    gates = net.modulation.bias.grd.reshape(6, 6)  # type: ignore[union-attr]
    assert gates[[2, 5]].all() and not gates[[0, 1, 3, 4]].any()


# ---- compiled --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def programs() -> dict[str, Program]:
    graphs = []
    for i, (p_min, p_max) in enumerate(RATES):
        graph = StagedGraph(f"dropped_{i}")
        with staging(graph):
            key, x = graph.input("key", (3,), "int64"), graph.input("x", ("b", "t", 9, 1), "float32")
            graphs.append(graph.finish(dropped_tokens(key, x, p_min, p_max), x + 1.0))
    graph = StagedGraph("words")
    with staging(graph):
        key, x = graph.input("key", (3,), "int64"), graph.input("x", ("b",), "float32")
        graphs.append(graph.finish(words(key, x.shape), words(key, x.shape, 7), x + 1.0))
    graph = StagedGraph("beside_rows")
    with staging(graph):
        key, x = graph.input("key", (3,), "int64"), graph.input("x", ("b", 1), "float64")
        shape = (x.shape[0], 11)
        graphs.append(graph.finish(x + cast(words(key, shape), "float64"), x + normal(key, shape, "float64")))
    return build(graphs, CPU, "decisions by counter hash")


@pytest.mark.compiled
@pytest.mark.parametrize("key", [(3, 5, 7), (2**62, 2**40 + 1, 2**32 - 1), (-1, 0, 0)])
def test_decisions_are_the_same_compiled(programs: Any, key: tuple[int, ...]) -> None:
    key_array = np.array(key, np.int64)
    x = np.zeros((7, 31, 9, 1), np.float32)
    for i, (p_min, p_max) in enumerate(RATES):
        want = dropped_tokens(key_array, x, p_min, p_max)
        np.testing.assert_array_equal(run(programs[f"dropped_{i}"], {"key": key_array, "x": x})[0], want)
    many = np.zeros(10007, np.float32)
    each, shared, _ = run(programs["words"], {"key": key_array, "x": many})
    np.testing.assert_array_equal(each, words(key_array, many.shape))
    np.testing.assert_array_equal(shared, np.repeat(words(key_array, (1430,)), 7)[:10007])


@pytest.mark.compiled
def test_draws_beside_a_number_a_row(programs: Any) -> None:
    """MAX broadcasts wrongly against a range that it fuses; what is drawn is none any more."""
    x = 1000.0 * np.arange(1, 54)[:, None]
    integers, normals = run(programs["beside_rows"], {"key": KEY, "x": x})
    np.testing.assert_array_equal(integers, x + words(KEY, (53, 11)).astype(np.float64))
    np.testing.assert_allclose(normals, x + normal(KEY, (53, 11), "float64"), rtol=1e-12)
