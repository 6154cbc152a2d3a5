"""Checks of constructor arguments: each returns the value as a plain int or float, or says what is wrong with it.

NumPy's numbers count as numbers; booleans, strings and arrays do not. Every message names the class (that of `owner`),
the argument, what was expected, and what came.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

MAX = float(np.finfo(np.float64).max)
KINDS = {1: "a positive integer", 0: "a non-negative integer", None: "an integer"}


def refuse(owner: object, name: str, expected: str, value: object) -> NoReturn:
    """Raise the error of a bad argument."""
    raise ValueError(f"{type(owner).__name__}: expected {name} to be {expected}, got {value!r}")


def is_integer(value: object, least: int | None = None) -> bool:
    """Whether it is an integer, of at least `least`."""
    good = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return good and (least is None or value >= least)  # type: ignore[operator]


def integer(owner: object, name: str, value: object, least: int | None = None) -> int:
    """An integer, of at least `least`."""
    if not is_integer(value, least):
        refuse(owner, name, KINDS.get(least, f"an integer of at least {least}"), value)
    return int(value)  # type: ignore[call-overload]


def positive(owner: object, name: str, value: object) -> int:
    """An integer of at least 1: a size or a number of things."""
    return integer(owner, name, value, 1)


def positives(owner: object, **values: object) -> tuple[int, ...]:
    """Several of them, by their names."""
    return tuple(positive(owner, name, value) for name, value in values.items())


def natural(owner: object, name: str, value: object) -> int:
    """An integer of at least 0."""
    return integer(owner, name, value, 0)


def axis_number(owner: object, name: str, value: object) -> int:
    """The number of an axis; negative ones count from the end."""
    return int(value) if is_integer(value) else refuse(owner, name, "an axis number", value)  # type: ignore[call-overload]


def sizes(owner: object, name: str, value: object, axes: int, least: int = 1) -> tuple[int, ...]:
    """An integer for each axis, from one for all or a sequence of them."""
    values = (value,) * axes if is_integer(value) else value
    good = isinstance(values, tuple | list) and len(values) == axes and all(is_integer(v, least) for v in values)
    if not good:
        refuse(owner, name, f"{KINDS[least]} or {axes} of them", value)
    return tuple(int(v) for v in values)  # type: ignore[union-attr]


def number(owner: object, name: str, value: object, low: float = -MAX, high: float = MAX) -> float:
    """A number between two bounds, by default any finite one."""
    plain = _plain(value)
    if plain is None or not low <= plain <= high:
        bounds = f" between {low:g} and {high:g}" if high < MAX else f" of at least {low:g}" if low > -MAX else ""
        refuse(owner, name, f"a {'finite ' if MAX in (high, -low) else ''}number{bounds}", value)
    return float(plain)


def positive_number(owner: object, name: str, value: object) -> float:
    """A finite number above 0."""
    plain = _plain(value)
    if plain is None or not 0 < plain <= MAX:
        refuse(owner, name, "a positive finite number", value)
    return float(plain)


def probability(owner: object, name: str, value: object) -> float:
    """A number between 0 and 1."""
    return number(owner, name, value, 0, 1)


def flag(owner: object, name: str, value: object) -> bool:
    """A boolean, Python's or NumPy's."""
    if not isinstance(value, bool | np.bool_):
        refuse(owner, name, "True or False", value)
    return bool(value)


def choice(owner: object, name: str, value: object, choices: Sequence[str]) -> str:
    """One of some words."""
    if not isinstance(value, str) or value not in choices:
        refuse(owner, name, f"one of {', '.join(choices)}", value)
    return value


def numbers(owner: object, name: str, value: Any, expected: str) -> np.ndarray:
    """Finite integers or floating-point numbers, one or a sequence of any depth, as float64."""
    try:
        array = np.asarray(value)
    except ValueError:  # rows of unequal length
        refuse(owner, name, expected, value)
    real = np.issubdtype(array.dtype, np.integer) or np.issubdtype(array.dtype, np.floating)
    if not real or not array.size or not np.isfinite(array).all():
        refuse(owner, name, expected, value)
    return array.astype(np.float64)


def is_number(value: object) -> bool:
    """Whether it is a number; booleans are none."""
    return _plain(value) is not None


def _plain(value: object) -> int | float | None:
    """The number as one of Python's, None where it is none."""
    if isinstance(value, np.integer | np.floating):
        return value.item()
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
