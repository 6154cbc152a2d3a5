"""The linear map on bfloat16 on CPUs: float32 sums, one rounding of the result, float32 parameter gradients."""

from functools import cache

import ml_dtypes
import numpy as np
import pytest

from noeira import ops
from noeira.runtime.devices import Device, DeviceArray, to_numpy
from noeira.runtime.programs import Program, build
from noeira.runtime.staging import StagedGraph, staging

pytestmark = pytest.mark.compiled

CPU = Device("cpu")
BF16 = np.dtype(ml_dtypes.bfloat16)
ROUNDING = 2.0**-8
"""Relative error of one rounding to bfloat16."""
SHAPES = [
    (1, 1, 1),
    (1, 129, 65),
    (37, 1, 3),
    (65, 129, 1),
    (11, 767, 31),
    (12, 768, 32),
    (13, 769, 33),
    (200, 300, 97),
    (0, 3, 4),
]


@cache
def program() -> Program:
    """Forward and all gradients; sizes are free."""
    graph = StagedGraph("linear_bf16")
    with staging(graph):
        x, w = graph.input("x", ("m", "k"), "bfloat16"), graph.input("w", ("k", "n"), "bfloat16")
        b, u = graph.input("b", ("n",), "bfloat16"), graph.input("u", ("m", "n"), "bfloat16")
        dw, db = (
            graph.input("dw", ("k", "n"), "float32", mutable=True),
            graph.input("db", ("n",), "float32", mutable=True),
        )
        ops.linear_param_grad(dw, db, x, u)
        graph.finish(ops.linear(x, w, b), ops.linear(x, w, b, "relu"), ops.linear_input_grad(u, w))
    return build([graph], CPU, "linear in bfloat16")["linear_bf16"]


def run(arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Results, then both gradients, which start at 1."""
    k, n = arrays["w"].shape
    grads = {"dw": np.ones((k, n), np.float32), "db": np.ones(n, np.float32)}
    memory = {name: DeviceArray.of(array, CPU) for name, array in (arrays | grads).items()}
    results = [np.array(to_numpy(result)) for result in program().bind(memory).run()]
    return [*results, grads["dw"], grads["db"]]


def inputs(m: int, k: int, n: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(m + k + n)
    shapes = {"x": (m, k), "w": (k, n), "b": (n,), "u": (m, n)}
    return {name: draw.standard_normal(shape).astype(BF16) for name, shape in shapes.items()}


def close(got: np.ndarray, want: np.ndarray, terms: np.ndarray, rounding: float) -> None:
    """One rounding of the result, and float32 sums of terms whose magnitudes add up to `terms`."""
    error = np.abs(got.astype(np.float64) - want)
    assert (error <= rounding * np.abs(want) + 64 * np.finfo(np.float32).eps * terms).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_against_float64(shape: tuple[int, int, int]) -> None:
    arrays = inputs(*shape)
    x, w, b, u = (arrays[name].astype(np.float64) for name in "xwbu")
    y, relu, dx, dw, db = run(arrays)
    assert y.dtype == dx.dtype == BF16
    want, terms = x @ w + b, np.abs(x) @ np.abs(w) + np.abs(b)
    close(y, want, terms, ROUNDING)
    close(relu, np.maximum(want, 0), terms, ROUNDING)
    close(dx, u @ w.T, np.abs(u) @ np.abs(w).T, ROUNDING)
    close(dw, 1 + x.T @ u, 1 + np.abs(x).T @ np.abs(u), 0)
    close(db, 1 + u.sum(axis=0), 1 + np.abs(u).sum(axis=0), 0)


def test_a_second_run_is_bit_identical() -> None:
    arrays = inputs(61, 130, 35)
    for first, second in zip(run(arrays), run(arrays), strict=True):
        assert first.tobytes() == second.tobytes()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_numbers_stay_in_their_row_and_column(value: float) -> None:
    arrays = inputs(9, 20, 17)
    arrays["x"][4, 7] = value
    y, _, dx, dw, _ = run(arrays)
    assert not np.isfinite(y[4].astype(np.float32)).any() and np.isfinite(np.delete(y, 4, 0).astype(np.float32)).all()
    assert np.isfinite(dx.astype(np.float32)).all()
    assert not np.isfinite(dw[7]).any() and np.isfinite(np.delete(dw, 7, 0)).all()
