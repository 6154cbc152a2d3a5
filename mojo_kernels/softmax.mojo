"""Softmax, log-softmax and log-sum-exp over the last axis, and their gradients; min-max scaling of rows.

Rows are shifted by their maximum. A row of -inf alone has log-sum-exp -inf, softmax 0 and log-softmax -inf, and passes
no gradient; a NaN spreads over its row. Exponentials are summed in vectors, blocks of them in float64.
"""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext
from std.math import ceildiv, log
from std.sys.info import simd_width_of
from std.utils.numerics import isnan, neg_inf

from .activation import exp
from .memory import COMPUTE, Ptr, at, lanes_below, load_lanes, ptr, store_lanes
from .target import cpu_only
from .threads import parallel_for, worthwhile_parts

comptime F64 = DType.float64
comptime ELEMENT_FLOPS = 40
"""What an element costs, in operations of a matrix product."""

comptime BLOCK = 512
"""Elements summed in the dtype to compute in before float64 takes over."""

comptime SOFTMAX = 0
comptime LOG_SOFTMAX = 1
comptime LOG_SUM_EXP = 2


@always_inline
def row_max[dtype: DType](x: Ptr[dtype], count: Int) -> Scalar[COMPUTE[dtype]]:
    """The maximum, NaN if there is one."""
    comptime C = COMPUTE[dtype]
    comptime W = simd_width_of[C]()
    comptime V = SIMD[C, W]
    var mask = lanes_below[C, W](count % W)
    var high = V(neg_inf[C]())
    var sick = V(0)
    var i = 0
    while i + W <= count:
        var v = load_lanes[dtype, W, False](x.unsafe_offset(i), mask)
        high = v.gt(high).select(v, high)
        sick = isnan(v).select(v, sick)
        i += W
    if i < count:
        var v = mask.select(load_lanes[dtype, W, True](x.unsafe_offset(i), mask), V(neg_inf[C]()))
        high = v.gt(high).select(v, high)
        sick = isnan(v).select(v, sick)
    var bad = sick.reduce_add()
    return bad if bad != bad else high.reduce_max()


@always_inline
def exp_sum[
    dtype: DType
](x: Ptr[dtype], count: Int, shift: Scalar[COMPUTE[dtype]], y: Ptr[dtype], keep: Bool) -> Float64:
    """Sum of e^(x - shift); the terms are kept in y if asked for."""
    comptime C = COMPUTE[dtype]
    comptime W = simd_width_of[C]()
    comptime V = SIMD[C, W]
    var mask = lanes_below[C, W](count % W)
    var total = Float64(0)
    var i = 0
    while i < count:
        var stop = min(count, i + BLOCK)
        var sums = V(0)
        while i + W <= stop:
            var term = exp(load_lanes[dtype, W, False](x.unsafe_offset(i), mask) - shift)
            if keep:
                store_lanes[dtype, W, False](term, y.unsafe_offset(i), mask)
            sums += term
            i += W
        if i < stop:
            var term = exp(load_lanes[dtype, W, True](x.unsafe_offset(i), mask) - shift)
            if keep:
                store_lanes[dtype, W, True](term, y.unsafe_offset(i), mask)
            sums += mask.select(term, V(0))
            i = stop
        total += sums.reduce_add().cast[F64]()
    return total


@no_inline
def softmax_rows[dtype: DType](kind: Int, y: Ptr[dtype], x: Ptr[dtype], rows: Int, width: Int):
    """`y` is the softmax or log-softmax of every row, or its log-sum-exp (one number a row)."""
    comptime C = COMPUTE[dtype]
    comptime W = simd_width_of[C]()
    comptime V = SIMD[C, W]
    var parts = worthwhile_parts(rows * width * ELEMENT_FLOPS)
    var step = ceildiv(rows, parts)
    var mask = lanes_below[C, W](width % W)

    def part(p: Int) {imm}:
        for r in range(p * step, min(rows, (p + 1) * step)):
            var source = x.unsafe_offset(r * width)
            var target = y.unsafe_offset(r * (1 if kind == LOG_SUM_EXP else width))
            var high = row_max[dtype](source, width)
            var empty = high == neg_inf[C]()
            var keep = kind == SOFTMAX and dtype != DType.bfloat16
            var sum = Float64(1) if empty else exp_sum[dtype](source, width, high, target, keep)
            var lse = log(sum).cast[C]()
            if kind == LOG_SUM_EXP:
                store_lanes[dtype, 1, False](high + lse, target, True)
                continue
            var factor = (1 / sum).cast[C]()

            @__parameter
            @always_inline
            def element[masked: Bool](i: Int):
                var v = load_lanes[dtype, W, masked]((target if keep else source).unsafe_offset(i), mask)
                if empty:
                    v = V(0) if kind == SOFTMAX else V(neg_inf[C]())
                elif keep:
                    v *= factor
                elif kind == SOFTMAX:
                    v = exp(v - high) * factor
                else:
                    v = (v - high) - lse
                store_lanes[dtype, W, masked](v, target.unsafe_offset(i), mask)

            var i = 0
            while i + W <= width:
                element[False](i)
                i += W
            if i < width:
                element[True](i)

    parallel_for(part, parts)


