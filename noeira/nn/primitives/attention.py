"""Attention layers without parameters: packed, masked, and across two sequences."""

from __future__ import annotations

from typing import Any

import numpy as np

from noeira.nn.core import context
from noeira.nn.core.arguments import number, positives, probability
from noeira.nn.core.errors import ShapeError
from noeira.nn.core.module import Module, Width
from noeira.ops.attention import (
    BLOCKED,
    Options,
    attention,
    attention_grad,
    packed_attention,
    packed_attention_grad,
)
from noeira.ops.dispatch import Array

MODALITY_MASKS = ("encoder", "decoder", "wm_agent", "wm_agent_isolated", "wm_agent_bc")


def causal_mask(tokens: int) -> np.ndarray:
    """Additive [tokens, tokens] mask under which token i sees tokens 0..i.

    Example:
        >>> from noeira.nn import causal_mask
        >>> (causal_mask(3) == 0).astype(int).tolist()
        [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    """
    return _additive(np.tri(tokens, dtype=bool))


def all_allow_mask(tokens: int) -> np.ndarray:
    """Additive [tokens, tokens] mask under which every token sees every token."""
    return _additive(np.ones((tokens, tokens), bool))


def build_modality_mask(kind: str, modality: Any, special: int = 0) -> np.ndarray:
    """Additive [S, S] mask for the space layers of Dreamer 4, by the modality of each token.

    - "encoder": latent tokens see everything, the others their own modality only.
    - "decoder": latent tokens see each other only, the others their own modality and the latents.
    - "wm_agent": every token sees every token.
    - "wm_agent_isolated": agent tokens see agent tokens only, the others each other only (pretraining, in which the
      agent tokens play no part).
    - "wm_agent_bc": agent tokens see everything, the others each other only: what an agent wants cannot change what
      the world model predicts (behaviour cloning, imagination).

    Args:
        kind: One of the above.
        modality: [S] integers, one a token.
        special: The modality of the latent (encoder, decoder) or agent tokens. Where no token has it, all the agent
            masks allow everything.

    Example:
        >>> from noeira.nn import build_modality_mask
        >>> (build_modality_mask("wm_agent_bc", [1, 2, 5], special=5) == 0).astype(int).tolist()
        [[1, 1, 0], [1, 1, 0], [1, 1, 1]]

    Source: Hafner, Yan, Lillicrap, "Training Agents Inside of Scalable World Models", 2025.
    """
    ids = np.asarray(modality)
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(f"build_modality_mask: expected one integer a token, got {ids.dtype}{list(ids.shape)}")
    own, chosen = ids[:, None] == ids[None, :], ids == special
    match kind:
        case "encoder":
            return _additive(own | chosen[:, None])
        case "decoder":
            return _additive(own | chosen[None, :])
        case "wm_agent":
            return _additive(np.ones(own.shape, bool))
        case "wm_agent_isolated":
            return _additive(chosen[:, None] == chosen[None, :])
        case "wm_agent_bc":
            return _additive(chosen[:, None] | ~chosen[None, :])
    raise ValueError(f"build_modality_mask: expected a kind out of {', '.join(MODALITY_MASKS)}, got {kind!r}")


def _additive(allowed: np.ndarray) -> np.ndarray:
    return np.where(allowed, 0.0, BLOCKED).astype(np.float32)


