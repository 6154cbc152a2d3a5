"""Optimizer steps over flat arenas: gradient norm, then clip, update and clear in one pass."""

from __future__ import annotations

import math

import numpy as np

from noeira.ops import control as c
from noeira.ops.dispatch import Array, emit, op
from noeira.runtime.staging import Spec


@op
def gradient_norm(grad: Array) -> tuple[Array, Array]:
    """L2 norm of a gradient arena in float64, and the position of its first non-finite element (-1: none).

    In float64 the squares of 1e20 are far from overflow.
    """
    wide = grad.astype(np.float64)
    finite = np.isfinite(wide)
    with np.errstate(invalid="ignore", over="ignore"):
        norm = math.sqrt(np.dot(wide, wide)) if finite.all() else math.inf
    return np.array([norm]), np.array([-1 if finite.all() else int(np.argmin(finite))])


@gradient_norm.staged
def _(grad: Array) -> tuple[Array, Array]:
    return emit("noeira.gradient_norm", [grad], [Spec((1,), "float64"), Spec((1,), "int64")])  # type: ignore[return-value]


def _begin(
    counters: np.ndarray, accumulated: np.ndarray, record: np.ndarray, norm: np.ndarray, bad: np.ndarray,
    hyper: np.ndarray, lr_table: np.ndarray,
) -> tuple[bool, float, float]:  # fmt: skip
    """Skip or apply, learning rate and gradient scale; move the counters and write the record's row."""
    applied, weight = int(counters[c.APPLIED]), float(accumulated[0])
    mean = 1 / weight if weight > 0 else 0.0
    lr = float(lr_table[max(0, min(applied - int(counters[c.LR_BASE]), len(lr_table) - 1))])
    limit = float(hyper[c.CLIP_NORM])
    finite = bool(bad[0] < 0 and math.isfinite(norm[0]))
    scale = mean * min(1.0, limit / (float(norm[0]) * mean + 1e-6)) if limit > 0 else mean  # PyTorch's 1e-6
    if finite:
        counters[c.APPLIED] = applied + 1
    else:
        counters[c.SKIPPED] += 1
        if counters[c.BAD_INDEX] < 0:
            counters[c.BAD_INDEX] = bad[0]
    accumulated[0] = 0
    with np.errstate(over="ignore"):  # a norm above float32's range is recorded as inf
        record[(int(counters[c.CURSOR]) - 1) % len(record), [c.LOG_NORM, c.LOG_LR, c.LOG_SKIPPED]] = (
            norm[0] * mean,
            lr,
            not finite,
        )
    return finite, lr, scale


def _gradient(grd: np.ndarray, val: np.ndarray, scale: float, hyper: np.ndarray, coupled: float) -> np.ndarray:
    grad = grd * grd.dtype.type(scale)
    if hyper[c.CLIP_VALUE] > 0:
        grad = np.clip(grad, -hyper[c.CLIP_VALUE], hyper[c.CLIP_VALUE]).astype(grd.dtype)
    return grad + val * val.dtype.type(coupled)


