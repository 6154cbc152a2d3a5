"""GPT: published sizes, causality, one tied tensor, depth that costs no compile."""

import numpy as np
import pytest

from noeira import nn
from noeira.nn.training.staging import DataSpec, train_step
from noeira.runtime.staging import StagedGraph


def test_parameter_counts_are_the_published_ones() -> None:
    assert nn.GPT.from_config(nn.GPTConfig.gpt2()).num_parameters == 124_439_808
    char = nn.GPT.from_config(nn.GPTConfig.char())
    without_positions = char.num_parameters - char.positions.weight.size
    assert without_positions == 10_646_784 and f"{without_positions / 1e6:.2f}" == "10.65"


def test_changes_to_a_preset() -> None:
    config = nn.GPTConfig.char(vocab_size=50, num_layers=2)
    assert (config.vocab_size, config.num_layers, config.embed_dim) == (50, 2, 384)


def _net(**options: object) -> nn.GPT:
    return nn.GPT(11, block_size=8, num_layers=2, num_heads=2, embed_dim=12, **options).init(nn.Normal(0, 0.5), seed=1)


@pytest.mark.parametrize("causal", [True, False])
def test_a_token_sees_only_those_before_it(causal: bool) -> None:
    net = _net(causal=causal)
    ids = np.arange(8)[None] % 11
    before = net(ids)
    after = net(np.where(np.arange(8) == 5, 10, ids))
    same = (before == after).all(axis=-1)[0]
    assert same[:5].all() == causal
    assert not same[5:].any()


def test_a_tied_table_is_one_parameter_with_the_gradients_of_both_uses() -> None:
    tied, loose = _net(tied=True), _net()
    assert tied.num_parameters == loose.num_parameters - 12 * 11 - 11
    ids = np.arange(6)[None]
    for name, param in loose.named_parameters().items():
        if name == "head.bias":
            param.val = np.zeros(param.shape)
        elif name == "head.weight":
            param.val = tied.tokens.weight.val.T
        else:
            param.val = tied.named_parameters()[name].val
    u = np.random.default_rng(0).standard_normal((1, 6, 11)).astype(np.float32)
    for net in (tied, loose):
        net.zero_grad()
        net.vjp(net.forward(ids)[1], u)
    both = loose.tokens.weight.grd + loose.named_parameters()["head.weight"].grd.T
    np.testing.assert_allclose(tied.tokens.weight.grd, both, rtol=1e-4, atol=1e-5)


def _bodies(layers: int) -> list[str]:
    net = nn.GPT(11, 8, layers, 2, 12, dropout=0.1).init()
    spec = DataSpec((8,), "int32", (8,), "int32", 1.0)
    graph: StagedGraph = train_step(net, nn.CrossEntropyLoss(), spec, "float32")[0]
    return sorted(graph.bodies())


def test_blocks_are_compiled_once_whatever_the_depth() -> None:
    assert len(_bodies(2)) == 2 and _bodies(2) == _bodies(12)


def test_scaled_residual_weights_are_narrower() -> None:
    wide, narrow = (nn.GPT(11, 8, 8, 2, 64, scale_residual=scale).init(seed=0) for scale in (False, True))
    for name, param in wide.named_parameters().items():
        if (spread := float(np.std(param.val))) > 0:
            ends_branch = name.endswith(("attention.out.weight", "ffn.fc2.weight"))
            ratio = float(np.std(narrow.named_parameters()[name].val)) / spread
            assert ratio == pytest.approx(0.25 if ends_branch else 1, rel=1e-3)
