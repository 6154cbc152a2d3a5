"""Rows of the layers that draw normal numbers or masks: noisy maps, samplers, random projections."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from noeira import nn
from noeira.ops.random import fold_in, normal, stream_of
from tests.catalogue import DROPOUT, Mistake, Row, Sample, _dropout_mask, _zeros
from tests.compare import SEED, Twin

Params = dict[str, torch.Tensor]


def _noise(layer: Any, shape: Sequence[int], like: torch.Tensor, *, step: int = 1, within: str = "") -> torch.Tensor:
    """The numbers that the layer's first draw of this step gives, in float64 before they are rounded."""
    root = np.array([SEED, step, 0])
    key = fold_in(fold_in(root, stream_of(within)) if within else root, stream_of(f"{type(layer).__name__}#1"))
    return torch.tensor(normal(key, tuple(shape), "float64")).to(like.dtype)


# ---- noisy linear ----------------------------------------------------------------------------------------------------


def _noisy_twin(layer: nn.NoisyLinear, within: str = "") -> Twin:
    def twin(params: Params, x: torch.Tensor) -> torch.Tensor:
        weight, bias = params["weight_mu"], params["bias_mu"]
        if layer.training and layer.noise_scale:
            e = _noise(layer, (sum(weight.shape),), x, within=within)
            f = e.sign() * e.abs().sqrt()
            inner, outer = f[: len(weight)], f[len(weight) :] * layer.noise_scale
            weight = weight + params["weight_sigma"] * torch.outer(inner, outer)
            bias = bias + params["bias_sigma"] * outer
        return x @ weight + bias

    return twin


def _noisy_chain_twin(net: Any) -> Twin:
    def twin(params: Params, x: torch.Tensor) -> torch.Tensor:
        for i, layer in enumerate(net):
            own = {name.removeprefix(f"{i}."): value for name, value in params.items() if name.startswith(f"{i}.")}
            x = _noisy_twin(layer, f"[{i}]")(own, x)
        return x

    return twin


NOISY = (
    Sample("rank 2", (5, 3), ((7, 5),)),
    Sample("rank 3", (5, 3), ((2, 3, 5),), compiled=False),
    Sample("primes", (13, 17), ((11, 13),)),
    Sample("size-1 dimensions", (1, 1), ((1, 1),), compiled=False),
    Sample("half the noise", (5, 3, 0.5, 0.5), ((7, 5),), compiled=False),
    Sample("no noise", (5, 3, 0.5, 0.0), ((7, 5),), compiled=False),
    Sample("large magnitudes", (5, 3), ((9, 5),), 1e4, step=1e-7),
    Sample("empty batch", (5, 3), ((0, 5),)),
)

# ---- samplers --------------------------------------------------------------------------------------------------------


def _rsample_twin(layer: nn.RSample) -> Twin:
    def twin(params: Params, x: torch.Tensor) -> torch.Tensor:
        mu, log_std = x.chunk(2, -1)
        log_std = log_std.clamp(-5, 2)
        z = _noise(layer, mu.shape, x) if layer.training else torch.zeros_like(mu)
        t = torch.tanh(mu + log_std.exp() * z)
        log_prob = -0.5 * z * z - log_std - 0.5 * math.log(2 * math.pi)
        log_prob = log_prob - (layer.action_scale * (1 - t * t) + 1e-6).log()
        return torch.cat([layer.action_scale * t, log_prob.sum(-1, keepdim=True)], -1)

    return twin


