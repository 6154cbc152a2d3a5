"""Arguments of constructors: every layer of the catalogue refuses bad numbers in words, and takes NumPy's."""

import dataclasses
import inspect
import re
from typing import Any

import numpy as np
import pytest

from noeira import nn
from noeira.nn.core import arguments
from tests import catalogue
from tests.catalogue import Row

SIGNED = {"axis", "dim", "offset", "padding_idx"}
"""Integers of any sign."""
FROM_0 = {"padding", "output_padding", "start", "num_latents", "num_spatial", "num_register", "num_agent"}
"""Integers that may be 0."""
BAD_INTEGERS = (0, -1, 2.5, True, "2", None)
BAD_NUMBERS = (float("nan"), True, "0.5", None)


def _is(kind: str, annotation: object) -> bool:
    return re.match(rf"{kind}\b", str(annotation)) is not None


def construction(row: Row) -> inspect.BoundArguments | None:
    """With which arguments the row's first sample makes its class; None where it has no constructor of its own."""
    signature, found = inspect.signature(row.cls.__init__), []
    original = row.cls.__init__

    def record(self: Any, *args: Any, **kwargs: Any) -> None:
        if type(self) is row.cls:
            found.append(signature.bind(self, *args, **kwargs))
        original(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row.cls, "__init__", record)
        row.make(*row.samples[0].args)
    if not found:
        return None
    found[0].apply_defaults()
    return found[0]


def annotations(row: Row) -> dict[str, str]:
    """Type of each argument; the options of a configuration among them."""
    found: dict[str, str] = {}
    for name, parameter in inspect.signature(row.cls.__init__).parameters.items():
        config = getattr(nn, f"{row.cls.__name__}Config", None)
        if parameter.kind is parameter.VAR_KEYWORD and config is not None:
            found |= {field.name: str(field.type) for field in dataclasses.fields(config) if field.name not in found}
        else:
            found[name] = str(parameter.annotation)
    return found


def remade(row: Row, changes: dict[str, Any]) -> Any:
    """The row's class made anew with some arguments changed; of `*shape` the first."""
    bound = construction(row)
    assert bound is not None
    for name, value in changes.items():
        parameter = bound.signature.parameters.get(name)
        if parameter is None:
            options = next(p.name for p in bound.signature.parameters.values() if p.kind is p.VAR_KEYWORD)
            bound.arguments[options] = {**bound.arguments[options], name: value}
        elif parameter.kind is parameter.VAR_POSITIONAL:
            bound.arguments[name] = (value, *bound.arguments[name][1:])
        else:
            bound.arguments[name] = value
    return row.cls(*bound.args[1:], **bound.kwargs)


def _rows() -> list[Row]:
    """One row a class, of those whose constructors take numbers."""
    rows = {row.cls: row for row in reversed(catalogue.every_row()) if issubclass(row.cls, nn.Module)}
    kinds = ("int", "float")
    return [row for row in rows.values() if any(_is(kind, a) for kind in kinds for a in annotations(row).values())]


ROWS = [row for row in _rows() if construction(row) is not None]
INTEGERS = [(row, name) for row in ROWS for name, annotation in annotations(row).items() if _is("int", annotation)]
NUMBERS = [(row, name) for row in ROWS for name, annotation in annotations(row).items() if _is("float", annotation)]


def _ids(pairs: list[tuple[Row, str]]) -> list[str]:
    return [f"{row.cls.__name__}.{name}" for row, name in pairs]


def test_there_is_something_to_check() -> None:
    assert len(INTEGERS) > 120 and len(NUMBERS) > 30
    assert {"Conv2D.groups", "GPT.num_layers", "GPT.ff_mult", "BiasAdd.shape", "Repeat.count"} <= set(_ids(INTEGERS))


def _allowed(name: str, annotation: str, value: object) -> bool:
    if value is None:
        return "None" in annotation
    return not isinstance(value, bool | float | str) and (name in SIGNED or (name in FROM_0 and value == 0))


@pytest.mark.parametrize("value", BAD_INTEGERS, ids=repr)
@pytest.mark.parametrize(("row", "name"), INTEGERS, ids=_ids(INTEGERS))
def test_a_bad_integer_is_refused_in_words(row: Row, name: str, value: object) -> None:
    if _allowed(name, annotations(row)[name], value):
        return
    with pytest.raises(ValueError, match=rf"\w+: expected .*{name}.*, got .*{re.escape(repr(value))}"):
        remade(row, {name: value})


