"""Checks of the losses' constructor arguments: what is wrong is named in a ValueError."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def refused(owner: object, name: str, wanted: str, value: object) -> ValueError:
    """The error for an argument that is not what is wanted."""
    return ValueError(f"{type(owner).__name__}: expected {name} {wanted}, got {value!r}")


def is_number(value: object) -> bool:
    """Whether it is a Python or NumPy number; booleans are none."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def number(
    owner: object,
    name: str,
    value: Any,
    wanted: str = "to be a finite number",
    holds: Callable[[float], bool] = math.isfinite,
) -> float:
    """A finite Python or NumPy number for which `holds` is true; no boolean."""
    if not (is_number(value) and math.isfinite(value) and holds(float(value))):
        raise refused(owner, name, wanted, value)
    return float(value)


def positive(owner: object, name: str, value: Any) -> float:
    """A finite number above 0."""
    return number(owner, name, value, "to be a finite number > 0", lambda v: v > 0)


def integer(owner: object, name: str, value: Any, wanted: str, *, low: int = -(2**31), high: int = 2**31 - 1) -> int:
    """A Python or NumPy integer, low to high; no boolean."""
    if not (is_number(value) and isinstance(value, int | np.integer) and low <= value <= high):
        raise refused(owner, name, wanted, value)
    return int(value)


def flag(owner: object, name: str, value: Any) -> bool:
    """A boolean, Python's or NumPy's."""
    if not isinstance(value, bool | np.bool_):
        raise refused(owner, name, "to be True or False", value)
    return bool(value)


def choice(owner: object, name: str, value: Any, choices: Sequence[str]) -> str:
    """One of some words."""
    if not isinstance(value, str) or value not in choices:
        raise refused(owner, name, f"out of {', '.join(choices)}", value)
    return value


def numbers(owner: object, name: str, value: Any, wanted: str) -> np.ndarray:
    """Finite integers or floating-point numbers as float64."""
    try:
        array = np.asarray(value)
    except ValueError:  # rows of unequal length
        raise refused(owner, name, wanted, value) from None
    if not (np.issubdtype(array.dtype, np.integer) or np.issubdtype(array.dtype, np.floating)):
        raise refused(owner, name, wanted, value)
    if not array.size or not np.isfinite(array).all():
        raise refused(owner, name, wanted, value)
    return array.astype(np.float64)
