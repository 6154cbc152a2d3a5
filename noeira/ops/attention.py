"""Scaled dot-product attention and its gradients; compiled, no tensor of size queries x keys is ever in memory.

Rows keep two numbers, the maximum of their scores and the sum of exponentials above it (together the log-sum-exp),
from which the backward recomputes the probabilities.
Source: Dao et al., "FlashAttention", 2022; Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from noeira.ops.dispatch import Array, ShapeError, emit, expect_grad, known_size, op, spec
from noeira.ops.dropout import dropout, threshold
from noeira.runtime.staging import Dim, Spec, Staged

BLOCKED = -1e30
"""An additive mask at or below this forbids the pair."""


@dataclass(frozen=True)
class Options:
    """What of an attention is not an array.

    Args:
        heads: Heads of queries.
        kv_heads: Heads of keys and values; query head h uses head h // (heads / kv_heads).
        causal: Query i sees key j if j <= i + keys - queries: the last query sees every key.
        scale: Factor of the scores; None for 1 / sqrt(width of a head).
        dropout: Probability of dropping a probability.
    """

    heads: int
    kv_heads: int
    causal: bool = False
    scale: float | None = None
    dropout: float = 0.0

    def scaled(self, width: Dim) -> float:
        """The scale for heads of this width."""
        return float(width) ** -0.5 if self.scale is None else self.scale


# ---- reference -------------------------------------------------------------------------------------------------------


def _split(x: np.ndarray, heads: int) -> np.ndarray:
    """[B, T, H x D] as [B, H, T, D]; four axes are left as they are."""
    return x if x.ndim == 4 else x.reshape(*x.shape[:2], heads, x.shape[2] // heads).transpose(0, 2, 1, 3)


def _merge(x: np.ndarray, rank: int) -> np.ndarray:
    if rank == 4:
        return x
    x = x.transpose(0, 2, 1, 3)
    return x.reshape(*x.shape[:2], x.shape[2] * x.shape[3])


def _masked_product(weights: np.ndarray, allowed: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Weights @ right, without the pairs that are not allowed, whatever numbers stand there."""
    bad = np.logical_not(np.isfinite(right).all(axis=-1))
    assert isinstance(bad, np.ndarray)
    result = weights @ np.where(bad[..., None], right.dtype.type(0), right)
    for where in np.argwhere(bad):
        b, h, j = (int(i) for i in where)
        share = weights[b, h, :, j, None] * right[b, h, j]
        result[b, h] += np.where(allowed[b, h, :, j, None], share, right.dtype.type(0))
    return result


def _transposed(x: np.ndarray) -> np.ndarray:
    return np.swapaxes(x, -1, -2)


def _scores(
    q: np.ndarray, k: np.ndarray, mask: Array | None, key_mask: Array | None, options: Options
) -> tuple[np.ndarray, np.ndarray]:
    """Masked scores and which pairs see each other, both [B, H, queries, keys]."""
    x = (q * q.dtype.type(options.scaled(q.shape[-1]))) @ _transposed(k)
    allowed = np.ones(x.shape, bool)
    if options.causal:
        queries, keys = x.shape[-2:]
        allowed &= np.tri(queries, keys, keys - queries, dtype=bool)
    if mask is not None and mask.dtype == bool:
        allowed &= mask
    elif mask is not None:
        x = x + mask.astype(x.dtype)
        allowed &= ~(mask <= BLOCKED)
    if key_mask is not None:
        allowed &= (key_mask if key_mask.dtype == bool else key_mask > 0.5)[:, None, None, :]
    return np.where(allowed, x, x.dtype.type(-np.inf)), allowed


