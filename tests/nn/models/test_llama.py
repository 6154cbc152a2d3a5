"""Llama: published sizes, causality, relative positions, one tied tensor."""

import numpy as np
import pytest

from noeira import nn


@pytest.mark.parametrize(
    ("config", "count"),
    [(nn.LlamaConfig.llama2_7b(), 6_738_415_616), (nn.LlamaConfig.llama32_1b(), 1_235_814_400)],
)
def test_parameter_counts_are_the_published_ones(config: nn.LlamaConfig, count: int) -> None:
    assert nn.Llama.from_config(config).num_parameters == count


def test_the_default_hidden_width_is_eight_thirds_rounded_up() -> None:
    for width, hidden in ((12, 32), (48, 128), (64, 192), (4096, 10944)):
        block = nn.Llama(5, 4, 1, 2, width).blocks[0]
        assert block.ffn[2].in_features == hidden


def test_a_token_sees_only_those_before_it() -> None:
    net = nn.Llama(11, 8, 2, 4, 16, num_kv_heads=2).init(nn.Normal(0, 0.5), seed=1)
    ids = np.arange(8)[None] % 11
    before, after = net(ids), net(np.where(np.arange(8) == 5, 10, ids))
    same = (before == after).all(axis=-1)[0]
    assert same[:5].all() and not same[5:].any()


def test_attention_depends_on_distances_not_on_places() -> None:
    net = nn.Llama(11, 8, 1, 2, 8).init(nn.Normal(0, 0.5), seed=1)
    ids = np.array([[3, 5, 7]])
    shifted = np.array([[3, 3, 5, 7]])
    # The last token sees the same ones at the same distances, and 3 once more: its keys are those of the first.
    alone = net(np.array([[5]]))[0, 0]
    np.testing.assert_allclose(net(np.array([[5, 5]]))[0, 1], alone, rtol=1e-4, atol=1e-5)
    assert np.abs(net(ids)[0, -1] - net(shifted)[0, -1]).max() > 1e-4
