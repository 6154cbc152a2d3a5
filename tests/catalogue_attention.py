"""Rows of the attention family."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from noeira import nn
from noeira.ops.dropout import threshold
from noeira.ops.random import bits, fold_in, stream_of
from tests.catalogue import Input, Mistake, Row, Sample, _zeros
from tests.compare import SEED, Twin


def _split(x: torch.Tensor, heads: int) -> torch.Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _attend(
    layer: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """PyTorch's attention; written out for dropout, other causality, and rows that see nothing."""
    q, k, v = _split(q, layer.num_heads), _split(k, layer.num_kv_heads), _split(v, layer.num_kv_heads)
    plain = not (layer.training and layer.dropout_p) and mask is None and k.numel() and q.numel()
    if plain and (not layer.is_causal or q.shape[2] == k.shape[2]):
        grouped = layer.num_kv_heads != layer.num_heads
        y = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=layer.is_causal, scale=layer.scale, enable_gqa=grouped
        )
        return y.transpose(1, 2).flatten(2)
    k, v = (x.repeat_interleave(layer.num_heads // layer.num_kv_heads, dim=1) for x in (k, v))
    x = q @ k.mT * (layer.scale or 1 / math.sqrt(q.shape[-1]))
    allowed = torch.ones(x.shape, dtype=torch.bool)
    if layer.is_causal:
        allowed = allowed.tril(x.shape[-1] - x.shape[-2])
    if mask is not None and mask.dtype == torch.bool:
        allowed = allowed & mask
    elif mask is not None:
        x, allowed = x + mask, allowed & (mask > -1e30)
    x = x.masked_fill(~allowed, -torch.inf).masked_fill(~allowed.any(-1, keepdim=True), 0.0)
    p = torch.softmax(x, -1) * allowed
    if layer.training and layer.dropout_p:
        key = fold_in(np.array([SEED, 1, 0]), stream_of(f"{type(layer).__name__}#1"))
        words = bits(p.numel(), seed=SEED, step=1, stream=int(key[2])).astype(np.uint64)
        kept = torch.tensor((words >= threshold(layer.dropout_p)).reshape(p.shape))
        p = p * kept / (1 - layer.dropout_p) if layer.dropout_p < 1 else p * 0
    return (p @ v).transpose(1, 2).flatten(2)


def _packed_twin(layer: Any) -> Twin:
    def twin(params: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        q, k, v = x.unbind(1) if x.ndim == 4 else x.chunk(3, -1)
        mask = getattr(layer, "mask", None)
        return _attend(layer, q, k, v, None if mask is None else torch.tensor(mask))

    return twin


def _cross_twin(layer: Any) -> Twin:
    def twin(params: dict[str, torch.Tensor], *inputs: torch.Tensor) -> torch.Tensor:
        q, k, v = inputs[:3]
        return _attend(layer, q, k, v, inputs[3][:, None, None, :] if len(inputs) == 4 else None)

    return twin


def _keys(batch: int, keys: int) -> Input:
    def draw(rng: np.random.Generator) -> np.ndarray:
        kept = rng.random((batch, keys)) < 0.6
        kept[:1] = False  # the first sequence is all padding
        return kept

    return draw


def _rope_twin(layer: nn.RoPE) -> Twin:
    def twin(params: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        half = layer.head_dim // 2
        angle = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] + layer.offset
        angle = angle * layer.theta ** (-torch.arange(half, dtype=torch.float64) / half)
        cos, sin = (f(angle).to(x.dtype)[:, None] for f in (torch.cos, torch.sin))
        heads = x.unflatten(-1, (x.shape[-1] // layer.head_dim, layer.head_dim))
        if layer.interleaved:
            a, b = heads[..., ::2], heads[..., 1::2]
            return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-3)
        a, b = heads[..., :half], heads[..., half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)

    return twin


PLAIN = (
    Sample("two heads", (8, 2), ((2, 5, 24),)),
    Sample("batch 1, one token", (8, 2), ((1, 1, 24),)),
    Sample("one feature", (1, 1), ((2, 3, 3),)),
    Sample("primes", (21, 3), ((3, 13, 63),)),
    Sample("beyond one block", (10, 2), ((1, 101, 30),)),
    Sample("large magnitudes", (8, 2), ((2, 7, 24),), 30.0, step=1e-6),
    Sample("empty batch", (8, 2), ((0, 5, 24),)),
)
CROSS = (
    Sample("more keys", (8, 2), ((2, 3, 8), (2, 5, 8), (2, 5, 8))),
    Sample("more queries", (8, 2), ((2, 5, 8), (2, 3, 8), (2, 3, 8))),
    Sample("one query", (6, 1), ((1, 1, 6), (1, 3, 6), (1, 3, 6))),
    Sample("beyond one block", (6, 2), ((1, 50, 6), (1, 99, 6), (1, 99, 6))),
    Sample("empty batch", (8, 2), ((0, 3, 8), (0, 5, 8), (0, 5, 8))),
)
GROUPED = (
    Sample("two for four", (16, 4), ((2, 5, 16), (2, 7, 8), (2, 7, 8))),
    Sample("batch 1", (16, 4), ((1, 1, 16), (1, 1, 8), (1, 1, 8))),
)
MASKED = (
    Sample("padding", (8, 2), ((3, 4, 8), (3, 5, 8), (3, 5, 8), _keys(3, 5))),
    Sample("batch 1, all padding", (8, 2), ((1, 4, 8), (1, 3, 8), (1, 3, 8), _keys(1, 3))),
)
SQUARE = (Sample("three tokens", (8, 2), ((2, 3, 8),) * 3), Sample("primes", (10, 5), ((3, 17, 10),) * 3))
SQUARE_MASKED = tuple(
    Sample(s.label, s.args, (*s.inputs, _keys(*s.inputs[0][:2])))
    for s in SQUARE  # type: ignore[index]
)
STATS = ("x", "y", "stats")
ACROSS = ("q", "k", "v", "y", "stats")


def _blocks(tokens: int) -> np.ndarray:
    """A boolean mask under which some tokens see nothing."""
    allowed = np.random.default_rng(3).random((tokens, tokens)) < 0.5
    allowed[1] = False
    return allowed


def _bias(tokens: int) -> np.ndarray:
    bias = np.random.default_rng(4).standard_normal((tokens, tokens)).astype(np.float32)
    return np.where(_blocks(tokens), bias, np.float32(-np.inf))


def _mask_samples(build: Callable[[int], np.ndarray]) -> tuple[Sample, ...]:
    return tuple(
        Sample(f"{s} tokens", (8, 2, build(s)), ((b, s, 24),)) for b, s in ((2, 5), (1, 7), (1, 101))
    )  # fmt: skip


MISTAKES = (
    Mistake(
        "wrong width",
        lambda: nn.ScaledDotProductAttention(8, 2)(_zeros(1, 2, 8)),
        r"ScaledDotProductAttention\(8, 2\): expected an input of shape \[batch, \.\.\., 24\], got \[1, 2, 8\]",
    ),
    Mistake(
        "four axes",
        lambda: nn.ScaledDotProductAttention(8, 2)(_zeros(1, 3, 2, 24)),
        r"expected an input of shape \[B, S, 24\], got \[1, 3, 2, 24\]",
    ),
    Mistake(
        "heads that do not divide",
        lambda: nn.ScaledDotProductAttention(8, 3),
        r"expected embed_dim to be a multiple of num_heads, got 8 and 3",
        ValueError,
    ),
    Mistake(
        "dropout above 1",
        lambda: nn.ScaledDotProductAttention(8, 2, dropout_p=1.5),
        r"expected dropout_p to be a number between 0 and 1, got 1\.5",
        ValueError,
    ),
)
MASK_MISTAKES = (
    Mistake(
        "a mask of another size",
        lambda: nn.MaskedAttention(8, 2, nn.causal_mask(4))(_zeros(1, 5, 24)),
        r"expected 4 tokens, as many as the mask has, got 5",
    ),
    Mistake(
        "a mask that is no square",
        lambda: nn.MaskedAttention(8, 2, _zeros(4, 5)),
        r"expected a mask of shape \[S, S\], got \[4, 5\]",
        ValueError,
    ),
    Mistake(
        "unknown kind",
        lambda: nn.build_modality_mask("all", [0, 1]),
        r"expected a kind out of encoder, decoder, wm_agent, wm_agent_isolated, wm_agent_bc, got 'all'",
        ValueError,
    ),
)
CROSS_MISTAKES = (
    Mistake(
        "wrong key width",
        lambda: nn.CrossAttention(8, 2)(_zeros(1, 2, 8), _zeros(1, 3, 6), _zeros(1, 3, 8)),
        r"expected k of shape \[1, 3, 8\], got \[1, 3, 6\]",
    ),
    Mistake(
        "fewer values than keys",
        lambda: nn.CrossAttention(8, 2)(_zeros(1, 2, 8), _zeros(1, 3, 8), _zeros(1, 2, 8)),
        r"expected v of shape \[1, 3, 8\], got \[1, 2, 8\]",
    ),
    Mistake(
        "mask of another length",
        lambda: nn.CrossAttention(8, 2)(*[_zeros(1, 3, 8)] * 3, np.ones((1, 2), bool)),
        r"expected a key mask of shape \[1, 3\], got \[1, 2\]",
    ),
)
ROPE_SAMPLES = (
    Sample("one head", (6,), ((2, 5, 6),)),
    Sample("token-major heads", (4,), ((2, 7, 12),)),
    Sample("head-major", (16,), ((2, 3, 70, 16),)),
    Sample("one token", (2,), ((1, 1, 2),)),
    Sample("empty batch", (4,), ((0, 3, 4),)),
)

ROWS: tuple[Row, ...] = (
    Row("ScaledDotProductAttention", nn.ScaledDotProductAttention, nn.ScaledDotProductAttention, _packed_twin, STATS,
        PLAIN, MISTAKES),
    Row("ScaledDotProductAttention, causal", nn.ScaledDotProductAttention,
        lambda *a: nn.ScaledDotProductAttention(*a, is_causal=True), _packed_twin, STATS, PLAIN),
    Row("ScaledDotProductAttention, dropout", nn.ScaledDotProductAttention,
        lambda *a: nn.ScaledDotProductAttention(*a, is_causal=True, dropout_p=0.25, scale=0.5), _packed_twin,
        (*STATS, "draw"), tuple(s for s in PLAIN if s.scale == 1)),
    Row("ScaledDotProductAttention, qkv-major", nn.ScaledDotProductAttention,
        lambda *a: nn.ScaledDotProductAttention(*a, qkv_major=True), _packed_twin, STATS,
        (Sample("two heads", (8, 2), ((2, 3, 5, 8),)), Sample("batch 1", (6, 1), ((1, 3, 7, 6),)))),
    Row("MaskedAttention, numbers", nn.MaskedAttention, nn.MaskedAttention, _packed_twin, STATS, _mask_samples(_bias),
        MASK_MISTAKES),
    Row("MaskedAttention, bool", nn.MaskedAttention, nn.MaskedAttention, _packed_twin, STATS, _mask_samples(_blocks)),
    Row("MaskedAttention, causal_mask", nn.MaskedAttention, nn.MaskedAttention, _packed_twin, STATS,
        _mask_samples(nn.causal_mask)),
    Row("MaskedAttention, no mask", nn.MaskedAttention, nn.MaskedAttention, _packed_twin, STATS, PLAIN[:2]),
    Row("CrossAttention", nn.CrossAttention, nn.CrossAttention, _cross_twin, ACROSS, CROSS, CROSS_MISTAKES),
    Row("CrossAttention, causal", nn.CrossAttention, lambda *a: nn.CrossAttention(*a, is_causal=True), _cross_twin,
        ACROSS, CROSS),
    Row("CrossAttention, dropout", nn.CrossAttention, lambda *a: nn.CrossAttention(*a, dropout_p=0.5), _cross_twin,
        (*ACROSS, "draw"), CROSS),
    Row("CrossAttention, grouped", nn.CrossAttention, lambda *a: nn.CrossAttention(*a, num_kv_heads=2), _cross_twin,
        ACROSS, GROUPED),
    Row("CrossAttention, key mask", nn.CrossAttention, nn.CrossAttention, _cross_twin,
        ("q", "k", "v", "mask", "y", "stats"), MASKED),
    Row("SelfAttentionPos", nn.SelfAttentionPos, nn.SelfAttentionPos, _cross_twin, ACROSS, SQUARE),
    Row("SelfAttentionPosMasked", nn.SelfAttentionPosMasked, nn.SelfAttentionPosMasked, _cross_twin,
        ("q", "k", "v", "mask", "y", "stats"), SQUARE_MASKED,
        tuple(Mistake(label, lambda masks=masks: nn.SelfAttentionPosMasked(8, 2)(*[_zeros(1, 3, 8)] * 3, *masks),
                      r"module SelfAttentionPosMasked\(8, 2\): expected q, k, v and a key mask, got no mask")
              for label, masks in (("no mask", ()), ("a mask that is None", (None,))))),
    Row("RoPE", nn.RoPE, nn.RoPE, _rope_twin, (), ROPE_SAMPLES,
        (Mistake("odd width", lambda: nn.RoPE(3), r"RoPE: expected head_dim to be a positive even integer, got 3",
                 ValueError),
         Mistake("half a head", lambda: nn.RoPE(4)(_zeros(1, 2, 6)), r"expected an input of shape \[.*, S, n x 4\]"))),
    Row("RoPE, interleaved", nn.RoPE, lambda d: nn.RoPE(d, interleaved=True, theta=100.0, offset=3), _rope_twin, (),
        ROPE_SAMPLES),
    Row("RepeatKVHeads", nn.RepeatKVHeads, nn.RepeatKVHeads,
        lambda layer: lambda params, x: x.repeat_interleave(layer.repeats, dim=1), (),
        (Sample("three copies", (3,), ((2, 2, 5, 7),)), Sample("one copy", (1,), ((1, 1, 1, 1),)))),
    Row("QKVToMajor", nn.QKVToMajor, nn.QKVToMajor,
        lambda layer: lambda params, x: x.unflatten(-1, (3, layer.embed_dim)).transpose(1, 2), (),
        (Sample("five tokens", (4,), ((2, 5, 12),)), Sample("one token", (1,), ((1, 1, 3),)))),
)  # fmt: skip
