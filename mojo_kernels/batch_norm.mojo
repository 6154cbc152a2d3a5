"""BatchNorm over the batch and all positions of x [batch, channels, spatial], and its gradient.

    y = (x - mean) rstd w + b,   rstd = 1 / sqrt(var + eps)

While training, mean and (biased) variance are those of the batch, and the running ones move towards them, the variance
by its unbiased estimate, as in PyTorch; in evaluation the running ones are used. An activation may follow: it is applied
while the normalised values are in the cache, and its derivative is taken at values normalised again.

Statistics are shifted sums over runs of neighbours, joined in float64 in the order of the batch, so an offset costs no
accuracy. Threads share the channels: the same bits for any number of them. With a spatial size of 1 vectors run over
channels, else over positions.
"""

from extensibility import InputTensor
from std.math import ceildiv, sqrt
from std.sys.info import simd_width_of

from .activation import IDENTITY, SIGMOID, TANH, activate_rows, activation_grad_rows
from .memory import COMPUTE, Ptr, at, lanes_below, load_lanes, store, store_lanes
from .norm import BLOCK, ELEMENT_FLOPS, F64, STATS, block_sums, grad_run, run_sums, scale_run
from .threads import parallel_for, worthwhile_parts

comptime ROW_BLOCK = 64
"""Rows summed in the dtype to compute in before float64 takes over."""


@fieldwise_init
struct Maps(Copyable, Movable):
    """Sizes of x."""

    var batch: Int
    var channels: Int
    var spatial: Int

    def parts(self) -> Int:
        """Into how many parts the work should be divided."""
        return worthwhile_parts(self.batch * self.channels * self.spatial * ELEMENT_FLOPS)


def maps_of(x: InputTensor) -> Maps:
    """Sizes from the shape [batch, channels, ...]."""
    var spatial = 1
    comptime for d in range(2, x.rank):
        spatial *= x.dim_size(d)
    return Maps(x.dim_size(0), x.dim_size(min(1, x.rank - 1)), spatial)


@always_inline
def _write_stats[
    dtype: DType
](
    stats: Ptr[dtype],
    c: Int,
    mean: Float64,
    variance: Float64,
    count: Int,
    eps: Float64,
    momentum: Float64,
    running: Bool,
    old_mean: Ptr[dtype],
    old_var: Ptr[dtype],
    new_mean: Ptr[dtype],
    new_var: Ptr[dtype],
):
    """The channel's mean (in two parts) and rstd, and the running statistics moved on."""
    var high = mean.cast[dtype]()
    store[1](stats, c * STATS, high)
    store[1](stats, c * STATS + 1, (mean - high.cast[F64]()).cast[dtype]())
    store[1](stats, c * STATS + 2, (1 / sqrt(variance + eps)).cast[dtype]())
    if running:
        var unbiased = variance * Float64(count) / Float64(count - 1)
        var m = (1 - momentum) * at(old_mean, c).cast[F64]() + momentum * mean
        var v = (1 - momentum) * at(old_var, c).cast[F64]() + momentum * unbiased
        store[1](new_mean, c, m.cast[dtype]())
        store[1](new_var, c, v.cast[dtype]())


@always_inline
def _channel_moments[dtype: DType](x: Ptr[dtype], maps: Maps, c: Int) -> Tuple[Float64, Float64]:
    """Mean and biased variance of one channel: each run is summed around the mean of those before it."""
    var count = Float64(0)
    var mean = load_lanes[dtype, 1, False](x.unsafe_offset(c * maps.spatial), True)[0].cast[F64]()
    var squares = Float64(0)
    for b in range(maps.batch):
        var run = x.unsafe_offset((b * maps.channels + c) * maps.spatial)
        var i = 0
        while i < maps.spatial:
            var n = min(BLOCK, maps.spatial - i)
            var shift = mean.cast[COMPUTE[dtype]]()
            if count == 0:  # nothing is known yet: look at the run twice
                var start = shift.cast[F64]()
                var first = block_sums[dtype, True, False](run, n, shift)[0]
                shift = (start + first / Float64(n)).cast[COMPUTE[dtype]]()
            var sums = block_sums[dtype, True, True](run.unsafe_offset(i), n, shift)
            var average = sums[0] / Float64(n)
            var own = sums[1] - sums[0] * average
            var gap = shift.cast[F64]() + average - mean
            var total = count + Float64(n)
            squares += own + (gap * gap * count * (Float64(n) / total) if count > 0 else Float64(0))
            mean = mean + gap * (Float64(n) / total)
            count = total
            i += n
    var variance = squares / count
    return (mean, variance if variance > 0 or variance != variance else Float64(0))


