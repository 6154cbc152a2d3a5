"""Rows of layers on tokens: in space and time, learned, conditioned, attending to a memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from noeira import nn
from noeira.ops.random import bits, fold_in, stream_of
from tests.catalogue import Input, Mistake, Row, Sample, _zeros
from tests.compare import SEED, Twin

Params = dict[str, torch.Tensor]


# ---- space and time --------------------------------------------------------------------------------------------------


def _space(allowed: Any) -> Any:
    """Attention of each frame by itself, in PyTorch, under the mask written out."""

    def make(layer: Any) -> Twin:
        def twin(params: Params, x: torch.Tensor) -> torch.Tensor:
            mask = torch.tensor(allowed, dtype=torch.bool)
            frames = x.reshape(-1, *x.shape[-2:]) if x.numel() else x.flatten(0, -3)
            q, k, v = (part.unflatten(-1, (layer.num_heads, -1)).transpose(1, 2) for part in frames.chunk(3, -1))
            y = F.scaled_dot_product_attention(q, k, v, mask) if x.numel() else v
            return y.transpose(1, 2).flatten(2).reshape(*x.shape[:-1], layer.embed_dim)

        return twin

    return make


ENCODER = [[1, 1, 1, 1, 1], [1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [0, 0, 1, 1, 1], [0, 0, 1, 1, 1]]
DECODER = [[1, 1, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 1, 1], [1, 1, 1, 1, 1], [1, 1, 1, 1, 1]]
WORLD = np.ones((8, 8), bool)
"""action, signal, step, two spatial, a register, two agents."""
ISOLATED, CLONING = WORLD.copy(), WORLD.copy()
ISOLATED[:6, 6:] = ISOLATED[6:, :6] = CLONING[:6, 6:] = False


def _modality(mode: str) -> Any:
    return lambda *sizes: nn.ModalitySpaceAttention(*sizes, mode)


def _dynamics(mode: str) -> Any:
    return lambda *sizes: nn.DynamicsSpaceAttention(*sizes, mode)


FRAMES = (
    Sample("frames", (6, 2, 5, 2), ((2, 3, 5, 18),)),
    Sample("no axis of frames", (6, 1, 5, 2), ((3, 5, 18),)),
    Sample("empty batch", (6, 2, 5, 2), ((0, 3, 5, 18),)),
)
WORLDS = (
    Sample("frames", (6, 2, 2, 1, 2), ((2, 3, 8, 18),)),
    Sample("one frame", (4, 1, 2, 1, 2), ((1, 1, 8, 12),), compiled=False),
)

# ---- attention to a memory -------------------------------------------------------------------------------------------


def _linear(params: Params, name: str, x: torch.Tensor) -> torch.Tensor:
    y = x @ params[f"{name}.weight"]
    return y + params[f"{name}.bias"] if f"{name}.bias" in params else y


def _heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _cross_twin(net: nn.MultiHeadCrossAttention) -> Twin:
    def twin(params: Params, x: torch.Tensor, memory: torch.Tensor, mask: Any = None) -> torch.Tensor:
        heads = net.attention.num_heads
        q = _heads(_linear(params, "query", x), heads)
        k, v = (_heads(_linear(params, name, memory), heads) for name in ("key", "value"))
        y = F.scaled_dot_product_attention(q, k, v, None if mask is None else mask[:, None, None]) if q.numel() else q
        return _linear(params, "out", y.transpose(1, 2).flatten(2))

    return twin


def _decoder_twin(net: nn.DecoderBlock) -> Twin:
    """PyTorch's own decoder layer, called with our parameters under its names."""
    width, heads = net.norm_1.normalized_shape, net.self_attention.attention.num_heads
    layer = torch.nn.TransformerDecoderLayer(
        width, heads, net.ffn.fc1.out_features, 0.0, lambda x: F.gelu(x, approximate="tanh"),  # type: ignore[union-attr]
        batch_first=True, norm_first=True,
    )  # fmt: skip

    def twin(params: Params, x: torch.Tensor, memory: torch.Tensor, mask: Any = None) -> torch.Tensor:
        def turned(name: str) -> torch.Tensor:
            return params[f"{name}.weight"].T

        biases = [params[f"cross_attention.{name}.bias"] for name in ("query", "value")]
        across = [f"cross_attention.{name}" for name in ("query", "key", "value")]
        theirs = {
            "self_attn.in_proj_weight": turned("self_attention.qkv"),
            "self_attn.in_proj_bias": params["self_attention.qkv.bias"],
            "self_attn.out_proj.weight": turned("self_attention.out"),
            "self_attn.out_proj.bias": params["self_attention.out.bias"],
            "multihead_attn.in_proj_weight": torch.cat([turned(name) for name in across]),
            "multihead_attn.in_proj_bias": torch.cat([biases[0], torch.zeros_like(biases[0]), biases[1]]),
            "multihead_attn.out_proj.weight": turned("cross_attention.out"),
            "multihead_attn.out_proj.bias": params["cross_attention.out.bias"],
        }
        for ours, name in (("ffn.fc1", "linear1"), ("ffn.fc2", "linear2")):
            theirs |= {f"{name}.weight": turned(ours), f"{name}.bias": params[f"{ours}.bias"]}
        for i in (1, 2, 3):
            theirs |= {f"norm{i}.{part}": params[f"norm_{i}.{part}"] for part in ("weight", "bias")}
        causal = net.self_attention.attention.is_causal
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1) if causal else None
        options = {"tgt_mask": future, "memory_key_padding_mask": None if mask is None else ~mask}
        return torch.func.functional_call(layer, theirs, (x, memory), options)

    return twin


