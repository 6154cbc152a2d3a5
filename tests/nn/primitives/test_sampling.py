"""Layers that draw: what the draws are, when they change, and what evaluation does (numbers: catalogue_random)."""

import math

import numpy as np
import pytest

from noeira import nn

ROWS = np.random.default_rng(1).standard_normal((6, 8)).astype(np.float32)


def drawing() -> list[nn.Module]:
    return [nn.NoisyLinear(8, 5), nn.RSample(4), nn.GaussianVAE(4), nn.SIGReg(8, 16), nn.HashDropout(0.5)]


NAMED = pytest.mark.parametrize("layer", drawing(), ids=lambda layer: type(layer).__name__)


@NAMED
def test_every_training_step_draws_anew_and_a_seed_draws_again(layer: nn.Module) -> None:
    nn.seed(3)
    first, second = layer(ROWS), layer(ROWS)
    assert not np.array_equal(first, second)
    nn.seed(3)
    assert np.array_equal(layer(ROWS), first)
    nn.seed(4)
    assert not np.array_equal(layer(ROWS), first)


@pytest.mark.parametrize("kind", range(5))
def test_two_layers_of_a_model_draw_apart(kind: int) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            self.a, self.b = drawing()[kind], drawing()[kind]

        def forward(self, x):
            return (self.a.forward(x)[0], self.b.forward(x)[0]), None

    net = Two().init()
    for name, param in net.a.named_parameters().items():
        net.b.named_parameters()[name].val = param.val
    a, b = net(ROWS)
    assert not np.array_equal(a, b)


@NAMED
def test_a_vjp_does_not_move_the_next_draw(layer: nn.Module) -> None:
    layer.init()

    def run(vjps: int) -> np.ndarray:
        nn.seed(7)
        y, saved = layer.forward(ROWS)
        for _ in range(vjps):
            layer.vjp(saved, np.ones_like(y))
        return layer(ROWS)

    assert np.array_equal(run(0), run(2))


def test_noisy_linear_draws_once_a_forward_and_one_rank() -> None:
    layer = nn.NoisyLinear(8, 5).init()
    same = np.ones((4, 8), np.float32)
    assert np.array_equal(layer(same)[0], layer.eval()(same)[0]) is False
    y = layer.train()(same)
    assert (y == y[0]).all()
    nn.seed(5)
    noisy = layer(np.concatenate([np.eye(8), np.zeros((1, 8))]).astype(np.float32))  # each row of W + b, and b
    noise = (noisy[:8] - noisy[8]) - layer.weight_mu.val
    values = np.linalg.svd(noise)[1]
    assert values[0] > 0.01 and values[1] < 1e-5 * values[0]


def test_noisy_linear_in_evaluation_is_a_linear_layer() -> None:
    layer = nn.NoisyLinear(8, 5).init().eval()
    y, saved = layer.forward(ROWS)
    np.testing.assert_allclose(y, ROWS @ layer.weight_mu.val + layer.bias_mu.val, rtol=1e-6, atol=1e-6)
    layer.vjp(saved, np.ones_like(y))
    assert layer.weight_mu.grd.any() and not layer.weight_sigma.grd.any() and not layer.bias_sigma.grd.any()


def test_noisy_linear_starts_as_in_the_paper() -> None:
    layer = nn.NoisyLinear(64, 100).init(nn.Xavier())  # whatever the model's initializer
    bound = 1 / math.sqrt(64)
    assert 0.95 * bound < np.abs(layer.weight_mu.val).max() <= bound and np.abs(layer.bias_mu.val).max() <= bound
    assert (layer.weight_sigma.val == np.float32(0.5 / 8)).all() and (layer.bias_sigma.val == np.float32(0.5 / 8)).all()
    decayed = {name for name, param in layer.named_parameters().items() if param.decay}
    assert decayed == {"weight_mu", "weight_sigma"}


