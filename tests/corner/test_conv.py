"""Hand-checkable cases of convolution and pooling, and their whole kinds, on the reference and compiled.

Spatial sizes are known when a program is compiled, so each case is a program of its own; all are one set.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from noeira import nn
from noeira.runtime.programs import Program, build
from tests.catalogue import Row, Sample
from tests.catalogue_conv import ROWS
from tests.compare import assert_close, assert_doubled, assert_float32, assert_identical, assert_propagates, reference
from tests.compiled import CPU, first_programs, run, run_case, stage


def _fixed(layer: nn.Module, weight: list[float] | None = None) -> nn.Module:
    """The layer with the weights given, and no bias."""
    layer.init()
    if weight is not None:
        param = layer.named_parameters()["weight"]
        param.val = np.array(weight).reshape(param.shape)
    return layer


def _line(*values: float) -> np.ndarray:
    return np.array(values, np.float32).reshape(1, 1, -1)


def _row(*values: float) -> np.ndarray:
    return np.array(values, np.float32).reshape(1, 1, 1, -1)


INF, NAN = float("inf"), float("nan")

# name: (layer, x, dy, expected y, expected dx, expected dw)
HAND: dict[str, tuple[nn.Module, np.ndarray, np.ndarray, Any, Any, Any]] = {
    "stride_that_does_not_divide": (
        _fixed(nn.Conv1D(1, 1, 2, stride=2, bias=False), [1, 10]),
        _line(1, 2, 3, 4, 5), _line(1, 1), [21, 43], [1, 10, 1, 10, 0], [4, 6],
    ),
    "dilation": (
        _fixed(nn.Conv1D(1, 1, 2, dilation=2, bias=False), [1, 1]),
        _line(1, 2, 3, 4, 5), _line(1, 1, 1), [4, 6, 8], [1, 1, 2, 1, 1], [6, 12],
    ),
    "correlation_not_convolution": (
        _fixed(nn.Conv1D(1, 1, 3, padding=1, bias=False), [1, 2, 3]),
        _line(0, 1, 0), _line(1, 0, 0), [3, 2, 1], [2, 3, 0], [0, 0, 1],
    ),
    "transposed_spreads": (
        _fixed(nn.Conv2DTranspose(1, 1, (1, 2), stride=(1, 2), bias=False), [1, 10]),
        _row(1, 2), _row(1, 1, 1, 1), [1, 10, 2, 20], [11, 11], [3, 3],
    ),
    "max_pool_padding_never_wins": (
        nn.MaxPool2D((1, 3), stride=1, padding=(0, 1)), _row(-1, -1, -1), _row(1, 1, 1), [-1, -1, -1], [2, 1, 0], None,
    ),
    "max_pool_overlap": (nn.MaxPool2D((1, 2), stride=1), _row(1, 3, 2), _row(1, 1), [3, 3], [0, 2, 0], None),
    "max_pool_first_of_equals": (nn.MaxPool2D((1, 3)), _row(5, 5, 5), _row(7), [5], [7, 0, 0], None),
    "max_pool_all_minus_inf": (nn.MaxPool2D((1, 2)), _row(-INF, -INF), _row(3), [-INF], [3, 0], None),
    "max_pool_nan_wins": (
        nn.MaxPool2D((1, 3)), _row(1, NAN, 5, 2, 7, 3), _row(1, 1), [NAN, 7], [0, 1, 0, 0, 1, 0], None,
    ),
    "avg_pool_counts_padding": (
        nn.AvgPool2D((1, 2), stride=1, padding=(0, 1)), _row(2, 4), _row(1, 1, 1), [1, 3, 2], [1, 1], None,
    ),
    "avg_pool_does_not_count_padding": (
        nn.AvgPool2D((1, 2), stride=1, padding=(0, 1), count_include_pad=False),
        _row(2, 4), _row(1, 1, 1), [2, 3, 4], [1.5, 1.5], None,
    ),
    "nan_stays_in_its_windows": (
        _fixed(nn.Conv1D(1, 1, 2, bias=False), [1, 1]),
        _line(1, NAN, 3, 4, 5), _line(1, 1, 1, 1), [NAN, NAN, 7, 9], [1, 2, 2, 2, 1], [NAN, NAN],
    ),
    "infinity_stays_in_its_windows": (
        _fixed(nn.Conv1D(1, 1, 2, bias=False), [1, 1]),
        _line(1, INF, 3, 4, 5), _line(1, 1, 1, 1), [INF, INF, 7, 9], [1, 2, 2, 2, 1], [INF, INF],
    ),
}  # fmt: skip

MORE = {
    "Conv2D": (
        "padded", "pointwise", "strided pointwise", "a stride beyond the kernel", "everything uneven",
        "dilation and stride share a factor", "groups", "depthwise", "depthwise, multiplied, strided",
        "padding beyond the input", "same, even kernel", "over the tiles", "wide rows", "deep",
    ),
    "Conv1D": ("strided, padded", "grouped"),
    "Conv2DTranspose": ("overlapping", "groups", "everything uneven", "no bias"),
    "MaxPool2D": ("uneven", "gaps", "wide", "dilated", "ceil, padded"),
    "AvgPool2D": ("uneven", "gaps", "wide", "ceil, padding not counted", "a divisor"),
    "AdaptiveAvgPool2D": ("uneven", "more outputs than inputs"),
    "Upsample2x": ("wide", "many channels last"),
    "Transpose2D": ("whole vectors",),
}  # fmt: skip
"""Samples that are compiled beside a row's first, because other code of the compiled path runs for them."""

