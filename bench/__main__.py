"""`python -m bench`: time noeira against other systems, after checking that they compute the same.

python -m bench --quick                       what `make bench` runs
python -m bench --case 'gemm-*' --against numpy
python -m bench --json out.json --plot plots --results bench/RESULTS.md
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from bench.environment import cores, restart_if_needed

if TYPE_CHECKING:
    from bench.case import Case, Setup
    from bench.machine import Peaks
    from bench.runner import CaseResult


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", nargs="+", default=[], metavar="NAME", help="cases to run; shell patterns work")
    parser.add_argument("--list", action="store_true", help="name the cases and systems, run nothing")
    parser.add_argument("--against", default=None, metavar="A,B", help="other systems; 'none' for noeira alone")
    parser.add_argument("--device", default="cpu", help="where noeira and PyTorch run: cpu or cuda")
    parser.add_argument("--quick", action="store_true", help="the cases and sample lengths of `make bench`")
    parser.add_argument("--runs", type=int, default=None, help="timed runs a system at least, instead of a case's own")
    parser.add_argument(
        "--patience", type=float, metavar="S", help="seconds a case may take to replace rounds that others disturb"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures, samples included")
    parser.add_argument("--plot", type=Path, metavar="DIR", help="write one PNG a family of cases")
    parser.add_argument("--results", type=Path, metavar="FILE.md", help="write the Markdown report")
    options = parser.parse_args(arguments)
    if options.runs is not None and options.runs < 1:
        parser.error("--runs must be at least 1")
    return options


def select(cases: Sequence[Case], patterns: Sequence[str], *, quick: bool) -> list[Case]:
    """The cases that match a pattern; without patterns all, or the quick ones.

    Raises:
        SystemExit: A pattern matches nothing.
    """
    if not patterns:
        return [case for case in cases if case.quick or not quick]
    unmatched = [pattern for pattern in patterns if not any(fnmatchcase(case.name, pattern) for case in cases)]
    if unmatched:
        raise SystemExit(f"error: no case is called {', '.join(unmatched)}; python -m bench --list names them")
    return [case for case in cases if any(fnmatchcase(case.name, pattern) for pattern in patterns)]


def listing(cases: Sequence[Case]) -> str:
    """What `--list` prints."""
    from bench.systems import SYSTEMS

    width = max(len(case.name) for case in cases)
    rows = [f"{case.name:<{width}}  {'quick' if case.quick else '     '}  {', '.join(case.builders)}" for case in cases]
    systems = [f"{name:<{width}}         {system.what}" for name, system in SYSTEMS.items()]
    return "\n".join(["cases:", *rows, "", "systems:", *systems])


def chosen_systems(text: str | None, threads: int) -> tuple[list[str], dict[str, str]]:
    """Systems that are here, noeira first, and why others are not.

    Raises:
        SystemExit: A name is not a system's, or noeira itself cannot run.
    """
    from bench.case import Unsupported
    from bench.systems import DEFAULT, OURS, SYSTEMS, prepare

    asked = [*DEFAULT] if text is None else [name for name in text.split(",") if name and name != "none"]
    unknown = [name for name in asked if name not in SYSTEMS]
    if unknown:
        raise SystemExit(f"error: unknown system {', '.join(unknown)}; there are {', '.join(SYSTEMS)}")
    present, absent = [], {}
    for name in dict.fromkeys([OURS, *asked]):
        try:
            prepare(name, threads)
            present.append(name)
        except Unsupported as error:
            if name == OURS:
                raise SystemExit(f"error: {error}") from None
            absent[name] = str(error)
            print(f"{name}: left out: {error}", file=sys.stderr)
    return present, absent


def run(options: argparse.Namespace, cases: Sequence[Case], threads: int) -> int:
    """Run the cases, print and write the reports; 1 if any case has no figures."""
    from bench import machine
    from bench.case import Setup

    systems, absent = chosen_systems(options.against, threads)
    facts = machine.describe(threads) | {"load_before": machine.load_average()}
    peaks = {"before": machine.measure_peaks(threads)}
    print(f"{facts['cpu']}, {threads} threads, load average {facts['load_before']}, {facts['date']}")
    results = _run_cases(
        options,
        cases,
        systems,
        Setup(threads, options.device),
        peaks["before"],
        lambda results: _write(options, results, facts, peaks, absent),
    )
    peaks["after"] = machine.measure_peaks(threads)
    facts["load_after"] = machine.load_average()
    _write(options, results, facts, peaks, absent, pictures=True)
    failed = [result.name for result in results if result.error]
    if failed:
        print(f"no figures for {len(failed)} of {len(results)} cases: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _run_cases(
    options: argparse.Namespace,
    cases: Sequence[Case],
    systems: Sequence[str],
    setup: Setup,
    peaks: Peaks | None,
    keep: Callable[[list[CaseResult]], None],
) -> list[CaseResult]:
    """The results; `keep` gets those there are after each case, so that a run cut short loses nothing."""
    from bench import report
    from bench.runner import run_case
    from bench.timing import Plan

    results = []
    for case in cases:
        length = {"sample_seconds": 0.003, "lead_seconds": 0.001, "patience": 2.0} if options.quick else {}
        if options.patience is not None:
            length["patience"] = options.patience
        plan = Plan(runs=options.runs or case.runs, **length)
        results.append(run_case(case, systems, setup, plan, peaks))
        print("\n".join(report.lines(results[-1])), flush=True)
        keep(results)
    for family, members in report.families(results).items():
        if summary := report.speed_summary(members):
            print(f"{family}: {summary}")
    return results


def _write(
    options: argparse.Namespace,
    results: Sequence[CaseResult],
    facts: dict[str, object],
    peaks: dict[str, Peaks | None],
    absent: dict[str, str],
    *,
    pictures: bool = False,
) -> None:
    """The files asked for; with `pictures` those too, and what was written is printed."""
    from bench import report

    if options.json:
        report.write_json(options.json, report.document(results, facts, peaks, absent))
    if options.results:
        options.results.parent.mkdir(parents=True, exist_ok=True)
        options.results.write_text(report.markdown(results, facts, peaks, absent), encoding="utf-8")
    if not pictures:
        return
    if options.plot:
        from bench.pictures import plot

        try:
            plot(results, options.plot, facts)
        except ImportError as error:
            print(f"no pictures: {error}; pip install 'noeira[bench]'", file=sys.stderr)
    for path in (options.json, options.results, options.plot):
        if path:
            print(f"wrote {path}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parse(arguments)
    from bench.case import discover

    cases = select(discover(), options.case, quick=options.quick)
    if options.list:
        print(listing(cases))
        return 0
    return run(options, cases, cores())


if __name__ == "__main__":
    if not {"--list", "-h", "--help"} & set(sys.argv):
        restart_if_needed(sys.argv[1:])
    sys.exit(main())