@always_inline
def _column_sums[
    dtype: DType, width: Int, first: Bool, second: Bool
](x: Ptr[dtype], maps: Maps, shift: SIMD[COMPUTE[dtype], width], mask: SIMD[DType.bool, width]) -> Tuple[
    SIMD[F64, width], SIMD[F64, width]
]:
    """Sums of (x - shift) and its square down `width` neighbouring columns."""
    comptime C = COMPUTE[dtype]
    var total1 = SIMD[F64, width](0)
    var total2 = SIMD[F64, width](0)
    for block in range(0, maps.batch, ROW_BLOCK):
        var sums = SIMD[C, width](0)
        var squares = SIMD[C, width](0)
        for r in range(block, min(maps.batch, block + ROW_BLOCK)):
            var d = load_lanes[dtype, width, True](x.unsafe_offset(r * maps.channels), mask) - shift
            comptime if first:
                sums += d
            comptime if second:
                squares = d.fma(d, squares)
        total1 += sums.cast[F64]()
        total2 += squares.cast[F64]()
    return (total1, total2)


@no_inline
def batch_norm_stats[
    dtype: DType
](
    stats: Ptr[COMPUTE[dtype]],
    new_mean: Ptr[COMPUTE[dtype]],
    new_var: Ptr[COMPUTE[dtype]],
    x: Ptr[dtype],
    old_mean: Ptr[COMPUTE[dtype]],
    old_var: Ptr[COMPUTE[dtype]],
    running: Bool,
    maps: Maps,
    eps: Float64,
    momentum: Float64,
):
    """Statistics of every channel of the batch; with `running` the running ones moved on."""
    comptime C = COMPUTE[dtype]
    comptime W = simd_width_of[C]()
    var count = maps.batch * maps.spatial
    var channels = maps.channels
    var units = ceildiv(channels, W) if maps.spatial == 1 else channels
    var parts = min(maps.parts(), max(units, 1))
    var step = ceildiv(units, parts)

    def part(p: Int) {imm}:
        for unit in range(p * step, min(units, (p + 1) * step)):
            if maps.spatial != 1:
                var moments = _channel_moments[dtype](x, maps, unit)
                _write_stats[C](
                    stats,
                    unit,
                    moments[0],
                    moments[1],
                    count,
                    eps,
                    momentum,
                    running,
                    old_mean,
                    old_var,
                    new_mean,
                    new_var,
                )
                continue
            var c = unit * W
            var mask = lanes_below[C, W](min(W, channels - c))
            var columns = x.unsafe_offset(c)
            var n = Float64(count)
            var start = load_lanes[dtype, W, True](columns, mask)
            var sums = _column_sums[dtype, W, True, False](columns, maps, start, mask)
            var shift = (start.cast[F64]() + sums[0] / n).cast[C]()
            var around = _column_sums[dtype, W, True, True](columns, maps, shift, mask)
            for lane in range(min(W, channels - c)):
                var rest = around[0][lane] / n
                var variance = around[1][lane] / n - rest * rest
                if variance < 0:
                    variance = 0
                _write_stats[C](
                    stats,
                    c + lane,
                    shift[lane].cast[F64]() + rest,
                    variance,
                    count,
                    eps,
                    momentum,
                    running,
                    old_mean,
                    old_var,
                    new_mean,
                    new_var,
                )

    parallel_for(part, parts)


def running_stats[dtype: DType](stats: Ptr[dtype], mean: Ptr[dtype], variance: Ptr[dtype], channels: Int, eps: Float64):
    """Statistics of every channel from the running ones."""
    for c in range(channels):
        store[1](stats, c * STATS, at(mean, c))
        store[1](stats, c * STATS + 1, Scalar[dtype](0))
        store[1](stats, c * STATS + 2, (1 / sqrt(at(variance, c).cast[F64]() + eps)).cast[dtype]())


@always_inline
def _lanes_of_stats[
    dtype: DType, width: Int
](stats: Ptr[dtype], c: Int, lanes: Int) -> Tuple[SIMD[dtype, width], SIMD[dtype, width], SIMD[dtype, width]]:
    """Mean, rest and rstd of neighbouring channels."""
    var mean = SIMD[dtype, width](0)
    var rest = SIMD[dtype, width](0)
    var rstd = SIMD[dtype, width](0)
    for lane in range(lanes):
        mean[lane] = at(stats, (c + lane) * STATS)
        rest[lane] = at(stats, (c + lane) * STATS + 1)
        rstd[lane] = at(stats, (c + lane) * STATS + 2)
    return (mean, rest, rstd)