@no_inline
def softmax_rows_grad[
    dtype: DType
](kind: Int, dx: Ptr[dtype], dy: Ptr[dtype], saved: Ptr[dtype], rest: Ptr[dtype], rows: Int, width: Int):
    """Softmax: `dx = y (dy - sum y dy)`; log-softmax: `dx = dy - e^y sum dy`; both with y = saved.
    Log-sum-exp: `dx = dy e^(x - lse)` with x = saved, lse = rest."""
    comptime C = COMPUTE[dtype]
    comptime W = simd_width_of[C]()
    comptime V = SIMD[C, W]
    var parts = worthwhile_parts(rows * width * ELEMENT_FLOPS)
    var step = ceildiv(rows, parts)
    var mask = lanes_below[C, W](width % W)

    def part(p: Int) {imm}:
        for r in range(p * step, min(rows, (p + 1) * step)):
            var s = saved.unsafe_offset(r * width)
            var g = dy.unsafe_offset(r * (1 if kind == LOG_SUM_EXP else width))
            var target = dx.unsafe_offset(r * width)
            var shift: Scalar[C]
            var scale = Scalar[C](0)
            var empty: Bool
            if kind == LOG_SUM_EXP:
                shift = load_lanes[dtype, 1, False](rest.unsafe_offset(r), True)[0]
                scale = load_lanes[dtype, 1, False](g, True)[0]
                empty = shift == neg_inf[C]()
            else:
                var total = Float64(0)
                var i = 0
                while i < width:
                    var stop = min(width, i + BLOCK)
                    var sums = V(0)
                    while i + W <= stop:
                        var u = load_lanes[dtype, W, False](g.unsafe_offset(i), mask)
                        if kind == SOFTMAX:
                            u *= load_lanes[dtype, W, False](s.unsafe_offset(i), mask)
                        sums += u
                        i += W
                    if i < stop:
                        var u = load_lanes[dtype, W, True](g.unsafe_offset(i), mask)
                        if kind == SOFTMAX:
                            u *= load_lanes[dtype, W, True](s.unsafe_offset(i), mask)
                        sums += u
                        i = stop
                    total += sums.reduce_add().cast[F64]()
                shift = total.cast[C]()
                empty = kind == LOG_SOFTMAX and width > 0 and row_max[dtype](s, width) == neg_inf[C]()

            @__parameter
            @always_inline
            def element[masked: Bool](i: Int):
                var v = load_lanes[dtype, W, masked](s.unsafe_offset(i), mask)
                if empty:
                    v = V(0)
                elif kind == LOG_SUM_EXP:
                    v = exp(v - shift) * scale
                else:
                    var u = load_lanes[dtype, W, masked](g.unsafe_offset(i), mask)
                    if kind == SOFTMAX:
                        v = v * (u - shift)
                    else:
                        v = exp(v).fma(V(-shift), u)
                store_lanes[dtype, W, masked](v, target.unsafe_offset(i), mask)

            var i = 0
            while i + W <= width:
                element[False](i)
                i += W
            if i < width:
                element[True](i)

    parallel_for(part, parts)


@no_inline
def min_max_rows[
    dtype: DType
](y: Ptr[dtype], x: Ptr[dtype], dy: Ptr[dtype], backward: Bool, rows: Int, width: Int, eps: Float64):
    """`y = (x - low) / max(high - low, eps)` of every row; backward: the gradient, which also passes through the
    first lowest and the first highest element. A row narrower than eps has gradient 0."""
    comptime C = COMPUTE[dtype]

    var parts = worthwhile_parts(rows * width * ELEMENT_FLOPS)
    var step = ceildiv(rows, parts)

    def part(p: Int) {imm}:
        for r in range(p * step, min(rows, (p + 1) * step)):
            var s = x.unsafe_offset(r * width)
            var target = y.unsafe_offset(r * width)
            var low = 0
            var high = 0
            for i in range(1, width):
                var v = load_lanes[dtype, 1, False](s.unsafe_offset(i), True)[0]
                var a = load_lanes[dtype, 1, False](s.unsafe_offset(low), True)[0]
                var b = load_lanes[dtype, 1, False](s.unsafe_offset(high), True)[0]
                if v < a or (v != v and a == a):
                    low = i
                if v > b or (v != v and b == b):
                    high = i
            var floor = load_lanes[dtype, 1, False](s.unsafe_offset(low), True)[0]
            var span = load_lanes[dtype, 1, False](s.unsafe_offset(high), True)[0] - floor
            var narrow = span <= Scalar[C](eps)
            var scale = 1 / (Scalar[C](eps) if narrow else span)
            if not backward:
                for i in range(width):
                    var v = (load_lanes[dtype, 1, False](s.unsafe_offset(i), True) - floor) * scale
                    store_lanes[dtype, 1, False](v, target.unsafe_offset(i), True)
                continue
            var g = dy.unsafe_offset(r * width)
            var sum = Float64(0)
            var product = Float64(0)
            for i in range(width):
                var u = load_lanes[dtype, 1, False](g.unsafe_offset(i), True)[0]
                var v = (load_lanes[dtype, 1, False](s.unsafe_offset(i), True)[0] - floor) * scale
                sum += u.cast[F64]()
                product += (u * v).cast[F64]()
                var flat = Scalar[C](0) if narrow else u * scale
                store_lanes[dtype, 1, False](flat, target.unsafe_offset(i), True)
            if not narrow:
                var at_low = target.unsafe_offset(low)
                var at_high = target.unsafe_offset(high)
                var into_low = ((product - sum) * scale.cast[F64]()).cast[C]()
                store_lanes[dtype, 1, False](load_lanes[dtype, 1, False](at_low, True) + into_low, at_low, True)
                var into_high = (-product * scale.cast[F64]()).cast[C]()
                store_lanes[dtype, 1, False](load_lanes[dtype, 1, False](at_high, True) + into_high, at_high, True)

    parallel_for(part, parts)


