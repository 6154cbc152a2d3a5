"""Rotary positions, and the two changes of layout that go with attention.

    y[.., t, j] = x_j cos(t w_j) - x_j' sin(t w_j)      y[.., t, j'] = x_j' cos(t w_j) + x_j sin(t w_j)
    w_j = theta^(-2 j / d),  j' = j + d/2 (halves), or neighbours 2j, 2j + 1 (interleaved)

The inverse rotation, which is the vjp, turns by -t w_j. Angles and their sines are float64: t = 64 a + b, so sine and
cosine are computed for the a and the b only and joined by the addition theorem.
"""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext
from max.gpu.host.info import is_gpu
from std.math import ceildiv, cos, exp, log, sin
from std.sys.info import simd_width_of

from .memory import Ptr, add_elements, allocate, at, copy_elements, load, release, store
from .threads import parallel_for, worthwhile_parts

comptime STEP = 64
comptime COPY_FLOPS = 16
"""What moving an element costs, in multiply-adds."""
comptime Table = Ptr[DType.float64]


@no_inline
def _angles(dst: Table, count: Int, factor: Int, half: Int, theta: Float64, offset: Int):
    """Cosines and sines of (factor i + offset) w_j: [count, 2, half]."""
    for i in range(count):
        for j in range(half):
            var angle = Float64(factor * i + offset) * exp(-Float64(j) / Float64(half) * log(theta))
            store[1](dst, 2 * i * half + j, cos(angle))
            store[1](dst, (2 * i + 1) * half + j, sin(angle))


@no_inline
def rotate[
    dtype: DType
](
    y: Ptr[dtype],
    x: Ptr[dtype],
    outer: Int,
    tokens: Int,
    features: Int,
    width: Int,
    theta: Float64,
    offset: Int,
    interleaved: Bool,
    inverse: Bool,
):
    """Rotate x [outer, tokens, features] in groups of `width` features; `offset` is the position of the first token."""
    if outer == 0 or tokens == 0:
        return
    var half = width // 2
    var coarse = ceildiv(tokens, STEP)
    var memory = allocate[DType.float64]((coarse + STEP) * width)
    var fine = memory.unsafe_offset(coarse * width)
    _angles(memory, coarse, STEP, half, theta, offset)
    _angles(fine, min(STEP, tokens), 1, half, theta, 0)
    var sign = Scalar[dtype](-1) if inverse else Scalar[dtype](1)
    var parts = min(tokens, worthwhile_parts(16 * outer * tokens * features))

    def share(p: Int) {imm}:
        _rotate_tokens(
            y,
            x,
            outer,
            tokens,
            features,
            width,
            memory,
            fine,
            interleaved,
            sign,
            p * tokens // parts,
            (p + 1) * tokens // parts,
        )

    parallel_for(share, parts)
    release(memory)


