"""Initializers: their definitions, and draws that depend on seed and name alone."""

import math

import numpy as np
import pytest

from noeira.nn import Deterministic, Kaiming, Linear, Normal, ScaledKaiming, Sequential, TruncNormalIn, Xavier, Zero
from noeira.nn.core.initializer import Constant, Draw

COUNT, FAN_IN, FAN_OUT = 20_000, 50, 30


def values(rule, seed=0, name="w"):
    return rule(COUNT, FAN_IN, FAN_OUT, Draw(seed, name))


UNIFORM = {
    Kaiming(): math.sqrt(6 / FAN_IN),
    ScaledKaiming(0.5): 0.5 * math.sqrt(6 / FAN_IN),
    Xavier(): math.sqrt(6 / (FAN_IN + FAN_OUT)),
}


@pytest.mark.parametrize(("rule", "bound"), UNIFORM.items(), ids=str)
def test_uniform_rules(rule, bound):
    drawn = values(rule)
    assert np.abs(drawn).max() < bound
    assert np.abs(drawn).max() > 0.99 * bound
    assert abs(drawn.mean()) < 5 * bound / math.sqrt(3 * COUNT)
    assert drawn.var() == pytest.approx(bound**2 / 3, rel=0.03)


def test_normal():
    drawn = values(Normal(1.5, 0.2))
    assert drawn.mean() == pytest.approx(1.5, abs=0.01)
    assert drawn.std() == pytest.approx(0.2, rel=0.03)
    assert np.mean(np.abs(drawn - 1.5) < 0.2) == pytest.approx(0.6827, abs=0.015)


def test_truncated_normal_has_unit_variance_over_fan_in():
    drawn = values(TruncNormalIn())
    assert np.abs(drawn).max() <= 2 * 1.1368 / math.sqrt(FAN_IN)
    assert drawn.std() == pytest.approx(1 / math.sqrt(FAN_IN), rel=0.02)


def test_constants():
    assert not values(Zero()).any()
    assert (values(Constant(0.25)) == 0.25).all()
    np.testing.assert_allclose(values(Deterministic())[:8], [-0.3, -0.2, -0.1, 0, 0.1, 0.2, 0.3, -0.3])


@pytest.mark.parametrize("rule", [*UNIFORM, Normal(), TruncNormalIn()], ids=str)
def test_a_draw_depends_on_seed_and_name(rule):
    same = values(rule)
    np.testing.assert_array_equal(same, values(rule))
    assert not np.array_equal(same, values(rule, seed=1))
    assert not np.array_equal(same, values(rule, name="v"))
    assert not np.allclose(same[:10], same[10:20])


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_odd_and_empty_sizes(count):
    for rule in (*UNIFORM, Normal(), TruncNormalIn(), Zero(), Deterministic()):
        assert rule(count, FAN_IN, FAN_OUT, Draw(0, "w")).shape == (count,)


def test_a_models_initializer_and_a_layers_own():
    net = Sequential(Linear(7, 3), Linear(3, 2, init=Zero())).init(Deterministic(), seed=5)
    assert net[0].weight.val[0].tolist() == pytest.approx([-0.3, -0.2, -0.1])
    assert not net[1].weight.val.any()
    assert not net[0].bias.val.any()


def test_adding_a_layer_does_not_change_the_others():
    short = Sequential(Linear(4, 4)).init(seed=3)
    long = Sequential(Linear(4, 4), Linear(4, 4)).init(seed=3)
    np.testing.assert_array_equal(short[0].weight.val, long[0].weight.val)
    assert not np.array_equal(long[0].weight.val, long[1].weight.val)


def test_float64_weights_are_the_float32_ones_widened():
    narrow = Sequential(Linear(4, 4)).init(seed=3)
    wide = Sequential(Linear(4, 4)).init(seed=3).to(dtype="float64")
    np.testing.assert_array_equal(narrow[0].weight.val.astype(np.float64), wide[0].weight.val)
