"""Pictures of the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.report import families
from bench.runner import CaseResult
from bench.systems import OURS, SYSTEMS


def plot(results: Sequence[CaseResult], folder: Path, machine: Mapping[str, object]) -> list[Path]:
    """One PNG a family: speed of every system relative to noeira's, a bar each."""
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for family, members in families(results).items():
        cases = [member for member in members if member.ratios]
        if not cases:
            continue
        names = [name for name in SYSTEMS if any(name in case.ratios for case in cases)]
        figure = Figure(figsize=(8, 1.2 + 0.28 * len(cases) * max(1, len(names))), dpi=120, layout="constrained")
        axes = figure.add_subplot()
        height = 0.8 / len(names)
        for i, name in enumerate(names):
            rows = [(row, case.ratios[name]) for row, case in enumerate(cases) if name in case.ratios]
            values = [ratio.value for _, ratio in rows]
            spread = [[r.value - r.low for _, r in rows], [r.high - r.value for _, r in rows]]
            axes.barh([row + i * height for row, _ in rows], values, height, label=name, xerr=spread, capsize=2)
        axes.axvline(1, color="black", linewidth=1)
        axes.set_xscale("log")
        axes.set_yticks([row + 0.4 - height / 2 for row in range(len(cases))], [case.name for case in cases])
        axes.invert_yaxis()
        axes.set_xlabel(f"time of {OURS} / time of the other system (below 1: {OURS} is faster)")
        axes.set_title(f"{family} — {machine['cpu']}, {machine['threads']} threads", fontsize=9)
        axes.legend(fontsize=8)
        path = folder / f"{family.replace(' ', '-')}.png"
        figure.savefig(path)
        written.append(path)
    return written
