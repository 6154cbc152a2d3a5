"""Layers on tokens in space and time, as world models have them: [B, T, S, D], T frames of S tokens."""

from __future__ import annotations

from typing import Any

from noeira.nn.core.arguments import natural, positive
from noeira.nn.core.errors import ShapeError
from noeira.nn.core.module import Module, Width
from noeira.nn.primitives.attention import MaskedAttention, build_modality_mask
from noeira.ops.dispatch import Array, size
from noeira.ops.rope import swap_axes
from noeira.ops.shape import reshape


class SpaceTimeTranspose(Module):
    """Frames of tokens to histories of tokens, and back.

    y[b, s, t] = x[b, t, s]

    Shape:
        x [B, T, S, D], y [B, S, T, D].

    vjp:
        dx[b, t, s] = dy[b, s, t]. Saves nothing.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import SpaceTimeTranspose
        >>> SpaceTimeTranspose()(np.zeros((2, 3, 5, 4), np.float32)).shape
        (2, 5, 3, 4)

    Source: Bertasius, Wang, Torresani 2021 (attention divided into space and time).
    """

    def gives(self, width: Width | None) -> Width | None:
        """The input's width where it is on the last axis."""
        return width if width is not None and width[0] == -1 else None

    def check_inputs(self, *inputs: Array) -> None:
        """Refuse other ranks."""
        super().check_inputs(*inputs)
        if len(inputs[0].shape) != 4:
            raise ShapeError(f"expected an input of shape [B, T, S, D], got {list(inputs[0].shape)}")

    def forward(self, x: Array) -> tuple[Array, None]:
        """[B, T, S, D] -> [B, S, T, D]; saves nothing."""
        return swap_axes(x), None

    def vjp(self, saved: None, grad_output: Array) -> Array:
        """[B, S, T, D] -> [B, T, S, D]."""
        return swap_axes(grad_output)


class _SpaceAttention(MaskedAttention):
    """Masked attention among the tokens of each frame, whether there is an axis of frames or not."""

    def _frames(self, x: Array) -> Array:
        return reshape(x, (size(tuple(x.shape[:2])), *x.shape[2:])) if len(x.shape) == 4 else x

    def check_inputs(self, *inputs: Array) -> None:
        """Refuse another number of tokens, and other ranks."""
        Module.check_inputs(self, *inputs)
        assert self.mask is not None
        shape = tuple(inputs[0].shape)
        tokens, width = len(self.mask), 3 * self.embed_dim
        if len(shape) not in (3, 4) or shape[-2:] != (tokens, width):
            raise ShapeError(
                f"expected an input of shape [B, {tokens}, {width}] or [B, T, {tokens}, {width}], got {list(shape)}"
            )

    def forward(self, x: Array) -> tuple[Array, Any]:
        """Packed q, k, v -> y; saves what `MaskedAttention` saves, frames and batch merged."""
        y, saved = super().forward(self._frames(x))
        return reshape(y, (*x.shape[:-1], self.embed_dim)), saved

    def vjp(self, saved: Any, grad_output: Array) -> Array:
        """Dy -> the gradient of the packed input."""
        grad = super().vjp(saved, self._frames(grad_output))
        return reshape(grad, (*grad_output.shape[:-1], 3 * self.embed_dim))


