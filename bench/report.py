"""Reports: lines while running, JSON, a Markdown table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from bench.machine import Peaks
from bench.runner import CaseResult
from bench.systems import OURS
from bench.timing import CALM, geometric_mean


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
    if result.others > CALM:
        head += f"   DISTURBED: other processes took {result.others:.0%} of the machine"
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
        elif result.overhead is not None:
            text += f"  net {_net(result)} + {seconds(result.overhead)} for the call"
        shown.append(text)
    for name, notes in result.notes.items():
        shown.append(f"    {name}: " + ", ".join(f"{key} {_note(value)}" for key, value in notes.items()))
    shown += [f"  {name}: left out: {why}" for name, why in result.absent.items()]
    return shown


def _net(result: CaseResult) -> str:
    return "unknown" if result.net is None else seconds(result.net)


def _note(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.3g}"


def document(
    results: Sequence[CaseResult],
    machine: Mapping[str, object],
    peaks: Mapping[str, Peaks | None],
    absent: Mapping[str, str],
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
    compared = [result for result in results if not result.error and result.best_other]
    raw = [(result.name, result.best_other / result.summaries[OURS].median) for result in compared if result.best_other]
    if len(raw) < 2:
        return ""
    text = f"Speed of {OURS} over the best other system: {_mean_and_worst(raw)}"
    net = [(r.name, r.best_other / r.net) for r in compared if r.best_other and r.net is not None]
    if len(net) > 1:
        untold = f", {len(raw) - len(net)} cases too short to tell" if len(net) < len(raw) else ""
        text += f"; net of the call {_mean_and_worst(net)}{untold}"
    return text + "."


def _mean_and_worst(speeds: Sequence[tuple[str, float]]) -> str:
    name, least = min(speeds, key=lambda pair: pair[1])
    return f"{geometric_mean([speed for _, speed in speeds]):.2f}x (geometric mean; worst {least:.2f}x, {name})"


def markdown(
    results: Sequence[CaseResult],
    machine: Mapping[str, object],
    peaks: Mapping[str, Peaks | None],
    absent: Mapping[str, str],
) -> str:
    """The report as `RESULTS.md` shows it."""
    versions = machine["versions"]
    assert isinstance(versions, Mapping)
    text = [
        "# Benchmark results",
        "",
        "Made by `python -m bench --results`; do not edit. Times are medians of a call, with 10th and 90th percentile.",
        f"A ratio is the time of {OURS} over the time of the other system (below 1: {OURS} is faster), with its 95 %",
        "interval. The floor is the larger of FLOPs over the multiply-add peak and bytes over the copy rate; a system",
        "that reads more than it writes, or finds its data in a cache, can beat the copy rate.",
        "",
        f"- {machine['date']}, {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['threads']} threads for every system",
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
    disturbed = [result for result in timed if result.others > CALM]
    verdict = "**Measured on a busy machine**" if disturbed else "Measured on a quiet machine"
    return [
        f"- {verdict}: load average {machine.get('load_before')} before, {machine.get('load_after')} after (this run "
        f"included); other processes took {sum(result.others for result in timed) / len(timed):.0%} of the cores "
        f"meanwhile; {sum(result.dropped for result in timed)} disturbed rounds replaced; {len(disturbed)} of "
        f"{len(timed)} cases stayed disturbed (marked *: their ratios may flatter either side)"
    ]


def _table(results: Sequence[CaseResult]) -> list[str]:
    rows = ["| case | system | time | 10..90 % | ratio | of floor |", "|---|---|---|---|---|---|"]
    for result in results:
        if result.error:
            rows.append(f"| {result.name} | | {result.error.replace('|', '/')} | | | |")
            continue
        ratios = result.ratios
        for name, summary in result.summaries.items():
            ratio = ratios.get(name)
            time = seconds(summary.median)
            if name == OURS and result.overhead is not None:
                time += f" (net {_net(result)})"
            notes = ", ".join(f"{key} {_note(value)}" for key, value in result.notes.get(name, {}).items())
            cells = (
                result.name + ("*" if result.others > CALM else ""),
                f"{name}<br>{notes}" if notes else name,
                time,
                f"{seconds(summary.p10)}..{seconds(summary.p90)}",
                "" if ratio is None else f"{ratio.value:.2f} ({ratio.low:.2f}..{ratio.high:.2f})",
                f"{result.floor / summary.median:.0%}" if result.floor else "",
            )
            rows.append(f"| {' | '.join(cells)} |")
    return rows
