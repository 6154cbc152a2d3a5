"""Arenas: alignment, views, carry-over, ownership, segments."""

from itertools import pairwise

import numpy as np
import pytest

from noeira.nn import SGD, Adam, Linear, ReLU, Sequential
from noeira.runtime.devices import ALIGNMENT


def net_of(*widths):
    return Sequential(*(Linear(a, b) for a, b in pairwise(widths)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_parameter_starts_on_a_boundary(dtype):
    net = net_of(3, 5, 7, 1).init().to(dtype=dtype)
    arena = net.arena()
    assert arena.memory["val"].numpy().ctypes.data % ALIGNMENT == 0
    for name, param in arena.params.items():
        assert arena.offsets[name] * arena.dtype.itemsize % ALIGNMENT == 0
        assert param.val.ctypes.data % ALIGNMENT == 0
        assert param.name == name


def test_parameters_are_views():
    net = net_of(3, 5).init()
    arena = net.arena()
    arena.memory["val"].numpy()[:] = 4
    assert (net[0].weight.val == 4).all()
    net[0].bias.val = np.arange(5)
    start = arena.offsets["0.bias"]
    assert arena.memory["val"].numpy()[start : start + 5].tolist() == [0, 1, 2, 3, 4]
    net[0].weight.grd += 2
    assert arena.memory["grd"].numpy().sum() == 30
    net.zero_grad()
    assert not arena.memory["grd"].numpy().any()


def test_values_and_moments_are_carried_to_another_dtype():
    net = net_of(3, 5).init(seed=0)
    net[0].weight.grd += 1
    Adam(1e-2).step(net)
    before = {role: net.arena().memory[role].numpy().copy() for role in ("val", "m", "v")}
    net.to(dtype="float64").to(dtype="float32")
    for role, values in before.items():
        np.testing.assert_array_equal(net.arena().memory[role].numpy(), values)
    assert net.arena().applied == 1


def test_a_new_layer_is_adopted_and_the_others_keep_their_values():
    net = net_of(3, 5).init(seed=0)
    old = net.arena()
    weight = net[0].weight.val.copy()
    net.layers.append(Linear(5, 2))
    assert net.arena() is not old
    np.testing.assert_array_equal(net[0].weight.val, weight)
    assert set(net.arena().params) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert net.arena() is net.arena()


def test_running_a_part_does_not_take_its_memory():
    net = net_of(3, 5, 2).init(seed=0)
    arena = net.arena()
    net[1](np.ones((1, 5), np.float32))
    net[0].zero_grad()
    net[0].init(seed=3)
    assert net.arena() is arena


def test_a_part_drawn_alone_is_drawn_as_in_the_whole():
    one, other = net_of(3, 5, 2).init(seed=3), net_of(3, 5, 2).init(seed=0)
    other.arena()
    one.arena()
    other[1].init(seed=3)
    np.testing.assert_array_equal(one[1].weight.val, other[1].weight.val)
    assert not np.array_equal(one[0].weight.val, other[0].weight.val)


def test_a_shared_trunk_goes_to_who_asks_and_comes_back():
    trunk = Linear(3, 5)
    a, b = Sequential(trunk, Linear(5, 1)).init(seed=0), Sequential(trunk, Linear(5, 4))
    value = trunk.weight.val.copy()
    b.init_missing()
    first = a.arena()
    second = b.arena()
    np.testing.assert_array_equal(trunk.weight.val, value)
    assert not first.owns(a.named_parameters(), a.named_states())
    assert trunk.weight.arena is second
    a.arena()
    assert trunk.weight.arena is a.arena()


def test_moving_a_part_alone_is_refused():
    net = net_of(3, 5, 2).init()
    net.arena()
    with pytest.raises(ValueError, match=r"cannot move Linear\(3, 5\) alone: '0.weight' is part of a larger model"):
        net[0].to(dtype="float64")
    net.to(dtype="float64")


def test_segments_join_neighbours_of_equal_kind():
    net = net_of(3, 5, 2).init()
    runs, factors = net.arena().segments()
    assert factors.tolist() == [[1, 1], [1, 0], [1, 1], [1, 0]]
    assert runs[0].tolist() == [0, 15]
    net[0].freeze()
    runs, factors = net.arena().segments()
    assert runs.tolist() == [[net.arena().offsets["1.weight"], 10], [net.arena().offsets["1.bias"], 2]]


def test_a_model_without_parameters_has_an_empty_arena():
    net = Sequential(ReLU())
    assert net.arena().size == 0
    assert net.arena().segments()[0].shape == (0, 2)
    assert net(np.array([[-1.0, 2.0]])).tolist() == [[0, 2]]


def test_names_by_position():
    net = net_of(3, 5, 2).init()
    arena = net.arena()
    for name, offset in arena.offsets.items():
        assert arena.name_at(offset) == name
        assert arena.name_at(offset + net.named_parameters()[name].size - 1) == name


def test_moments_belong_to_one_kind_of_optimizer():
    net = net_of(3, 5).init(seed=0)
    net[0].weight.grd += 1
    Adam(1e-2).step(net)
    assert net.arena().applied == 1
    net.zero_grad()
    net[0].weight.grd += 1
    before = net[0].weight.val.copy()
    SGD(1.0, momentum=0.9).step(net)
    np.testing.assert_allclose(before - net[0].weight.val, 1, rtol=1e-6)  # no memory of Adam's first moment
    assert net.arena().applied == 1
    assert not net.arena().memory["v"].numpy().any()
