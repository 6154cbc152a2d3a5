"""Normalisation of rows and of groups of channels: LayerNorm, RMSNorm and GroupNorm, with their gradients.

    y = (x - mean) rstd w + b,   rstd = 1 / sqrt(var + eps)        RMSNorm: mean = 0 and var = the mean of x^2

x is [batch, groups * channels, spatial]; each (batch, group) is normalised on its own, w and b belong to channels. So
LayerNorm and RMSNorm have one group and a spatial size of 1.

The mean is found around the row's first element and kept as two numbers, `mean + rest`; squares are summed around it. So
an offset of a million deviations costs no accuracy, in float32 as well. Sums run in vectors over blocks of a few
thousand elements, which are added up in float64. bfloat16 is computed in float32, with w and b in float32.

Gradients of w and b are summed over chunks of the batch whose size depends on the shape alone, then over the chunks in
order: the same bits for any number of threads.
"""

from std.math import ceildiv, sqrt
from std.sys.info import simd_width_of

from .activation import IDENTITY, activate_rows
from .gemm_reduce import add_column_sums
from .memory import COMPUTE, Ptr, allocate, at, lanes_below, load_lanes, release, store, store_lanes
from .threads import parallel_for, worthwhile_parts

comptime F64 = DType.float64
comptime BLOCK = 4096
"""Elements summed in the dtype to compute in before float64 takes over; a multiple of four vectors."""
comptime SUM_BLOCK = 1024
"""The same for plain sums of gradients, which grow with the square root of their number and keep more bits so."""

comptime STATS = 3
"""Numbers kept for each row: mean, rest of the mean, rstd."""

comptime ELEMENT_FLOPS = 12
"""What an element of a norm costs, in operations of a matrix product."""

comptime CHUNK = 32
"""At most so many rows' share of the gradients of w and b is summed at a time."""


@fieldwise_init
struct Rows(Copyable, Movable):
    """Sizes and options of one normalisation."""

    var batch: Int
    var groups: Int
    var channels: Int
    """Channels of one group."""
    var spatial: Int
    var center: Bool
    """Whether the mean is subtracted (LayerNorm, GroupNorm) or taken as 0 (RMSNorm)."""

    def length(self) -> Int:
        """Elements of one row."""
        return self.channels * self.spatial

    def width(self) -> Int:
        """Channels of all groups."""
        return self.groups * self.channels

    def chunk(self) -> Int:
        """How many batch elements' gradients of w and b are summed before the chunks are added up."""
        return min(CHUNK, ceildiv(self.batch, 16)) if self.spatial == 1 else 1


@always_inline
def block_sums[
    dtype: DType, first: Bool, second: Bool
](x: Ptr[dtype], count: Int, shift: Scalar[COMPUTE[dtype]]) -> Tuple[Float64, Float64]:
    """Sums of (x - shift) and of its square; what is not asked for stays 0."""
    comptime C = COMPUTE[dtype]
    comptime W = simd_width_of[C]()
    comptime V = SIMD[C, W]
    var tail = count % W
    var mask = lanes_below[C, W](tail)
    var total1 = Float64(0)
    var total2 = Float64(0)
    var i = 0
    while i < count:
        var stop = min(count, i + BLOCK)
        var sums = Array[V, 4](fill=V(0))
        var squares = Array[V, 4](fill=V(0))
        while i + 4 * W <= stop:
            comptime for j in range(4):
                var d = load_lanes[dtype, W, False](x.unsafe_offset(i + j * W), mask) - shift
                comptime if first:
                    sums[j] += d
                comptime if second:
                    squares[j] = d.fma(d, squares[j])
            i += 4 * W
        while i + W <= stop:
            var d = load_lanes[dtype, W, False](x.unsafe_offset(i), mask) - shift
            comptime if first:
                sums[0] += d
            comptime if second:
                squares[1] = d.fma(d, squares[1])
            i += W
        if i < stop:
            var d = mask.select(load_lanes[dtype, W, True](x.unsafe_offset(i), mask) - shift, V(0))
            comptime if first:
                sums[2] += d
            comptime if second:
                squares[3] = d.fma(d, squares[3])
            i = stop
        comptime if first:
            total1 += ((sums[0] + sums[1]) + (sums[2] + sums[3])).cast[F64]().reduce_add()
        comptime if second:
            total2 += ((squares[0] + squares[1]) + (squares[2] + squares[3])).cast[F64]().reduce_add()
    return (total1, total2)