DOUBLE = ("Conv2D", "Conv2DTranspose", "MaxPool2D", "AvgPool2D")
"""Rows also compiled in float64."""


def _shapes(row: Row, sample: Sample, dtype: str) -> list[tuple[tuple[Any, ...], str]]:
    """The inputs with a free batch dimension."""
    return [(("b", *x.shape[1:]), dtype) for x in row.case(sample).inputs]


def _name(row: Row, sample: Sample, dtype: str = "float32") -> str:
    """One program serves all samples of a row that differ in their batch only."""
    return re.sub(r"\W+", "_", f"{row.name} {sample.args} {_shapes(row, sample, dtype)}")


def _graph(row: Row, sample: Sample, dtype: str) -> Any:
    case = row.case(sample)
    case.convert(dtype)
    return stage(_name(row, sample, dtype), case.subject, _shapes(row, sample, dtype))


PAIRS = [(row, sample) for row in ROWS for sample in first_programs(row, _name, MORE.get(row.name, ()))]
CASES = [pytest.param(row, sample, id=f"{row.name}, {sample.label}") for row, sample in PAIRS]


@cache
def _programs() -> dict[str, Program]:
    graphs = list({_name(row, sample): _graph(row, sample, "float32") for row, sample in PAIRS}.values())
    graphs += [_graph(row, row.samples[0], "float64") for row in ROWS if row.name in DOUBLE]
    graphs += [stage(name, layer, [(x.shape, "float32")]) for name, (layer, x, *_) in HAND.items()]
    return build(graphs, CPU, f"{len(graphs)} programs of convolution, pooling and layout")


@pytest.fixture(scope="session")
def programs() -> dict[str, Program]:
    """All of them: one compilation."""
    return _programs()


def _check(name: str, y: np.ndarray, dx: np.ndarray, dw: np.ndarray | None) -> None:
    for got, want in zip((y, dx, dw), HAND[name][3:], strict=True):
        if want is not None:
            np.testing.assert_array_equal(np.asarray(got).reshape(-1), np.array(want, np.float32))


@pytest.mark.parametrize("name", HAND)
def test_by_hand_reference(name: str) -> None:
    layer, x, dy, *_ = HAND[name]
    layer.zero_grad()
    with np.errstate(invalid="ignore"):
        y, saved = layer.forward(x)
        dx = layer.vjp(saved, dy)
    _check(name, y, dx, next((param.grd for param in layer.named_parameters().values()), None))


@pytest.mark.compiled
@pytest.mark.parametrize("name", HAND)
def test_by_hand_compiled(name: str, programs: dict[str, Program]) -> None:
    from noeira.nn.core.binding import bindings

    layer, x, dy, *_ = HAND[name]
    layer.zero_grad()
    y, dx = run(programs[name], {**bindings(layer), "x0": x, "u": dy, "counters": np.zeros(8, np.int64)})
    _check(name, y, dx, next((param.grd for param in layer.named_parameters().values()), None))


