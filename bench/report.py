"""Reports: lines while running, JSON, a Markdown table, pictures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from bench.machine import Peaks
from bench.runner import CaseResult
from bench.systems import OURS, SYSTEMS
from bench.timing import CALM, geometric_mean

BUSY = 0.05
"""Share of the cores taken by others from which a report speaks of a busy machine."""


def seconds(value: float) -> str:
    """A duration with three digits and a fitting unit."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if value * factor >= 1:
            return f"{value * factor:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


def rate(value: float) -> str:
    """A rate with three digits and its prefix: 118 G, 1.2 T."""
    for prefix, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}"
    return f"{value:.3g} "


def lines(result: CaseResult) -> list[str]:
    """One case, for the terminal."""
    if result.error:
        return [f"{result.name}: {result.error}"]
    head = result.name
    if result.floor:
        head += f"   floor {seconds(result.floor)}"
    if result.waited > CALM:
        head += f"   DISTURBED: threads waited for a core {result.waited:.0%} of the time"
    elif result.dropped:
        head += f"   ({result.dropped} disturbed rounds replaced)"
    shown = [head]
    ratios = result.ratios
    for name, summary in result.summaries.items():
        text = f"  {name:<14} {seconds(summary.median):>9}  [{seconds(summary.p10)} .. {seconds(summary.p90)}]"
        if result.floor:
            text += f"  {result.floor / summary.median:4.0%} of floor"
        if name in ratios:
            ratio = ratios[name]
            text += f"  {OURS}/{name} = {ratio.value:.3f} ({ratio.low:.3f} .. {ratio.high:.3f})"
        elif result.net is not None and result.overhead is not None:
            text += f"  net {seconds(result.net)} + {seconds(result.overhead)} for the call"
        shown.append(text)
    for name, notes in result.notes.items():
        shown.append(f"    {name}: " + ", ".join(f"{key} {_note(value)}" for key, value in notes.items()))
    shown += [f"  {name}: left out: {why}" for name, why in result.absent.items()]
    return shown


def _note(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.3g}"


def document(
    results: Sequence[CaseResult], machine: Mapping[str, object], peaks: Mapping[str, Peaks | None], absent: Mapping[str, str]
) -> dict[str, object]:
    """Everything measured, as JSON holds it."""
    return {
        "machine": dict(machine),
        "peaks": {name: None if value is None else asdict(value) for name, value in peaks.items()},
        "absent": dict(absent),
        "cases": [
            {
                **asdict(result),
                "summaries": {name: asdict(summary) for name, summary in result.summaries.items()},
                "ratios": {name: asdict(ratio) for name, ratio in result.ratios.items()},
                "net": result.net,
            }
            for result in results
        ],
    }


def write_json(path: Path, data: Mapping[str, object]) -> None:
    """Write `document`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def families(results: Sequence[CaseResult]) -> dict[str, list[CaseResult]]:
    """Cases by family, in the order they ran."""
    found: dict[str, list[CaseResult]] = {}
    for result in results:
        found.setdefault(result.family, []).append(result)
    return found


def speed_summary(results: Sequence[CaseResult]) -> str:
    """Geometric mean and worst of a family's speed against the best other system in each case, raw and net."""
    parts = []
    for label, ours in (("", lambda r: r.summaries[OURS].median), ("net of the call ", lambda r: r.net)):
        pairs = [(r.name, r.best_other / value) for r in results if not r.error and r.best_other and (value := ours(r))]
        if len(pairs) > 1:
            worst = min(pairs, key=lambda pair: pair[1])
            mean = geometric_mean([speed for _, speed in pairs])
            parts.append(f"{label}{mean:.2f}x (geometric mean; worst {worst[1]:.2f}x, {worst[0]})")
    return f"Speed of {OURS} over the best other system: " + "; ".join(parts) + "." if parts else ""


