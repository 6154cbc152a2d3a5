"""ViT: published sizes, blocks compiled once, and what its tokens see."""

import numpy as np

from noeira import nn


def test_parameter_counts_are_the_published_ones() -> None:
    assert nn.ViT.from_config(nn.ViTConfig.b16()).num_parameters == 86_567_656
    blocks = 6 * (12 * 192 * 192 + 13 * 192)
    rest = 3 * 16 * 192 + 192 + 64 * 192 + 2 * 192 + 192 * 10 + 10
    assert nn.ViT.from_config(nn.ViTConfig.cifar10()).num_parameters == blocks + rest


def test_every_token_sees_every_patch() -> None:
    net = nn.ViT(8, 4, 5, 8, 2, 2, class_token=True).init(nn.Normal(0, 0.5), seed=1)
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
    before = net(x)
    for row in (0, 4):
        for column in (0, 4):
            changed = x.copy()
            changed[..., row, column] += 1
            assert np.abs(net(changed) - before).max() > 1e-4


def test_the_mean_pooled_net_forgets_the_order_of_patches_without_positions() -> None:
    net = nn.ViT(8, 4, 5, 8, 2, 2).init(nn.Normal(0, 0.5), seed=1)
    net.positions.weight.val = np.zeros(net.positions.weight.shape)
    x = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)
    turned = np.concatenate([x[:, :, 4:], x[:, :, :4]], 2)
    np.testing.assert_allclose(net(turned), net(x), rtol=1e-4, atol=1e-5)