class _Heads(Module):
    """Sizes, scale and dropout that all attention layers share."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        is_causal: bool = False,
        dropout_p: float = 0.0,
        scale: float | None = None,
    ):
        name = type(self).__name__
        kv = num_heads if num_kv_heads is None else num_kv_heads
        embed_dim, num_heads = positives(self, embed_dim=embed_dim, num_heads=num_heads)
        (kv,) = positives(self, num_kv_heads=kv)
        if embed_dim % num_heads:
            raise ValueError(
                f"{name}: expected embed_dim to be a multiple of num_heads, got {embed_dim} and {num_heads}"
            )
        if num_heads % kv:
            raise ValueError(f"{name}: expected num_heads to be a multiple of num_kv_heads, got {num_heads} and {kv}")
        self.embed_dim, self.num_heads, self.num_kv_heads = embed_dim, num_heads, kv
        self.is_causal, self.dropout_p = bool(is_causal), probability(self, "dropout_p", dropout_p)
        self.scale = None if scale is None else number(self, "scale", scale)

    def gives(self, width: Width | None) -> Width:
        """`embed_dim` on the last axis."""
        return -1, self.embed_dim

    def extra_repr(self) -> str:
        """Sizes, and the options that are not the default."""
        text = f"{self.embed_dim}, {self.num_heads}"
        if self.num_kv_heads != self.num_heads:
            text += f", num_kv_heads={self.num_kv_heads}"
        if self.is_causal:
            text += ", is_causal=True"
        return text + (f", dropout_p={self.dropout_p:g}" if self.dropout_p else "")

    def _options(self) -> Options:
        return Options(self.num_heads, self.num_kv_heads, self.is_causal, self.scale, self.dropout_p)

    def look_back(self, q: Array, k: Array, v: Array, seen: Array) -> Array:
        """The output at one token in evaluation mode.

        Args:
            q: [B, 1, embed_dim].
            k: Of the tokens so far, and whatever stands behind them: [B, T, embed_dim num_kv_heads / num_heads].
            v: As k.
            seen: Booleans [B, T]: which tokens there are.
        """
        options = Options(self.num_heads, self.num_kv_heads, False, self.scale)
        return attention(q, k, v, None, seen, None, options)[0]

    def _draw(self) -> Array | None:
        return context.draw() if self.training and self.dropout_p > 0 else None


class ScaledDotProductAttention(_Heads):
    """Self-attention on queries, keys and values packed into one tensor.

    y = dropout(softmax(scale q k^T)) v, head by head

    Args:
        embed_dim: Width of q, of k and of v: all heads together.
        num_heads: Number of heads.
        is_causal: Token i sees tokens 0..i only.
        dropout_p: Probability of dropping a probability while training.
        scale: Factor of the scores; 1 / sqrt(embed_dim / num_heads) by default.
        qkv_major: The input has all q, then all k, then all v, instead of the three side by side in each token.

    Shape:
        x [B, S, 3 embed_dim], or [B, 3, S, embed_dim] where qkv_major; y [B, S, embed_dim].

    vjp:
        With p the probabilities, w = dropout(p), D = sum of dy y over a head's row: dv = w^T dy,
        g = p (dropout(dy v^T) - D), dq = scale g k, dk = scale g^T q. Saves x, y, two numbers a row and head, and the
        dropout's key; probabilities are computed again.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import ScaledDotProductAttention
        >>> ScaledDotProductAttention(8, 2, is_causal=True)(np.ones((4, 5, 24), np.float32)).shape
        (4, 5, 8)

    Source: Vaswani et al. 2017; Dao et al. 2022. PyTorch: `torch.nn.functional.scaled_dot_product_attention`.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        is_causal: bool = False,
        dropout_p: float = 0.0,
        scale: float | None = None,
        qkv_major: bool = False,
    ):
        super().__init__(embed_dim, num_heads, is_causal=is_causal, dropout_p=dropout_p, scale=scale)
        self.qkv_major = bool(qkv_major)

    def expects(self) -> Width:
        """Three times `embed_dim` on the last axis; once where qkv_major."""
        return -1, self.embed_dim * (1 if self.qkv_major else 3)

    def check_inputs(self, *inputs: Array) -> None:
        """Refuse other ranks than the layout's."""
        super().check_inputs(*inputs)
        shape = tuple(inputs[0].shape)
        if self.qkv_major and (len(shape) != 4 or shape[1] != 3):
            raise ShapeError(f"expected an input of shape [B, 3, S, {self.embed_dim}], got {list(shape)}")
        if not self.qkv_major and len(shape) != 3:
            raise ShapeError(f"expected an input of shape [B, S, {3 * self.embed_dim}], got {list(shape)}")

    def _mask(self) -> Array | None:
        return None

    def forward(self, x: Array) -> tuple[Array, Any]:
        """Packed q, k, v -> y [B, S, embed_dim]; saves (x, y, statistics, key)."""
        key = self._draw()
        y, stats = packed_attention(x, self._mask(), None, key, self._options())
        return y, (x, y, stats, key)

    def vjp(self, saved: Any, grad_output: Array) -> Array:
        """Dy [B, S, embed_dim] -> the gradient of the packed input."""
        x, y, stats, key = saved
        return packed_attention_grad(x, y, stats, grad_output, self._mask(), None, key, self._options())