def test_rsample_gives_the_density_of_its_actions() -> None:
    """One action: e^logp is the probability density, so that it integrates to 1 over histogram bins."""
    x = np.tile(np.array([[0.3, -0.5]], np.float32), (20000, 1))
    y = nn.RSample(1, 2.0)(x)
    order = np.argsort(y[:, 0])
    action, density = y[order, 0], np.exp(y[order, 1])
    assert np.abs(action).max() < 2
    assert float(np.sum((density[1:] + density[:-1]) / 2 * np.diff(action))) == pytest.approx(1, abs=0.01)
    u = np.arctanh(action.astype(np.float64) / 2)
    assert u.mean() == pytest.approx(0.3, abs=0.02) and u.std() == pytest.approx(math.exp(-0.5), abs=0.02)


def test_evaluation_is_greedy() -> None:
    np.testing.assert_allclose(nn.RSample(4).eval()(ROWS)[:, :4], np.tanh(ROWS[:, :4]), rtol=1e-6)
    vae = nn.GaussianVAE(4).eval()
    assert np.array_equal(vae(ROWS)[:, :4], ROWS[:, :4])
    huge = np.full((1, 8), 200, np.float32)
    assert np.array_equal(vae(huge)[:, :4], huge[:, :4])  # not 0 times infinity


def test_divergence_is_0_for_a_standard_normal_alone() -> None:
    x = np.zeros((2, 6), np.float32)
    x[1, 0], x[1, 4] = 2, 1
    kl = nn.GaussianVAE(3)(x)[:, -1]
    assert kl[0] == 0 and kl[1] == pytest.approx((4 + math.e - 2) / 2)


def test_sigreg_tells_a_gaussian_from_what_is_none() -> None:
    rng = np.random.default_rng(0)
    good = rng.standard_normal((512, 8)).astype(np.float32)
    layer = nn.SIGReg(8, 128)
    statistic = {
        "good": good,
        "shifted": good + 1,
        "scaled": 2 * good,
        "flat": np.concatenate([good[:, :4], 0 * good[:, :4]], 1),
        "collapsed": 0 * good,
    }
    values = {name: float(layer(x)[0, 0]) for name, x in statistic.items()}
    assert values["good"] < 1.5 and all(value > 5 * values["good"] for name, value in values.items() if name != "good")
    y = layer(good)
    assert y.shape == (512, 1) and (y == y[0]).all()


def test_sigreg_that_keeps_its_projections() -> None:
    layer = nn.SIGReg(8, 16, resample=False)
    nn.seed(1)
    first = layer(ROWS)
    assert np.array_equal(layer(ROWS), first)
    nn.seed(2)
    assert not np.array_equal(layer(ROWS), first)


def test_hash_dropout_has_a_switch_of_its_own() -> None:
    layer, x = nn.HashDropout(0.5), np.ones((8, 64), np.float32)
    for mode in (True, False):
        layer.train(mode).dropout = True
        y, saved = layer.forward(x)
        assert set(np.unique(y)) == {0, 2} and np.array_equal(layer.vjp(saved, x), y)
        layer.dropout = False
        y, saved = layer.forward(x)
        assert np.array_equal(y, x) and saved is None


@pytest.mark.parametrize("layer", [nn.NoisyLinear(8, 8), nn.HashDropout(0.5)], ids=lambda layer: type(layer).__name__)
def test_a_checkpoint_draws_the_same_again(layer: nn.Module) -> None:
    def run(net: nn.Module) -> list[np.ndarray]:
        net.init(seed=1)
        nn.seed(9)
        y, saved = net.forward(ROWS)
        dx = net.vjp(saved, np.ones_like(y))
        return [y, dx, *(param.grd.copy() for param in net.named_parameters().values())]

    plain, again = run(nn.Sequential(layer)), run(nn.Sequential(nn.Checkpointed(layer)))
    assert all(np.array_equal(a, b) for a, b in zip(plain, again, strict=True))
