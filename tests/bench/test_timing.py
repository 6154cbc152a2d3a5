"""Turns, samples and statistics, on systems whose time is made up."""

import gc
import math

import numpy as np
import pytest

from bench import timing
from bench.timing import Measurement, Plan, Ratio, Summary, Timed, measure, order, repeats


class Machine:
    """A clock that moves only when something runs."""

    def __init__(self):
        self.now, self.foreign, self.calls, self.settled = 0.0, 0.0, [], 0

    def system(self, name, seconds, others=()):
        """Others take CPU time during a call as `others` says, call by call."""
        others = iter(others)

        def run():
            self.calls.append(name)
            self.now += seconds
            self.foreign += next(others, 0.0)

        return run

    def measure(self, systems, plan) -> Measurement:
        def settle():
            self.settled += 1

        return measure(systems, plan, clock=lambda: self.now, wait=settle, others=lambda: self.foreign)


def test_a_round_goes_there_and_back_and_the_next_begins_with_another():
    assert "".join(order("ABC", 0)) == "ABCCBA"
    assert "".join(order("ABC", 1)) == "BCAACB"
    assert "".join(order("AB", 2)) == "ABBA"


def test_systems_take_turns_and_each_gets_its_runs():
    machine = Machine()
    systems = {"a": Timed(machine.system("a", 1.0)), "b": Timed(machine.system("b", 3.0))}
    found = machine.measure(systems, Plan(runs=25, sample_seconds=0.5, lead_seconds=0))
    assert {name: len(values) for name, values in found.samples.items()} == {"a": 26, "b": 26}
    assert set(found.samples["a"]) == {1.0} and set(found.samples["b"]) == {3.0}
    turns = "".join(machine.calls[4:])  # two calls each to find the number of calls a sample
    assert turns[:16] == "aabbbbaabbaaaabb"  # a lead-in and a sample a turn
    assert machine.settled == 2 + 2 * 26


def test_fast_calls_are_repeated_within_a_sample():
    machine = Machine()
    found = machine.measure(
        {"a": Timed(machine.system("a", 1e-3))}, Plan(runs=2, sample_seconds=0.1, lead_seconds=0.01)
    )
    assert found.samples["a"] == pytest.approx([1e-3, 1e-3])
    assert len(machine.calls) > 2 * 100


def test_repeats_reaches_the_sample_length_from_any_speed():
    for seconds in (1e-6, 1e-3, 5.0):
        machine = Machine()
        count = repeats(machine.system("a", seconds), 0.02, lambda machine=machine: machine.now)
        assert count == max(1, round(0.02 / seconds))


def test_self_timed_systems_are_believed():
    machine = Machine()
    found = machine.measure({"a": Timed(machine.system("a", 1.0), measure=lambda: 0.25)}, Plan(runs=4))
    assert found.samples["a"] == [0.25] * 4
    assert machine.calls == []


def test_disturbed_rounds_are_replaced_whatever_their_times():
    machine = Machine()
    # Calls: two to calibrate, then a lead-in and a sample a turn, two turns a round; the first round is disturbed.
    system = machine.system("a", 1.0, [0, 0, 0, 0, 0, 2.0])
    found = machine.measure({"a": Timed(system)}, Plan(runs=4, sample_seconds=0.5, lead_seconds=0))
    assert (found.dropped, found.others) == (1, 0.0)
    assert len(found.samples["a"]) == 4


def test_patience_ends_and_the_calmest_rounds_are_kept():
    machine = Machine()
    shares = [0.9, 0.2, 0.4] + [0.5] * 100
    system = machine.system("a", 1.0, [0, 0, *(share for share in shares for _ in range(4))])
    plan = Plan(runs=4, sample_seconds=0.5, lead_seconds=0, patience=13.0)
    found = machine.measure({"a": Timed(system)}, plan)
    assert found.dropped == 2
    assert found.others == pytest.approx(0.3)


def test_garbage_collection_is_restored():
    machine = Machine()
    seen = []
    machine.measure({"a": Timed(lambda: seen.append(gc.isenabled()), measure=lambda: 1.0)}, Plan(runs=2))
    assert gc.isenabled()


def test_settle_and_foreign_on_this_machine():
    assert isinstance(timing.settle(0.05), bool)
    before = timing.foreign()
    assert timing.foreign() - before < 1


def test_summary():
    assert Summary.of([float(i) for i in range(1, 102)]) == Summary(51.0, 11.0, 91.0, 101)


def test_ratio_is_of_medians_with_an_interval_around_it():
    draw = np.random.default_rng(1)
    ours, theirs = draw.normal(1.0, 0.05, 26), draw.normal(2.0, 0.1, 26)
    ratio = Ratio.of(ours, theirs)
    assert ratio.value == np.median(ours) / np.median(theirs)
    assert ratio.low < ratio.value < ratio.high
    assert 0.45 < ratio.low and ratio.high < 0.55
    assert Ratio.of(ours, theirs) == ratio


def test_noise_both_share_does_not_widen_the_interval():
    noise = np.repeat(np.random.default_rng(2).uniform(1, 3, 13), 2)
    ratio = Ratio.of(noise, 2 * noise)
    assert (ratio.low, ratio.value, ratio.high) == pytest.approx((0.5, 0.5, 0.5))


def test_geometric_mean():
    assert timing.geometric_mean([0.5, 2.0, 8.0]) == pytest.approx(2.0)
    assert math.isclose(timing.geometric_mean([3.0]), 3.0)
