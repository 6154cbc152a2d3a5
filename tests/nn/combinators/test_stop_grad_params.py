"""StopGradParams: who is trained by which use."""

import numpy as np
import pytest

from noeira import nn

X = np.random.default_rng(3).standard_normal((4, 5)).astype(np.float32)


def gradients(module: nn.Module) -> dict[str, np.ndarray]:
    return {name: param.grd.copy() for name, param in module.named_parameters().items()}


def test_an_actor_is_trained_through_a_critic_that_is_not():
    actor, critic = nn.Linear(5, 5), nn.Linear(5, 1)
    net = nn.Sequential(actor, nn.StopGradParams(critic)).init(seed=1)
    y, saved = net.forward(X)
    net.vjp(saved, np.ones_like(y))
    assert actor.weight.grd.any() and not critic.weight.grd.any() and not critic.bias.grd.any()
    y, saved = critic.forward(X)  # the same module, by itself
    critic.vjp(saved, np.ones_like(y))
    assert critic.weight.grd.any() and critic.bias.grd.any()


def test_what_was_frozen_stays_frozen_and_the_rest_trainable():
    inner = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
    inner[0].freeze()
    net = nn.StopGradParams(inner).init()
    y, saved = net.forward(X)
    net.vjp(saved, y)
    assert [param.trainable for param in net.named_parameters().values()] == [False, False, True, True]
    with pytest.raises(ValueError):
        net.vjp(saved, np.ones((4, 7), np.float32))
    assert [param.trainable for param in net.named_parameters().values()] == [False, False, True, True]


def test_names_and_values_are_those_of_the_module():
    inner = nn.Linear(5, 3).init(seed=2)
    net = nn.StopGradParams(inner)
    assert list(net.named_parameters()) == ["weight", "bias"]
    assert np.array_equal(net(X), inner(X))
    assert (net.expects(), net.gives(None)) == ((-1, 5), (-1, 3))