def _policies(*shape: int, spread: float = 1.0) -> Any:
    """Means and deviations at which tanh does not saturate."""

    def draw(rng: np.random.Generator) -> np.ndarray:
        x = spread * rng.uniform(-1, 1, shape).astype(np.float32)
        x[..., shape[-1] // 2 :] -= 1
        return x

    return draw


def _at_limits(rng: np.random.Generator) -> np.ndarray:
    """Deviations at both sides of both limits."""
    x = rng.uniform(-0.01, 0.01, (3, 6)).astype(np.float32)
    x[:, 3:] = [-7.0, -4.5, -1.0]
    x[1:, 5] = -5.5, 2.5
    return x


RSAMPLE = (
    Sample("rank 2", (3,), (_policies(7, 6),)),
    Sample("rank 3", (2,), (_policies(2, 3, 4),), compiled=False),
    Sample("scaled", (3, 2.5), (_policies(5, 6),), compiled=False),
    Sample("one action, batch 1", (1,), (_policies(1, 2),), compiled=False),
    Sample("at the limits of the deviation", (3,), (_at_limits,)),
    Sample("many rows", (3,), (_policies(211, 6),)),
    Sample("empty batch", (3,), ((0, 6),)),
)


def _vae_twin(layer: nn.GaussianVAE) -> Twin:
    def twin(params: Params, x: torch.Tensor) -> torch.Tensor:
        mu, logvar = x.chunk(2, -1)
        e = _noise(layer, mu.shape, x) if layer.training else torch.zeros_like(mu)
        divergence = 0.5 * (mu * mu + logvar.exp() - 1 - logvar).sum(-1, keepdim=True)
        return torch.cat([mu + (0.5 * logvar).exp() * e, divergence], -1)

    return twin


VAE = (
    Sample("rank 2", (3,), ((7, 6),)),
    Sample("rank 3", (2,), ((2, 3, 4),), compiled=False),
    Sample("one number, batch 1", (1,), ((1, 2),), compiled=False),
    Sample("many rows", (3,), ((211, 6),)),
    Sample("empty batch", (3,), ((0, 6),)),
)

# ---- SIGReg ----------------------------------------------------------------------------------------------------------


def _sigreg_twin(layer: nn.SIGReg) -> Twin:
    def twin(params: Params, x: torch.Tensor) -> torch.Tensor:
        a = _noise(layer, (layer.features, layer.num_proj), x, step=1 if layer.resample else 0)
        a = a / a.norm(dim=0)
        t = torch.linspace(0, 3, layer.knots, dtype=torch.float64).to(x.dtype)
        step = 3 / (layer.knots - 1)
        weights = torch.full((layer.knots,), 2 * step, dtype=x.dtype)
        weights[[0, -1]] = step
        phi = torch.exp(-t.square() / 2)
        rows = x[:, None] if x.ndim == 2 else x
        angle = (rows @ a)[..., None] * t
        if not len(x):
            return x.sum() * 0 + torch.zeros((0, 1), dtype=x.dtype)
        off = (angle.cos().mean(0) - phi).square() + angle.sin().mean(0).square()
        statistic = (off @ (weights * phi)).mean() * len(x)
        return statistic.expand(len(x), 1)

    return twin


SIGREG = (
    Sample("rank 2", (5, 7), ((11, 5),)),
    Sample("tokens", (4, 3, 5), ((6, 2, 4),)),
    Sample("one of each", (1, 1, 2), ((1, 1),), compiled=False),
    Sample("a shifted batch", (5, 7), (lambda rng: (1.5 + rng.standard_normal((13, 5))).astype(np.float32),)),
    Sample("empty batch", (5, 7), ((0, 5),)),
)


def _hash_dropout_twin(layer: nn.HashDropout) -> Twin:
    def twin(params: Params, x: torch.Tensor) -> torch.Tensor:
        if not layer.dropout or layer.p == 0:
            return x
        kept = torch.tensor(_dropout_mask(tuple(x.shape), layer.p, "HashDropout#1"))
        return torch.where(kept, x / (1 - layer.p), torch.zeros_like(x)) if layer.p < 1 else x * 0

    return twin


def _evaluating(layer: nn.Module) -> nn.Module:
    return layer.eval()


def _wide(layer: type, *args: Any) -> Mistake:
    return Mistake("wrong width", lambda: layer(*args)(_zeros(2, 99)), r"expected an input of shape .*, got \[2, 99\]")


ROWS: tuple[Row, ...] = (
    Row("NoisyLinear", nn.NoisyLinear, nn.NoisyLinear, _noisy_twin, ("x", "draw"), NOISY,
        (_wide(nn.NoisyLinear, 5, 3),
         Mistake("no width", lambda: nn.NoisyLinear(0, 3), r"in_features to be a positive integer, got 0",
                 ValueError))),
    Row("NoisyLinear, repeated", nn.NoisyLinear, lambda: nn.Repeat(2, lambda: nn.NoisyLinear(5, 5)), _noisy_chain_twin,
        ("chain",), (Sample("rank 2", (), ((7, 5),)),), step=1e-3),
    Row("RSample", nn.RSample, nn.RSample, _rsample_twin, ("x", "draw"), RSAMPLE,
        (_wide(nn.RSample, 3),
         Mistake("scale", lambda: nn.RSample(3, 0.0), r"expected action_scale to be a positive .*, got 0\.0", ValueError),
         Mistake("size", lambda: nn.RSample(0), r"action_dim to be a positive integer, got 0", ValueError)),
        step=1e-3),
    Row("RSample, evaluation", nn.RSample, nn.RSample, _rsample_twin, ("x",), RSAMPLE[:1], prepare=_evaluating),
    Row("GaussianVAE", nn.GaussianVAE, nn.GaussianVAE, _vae_twin, ("x", "draw"), VAE,
        (_wide(nn.GaussianVAE, 3),
         Mistake("size", lambda: nn.GaussianVAE(0), r"latent_dim to be a positive integer, got 0", ValueError))),
    Row("GaussianVAE, evaluation", nn.GaussianVAE, nn.GaussianVAE, _vae_twin, ("x",), VAE[:1], prepare=_evaluating),
    Row("SIGReg", nn.SIGReg, nn.SIGReg, _sigreg_twin, ("x", "draw"), SIGREG,
        (_wide(nn.SIGReg, 5, 7),
         Mistake("rank", lambda: nn.SIGReg(5)(_zeros(2, 3, 4, 5)), r"\[B, D\] or \[B, T, D\] .*, got \[2, 3, 4, 5\]"),
         Mistake("knots", lambda: nn.SIGReg(5, 7, 1), r"expected knots to be an integer of at least 2, got 1", ValueError)), step=1e-3),
    Row("SIGReg, kept projections", nn.SIGReg, lambda *a: nn.SIGReg(*a, resample=False), _sigreg_twin, ("x", "draw"),
        (replace(SIGREG[0], compiled=False),), step=1e-3),
    Row("HashDropout", nn.HashDropout, nn.HashDropout, _hash_dropout_twin, ("draw",),
        (DROPOUT[0], *(replace(sample, compiled=False) for sample in DROPOUT[1:])),
        (Mistake("p", lambda: nn.HashDropout(1.5), r"HashDropout: expected p to be .* got 1\.5", ValueError),)),
    Row("HashDropout, off", nn.HashDropout, lambda p: nn.HashDropout(p, dropout=False), _hash_dropout_twin, (),
        DROPOUT[:1]),
)  # fmt: skip
