"""Schedules against values worked out by hand, per epoch and per step."""

import numpy as np
import pytest

from noeira import nn
from noeira.nn.optimizer.schedule import Constant, Cosine, LinearWarmup, Schedule, Step, WarmupCosine

HALF = 0.5 * (1 + np.sqrt(0.5))  # half a cosine after a quarter of the way
CASES = [
    (Constant(), [1, 1, 1, 1, 1]),
    (LinearWarmup(warmup=4), [0.25, 0.5, 0.75, 1, 1]),
    (LinearWarmup(warmup=1), [1, 1, 1, 1, 1]),
    (LinearWarmup(warmup=0), [1, 1, 1, 1, 1]),
    (LinearWarmup(warmup=10), [0.1, 0.2, 0.3, 0.4, 0.5]),
    (Cosine(), [1, HALF, 0.5, 1 - HALF, 0]),
    (Cosine(minimum=0.2), [1, 0.2 + 0.8 * HALF, 0.6, 0.2 + 0.8 * (1 - HALF), 0.2]),
    (WarmupCosine(warmup=1), [1, 1, HALF, 0.5, 1 - HALF]),
    (WarmupCosine(warmup=3, minimum=0.5), [1 / 3, 2 / 3, 1, 1, 0.75]),
    (WarmupCosine(warmup=0), [1, 0.9045084971874737, 0.6545084971874737, 0.34549150281252633, 0.09549150281252627]),
    (WarmupCosine(warmup=9), [1 / 9, 2 / 9, 3 / 9, 4 / 9, 5 / 9]),
    (Step(every=2, gamma=0.1), [1, 1, 0.1, 0.1, 0.01]),
    (Step(every=1, gamma=0.5), [1, 0.5, 0.25, 0.125, 0.0625]),
    (Step(), [1, 1, 1, 1, 1]),
]
IDS = [repr(schedule) for schedule, _ in CASES]


def per_step(schedule: Schedule) -> Schedule:
    options = {name: value for name, value in vars(schedule).items() if name != "per"}
    return type(schedule)(per="step", **options)


@pytest.mark.parametrize(("schedule", "factors"), CASES, ids=IDS)
def test_per_epoch_holds_for_all_steps_of_the_epoch(schedule: Schedule, factors: list[float]) -> None:
    table = schedule.table(lr=0.3, epochs=5, steps_per_epoch=3)
    assert table.dtype == np.float64
    np.testing.assert_allclose(table, np.repeat(np.multiply(0.3, factors), 3), rtol=1e-12, atol=1e-17)


@pytest.mark.parametrize(("schedule", "factors"), CASES, ids=IDS)
@pytest.mark.parametrize(("epochs", "steps"), [(5, 1), (1, 5)])
def test_per_step_counts_steps(schedule: Schedule, factors: list[float], epochs: int, steps: int) -> None:
    table = per_step(schedule).table(lr=0.3, epochs=epochs, steps_per_epoch=steps)
    np.testing.assert_allclose(table, np.multiply(0.3, factors), rtol=1e-12, atol=1e-17)


def test_per_step_runs_over_the_whole_training() -> None:
    table = Cosine(per="step").table(lr=1.0, epochs=3, steps_per_epoch=4)
    assert len(table) == 12
    np.testing.assert_allclose(table, 0.5 * (1 + np.cos(np.pi * np.arange(12) / 11)), atol=1e-12)


@pytest.mark.parametrize("schedule", [schedule for schedule, _ in CASES], ids=IDS)
def test_one_epoch_and_none_are_no_special_case(schedule: Schedule) -> None:
    assert np.isfinite(schedule.table(1.0, 1, 1)).all()
    assert schedule.table(1.0, 2, 0).shape == per_step(schedule).table(1.0, 2, 0).shape == (0,)


@pytest.mark.parametrize("per", ["batch", 5, None])
def test_an_unknown_unit_is_refused(per: object) -> None:
    with pytest.raises(ValueError, match=r"Cosine: expected per='epoch' or 'step', got"):
        Cosine(per=per)  # type: ignore[arg-type]


def test_schedules_are_values() -> None:
    assert nn.Step(every=3) == nn.Step(every=3) != nn.Step(every=4)
    assert repr(nn.LinearWarmup(warmup=3)) == "LinearWarmup(per='epoch', warmup=3)"


def test_a_schedule_of_ones_own() -> None:
    class Inverse(Schedule):
        def scale(self, index: int, total: int) -> float:
            return 1 / (index + 1)

    np.testing.assert_allclose(Inverse().table(6.0, 3, 1), [6, 3, 2])
