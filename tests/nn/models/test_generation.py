"""Generating: a token at a time from what was kept gives what the whole sequence gives."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from noeira import nn
from noeira.nn.core.decoding import Decoding

VOCAB, BLOCK = 11, 6


def _recurrent() -> nn.Module:
    return nn.Sequential(
        nn.Embedding(VOCAB, 8), nn.LSTMSeq(8, 8), nn.Residual(nn.GRUSeq(8, 8)), nn.Dropout(0.5), nn.Linear(8, VOCAB)
    )


def _checkpointed() -> nn.Module:
    block = nn.Checkpointed(nn.TransformerBlock(8, 2, is_causal=True, dropout=0.5))
    return nn.Sequential(nn.Embedding(VOCAB, 8), nn.PositionEmbedding(BLOCK, 8), block, nn.Linear(8, VOCAB))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "GPT": lambda: nn.GPT(VOCAB, BLOCK, 2, 2, 8, dropout=0.5, tied=True),
    "Llama": lambda: nn.Llama(VOCAB, BLOCK, 2, 4, 16, num_kv_heads=2),
    "recurrent": _recurrent,
    "wrapped": _checkpointed,
}


def _model(name: str) -> Any:
    return MODELS[name]().init(nn.Normal(0, 0.5), seed=3).eval()


class Kept(dict[str, np.ndarray]):
    """Memory of a `Decoding` on the reference path."""

    def of(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        return self.setdefault(name, np.zeros(shape, np.float32))


@pytest.mark.parametrize("name", MODELS)
def test_steps_give_the_rows_of_the_whole_sequence(name: str) -> None:
    model, kept = _model(name), Kept()
    for ids in ([3, 1, 4, 1, 5, 9], [2, 7, 1]):  # the second starts again over what the first left
        whole = model(np.array([ids]))[0]
        for place, token in enumerate(ids):
            decoding = Decoding(np.array([place], np.int32), BLOCK, kept.of)
            row = model.step(np.array([[token]]), decoding)
            assert row.shape == (1, 1, VOCAB)
            np.testing.assert_allclose(row[0, 0], whole[place], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_rotation_at_one_place(interleaved: bool) -> None:
    rope = nn.RoPE(4, theta=50.0, interleaved=interleaved, offset=3)
    x = np.random.default_rng(0).standard_normal((1, 5, 12)).astype(np.float32)
    for place in range(5):
        row = rope.step(x[:, place : place + 1], Decoding(np.array([place], np.int32), 5, Kept().of))
        np.testing.assert_allclose(row, rope(x)[:, place : place + 1], rtol=1e-6, atol=1e-6)


def test_a_layer_that_mixes_tokens_without_a_step_is_named() -> None:
    net = nn.Sequential(nn.Embedding(VOCAB, 8), nn.MultiHeadAttention(8, 2), nn.Linear(8, VOCAB)).init()
    with pytest.raises(NotImplementedError, match=r"MultiHeadAttention\(\) sees later tokens"):
        nn.Generator(net, block_size=BLOCK, device="cpu")
    net = nn.Sequential(nn.Embedding(VOCAB, 24), nn.ScaledDotProductAttention(8, 2)).init()
    with pytest.raises(NotImplementedError, match=r"ScaledDotProductAttention.* define step.*cache=False"):
        nn.Generator(net, block_size=BLOCK, device="cpu")


@pytest.mark.compiled
@pytest.mark.parametrize("name", ["Llama", "recurrent"])
def test_the_cache_changes_no_token(name: str) -> None:
    """Within the block and past it, from one prompt, from a longer one, and from another."""
    model = _model(name)
    fast = nn.Generator(model, block_size=BLOCK, device="cpu")
    slow = nn.Generator(model, block_size=BLOCK, device="cpu", cache=False)
    for prompt in ([3, 1], [3, 1, 4], [2]):
        ids = np.array(prompt)
        for options in ({"temperature": 0.0}, {"seed": 5}, {"seed": 5, "top_k": 4, "top_p": 0.9}):
            np.testing.assert_array_equal(fast(ids, 7, **options), slow(ids, 7, **options))
    for tokens in ([3, 1, 4], [3, 1, 4, 1, 5], [3, 2]):
        close = {"rtol": 2e-5, "atol": 2e-6}
        np.testing.assert_allclose(fast.logits(tokens), slow.logits(tokens), **close)
        np.testing.assert_allclose(fast.logits(tokens), model(np.array([tokens]))[0, -1], **close)
