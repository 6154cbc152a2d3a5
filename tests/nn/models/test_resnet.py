"""ResNet: published sizes, torchvision's names, frozen statistics."""

import numpy as np
import pytest

from noeira import nn


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (nn.ResNetConfig.resnet18(), 11_689_512),
        (nn.ResNetConfig.resnet34(), 21_797_672),
        (nn.ResNetConfig.resnet20(), 273_258),
        (nn.ResNetConfig.resnet20(bias=False), 272_474),
    ],
)
def test_parameter_counts_are_the_published_ones(config: nn.ResNetConfig, count: int) -> None:
    assert nn.ResNet.from_config(config).num_parameters == count


def _torchvision_names() -> set[str]:
    """Of ResNet-18: parameters and statistics, as its checkpoints spell them."""
    names = {"conv1.weight", "fc.weight", "fc.bias"}
    norms = ["bn1"]
    for stage in range(1, 5):
        for block in range(2):
            prefix = f"layer{stage}.{block}."
            names |= {f"{prefix}conv1.weight", f"{prefix}conv2.weight"}
            norms += [f"{prefix}bn1", f"{prefix}bn2"]
        if stage > 1:
            names.add(f"layer{stage}.0.downsample.0.weight")
            norms.append(f"layer{stage}.0.downsample.1")
    return names | {f"{norm}.{what}" for norm in norms for what in ("weight", "bias", "running_mean", "running_var")}


def test_names_are_torchvisions() -> None:
    net = nn.ResNet.from_config(nn.ResNetConfig.resnet18())
    assert {*net.named_parameters(), *net.named_states()} == _torchvision_names()


def test_frozen_statistics_stay_and_samples_do_not_mix() -> None:
    net = nn.ResNet(3, blocks=(1, 1), widths=(4, 6), stem="cifar", frozen=True).init(seed=0)
    x = np.random.default_rng(0).standard_normal((4, 3, 8, 8)).astype(np.float32)
    before = {name: state.val.copy() for name, state in net.named_states().items()}
    y = net(x)
    for name, state in net.named_states().items():
        np.testing.assert_array_equal(state.val, before[name])
    np.testing.assert_allclose(net(x[:1]), y[:1], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(net.eval()(x), y)