@no_inline
def batch_norm_apply[
    dtype: DType
](
    y: Ptr[dtype],
    x: Ptr[dtype],
    stats: Ptr[COMPUTE[dtype]],
    weight: Ptr[COMPUTE[dtype]],
    bias: Ptr[COMPUTE[dtype]],
    affine: Bool,
    activation: Int,
    maps: Maps,
):
    """`y = act((x - mean) rstd w + b)` with the statistics given."""
    comptime C = COMPUTE[dtype]
    comptime W = simd_width_of[C]()
    comptime V = SIMD[C, W]
    var channels = maps.channels
    var spatial = maps.spatial
    var units = ceildiv(channels, W) if spatial == 1 else channels
    var parts = min(maps.parts(), max(units, 1))
    var step = ceildiv(units, parts)

    def part(p: Int) {imm}:
        for unit in range(p * step, min(units, (p + 1) * step)):
            if spatial != 1:
                var s = stats.unsafe_offset(unit * STATS)
                var scale = at(s, 2) * (at(weight, unit) if affine else Scalar[C](1))
                var shift = at(bias, unit) if affine else Scalar[C](0)
                for b in range(maps.batch):
                    var start = (b * channels + unit) * spatial
                    scale_run[dtype](
                        y.unsafe_offset(start), x.unsafe_offset(start), spatial, at(s, 0), at(s, 1), scale, shift
                    )
                    if activation != IDENTITY:
                        var run = y.unsafe_offset(start)
                        activate_rows(activation, run, spatial, run, spatial, 1, spatial)
                continue
            var c = unit * W
            var mask = lanes_below[C, W](min(W, channels - c))
            var s = _lanes_of_stats[C, W](stats, c, min(W, channels - c))
            var scale = s[2]
            var shift = V(0)
            if affine:
                scale *= rebind[V](load_lanes[C, W, True](weight.unsafe_offset(c), mask))
                shift = rebind[V](load_lanes[C, W, True](bias.unsafe_offset(c), mask))
            for b in range(maps.batch):
                var i = b * channels + c
                var v = (load_lanes[dtype, W, True](x.unsafe_offset(i), mask) - s[0]) - s[1]
                store_lanes[dtype, W, True](v.fma(scale, shift), y.unsafe_offset(i), mask)
            if activation != IDENTITY:
                var columns = y.unsafe_offset(c)
                activate_rows(activation, columns, channels, columns, channels, maps.batch, min(W, channels - c))

    parallel_for(part, parts)


@always_inline
def _through_activation[
    dtype: DType
](dz: Ptr[dtype], dy: Ptr[dtype], z: Ptr[dtype], activation: Int, stride: Int, rows: Int, cols: Int):
    """`dz = dy act'(z)`; z is overwritten, and may be dz."""
    if activation == TANH or activation == SIGMOID:  # whose derivatives are taken from the result
        activate_rows(activation, z, stride, z, stride, rows, cols)
    activation_grad_rows(activation, dy, stride, z, stride, dz, stride, rows, cols)


