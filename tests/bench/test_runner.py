"""Cases from building to figures, with fake systems."""

import numpy as np
import pytest

from bench.case import Case, Job, Setup, Unsupported, Work
from bench.equality import Different, compare
from bench.machine import Peaks
from bench.runner import CHAIN, EMPTY, run_case
from bench.timing import Measurement, Plan

SETUP, PLAN = Setup(2), Plan(runs=4)
PEAKS = Peaks(1e9, ((1000, 1e9), (1_000_000, 1e8)))


def job(value, log, name, **options):
    def run():
        log.append(f"run {name}")

    def result():
        log.append(f"result {name}")
        return {"y": np.asarray(value)}

    return Job(run, result, **options)


def timer(log, seconds):
    def measure(systems, plan):
        log.append("timed " + ",".join(systems))
        return Measurement({name: [seconds[name]] * plan.runs for name in systems}, 0.01, 3)

    return measure


def case(log, values, expected=None, **options):
    builders = {name: lambda inputs, setup, name=name: job(values[name], log, name) for name in values}
    fields = {"work": Work(2e6, 500), "tolerance": 1e-3} | options
    return Case(
        "c", "f", lambda: {"x": np.zeros(1)}, builders, None if expected is None else lambda x: expected, **fields
    )


def test_results_are_compared_before_anything_is_timed():
    log = []
    made = case(log, {"noeira": 1.0, "torch": 1.0005}, {"y": np.ones(())})
    found = run_case(made, ["noeira", "torch"], SETUP, PLAN, PEAKS, timer=timer(log, {"noeira": 0.5, "torch": 1.0}))
    assert log == ["result torch", "result noeira", "timed noeira,torch"]
    assert found.error == "" and found.dropped == 3 and found.others == 0.01
    assert found.ratios["torch"].value == 0.5
    assert found.best_other == 1.0
    assert found.agreement == pytest.approx({"torch": 0.5, "noeira": 0.0})
    assert found.floor == pytest.approx(2e-3)


@pytest.mark.parametrize("expected", [None, {"y": np.ones(())}])
def test_wrong_results_are_not_timed(expected):
    log = []
    found = run_case(
        case(log, {"noeira": 1.1, "torch": 1.0}, expected), ["noeira", "torch"], SETUP, PLAN, None, timer=timer(log, {})
    )
    assert "noeira: y is off by 1.00e-01" in found.error
    assert not any(line.startswith("timed") for line in log)
    assert found.samples == {} and found.ratios == {}


def test_only_systems_asked_for_are_built():
    log = []
    made = case(log, {"noeira": 1.0, "torch": 1.0})
    found = run_case(made, ["noeira", "numpy"], SETUP, PLAN, None, timer=timer(log, {"noeira": 1.0}))
    assert log == ["result noeira", "timed noeira"]
    assert found.best_other is None and found.floor is None


def test_unsupported_systems_are_left_out_with_a_reason():
    def refuse(inputs, setup):
        raise Unsupported("no tea")

    log = []
    made = case(log, {"noeira": 1.0})
    made = Case(**{**made.__dict__, "builders": {**made.builders, "jax": refuse}})
    found = run_case(made, ["noeira", "jax"], SETUP, PLAN, None, timer=timer(log, {"noeira": 1.0}))
    assert found.absent == {"jax": "no tea"} and found.error == ""


def test_a_broken_case_is_reported_and_does_not_raise(capsys):
    def broken(inputs, setup):
        raise ZeroDivisionError("oops")

    made = Case("c", "f", dict, {"noeira": broken})
    assert run_case(made, ["noeira"], SETUP, PLAN, None).error == "ZeroDivisionError: oops"
    assert "oops" in capsys.readouterr().err


def test_another_system_that_breaks_is_left_out_with_a_reason():
    def broken(inputs, setup):
        def result():
            raise ZeroDivisionError("oops")

        return Job(lambda: None, result)

    log = []
    made = case(log, {"noeira": 1.0})
    made = Case(**{**made.__dict__, "builders": {**made.builders, "jax": broken}})
    found = run_case(made, ["noeira", "jax"], SETUP, PLAN, None, timer=timer(log, {"noeira": 1.0}))
    assert found.absent == {"jax": "ZeroDivisionError: oops"} and found.error == ""
    assert "jax" not in found.samples


def test_device_without_kernels_is_said_plainly():
    def on_device(inputs, setup):
        return job(setup.noeira_device, [], "noeira")

    made = Case("c", "f", dict, {"noeira": on_device})
    found = run_case(made, ["noeira"], Setup(2, "cuda"), PLAN, None)
    assert "device 'cuda'" in found.error


def test_the_empty_call_is_measured_and_taken_off():
    log = []
    made = Case("c", "f", dict, {"noeira": lambda inputs, setup: job(1.0, log, "noeira", empty=lambda: None)})
    found = run_case(made, ["noeira"], SETUP, PLAN, None, timer=timer(log, {"noeira": 5.0, EMPTY: 2.0}))
    assert (found.overhead, found.net) == (2.0, 3.0)
    assert list(found.samples) == ["noeira"]
    found = run_case(made, ["noeira"], SETUP, PLAN, None, timer=timer(log, {"noeira": 2.1, EMPTY: 2.0}))
    assert found.overhead == 2.0 and found.net is None


def test_short_work_is_measured_in_a_chain():
    log, options = [], {"empty": lambda: None, "chain": lambda: None, "links": 4}
    made = Case("c", "f", dict, {"noeira": lambda inputs, setup: job(1.0, log, "noeira", **options)})
    found = run_case(made, ["noeira"], SETUP, PLAN, None, timer=timer(log, {"noeira": 5.0, EMPTY: 8.0, CHAIN: 20.0}))
    assert (found.overhead, found.link, found.net) == (2.0, 5.0, 3.0)
    assert list(found.samples) == ["noeira"]


@pytest.mark.parametrize(
    ("got", "message"),
    [
        ({}, "returned []"),
        ({"y": np.zeros(3)}, "has shape [3]"),
        ({"y": np.array([1.0, np.nan])}, "not finite"),
        ({"y": np.array([1.0, 2.01])}, "off by 5.00e-03"),
    ],
)
def test_differences_are_named(got, message):
    with pytest.raises(Different, match="torch") as caught:
        compare("torch", got, {"y": np.array([1.0, 2.0])}, 1e-3)
    assert message in str(caught.value)


def test_tolerances_by_name():
    expected = {"a": np.ones(2), "b": np.ones(2)}
    got = {"a": np.ones(2) * 1.05, "b": np.ones(2)}
    assert compare("s", got, expected, {"a": 0.1, "": 1e-6}) == pytest.approx(0.5)
    with pytest.raises(Different):
        compare("s", got, expected, {"b": 0.1, "": 1e-6})


def test_floors():
    assert PEAKS.floor(Work()) is None
    assert PEAKS.floor(Work(flops=1e9)) == 1.0
    assert PEAKS.floor(Work(bytes=500)) == 5e-7
    assert PEAKS.floor(Work(bytes=1e6)) == pytest.approx(1e-2)
    assert PEAKS.floor(Work(bytes=1e9)) == pytest.approx(10)
