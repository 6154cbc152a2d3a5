"""Running cases: build, compare, and only then time."""

from __future__ import annotations

import statistics
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bench.case import Case, Job, Results, Setup, Unsupported, Work
from bench.equality import Different, compare
from bench.machine import Peaks
from bench.systems import OURS
from bench.timing import Measurement, Plan, Ratio, Summary, Timed, measure

EMPTY = f"{OURS} (empty call)"
CHAIN = f"{OURS} (chain)"

RESOLUTION = 0.25
"""Share of the cost of a call below which the rest of it is noise; in a chain much of the noise averages out."""
CHAIN_RESOLUTION = 0.1

_shown: set[str] = set()
"""Errors whose traceback was printed."""


@dataclass
class CaseResult:
    """What became of one case."""

    name: str
    family: str
    work: Work
    floor: float | None = None
    """Seconds no implementation can beat on these cores."""
    samples: dict[str, list[float]] = field(default_factory=dict)
    """Seconds a call, of every system in the order taken, two a round."""
    overhead: float | None = None
    """Median seconds of noeira's call with nothing to compute; of a chain, by the number of its links."""
    link: float | None = None
    """Median seconds of noeira's chain of units of work, by the number of them."""
    agreement: dict[str, float] = field(default_factory=dict)
    """Largest difference from the expected results, as a share of the tolerance."""
    absent: dict[str, str] = field(default_factory=dict)
    """Systems that did not take part, and why."""
    notes: dict[str, dict[str, float | str]] = field(default_factory=dict)
    others: float = 0.0
    """Share of the machine that other processes took during the kept rounds."""
    dropped: int = 0
    """Rounds that were taken and replaced because others disturbed them."""
    error: str = ""
    """Why the case has no figures; empty if it has."""

    @property
    def summaries(self) -> dict[str, Summary]:
        """Median and percentiles of each system."""
        return {name: Summary.of(values) for name, values in self.samples.items()}

    @property
    def ratios(self) -> dict[str, Ratio]:
        """Time of noeira over time of each other system."""
        if OURS not in self.samples:
            return {}
        ours = self.samples[OURS]
        return {name: Ratio.of(ours, theirs) for name, theirs in self.samples.items() if name != OURS}

    @property
    def net(self) -> float | None:
        """Noeira's median without the cost of the call; None where what is left is too little to be known."""
        if self.overhead is None or OURS not in self.samples:
            return None
        whole, resolution = (
            (self.summaries[OURS].median, RESOLUTION) if self.link is None else (self.link, CHAIN_RESOLUTION)
        )
        left = whole - self.overhead
        return left if left >= resolution * self.overhead else None

    @property
    def best_other(self) -> float | None:
        """The fastest other system's median."""
        return min((summary.median for name, summary in self.summaries.items() if name != OURS), default=None)


def run_case(
    case: Case,
    systems: Sequence[str],
    setup: Setup,
    plan: Plan,
    peaks: Peaks | None,
    *,
    timer: Callable[[Mapping[str, Timed], Plan], Measurement] = measure,
) -> CaseResult:
    """Run one case on `systems` (noeira among them)."""
    outcome = CaseResult(case.name, case.family, case.work, None if peaks is None else peaks.floor(case.work))
    try:
        inputs = case.inputs()
        jobs = _build(case, systems, inputs, setup, outcome)
        if OURS not in jobs:
            outcome.error = outcome.absent.get(OURS, f"no builder for {OURS}")
            return outcome
        _check(case, jobs, None if case.expected is None else case.expected(inputs), outcome)
    except Different as error:
        outcome.error = f"not timed, results differ: {error}"
        return outcome
    except Exception as error:  # one broken case must not take the others' figures with it
        if str(error) not in _shown:
            _shown.add(str(error))
            traceback.print_exc()
        outcome.error = f"{type(error).__name__}: {error}".splitlines()[0]
        return outcome
    timed = {name: Timed(job.run, job.measure) for name, job in jobs.items()}
    empty, chain, links = jobs[OURS].empty, jobs[OURS].chain, jobs[OURS].links
    if empty is not None:
        timed[EMPTY] = Timed(empty)
    if chain is not None:
        timed[CHAIN] = Timed(chain)
    measured = timer(timed, plan)
    outcome.others, outcome.dropped = measured.others, measured.dropped
    samples = dict(measured.samples)
    if empty is not None:
        outcome.overhead = statistics.median(samples.pop(EMPTY)) / links
    if chain is not None:
        outcome.link = statistics.median(samples.pop(CHAIN)) / links
    outcome.samples = samples
    outcome.notes = {name: notes for name, job in jobs.items() if (notes := job.notes())}
    return outcome


def _build(case: Case, systems: Sequence[str], inputs: Results, setup: Setup, outcome: CaseResult) -> dict[str, Job]:
    jobs: dict[str, Job] = {}
    for name in systems:
        if name in case.builders:
            try:
                jobs[name] = case.builders[name](inputs, setup)
            except Unsupported as error:
                outcome.absent[name] = str(error)
            except ValueError as error:  # noeira's DeviceError
                if name != OURS or setup.device == "cpu":
                    raise
                outcome.absent[name] = str(error)
    return jobs


def _check(case: Case, jobs: dict[str, Job], expected: Results | None, outcome: CaseResult) -> None:
    names = sorted(jobs, key=lambda name: name == OURS)
    for name in names:
        try:
            got = jobs[name].result()
        except Exception as error:
            if name == OURS:
                raise
            # One system's fault must not cost the others their figures.
            outcome.absent[name] = f"{type(error).__name__}: {error}".splitlines()[0]
            del jobs[name]
            continue
        if expected is None:
            expected = got  # the first other system sets the standard
            continue
        outcome.agreement[name] = compare(name, got, expected, case.tolerance)