@no_inline
def batch_norm_grad[
    dtype: DType
](
    dx: Ptr[dtype],
    dweight: Ptr[COMPUTE[dtype]],
    dbias: Ptr[COMPUTE[dtype]],
    wanted: Bool,
    dy: Ptr[dtype],
    x: Ptr[dtype],
    stats: Ptr[COMPUTE[dtype]],
    weight: Ptr[COMPUTE[dtype]],
    bias: Ptr[COMPUTE[dtype]],
    affine: Bool,
    activation: Int,
    training: Bool,
    maps: Maps,
):
    """With n = (x - mean) rstd and dz = dy act'(n w + b): `dw += sum dz n`, `db += sum dz`, and
    `dx = w rstd (dz - mean(dz) - n mean(dz n))`, or `w rstd dz` where the statistics were not the batch's."""
    comptime C = COMPUTE[dtype]
    comptime W = simd_width_of[C]()
    comptime V = SIMD[C, W]
    var channels = maps.channels
    var spatial = maps.spatial
    var n = Float64(max(1, maps.batch * spatial))
    var units = ceildiv(channels, W) if spatial == 1 else channels
    var parts = min(maps.parts(), max(units, 1))
    var step = ceildiv(units, parts)
    var fused = activation != IDENTITY
    var dz = dx if fused else dy

    def part(p: Int) {imm}:
        for unit in range(p * step, min(units, (p + 1) * step)):
            if spatial != 1:
                var s = stats.unsafe_offset(unit * STATS)
                var rstd = at(s, 2).cast[F64]()
                var sum = Float64(0)
                var product = Float64(0)
                for b in range(maps.batch):
                    var start = (b * channels + unit) * spatial
                    var source = x.unsafe_offset(start)
                    var run = dx.unsafe_offset(start)
                    if fused:
                        var shift = at(bias, unit) if affine else Scalar[C](0)
                        var factor = at(s, 2) * (at(weight, unit) if affine else Scalar[C](1))
                        scale_run[dtype](run, source, spatial, at(s, 0), at(s, 1), factor, shift)
                        _through_activation(run, dy.unsafe_offset(start), run, activation, spatial, 1, spatial)
                    if wanted or training:
                        var sums = run_sums[dtype](dz.unsafe_offset(start), source, spatial, at(s, 0), at(s, 1))
                        sum += sums[0]
                        product += sums[1]
                if wanted:
                    store[1](dweight, unit, at(dweight, unit) + (product * rstd).cast[C]())
                    store[1](dbias, unit, at(dbias, unit) + sum.cast[C]())
                var scale = rstd * (at(weight, unit).cast[F64]() if affine else Float64(1))
                var slope = scale * product / n * rstd * rstd
                var offset = scale * sum / n
                for b in range(maps.batch):
                    var start = (b * channels + unit) * spatial
                    var run = dx.unsafe_offset(start)
                    var g = dz.unsafe_offset(start)
                    if not training:  # x, whatever is in it, has no part in this
                        scale_run[dtype](run, g, spatial, Scalar[C](0), Scalar[C](0), scale.cast[C](), Scalar[C](0))
                        continue
                    grad_run[dtype](
                        run,
                        g,
                        x.unsafe_offset(start),
                        spatial,
                        at(s, 0),
                        at(s, 1),
                        scale.cast[C](),
                        slope.cast[C](),
                        offset.cast[C](),
                    )
                continue
            var c = unit * W
            var lanes = min(W, channels - c)
            var mask = lanes_below[C, W](lanes)
            var s = _lanes_of_stats[C, W](stats, c, lanes)
            var factor = V(1)
            var shift = V(0)
            if affine:
                factor = rebind[V](load_lanes[C, W, True](weight.unsafe_offset(c), mask))
                if fused:
                    shift = rebind[V](load_lanes[C, W, True](bias.unsafe_offset(c), mask))
            if fused:
                for b in range(maps.batch):
                    var i = b * channels + c
                    var v = (load_lanes[dtype, W, True](x.unsafe_offset(i), mask) - s[0]) - s[1]
                    store_lanes[dtype, W, True](v.fma(s[2] * factor, shift), dx.unsafe_offset(i), mask)
                var columns = dx.unsafe_offset(c)
                _through_activation(columns, dy.unsafe_offset(c), columns, activation, channels, maps.batch, lanes)
            var sum = SIMD[F64, W](0)
            var product = SIMD[F64, W](0)
            if wanted or training:
                for block in range(0, maps.batch, ROW_BLOCK):
                    var sums = V(0)
                    var products = V(0)
                    for b in range(block, min(maps.batch, block + ROW_BLOCK)):
                        var i = b * channels + c
                        var g = load_lanes[dtype, W, True](dz.unsafe_offset(i), mask)
                        var d = (load_lanes[dtype, W, True](x.unsafe_offset(i), mask) - s[0]) - s[1]
                        sums += g
                        products = g.fma(d, products)
                    sum += sums.cast[F64]()
                    product += products.cast[F64]()
            var rstd = s[2].cast[F64]()
            if wanted:
                var w = dweight.unsafe_offset(c)
                var b = dbias.unsafe_offset(c)
                var dw = rebind[V](load_lanes[C, W, True](w, mask)) + (product * rstd).cast[C]()
                var db = rebind[V](load_lanes[C, W, True](b, mask)) + sum.cast[C]()
                store_lanes[C, W, True](rebind[SIMD[COMPUTE[C], W]](dw), w, mask)
                store_lanes[C, W, True](rebind[SIMD[COMPUTE[C], W]](db), b, mask)
            var scale = rstd * factor.cast[F64]()
            var slope = (scale * product / n * rstd * rstd).cast[C]()
            var offset = (scale * sum / n).cast[C]()
            for b in range(maps.batch):
                var i = b * channels + c
                var g = load_lanes[dtype, W, True](dz.unsafe_offset(i), mask)
                var rest = V(0)
                if training:
                    var d = (load_lanes[dtype, W, True](x.unsafe_offset(i), mask) - s[0]) - s[1]
                    rest = d.fma(-slope, -offset)
                store_lanes[dtype, W, True](g.fma(scale.cast[C](), rest), dx.unsafe_offset(i), mask)

    parallel_for(part, parts)