def _padding(*lengths: int) -> Input:
    """Which tokens of each memory are there."""
    return lambda rng: np.arange(max(lengths))[None] < np.array(lengths)[:, None]


MEMORY = (
    Sample("a memory", (6, 2), ((2, 3, 6), (2, 5, 6))),
    Sample("two tokens of memory", (4, 1), ((3, 5, 4), (3, 2, 4)), compiled=False),
    Sample("padded memory", (6, 3), ((2, 3, 6), (2, 4, 6), _padding(4, 2))),
)
EMPTY = Sample("empty batch", (6, 2), ((0, 3, 6), (0, 5, 6)))
MEMORY_MISTAKES = (
    ("no memory", lambda cls: cls(6, 2)(_zeros(2, 3, 6)), r"expected 2 to 3 inputs \(x, memory, memory_mask\), got 1"),
    ("memory width", lambda cls: cls(6, 2)(_zeros(2, 3, 6), _zeros(2, 5, 4)),
     r"expected a memory of shape \[2, M, 6\], got \[2, 5, 4\]"),
    ("another batch", lambda cls: cls(6, 2)(_zeros(2, 3, 6), _zeros(3, 5, 6)),
     r"expected a memory of shape \[2, M, 6\], got \[3, 5, 6\]"),
    ("mask", lambda cls: cls(6, 2)(_zeros(2, 3, 6), _zeros(2, 5, 6), np.ones((2, 4), bool)),
     r"expected a mask of the memory of shape \[2, 5\], got \[2, 4\]"),
    ("width", lambda cls: cls(6, 2)(_zeros(2, 3, 5), _zeros(2, 5, 6)), r"expected an input of shape .* 6\], got"),
    ("rank", lambda cls: cls(6, 2)(_zeros(2, 6), _zeros(2, 5, 6)), r"expected x of shape \[B, S, E\], got \[2, 6\]"),
)  # fmt: skip


def _memory_mistakes(cls: type) -> tuple[Mistake, ...]:
    return tuple(Mistake(label, lambda call=call: call(cls), match) for label, call, match in MEMORY_MISTAKES)


# ---- learned and fixed tokens ----------------------------------------------------------------------------------------