@pytest.mark.parametrize("value", BAD_NUMBERS, ids=repr)
@pytest.mark.parametrize(("row", "name"), NUMBERS, ids=_ids(NUMBERS))
def test_a_bad_number_is_refused_in_words(row: Row, name: str, value: object) -> None:
    if _allowed(name, annotations(row)[name], value):
        return
    with pytest.raises(ValueError, match=rf"\w+: expected .*, got .*{re.escape(repr(value))}"):
        remade(row, {name: value})


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.cls.__name__)
def test_numbers_of_numpy_are_taken_as_pythons_own(row: Row) -> None:
    bound = construction(row)
    assert bound is not None
    kinds = annotations(row)
    changes: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        if _is("int", kinds.get(name, "")) and type(value) is int:
            changes[name] = np.int64(value)
        elif _is("float", kinds.get(name, "")) and type(value) in (int, float):
            changes[name] = np.float64(value)
    plain, other = remade(row, {}), remade(row, changes)
    assert repr(other) == repr(plain)
    for path, module in other.named_modules():
        numbers = {name: value for name, value in vars(module).items() if isinstance(value, np.generic)}
        assert not numbers, f"{path} keeps {numbers}"
    for name, param in other.named_parameters().items():
        assert all(type(size) is int for size in param.shape), name


CHECKS = (
    (arguments.positive, (1, np.int8(3)), (0, -1, 1.0, True, np.True_, "1", None, np.ones(1, int))),
    (arguments.natural, (0, np.uint8(3)), (-1, 0.0, False, "0", None)),
    (arguments.axis_number, (0, -1, np.int32(2)), (1.0, True, "0", None)),
    (arguments.number, (0, -1.5, np.float32(2), np.int64(3)), (np.nan, np.inf, True, np.True_, "0", None)),
    (arguments.positive_number, (1, 1e-300, np.float16(2)), (0, 0.0, -1, np.nan, np.inf, True, "1", None)),
    (arguments.probability, (0, 1, np.float32(0.5)), (-0.1, 1.1, np.nan, True, "0", None)),
)


@pytest.mark.parametrize(("check", "good", "bad"), CHECKS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_check_returns_plain_numbers_and_names_class_argument_and_value(check: Any, good: Any, bad: Any) -> None:
    owner = nn.ReLU()
    for value in good:
        assert check(owner, "size", value) == value and type(check(owner, "size", value)) in (int, float)
    for value in bad:
        with pytest.raises(ValueError, match=rf"^ReLU: expected size to be an? .*, got {re.escape(repr(value))}$"):
            check(owner, "size", value)


def test_sizes_of_axes() -> None:
    owner = nn.ReLU()
    assert (
        arguments.sizes(owner, "size", np.int64(2), 2) == (2, 2) == arguments.sizes(owner, "size", [2, np.int8(2)], 2)
    )
    for value in (0, (2,), (2, 0), (2, True), "22", 2.0, None):
        with pytest.raises(ValueError, match=r"ReLU: expected size to be a positive integer or 2 of them, got"):
            arguments.sizes(owner, "size", value, 2)


@pytest.mark.parametrize("make", [nn.Conv1D, nn.Conv2D, nn.Conv2DTranspose], ids=lambda make: make.__name__)
@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"groups": 0}, "groups to be a positive integer, got 0"),
        ({"groups": "2"}, "groups to be a positive integer, got '2'"),
        ({"groups": 3}, "in_channels to be divisible by groups=3, got 4"),
        ({"kernel_size": 0}, "kernel_size to be a positive integer .*, got 0"),
        ({"stride": 0}, "stride to be a positive integer .*, got 0"),
        ({"dilation": 0}, "dilation to be a positive integer .*, got 0"),
        ({"padding": -1}, "padding to be a non-negative integer .*, got -1"),
    ],
    ids=str,
)
def test_a_convolution_refuses(make: Any, options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=f"{make.__name__}: expected {match}"):
        make(4, 6, **{"kernel_size": 3, **options})


@pytest.mark.parametrize("width", [0, -3, 2.5, True, "4", (1,), (1, 0), ("x", 4)], ids=repr)
def test_an_input_slot_refuses_a_bad_width(width: Any) -> None:
    with pytest.raises(ValueError, match="InputSlot: expected width to be a positive integer"):
        nn.InputSlot("x", width)
