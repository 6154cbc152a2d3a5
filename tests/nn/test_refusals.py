"""What every layer refuses: inputs of another kind, none at all, and output gradients of another shape."""

import contextlib
import inspect
from typing import Any

import numpy as np
import pytest

from noeira import nn
from noeira.nn.core.composition import leaves
from tests import catalogue
from tests.catalogue import Row
from tests.compare import Case

LAYERS = [row for row in catalogue.every_row() if not issubclass(row.cls, nn.Loss)]
EVERY_LAYER = pytest.mark.parametrize("row", LAYERS, ids=lambda row: row.name)

KINDS: dict[str, Any] = {
    "integers": lambda x: x.astype(np.int64),
    "booleans": lambda x: x > 0,
    "complex numbers": lambda x: x.astype(np.complex64),
    "objects": lambda x: x.astype(object),
    "a list": lambda x: x.tolist() if x.ndim else [x.item()],
    "nothing": lambda x: None,
}


def _case(row: Row) -> Case:
    nn.seed(1)
    return row.case(row.samples[0])


def _optional(subject: nn.Module) -> list[int]:
    return [i for i, p in enumerate(inspect.signature(subject.forward).parameters.values()) if p.default is None]


@pytest.mark.parametrize("kind", KINDS)
@EVERY_LAYER
def test_another_kind_of_input_is_refused(row: Row, kind: str) -> None:
    case = _case(row)
    inputs = case.inputs_as("float32")
    for position, x in enumerate(inputs):
        if position in case.subject.integers or not np.issubdtype(x.dtype, np.floating):
            continue
        if kind == "nothing" and position in _optional(case.subject):
            continue
        given = [KINDS[kind](x) if i == position else other for i, other in enumerate(inputs)]
        with pytest.raises(nn.ShapeError, match=r"expected"):
            case.subject(*given)


@EVERY_LAYER
def test_no_input_is_refused(row: Row) -> None:
    with pytest.raises(nn.ShapeError, match="expected"):
        _case(row).subject()


@pytest.mark.parametrize("shape", [(), (3,)], ids=["a number", "one axis"])
@EVERY_LAYER
def test_too_few_axes_are_refused_or_enough(row: Row, shape: tuple[int, ...]) -> None:
    case = _case(row)
    inputs = [np.ones(shape, x.dtype) for x in case.inputs_as("float32")]
    try:
        y = case.subject(*inputs)
    except nn.ShapeError:
        return
    for array in y if isinstance(y, tuple) else (y,):
        assert np.isfinite(array).all()


OTHER_SHAPES: dict[str, Any] = {
    "one row": lambda dy: dy[:1],
    "one column": lambda dy: dy[..., :1],
    "an axis more": lambda dy: np.stack([dy, dy]),
    "a number": lambda dy: dy.reshape(-1)[0],
}


@pytest.mark.parametrize("shape", OTHER_SHAPES)
@EVERY_LAYER
def test_an_output_gradient_of_another_shape_is_refused(row: Row, shape: str) -> None:
    case = _case(row)
    y, saved = case.subject.forward(*case.inputs_as("float32"))
    if not isinstance(y, np.ndarray) or not y.size:
        pytest.skip("several outputs, or an empty one")
    other = OTHER_SHAPES[shape](np.ones_like(y))
    if other.shape == y.shape:
        pytest.skip("the output has that shape")
    case.subject.zero_grad()
    arrays = [
        value for value in leaves(saved) if isinstance(value, np.ndarray) and np.issubdtype(value.dtype, np.floating)
    ]
    knows = saved is not None and bool(arrays or case.subject.named_parameters())
    with pytest.raises(nn.ShapeError) if knows else contextlib.suppress(ValueError, IndexError):
        case.subject.vjp(saved, other)
    for name, param in case.subject.named_parameters().items():
        assert not np.any(param.grd), f"{name} got a gradient"