class MaskedAttention(ScaledDotProductAttention):
    """Packed self-attention under one fixed mask for all batches and heads.

    y = softmax(scale q k^T + mask) v

    Args:
        embed_dim: Width of q, of k and of v: all heads together.
        num_heads: Number of heads.
        mask: [S, S], bool (True attends) or numbers that are added (-1e30 and below block); everything is allowed by
            default. See `causal_mask`, `all_allow_mask` and `build_modality_mask`.
        dropout_p: Probability of dropping a probability while training.
        scale: Factor of the scores; 1 / sqrt(embed_dim / num_heads) by default.
        qkv_major: As for `ScaledDotProductAttention`.

    Shape:
        x [B, S, 3 embed_dim], or [B, 3, S, embed_dim] where qkv_major; y [B, S, embed_dim].

    vjp:
        As `ScaledDotProductAttention`; a token that sees nothing gets 0 and gives 0 gradients. Saves the same.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import MaskedAttention, causal_mask
        >>> MaskedAttention(8, 2, causal_mask(5))(np.ones((2, 5, 24), np.float32)).shape
        (2, 5, 8)

    Source: Vaswani et al. 2017.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        mask: Any = None,
        *,
        dropout_p: float = 0.0,
        scale: float | None = None,
        qkv_major: bool = False,
    ):
        super().__init__(embed_dim, num_heads, dropout_p=dropout_p, scale=scale, qkv_major=qkv_major)
        self.mask = None if mask is None else np.array(mask)
        if self.mask is not None and (self.mask.ndim != 2 or self.mask.shape[0] != self.mask.shape[1]):
            raise ValueError(f"MaskedAttention: expected a mask of shape [S, S], got {list(self.mask.shape)}")
        if self.mask is not None and self.mask.dtype != bool:
            self.mask = self.mask.astype(np.float32)

    def check_inputs(self, *inputs: Array) -> None:
        """Refuse another number of tokens than the mask's."""
        super().check_inputs(*inputs)
        if self.mask is not None and inputs[0].shape[-2] != len(self.mask):
            raise ShapeError(f"expected {len(self.mask)} tokens, as many as the mask has, got {inputs[0].shape[-2]}")

    def _mask(self) -> Array | None:
        return None if self.mask is None else self.mask[None, None]


