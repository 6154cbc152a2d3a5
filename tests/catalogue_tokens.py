"""Rows of layers on tokens: in space and time, learned, conditioned, attending to a memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from noeira import nn
from tests.catalogue import Input, Mistake, Row, Sample, _zeros
from tests.compare import Twin

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
    Sample("one frame", (4, 1, 2, 1, 2), ((1, 1, 8, 12),)),
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
    Sample("two tokens of memory", (4, 1), ((3, 5, 4), (3, 2, 4))),
    Sample("padded memory", (6, 3), ((2, 3, 6), (2, 4, 6), _padding(4, 2))),
)
EMPTY = Sample("empty batch", (6, 2), ((0, 3, 6), (0, 5, 6)))
MEMORY_MISTAKES = (
    ("no memory", lambda cls: cls(6, 2)(_zeros(2, 3, 6)), r"expected x, a memory and optionally its mask, got 1 inputs"),
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


ROWS: tuple[Row, ...] = (
    Row("SpaceTimeTranspose", nn.SpaceTimeTranspose, nn.SpaceTimeTranspose,
        lambda _: lambda params, x: x.transpose(1, 2), (),
        (Sample("frames", (), ((2, 3, 5, 4),)), Sample("one of each", (), ((1, 1, 1, 1),)),
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
                 r"expected num_agent to be an integer >= 0, got -1", ValueError),
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
)  # fmt: skip