@always_inline
def write_moments[dtype: DType](stats: Ptr[COMPUTE[dtype]], x: Ptr[dtype], count: Int, center: Bool, eps: Float64):
    """`stats` of one row: mean, rest of the mean, rstd."""
    comptime C = COMPUTE[dtype]
    var mean = Scalar[C](0)
    var rest = Scalar[C](0)
    var variance: Float64
    var n = Float64(count)
    if center:
        var start = load_lanes[dtype, 1, False](x, True)[0]
        var sum = block_sums[dtype, True, False](x, count, start)[0]
        mean = (start.cast[F64]() + sum / n).cast[C]()
        var around = block_sums[dtype, True, True](x, count, mean)
        rest = (around[0] / n).cast[C]()
        variance = max(around[1] / n - (around[0] / n) * (around[0] / n), Float64(0))
        if around[1] != around[1]:
            variance = around[1]
    else:
        variance = block_sums[dtype, False, True](x, count, Scalar[C](0))[1] / n
    store[1](stats, 0, mean)
    store[1](stats, 1, rest)
    store[1](stats, 2, (1 / sqrt(variance + eps)).cast[C]())


@no_inline
def row_norm[
    dtype: DType
](
    y: Ptr[dtype],
    stats: Ptr[COMPUTE[dtype]],
    x: Ptr[dtype],
    weight: Ptr[COMPUTE[dtype]],
    has_weight: Bool,
    bias: Ptr[COMPUTE[dtype]],
    has_bias: Bool,
    rows: Rows,
    eps: Float64,
    activation: Int,
):
    """`y = act((x - mean) rstd w + b)`, and the statistics of every row."""
    comptime C = COMPUTE[dtype]
    comptime W = simd_width_of[C]()
    comptime V = SIMD[C, W]
    var count = rows.batch * rows.groups
    var length = rows.length()
    var channels = rows.channels
    var spatial = rows.spatial
    var groups = rows.groups
    var center = rows.center
    var parts = worthwhile_parts(count * length * ELEMENT_FLOPS)
    var step = ceildiv(count, parts)

    def part(p: Int) {imm}:
        for r in range(p * step, min(count, (p + 1) * step)):
            var source = x.unsafe_offset(r * length)
            var target = y.unsafe_offset(r * length)
            var s = stats.unsafe_offset(r * STATS)
            write_moments[dtype](s, source, length, center, eps)
            var mean = at(s, 0)
            var rest = at(s, 1)
            var rstd = at(s, 2)
            var channel = r % groups * channels
            if spatial == 1:
                var w = weight.unsafe_offset(channel)
                var b = bias.unsafe_offset(channel)
                var mask = lanes_below[C, W](length % W)

                @__parameter
                @always_inline
                def element[masked: Bool](i: Int):
                    var v = ((load_lanes[dtype, W, masked](source.unsafe_offset(i), mask) - mean) - rest) * rstd
                    if has_weight:
                        v *= rebind[V](load_lanes[C, W, masked](w.unsafe_offset(i), mask))
                    if has_bias:
                        v += rebind[V](load_lanes[C, W, masked](b.unsafe_offset(i), mask))
                    store_lanes[dtype, W, masked](v, target.unsafe_offset(i), mask)

                var i = 0
                while i + W <= length:
                    element[False](i)
                    i += W
                if i < length:
                    element[True](i)
            else:
                for c in range(channels):
                    var w = at(weight, channel + c) if has_weight else Scalar[C](1)
                    var b = at(bias, channel + c) if has_bias else Scalar[C](0)
                    scale_run[dtype](
                        target.unsafe_offset(c * spatial),
                        source.unsafe_offset(c * spatial),
                        spatial,
                        mean,
                        rest,
                        rstd * w,
                        b,
                    )
            if activation != IDENTITY:
                activate_rows(activation, target, length, target, length, 1, length)

    parallel_for(part, parts)