@op
def adam(
    val: Array, grd: Array, m: Array, v: Array, counters: Array, accumulated: Array, record: Array,
    norm: Array, bad: Array, segments: Array, multipliers: Array, hyper: Array, lr_table: Array,
) -> None:  # fmt: skip
    """One Adam step in place; with DECOUPLED set, AdamW.

    g <- clip(sum of gradients / weight); m <- b1 m + (1-b1) g; v <- b2 v + (1-b2) g^2;
    p <- p (1 - lr wd) - lr/(1-b1^t) m / (sqrt(v)/sqrt(1-b2^t) + eps). eps stands outside the root, as in PyTorch.
    Without DECOUPLED the decay is added to the gradient: g + wd p.

    Args:
        val: Parameter arena [n]; grd, m, v: gradients and moments of the same layout.
        grd: Sums of gradients; zeroed in the same pass where CLEAR is set.
        m: First moments.
        v: Second moments.
        counters: int64 control memory (`control`).
        accumulated: float32 [1]: the weight the gradients are sums over; reset to 0.
        record: float32 [batches, 5].
        norm: float64 [1]: norm of `grd`; a non-finite one skips the step.
        bad: int64 [1]: position of the first non-finite element, or -1.
        segments: int64 [s, 2]: (start, length) of the runs to update; frozen parameters are in none.
        multipliers: float64 [s, 2]: (lr, decay) factors of each run.
        hyper: float64 (`control`).
        lr_table: float64 [steps]: learning rate by applied step.
    """
    finite, base_lr, scale = _begin(counters, accumulated, record, norm, bad, hyper, lr_table)
    if finite:
        t, b1, b2 = int(counters[c.APPLIED]), float(hyper[c.BETA1]), float(hyper[c.BETA2])
        decoupled = bool(hyper[c.DECOUPLED])
        for (start, length), (lr_factor, decay_factor) in zip(segments, multipliers, strict=True):
            s = slice(int(start), int(start + length))
            lr, decay = base_lr * lr_factor, hyper[c.WEIGHT_DECAY] * decay_factor
            real = val.dtype.type
            grad = _gradient(grd[s], val[s], scale, hyper, 0 if decoupled else decay)
            m[s] = m[s] * real(b1) + grad * real(1 - b1)
            v[s] = v[s] * real(b2) + grad * grad * real(1 - b2)
            denominator = np.sqrt(v[s]) / real(math.sqrt(1 - b2**t)) + real(hyper[c.EPS])
            shrink = real(1 - lr * decay) if decoupled else real(1)
            val[s] = val[s] * shrink - real(lr / (1 - b1**t)) * m[s] / denominator
    if hyper[c.CLEAR]:
        grd[:] = 0


@adam.staged
def _(
    val: Array, grd: Array, m: Array, v: Array, counters: Array, accumulated: Array, record: Array,
    norm: Array, bad: Array, segments: Array, multipliers: Array, hyper: Array, lr_table: Array,
) -> None:  # fmt: skip
    operands = [
        val,
        grd,
        m,
        v,
        counters,
        accumulated,
        record,
        norm,
        bad,
        segments,
        multipliers,
        hyper,
        lr_table,
    ]
    emit("noeira.adam", operands, [])


@op
def sgd(
    val: Array, grd: Array, m: Array, counters: Array, accumulated: Array, record: Array,
    norm: Array, bad: Array, segments: Array, multipliers: Array, hyper: Array, lr_table: Array,
) -> None:  # fmt: skip
    """One SGD step in place, PyTorch's form: g + wd p; m <- mu m + (1-d) g (the first m is g); p <- p - lr m.

    With NESTEROV the step is g + mu m. Momentum mu stands at BETA1 of `hyper`; the arguments are those of `adam`,
    with `m` the velocity.
    """
    finite, base_lr, scale = _begin(counters, accumulated, record, norm, bad, hyper, lr_table)
    if finite:
        real = val.dtype.type
        momentum = real(hyper[c.BETA1])
        take = real(1 if counters[c.APPLIED] == 1 else 1 - hyper[c.DAMPENING])
        for (start, length), (lr_factor, decay_factor) in zip(segments, multipliers, strict=True):
            s = slice(int(start), int(start + length))
            grad = _gradient(grd[s], val[s], scale, hyper, hyper[c.WEIGHT_DECAY] * decay_factor)
            if momentum:
                m[s] = m[s] * momentum + grad * take
                grad = grad + momentum * m[s] if hyper[c.NESTEROV] else m[s]
            val[s] -= real(base_lr * lr_factor) * grad
    if hyper[c.CLEAR]:
        grd[:] = 0


@sgd.staged
def _(
    val: Array, grd: Array, m: Array, counters: Array, accumulated: Array, record: Array,
    norm: Array, bad: Array, segments: Array, multipliers: Array, hyper: Array, lr_table: Array,
) -> None:  # fmt: skip
    operands = [val, grd, m, counters, accumulated, record, norm, bad, segments, multipliers, hyper, lr_table]
    emit("noeira.sgd", operands, [])
