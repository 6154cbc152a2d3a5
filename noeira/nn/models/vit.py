"""ViT: an image as a sequence of patches, seen by a transformer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

from noeira.nn.combinators import Repeat, Sequential
from noeira.nn.core.arguments import positives, sizes
from noeira.nn.core.errors import ShapeError
from noeira.nn.core.initializer import Initializer, Normal
from noeira.nn.core.module import Module, Width
from noeira.nn.models.transformer import TransformerBlock
from noeira.nn.primitives import (
    Conv2D,
    Dropout,
    Flatten,
    LayerNorm,
    LearnedTokens,
    Linear,
    PositionEmbedding,
    Slice,
    TokenMean,
    Transpose2D,
)
from noeira.ops.dispatch import Array
from noeira.ops.shape import reshape


class PatchEmbed(Module):
    """An image cut into patches, each mapped to a token: a convolution whose stride is its kernel's size.

    y[b, i] = W patch_i(x[b]) + bias, the patches row by row

    Args:
        in_channels: Channels of the image.
        embed_dim: Width of a token.
        patch_size: Rows and columns of a patch; divides those of the image.
        init: Initializer of W; the model's by default.

    Shape:
        x [B, in_channels, H, W], y [B, (H / patch_size) (W / patch_size), embed_dim].

    vjp:
        Those of the convolution and of the transposition. Saves the patches' source x and the map's shape.

    Raises:
        ShapeError: The image cannot be cut into whole patches.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import PatchEmbed
        >>> PatchEmbed(3, 8, 4)(np.ones((2, 3, 16, 8), np.float32)).shape
        (2, 8, 8)

    Source: Dosovitskiy et al. 2020.
    """

    def __init__(self, in_channels: int, embed_dim: int, patch_size: int, *, init: Initializer | None = None):
        self.patch_size, embed_dim = positives(self, patch_size=patch_size, embed_dim=embed_dim)
        self.conv = Conv2D(in_channels, embed_dim, patch_size, stride=patch_size, init=init)
        self.transpose = Transpose2D()

    def expects(self) -> Width | None:
        """`in_channels` on axis 1."""
        return self.conv.expects()

    def gives(self, width: Width | None) -> Width | None:
        """`embed_dim` on the last axis."""
        return -1, self.conv.out_channels

    def check_inputs(self, *inputs: Array) -> None:
        """Refuse images that leave a part of a patch."""
        shape, size = tuple(inputs[0].shape), self.patch_size
        if len(shape) == 4 and (shape[2] % size or shape[3] % size or 0 in shape[2:]):
            raise ShapeError(f"expected an image of whole patches of {size} x {size}, got {shape[2]} x {shape[3]}")

    def forward(self, x: Array) -> tuple[Array, Any]:
        """X [B, C, H, W] -> tokens [B, N, D]; saves what the convolution saves, and its output's shape."""
        h, saved = self.conv.forward(x)
        batch, width, rows, columns = h.shape
        y, _ = self.transpose.forward(reshape(h, (batch, width, rows * columns)))
        return y, (saved, (rows, columns))

    def vjp(self, saved: Any, grad_output: Array) -> Array:
        """Dy -> dx."""
        kept, (rows, columns) = saved
        grad = self.transpose.vjp(None, grad_output)
        return self.conv.vjp(kept, reshape(grad, (*grad.shape[:2], rows, columns)))


@dataclass(frozen=True)
class ViTConfig:
    """Sizes and options of a `ViT`.

    Args:
        image_size: Rows and columns of an image.
        patch_size: Rows and columns of a patch.
        num_classes: Number of classes.
        embed_dim: Width of a token.
        num_layers: Number of blocks.
        num_heads: Heads of each block.
        in_channels: Channels of an image.
        ff_mult: Width of the feed-forward nets in multiples of embed_dim.
        class_token: Classify a learned token that stands first, rather than the mean of all tokens.
        dropout: Of the tokens and of every branch.
        eps: Of the norms.
        approximate: "tanh" or "none", the exact one: which GELU.
    """

    image_size: tuple[int, int]
    patch_size: int
    num_classes: int
    embed_dim: int
    num_layers: int
    num_heads: int
    in_channels: int = 3
    ff_mult: int = 4
    class_token: bool = False
    dropout: float = 0.0
    eps: float = 1e-5
    approximate: str = "tanh"

    @staticmethod
    def b16(**changes: Any) -> ViTConfig:
        """ViT-B/16 for 224 x 224 images and 1000 classes: 86,567,656 parameters."""
        return ViTConfig(
            **{
                "image_size": (224, 224), "patch_size": 16, "num_classes": 1000, "embed_dim": 768, "num_layers": 12,
                "num_heads": 12, "class_token": True, "eps": 1e-6, "approximate": "none", **changes,
            }
        )  # fmt: skip

    @staticmethod
    def cifar10(**changes: Any) -> ViTConfig:
        """6 blocks of width 192 on 64 patches of 4 x 4 pixels."""
        return ViTConfig(
            **{
                "image_size": (32, 32), "patch_size": 4, "num_classes": 10, "embed_dim": 192, "num_layers": 6,
                "num_heads": 6, **changes,
            }
        )  # fmt: skip

    @staticmethod
    def quick(**changes: Any) -> ViTConfig:
        """3 blocks of width 64: a size for CPUs."""
        return ViTConfig.cifar10(
            **{"embed_dim": 64, "num_layers": 3, "num_heads": 4, "ff_mult": 2, "patch_size": 8, **changes}
        )


