"""Max and average pooling over planes [height, width], and their gradients; float32 and float64.

A plane belongs to one thread, forward and backward. Max pooling pads with -inf, keeps the first of equal values, lets
NaN win, and saves where in the plane each maximum was found (-1: nowhere). An average's windows are given as lists:
first position, end, and what the axis contributes to the divisor, so that plain and adaptive pooling are one kernel.
"""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext
from std.math import ceildiv, iota
from std.sys.info import simd_width_of
from std.utils.numerics import isnan, neg_inf

from .conv_axis import Window
from .gemm_vector import fill_zero
from .memory import Ptr, at, load, store
from .target import cpu_only
from .threads import parallel_for, worthwhile_parts

comptime Index = Ptr[DType.int32]


@always_inline
def _load_stepping[dtype: DType, width: Int](p: Ptr[dtype], step: Int, readable: Int) -> SIMD[dtype, width]:
    """Elements 0, step, 2 step, ...; `readable` elements lie behind p."""
    comptime if width > 1:
        if step == 1:
            return p.unsafe_load[width=width]()
        if step == 2 and readable >= 2 * width:
            return rebind[SIMD[dtype, width]](p.unsafe_load[width=2 * width]().deinterleave()[0])
    var v = SIMD[dtype, width](0)
    comptime for l in range(width):
        v[l] = p.unsafe_offset(l * step).unsafe_load()
    return v


@always_inline
def _max_outputs[
    dtype: DType, width: Int
](
    y: Ptr[dtype],
    index: Index,
    x: Ptr[dtype],
    size: Int,
    row_size: Int,
    rows: Window,
    cols: Window,
    top: Int,
    ky0: Int,
    ky1: Int,
    left: Int,
    kx0: Int,
    kx1: Int,
):
    """`width` neighbouring outputs that use the same taps [ky0, ky1) x [kx0, kx1), all inside."""
    comptime I = SIMD[DType.int32, width]
    var best = SIMD[dtype, width](neg_inf[dtype]())
    var lanes = iota[DType.int32, width]() * I(cols.stride)
    var nowhere = ky0 >= ky1 or kx0 >= kx1
    var first = (top + ky0 * rows.dilation) * row_size + left + kx0 * cols.dilation
    var where_ = I(-1) if nowhere else lanes + I(first)
    for ky in range(ky0, ky1):
        for kx in range(kx0, kx1):
            var at = (top + ky * rows.dilation) * row_size + left + kx * cols.dilation
            var v = _load_stepping[dtype, width](x.unsafe_offset(at), cols.stride, size - at)
            var better = v.gt(best) | isnan(v)
            best = better.select(v, best)
            where_ = better.select(lanes + I(at), where_)
    y.unsafe_store(best)
    index.unsafe_store(where_)


@always_inline
def _inside(w: Window, start: Int, size: Int) -> Tuple[Int, Int]:
    """The taps k with 0 <= start + k * dilation < size, as a range."""
    var first = min(w.kernel, max(0, ceildiv(-start, w.dilation)))
    return (first, max(first, min(w.kernel, ceildiv(size - start, w.dilation))))


