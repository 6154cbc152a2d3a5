"""Rows of combinators and models: modules made of modules."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from noeira import nn
from tests.catalogue import Mistake, Row, Sample, _zeros
from tests.compare import Twin

Params = dict[str, torch.Tensor]


def _ids(*shape: int, below: int) -> Any:
    return lambda rng: rng.integers(0, below, shape).astype(np.int32)


def _linear(params: Params, name: str, x: torch.Tensor) -> torch.Tensor:
    y = x @ params[f"{name}.weight"]
    return y + params[f"{name}.bias"] if f"{name}.bias" in params else y


def _norm(params: Params, name: str, x: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], params[f"{name}.weight"], params.get(f"{name}.bias"), eps)


def _attention(params: Params, name: str, x: torch.Tensor, heads: int, causal: bool) -> torch.Tensor:
    batch, tokens, width = x.shape
    q, k, v = (
        part.reshape(batch, tokens, heads, width // heads).transpose(1, 2)
        for part in _linear(params, f"{name}qkv", x).split(width, dim=-1)
    )
    y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return _linear(params, f"{name}out", y.transpose(1, 2).reshape(batch, tokens, width))


def _ffn(params: Params, name: str, x: torch.Tensor, bias: bool = True) -> torch.Tensor:
    return _linear(params, f"{name}{1 if bias else 2}", F.gelu(_linear(params, f"{name}0", x), approximate="tanh"))


def _feed_forward(params: Params, name: str, x: torch.Tensor, approximate: str = "tanh") -> torch.Tensor:
    return _linear(params, f"{name}fc2", F.gelu(_linear(params, f"{name}fc1", x), approximate=approximate))


def _block(params: Params, name: str, x: torch.Tensor, heads: int, causal: bool, bias: bool = True) -> torch.Tensor:
    x = x + _attention(params, f"{name}attention.", _norm(params, f"{name}norm_1", x), heads, causal)
    h = _norm(params, f"{name}norm_2", x)
    return x + (_feed_forward(params, f"{name}ffn.", h) if bias else _ffn(params, f"{name}ffn.", h, bias))


def _exact_block(params: Params, name: str, x: torch.Tensor, heads: int, eps: float) -> torch.Tensor:
    x = x + _attention(params, f"{name}attention.", _norm(params, f"{name}norm_1", x, eps), heads, False)
    return x + _feed_forward(params, f"{name}ffn.", _norm(params, f"{name}norm_2", x, eps), "none")


def _patches(params: Params, name: str, x: torch.Tensor, size: int) -> torch.Tensor:
    return F.conv2d(x, params[f"{name}conv.weight"], params[f"{name}conv.bias"], size).flatten(2).mT


def _vit_twin(net: nn.ViT) -> Twin:
    c = net.config

    def twin(params: Params, x: torch.Tensor) -> torch.Tensor:
        h = _patches(params, "patches.", x, c.patch_size)
        if c.class_token:
            h = torch.cat([params["class_token.weight"].expand(len(x), 1, c.embed_dim), h], 1)
        h = h + params["positions.weight"]
        for layer in range(c.num_layers):
            if c.approximate == "none":
                h = _exact_block(params, f"blocks.{layer}.", h, c.num_heads, c.eps)
            else:
                h = _block(params, f"blocks.{layer}.", h, c.num_heads, False)
        h = _norm(params, "norm", h, c.eps)
        return _linear(params, "head", h[:, 0] if c.class_token else h.mean(1))

    return twin


def _gpt_twin(net: nn.GPT) -> Twin:
    c = net.config

    def twin(params: Params, ids: torch.Tensor) -> torch.Tensor:
        x = params["tokens.weight"][ids.long()] + params["positions.weight"][: ids.shape[1]]
        for layer in range(c.num_layers):
            x = _block(params, f"blocks.{layer}.", x, c.num_heads, c.causal, c.bias)
        x = _norm(params, "norm", x)
        return x @ params["tokens.weight"].T if c.tied else _linear(params, "head", x)

    return twin


def _gelu_chain(params: Params, x: torch.Tensor) -> torch.Tensor:
    return F.gelu(_linear(params, "0", x)) @ params["1.weight"]


def _branch() -> nn.Sequential:
    return nn.Sequential(nn.LinearGELU(5, 7), nn.Linear(7, 5, bias=False))


def _batch_norm(params: Params, x: torch.Tensor) -> torch.Tensor:
    flat = x.reshape(-1, x.shape[-1])
    return F.batch_norm(flat, None, None, params["weight"], params["bias"], training=True).reshape(x.shape)


def _rms(params: Params, name: str, x: torch.Tensor, eps: float) -> torch.Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * params[f"{name}.weight"]


def _rotated(x: torch.Tensor, theta: float) -> torch.Tensor:
    """As Hugging Face's Llama: [B, H, T, D], the first half of a head turns with the second."""
    half = x.shape[-1] // 2
    places = torch.arange(max(half, x.shape[2]), dtype=torch.float64)
    angle = torch.outer(places[: x.shape[2]], theta ** (-places[:half] / half)).to(x.dtype)
    cos, sin = (f(torch.cat([angle, angle], -1)) for f in (torch.cos, torch.sin))
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


