"""Elementwise functions with parameters a and b, the SwiGLU gate, and sums over one axis.

    code  0 leaky_relu(a)  1 elu(a)  2 softplus(a = beta, b = threshold)  3 symlog  4 symexp  5 clamp(a, b)  6 exp

float32 and float64. NaN propagates. Sums run in a fixed order.
"""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext
from std.math import ceildiv, copysign, log
from std.sys.info import simd_width_of
from std.utils.numerics import inf, isnan

from .activation import SILU, activate, activation_derivative, exp, expm1_nonpositive, sigmoid
from .gemm_reduce import add_column_sums
from .memory import COMPUTE, Ptr, at, lanes_below, load_lanes, ptr, store, store_lanes
from .norm import block_sums
from .target import cpu_only
from .threads import parallel_for, worthwhile_parts

comptime F64 = DType.float64
comptime ELEMENT_FLOPS = 16
"""What an element costs, in operations of a matrix product."""

comptime LEAKY_RELU = 0
comptime ELU = 1
comptime SOFTPLUS = 2
comptime SYMLOG = 3
comptime SYMEXP = 4
comptime CLAMP = 5
comptime EXP = 6
comptime CODES = 7


@always_inline
def log1p[dtype: DType, width: SIMDLength](x: SIMD[dtype, width]) -> SIMD[dtype, width]:
    """`log(1 + x)` for x >= 0: the rounding of 1 + x is undone by the factor x / ((1 + x) - 1)."""
    comptime assert dtype.is_floating_point(), "logarithms are floating point"
    comptime V = SIMD[dtype, width]
    var u = x + 1
    var y = log(u) * (x / (u - 1))
    y = u.eq(V(1)).select(x, y)
    return x.eq(V(inf[dtype]())).select(x, y)


@always_inline
def apply[
    dtype: DType, width: Int, code: Int
](x: SIMD[dtype, width], a: Scalar[dtype], b: Scalar[dtype]) -> SIMD[dtype, width]:
    """The function `code` of x."""
    comptime V = SIMD[dtype, width]
    comptime if code == LEAKY_RELU:
        return x.gt(0).select(x, x * a)
    elif code == ELU:
        return x.gt(0).select(x, expm1_nonpositive(x) * a)
    elif code == SOFTPLUS:
        # log(1 + e^z) / beta = (max(z, 0) + log(1 + e^-|z|)) / beta
        var z = x * a
        var y = (z.gt(0).select(z, V(0)) + log1p(exp(-abs(z)))) / a
        y = isnan(z).select(z, y)
        return z.gt(b).select(x, y)
    elif code == SYMLOG:
        return copysign(log1p(abs(x)), x)
    elif code == SYMEXP:
        var t = expm1_nonpositive(-abs(x))
        var near = -t / (1 + t)
        return copysign(abs(x).lt(1).select(near, exp(abs(x)) - 1), x)
    elif code == EXP:
        return exp(x)
    else:
        var y = x.lt(a).select(V(a), x)
        return y.gt(b).select(V(b), y)


@always_inline
def derivative[
    dtype: DType, width: Int, code: Int
](x: SIMD[dtype, width], a: Scalar[dtype], b: Scalar[dtype]) -> SIMD[dtype, width]:
    """The derivative of the function `code` at x."""
    comptime V = SIMD[dtype, width]
    comptime if code == LEAKY_RELU:
        return x.gt(0).select(V(1), V(a))
    elif code == ELU:
        return x.gt(0).select(V(1), exp(x) * a)
    elif code == SOFTPLUS:
        var z = x * a
        return z.gt(b).select(V(1), sigmoid(z))
    elif code == SYMLOG:
        return 1 / (1 + abs(x))
    elif code == SYMEXP:
        return exp(abs(x))
    elif code == EXP:
        return exp(x)
    else:
        var y = x.ge(a).select(V(1), V(0))
        return x.le(b).select(y, V(0))


@no_inline
def elementwise[
    dtype: DType
](
    code: Int,
    y: Ptr[dtype],
    x: Ptr[dtype],
    grad: Ptr[dtype],
    backward: Bool,
    size: Int,
    a: Scalar[COMPUTE[dtype]],
    b: Scalar[COMPUTE[dtype]],
):
    """`y = f(x)`, or backward `y = grad f'(x)`."""
    comptime C = COMPUTE[dtype]
    comptime W = simd_width_of[C]()
    var parts = worthwhile_parts(size * ELEMENT_FLOPS)
    var step = ceildiv(ceildiv(size, 64), parts) * 64

    def part(p: Int) {imm}:
        var stop = min(size, (p + 1) * step)
        comptime for c in range(CODES):
            if code == c:

                @__parameter
                @always_inline
                def element[masked: Bool](i: Int, mask: SIMD[DType.bool, W]):
                    var v = load_lanes[dtype, W, masked](x.unsafe_offset(i), mask)
                    if backward:
                        v = derivative[C, W, c](v, a, b) * load_lanes[dtype, W, masked](grad.unsafe_offset(i), mask)
                    else:
                        v = apply[C, W, c](v, a, b)
                    store_lanes[dtype, W, masked](v, y.unsafe_offset(i), mask)

                var i = p * step
                var mask = lanes_below[C, W](max(0, stop - i) % W)
                while i + W <= stop:
                    element[False](i, mask)
                    i += W
                if i < stop:
                    element[True](i, mask)

    parallel_for(part, parts)


