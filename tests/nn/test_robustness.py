"""Inputs as users have them: every row of every family on other layouts, byte orders, dtypes and batch sizes."""

from typing import Any

import numpy as np
import pytest

from noeira import nn
from tests import catalogue
from tests.catalogue import Row
from tests.compare import Case, assert_close, assert_identical, reference

ROWS = catalogue.every_row()
EVERY_ROW = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
LAYERS = [row for row in ROWS if not issubclass(row.cls, nn.Loss)]


def _every_second(x: np.ndarray) -> np.ndarray:
    """The same numbers with others in between, which must not be read."""
    wide = np.full((*x.shape[:-1], 2 * x.shape[-1]), 77).astype(x.dtype)
    wide[..., ::2] = x
    return wide[..., ::2]


LAYOUTS = {
    "every second element": _every_second,
    "Fortran order": np.asfortranarray,
    "negative stride": lambda x: x[..., ::-1].copy()[..., ::-1],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@EVERY_ROW
def test_non_contiguous_inputs_change_nothing(row: Row, layout: str) -> None:
    case = row.case(row.samples[0])
    want = reference(case)
    plain = case.inputs_as
    case.inputs_as = lambda dtype: [LAYOUTS[layout](x) if x.ndim else x for x in plain(dtype)]  # type: ignore[method-assign]
    assert_close(case, reference(case), want, 1e-14)


def _called(case: Case, inputs: list[np.ndarray]) -> np.ndarray:
    nn.seed(1)
    return np.asarray(case.subject(*inputs))


@EVERY_ROW
def test_big_endian_inputs_are_right(row: Row) -> None:
    case = row.case(row.samples[0])
    inputs = case.inputs_as("float32")
    want = _called(case, inputs)
    got = _called(case, [x.astype(x.dtype.newbyteorder(">")) for x in inputs])
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("row", LAYERS, ids=lambda row: row.name)
def test_float64_inputs_to_a_float32_layer_are_converted(row: Row) -> None:
    case = row.case(row.samples[0])
    want, got = (_called(case, case.inputs_as(dtype)) for dtype in ("float32", "float64"))
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, want)


@EVERY_ROW
def test_a_run_is_repeatable(row: Row) -> None:
    case = row.case(row.samples[0])
    assert_identical(case, reference(case), reference(case))


def _cut(row: Row, batch: int) -> Case:
    """The first sample with another number of rows."""
    case = row.case(row.samples[0])
    first = case.inputs[0].shape[0]
    case.inputs = tuple(x[[0] * batch] if batch else x[:0] for x in case.inputs if x.ndim and x.shape[0] == first)
    return case


def _batched(row: Row) -> bool:
    """Whether all inputs share a leading batch axis."""
    inputs: Any = row.case(row.samples[0]).inputs
    return all(x.ndim and x.shape[0] == inputs[0].shape[0] for x in inputs)


BATCHED = [row for row in ROWS if _batched(row)]
ALONE = "BatchNorm"
"""Layers whose training needs more than one number a channel, and say so."""


@pytest.mark.parametrize("row", BATCHED, ids=lambda row: row.name)
def test_a_batch_of_none_gives_none_and_no_gradient(row: Row) -> None:
    case = _cut(row, 0)
    try:
        got = reference(case)
    except nn.ShapeError as error:
        assert ALONE in str(error) and "more than one" in str(error), error
        return
    for key, array in got.items():
        assert not array.any() or key == "y", f"{key} is not zero"
        assert np.isfinite(array).all(), f"{key} is not finite"


@pytest.mark.parametrize("row", BATCHED, ids=lambda row: row.name)
def test_a_batch_of_one_is_the_first_of_a_batch_or_says_why_not(row: Row) -> None:
    case = _cut(row, 1)
    try:
        got = reference(case)
    except nn.ShapeError as error:
        assert ALONE in str(error) and "more than one" in str(error), error
        return
    assert all(np.isfinite(array).all() for array in got.values())
