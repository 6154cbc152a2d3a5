"""Softmax cross-entropy over the last axis, fused: probabilities are never stored.

Forward keeps a row's maximum and log-sum-exp; backward recomputes softmax from them. Row statistics are shifted by the
row's maximum; the sum over rows runs in float64 in row order, so the result does not depend on threads.
"""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext
from std.math import ceildiv, log
from std.sys import simd_width_of

from .activation import exp
from .memory import Ptr, at, load, ptr, store
from .target import cpu_only
from .threads import parallel_for, worthwhile_parts

comptime FLOPS_PER_LOGIT = 40
"""What one exponential costs, in multiply-adds of a matrix product."""


@always_inline
def row_statistics[dtype: DType](z: Ptr[dtype], classes: Int, statistics: Ptr[dtype]):
    """The row's maximum h and log sum_c exp(z_c - h), kept apart: their sum would round the second away.

    A row of -inf has h = 0 and a log-sum of -inf.
    """
    comptime assert dtype.is_floating_point(), "logits are floating point"
    comptime W = simd_width_of[dtype]()
    var highest = SIMD[dtype, W](at(z, 0))
    var c = 0
    while c + W <= classes:
        highest = max(highest, load[W](z, c))
        c += W
    var high = highest.reduce_max()
    while c < classes:
        high = max(high, at(z, c))
        c += 1
    if high == Scalar[dtype].MIN:
        store[1](statistics, 0, Scalar[dtype](0))
        store[1](statistics, 1, high)
        return
    var total = SIMD[dtype, W](0)
    c = 0
    while c + W <= classes:
        total += exp(load[W](z, c) - high)
        c += W
    var sum = total.reduce_add()
    while c < classes:
        sum += exp(at(z, c) - high)
        c += 1
    store[1](statistics, 0, high)
    store[1](statistics, 1, log(sum))


@always_inline
def gap[dtype: DType](z: Scalar[dtype], statistics: Ptr[dtype]) -> Scalar[dtype]:
    """-log softmax(z)_c = log sum_k exp(z_k) - z_c."""
    return at(statistics, 1) - (z - at(statistics, 0))


@no_inline
def softmax_row[
    dtype: DType
](output: Ptr[dtype], z: Ptr[dtype], statistics: Ptr[dtype], classes: Int, factor: Scalar[dtype]):
    """Set output_c = factor softmax(z)_c; 0 throughout a row of -inf."""
    comptime assert dtype.is_floating_point(), "logits are floating point"
    comptime W = simd_width_of[dtype]()
    var high = at(statistics, 0)
    var log_sum = Scalar[dtype](0) if at(statistics, 1) == Scalar[dtype].MIN else at(statistics, 1)
    var c = 0
    while c + W <= classes:
        store[W](output, c, exp((load[W](z, c) - high) - log_sum) * factor)
        c += W
    while c < classes:
        store[1](output, c, exp((at(z, c) - high) - log_sum) * factor)
        c += 1


@always_inline
def fill_or_scale[dtype: DType](output: Ptr[dtype], classes: Int, clear: Bool, factor: Scalar[dtype]):
    """Zero a row, or multiply it by `factor`."""
    comptime W = simd_width_of[dtype]()
    var c = 0
    while c + W <= classes:
        store[W](output, c, SIMD[dtype, W](0) if clear else load[W](output, c) * factor)
        c += W
    while c < classes:
        store[1](output, c, Scalar[dtype](0) if clear else at(output, c) * factor)
        c += 1


@always_inline
def over_rows[Body: def(Int) -> None](body: Body, rows: Int, classes: Int):
    """Run body(r) for every row, on several threads where the work pays for them."""
    var parts = min(worthwhile_parts(rows * classes * FLOPS_PER_LOGIT), max(rows, 1))
    var step = ceildiv(rows, parts)

    def part(p: Int) {imm}:
        for r in range(p * step, min((p + 1) * step, rows)):
            body(r)

    parallel_for(part, parts)


@always_inline
def class_share[dtype: DType](weights: Ptr[dtype], weighted: Bool, c: Int, classes: Int) -> Scalar[dtype]:
    """Weight of class `c`; 1 without weights, and for what is not a class."""
    return at(weights, c) if weighted and c >= 0 and c < classes else Scalar[dtype](1)