class CrossAttention(_Heads):
    """Attention of one sequence to another, with an optional mask of its keys.

    y = dropout(softmax(scale q k^T)) v, over the keys that the mask keeps

    Args:
        embed_dim: Width of q: all heads together.
        num_heads: Number of heads.
        num_kv_heads: Heads of k and v, a divisor of num_heads; as many by default.
        is_causal: Query i sees key j if j <= i + keys - queries.
        dropout_p: Probability of dropping a probability while training.
        scale: Factor of the scores; 1 / sqrt(embed_dim / num_heads) by default.

    Shape:
        q [B, Tq, embed_dim], k and v [B, Tk, embed_dim num_kv_heads / num_heads], key mask [B, Tk]: True, or a number
        above 0.5, attends (the inverse of PyTorch's key_padding_mask); y [B, Tq, embed_dim].

    vjp:
        As `ScaledDotProductAttention`, to (dq, dk, dv), and None for the mask. Saves q, k, v, the mask, y, two numbers
        a row and head, and the dropout's key.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import CrossAttention
        >>> q, kv = np.ones((2, 3, 8), np.float32), np.ones((2, 5, 8), np.float32)
        >>> CrossAttention(8, 2)(q, kv, kv, np.ones((2, 5), bool)).shape
        (2, 3, 8)

    Source: Vaswani et al. 2017. PyTorch: `torch.nn.functional.scaled_dot_product_attention`.
    """

    integers = (3,)

    def check_inputs(self, *inputs: Array) -> None:
        """Refuse shapes that do not belong together."""
        super().check_inputs(*inputs)
        q, k, v = (tuple(x.shape) for x in inputs[:3])
        width = self.embed_dim // self.num_heads * self.num_kv_heads
        if len(q) != 3 or q[-1] != self.embed_dim:
            raise ShapeError(f"expected q of shape [B, Tq, {self.embed_dim}], got {list(q)}")
        for name, shape in (("k", k), ("v", v)):
            if len(shape) != 3 or shape[-1] != width or shape[0] != q[0] or shape[1] != k[1]:
                raise ShapeError(
                    f"expected {name} of shape {[q[0], k[1] if len(k) > 1 else 'Tk', width]}, got {list(shape)}"
                )
        if len(inputs) == 4 and inputs[3] is not None and tuple(inputs[3].shape) != k[:2]:
            raise ShapeError(f"expected a key mask of shape {list(k[:2])}, got {list(inputs[3].shape)}")

    def forward(self, q: Array, k: Array, v: Array, key_mask: Array | None = None) -> tuple[Array, Any]:
        """Q [B, Tq, E], k and v [B, Tk, ...] -> y [B, Tq, E]; saves all of them, the statistics and the key."""
        key = self._draw()
        y, stats = attention(q, k, v, None, key_mask, key, self._options())
        return y, (q, k, v, key_mask, y, stats, key)

    def vjp(self, saved: Any, grad_output: Array) -> Any:
        """Dy -> (dq, dk, dv), and None for a mask."""
        q, k, v, key_mask, y, stats, key = saved
        grads = tuple(attention_grad(q, k, v, y, stats, grad_output, None, key_mask, key, self._options()))
        return grads if key_mask is None else (*grads, None)


class SelfAttentionPos(CrossAttention):
    """`CrossAttention` within one sequence whose q and k carry positions that v does not (as in DETR).

    Shape:
        q, k, v [B, S, embed_dim]; y [B, S, embed_dim].

    vjp:
        As `CrossAttention`. Saves q, k, v, y, two numbers a row and head, and the dropout's key.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import SelfAttentionPos
        >>> q, k, v = np.ones((3, 2, 5, 8), np.float32)
        >>> SelfAttentionPos(8, 2)(q, k, v).shape
        (2, 5, 8)

    Source: Vaswani et al. 2017.
    """

    def check_inputs(self, *inputs: Array) -> None:
        """Refuse different lengths."""
        super().check_inputs(*inputs)
        if inputs[0].shape[1] != inputs[1].shape[1]:
            raise ShapeError(f"expected as many keys as queries, got {inputs[1].shape[1]} and {inputs[0].shape[1]}")


class SelfAttentionPosMasked(SelfAttentionPos):
    """`SelfAttentionPos` with a key mask as fourth input.

    Shape:
        q, k, v [B, S, embed_dim], key mask [B, S]: True, or a number above 0.5, attends; y [B, S, embed_dim].

    vjp:
        As `CrossAttention`. Saves q, k, v, the mask, y, two numbers a row and head, and the dropout's key.

    Raises:
        ShapeError: There is no mask, or it is None.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import SelfAttentionPosMasked
        >>> q, k, v = np.ones((3, 2, 5, 8), np.float32)
        >>> SelfAttentionPosMasked(8, 2)(q, k, v, np.ones((2, 5), np.float32)).shape
        (2, 5, 8)

    Source: Vaswani et al. 2017.
    """

    def check_inputs(self, *inputs: Array) -> None:
        """Refuse a missing mask."""
        super().check_inputs(*inputs)
        if len(inputs) != 4:
            raise ShapeError("expected q, k, v and a key mask, got no mask; without one use SelfAttentionPos")
