"""Hand-checkable attention: masked rows, alignment, causality, pairings, and numbers that must not leak."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from noeira import nn
from noeira.ops.attention import Options, attention, attention_grad
from noeira.runtime.programs import Program, build
from noeira.runtime.staging import StagedGraph, staging
from tests.compiled import CPU, run

F4 = np.float32
MASKS: dict[str, str | None] = {"none": None, "bool": "bool", "numbers": "float32"}
SHAPES = {"q": ("b", 1, "i", 3), "k": ("b", 1, "j", 3), "v": ("b", 1, "j", 2), "u": ("b", 1, "i", 2)}


def _both(q: Any, k: Any, v: Any, u: Any, mask: Any, causal: bool) -> tuple[Any, ...]:
    options = Options(1, 1, causal, 1.0)
    out, stats = attention(q, k, v, mask, None, None, options)
    return (out, *attention_grad(q, k, v, out, stats, u, mask, None, None, options))


@pytest.fixture(scope="module")
def programs() -> dict[str, Program]:
    graphs = []
    for name, dtype in MASKS.items():
        for causal in (False, True):
            graph = StagedGraph(f"attention_{name}_{int(causal)}")
            with staging(graph):
                values = [graph.input(key, shape, "float32") for key, shape in SHAPES.items()]
                mask = None if dtype is None else graph.input("mask", ("b", 1, "i", "j"), dtype)
                graphs.append(graph.finish(*_both(*values, mask, causal)))
    return build(graphs, CPU, "attention's corner cases")


@pytest.fixture(params=["reference", pytest.param("compiled", marks=pytest.mark.compiled)])
def attend(request: pytest.FixtureRequest) -> Any:
    """out, dq, dk, dv of (q, k, v, u, mask, causal) on one of the two paths."""

    def go(q: Any, k: Any, v: Any, u: Any, mask: Any = None, causal: bool = False) -> tuple[np.ndarray, ...]:
        if request.param == "reference":
            return _both(q, k, v, u, mask, causal)
        name = "none" if mask is None else "bool" if mask.dtype == bool else "numbers"
        arrays = {"q": q, "k": k, "v": v, "u": u} | ({} if mask is None else {"mask": mask})
        programs = request.getfixturevalue("programs")
        return tuple(run(programs[f"attention_{name}_{int(causal)}"], arrays))

    return go


def _draw(queries: int, keys: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    sizes = ((queries, 3), (keys, 3), (keys, 2), (queries, 2))
    return tuple(rng.standard_normal((1, 1, *size)).astype(F4) for size in sizes)


def _as_numbers(mask: np.ndarray, blocked: float) -> np.ndarray:
    return np.where(mask, F4(0), F4(blocked))


KINDS = ("bool", "-inf", "-1e30", "smallest")


def _mask_as(kind: str, mask: np.ndarray) -> np.ndarray:
    values = {"-inf": -np.inf, "-1e30": -1e30, "smallest": float(np.finfo(F4).min)}
    return mask if kind == "bool" else _as_numbers(mask, values[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_fully_masked_row(attend: Any, kind: str) -> None:
    """Row 1 of cases.md."""
    q, k = np.zeros((1, 1, 2, 3), F4), np.zeros((1, 1, 2, 3), F4)
    v, u = np.array([[[[1, 1], [3, 3]]]], F4), np.ones((1, 1, 2, 2), F4)
    mask = _mask_as(kind, np.array([[[[False, False], [False, True]]]]))
    out, dq, dk, dv = attend(q, k, v, u, mask)
    np.testing.assert_array_equal(out[0, 0], [[0, 0], [3, 3]])
    np.testing.assert_array_equal(dv[0, 0], [[0, 0], [1, 1]])
    assert not dq.any() and not dk.any()


@pytest.mark.parametrize("queries", [1, 50, 130])
@pytest.mark.parametrize("kind", KINDS)
def test_everything_masked(attend: Any, kind: str, queries: int) -> None:
    mask = _mask_as(kind, np.zeros((1, 1, queries, 101), bool))
    for array in attend(*_draw(queries, 101), mask):
        np.testing.assert_array_equal(array, 0)


@pytest.mark.parametrize(("queries", "keys"), [(1, 3), (2, 5), (5, 2), (40, 130), (130, 40)])
def test_causal_is_aligned_bottom_right(attend: Any, queries: int, keys: int) -> None:
    """Row 2: the last query sees every key; queries before the first key see none."""
    arrays = _draw(queries, keys)
    mask = np.tri(queries, keys, keys - queries, dtype=bool)[None, None]
    for got, want in zip(attend(*arrays, None, True), attend(*arrays, mask), strict=True):
        np.testing.assert_allclose(got, want, atol=2e-6)
    if queries == 1:
        for got, want in zip(attend(*arrays, None, True), attend(*arrays), strict=True):
            np.testing.assert_allclose(got, want, atol=1e-6)


@pytest.mark.parametrize("moved", [0, 1, 47, 48, 95, 96, 129])
def test_causality(attend: Any, moved: int) -> None:
    """Row 23: what happens at token t changes nothing before t; without the causal rule it does."""
    q, k, v, u = _draw(130, 130)
    k2, v2 = k.copy(), v.copy()
    k2[:, :, moved], v2[:, :, moved] = 5, -5
    before, after = attend(q, k, v, u, None, True)[0], attend(q, k2, v2, u, None, True)[0]
    np.testing.assert_array_equal(before[:, :, :moved], after[:, :, :moved])
    assert (before[:, :, moved] != after[:, :, moved]).any()
    if moved:
        assert (attend(q, k, v, u)[0][:, :, 0] != attend(q, k2, v2, u)[0][:, :, 0]).any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_masked_numbers_do_not_leak(attend: Any, kind: str, value: float) -> None:
    q, k, v, u = _draw(50, 101)
    allowed = np.random.default_rng(1).random((1, 1, 50, 101)) < 0.5
    allowed[..., 7] = False
    mask = _mask_as(kind, allowed)
    want = attend(q, k, v, u, mask)
    k[:, :, 7], v[:, :, 7] = value, value
    for got, old in zip(attend(q, k, v, u, mask), want, strict=True):
        np.testing.assert_array_equal(got, old)


@pytest.mark.parametrize("token", [1, 60, 120])
def test_the_future_does_not_leak(attend: Any, token: int) -> None:
    q, k, v, u = _draw(130, 130)
    want = attend(q, k, v, u, None, True)[0]
    k[:, :, token], v[:, :, token] = np.nan, np.inf
    got = attend(q, k, v, u, None, True)
    np.testing.assert_array_equal(got[0][:, :, :token], want[:, :, :token])
    assert np.isfinite(got[1][:, :, :token]).all() and np.isnan(got[0][:, :, token:]).all()


def test_visible_nan_is_seen(attend: Any) -> None:
    q, k, v, u = _draw(5, 5)
    q[:, :, 2] = np.nan
    out = attend(q, k, v, u)[0]
    assert np.isnan(out[:, :, 2]).all() and np.isfinite(out[:, :, [0, 1, 3, 4]]).all()


def test_huge_scores(attend: Any) -> None:
    """Row 3, through attention."""
    q, k = np.zeros((1, 1, 1, 3), F4), np.zeros((1, 1, 2, 3), F4)
    q[..., 0], k[0, 0, 0, 0] = 100, 100
    out, *gradients = attend(q, k, np.array([[[[1, 2], [3, 4]]]], F4), np.ones((1, 1, 1, 2), F4))
    np.testing.assert_array_equal(out[0, 0], [[1, 2]])
    assert all(np.isfinite(array).all() for array in gradients)


def test_rope_pairings_differ() -> None:
    """Row 24: at position 1 with theta 1 every pair turns by one radian."""
    x = np.array([[[9, 9, 9, 9], [1, 2, 3, 4]]], np.float64)
    c, s = np.cos(1), np.sin(1)
    halves = nn.RoPE(4, theta=1.0).forward(x)[0]
    neighbours = nn.RoPE(4, theta=1.0, interleaved=True).forward(x)[0]
    np.testing.assert_allclose(halves[0, 1], [c - 3 * s, 2 * c - 4 * s, 3 * c + s, 4 * c + 2 * s])
    np.testing.assert_allclose(neighbours[0, 1], [c - 2 * s, 2 * c + s, 3 * c - 4 * s, 4 * c + 3 * s])
    np.testing.assert_array_equal(halves[0, 0], x[0, 0])


def test_modality_masks() -> None:
    kinds = ("encoder", "decoder", "wm_agent", "wm_agent_isolated", "wm_agent_bc")
    seen = {kind: (nn.build_modality_mask(kind, [0, 1, 1, 2]) == 0).astype(int).tolist() for kind in kinds}
    assert seen["encoder"] == [[1, 1, 1, 1], [0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 1]]
    assert seen["decoder"] == [[1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 1, 0], [1, 0, 0, 1]]
    assert seen["wm_agent"] == [[1, 1, 1, 1]] * 4
    assert seen["wm_agent_isolated"] == [[1, 0, 0, 0], [0, 1, 1, 1], [0, 1, 1, 1], [0, 1, 1, 1]]
    assert seen["wm_agent_bc"] == [[1, 1, 1, 1], [0, 1, 1, 1], [0, 1, 1, 1], [0, 1, 1, 1]]
    for kind in kinds[2:]:  # no agents: the world model as it is without them
        assert (nn.build_modality_mask(kind, [0, 1, 1, 2], special=5) == 0).all()
    assert (nn.all_allow_mask(3) == 0).all()