def forward_row[
    dtype: DType
](
    z: Ptr[dtype],
    statistics: Ptr[dtype],
    classes: Int,
    label: Int,
    weights: Ptr[dtype],
    weighted: Bool,
    smoothing: Scalar[dtype],
) -> Scalar[dtype]:
    """Loss of one row: (1-s) w_y gap_y + s/C sum_c w_c gap_c."""
    if label < 0 or label >= classes:
        return Scalar[dtype].MAX * 2 - Scalar[dtype].MAX * 2  # not a label: NaN, never a read outside the row
    var w = class_share(weights, weighted, label, classes)
    var loss = (1 - smoothing) * w * gap(at(z, label), statistics)
    if smoothing != 0:
        var spread = Scalar[dtype](0)
        for c in range(classes):
            spread += class_share(weights, weighted, c, classes) * gap(at(z, c), statistics)
        loss += smoothing / Scalar[dtype](classes) * spread
    return loss


@extensibility.register("noeira.cross_entropy")
struct CrossEntropy:
    """Mean loss, its total weight, and the rows' log-sum-exp; integer targets."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        loss: OutputTensor[...],
        weight: OutputTensor[dtype=loss.dtype, ...],
        statistics: OutputTensor[dtype=loss.dtype, rank=2, ...],
        logits: InputTensor[dtype=loss.dtype, rank=2, ...],
        targets: InputTensor[dtype=DType.int32, rank=1, ...],
        class_weight: InputTensor[dtype=loss.dtype, rank=1, ...],
        ignore_index: InputTensor[dtype=DType.int32, rank=1, ...],
        smoothing: InputTensor[dtype=loss.dtype, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime dtype = loss.dtype
        var classes = logits.dim_size(1)
        var weighted = class_weight.dim_size(0) > 0
        var weights = ptr(class_weight)
        var rows = logits.dim_size(0)
        var x = ptr(logits)
        var t = ptr(targets)
        var kept = ptr(statistics)

        def row(r: Int) {imm}:
            row_statistics(x.unsafe_offset(r * classes), classes, kept.unsafe_offset(2 * r))

        over_rows(row, rows, classes)
        var total = Float64(0)
        var count = Float64(0)
        for r in range(rows):
            var label = Int(at(t, r))
            if label == Int(at(ptr(ignore_index), 0)):
                continue
            var z = x.unsafe_offset(r * classes)
            var own = kept.unsafe_offset(2 * r)
            total += Float64(forward_row(z, own, classes, label, weights, weighted, at(ptr(smoothing), 0)))
            count += Float64(class_share(weights, weighted, label, classes))
        store[1](ptr(loss), 0, Scalar[dtype](total / count) if count > 0 else Scalar[dtype](0))
        store[1](ptr(weight), 0, Scalar[dtype](count))


@extensibility.register("noeira.cross_entropy_grad")
struct CrossEntropyGrad:
    """Gradient of the mean loss times `grad_loss`; rows that are ignored get exact zeros."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        grad: OutputTensor[rank=2, ...],
        logits: InputTensor[dtype=grad.dtype, rank=2, ...],
        targets: InputTensor[dtype=DType.int32, rank=1, ...],
        statistics: InputTensor[dtype=grad.dtype, rank=2, ...],
        weight: InputTensor[dtype=grad.dtype, ...],
        grad_loss: InputTensor[dtype=grad.dtype, ...],
        class_weight: InputTensor[dtype=grad.dtype, rank=1, ...],
        ignore_index: InputTensor[dtype=DType.int32, rank=1, ...],
        smoothing: InputTensor[dtype=grad.dtype, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime dtype = grad.dtype
        comptime assert dtype.is_floating_point(), "logits are floating point"
        var classes = logits.dim_size(1)
        var weighted = class_weight.dim_size(0) > 0
        var weights = ptr(class_weight)
        var s = at(ptr(smoothing), 0)
        var count = at(ptr(weight), 0)
        var scale = at(ptr(grad_loss), 0) / count if count > 0 else Scalar[dtype](0)
        var spread = Scalar[dtype](classes)
        if weighted:
            spread = 0
            for c in range(classes):
                spread += at(weights, c)
        var g = ptr(grad)
        var x = ptr(logits)
        var t = ptr(targets)
        var kept = ptr(statistics)
        var ignored = Int(at(ptr(ignore_index), 0))
        var share = s / Scalar[dtype](classes)

        def row(r: Int) {imm}:
            var output = g.unsafe_offset(r * classes)
            var label = Int(at(t, r))
            if label == ignored:
                fill_or_scale(output, classes, True, scale)
                return
            var w = class_share(weights, weighted, label, classes)
            # p_c (w (1-s) + s/C sum w) - s/C w_c - w (1-s) [c = y]
            var mass = (1 - s) * w + share * spread
            softmax_row(output, x.unsafe_offset(r * classes), kept.unsafe_offset(2 * r), classes, mass)
            if s != 0:
                for c in range(classes):
                    store[1](output, c, at(output, c) - share * class_share(weights, weighted, c, classes))
            if label >= 0 and label < classes:
                store[1](output, label, at(output, label) - (1 - s) * w)
            fill_or_scale(output, classes, False, scale)

        over_rows(row, logits.dim_size(0), classes)


@extensibility.register("noeira.soft_cross_entropy")
struct SoftCrossEntropy:
    """Mean over rows of -sum_c w_c q_c log p_c with q = (1-s) target + s/C; targets are probability rows."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        loss: OutputTensor[...],
        weight: OutputTensor[dtype=loss.dtype, ...],
        statistics: OutputTensor[dtype=loss.dtype, rank=2, ...],
        logits: InputTensor[dtype=loss.dtype, rank=2, ...],
        targets: InputTensor[dtype=loss.dtype, rank=2, ...],
        class_weight: InputTensor[dtype=loss.dtype, rank=1, ...],
        ignore_index: InputTensor[dtype=DType.int32, rank=1, ...],
        smoothing: InputTensor[dtype=loss.dtype, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime dtype = loss.dtype
        var classes = logits.dim_size(1)
        var rows = logits.dim_size(0)
        var weighted = class_weight.dim_size(0) > 0
        var s = at(ptr(smoothing), 0)
        var x = ptr(logits)
        var rows_kept = ptr(statistics)

        def row(r: Int) {imm}:
            row_statistics(x.unsafe_offset(r * classes), classes, rows_kept.unsafe_offset(2 * r))

        over_rows(row, rows, classes)
        var total = Float64(0)
        for r in range(rows):
            var z = x.unsafe_offset(r * classes)
            var q = ptr(targets).unsafe_offset(r * classes)
            var kept = rows_kept.unsafe_offset(2 * r)
            for c in range(classes):
                var share = (1 - s) * at(q, c) + s / Scalar[dtype](classes)
                if weighted:
                    share *= at(ptr(class_weight), c)
                if share != 0:  # 0 * log 0 is 0
                    total += Float64(share * gap(at(z, c), kept))
        store[1](ptr(loss), 0, Scalar[dtype](total / Float64(rows)) if rows > 0 else Scalar[dtype](0))
        store[1](ptr(weight), 0, Scalar[dtype](rows))


@extensibility.register("noeira.soft_cross_entropy_grad")
struct SoftCrossEntropyGrad:
    """Gradient of the mean loss times `grad_loss`: p_c sum_k w_k q_k - w_c q_c."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        grad: OutputTensor[rank=2, ...],
        logits: InputTensor[dtype=grad.dtype, rank=2, ...],
        targets: InputTensor[dtype=grad.dtype, rank=2, ...],
        statistics: InputTensor[dtype=grad.dtype, rank=2, ...],
        weight: InputTensor[dtype=grad.dtype, ...],
        grad_loss: InputTensor[dtype=grad.dtype, ...],
        class_weight: InputTensor[dtype=grad.dtype, rank=1, ...],
        ignore_index: InputTensor[dtype=DType.int32, rank=1, ...],
        smoothing: InputTensor[dtype=grad.dtype, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime dtype = grad.dtype
        comptime assert dtype.is_floating_point(), "logits are floating point"
        var classes = logits.dim_size(1)
        var weighted = class_weight.dim_size(0) > 0
        var weights = ptr(class_weight)
        var s = at(ptr(smoothing), 0) / Scalar[dtype](classes)
        var keep = 1 - at(ptr(smoothing), 0)
        var count = at(ptr(weight), 0)
        var scale = at(ptr(grad_loss), 0) / count if count > 0 else Scalar[dtype](0)
        var g = ptr(grad)
        var x = ptr(logits)
        var t = ptr(targets)
        var kept = ptr(statistics)

        def row(r: Int) {imm}:
            var output = g.unsafe_offset(r * classes)
            var q = t.unsafe_offset(r * classes)
            var mass = Scalar[dtype](0)
            for c in range(classes):
                mass += (keep * at(q, c) + s) * class_share(weights, weighted, c, classes)
            softmax_row(output, x.unsafe_offset(r * classes), kept.unsafe_offset(2 * r), classes, mass)
            for c in range(classes):
                var share = (keep * at(q, c) + s) * class_share(weights, weighted, c, classes)
                store[1](output, c, at(output, c) - share)
            fill_or_scale(output, classes, False, scale)

        over_rows(row, logits.dim_size(0), classes)