def markdown(
    results: Sequence[CaseResult], machine: Mapping[str, object], peaks: Mapping[str, Peaks | None], absent: Mapping[str, str]
) -> str:
    """The report as `RESULTS.md` shows it."""
    versions = machine["versions"]
    assert isinstance(versions, Mapping)
    text = [
        "# Benchmark results",
        "",
        "Made by `python -m bench --results`; do not edit. Times are medians of a call, with the 10th and 90th",
        f"percentile. A ratio is the time of {OURS} over the time of the other system (below 1: {OURS} is faster), with",
        "its 95 % interval. The floor is the larger of FLOPs over the multiply-add peak and bytes over the copy rate.",
        "",
        f"- {machine['date']}, {machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads for every system",
        f"- {', '.join(f'{name} {number}' for name, number in versions.items())}",
    ]
    for when, found in peaks.items():
        if found is not None:
            copies = ", ".join(f"{rate(speed)}B/s ({size / 2**20:.3g} MiB)" for size, speed in found.copy)
            text.append(f"- peaks {when}: {rate(found.flops)}FLOP/s (float32 multiply-add); copy {copies}")
    text += _busy_line(results, machine)
    text += [f"- {name} took no part: {why}" for name, why in absent.items()]
    for family, members in families(results).items():
        text += ["", f"## {family}", "", *_table(members)]
        if summary := speed_summary(members):
            text += ["", summary]
    return "\n".join(text) + "\n"


def _busy_line(results: Sequence[CaseResult], machine: Mapping[str, object]) -> list[str]:
    timed = [result for result in results if not result.error]
    if not timed:
        return []
    disturbed = [result for result in timed if result.waited > CALM]
    shares = [result.others_cpu for result in timed if result.others_cpu is not None]
    load = f"load average {machine.get('load_before')} before, {machine.get('load_after')} after"
    others = f"; other processes took {sum(shares) / len(shares):.0%} of the cores meanwhile" if shares else ""
    verdict = "**Measured on a busy machine**" if disturbed or (shares and max(shares) > BUSY) else "Measured on a quiet machine"
    dropped = sum(result.dropped for result in timed)
    return [
        f"- {verdict}: {load}{others}; {dropped} disturbed rounds replaced; {len(disturbed)} of {len(timed)} cases "
        "stayed disturbed (marked *: their ratios may flatter either side)"
    ]


def _table(results: Sequence[CaseResult]) -> list[str]:
    rows = ["| case | system | time | 10..90 % | ratio | of floor |", "|---|---|---|---|---|---|"]
    for result in results:
        if result.error:
            rows.append(f"| {result.name} | | {result.error.replace('|', '/')} | | | |")
            continue
        ratios = result.ratios
        for name, s in result.summaries.items():
            ratio = f"{ratios[name].value:.2f} ({ratios[name].low:.2f}..{ratios[name].high:.2f})" if name in ratios else ""
            share = f"{result.floor / s.median:.0%}" if result.floor else ""
            time = seconds(s.median)
            if name == OURS and result.net is not None:
                time += f" (net {seconds(result.net)})"
            notes = ", ".join(f"{key} {_note(value)}" for key, value in result.notes.get(name, {}).items())
            label = f"{name}<br>{notes}" if notes else name
            mark = "*" if result.waited > CALM else ""
            rows.append(f"| {result.name}{mark} | {label} | {time} | {seconds(s.p10)}..{seconds(s.p90)} | {ratio} | {share} |")
    return rows


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
        axes.set_yticks([row + 0.4 - height / 2 for row in range(len(cases))], [case.name for case in cases])
        axes.invert_yaxis()
        axes.set_xlabel(f"time of {OURS} / time of the other system (below 1: {OURS} is faster)")
        axes.set_title(f"{family} — {machine['cpu']}, {machine['threads']} threads", fontsize=9)
        axes.legend(fontsize=8)
        path = folder / f"{family.replace(' ', '-')}.png"
        figure.savefig(path)
        written.append(path)
    return written