def _grouped_attention(params: Params, name: str, x: torch.Tensor, heads: int, theta: float) -> torch.Tensor:
    batch, tokens, width = x.shape
    q, k, v = (
        _linear(params, f"{name}{what}", x).unflatten(-1, (-1, width // heads)).transpose(1, 2)
        for what in ("query", "key", "value")
    )
    k, v = (part.repeat_interleave(heads // k.shape[1], 1) for part in (_rotated(k, theta), v))
    y = F.scaled_dot_product_attention(_rotated(q, theta), k, v, is_causal=True)
    return _linear(params, f"{name}out", y.transpose(1, 2).reshape(batch, tokens, width))


def _llama_block(params: Params, name: str, x: torch.Tensor, heads: int, theta: float, eps: float) -> torch.Tensor:
    x = x + _grouped_attention(params, f"{name}attention.", _rms(params, f"{name}norm_1", x, eps), heads, theta)
    u, v = _linear(params, f"{name}ffn.0", _rms(params, f"{name}norm_2", x, eps)).chunk(2, -1)
    return x + _linear(params, f"{name}ffn.2", u * F.silu(v))


def _llama_twin(net: nn.Llama) -> Twin:
    c = net.config

    def twin(params: Params, ids: torch.Tensor) -> torch.Tensor:
        x = params["tokens.weight"][ids.long()]
        for layer in range(c.num_layers):
            x = _llama_block(params, f"blocks.{layer}.", x, c.num_heads, c.theta, c.eps)
        x = _rms(params, "norm", x, c.eps)
        return x @ params["tokens.weight"].T if c.tied else _linear(params, "head", x)

    return twin


GROUPED = (
    Sample("two heads share one", (8, 4, 2), ((2, 5, 8),)),
    Sample("two tokens", (4, 2, 1), ((3, 2, 4),), compiled=False),
    Sample("empty batch", (8, 4, 2), ((0, 5, 8),), compiled=False),
)


def _lstm(params: Params, name: str, x: torch.Tensor) -> torch.Tensor:
    width = params[f"{name}.weight_hh"].shape[0]
    h = c = x.new_zeros(len(x), width)
    rows = []
    for t in range(x.shape[1]):
        gates = x[:, t] @ params[f"{name}.weight_ih"] + params[f"{name}.bias_ih"]
        i, f, g, o = (gates + h @ params[f"{name}.weight_hh"] + params[f"{name}.bias_hh"]).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        rows.append(h)
    return torch.stack(rows, 1)


def _lstm_twin(net: nn.LSTMLM) -> Twin:
    def twin(params: Params, ids: torch.Tensor) -> torch.Tensor:
        x = params["tokens.weight"][ids.long()]
        for layer in range(net.config.num_layers):
            x = _lstm(params, f"layers.{layer}", x)
        return x @ params["tokens.weight"].T if net.config.tied else _linear(params, "head", x)

    return twin


RANKS = (Sample("rank 2", (), ((6, 5),)), Sample("rank 3", (), ((2, 3, 5),)), Sample("empty batch", (), ((0, 5),)))
TOKENS = (
    Sample("two heads", (6, 2), ((2, 5, 6),)),
    Sample("one head, one token", (3, 1), ((1, 1, 3),)),
    Sample("empty batch", (4, 2), ((0, 3, 4),)),
)
GPTS = (
    Sample("two blocks", (11, 6, 2, 2, 8), (_ids(3, 6, below=11),)),
    Sample("a shorter sequence", (7, 6, 1, 1, 4), (_ids(2, 4, below=7),)),
    Sample("one token", (5, 1, 1, 1, 2), (_ids(1, 1, below=5),)),
)

ROWS: tuple[Row, ...] = (
    Row("Residual", nn.Residual, lambda: nn.Residual(_branch()),
        lambda _: lambda params, x: x + _gelu_chain({k.removeprefix("module."): v for k, v in params.items()}, x),
        ("chain",), RANKS,
        (Mistake("a branch of another width", lambda: nn.Residual(nn.Linear(4, 3)),
                 r"expected a module that keeps its input's width, got Linear\(4, 3\), which expects 4 features on "
                 r"axis -1 and gives 3 features on axis -1", nn.CompositionError),
         Mistake("a branch of another shape", lambda: nn.Residual(nn.Flatten())(_zeros(2, 3, 4)),
                 r"expected a branch output of the input's shape \[2, 3, 4\], got \[2, 12\]"),
         Mistake("no module", lambda: nn.Residual(np.tanh), r"Residual: expected a module, got ufunc",
                 nn.CompositionError))),
    Row("ProjectedResidual", nn.ProjectedResidual, lambda: nn.ProjectedResidual(nn.LinearGELU(5, 3), nn.Linear(5, 3)),
        lambda _: lambda params, x: F.gelu(_linear(params, "main", x)) + _linear(params, "skip", x), ("chain",), RANKS,
        (Mistake("branches of two widths", lambda: nn.ProjectedResidual(nn.Linear(4, 3), nn.Linear(4, 2)),
                 r"expected two modules that give one width, got Linear\(4, 3\) with 3 features on axis -1 and "
                 r"Linear\(4, 2\) with 2", nn.CompositionError),)),
    Row("InitWith", nn.InitWith, lambda: nn.InitWith(_branch(), nn.Xavier()), lambda _: _gelu_chain, ("chain",), RANKS),
    Row("Checkpointed", nn.Checkpointed, lambda: nn.Checkpointed(_branch()), lambda _: _gelu_chain, ("chain",), RANKS),
    Row("Tokenwise", nn.Tokenwise, lambda n: nn.Tokenwise(nn.BatchNorm1D(n)), lambda _: _batch_norm, ("chain",),
        (Sample("three axes", (5,), ((4, 3, 5),)),),
        (Mistake("no tokens", lambda: nn.Tokenwise(nn.Linear(4, 3))(_zeros(2, 4)),
                 r"expected an input of shape \[B, S, \.\.\.\], got \[2, 4\]"),)),
    Row("PositionEmbedding", nn.PositionEmbedding, nn.PositionEmbedding,
        lambda _: lambda params, x: x + params["weight"][: x.shape[1]], ("chain",),
        (Sample("all positions", (5, 3), ((2, 5, 3),)), Sample("fewer tokens", (7, 4), ((3, 2, 4),)),
         Sample("one", (1, 1), ((1, 1, 1),)), Sample("empty batch", (3, 2), ((0, 3, 2),))),
        (Mistake("too long", lambda: nn.PositionEmbedding(3, 2)(_zeros(1, 4, 2)),
                 r"expected a sequence of at most 3 tokens, got 4"),)),
    Row("MultiHeadAttention", nn.MultiHeadAttention, nn.MultiHeadAttention,
        lambda net: lambda params, x: _attention(params, "", x, net.attention.num_heads, False), ("chain",), TOKENS),
    Row("MultiHeadAttention, causal", nn.MultiHeadAttention,
        lambda *a: nn.MultiHeadAttention(*a, is_causal=True, bias=False),
        lambda net: lambda params, x: _attention(params, "", x, net.attention.num_heads, True), ("chain",), TOKENS[:1]),
    Row("TransformerFFN", nn.TransformerFFN, lambda *a: nn.TransformerFFN(*a), lambda _: lambda p, x: _ffn(p, "", x),
        ("chain",), (Sample("rank 3", (4, 7), ((2, 3, 4),)), Sample("empty batch", (4, 7), ((0, 4),)))),
    Row("TransformerFFN, no bias", nn.TransformerFFN, lambda *a: nn.TransformerFFN(*a, bias=False),
        lambda _: lambda p, x: _ffn(p, "", x, bias=False), ("chain",), (Sample("rank 2", (4, 7), ((3, 4),)),)),
    Row("TransformerBlock", nn.TransformerBlock, nn.TransformerBlock,
        lambda net: lambda params, x: _block(params, "", x, net.attention.attention.num_heads, False), ("chain",),
        TOKENS),
    Row("TransformerBlock, exact", nn.TransformerBlock,
        lambda *a: nn.TransformerBlock(*a, eps=1e-3, approximate="none"),
        lambda net: lambda params, x: _exact_block(params, "", x, net.attention.attention.num_heads, 1e-3), ("chain",),
        TOKENS[:1], (Mistake("another GELU", lambda: nn.TransformerBlock(4, 2, approximate="erf"),
                             r"GELU: expected approximate to be 'none' or 'tanh', got 'erf'", ValueError),), step=1e-3),
    Row("PatchEmbed", nn.PatchEmbed, nn.PatchEmbed, lambda net: lambda p, x: _patches(p, "", x, net.patch_size),
        ("chain",), (Sample("oblong", (3, 5, 2), ((2, 3, 4, 6),), compiled=False), Sample("one patch", (1, 4, 3), ((2, 1, 3, 3),), compiled=False),
                     Sample("patches of one pixel", (2, 3, 1), ((1, 2, 2, 3),), compiled=False),
                     Sample("empty batch", (3, 5, 2), ((0, 3, 4, 6),), compiled=False)),
        (Mistake("part of a patch", lambda: nn.PatchEmbed(3, 5, 4)(_zeros(1, 3, 8, 10)),
                 r"expected an image of whole patches of 4 x 4, got 8 x 10"),)),
    Row("ViT", nn.ViT, lambda *a: nn.ViT(*a, in_channels=2), _vit_twin, ("chain",),
        (Sample("two blocks", (8, 4, 5, 8, 2, 2), ((3, 2, 8, 8),), compiled=False),
         Sample("oblong", ((4, 6), 2, 3, 4, 1, 1), ((2, 2, 4, 6),), compiled=False)), step=1e-3, mistakes=
        (Mistake("part of a patch", lambda: nn.ViT(10, 4, 5, 8, 1, 1),
                 r"ViT: expected an image of whole patches of 4 x 4, got 10 x 10"),
         Mistake("another size", lambda: nn.ViT(8, 4, 5, 8, 1, 1)(_zeros(2, 3, 8, 12)),
                 r"expected images \[B, 3, 8, 8\], got \[2, 3, 8, 12\]"))),
    Row("ViT, class token", nn.ViT, lambda *a: nn.ViT(*a, class_token=True, approximate="none", eps=1e-6), _vit_twin,
        ("chain",), (Sample("two blocks", (8, 4, 5, 8, 2, 2), ((3, 3, 8, 8),)),), step=1e-3),
    Row("GroupedQueryAttention", nn.GroupedQueryAttention, lambda *a: nn.GroupedQueryAttention(*a, theta=100.0),
        lambda net: lambda params, x: _grouped_attention(params, "", x, net.attention.num_heads, 100.0), ("chain",),
        GROUPED, (Mistake("odd heads", lambda: nn.GroupedQueryAttention(6, 2),
                          r"RoPE: expected head_dim to be a positive even integer, got 3", ValueError),)),
    Row("LlamaBlock", nn.LlamaBlock, lambda *a: nn.LlamaBlock(*a, hidden_dim=6, eps=1e-3),
        lambda net: lambda params, x: _llama_block(params, "", x, net.attention.attention.num_heads, 1e4, 1e-3),
        ("chain",), GROUPED, step=1e-3),
    Row("Llama", nn.Llama, lambda *a: nn.Llama(*a, num_kv_heads=1), _llama_twin, ("chain",),
        (Sample("two blocks", (11, 6, 2, 2, 8), (_ids(3, 6, below=11),), compiled=False),
         Sample("a shorter sequence", (7, 6, 1, 1, 4), (_ids(2, 4, below=7),), compiled=False)), step=1e-3, mistakes=
        (Mistake("floats", lambda: nn.Llama(5, 4, 1, 1, 2)(_zeros(2, 4)),
                 r"expected integer ids of shape \[B, T\], got float32 of shape \[2, 4\]"),
         Mistake("too long", lambda: nn.Llama(5, 4, 1, 1, 2)(np.zeros((2, 5), np.int32)),
                 r"expected a sequence of at most 4 tokens, got 5"))),
    Row("Llama, tied", nn.Llama, lambda *a: nn.Llama(*a, num_kv_heads=1, tied=True, hidden_dim=5), _llama_twin,
        ("chain",), (Sample("two blocks", (11, 6, 2, 2, 8), (_ids(3, 6, below=11),)),), step=1e-3),
    Row("LSTMLM", nn.LSTMLM, lambda *a: nn.LSTMLM(*a, num_layers=2), _lstm_twin, ("chain",),
        (Sample("two layers", (11, 4, 6), (_ids(3, 5, below=11),)),
         Sample("one token", (5, 3, 2), (_ids(2, 1, below=5),), compiled=False)), mistakes=
        (Mistake("floats", lambda: nn.LSTMLM(5, 4, 2)(_zeros(2, 4)),
                 r"expected integer ids of shape \[B, T\], got float32 of shape \[2, 4\]"),
         Mistake("a tied head of another width", lambda: nn.LSTMLM(5, 4, 2, tied=True),
                 r"LSTMLM: expected one width where the head is tied, got embed_dim=4 and hidden_size=2"))),
    Row("LSTMLM, tied", nn.LSTMLM, lambda *a: nn.LSTMLM(*a, tied=True), _lstm_twin, ("chain",),
        (Sample("one layer", (7, 4, 4), (_ids(3, 4, below=7),), compiled=False),)),
    Row("GPT", nn.GPT, nn.GPT, _gpt_twin, ("chain",), GPTS, step=1e-3, mistakes=
        (Mistake("floats", lambda: nn.GPT(5, 4, 1, 1, 2)(_zeros(2, 4)),
                 r"expected integer ids of shape \[B, T\], got float32 of shape \[2, 4\]"),
         Mistake("too long", lambda: nn.GPT(5, 4, 1, 1, 2)(np.zeros((2, 5), np.int32)),
                 r"module 'positions' .*expected a sequence of at most 4 tokens, got 5"),
         Mistake("an id too large", lambda: nn.GPT(5, 4, 1, 1, 2)(np.full((1, 4), 5)),
                 r"module 'tokens' .*expected ids 0..4, got 5 at position \[0, 0\]"))),
    Row("GPT, tied", nn.GPT, lambda *a: nn.GPT(*a, tied=True), _gpt_twin, ("chain",), GPTS[:1], step=1e-3),
    Row("GPT, no bias", nn.GPT, lambda *a: nn.GPT(*a, bias=False, scale_residual=True), _gpt_twin, ("chain",), GPTS[:1],
        step=1e-3),
)  # fmt: skip