@no_inline
def max_pool[
    dtype: DType
](
    y: Ptr[dtype],
    index: Index,
    x: Ptr[dtype],
    planes: Int,
    height: Int,
    width: Int,
    out_height: Int,
    out_width: Int,
    rows: Window,
    cols: Window,
):
    """All planes."""
    comptime W = simd_width_of[dtype]()
    comptime HALF = max(1, W // 4)
    var parts = min(max(1, planes), worthwhile_parts(4 * planes * out_height * out_width * rows.kernel * cols.kernel))
    # outputs whose windows lie inside the row from end to end
    var inner0 = min(out_width, ceildiv(cols.padding, cols.stride))
    var room = width + cols.padding - (cols.kernel - 1) * cols.dilation - 1
    var inner1 = max(inner0, min(out_width, room // cols.stride + 1 if room >= 0 else 0))

    def part(p: Int) {imm}:
        for plane in range(p * planes // parts, (p + 1) * planes // parts):
            var src = x.unsafe_offset(plane * height * width)
            for i in range(out_height):
                var top = i * rows.stride - rows.padding
                var ky0, ky1 = _inside(rows, top, height)
                var out_ = (plane * out_height + i) * out_width
                var j = 0
                while j < out_width:
                    var left = j * cols.stride - cols.padding
                    var dst = y.unsafe_offset(out_ + j)
                    var to = index.unsafe_offset(out_ + j)
                    if j >= inner0 and j + W <= inner1:
                        _max_outputs[dtype, W](
                            dst, to, src, height * width, width, rows, cols, top, ky0, ky1, left, 0, cols.kernel
                        )
                        j += W
                    elif j >= inner0 and j + HALF <= inner1:
                        _max_outputs[dtype, HALF](
                            dst, to, src, height * width, width, rows, cols, top, ky0, ky1, left, 0, cols.kernel
                        )
                        j += HALF
                    else:
                        var kx0, kx1 = _inside(cols, left, width)
                        _max_outputs[dtype, 1](
                            dst, to, src, height * width, width, rows, cols, top, ky0, ky1, left, kx0, kx1
                        )
                        j += 1

    parallel_for(part, parts)


@no_inline
def max_pool_grad[dtype: DType](dx: Ptr[dtype], dy: Ptr[dtype], index: Index, planes: Int, size: Int, outs: Int):
    """`dx[index[o]] += dy[o]` in each plane, on a cleared dx."""
    var parts = min(max(1, planes), worthwhile_parts(4 * planes * (size + outs)))

    def part(p: Int) {imm}:
        var first = p * planes // parts
        var last = (p + 1) * planes // parts
        fill_zero(dx.unsafe_offset(first * size), (last - first) * size)
        for plane in range(first, last):
            var dst = dx.unsafe_offset(plane * size)
            for o in range(plane * outs, (plane + 1) * outs):
                var at = Int(index.unsafe_offset(o).unsafe_load())
                if at >= 0 and at < size:
                    var d = dst.unsafe_offset(at)
                    d.unsafe_store(d.unsafe_load() + dy.unsafe_offset(o).unsafe_load())

    parallel_for(part, parts)


@always_inline
def _sum_run[dtype: DType](p: Ptr[dtype], count: Int) -> Scalar[dtype]:
    comptime W = simd_width_of[dtype]()
    var sum = Scalar[dtype](0)
    var i = 0
    if count >= W:
        var v = SIMD[dtype, W](0)
        while i + W <= count:
            v += p.unsafe_offset(i).unsafe_load[width=W]()
            i += W
        sum = v.reduce_add()
    while i < count:
        sum += p.unsafe_offset(i).unsafe_load()
        i += 1
    return sum


@always_inline
def _at(list: Index, i: Int) -> Int:
    return Int(list.unsafe_offset(i).unsafe_load())


@no_inline
def avg_pool[
    dtype: DType
](
    y: Ptr[dtype],
    x: Ptr[dtype],
    planes: Int,
    height: Int,
    width: Int,
    out_height: Int,
    out_width: Int,
    rows: Index,
    cols: Index,
):
    """Means over windows; `rows` and `cols` list first positions, ends and divisors."""
    var parts = min(max(1, planes), worthwhile_parts(4 * planes * (height * width + out_height * out_width)))

    def part(p: Int) {imm}:
        for plane in range(p * planes // parts, (p + 1) * planes // parts):
            var src = x.unsafe_offset(plane * height * width)
            for i in range(out_height):
                var top = _at(rows, i)
                var bottom = _at(rows, out_height + i)
                var dst = y.unsafe_offset((plane * out_height + i) * out_width)
                for j in range(out_width):
                    var left = _at(cols, j)
                    var right = _at(cols, out_width + j)
                    var sum = Scalar[dtype](0)
                    for r in range(top, bottom):
                        sum += _sum_run(src.unsafe_offset(r * width + left), right - left)
                    var divisor = _at(rows, 2 * out_height + i) * _at(cols, 2 * out_width + j)
                    dst.unsafe_offset(j).unsafe_store(sum / Scalar[dtype](divisor))

    parallel_for(part, parts)


@no_inline
def avg_pool_grad[
    dtype: DType
](
    dx: Ptr[dtype],
    dy: Ptr[dtype],
    planes: Int,
    height: Int,
    width: Int,
    out_height: Int,
    out_width: Int,
    rows: Index,
    cols: Index,
):
    """`dx +=` dy over its divisor, in all of its window, on a cleared dx."""
    comptime W = simd_width_of[dtype]()
    var parts = min(max(1, planes), worthwhile_parts(4 * planes * (height * width + out_height * out_width)))

    def part(p: Int) {imm}:
        for plane in range(p * planes // parts, (p + 1) * planes // parts):
            var dst = dx.unsafe_offset(plane * height * width)
            fill_zero(dst, height * width)
            for i in range(out_height):
                var top = _at(rows, i)
                var bottom = _at(rows, out_height + i)
                var src = dy.unsafe_offset((plane * out_height + i) * out_width)
                for j in range(out_width):
                    var left = _at(cols, j)
                    var right = _at(cols, out_width + j)
                    var divisor = _at(rows, 2 * out_height + i) * _at(cols, 2 * out_width + j)
                    var value = src.unsafe_offset(j).unsafe_load() / Scalar[dtype](divisor)
                    for r in range(top, bottom):
                        var d = dst.unsafe_offset(r * width)
                        var c = left
                        while c + W <= right:
                            store(d, c, load[W](d, c) + SIMD[dtype, W](value))
                            c += W
                        while c < right:
                            store[1](d, c, at(d, c) + value)
                            c += 1

    parallel_for(part, parts)


# ---------------------------------------------------------------------------------------------------------------------
# Registrations
# ---------------------------------------------------------------------------------------------------------------------


@extensibility.register("noeira.max_pool2d")
struct MaxPool2D:
    """Maxima of windows of x[N, C, H, W], and where they were found. `geometry`: kernel, stride, padding, dilation, each
    for rows and columns."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        y: OutputTensor[rank=4, ...],
        index: OutputTensor[dtype=DType.int32, rank=4, ...],
        x: InputTensor[dtype=y.dtype, rank=4, ...],
        geometry: InputTensor[dtype=DType.int64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime P = Ptr[y.dtype]
        var g = rebind[Ptr[DType.int64]](geometry.unsafe_ptr())

        def option(i: Int) {imm} -> Int:
            return Int(at(g, i))

        max_pool(
            rebind[P](y.unsafe_ptr()),
            rebind[Index](index.unsafe_ptr()),
            rebind[P](x.unsafe_ptr()),
            x.dim_size(0) * x.dim_size(1),
            x.dim_size(2),
            x.dim_size(3),
            y.dim_size(2),
            y.dim_size(3),
            Window(option(0), option(2), option(4), option(6)),
            Window(option(1), option(3), option(5), option(7)),
        )


@extensibility.register("noeira.max_pool2d_grad")
struct MaxPool2DGrad:
    """The gradient to where each maximum was found."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        dx: OutputTensor[rank=4, ...],
        dy: InputTensor[dtype=dx.dtype, rank=4, ...],
        index: InputTensor[dtype=DType.int32, rank=4, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime P = Ptr[dx.dtype]
        max_pool_grad(
            rebind[P](dx.unsafe_ptr()),
            rebind[P](dy.unsafe_ptr()),
            rebind[Index](index.unsafe_ptr()),
            dx.dim_size(0) * dx.dim_size(1),
            dx.dim_size(2) * dx.dim_size(3),
            dy.dim_size(2) * dy.dim_size(3),
        )


@extensibility.register("noeira.avg_pool2d")
struct AvgPool2D:
    """Means of windows of x[N, C, H, W]; rows and cols are [3, outputs]: first positions, ends, divisors."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        y: OutputTensor[rank=4, ...],
        x: InputTensor[dtype=y.dtype, rank=4, ...],
        rows: InputTensor[dtype=DType.int32, rank=2, ...],
        cols: InputTensor[dtype=DType.int32, rank=2, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime P = Ptr[y.dtype]
        avg_pool(
            rebind[P](y.unsafe_ptr()),
            rebind[P](x.unsafe_ptr()),
            x.dim_size(0) * x.dim_size(1),
            x.dim_size(2),
            x.dim_size(3),
            y.dim_size(2),
            y.dim_size(3),
            rebind[Index](rows.unsafe_ptr()),
            rebind[Index](cols.unsafe_ptr()),
        )


@extensibility.register("noeira.avg_pool2d_grad")
struct AvgPool2DGrad:
    """The gradient spread over each window."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        dx: OutputTensor[rank=4, ...],
        dy: InputTensor[dtype=dx.dtype, rank=4, ...],
        rows: InputTensor[dtype=DType.int32, rank=2, ...],
        cols: InputTensor[dtype=DType.int32, rank=2, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime P = Ptr[dx.dtype]
        avg_pool_grad(
            rebind[P](dx.unsafe_ptr()),
            rebind[P](dy.unsafe_ptr()),
            dx.dim_size(0) * dx.dim_size(1),
            dx.dim_size(2),
            dx.dim_size(3),
            dy.dim_size(2),
            dy.dim_size(3),
            rebind[Index](rows.unsafe_ptr()),
            rebind[Index](cols.unsafe_ptr()),
        )