class ModalitySpaceAttention(_SpaceAttention):
    """Attention among the tokens of one frame of a video tokenizer: first the latents, then the patches of the image.

    y = softmax(scale q k^T + mask) v, frame by frame

    Args:
        embed_dim: Width of q, of k and of v: all heads together.
        num_heads: Number of heads.
        num_tokens: S, tokens of a frame.
        num_latents: How many of them, at the front, are latents.
        mode: The mask: "encoder" (latents see everything, patches each other) or "decoder" (latents see each other,
            patches everything); or another kind of `build_modality_mask`, with the latents as agents.
        dropout_p: Probability of dropping a probability while training.
        scale: Factor of the scores; 1 / sqrt(embed_dim / num_heads) by default.

    Shape:
        x [B, S, 3 embed_dim] or [B, T, S, 3 embed_dim], a token's q, k and v side by side; y [..., S, embed_dim].

    vjp:
        As `MaskedAttention`. Saves the same.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import ModalitySpaceAttention
        >>> ModalitySpaceAttention(8, 2, 5, 2, "encoder")(np.ones((2, 3, 5, 24), np.float32)).shape
        (2, 3, 5, 8)

    Source: Hafner, Yan, Lillicrap 2025 (Dreamer 4).
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_tokens: int,
        num_latents: int,
        mode: str,
        *,
        dropout_p: float = 0.0,
        scale: float | None = None,
    ):
        num_tokens, num_latents = positive(self, "num_tokens", num_tokens), natural(self, "num_latents", num_latents)
        if num_latents > num_tokens:
            raise ValueError(
                f"ModalitySpaceAttention: expected num_latents between 0 and {num_tokens}, got {num_latents!r}"
            )
        modality = [0] * num_latents + [1] * (num_tokens - num_latents)
        super().__init__(embed_dim, num_heads, build_modality_mask(mode, modality), dropout_p=dropout_p, scale=scale)
        self.num_latents, self.mode = num_latents, mode

    def extra_repr(self) -> str:
        """Sizes and mode."""
        assert self.mask is not None
        return f"{self.embed_dim}, {self.num_heads}, {len(self.mask)}, {self.num_latents}, {self.mode!r}"


class DynamicsSpaceAttention(_SpaceAttention):
    """Attention among the tokens of one frame of a world model.

    y = softmax(scale q k^T + mask) v, frame by frame

    A frame has an action token, a signal token, a step token, then spatial, register and agent tokens.

    Args:
        embed_dim: Width of q, of k and of v: all heads together.
        num_heads: Number of heads.
        num_spatial: Spatial tokens.
        num_register: Register tokens.
        num_agent: Agent tokens; without any, every mode lets everything see everything.
        mode: The mask: "wm_agent_isolated" (agents and world do not see each other), "wm_agent_bc" (agents see the
            world, which does not see them) or "wm_agent" (no mask).
        dropout_p: Probability of dropping a probability while training.
        scale: Factor of the scores; 1 / sqrt(embed_dim / num_heads) by default.

    Shape:
        x [B, S, 3 embed_dim] or [B, T, S, 3 embed_dim], S = 3 + num_spatial + num_register + num_agent, a token's q, k
        and v side by side; y [..., S, embed_dim].

    vjp:
        As `MaskedAttention`. Saves the same.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import DynamicsSpaceAttention
        >>> DynamicsSpaceAttention(8, 2, 4, 2, 1, "wm_agent_bc")(np.ones((2, 10, 24), np.float32)).shape
        (2, 10, 8)

    Source: Hafner, Yan, Lillicrap 2025 (Dreamer 4).
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_spatial: int,
        num_register: int,
        num_agent: int,
        mode: str,
        *,
        dropout_p: float = 0.0,
        scale: float | None = None,
    ):
        if mode not in ("wm_agent", "wm_agent_isolated", "wm_agent_bc"):
            raise ValueError(
                f"DynamicsSpaceAttention: expected a mode out of wm_agent, wm_agent_isolated, wm_agent_bc, got {mode!r}"
            )
        counts = {"num_spatial": num_spatial, "num_register": num_register, "num_agent": num_agent}
        segments = (1, 1, 1, *(natural(self, name, count) for name, count in counts.items()))
        modality = [kind for kind, count in enumerate(segments) for _ in range(count)]
        mask = build_modality_mask(mode, modality, special=len(segments) - 1)
        super().__init__(embed_dim, num_heads, mask, dropout_p=dropout_p, scale=scale)
        self.segments, self.mode = segments[3:], mode

    def extra_repr(self) -> str:
        """Sizes and mode."""
        return f"{self.embed_dim}, {self.num_heads}, {', '.join(map(str, self.segments))}, {self.mode!r}"