@no_inline
def _rotate_tokens[
    dtype: DType
](
    y: Ptr[dtype],
    x: Ptr[dtype],
    outer: Int,
    tokens: Int,
    features: Int,
    width: Int,
    coarse: Table,
    fine: Table,
    interleaved: Bool,
    sign: Scalar[dtype],
    first: Int,
    last: Int,
):
    comptime W = simd_width_of[dtype]()
    comptime V = SIMD[dtype, W]
    var half = width // 2
    var memory = allocate[dtype](width + 1)
    var c = memory
    var s = memory.unsafe_offset(half)
    var whole = half // W * W
    for t in range(first, last):
        var a = coarse.unsafe_offset(t // STEP * width)
        var b = fine.unsafe_offset(t % STEP * width)
        for j in range(half):
            var cosine = at(a, j) * at(b, j) - at(a, half + j) * at(b, half + j)
            var sine = at(a, half + j) * at(b, j) + at(a, j) * at(b, half + j)
            store[1](c, j, cosine.cast[dtype]())
            store[1](s, j, sine.cast[dtype]() * sign)
        for o in range(outer):
            for g in range(0, features, width):
                var at_ = (o * tokens + t) * features + g
                var p = x.unsafe_offset(at_)
                var q = y.unsafe_offset(at_)
                if interleaved:
                    for j in range(0, whole, W):
                        var pairs = load[2 * W](p, 2 * j).deinterleave()
                        var u = rebind[V](pairs[0])
                        var v = rebind[V](pairs[1])
                        var turned = u * load[W](c, j) - v * load[W](s, j)
                        store(q, 2 * j, turned.interleave(v * load[W](c, j) + u * load[W](s, j)))
                for j in range(0, 0 if interleaved else whole, W):
                    var u = load[W](p, j)
                    var v = load[W](p, half + j)
                    store(q, j, u * load[W](c, j) - v * load[W](s, j))
                    store(q, half + j, v * load[W](c, j) + u * load[W](s, j))
                for j in range(whole, half):
                    var i = 2 * j if interleaved else j
                    var k = i + 1 if interleaved else half + j
                    var u = at(p, i)
                    var v = at(p, k)
                    store[1](q, i, u * at(c, j) - v * at(s, j))
                    store[1](q, k, v * at(c, j) + u * at(s, j))
    release(memory)


@extensibility.register("noeira.rope")
struct Rope:
    """Rotation of x [..., token, group x width]; options (int64): width, offset, interleaved, inverse."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        y: OutputTensor,
        x: InputTensor[dtype=y.dtype, rank=y.rank, ...],
        options: InputTensor[dtype=DType.int64, rank=1, ...],
        theta: InputTensor[dtype=DType.float64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime assert not is_gpu[target](), "noeira's rotary positions are not implemented for GPU yet"
        comptime P = Ptr[y.dtype]
        var o = rebind[Ptr[DType.int64]](options.unsafe_ptr())
        var outer = 1
        comptime for d in range(y.rank - 2):
            outer *= y.dim_size(d)
        rotate(
            rebind[P](y.unsafe_ptr()),
            rebind[P](x.unsafe_ptr()),
            outer,
            y.dim_size(y.rank - 2),
            y.dim_size(y.rank - 1),
            Int(at(o, 0)),
            at(rebind[Table](theta.unsafe_ptr()), 0),
            Int(at(o, 1)),
            at(o, 2) != 0,
            at(o, 3) != 0,
        )


@extensibility.register("noeira.swap_axes")
struct SwapAxes:
    """`y[a, j, i, c] = x[a, i, j, c]`."""

    @staticmethod
    def execute[
        target: StaticString
    ](y: OutputTensor[rank=4, ...], x: InputTensor[dtype=y.dtype, rank=4, ...], ctx: DeviceContext) raises:
        comptime assert not is_gpu[target](), "noeira's layout ops are not implemented for GPU yet"
        comptime P = Ptr[y.dtype]
        var n = x.dim_size(1)
        var m = x.dim_size(2)
        var width = x.dim_size(3)
        var dst = rebind[P](y.unsafe_ptr())
        var src = rebind[P](x.unsafe_ptr())
        var blocks = x.dim_size(0) * m
        var parts = min(max(1, blocks), worthwhile_parts(COPY_FLOPS * x.size()))

        def part(p: Int) {imm}:
            for b in range(p * blocks // parts, (p + 1) * blocks // parts):
                for i in range(n):
                    var from_ = src.unsafe_offset(((b // m * n + i) * m + b % m) * width)
                    copy_elements(dst.unsafe_offset((b * n + i) * width), from_, width)

        parallel_for(part, parts)


@extensibility.register("noeira.repeat_heads")
struct RepeatHeads:
    """`y[b, g] = x[b, g // repeats]`, the repeats being the ratio of the heads."""

    @staticmethod
    def execute[
        target: StaticString
    ](y: OutputTensor[rank=4, ...], x: InputTensor[dtype=y.dtype, rank=4, ...], ctx: DeviceContext) raises:
        comptime assert not is_gpu[target](), "noeira's layout ops are not implemented for GPU yet"
        comptime P = Ptr[y.dtype]
        var repeats = y.dim_size(1) // max(x.dim_size(1), 1)
        var block = x.dim_size(2) * x.dim_size(3)
        var dst = rebind[P](y.unsafe_ptr())
        var src = rebind[P](x.unsafe_ptr())
        var heads = y.dim_size(0) * y.dim_size(1)
        var parts = min(max(1, heads), worthwhile_parts(COPY_FLOPS * y.size()))

        def part(p: Int) {imm}:
            for g in range(p * heads // parts, (p + 1) * heads // parts):
                copy_elements(dst.unsafe_offset(g * block), src.unsafe_offset(g // repeats * block), block)

        parallel_for(part, parts)


@extensibility.register("noeira.repeat_heads_grad")
struct RepeatHeadsGrad:
    """`dx[b, k] = sum of dy[b, g] over g // repeats = k`, in ascending order."""

    @staticmethod
    def execute[
        target: StaticString
    ](dx: OutputTensor[rank=4, ...], dy: InputTensor[dtype=dx.dtype, rank=4, ...], ctx: DeviceContext) raises:
        comptime assert not is_gpu[target](), "noeira's layout ops are not implemented for GPU yet"
        comptime P = Ptr[dx.dtype]
        var repeats = dy.dim_size(1) // max(dx.dim_size(1), 1)
        var block = dx.dim_size(2) * dx.dim_size(3)
        var dst = rebind[P](dx.unsafe_ptr())
        var src = rebind[P](dy.unsafe_ptr())
        var heads = dx.dim_size(0) * dx.dim_size(1)
        var parts = min(max(1, heads), worthwhile_parts(COPY_FLOPS * dy.size()))

        def part(p: Int) {imm}:
            for h in range(p * heads // parts, (p + 1) * heads // parts):
                var sum = dst.unsafe_offset(h * block)
                copy_elements(sum, src.unsafe_offset(h * repeats * block), block)
                for r in range(1, repeats):
                    add_elements(sum, src.unsafe_offset((h * repeats + r) * block), block)

        parallel_for(part, parts)