@no_inline
def swiglu[dtype: DType](y: Ptr[dtype], x: Ptr[dtype], grad: Ptr[dtype], backward: Bool, rows: Int, width: Int):
    """`y = u silu(v)` of rows [u, v], each `width` wide; backward: `y = [dy silu(v), dy u silu'(v)]`."""
    comptime C = COMPUTE[dtype]
    comptime W = simd_width_of[C]()
    var parts = worthwhile_parts(rows * width * ELEMENT_FLOPS)
    var step = ceildiv(rows, parts)
    var mask = lanes_below[C, W](width % W)

    def part(p: Int) {imm}:
        for r in range(p * step, min(rows, (p + 1) * step)):
            var first = x.unsafe_offset(2 * r * width)
            var second = first.unsafe_offset(width)

            @__parameter
            @always_inline
            def element[masked: Bool](i: Int):
                var u = load_lanes[dtype, W, masked](first.unsafe_offset(i), mask)
                var v = load_lanes[dtype, W, masked](second.unsafe_offset(i), mask)
                if backward:
                    var g = load_lanes[dtype, W, masked](grad.unsafe_offset(r * width + i), mask)
                    var du = y.unsafe_offset(2 * r * width + i)
                    store_lanes[dtype, W, masked](g * activate[code=SILU](v), du, mask)
                    var dv = g * u * activation_derivative[code=SILU](v)
                    store_lanes[dtype, W, masked](dv, du.unsafe_offset(width), mask)
                else:
                    store_lanes[dtype, W, masked](u * activate[code=SILU](v), y.unsafe_offset(r * width + i), mask)

            var i = 0
            while i + W <= width:
                element[False](i)
                i += W
            if i < width:
                element[True](i)

    parallel_for(part, parts)


@no_inline
def sum_axis[dtype: DType](y: Ptr[dtype], x: Ptr[dtype], outer: Int, count: Int, inner: Int):
    """`y[o, i] = sum_n x[o, n, i]`."""
    var parts = min(worthwhile_parts(outer * count * inner * 2), max(1, outer))
    var step = ceildiv(outer, parts)

    def part(p: Int) {imm}:
        for o in range(p * step, min(outer, (p + 1) * step)):
            var source = x.unsafe_offset(o * count * inner)
            if inner == 1:
                var sum = block_sums[dtype, True, False](source, count, Scalar[COMPUTE[dtype]](0))[0]
                store[1](y, o, sum.cast[dtype]())
                continue
            var target = y.unsafe_offset(o * inner)
            for i in range(inner):
                store[1](target, i, Scalar[dtype](0))
            add_column_sums(target, source, inner, count, inner)

    parallel_for(part, parts)


# ---------------------------------------------------------------------------------------------------------------------
# Registrations
# ---------------------------------------------------------------------------------------------------------------------


@extensibility.register("noeira.elementwise")
struct Elementwise:
    """`y = f(x)`; `options` holds the code, a and b."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        y: OutputTensor,
        x: InputTensor[dtype=y.dtype, rank=y.rank, ...],
        options: InputTensor[dtype=F64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime C = COMPUTE[y.dtype]
        var o = ptr(options)
        var source = rebind[Ptr[y.dtype]](ptr(x))
        elementwise[y.dtype](
            Int(at(o, 0)), ptr(y), source, source, False, y.size(), at(o, 1).cast[C](), at(o, 2).cast[C]()
        )


@extensibility.register("noeira.elementwise_grad")
struct ElementwiseGrad:
    """`dx = dy f'(x)`; `options` holds the code, a and b."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        dx: OutputTensor,
        dy: InputTensor[dtype=dx.dtype, rank=dx.rank, ...],
        x: InputTensor[dtype=dx.dtype, rank=dx.rank, ...],
        options: InputTensor[dtype=F64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime P = Ptr[dx.dtype]
        comptime C = COMPUTE[dx.dtype]
        var o = ptr(options)
        elementwise[dx.dtype](
            Int(at(o, 0)),
            ptr(dx),
            rebind[P](ptr(x)),
            rebind[P](ptr(dy)),
            True,
            dx.size(),
            at(o, 1).cast[C](),
            at(o, 2).cast[C](),
        )


@extensibility.register("noeira.swiglu")
struct SwiGLU:
    """`y[..., H] = u silu(v)` for `x[..., 2 H] = [u, v]`."""

    @staticmethod
    def execute[
        target: StaticString
    ](y: OutputTensor, x: InputTensor[dtype=y.dtype, rank=y.rank, ...], ctx: DeviceContext) raises:
        cpu_only[target]()
        var width = y.dim_size(y.rank - 1)
        var source = rebind[Ptr[y.dtype]](ptr(x))
        swiglu[y.dtype](ptr(y), source, source, False, y.size() // max(width, 1), width)


@extensibility.register("noeira.swiglu_grad")
struct SwiGLUGrad:
    """The gradient of both halves."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        dx: OutputTensor,
        dy: InputTensor[dtype=dx.dtype, rank=dx.rank, ...],
        x: InputTensor[dtype=dx.dtype, rank=dx.rank, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime P = Ptr[dx.dtype]
        var width = dy.dim_size(dx.rank - 1)
        swiglu[dx.dtype](ptr(dx), rebind[P](ptr(x)), rebind[P](ptr(dy)), True, dy.size() // max(width, 1), width)


@extensibility.register("noeira.sum_axis")
struct SumAxis:
    """Sum over axis number `axis`; the result's shape may keep the axis or not."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        y: OutputTensor,
        x: InputTensor[dtype=y.dtype, ...],
        axis: InputTensor[dtype=DType.int32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        var a = Int(at(ptr(axis), 0))
        var outer = 1
        var inner = 1
        var count = 1
        comptime for d in range(x.rank):
            if d < a:
                outer *= x.dim_size(d)
            elif d > a:
                inner *= x.dim_size(d)
            else:
                count = x.dim_size(d)
        sum_axis[y.dtype](ptr(y), rebind[Ptr[y.dtype]](ptr(x)), outer, count, inner)