def _repeated(x: np.ndarray, options: Options) -> np.ndarray:
    return np.repeat(x, options.heads // options.kv_heads, axis=1)


def _summed(x: np.ndarray, options: Options) -> np.ndarray:
    """The vjp of `_repeated`."""
    group = options.heads // options.kv_heads
    return x.reshape(x.shape[0], options.kv_heads, group, *x.shape[2:]).sum(axis=2)


@op
def attention(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None,
    key_mask: Array | None,
    key: Array | None,
    options: Options,
) -> tuple[Array, Array]:
    """Softmax(scale q k^T + mask) v, with dropout on the probabilities.

    Nothing of a masked key reaches a query, not even NaN; a query that sees no key gets 0.

    Args:
        q: [B, H, queries, D], or [B, queries, H D].
        k: [B, K, keys, D], or [B, keys, K D], K = options.kv_heads.
        v: As k; its width may differ.
        mask: Of four axes that broadcast to [B, H, queries, keys]: bool (True attends), or numbers that are added.
        key_mask: [B, keys], bool or numbers: True or above 0.5 attends.
        key: Names the dropout's draw; None without dropout.
        options: Heads, causality, scale, dropout.

    Returns:
        The output, laid out as q, and the rows' statistics [B, H, queries, 2] for `attention_grad`.

    Raises:
        ShapeError: Two masks of one kind: combine them first.
    """
    _check(q, k, v, mask, key_mask, options)
    with np.errstate(invalid="ignore", over="ignore"):
        heads = options.heads
        keys, values = (_repeated(_split(x, options.kv_heads), options) for x in (k, v))
        x, allowed = _scores(_split(q, heads), keys, mask, key_mask, options)
        high = np.max(x, axis=-1, keepdims=True, initial=-np.inf)
        p = np.where(allowed, np.exp(x - np.where(high == -np.inf, 0, high)), x.dtype.type(0))
        total = p.sum(axis=-1, keepdims=True)
        p = p / np.where(total == 0, x.dtype.type(1), total)
        p = p if key is None else dropout(p, key, options.dropout)
        return _merge(_masked_product(p, allowed, values), q.ndim), np.concatenate([high, total], -1).astype(q.dtype)


@op
def attention_grad(
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    stats: Array,
    grad: Array,
    mask: Array | None,
    key_mask: Array | None,
    key: Array | None,
    options: Options,
) -> tuple[Array, Array, Array]:
    """Gradients of q, k and v.

    With p the probabilities, w = dropout(p), D = sum of grad out over a row:
    dv = w^T grad, g = p (dropout(grad v^T) - D), dq = scale g k, dk = scale g^T q; summed over a group of heads.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        scale = q.dtype.type(options.scaled(_split(q, options.heads).shape[-1]))
        queries, dy, y = (_split(x, options.heads) for x in (q, grad, out))
        keys, values = (_repeated(_split(x, options.kv_heads), options) for x in (k, v))
        x, allowed = _scores(queries, keys, mask, key_mask, options)
        high, total = stats[..., :1], stats[..., 1:]
        p = np.exp(x - np.where(high == -np.inf, 0, high)) / np.where(total == 0, x.dtype.type(1), total)
        seen = x != -np.inf  # a score of -inf is a weight of 0, whatever its row holds
        p = np.where(seen, p, x.dtype.type(0))
        dp = dy @ _transposed(values)
        w = p
        if key is not None:
            w, dp = dropout(p, key, options.dropout), dropout(dp, key, options.dropout)
        g = np.where(seen, p * (dp - (dy * y).sum(axis=-1, keepdims=True)), x.dtype.type(0))
        dv = _masked_product(_transposed(w), _transposed(allowed), dy)
        dk = _masked_product(_transposed(g), _transposed(allowed), queries) * scale
        dq = _masked_product(g, allowed, keys) * scale
        rank = q.ndim
        return _merge(dq, rank), _merge(_summed(dk, options), rank), _merge(_summed(dv, options), rank)


def _parts(qkv: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    q, k, v = (qkv[:, i] for i in range(3)) if qkv.ndim == 4 else np.split(qkv, 3, axis=-1)
    return q, k, v


@op
def packed_attention(
    qkv: Array, mask: Array | None, key_mask: Array | None, key: Array | None, options: Options
) -> tuple[Array, Array]:
    """Self-attention on queries, keys and values in one tensor; otherwise as `attention`.

    Args:
        qkv: [B, T, 3 H D], each token's q, k and v side by side, or [B, 3, T, H D].
        mask: As for `attention`.
        key_mask: As for `attention`.
        key: As for `attention`.
        options: As for `attention`; as many heads of keys as of queries.

    Returns:
        The output [B, T, H D], and the statistics [B, H, T, 2].
    """
    return attention(*_parts(qkv), mask, key_mask, key, options)


@op
def packed_attention_grad(
    qkv: Array,
    out: Array,
    stats: Array,
    grad: Array,
    mask: Array | None,
    key_mask: Array | None,
    key: Array | None,
    options: Options,
) -> Array:
    """The gradient of qkv; see `attention_grad`."""
    grads = attention_grad(*_parts(qkv), out, stats, grad, mask, key_mask, key, options)
    return np.stack(grads, axis=1) if qkv.ndim == 4 else np.concatenate(grads, axis=-1)


# ---- staging ---------------------------------------------------------------------------------------------------------


def _four_axes(mask: Array) -> Array:
    if mask.ndim != 4:
        raise ShapeError(f"expected a mask with four axes [batch, head, query, key], got {list(mask.shape)}")
    return mask


def _check(q: Array, k: Array, v: Array, mask: Array | None, key_mask: Array | None, options: Options) -> None:
    """Refuse what the kernel would misread."""
    shapes = f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
    if q.ndim not in (3, 4) or k.ndim != q.ndim or v.ndim != q.ndim:
        raise ShapeError(f"expected q, k and v all of three or all of four axes, got {shapes}")
    if options.heads % options.kv_heads:
        raise ShapeError(f"expected heads to be a multiple of kv_heads, got {options.heads} and {options.kv_heads}")
    if q.ndim == 4:
        fits = (q.shape[1], k.shape[1], v.shape[1]) == (options.heads, options.kv_heads, options.kv_heads)
        fits = fits and q.shape[3] == k.shape[3]
    else:
        widths = ((q.shape[2], options.heads), (k.shape[2], options.kv_heads), (v.shape[2], options.kv_heads))
        fits = all(isinstance(width, int) and width % heads == 0 for width, heads in widths)
        fits = fits and q.shape[2] // options.heads == k.shape[2] // options.kv_heads
    if not fits or k.shape[-2] != v.shape[-2] or not q.shape[0] == k.shape[0] == v.shape[0]:
        raise ShapeError(f"q, k and v do not fit {options.heads} heads and {options.kv_heads} key heads: {shapes}")
    full = (q.shape[0], options.heads, q.shape[-2], k.shape[-2])
    if mask is not None and any(m not in (1, n) for m, n in zip(_four_axes(mask).shape, full, strict=True)):
        raise ShapeError(f"expected a mask that broadcasts to {list(full)}, got {list(mask.shape)}")
    if key_mask is not None and tuple(key_mask.shape) != (full[0], full[3]):
        raise ShapeError(f"expected a key mask of shape {[full[0], full[3]]}, got {list(key_mask.shape)}")
    if mask is not None and key_mask is not None and (mask.dtype == bool) == (key_mask.dtype == bool):
        raise ShapeError(f"expected one boolean mask and one of numbers, got two of {mask.dtype}: combine them first")


def _expand(key_mask: Array) -> Array:
    """[B, keys] as [B, 1, 1, keys]."""
    from noeira.ops.shape import reshape

    return reshape(key_mask, (key_mask.shape[0], 1, 1, key_mask.shape[1]))


def _rest(
    like: Array, width: Dim, mask: Array | None, key_mask: Array | None, key: Array | None, options: Options
) -> list[Array]:
    """The operands after q, k and v: both masks, the draw, options and numbers."""
    keep: Array = np.ones((1, 1, 1, 1), bool)
    bias: Array = np.zeros((1, 1, 1, 1), like.dtype)
    has_keep, mode = 0, 0
    for array, padding in ((mask, False), (None if key_mask is None else _expand(key_mask), True)):
        if array is None:
            continue
        if array.dtype == bool:
            keep, has_keep = array, 1
        else:
            bias, mode = _as_numbers(array, like), 2 if padding else 1
    active = key is not None
    limit = threshold(options.dropout) if active else 0
    factor = 1 / (1 - options.dropout) if active and options.dropout < 1 else 0.0
    numbers = np.array([options.scaled(width), factor]).astype(like.dtype)
    settings = [options.heads, options.kv_heads, int(options.causal), has_keep, mode, int(active), limit]
    return [keep, bias, np.zeros(3, np.int64) if key is None else key, np.array(settings, np.int64), numbers]


def _as_numbers(mask: Array, like: Array) -> Array:
    if mask.dtype == like.dtype:
        return mask
    if isinstance(mask, Staged):
        raise ShapeError(f"expected a mask of dtype bool or {like.dtype}, got {mask.dtype}")
    return np.maximum(mask, np.finfo(like.dtype).min).astype(like.dtype)


def _flops(q: Array, keys: Dim, width: Dim, products: int, options: Options) -> int:
    pairs = known_size((q.shape[0], options.heads, q.shape[-2], keys))
    return 2 * products * pairs * known_size((width,)) // (2 if options.causal else 1)


def _head_width(x: Array, heads: int) -> int:
    width = x.shape[-1]
    if not isinstance(width, int):
        raise ShapeError(f"expected a known number of features, got {list(x.shape)}")
    return width if x.ndim == 4 else width // heads


@attention.staged
def _(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None,
    key_mask: Array | None,
    key: Array | None,
    options: Options,
) -> Any:
    _check(q, k, v, mask, key_mask, options)
    width, v_width = _head_width(q, options.heads), _head_width(v, options.kv_heads)
    out = spec((*q.shape[:-1], v_width if q.ndim == 4 else v_width * options.heads), q)
    stats = spec((q.shape[0], options.heads, q.shape[-2], 2), q)
    operands = [q, k, v, *_rest(q, width, mask, key_mask, key, options)]
    return emit("noeira.attention", operands, [out, stats], flops=_flops(q, k.shape[-2], width, 2, options))


@attention_grad.checked
def _(q: Array, k: Array, v: Array, out: Array, stats: Array, grad: Array, *rest: Any, **named: Any) -> None:
    expect_grad(grad, out.shape)


@attention_grad.staged
def _(
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    stats: Array,
    grad: Array,
    mask: Array | None,
    key_mask: Array | None,
    key: Array | None,
    options: Options,
) -> Any:
    width = _head_width(q, options.heads)
    operands = [q, k, v, out, stats, grad, *_rest(q, width, mask, key_mask, key, options)]
    flops = _flops(q, k.shape[-2], width, 5, options)
    return emit("noeira.attention_grad", operands, [q.spec, k.spec, v.spec], flops=flops)


@packed_attention.staged
def _(qkv: Array, mask: Array | None, key_mask: Array | None, key: Array | None, options: Options) -> Any:
    q = _one_part(qkv)
    _check_packed(q, mask, key_mask, options)
    width = int(q.shape[-1]) // options.heads
    operands = [qkv, *_rest(qkv, width, mask, key_mask, key, options)]
    stats = spec((q.shape[0], options.heads, q.shape[1], 2), qkv)
    flops = _flops(qkv, q.shape[1], width, 2, options)
    return emit("noeira.attention_packed", operands, [q, stats], flops=flops)


@packed_attention_grad.checked
def _(qkv: Array, out: Array, stats: Array, grad: Array, *rest: Any, **named: Any) -> None:
    expect_grad(grad, out.shape)


@packed_attention_grad.staged
def _(
    qkv: Array,
    out: Array,
    stats: Array,
    grad: Array,
    mask: Array | None,
    key_mask: Array | None,
    key: Array | None,
    options: Options,
) -> Array:
    width = int(_one_part(qkv).shape[-1]) // options.heads
    operands = [qkv, out, stats, grad, *_rest(qkv, width, mask, key_mask, key, options)]
    flops = _flops(qkv, qkv.shape[-2], width, 5, options)
    return emit("noeira.attention_packed_grad", operands, [qkv.spec], flops=flops)[0]


def _one_part(qkv: Array) -> Spec:
    """Shape and dtype of q, k and v each."""
    width = qkv.shape[-1]
    if not isinstance(width, int):
        raise ShapeError(f"expected a known number of features, got {list(qkv.shape)}")
    return spec((*qkv.shape[:2], width // 3) if qkv.ndim == 3 else (qkv.shape[0], *qkv.shape[2:]), qkv)


def _check_packed(part: Spec, mask: Array | None, key_mask: Array | None, options: Options) -> None:
    q = np.broadcast_to(np.zeros(1), [n if isinstance(n, int) else 1 for n in part.shape])
    if q.shape[2] % options.heads or options.heads != options.kv_heads:
        raise ShapeError(
            f"expected {options.heads} heads of equal width, got {q.shape[2]} features for each of q, k, v"
        )
    full = (part.shape[0], options.heads, part.shape[1], part.shape[1])
    if mask is not None and any(m not in (1, n) for m, n in zip(_four_axes(mask).shape, full, strict=True)):
        raise ShapeError(f"expected a mask that broadcasts to {list(full)}, got {list(mask.shape)}")
    if key_mask is not None and tuple(key_mask.shape) != (full[0], full[3]):
        raise ShapeError(f"expected a key mask of shape {[full[0], full[3]]}, got {list(key_mask.shape)}")
    if mask is not None and key_mask is not None and (mask.dtype == bool) == (key_mask.dtype == bool):
        raise ShapeError(f"expected one boolean mask and one of numbers, got two of {mask.dtype}: combine them first")
