"""Widths: what modules expect and give, compared when they are put together."""

from __future__ import annotations

from noeira.nn.core.module import Width


def fits(given: Width, expected: Width) -> bool:
    """Whether the widths may belong together.

    Features on the last axis are on axis 1 as well where there are two axes (BatchNorm1D behind a Linear); the first
    call knows more.
    """
    return given == expected or (given[0] == -1 and expected[0] == 1)


def entering(width: Width | None, expected: Width | None) -> Width | None:
    """What is known of a module's input: what it expects, unless the module before counts by the last axis."""
    return width if expected is None or (width is not None and width[0] == -1) else expected


def text(width: Width) -> str:
    """A width in words."""
    axis, size = width
    return f"{size} features on axis {axis}"
