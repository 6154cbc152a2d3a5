"""Every row of the catalogue through the gates, on the NumPy reference."""

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
    assert_torch,
)


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.__name__.removeprefix("assert_"))
@pytest.mark.parametrize(("row", "sample"), catalogue.cases())
def test_gate(row: Row, sample: Sample, gate: Any) -> None:
    gate(row.case(sample))


def test_every_public_layer_and_loss_has_a_row() -> None:
    exported = {name: getattr(nn, name) for name in nn.__all__}
    rows = tuple(catalogue.every_row())
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