@always_inline
def scale_run[
    dtype: DType
](
    y: Ptr[dtype],
    x: Ptr[dtype],
    count: Int,
    mean: Scalar[COMPUTE[dtype]],
    rest: Scalar[COMPUTE[dtype]],
    scale: Scalar[COMPUTE[dtype]],
    bias: Scalar[COMPUTE[dtype]],
):
    """`y = ((x - mean) - rest) scale + bias` over neighbours that share a channel."""
    comptime C = COMPUTE[dtype]
    comptime W = simd_width_of[C]()
    comptime V = SIMD[C, W]
    var mask = lanes_below[C, W](count % W)

    @__parameter
    @always_inline
    def element[masked: Bool](i: Int):
        var v = (load_lanes[dtype, W, masked](x.unsafe_offset(i), mask) - mean) - rest
        store_lanes[dtype, W, masked](v.fma(V(scale), V(bias)), y.unsafe_offset(i), mask)

    var i = 0
    while i + W <= count:
        element[False](i)
        i += W
    if i < count:
        element[True](i)


@always_inline
def run_sums[
    dtype: DType
](dy: Ptr[dtype], x: Ptr[dtype], count: Int, mean: Scalar[COMPUTE[dtype]], rest: Scalar[COMPUTE[dtype]]) -> Tuple[
    Float64, Float64
]:
    """Sums of dy and of dy (x - mean - rest) over neighbours that share a channel."""
    comptime C = COMPUTE[dtype]
    comptime W = simd_width_of[C]()
    comptime V = SIMD[C, W]
    var mask = lanes_below[C, W](count % W)
    var total1 = Float64(0)
    var total2 = Float64(0)
    var i = 0
    while i < count:
        var stop = min(count, i + SUM_BLOCK)
        var sums = Array[V, 2](fill=V(0))
        var products = Array[V, 2](fill=V(0))
        while i + 2 * W <= stop:
            comptime for j in range(2):
                var g = load_lanes[dtype, W, False](dy.unsafe_offset(i + j * W), mask)
                var d = (load_lanes[dtype, W, False](x.unsafe_offset(i + j * W), mask) - mean) - rest
                sums[j] += g
                products[j] = g.fma(d, products[j])
            i += 2 * W
        while i + W <= stop:
            var g = load_lanes[dtype, W, False](dy.unsafe_offset(i), mask)
            var d = (load_lanes[dtype, W, False](x.unsafe_offset(i), mask) - mean) - rest
            sums[0] += g
            products[0] = g.fma(d, products[0])
            i += W
        if i < stop:
            var g = load_lanes[dtype, W, True](dy.unsafe_offset(i), mask)
            var d = mask.select((load_lanes[dtype, W, True](x.unsafe_offset(i), mask) - mean) - rest, V(0))
            sums[1] += g
            products[1] = g.fma(d, products[1])
            i = stop
        total1 += (sums[0] + sums[1]).cast[F64]().reduce_add()
        total2 += (products[0] + products[1]).cast[F64]().reduce_add()
    return (total1, total2)


@always_inline
def grad_run[
    dtype: DType
](
    dx: Ptr[dtype],
    dy: Ptr[dtype],
    x: Ptr[dtype],
    count: Int,
    mean: Scalar[COMPUTE[dtype]],
    rest: Scalar[COMPUTE[dtype]],
    scale: Scalar[COMPUTE[dtype]],
    slope: Scalar[COMPUTE[dtype]],
    offset: Scalar[COMPUTE[dtype]],
):
    """`dx = scale dy - slope (x - mean - rest) - offset` over neighbours that share a channel."""
    comptime C = COMPUTE[dtype]
    comptime W = simd_width_of[C]()
    comptime V = SIMD[C, W]
    var mask = lanes_below[C, W](count % W)

    @__parameter
    @always_inline
    def element[masked: Bool](i: Int):
        var g = load_lanes[dtype, W, masked](dy.unsafe_offset(i), mask)
        var d = (load_lanes[dtype, W, masked](x.unsafe_offset(i), mask) - mean) - rest
        store_lanes[dtype, W, masked](g.fma(V(scale), d.fma(V(-slope), V(-offset))), dx.unsafe_offset(i), mask)

    var i = 0
    while i + W <= count:
        element[False](i)
        i += W
    if i < count:
        element[True](i)


