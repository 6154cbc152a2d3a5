"""Timing systems against each other: they take turns, so that what disturbs the machine disturbs all of them alike.

A round is A B C C B A; the next round begins with another system. Before each turn the process waits until its own
threads are quiet (the worker threads of one library go on spinning for milliseconds after its last call, on cores
the next one needs), then the system runs untimed until its caches and threads are warm, then one sample is timed.

Other processes on the machine do not slow all systems alike: where threads meet at a barrier and spin, one that has
lost its core can make a call a hundred times slower. So the kernel is asked what CPU time others took during each
round; while rounds are disturbed more of them are taken, and the calmest are kept. The choice never looks at the times.
"""

from __future__ import annotations

import gc
import math
import os
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

Clock = Callable[[], float]

BOOTSTRAP = 2000
CONFIDENCE = (2.5, 97.5)
"""Percentiles of the interval around a ratio."""
CALM = 0.08
"""Share of the machine's CPU time that others may take during a round before it counts as disturbed."""
MOST = 10
"""Times as many rounds as planned that are taken at most."""


@dataclass(frozen=True)
class Plan:
    """How long to measure.

    Args:
        runs: Timed samples a system, at least.
        sample_seconds: What a sample should last; a faster call is repeated within it.
        lead_seconds: Untimed running before each sample: at least one call.
        patience: Seconds after which no more rounds are taken to replace disturbed ones.
    """

    runs: int = 25
    sample_seconds: float = 0.01
    lead_seconds: float = 0.003
    patience: float = 60.0

    @property
    def rounds(self) -> int:
        """Rounds of two turns."""
        return math.ceil(self.runs / 2)


@dataclass(frozen=True)
class Timed:
    """Something to time: a callable, or one that measures itself."""

    run: Callable[[], object]
    measure: Callable[[], float] | None = None


@dataclass(frozen=True)
class Measurement:
    """What timing gave.

    Args:
        samples: Seconds a call of every system, two a round, in the order taken.
        others: Share of the machine that other processes took during the kept rounds, on average.
        dropped: Rounds taken and not kept.
    """

    samples: dict[str, list[float]]
    others: float
    dropped: int


@dataclass
class _Round:
    others: float
    samples: dict[str, list[float]]


def order(names: Sequence[str], number: int) -> Iterator[str]:
    """The turns of one round: A B C C B A, then B C A A C B, ..."""
    shift = number % len(names)
    shifted = [*names[shift:], *names[:shift]]
    yield from shifted
    yield from reversed(shifted)