class ViT(Module):
    """Vision transformer: patches, positions, pre-norm blocks, a final norm, a head.

    logits = head(pool(norm(block_n(... block_1(dropout(tokens(x) + P))))))

    The tokens are the patches', behind a learned class token where there is one; `pool` takes that token, or the mean.

    Args:
        image_size: Rows and columns of an image; see `ViTConfig` for all options.
        patch_size: Rows and columns of a patch.
        num_classes: Number of classes.
        embed_dim: Width of a token.
        num_layers: Number of blocks.
        num_heads: Heads of each block.
        options: The others of `ViTConfig`.

    Shape:
        x [B, in_channels, H, W], logits [B, num_classes].

    vjp:
        Those of the parts in reverse order. Saves what the parts save.

    Raises:
        ShapeError: The image cannot be cut into whole patches.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import ViT
        >>> ViT(8, 4, 10, embed_dim=16, num_layers=2, num_heads=2)(np.ones((3, 3, 8, 8), np.float32)).shape
        (3, 10)

    Source: Dosovitskiy et al. 2020. torchvision: `vit_b_16`.
    """

    def __init__(
        self,
        image_size: int | tuple[int, int],
        patch_size: int,
        num_classes: int,
        embed_dim: int,
        num_layers: int,
        num_heads: int,
        **options: Any,
    ):
        height, width = sizes(self, "image_size", image_size, 2)
        patch_size, num_classes, embed_dim, num_layers = positives(
            self, patch_size=patch_size, num_classes=num_classes, embed_dim=embed_dim, num_layers=num_layers
        )
        self.config = config = ViTConfig(
            (height, width), patch_size, num_classes, embed_dim, num_layers, num_heads, **options
        )
        positives(self, in_channels=config.in_channels, ff_mult=config.ff_mult)
        if height % patch_size or width % patch_size:
            raise ShapeError(
                f"ViT: expected an image of whole patches of {patch_size} x {patch_size}, got {height} x {width}"
            )
        self.patches = PatchEmbed(config.in_channels, embed_dim, patch_size)
        self.class_token = LearnedTokens(1, embed_dim) if config.class_token else None
        tokens = (height // patch_size) * (width // patch_size) + config.class_token
        self.positions = PositionEmbedding(tokens, embed_dim, init=Normal(0.0, 0.02))
        self.drop = Dropout(config.dropout)
        self.blocks = Repeat(
            num_layers,
            lambda: TransformerBlock(
                embed_dim,
                num_heads,
                config.ff_mult,
                dropout=config.dropout,
                eps=config.eps,
                approximate=config.approximate,
            ),
        )
        self.norm = LayerNorm(embed_dim, config.eps)
        self.pool: Module = Sequential(Slice(0, 1, axis=1), Flatten()) if config.class_token else TokenMean()
        self.head = Linear(embed_dim, num_classes)

    @classmethod
    def from_config(cls, config: ViTConfig) -> Self:
        """The model of a configuration."""
        return cls(**asdict(config))

    def expects(self) -> Width | None:
        """`in_channels` on axis 1."""
        return self.patches.expects()

    def gives(self, width: Width | None) -> Width | None:
        """`num_classes` on the last axis."""
        return -1, self.config.num_classes

    def extra_repr(self) -> str:
        """The sizes."""
        c = self.config
        return f"{c.image_size}, {c.patch_size}, {c.num_classes}, embed_dim={c.embed_dim}, num_layers={c.num_layers}"

    def check_inputs(self, *inputs: Array) -> None:
        """Refuse images of another size, whose patches have no positions."""
        shape, size = tuple(inputs[0].shape), self.config.image_size
        if len(shape) != 4 or shape[2:] != size:
            raise ShapeError(f"expected images [B, {self.config.in_channels}, {size[0]}, {size[1]}], got {list(shape)}")
        super().check_inputs(*inputs)

    def forward(self, x: Array) -> tuple[Array, Any]:
        """Images [B, C, H, W] -> logits [B, num_classes]; saves what the parts save."""
        saved = []
        for module in self._chain():
            x, kept = module.forward(x)
            saved.append(kept)
        return x, tuple(saved)

    def vjp(self, saved: Any, grad_output: Array) -> Array:
        """Dlogits -> dx."""
        for module, kept in zip(reversed(self._chain()), reversed(saved), strict=True):
            grad_output = module.vjp(kept, grad_output)
        return grad_output

    def _chain(self) -> tuple[Module, ...]:
        first = (self.patches,) if self.class_token is None else (self.patches, self.class_token)
        return *first, self.positions, self.drop, self.blocks, self.norm, self.pool, self.head