@always_inline
def _grad_wide_row[
    dtype: DType
](
    dx: Ptr[dtype],
    dy: Ptr[dtype],
    x: Ptr[dtype],
    stats: Ptr[COMPUTE[dtype]],
    weight: Ptr[COMPUTE[dtype]],
    has_weight: Bool,
    sums_weight: Ptr[COMPUTE[dtype]],
    sums_bias: Ptr[COMPUTE[dtype]],
    wanted: Bool,
    length: Int,
    center: Bool,
):
    """One row whose every element has its own w: the input gradient, and its share of the gradients of w and b."""
    comptime C = COMPUTE[dtype]
    comptime W = simd_width_of[C]()
    comptime V = SIMD[C, W]
    var mask = lanes_below[C, W](length % W)
    var mean = at(stats, 0)
    var rest = at(stats, 1)
    var rstd = at(stats, 2)
    var total = Float64(0)
    var total_product = Float64(0)
    var sums = Array[V, 2](fill=V(0))
    var products = Array[V, 2](fill=V(0))

    @__parameter
    @always_inline
    def normalised[masked: Bool](i: Int) -> V:
        var v = ((load_lanes[dtype, W, masked](x.unsafe_offset(i), mask) - mean) - rest) * rstd
        comptime if masked:
            return mask.select(v, V(0))
        else:
            return v

    @__parameter
    @always_inline
    def upstream[masked: Bool](i: Int) -> V:
        var g = load_lanes[dtype, W, masked](dy.unsafe_offset(i), mask)
        if has_weight:
            g *= rebind[V](load_lanes[C, W, masked](weight.unsafe_offset(i), mask))
        return g

    var i = 0
    while i < length:
        var stop = min(length, i + BLOCK)
        while i + 2 * W <= stop:
            comptime for j in range(2):
                var g = upstream[False](i + j * W)
                sums[j] += g
                products[j] = g.fma(normalised[False](i + j * W), products[j])
            i += 2 * W
        while i + W <= stop:
            var g = upstream[False](i)
            sums[0] += g
            products[0] = g.fma(normalised[False](i), products[0])
            i += W
        if i < stop:
            var g = upstream[True](i)
            sums[1] += g
            products[1] = g.fma(normalised[True](i), products[1])
            i = stop
        total += (sums[0] + sums[1]).reduce_add().cast[F64]()
        total_product += (products[0] + products[1]).reduce_add().cast[F64]()
        sums = Array[V, 2](fill=V(0))
        products = Array[V, 2](fill=V(0))
    var average = V((total / Float64(length)).cast[C]() if center else Scalar[C](0))
    var slope = V(-(total_product / Float64(length)).cast[C]())

    @__parameter
    @always_inline
    def element[masked: Bool](i: Int):
        var v = normalised[masked](i)
        store_lanes[dtype, W, masked]((v.fma(slope, upstream[masked](i) - average)) * rstd, dx.unsafe_offset(i), mask)
        if wanted:
            var g = load_lanes[dtype, W, masked](dy.unsafe_offset(i), mask)
            var w = sums_weight.unsafe_offset(i)
            var b = sums_bias.unsafe_offset(i)
            var dw = g.fma(v, rebind[V](load_lanes[C, W, masked](w, mask)))
            var db = g + rebind[V](load_lanes[C, W, masked](b, mask))
            store_lanes[C, W, masked](rebind[SIMD[COMPUTE[C], W]](dw), w, mask)
            store_lanes[C, W, masked](rebind[SIMD[COMPUTE[C], W]](db), b, mask)

    i = 0
    while i + W <= length:
        element[False](i)
        i += W
    if i < length:
        element[True](i)


