"""Layers that move elements: permutations of each sample's axes, and nearest-neighbour doubling with its gradient."""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext
from std.sys.info import simd_width_of

from .gemm_pack import copy_transposed
from .memory import Ptr
from .target import cpu_only
from .threads import parallel_for, worthwhile_parts


@no_inline
def transpose_samples[dtype: DType](y: Ptr[dtype], x: Ptr[dtype], samples: Int, rows: Int, cols: Int):
    """Each sample's [rows, cols] becomes [cols, rows]."""
    comptime W = simd_width_of[dtype]()
    var parts = min(max(1, samples), worthwhile_parts(4 * samples * rows * cols))

    def part(p: Int) {imm}:
        for s in range(p * samples // parts, (p + 1) * samples // parts):
            var src = x.unsafe_offset(s * rows * cols)
            var dst = y.unsafe_offset(s * rows * cols)
            var whole = rows // W * W
            if whole == rows:
                copy_transposed(dst, rows, src, cols, rows, cols)
                continue
            for j in range(cols):
                for i in range(rows):
                    dst.unsafe_offset(j * rows + i).unsafe_store(src.unsafe_offset(i * cols + j).unsafe_load())

    parallel_for(part, parts)


@no_inline
def permute_samples[dtype: DType](y: Ptr[dtype], x: Ptr[dtype], samples: Int, size: Int, g: Ptr[DType.int64]):
    """Each sample of y is an array of five axes, g[0..4] long, read from x with the strides g[5..9]."""

    def at(i: Int) {imm} -> Int:
        return Int(g.unsafe_offset(i).unsafe_load())

    var n0 = at(0)
    var n1 = at(1)
    var n2 = at(2)
    var n3 = at(3)
    var n4 = at(4)
    var step = at(9)
    var parts = min(max(1, samples), worthwhile_parts(4 * samples * size))

    def part(p: Int) {imm}:
        for s in range(p * samples // parts, (p + 1) * samples // parts):
            var src = x.unsafe_offset(s * size)
            var dst = y.unsafe_offset(s * size)
            for a in range(n0):
                for b in range(n1):
                    for c in range(n2):
                        for d in range(n3):
                            var from_ = src.unsafe_offset(a * at(5) + b * at(6) + c * at(7) + d * at(8))
                            for e in range(n4):
                                dst.unsafe_offset(e).unsafe_store(from_.unsafe_offset(e * step).unsafe_load())
                            dst = dst.unsafe_offset(n4)

    parallel_for(part, parts)


@no_inline
def upsample2x[dtype: DType](y: Ptr[dtype], x: Ptr[dtype], rows: Int, width: Int):
    """Every element of the rows [rows, width] becomes a square of four."""
    comptime W = simd_width_of[dtype]()
    var parts = min(max(1, rows), worthwhile_parts(8 * rows * width))

    def part(p: Int) {imm}:
        for r in range(p * rows // parts, (p + 1) * rows // parts):
            var src = x.unsafe_offset(r * width)
            var top = y.unsafe_offset(r * 4 * width)
            var bottom = top.unsafe_offset(2 * width)
            var j = 0
            while j + W <= width:
                var v = src.unsafe_offset(j).unsafe_load[width=W]()
                var pairs = v.interleave(v)
                top.unsafe_offset(2 * j).unsafe_store(pairs)
                bottom.unsafe_offset(2 * j).unsafe_store(pairs)
                j += W
            while j < width:
                var v = SIMD[dtype, 2](src.unsafe_offset(j).unsafe_load())
                top.unsafe_offset(2 * j).unsafe_store(v)
                bottom.unsafe_offset(2 * j).unsafe_store(v)
                j += 1

    parallel_for(part, parts)


@no_inline
def upsample2x_grad[dtype: DType](dx: Ptr[dtype], dy: Ptr[dtype], rows: Int, width: Int):
    """Sums of squares of four."""
    comptime W = simd_width_of[dtype]()
    var parts = min(max(1, rows), worthwhile_parts(8 * rows * width))

    def part(p: Int) {imm}:
        for r in range(p * rows // parts, (p + 1) * rows // parts):
            var dst = dx.unsafe_offset(r * width)
            var top = dy.unsafe_offset(r * 4 * width)
            var bottom = top.unsafe_offset(2 * width)
            var j = 0
            while j + W <= width:
                var a = top.unsafe_offset(2 * j).unsafe_load[width=2 * W]().deinterleave()
                var b = bottom.unsafe_offset(2 * j).unsafe_load[width=2 * W]().deinterleave()
                dst.unsafe_offset(j).unsafe_store((a[0] + a[1]) + (b[0] + b[1]))
                j += W
            while j < width:
                var a = top.unsafe_offset(2 * j).unsafe_load[width=2]()
                var b = bottom.unsafe_offset(2 * j).unsafe_load[width=2]()
                dst.unsafe_offset(j).unsafe_store((a[0] + a[1]) + (b[0] + b[1]))
                j += 1

    parallel_for(part, parts)


# ---------------------------------------------------------------------------------------------------------------------
# Registrations
# ---------------------------------------------------------------------------------------------------------------------


@extensibility.register("noeira.transpose_samples")
struct TransposeSamples:
    """`y[N, C, R] = x[N, R, C]`."""

    @staticmethod
    def execute[
        target: StaticString
    ](y: OutputTensor[rank=3, ...], x: InputTensor[dtype=y.dtype, rank=3, ...], ctx: DeviceContext) raises:
        cpu_only[target]()
        comptime P = Ptr[y.dtype]
        transpose_samples(
            rebind[P](y.unsafe_ptr()), rebind[P](x.unsafe_ptr()), x.dim_size(0), x.dim_size(1), x.dim_size(2)
        )


@extensibility.register("noeira.permute_samples")
struct PermuteSamples:
    """The axes of each sample in another order; `geometry` holds five sizes of y and the strides of x they go with."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        y: OutputTensor,
        x: InputTensor[dtype=y.dtype, ...],
        geometry: InputTensor[dtype=DType.int64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime P = Ptr[y.dtype]
        var samples = x.dim_size(0)
        if y.size() > 0:
            permute_samples(
                rebind[P](y.unsafe_ptr()),
                rebind[P](x.unsafe_ptr()),
                samples,
                y.size() // samples,
                rebind[Ptr[DType.int64]](geometry.unsafe_ptr()),
            )


@extensibility.register("noeira.upsample2x")
struct Upsample2x:
    """`y[N, C, 2 H, 2 W]`: every element of x four times."""

    @staticmethod
    def execute[
        target: StaticString
    ](y: OutputTensor[rank=4, ...], x: InputTensor[dtype=y.dtype, rank=4, ...], ctx: DeviceContext) raises:
        cpu_only[target]()
        comptime P = Ptr[y.dtype]
        var rows = x.dim_size(0) * x.dim_size(1) * x.dim_size(2)
        upsample2x(rebind[P](y.unsafe_ptr()), rebind[P](x.unsafe_ptr()), rows, x.dim_size(3))


@extensibility.register("noeira.upsample2x_grad")
struct Upsample2xGrad:
    """`dx[N, C, H, W]`: sums over squares of four of dy."""

    @staticmethod
    def execute[
        target: StaticString
    ](dx: OutputTensor[rank=4, ...], dy: InputTensor[dtype=dx.dtype, rank=4, ...], ctx: DeviceContext) raises:
        cpu_only[target]()
        comptime P = Ptr[dx.dtype]
        var rows = dx.dim_size(0) * dx.dim_size(1) * dx.dim_size(2)
        upsample2x_grad(rebind[P](dx.unsafe_ptr()), rebind[P](dy.unsafe_ptr()), rows, dx.dim_size(3))