# ---------------------------------------------------------------------------------------------------------------------
# Registrations
# ---------------------------------------------------------------------------------------------------------------------


@extensibility.register("noeira.softmax")
struct Softmax:
    """Softmax or log-softmax over the last axis (`kind` 0 or 1)."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        y: OutputTensor,
        x: InputTensor[dtype=y.dtype, rank=y.rank, ...],
        kind: InputTensor[dtype=DType.int32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        var width = x.dim_size(x.rank - 1)
        softmax_rows[y.dtype](
            Int(at(ptr(kind), 0)), ptr(y), rebind[Ptr[y.dtype]](ptr(x)), x.size() // max(width, 1), width
        )


@extensibility.register("noeira.softmax_grad")
struct SoftmaxGrad:
    """The input gradient of either from its output."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        dx: OutputTensor,
        dy: InputTensor[dtype=dx.dtype, rank=dx.rank, ...],
        y: InputTensor[dtype=dx.dtype, rank=dx.rank, ...],
        kind: InputTensor[dtype=DType.int32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime P = Ptr[dx.dtype]
        var width = dx.dim_size(dx.rank - 1)
        softmax_rows_grad[dx.dtype](
            Int(at(ptr(kind), 0)),
            ptr(dx),
            rebind[P](ptr(dy)),
            rebind[P](ptr(y)),
            rebind[P](ptr(y)),
            dx.size() // max(width, 1),
            width,
        )


@extensibility.register("noeira.log_sum_exp")
struct LogSumExp:
    """`y[...] = log sum_c e^x[..., c]`."""

    @staticmethod
    def execute[target: StaticString](y: OutputTensor, x: InputTensor[dtype=y.dtype, ...], ctx: DeviceContext) raises:
        cpu_only[target]()
        var width = x.dim_size(x.rank - 1)
        softmax_rows[y.dtype](LOG_SUM_EXP, ptr(y), rebind[Ptr[y.dtype]](ptr(x)), x.size() // max(width, 1), width)


@extensibility.register("noeira.log_sum_exp_grad")
struct LogSumExpGrad:
    """`dx[..., c] = dy[...] e^(x[..., c] - lse[...])`."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        dx: OutputTensor,
        dy: InputTensor[dtype=dx.dtype, ...],
        x: InputTensor[dtype=dx.dtype, rank=dx.rank, ...],
        lse: InputTensor[dtype=dx.dtype, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime P = Ptr[dx.dtype]
        var width = dx.dim_size(dx.rank - 1)
        softmax_rows_grad[dx.dtype](
            LOG_SUM_EXP,
            ptr(dx),
            rebind[P](ptr(dy)),
            rebind[P](ptr(x)),
            rebind[P](ptr(lse)),
            dx.size() // max(width, 1),
            width,
        )


@extensibility.register("noeira.min_max_norm")
struct MinMaxNorm:
    """`y = (x - low) / max(high - low, eps)` over the last axis."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        y: OutputTensor,
        x: InputTensor[dtype=y.dtype, rank=y.rank, ...],
        eps: InputTensor[dtype=F64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        var width = x.dim_size(x.rank - 1)
        var source = rebind[Ptr[y.dtype]](ptr(x))
        min_max_rows[y.dtype](ptr(y), source, source, False, x.size() // max(width, 1), width, at(ptr(eps), 0))


@extensibility.register("noeira.min_max_norm_grad")
struct MinMaxNormGrad:
    """The input gradient, through the extremes as well."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        dx: OutputTensor,
        dy: InputTensor[dtype=dx.dtype, rank=dx.rank, ...],
        x: InputTensor[dtype=dx.dtype, rank=dx.rank, ...],
        eps: InputTensor[dtype=F64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime P = Ptr[dx.dtype]
        var width = x.dim_size(x.rank - 1)
        min_max_rows[dx.dtype](
            ptr(dx), rebind[P](ptr(x)), rebind[P](ptr(dy)), True, x.size() // max(width, 1), width, at(ptr(eps), 0)
        )