@pytest.mark.compiled
@pytest.mark.parametrize(("row", "sample"), CASES)
def test_compiled_float32(row: Row, sample: Sample, programs: dict[str, Program]) -> None:
    case, program = row.case(sample), programs[_name(row, sample)]
    got = run_case(program, case)
    assert_float32(case, got, reference(case))
    assert_identical(case, got, run_case(program, case))
    assert_doubled(case, got, run_case(program, case, vjps=2))


@pytest.mark.compiled
@pytest.mark.parametrize(("row", "sample"), CASES)
def test_non_finite_numbers_come_out_as_in_the_reference(
    row: Row, sample: Sample, programs: dict[str, Program]
) -> None:
    assert_propagates(row.case(sample), lambda case: run_case(programs[_name(row, sample)], case))


@pytest.mark.compiled
@pytest.mark.parametrize("row", [row for row in ROWS if row.name in DOUBLE], ids=lambda row: row.name)
def test_compiled_float64(row: Row, programs: dict[str, Program]) -> None:
    case = row.case(row.samples[0])
    got = run_case(programs[_name(row, row.samples[0], "float64")], case, "float64")
    assert_close(case, got, reference(case), 1e-12)


@pytest.mark.compiled
def test_a_faulty_program_is_seen(programs: dict[str, Program]) -> None:
    row = next(row for row in ROWS if row.name == "Conv2D")
    first, case = row.samples[0], row.case(row.samples[0])
    got = run_case(programs[_name(row, first)], case)
    got["weight"][0, 0, 0, 0] *= 1 + 1e-4
    with pytest.raises(AssertionError, match="'weight'"):
        assert_float32(case, got, reference(case))


@pytest.mark.parametrize("kernel", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_every_geometry_agrees_with_pytorch(kernel: int, stride: int, dilation: int, groups: int) -> None:
    for padding in (0, 1, 4):
        layer = nn.Conv2D(4, 4, kernel, stride, padding, dilation, groups).init().to(dtype="float64")
        rng = np.random.default_rng(kernel)
        x = rng.standard_normal((2, 4, 9, 8))
        tensors = {n: torch.tensor(p.val.copy(), requires_grad=True) for n, p in layer.named_parameters().items()}
        t = torch.tensor(x, requires_grad=True)
        want = F.conv2d(t, tensors["weight"], tensors["bias"], stride, padding, dilation, groups)
        y, saved = layer.forward(x)
        dy = rng.standard_normal(y.shape)
        layer.zero_grad()
        dx = layer.vjp(saved, dy)
        want.backward(torch.tensor(dy))
        pairs = [(y, want.detach()), (dx, t.grad)]
        pairs += [(layer.named_parameters()[name].grd, value.grad) for name, value in tensors.items()]
        for got, there in pairs:
            np.testing.assert_allclose(got, there.numpy(), rtol=0, atol=1e-11)


def test_a_frozen_convolution_gives_the_input_gradient_only() -> None:
    layer = nn.Conv2D(3, 4, 3).init()
    layer.freeze()
    x = np.ones((1, 3, 5, 5), np.float32)
    y, saved = layer.forward(x)
    assert layer.vjp(saved, np.ones_like(y)).shape == x.shape
    layer.unfreeze()
    assert not layer.weight.grd.any()


# ---- the gates can fail ----------------------------------------------------------------------------------------------


def _rolled(layer: Any, saved: Any) -> Any:
    return np.roll(saved, 1, axis=-1) if isinstance(saved, np.ndarray) else (np.zeros_like(saved[0]), *saved[1:])


@pytest.mark.parametrize("name", ["Conv2D", "Conv1D", "Conv2DTranspose", "MaxPool2D"])
def test_gates_see_a_shifted_window(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.compare import GATES

    row = next(row for row in ROWS if row.name == name)
    vjp = row.cls.vjp
    monkeypatch.setattr(row.cls, "vjp", lambda self, saved, grad: vjp(self, _rolled(self, saved), grad))
    for gate in GATES[:3]:
        with pytest.raises(AssertionError, match=name):
            gate(row.case(row.samples[0]))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_gates_see_half_a_gradient(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.compare import GATES

    vjp = row.cls.vjp
    monkeypatch.setattr(row.cls, "vjp", lambda self, saved, grad: 0.5 * vjp(self, saved, grad))
    for gate in GATES[:3]:
        with pytest.raises(AssertionError, match=re.escape(row.name)):
            gate(row.case(row.samples[0]))