@no_inline
def row_norm_grad[
    dtype: DType
](
    dx: Ptr[dtype],
    dweight: Ptr[COMPUTE[dtype]],
    has_dweight: Bool,
    dbias: Ptr[COMPUTE[dtype]],
    has_dbias: Bool,
    dy: Ptr[dtype],
    x: Ptr[dtype],
    stats: Ptr[COMPUTE[dtype]],
    weight: Ptr[COMPUTE[dtype]],
    has_weight: Bool,
    rows: Rows,
):
    """`dx = rstd (g - mean(g) - n mean(g n))` with g = dy w and n = (x - mean) rstd; `dw += sum dy n`, `db += sum dy`.
    """
    comptime C = COMPUTE[dtype]
    var length = rows.length()
    var channels = rows.channels
    var spatial = rows.spatial
    var groups = rows.groups
    var width = rows.width()
    var batch = rows.batch
    var center = rows.center
    var wanted = has_dweight or has_dbias
    var chunk = max(1, rows.chunk())
    var chunks = ceildiv(batch, chunk)
    var scratch = allocate[C](max(1, 2 * width * chunks) if wanted else 1)
    var parts = worthwhile_parts(batch * groups * length * ELEMENT_FLOPS)
    var step = ceildiv(chunks, parts)

    def part(p: Int) {imm}:
        for k in range(p * step, min(chunks, (p + 1) * step)):
            var sums_weight = scratch.unsafe_offset(2 * width * k if wanted else 0)
            var sums_bias = sums_weight.unsafe_offset(width if wanted else 0)
            if wanted:
                for c in range(2 * width):
                    store[1](sums_weight, c, Scalar[C](0))
            for r in range(k * chunk * groups, min(batch, (k + 1) * chunk) * groups):
                var channel = r % groups * channels
                var s = stats.unsafe_offset(r * STATS)
                var start = r * length
                if spatial == 1:
                    _grad_wide_row[dtype](
                        dx.unsafe_offset(start),
                        dy.unsafe_offset(start),
                        x.unsafe_offset(start),
                        s,
                        weight.unsafe_offset(channel if has_weight else 0),
                        has_weight,
                        sums_weight.unsafe_offset(channel if wanted else 0),
                        sums_bias.unsafe_offset(channel if wanted else 0),
                        wanted,
                        length,
                        center,
                    )
                    continue
                var mean = at(s, 0)
                var rest = at(s, 1)
                var rstd = at(s, 2).cast[F64]()
                var total = Float64(0)
                var total_product = Float64(0)
                for c in range(channels):
                    var at_channel = start + c * spatial
                    var sums = run_sums[dtype](
                        dy.unsafe_offset(at_channel), x.unsafe_offset(at_channel), spatial, mean, rest
                    )
                    var w = at(weight, channel + c).cast[F64]() if has_weight else Float64(1)
                    total += w * sums[0]
                    total_product += w * sums[1] * rstd
                    if wanted:
                        store[1](sums_weight, channel + c, (sums[1] * rstd).cast[C]())
                        store[1](sums_bias, channel + c, sums[0].cast[C]())
                var average = total / Float64(length) if center else Float64(0)
                var slope = total_product / Float64(length) * rstd * rstd
                for c in range(channels):
                    var at_channel = start + c * spatial
                    var w = at(weight, channel + c).cast[F64]() if has_weight else Float64(1)
                    grad_run[dtype](
                        dx.unsafe_offset(at_channel),
                        dy.unsafe_offset(at_channel),
                        x.unsafe_offset(at_channel),
                        spatial,
                        mean,
                        rest,
                        (w * rstd).cast[C](),
                        slope.cast[C](),
                        (average * rstd).cast[C](),
                    )

    parallel_for(part, parts)
    if has_dweight:
        add_column_sums(dweight, scratch, 2 * width, chunks, width)
    if has_dbias:
        add_column_sums(dbias, scratch.unsafe_offset(width), 2 * width, chunks, width)
    release(scratch)
