"""Convolution of maps [N, C, H, W] or sequences [N, C, L], its transposed map, and the gradient of its weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from noeira.ops.dispatch import Array, ShapeError, emit, known_size, op, spec
from noeira.runtime.staging import Dim

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Geometry:
    """How a kernel moves over its input, an int for each spatial axis.

    Args:
        stride: Input positions from one output to the next.
        padding: Zeros before the first position; those behind the last follow from the output's size.
        dilation: Input positions from one tap of the kernel to the next.
        groups: Parts that input and output channels are divided into; each sees its own part only.
    """

    stride: Sizes
    padding: Sizes
    dilation: Sizes
    groups: int = 1

    def outputs(self, sizes: Sizes, kernel: Sizes) -> Sizes:
        """Positions of the output where both ends are padded alike: (L + 2 p - d (k - 1) - 1) // s + 1.

        Raises:
            ShapeError: The kernel is longer than the padded input.
        """
        found = []
        for size, k, s, p, d in zip(sizes, kernel, self.stride, self.padding, self.dilation, strict=True):
            if size + 2 * p < d * (k - 1) + 1:
                raise ShapeError(
                    f"expected at least {d * (k - 1) + 1} padded positions for a kernel of {k} with dilation {d}, "
                    f"got {size} + 2 * {p}"
                )
            found.append((size + 2 * p - d * (k - 1) - 1) // s + 1)
        return tuple(found)

    def numbers(self, kernel: Sizes) -> np.ndarray:
        """What the kernels read: stride, padding, dilation, groups, kernel; a sequence is a map of one row."""
        rows = len(kernel) == 1
        pairs = [(1, *self.stride), (0, *self.padding), (1, *self.dilation)] if rows else None
        stride, padding, dilation = pairs or (self.stride, self.padding, self.dilation)
        kernel = (1, *kernel) if rows else kernel
        return np.array([*stride, *padding, *dilation, self.groups, *kernel], np.int64)


def spatial(x: Array) -> Sizes:
    """Sizes behind batch and channels, which must be known.

    Raises:
        ShapeError: One of them is free.
    """
    sizes = tuple(x.shape[2:])
    if any(isinstance(size, str) for size in sizes):
        raise ShapeError(f"expected known spatial sizes (only the batch may be free), got {list(x.shape)}")
    return sizes


def _grouped(x: np.ndarray, groups: int) -> np.ndarray:
    return x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])


def _taps(weight: np.ndarray, g: Geometry, sizes: Sizes) -> Iterator[tuple[np.ndarray, tuple[slice, ...]]]:
    """For each tap: its weights [groups, out, in], and the positions of the padded input it meets (`sizes` outputs)."""
    grouped = weight.reshape(g.groups, weight.shape[0] // g.groups, *weight.shape[1:])
    for tap in np.ndindex(weight.shape[2:]):
        where = [
            slice(t * d, t * d + (n - 1) * s + 1, s) if n else slice(0)
            for t, d, n, s in zip(tap, g.dilation, sizes, g.stride, strict=True)
        ]
        yield grouped[(slice(None), slice(None), slice(None), *tap)], tuple(where)


def _padded_sizes(x: Sizes, kernel: Sizes, g: Geometry, sizes: Sizes) -> Sizes:
    needed = [(n - 1) * s + d * (k - 1) + 1 for n, s, d, k in zip(sizes, g.stride, g.dilation, kernel, strict=True)]
    return tuple(max(size + p, need) for size, p, need in zip(x, g.padding, needed, strict=True))


def _inner(x: Sizes, g: Geometry) -> tuple[slice, ...]:
    return (..., *(slice(p, p + size) for p, size in zip(g.padding, x, strict=True)))  # type: ignore[return-value]


def _pad(x: np.ndarray, kernel: Sizes, g: Geometry, sizes: Sizes) -> np.ndarray:
    padded = np.zeros((*x.shape[:2], *_padded_sizes(x.shape[2:], kernel, g, sizes)), x.dtype)
    padded[_inner(x.shape[2:], g)] = x
    return _grouped(padded, g.groups)


def _flat(x: np.ndarray) -> np.ndarray:
    return x.reshape(*x.shape[:3], int(np.prod(x.shape[3:])))


def _flops(weight: Array, out: Array | Sizes, images: Dim) -> int:
    return 2 * known_size(tuple(weight.shape)) * known_size((images, *out))


@op
def _conv(x: Array, weight: Array, bias: Array | None, g: Geometry, sizes: Sizes) -> Array:
    padded = _pad(x, weight.shape[2:], g, sizes)
    outs = weight.shape[0]
    y = np.zeros((x.shape[0], g.groups, outs // g.groups, int(np.prod(sizes))), x.dtype)
    for w, where in _taps(weight, g, sizes):
        y += w @ _flat(padded[(..., *where)])
    if bias is not None:
        y += bias.reshape(g.groups, -1, 1)
    return y.reshape(x.shape[0], outs, *sizes)


@_conv.staged
def _(x: Array, weight: Array, bias: Array | None, g: Geometry, sizes: Sizes) -> Array:
    out = spec((x.shape[0], weight.shape[0], *sizes), x)
    operands = [x, weight, _bias(bias, x), g.numbers(tuple(weight.shape[2:]))]
    return emit("noeira.conv", operands, [out], flops=_flops(weight, sizes, x.shape[0]))[0]


def _bias(bias: Array | None, like: Array) -> Array:
    return np.zeros(0, like.dtype) if bias is None else bias


def conv(
    x: Array, weight: Array, bias: Array | None = None, *, geometry: Geometry, sizes: Sizes | None = None
) -> Array:
    """Cross-correlation y[n, m, i] = b[m] + sum over c, k of w[m, c, k] x[n, c, i stride - padding + k dilation].

    Positions outside x count as 0; with groups, c runs over the channels of m's group.

    Args:
        x: [N, C, H, W] or [N, C, L]; N may be free.
        weight: [M, C / groups, R, S] or [M, C / groups, R].
        bias: [M], or None.
        geometry: Stride, padding, dilation, groups.
        sizes: Spatial sizes of y where both ends are not padded alike.

    Raises:
        ShapeError: Channels do not fit, or the kernel is longer than the padded input.
    """
    if tuple(weight.shape[1:2]) != (x.shape[1] // geometry.groups,) or x.shape[1] % geometry.groups:
        raise ShapeError(
            f"expected {weight.shape[1] * geometry.groups} channels in {geometry.groups} groups, got {x.shape[1]}"
        )
    if sizes is None:
        sizes = geometry.outputs(spatial(x), tuple(weight.shape[2:]))
    return _conv(x, weight, bias, geometry, sizes)


@op
def conv_input_grad(grad: Array, weight: Array, bias: Array | None, geometry: Geometry, sizes: Sizes) -> Array:
    """The transposed map: dx[n, c, h] = sum of w[m, c, k] dy[n, m, i] where i stride - padding + k dilation = h.

    It is the input gradient of `conv`, and with a bias [C] the forward of a transposed convolution.

    Args:
        grad: dy [N, M, ...].
        weight: [M, C / groups, ...].
        bias: [C], or None.
        geometry: That of the convolution from dx to dy.
        sizes: Spatial sizes of dx.
    """
    g, outs = geometry, tuple(grad.shape[2:])
    ins = weight.shape[1] * g.groups
    padded = np.zeros((grad.shape[0], ins, *_padded_sizes(sizes, weight.shape[2:], g, outs)), grad.dtype)
    grouped = _grouped(padded, g.groups)
    dy = _flat(_grouped(grad, g.groups))
    for w, where in _taps(weight, g, outs):
        grouped[(..., *where)] += (w.transpose(0, 2, 1) @ dy).reshape(*grouped.shape[:3], *outs)
    dx = np.ascontiguousarray(padded[_inner(sizes, g)])
    return dx if bias is None else dx + bias.reshape(-1, *[1] * len(sizes))


@conv_input_grad.staged
def _(grad: Array, weight: Array, bias: Array | None, geometry: Geometry, sizes: Sizes) -> Array:
    out = spec((grad.shape[0], weight.shape[1] * geometry.groups, *sizes), grad)
    operands = [grad, weight, _bias(bias, grad), geometry.numbers(tuple(weight.shape[2:]))]
    flops = _flops(weight, tuple(grad.shape[2:]), grad.shape[0])
    return emit("noeira.conv_input_grad", operands, [out], flops=flops)[0]


def conv_param_grad(
    weight_grad: Array | None, bias_grad: Array | None, x: Array, grad: Array, geometry: Geometry
) -> None:
    """Add the parameters' gradients in place.

    dw[m, c, k] += sum over n, i of dy[n, m, i] x[n, c, i stride - padding + k dilation], db[m] += sum of dy[n, m].
    A target that is None (a frozen parameter, a missing bias) is not computed.
    """
    if weight_grad is not None and bias_grad is not None:
        _param_grad(weight_grad, bias_grad, x, grad, geometry)
    elif weight_grad is not None:
        _weight_grad(weight_grad, x, grad, geometry)
    elif bias_grad is not None:
        add_channel_sums(bias_grad, grad)


@op
def _param_grad(weight_grad: Array, bias_grad: Array, x: Array, grad: Array, g: Geometry) -> None:
    _weight_grad(weight_grad, x, grad, g)
    add_channel_sums(bias_grad, grad)


@_param_grad.staged
def _(weight_grad: Array, bias_grad: Array, x: Array, grad: Array, g: Geometry) -> None:
    operands = [weight_grad, bias_grad, x, grad, g.numbers(tuple(weight_grad.shape[2:]))]
    emit("noeira.conv_param_grad", operands, [], flops=_flops(weight_grad, tuple(grad.shape[2:]), grad.shape[0]))


@op
def _weight_grad(weight_grad: Array, x: Array, grad: Array, g: Geometry) -> None:
    sizes = tuple(grad.shape[2:])
    padded = _pad(x, weight_grad.shape[2:], g, sizes)
    dy = _flat(_grouped(grad, g.groups))
    for w, where in _taps(weight_grad, g, sizes):
        w += np.sum(dy @ _flat(padded[(..., *where)]).swapaxes(-1, -2), axis=0)


@_weight_grad.staged
def _(weight_grad: Array, x: Array, grad: Array, g: Geometry) -> None:
    operands = [weight_grad, x, grad, g.numbers(tuple(weight_grad.shape[2:]))]
    emit("noeira.conv_weight_grad", operands, [], flops=_flops(weight_grad, tuple(grad.shape[2:]), grad.shape[0]))


@op
def add_channel_sums(memory: Array, x: Array) -> None:
    """Add the sum of x [N, C, ...] over all axes but the second to `memory` [C], in place."""
    memory += np.sum(x, axis=(0, *range(2, x.ndim)), dtype=np.float64).astype(x.dtype)


@add_channel_sums.staged
def _(memory: Array, x: Array) -> None:
    emit("noeira.add_channel_sums", [memory, x], [], flops=known_size(x.shape))
