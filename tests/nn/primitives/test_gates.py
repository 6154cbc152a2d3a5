"""Every row of the catalogue through the gates, on the NumPy reference."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noeira import nn
from tests import catalogue
from tests.catalogue import Mistake, Row, Sample
from tests.compare import (
    GATES,
    Case,
    assert_accumulates,
    assert_close,
    assert_identical,
    assert_torch,
    reference,
)


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.__name__.removeprefix("assert_"))
@pytest.mark.parametrize(("row", "sample"), catalogue.cases())
def test_gate(row: Row, sample: Sample, gate: Any) -> None:
    gate(row.case(sample))


def test_every_public_layer_and_loss_has_a_row() -> None:
    exported = {name: getattr(nn, name) for name in nn.__all__}
    families = [
        importlib.import_module(f"tests.{path.stem}") for path in Path(catalogue.__file__).parent.glob("catalogue*.py")
    ]
    rows = tuple(row for family in families for row in (*family.ROWS, *getattr(family, "GATED", ())))
    assert catalogue.missing(exported, rows) == []
    # and it can fail
    assert catalogue.missing({**exported, "New": type("New", (nn.Module,), {})}, rows) == ["New"]
    assert "Dropout" in catalogue.missing(exported, tuple(row for row in catalogue.ROWS if row.cls is not nn.Dropout))


@pytest.mark.parametrize("mistake", catalogue.mistakes())
def test_mistake_is_refused_in_words(mistake: Mistake) -> None:
    with pytest.raises(mistake.error, match=mistake.match):
        mistake.call()


def leaves(saved: object) -> list[Any]:
    """What a forward saved, flat; a shape counts as one thing."""
    if saved is None:
        return []
    if isinstance(saved, tuple) and not all(isinstance(item, int | np.integer) for item in saved):
        return [leaf for item in saved for leaf in leaves(item)]
    return [saved]


@pytest.mark.parametrize("row", [row for row in catalogue.ROWS if row.saves != ("chain",)], ids=lambda row: row.name)
def test_saves_what_the_row_says_and_nothing_else(row: Row) -> None:
    case = row.case(row.samples[0])
    inputs = case.inputs_as("float32")
    nn.seed(0)
    y, saved = case.subject.forward(*inputs)
    kept = leaves(saved)
    assert len(kept) == len(row.saves)
    for value, what in zip(kept, row.saves, strict=True):
        match what:
            case "x":
                assert value is inputs[0]
            case "target":
                assert value is inputs[1]
            case "y":
                assert value is y
            case "z":
                assert value.shape == y.shape and value is not y
            case "shape":
                assert value == inputs[0].shape
            case "draw":
                assert value.dtype == np.int64 and value.shape == (3,)
            case "lse":  # each row's maximum, and log-sum-exp above it
                assert value.shape == (inputs[0][..., 0].size, 2)
            case "weight":
                assert np.ndim(value) == 0
            case _:
                raise AssertionError(what)


LOSSES = {row.cls for row in catalogue.ROWS if issubclass(row.cls, nn.Loss)}
ROWS = pytest.mark.parametrize("row", catalogue.ROWS, ids=lambda row: row.name)


def _like(x: np.ndarray, layout: str) -> np.ndarray:
    """The same numbers in another layout."""
    if layout == "every second element":
        wide = np.full((*x.shape[:-1], 2 * x.shape[-1]), 77).astype(x.dtype)
        wide[..., ::2] = x
        return wide[..., ::2]
    if layout == "Fortran order":
        return np.asfortranarray(x)
    return x[..., ::-1].copy()[..., ::-1]


@pytest.mark.parametrize("layout", ["every second element", "Fortran order", "negative stride"])
@ROWS
def test_non_contiguous_inputs_change_nothing(row: Row, layout: str) -> None:
    case = row.case(row.samples[0])
    want = reference(case)
    case.inputs = tuple(_like(x, layout) for x in case.inputs)
    plain = case.inputs_as
    case.inputs_as = lambda dtype: [_like(x, layout) for x in plain(dtype)]  # type: ignore[method-assign]
    got = reference(case)
    assert_close(case, got, want, 1e-14)


@ROWS
def test_big_endian_inputs_are_right_or_refused(row: Row) -> None:
    case = row.case(row.samples[0])
    inputs = case.inputs_as("float32")
    nn.seed(1)
    want = case.subject(*inputs)
    nn.seed(1)
    got = np.asarray(case.subject(*(x.astype(x.dtype.newbyteorder(">")) for x in inputs)))
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("row", [row for row in catalogue.ROWS if row.cls not in LOSSES], ids=lambda row: row.name)
def test_float64_inputs_to_a_float32_model_are_converted(row: Row) -> None:
    case = row.case(row.samples[0])
    nn.seed(1)
    want = case.subject(*case.inputs_as("float32"))
    nn.seed(1)
    got = case.subject(*case.inputs_as("float64"))
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, want)


@ROWS
def test_a_run_is_repeatable(row: Row) -> None:
    case = row.case(row.samples[0])
    assert_identical(case, reference(case), reference(case))


# ---- random chains ---------------------------------------------------------------------------------------------------

FUSED = (nn.LinearReLU, nn.LinearTanh, nn.LinearSigmoid, nn.LinearSwish, nn.LinearMish, nn.LinearGELU, nn.Linear)
PLAIN = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.SiLU, nn.Mish, nn.GELU, lambda: nn.GELU("tanh"))


@st.composite
def chains(draw: st.DrawFn) -> nn.Sequential:
    width = draw(st.integers(1, 9))
    layers: list[nn.Module] = []
    for _ in range(draw(st.integers(1, 5))):
        if draw(st.booleans()):
            out = draw(st.integers(1, 9))
            layers.append(draw(st.sampled_from(FUSED))(width, out))
            width = out
        else:
            layers.append(draw(st.sampled_from(PLAIN))())
    return nn.Sequential(*layers)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(chains(), st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(0, 2**31))
def test_random_chain_agrees_with_pytorch(net: nn.Sequential, leading: list[int], seed: int) -> None:
    width = net.expects()
    x = np.random.default_rng(seed).standard_normal((*leading, width[1] if width else 3)).astype(np.float32)
    case = Case(f"chain {seed}", net, (x,), catalogue._chain_twin(net))
    assert_torch(case)
    assert_accumulates(case)
