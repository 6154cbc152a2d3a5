"""Whether systems computed the same thing. Nothing is timed before they did."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bench.case import Results


class Different(AssertionError):
    """Two systems disagree on a result."""


def limit_for(name: str, tolerance: float | Mapping[str, float]) -> float:
    """The tolerance of one result."""
    return tolerance.get(name, tolerance.get("", 0.0)) if isinstance(tolerance, Mapping) else tolerance


def compare(system: str, got: Results, expected: Results, tolerance: float | Mapping[str, float]) -> float:
    """The largest difference found, as a share of its tolerance.

    Raises:
        Different: A result is missing, has another shape, is not finite or is too far off.
    """
    if got.keys() != expected.keys():
        raise Different(f"{system} returned {sorted(got)}, expected {sorted(expected)}")
    worst = 0.0
    for name, reference in expected.items():
        wanted, value = np.asarray(reference, np.float64), np.asarray(got[name], np.float64)
        if value.shape != wanted.shape:
            raise Different(f"{system}: {name} has shape {list(value.shape)}, expected {list(wanted.shape)}")
        if not np.isfinite(value).all():
            raise Different(f"{system}: {name} is not finite everywhere")
        limit = limit_for(name, tolerance)
        scale = float(np.max(np.abs(wanted), initial=0)) or 1.0
        error = float(np.max(np.abs(value - wanted), initial=0)) / scale
        if error > limit:
            raise Different(f"{system}: {name} is off by {error:.2e} of its largest magnitude, allowed {limit:.0e}")
        worst = max(worst, error / limit if limit else 0.0)
    return worst