def foreign() -> float:
    """Seconds of this machine's whole CPU time that other processes, or other guests, have taken (Linux; else 0)."""
    with suppress(OSError, ValueError):
        with open("/proc/stat", encoding="ascii") as file:
            fields = [int(field) for field in file.readline().split()[1:9]]
        everybody = (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")  # without idle and waiting for I/O
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        ours = time.process_time() + children.ru_utime + children.ru_stime
        return (everybody - ours) / (os.cpu_count() or 1)
    return 0.0


def settle(limit: float = 0.5, *, step: float = 0.02, busy: float = 0.25) -> bool:
    """Sleep until this process's threads use less than `busy` of a core; False if they never do within `limit`.

    OpenBLAS's workers spin for 0.1 s after a call; whoever runs meanwhile has a core less. `step` has to span
    several ticks of the kernel, which books a spinning thread's time at ticks only. `busy` lies above what MAX's
    runtime uses at rest: one of its threads wakes 5000 times a second and takes 0.12 to 0.2 of a core.
    """
    deadline = time.perf_counter() + limit
    while time.perf_counter() < deadline:
        wall, used = time.perf_counter(), time.process_time()
        time.sleep(step)
        if time.process_time() - used < busy * (time.perf_counter() - wall):
            return True
    return False


def repeats(run: Callable[[], object], seconds: float, clock: Clock = time.perf_counter) -> int:
    """Calls that fill about `seconds`; also warms `run` up."""
    run()
    count = 1
    while True:
        elapsed = _seconds(run, count, clock)
        if elapsed >= seconds / 2:
            return max(1, round(count * seconds / elapsed)) if elapsed > 0 else count
        count = min(count * 10, max(count * 2, int(count * seconds / elapsed))) if elapsed > 0 else count * 10


def _seconds(run: Callable[[], object], count: int, clock: Clock) -> float:
    start = clock()
    for _ in range(count):
        run()
    return clock() - start


def measure(
    systems: Mapping[str, Timed],
    plan: Plan,
    *,
    clock: Clock = time.perf_counter,
    wait: Callable[[], object] = settle,
    others: Clock = foreign,
) -> Measurement:
    """Time all systems by turns."""
    counts = {}
    for name, timed in systems.items():
        wait()
        counts[name] = 1 if timed.measure else repeats(timed.run, plan.sample_seconds, clock)
    taken: list[_Round] = []
    start = clock()
    collecting = gc.isenabled()
    gc.disable()
    try:
        while len(taken) < plan.rounds or (
            sum(done.others <= CALM for done in taken) < plan.rounds
            and len(taken) < MOST * plan.rounds
            and clock() - start < plan.patience
        ):
            began, foreign_before = clock(), others()
            samples = _round(systems, order(list(systems), len(taken)), counts, plan, clock, wait)
            taken.append(_Round(max(0.0, others() - foreign_before) / max(clock() - began, 1e-9), samples))
    finally:
        if collecting:
            gc.enable()
    calmest = sorted(range(len(taken)), key=lambda i: taken[i].others)[: plan.rounds]
    kept = [taken[i] for i in sorted(calmest)]
    samples = {name: [value for done in kept for value in done.samples[name]] for name in systems}
    return Measurement(samples, sum(done.others for done in kept) / len(kept), len(taken) - len(kept))


def _round(
    systems: Mapping[str, Timed],
    names: Iterator[str],
    counts: Mapping[str, int],
    plan: Plan,
    clock: Clock,
    wait: Callable[[], object],
) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {name: [] for name in systems}
    for name in names:
        timed, count = systems[name], counts[name]
        wait()
        if timed.measure is not None:
            samples[name].append(timed.measure())
            continue
        lead = clock()
        timed.run()
        while clock() - lead < plan.lead_seconds:
            timed.run()
        samples[name].append(_seconds(timed.run, count, clock) / count)
    return samples


@dataclass(frozen=True)
class Summary:
    """A system's seconds a call."""

    median: float
    p10: float
    p90: float
    runs: int

    @staticmethod
    def of(samples: Sequence[float]) -> Summary:
        """Median and percentiles of samples."""
        p10, median, p90 = np.percentile(samples, [10, 50, 90]).tolist()
        return Summary(median, p10, p90, len(samples))


@dataclass(frozen=True)
class Ratio:
    """Time of one system over time of another, with its 95 % interval."""

    value: float
    low: float
    high: float

    @staticmethod
    def of(ours: ArrayLike, theirs: ArrayLike) -> Ratio:
        """Ratio of medians; the interval resamples whole rounds, since what lies close in time errs together."""
        a, b = np.reshape(ours, (-1, 2)), np.reshape(theirs, (-1, 2))
        picks = np.random.default_rng(0).integers(0, len(a), (BOOTSTRAP, len(a)))
        draws = np.median(a[picks].reshape(BOOTSTRAP, -1), axis=1) / np.median(b[picks].reshape(BOOTSTRAP, -1), axis=1)
        low, high = np.percentile(draws, CONFIDENCE).tolist()
        return Ratio(float(np.median(a) / np.median(b)), low, high)


def geometric_mean(values: Sequence[float]) -> float:
    """The mean for ratios."""
    return math.exp(sum(math.log(value) for value in values) / len(values))