def _queries(params: Params, x: torch.Tensor) -> torch.Tensor:
    return params["weight"].expand(len(x), *params["weight"].shape)


def _learned(layer: nn.LearnedTokens) -> Twin:
    def twin(params: Params, x: torch.Tensor) -> torch.Tensor:
        learned = params["weight"].expand(len(x), *params["weight"].shape)
        return torch.cat([learned, x] if layer.prepend else [x, learned], 1)

    return twin


def _repeated(table: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The table for each sample, with a gradient of 0 for x."""
    return table.to(x.dtype).expand(len(x), -1, -1) + 0 * x.sum()


def _line(layer: nn.SinusoidalPos1DTokens) -> Twin:
    def twin(params: Params, x: torch.Tensor) -> torch.Tensor:
        angle = torch.arange(layer.seq_len).double()[:, None] / 10000 ** (
            torch.arange(0, layer.features, 2).double() / layer.features
        )
        table = torch.stack([angle.sin(), angle.cos()], -1).flatten(1)[:, : layer.features]
        return _repeated(table, x)

    return twin


def _map(layer: nn.SinusoidalPos2DTokens) -> Twin:
    """DETR's positions as it makes them: sums of ones along both axes of a map."""

    def twin(params: Params, x: torch.Tensor) -> torch.Tensor:
        ones = torch.ones(layer.height, layer.width, dtype=torch.float64)
        half = layer.features // 2
        frequency = 10000 ** (2 * torch.arange(half).div(2, rounding_mode="floor").double() / half)
        sides = []
        for axis in (0, 1):
            position = ones.cumsum(axis)
            last = position[-1:, :] if axis == 0 else position[:, -1:]
            angle = (position / (last + 1e-6) * 2 * torch.pi)[..., None] / frequency
            side = torch.empty_like(angle)
            side[..., 0::2], side[..., 1::2] = angle[..., 0::2].sin(), angle[..., 1::2].cos()
            sides.append(side)
        table = torch.cat(sides, -1).flatten(0, 1).repeat(layer.repeats, 1)
        return _repeated(table, x)

    return twin


def _word(counter: int, key: int) -> int:
    """Squares (Widynski 2020) in plain integers."""
    turn = lambda x: (x >> 32 | x << 32) & (2**64 - 1)  # noqa: E731
    y = counter * key % 2**64
    z = (y + key) % 2**64
    x = turn((y * y + y) % 2**64)
    x = turn((x * x + z) % 2**64)
    x = turn((x * x + y) % 2**64)
    return (x * x + z) % 2**64 >> 32


def masked(shape: tuple[int, ...], p_min: float, p_max: float, within: str = "") -> np.ndarray:
    """Which tokens a replacer's first draw drops, number by number."""
    root = np.array([SEED, 1, 0])
    root = fold_in(fold_in(root, stream_of(within)) if within else root, stream_of("MAEReplacer#1"))
    keys = []
    for number in (0, 1):
        stream = int(fold_in(root, number)[2])
        ones = bits(64, seed=SEED, stream=stream, step=1) >> 31
        keys.append(sum(int(bit) << i for i, bit in enumerate(ones)) | 1)
    frames, tokens = int(np.prod(shape[:-2])), shape[-2]
    low, high = round(p_min * 2**32), round(p_max * 2**32)
    rates = [low + ((high - low) * _word(frame, keys[0]) >> 32) for frame in range(frames)]
    dropped = [_word(i, keys[1]) < rates[i // tokens] for i in range(frames * tokens)]
    return np.array(dropped, bool).reshape(*shape[:-1], 1)


def _replaced(layer: nn.MAEReplacer) -> Twin:
    def twin(params: Params, x: torch.Tensor) -> torch.Tensor:
        if not layer.training:
            return x
        return torch.where(torch.tensor(masked(tuple(x.shape), layer.p_min, layer.p_max)), params["mask_token"], x)

    return twin


def _replaced_twice(net: nn.Repeat) -> Twin:
    """Two replacers in a chain, each with a draw of its own."""

    def twin(params: Params, x: torch.Tensor) -> torch.Tensor:
        for i, layer in enumerate(net.layers):
            dropped = masked(tuple(x.shape), layer.p_min, layer.p_max, within=f"[{i}]")  # type: ignore[union-attr]
            x = torch.where(torch.tensor(dropped), params[f"{i}.mask_token"], x)
        return x

    return twin


FRAMES_OF_TOKENS = (
    Sample("a batch", (5,), ((3, 7, 5),)),
    Sample("frames", (3, 0.25, 0.75), ((2, 3, 11, 3),)),
    Sample("a fixed rate", (3, 0.5, 0.5), ((4, 6, 3),)),
    Sample("all", (3, 1.0, 1.0), ((2, 6, 3),), compiled=False),
    Sample("none", (3, 0.0, 0.0), ((2, 6, 3),), compiled=False),
    Sample("one token", (1,), ((1, 1, 1),), compiled=False),
    Sample("empty batch", (5,), ((0, 7, 5),)),
)

# ---- conditioned, and along time -------------------------------------------------------------------------------------


def _conditional_twin(net: nn.ConditionalTransformerBlock) -> Twin:
    """The block of DiT as its authors write it."""

    def twin(params: Params, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        width, mha = x.shape[-1], net.attention.attention
        c = c if c.ndim == 3 else c[:, None]
        shift, scale, gate, shift_2, scale_2, gate_2 = _linear(params, "modulation", F.silu(c)).chunk(6, -1)
        h = F.layer_norm(x, (width,), eps=1e-6) * (1 + scale) + shift
        q, k, v = (_heads(part, mha.num_heads) for part in _linear(params, "attention.qkv", h).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=mha.is_causal) if x.numel() else v
        x = x + gate * _linear(params, "attention.out", y.transpose(1, 2).flatten(2))
        h = F.layer_norm(x, (width,), eps=1e-6) * (1 + scale_2) + shift_2
        h = _linear(params, "ffn.fc2", F.gelu(_linear(params, "ffn.fc1", h), approximate="tanh"))
        return x + gate_2 * h

    return twin


def _conditional_stack(net: nn.RepeatConditional) -> Twin:
    def twin(params: Params, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        for i, block in enumerate(net.layers):
            own = {name.removeprefix(f"{i}."): value for name, value in params.items() if name.startswith(f"{i}.")}
            x = _conditional_twin(block)(own, x, c)  # type: ignore[arg-type]
        return x

    return twin


def _time_twin(net: nn.TimeAttentionLatents) -> Twin:
    """One latent after the other, each with its history."""

    def twin(params: Params, x: torch.Tensor) -> torch.Tensor:
        heads = net.attention.attention.num_heads
        y = torch.zeros_like(x)
        for token in range(net.num_latents) if x.numel() else ():
            qkv = _linear(params, "attention.qkv", x[:, :, token])
            q, k, v = (_heads(part, heads) for part in qkv.chunk(3, -1))
            seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            y[:, :, token] = _linear(params, "attention.out", seen.transpose(1, 2).flatten(2))
        return y if x.numel() else x + 0 * params["attention.qkv.bias"].sum()

    return twin


CONDITIONED = (
    Sample("one condition a sample", (6, 2), ((2, 3, 6), (2, 6))),
    Sample("a condition a token", (4, 1), ((3, 5, 4), (3, 5, 4))),
    Sample("an axis of one", (6, 3), ((2, 4, 6), (2, 1, 6)), compiled=False),
    Sample("empty batch", (6, 2), ((0, 3, 6), (0, 6))),
)
HISTORIES = (
    Sample("some latents", (6, 2, 2), ((2, 3, 5, 6),)),
    Sample("all latents", (4, 1, 3), ((3, 4, 3, 4),), compiled=False),
    Sample("empty batch", (6, 2, 2), ((0, 3, 5, 6),)),
)

ROWS: tuple[Row, ...] = (
    Row("SpaceTimeTranspose", nn.SpaceTimeTranspose, nn.SpaceTimeTranspose,
        lambda _: lambda params, x: x.transpose(1, 2), (),
        (Sample("frames", (), ((2, 3, 5, 4),)), Sample("one of each", (), ((1, 1, 1, 1),), compiled=False),
         Sample("empty batch", (), ((0, 3, 2, 4),))),
        (Mistake("rank", lambda: nn.SpaceTimeTranspose()(_zeros(2, 3, 4)),
                 r"expected an input of shape \[B, T, S, D\], got \[2, 3, 4\]"),)),
    Row("ModalitySpaceAttention, encoder", nn.ModalitySpaceAttention, _modality("encoder"), _space(ENCODER), ("chain",),
        FRAMES,
        (Mistake("tokens", lambda: nn.ModalitySpaceAttention(6, 2, 5, 2, "encoder")(_zeros(2, 4, 18)),
                 r"expected an input of shape \[B, 5, 18\] or \[B, T, 5, 18\], got \[2, 4, 18\]"),
         Mistake("rank", lambda: nn.ModalitySpaceAttention(6, 2, 5, 2, "encoder")(_zeros(5, 18)),
                 r"expected an input of shape .*, got \[5, 18\]"),
         Mistake("latents", lambda: nn.ModalitySpaceAttention(6, 2, 5, 6, "encoder"),
                 r"expected num_latents between 0 and 5, got 6", ValueError),
         Mistake("mode", lambda: nn.ModalitySpaceAttention(6, 2, 5, 2, "both"), r"expected a kind out of encoder, .*'bo",
                 ValueError),
         Mistake("heads", lambda: nn.ModalitySpaceAttention(6, 4, 5, 2, "encoder"),
                 r"ModalitySpaceAttention: expected embed_dim to be a multiple of num_heads, got 6 and 4", ValueError))),
    Row("ModalitySpaceAttention, decoder", nn.ModalitySpaceAttention, _modality("decoder"), _space(DECODER), ("chain",),
        FRAMES[:2]),
    Row("DynamicsSpaceAttention, isolated", nn.DynamicsSpaceAttention, _dynamics("wm_agent_isolated"), _space(ISOLATED),
        ("chain",), WORLDS,
        (Mistake("mode", lambda: nn.DynamicsSpaceAttention(6, 2, 2, 1, 2, "encoder"),
                 r"expected a mode out of wm_agent, wm_agent_isolated, wm_agent_bc, got 'encoder'", ValueError),
         Mistake("agents", lambda: nn.DynamicsSpaceAttention(6, 2, 2, 1, -1, "wm_agent"),
                 r"expected num_agent to be a non-negative integer, got -1", ValueError),
         Mistake("tokens", lambda: nn.DynamicsSpaceAttention(6, 2, 2, 1, 2, "wm_agent")(_zeros(2, 7, 18)),
                 r"expected an input of shape \[B, 8, 18\] or .*, got \[2, 7, 18\]"))),
    Row("DynamicsSpaceAttention, cloning", nn.DynamicsSpaceAttention, _dynamics("wm_agent_bc"), _space(CLONING),
        ("chain",), WORLDS[:1]),
    Row("DynamicsSpaceAttention, no mask", nn.DynamicsSpaceAttention, _dynamics("wm_agent"), _space(WORLD), ("chain",),
        WORLDS[:1]),
    Row("MultiHeadCrossAttention", nn.MultiHeadCrossAttention, nn.MultiHeadCrossAttention, _cross_twin, ("chain",),
        (*MEMORY, EMPTY), _memory_mistakes(nn.MultiHeadCrossAttention)),
    Row("MultiHeadCrossAttention, another width", nn.MultiHeadCrossAttention,
        lambda *a: nn.MultiHeadCrossAttention(*a, memory_dim=3), _cross_twin, ("chain",),
        (Sample("narrow", (6, 2), ((2, 3, 6), (2, 5, 3))),)),
    Row("DecoderBlock", nn.DecoderBlock, lambda *a: nn.DecoderBlock(*a, ff_mult=2), _decoder_twin, ("chain",), MEMORY,
        _memory_mistakes(nn.DecoderBlock), step=1e-3),
    Row("DecoderBlock, causal", nn.DecoderBlock, lambda *a: nn.DecoderBlock(*a, is_causal=True), _decoder_twin,
        ("chain",), MEMORY[:1], step=1e-3),
    Row("LearnedQueries", nn.LearnedQueries, nn.LearnedQueries, lambda _: _queries, ("chain",),
        (Sample("rank 2", (3, 5), ((2, 4),)), Sample("rank 4", (1, 1), ((3, 2, 1, 2),), compiled=False),
         Sample("empty batch", (3, 5), ((0, 4),))),
        (Mistake("no samples", lambda: nn.LearnedQueries(3, 5)(np.float32(1)),
                 r"expected an input of shape \[B, \.\.\.\], got no samples to count"),
         Mistake("none", lambda: nn.LearnedQueries(0, 5), r"expected num_queries to be a positive integer, got 0",
                 ValueError))),
    Row("LearnedQueries, integers", nn.LearnedQueries, nn.LearnedQueries, lambda _: _queries, ("chain",),
        (Sample("ids", (3, 5), (lambda rng: rng.integers(0, 9, (2, 4)).astype(np.int32),)),)),
    Row("LearnedTokens", nn.LearnedTokens, nn.LearnedTokens, _learned, ("chain",),
        (Sample("first", (2, 5), ((3, 4, 5),)), Sample("last", (1, 5, False), ((3, 4, 5),)),
         Sample("empty batch", (2, 5), ((0, 4, 5),))),
        (Mistake("width", lambda: nn.LearnedTokens(2, 5)(_zeros(3, 4, 6)), r"expected an input of shape .* 5\], got"),
         Mistake("rank", lambda: nn.LearnedTokens(2, 5)(_zeros(3, 5)),
                 r"expected an input of shape \[B, S, 5\] with a known S, got \[3, 5\]"))),
    Row("BroadcastTokens", nn.BroadcastTokens, nn.BroadcastTokens,
        lambda layer: lambda params, x: x[:, None].repeat(1, layer.num_tokens, 1), (),
        (Sample("three", (3,), ((2, 5),)), Sample("one", (1,), ((1, 1),), compiled=False), Sample("empty batch", (3,), ((0, 5),))),
        (Mistake("rank", lambda: nn.BroadcastTokens(3)(_zeros(2, 3, 5)), r"shape \[B, D\], got \[2, 3, 5\]"),
         Mistake("none", lambda: nn.BroadcastTokens(0), r"expected num_tokens to be a positive integer", ValueError))),
    Row("SinusoidalPos1DTokens", nn.SinusoidalPos1DTokens, nn.SinusoidalPos1DTokens, _line, ("chain",),
        (Sample("even", (7, 6), ((2, 3),)), Sample("odd", (3, 5), ((2, 4, 1),), compiled=False),
         Sample("empty batch", (3, 4), ((0, 3),))),
        (Mistake("integers", lambda: nn.SinusoidalPos1DTokens(3, 4)(np.zeros((2, 3), np.int64)),
                 r"expected a floating-point input, got int64 \[2, 3\]"),)),
    Row("SinusoidalPos2DTokens", nn.SinusoidalPos2DTokens, nn.SinusoidalPos2DTokens, _map, ("chain",),
        (Sample("a map", (3, 4, 8), ((2, 3),)), Sample("two maps, odd halves", (2, 5, 6, 2), ((2, 3),), compiled=False),
         Sample("empty batch", (2, 1, 4), ((0, 3),))),
        (Mistake("odd", lambda: nn.SinusoidalPos2DTokens(3, 4, 5), r"expected an even number of features, got 5",
                 ValueError),)),
    Row("MAEReplacer", nn.MAEReplacer, nn.MAEReplacer, _replaced, ("chain",), FRAMES_OF_TOKENS,
        (Mistake("rates", lambda: nn.MAEReplacer(5, 0.5, 0.25), r"expected p_min <= p_max, got 0.5 and 0.25",
                 ValueError),
         Mistake("above 1", lambda: nn.MAEReplacer(5, 0.5, 1.5), r"expected p_max to be a number between 0 and 1", ValueError),
         Mistake("NaN", lambda: nn.MAEReplacer(5, float("nan"), 1), r"expected p_min to be a number between 0 and 1", ValueError),
         Mistake("rank", lambda: nn.MAEReplacer(5)(_zeros(3, 5)),
                 r"expected an input of shape \[\.\.\., N, 5\] with a known N, got \[3, 5\]"))),
    Row("MAEReplacer, evaluation", nn.MAEReplacer, nn.MAEReplacer, _replaced, ("chain",), FRAMES_OF_TOKENS[:1],
        prepare=nn.MAEReplacer.eval),
    Row("ConditionalTransformerBlock", nn.ConditionalTransformerBlock,
        lambda *a: nn.ConditionalTransformerBlock(*a, ff_mult=2), _conditional_twin, ("chain",), CONDITIONED,
        (Mistake("no condition", lambda: nn.ConditionalTransformerBlock(6, 2)(_zeros(2, 3, 6)),
                 r"expected 2 inputs \(x, condition\), got 1"),
         Mistake("condition", lambda: nn.ConditionalTransformerBlock(6, 2)(_zeros(2, 3, 6), _zeros(2, 2, 6)),
                 r"expected a condition of shape \[2, 6\], \[2, 1, 6\] or \[2, 3, 6\], got \[2, 2, 6\]"),
         Mistake("rank", lambda: nn.ConditionalTransformerBlock(6, 2)(_zeros(2, 6), _zeros(2, 6)),
                 r"expected x of shape \[B, S, 6\], got \[2, 6\]")), step=1e-3),
    Row("ConditionalTransformerBlock, causal, another width", nn.ConditionalTransformerBlock,
        lambda *a: nn.ConditionalTransformerBlock(*a, cond_dim=3, is_causal=True), _conditional_twin, ("chain",),
        (Sample("narrow", (6, 2), ((2, 3, 6), (2, 3))),), step=1e-3),
    Row("RepeatConditional, of transformer blocks", nn.RepeatConditional,
        lambda: nn.RepeatConditional(2, lambda: nn.ConditionalTransformerBlock(4, 2, 1)), _conditional_stack,
        ("chain",), (Sample("one condition a sample", (), ((2, 3, 4), (2, 4))),), step=1e-3),
    Row("Repeat, of replacers", nn.Repeat, lambda: nn.Repeat(2, lambda: nn.MAEReplacer(3, 0.2, 0.6)), _replaced_twice,
        ("chain",), (Sample("frames", (), ((2, 3, 11, 3),)),)),
    Row("TimeAttentionLatents", nn.TimeAttentionLatents, nn.TimeAttentionLatents, _time_twin, ("chain",), HISTORIES,
        (Mistake("rank", lambda: nn.TimeAttentionLatents(6, 2, 2)(_zeros(2, 5, 6)),
                 r"expected an input of shape \[B, T, S, 6\] with a known S >= 2, got \[2, 5, 6\]"),
         Mistake("too few tokens", lambda: nn.TimeAttentionLatents(6, 2, 4)(_zeros(2, 3, 3, 6)),
                 r"with a known S >= 4, got \[2, 3, 3, 6\]"),
         Mistake("none", lambda: nn.TimeAttentionLatents(6, 2, 0), r"expected num_latents to be a positive integer",
                 ValueError))),
)  # fmt: skip
