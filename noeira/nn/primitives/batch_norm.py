"""BatchNorm of features, sequences and images."""

from __future__ import annotations

from typing import Any, ClassVar

from noeira.nn.core.arguments import number, positive, probability
from noeira.nn.core.errors import ShapeError
from noeira.nn.core.module import Module, Width
from noeira.nn.core.param import State
from noeira.nn.primitives.norm import scale_param, shift_param
from noeira.ops.activation import code
from noeira.ops.batch_norm import batch_norm_eval, batch_norm_grad, batch_norm_train
from noeira.ops.dispatch import Array


class BatchNorm(Module):
    """Base of BatchNorm1D and BatchNorm2D: normalise each channel over the batch and all positions.

    y = (x - mean) / sqrt(var + eps) w + b

    While training, mean and biased variance are the batch's, and the running statistics follow them:
    running = (1 - momentum) running + momentum new, with the unbiased variance, as in PyTorch. In evaluation, or
    `frozen`, the running statistics are used and stay as they are. A statistic of the batch that is not finite moves
    no running one: one bad batch gives NaN, and the next is normal again.

    Args:
        num_features: Channels, the size of axis 1.
        eps: Added to the variance.
        momentum: Weight of the new statistics.
        affine: Whether there are w (starts at 1) and b (starts at 0); neither is decayed.
        track_running_stats: Whether there are running statistics; without them evaluation uses the batch's too.
        frozen: Use the running statistics while training as well (fine-tuning with small batches).

    vjp:
        With n = (x - mean) rstd: dw += sum of dy n, db += sum of dy, and dx = w rstd (dy - mean(dy) - n mean(dy n));
        with running statistics dx = w rstd dy. Saves x and three numbers a channel.

    Source: Ioffe and Szegedy 2015.
    """

    ranks: ClassVar[tuple[int, ...]]
    """How many axes an input may have."""
    pattern: ClassVar[str]
    """The same in words."""
    function = "identity"
    """The activation that follows in the same kernel."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        frozen: bool = False,
    ):
        self.num_features = num_features = positive(self, "num_features", num_features)
        self.eps, self.momentum = number(self, "eps", eps, 0), probability(self, "momentum", momentum)
        if frozen and not track_running_stats:
            name = type(self).__name__
            raise ValueError(f"{name}: expected running statistics to freeze, got track_running_stats=False")
        self.frozen = frozen
        self.weight = scale_param(num_features) if affine else None
        self.bias = shift_param(num_features) if affine else None
        self.running_mean = State((num_features,), 0.0) if track_running_stats else None
        self.running_var = State((num_features,), 1.0) if track_running_stats else None

    def expects(self) -> Width:
        """`num_features` on axis 1."""
        return 1, self.num_features

    def gives(self, width: Width | None) -> Width:
        """The input's width."""
        return width or (1, self.num_features)

    def check_inputs(self, *inputs: Array) -> None:
        """Refuse an input of another rank, or another number of channels."""
        if inputs[0].ndim not in self.ranks:
            pattern = self.pattern.format(self.num_features)
            raise ShapeError(f"expected an input of shape {pattern}, got {list(inputs[0].shape)}")
        super().check_inputs(*inputs)

    def extra_repr(self) -> str:
        """Channels, eps, momentum, and options that are not the default."""
        options = "" if self.weight else ", affine=False"
        options += "" if self.running_mean else ", track_running_stats=False"
        options += ", frozen=True" if self.frozen else ""
        return f"{self.num_features}, eps={self.eps:g}, momentum={self.momentum:g}{options}"

    @property
    def _by_batch(self) -> bool:
        return self.running_mean is None or (self.training and not self.frozen)

    def forward(self, x: Array) -> tuple[Array, Any]:
        """X [B, C, ...] -> y; saves x, the statistics, and whether they are the batch's."""
        weight, bias = (None if param is None else param.val for param in (self.weight, self.bias))
        mean, var = (None if state is None else state.val for state in (self.running_mean, self.running_var))
        if not self._by_batch:
            assert mean is not None and var is not None
            y, stats = batch_norm_eval(x, weight, bias, mean, var, self.eps, self.function)
            return y, (x, stats, False)
        if not self.training:
            mean = var = None
        y, stats, new_mean, new_var = batch_norm_train(
            x, weight, bias, mean, var, self.eps, self.momentum, self.function
        )
        if mean is not None:
            assert self.running_mean is not None and self.running_var is not None
            self.running_mean.val, self.running_var.val = new_mean, new_var
        return y, (x, stats, True)

    def vjp(self, saved: Any, grad_output: Array) -> Array:
        """Dy -> dx; adds dw and db."""
        x, stats, by_batch = saved
        dw, db = (None if param is None else param.grd for param in (self.weight, self.bias))
        weight, bias = (None if param is None else param.val for param in (self.weight, self.bias))
        return batch_norm_grad(dw, db, grad_output, x, stats, weight, bias, by_batch, self.function)


class BatchNorm1D(BatchNorm):
    """BatchNorm of features or of sequences; see `BatchNorm`.

    Shape:
        x [B, C] or [B, C, L], y the same; w, b and the running statistics [C].

    vjp:
        As `BatchNorm`. Saves x and three numbers a channel.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import BatchNorm1D
        >>> layer = BatchNorm1D(1)
        >>> layer(np.array([[0.0], [2.0]], np.float32)).round(4).tolist()
        [[-1.0], [1.0]]
        >>> f"{layer.running_var.val[0]:.3f}"
        '1.100'

    Source: Ioffe and Szegedy 2015. PyTorch: `torch.nn.BatchNorm1d`.
    """

    ranks = (2, 3)
    pattern = "[B, {0}] or [B, {0}, L]"


class BatchNorm2D(BatchNorm):
    """BatchNorm of images; see `BatchNorm`.

    Shape:
        x [B, C, H, W], y the same; w, b and the running statistics [C].

    vjp:
        As `BatchNorm`. Saves x and three numbers a channel.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import BatchNorm2D
        >>> BatchNorm2D(3)(np.ones((4, 3, 5, 5), np.float32)).shape
        (4, 3, 5, 5)

    Source: Ioffe and Szegedy 2015. PyTorch: `torch.nn.BatchNorm2d`.
    """

    ranks = (4,)
    pattern = "[B, {0}, H, W]"


class BatchNorm2DAct(BatchNorm2D):
    """BatchNorm of images and an activation in one kernel, forward and backward.

    y = f((x - mean) / sqrt(var + eps) w + b)

    Args:
        num_features: Channels, the size of axis 1.
        activation: Name of f: relu, tanh, sigmoid, silu, mish, gelu (exact) or gelu_tanh.
        options: As for `BatchNorm`.

    Shape:
        x [B, C, H, W], y the same; w, b and the running statistics [C].

    vjp:
        As `BatchNorm` with dz = dy f'(n w + b) in place of dy. Saves x and three numbers a channel: neither z nor y.

    Example:
        >>> import numpy as np
        >>> from noeira.nn import BatchNorm2DAct
        >>> float(BatchNorm2DAct(3)(np.random.rand(2, 3, 4, 4).astype(np.float32)).min())
        0.0

    Source: Ioffe and Szegedy 2015. PyTorch: `torch.nn.BatchNorm2d`, then the activation.
    """

    def __init__(self, num_features: int, activation: str = "relu", **options: Any):
        super().__init__(num_features, **options)
        code(activation)  # refuses an unknown name here, not at the first call
        self.function = activation

    def extra_repr(self) -> str:
        """As `BatchNorm`, and the activation."""
        return f"{super().extra_repr()}, activation={self.function!r}"
