"""Gradients of a convolution's weights and bias on CPU: sums over images and output positions.

    dw[m, c, ty, tx] += sum over n, i, j of  dy[n, m, i, j]  x[n, c, rows(i, ty), cols(j, tx)]        db[m] += sum of dy[n, m]

As a matrix product its depth is all positions of all images. Positions are taken in blocks of up to KC, across images
where these are small: dy is transposed into panels of NR channels, the source values of some (c, ty, tx) are laid out
as rows, and the register tiles of `gemm_kernel` add their product to a sum [(c, ty, tx), m].

The units (some positions of an image) are divided into a number of shares that depends on the sizes alone. Each share
has sums of its own, added up in order at the end: threads take shares, or channels of a share, and their number changes
nothing.
"""

from std.math import ceildiv
from std.sys.info import simd_width_of
from std.sys.intrinsics import masked_load

from .conv import Convolution
from .conv_axis import Axis
from .conv_source import Offsets, copy_source, find_taps, source_elements
from .gemm import run_tile
from .gemm_kernel import KC, MR, NR
from .gemm_pack import copy_transposed
from .memory import Ptr, allocate, lanes_below, release
from .threads import parallel_for, worthwhile_parts

comptime SHARES = 8
"""Most shares of the positions."""
comptime SUM_ELEMENTS = 4 * 1024 * 1024
"""Most elements of all shares' sums."""
comptime A_ROWS = 192
"""Rows of source values laid out at a time."""


@fieldwise_init
struct WeightGrad[dtype: DType](ImplicitlyCopyable):
    """The problem, and how its positions are cut into units."""

    var dw: Ptr[Self.dtype]
    var has_bias: Bool
    var db: Ptr[Self.dtype]
    var x: Ptr[Self.dtype]
    var dy: Ptr[Self.dtype]
    var images: Int
    var groups: Int
    var outs: Int
    var ins: Int
    var rows: Axis
    var cols: Axis
    var unit_rows: Int
    var unit_cols: Int

    @always_inline
    def down(self) -> Int:
        """Units from the top to the bottom of an image."""
        return ceildiv(self.rows.outs, self.unit_rows)

    @always_inline
    def across(self) -> Int:
        """Units from the left to the right."""
        return ceildiv(self.cols.outs, self.unit_cols)

    def unit(self, i: Int) -> Part:
        """Unit number i, images outermost."""
        var column = i % self.across()
        var row = i // self.across() % self.down()
        var image = i // self.across() // self.down()
        var top = row * self.unit_rows
        var left = column * self.unit_cols
        return Part(
            image,
            top,
            min(self.unit_rows, self.rows.outs - top),
            left,
            min(self.unit_cols, self.cols.outs - left),
        )


@fieldwise_init
struct Part(ImplicitlyCopyable):
    """Some positions of an image."""

    var image: Int
    var top: Int
    var height: Int
    var left: Int
    var width: Int

    @always_inline
    def positions(self) -> Int:
        """How many."""
        return self.height * self.width

    def columns(self, cols: Axis) -> Axis:
        """The axis of its columns."""
        var axis = cols
        axis.outs = self.width
        axis.first += self.left * cols.step
        return axis


@no_inline
def _pack_positions[
    dtype: DType
](dst: Ptr[dtype], src: Ptr[dtype], row_step: Int, slack: Bool, height: Int, width: Int):
    """Neighbouring positions of `height` rows, one row behind the other; dst has room for one more vector."""
    comptime W = simd_width_of[dtype]()
    var d = dst
    for i in range(height):
        var s = src.unsafe_offset(i * row_step)
        var j = 0
        while j + W <= width:
            d.unsafe_offset(j).unsafe_store(s.unsafe_offset(j).unsafe_load[width=W]())
            j += W
        if j < width:
            if slack:
                d.unsafe_offset(j).unsafe_store(s.unsafe_offset(j).unsafe_load[width=W]())
            else:
                var mask = lanes_below[dtype, W](width - j)
                d.unsafe_offset(j).unsafe_store(masked_load[W](s.unsafe_offset(j), mask, SIMD[dtype, W](0)))
        d = d.unsafe_offset(width)


@always_inline
def _sum_run[dtype: DType](p: Ptr[dtype], count: Int) -> Float64:
    """The sum of neighbouring elements: in float64, but for those that share a lane."""
    comptime W = simd_width_of[dtype]()
    var lanes = SIMD[dtype, W](0)
    var j = 0
    while j + W <= count:
        lanes += p.unsafe_offset(j).unsafe_load[width=W]()
        j += W
    if j < count:
        lanes += masked_load[W](p.unsafe_offset(j), lanes_below[dtype, W](count - j), SIMD[dtype, W](0))
    return lanes.cast[DType.float64]().reduce_add()


@no_inline
def _share[
    dtype: DType
](
    g: WeightGrad[dtype],
    group: Int,
    first: Int,
    last: Int,
    c0: Int,
    c1: Int,
    sums: Ptr[dtype],
    pitch: Int,
    bias_sums: Ptr[DType.float64],
):
    """Units [first, last) for the source channels [c0, c1) of a group: sums[(c, ty, tx), m] of the whole group."""
    comptime N = NR[dtype]
    comptime W = simd_width_of[dtype]()
    var taps = g.rows.taps * g.cols.taps
    var unit_size = g.unit_rows * g.unit_cols
    var capacity = max(KC, unit_size)
    var stride = capacity + 16 + W
    var at_once = max(1, A_ROWS // taps)
    if at_once > 4:
        at_once = at_once // 4 * 4
    at_once = min(at_once, c1 - c0)
    var panels = ceildiv(g.outs, N)
    var a_size = at_once * taps * stride + W
    var b_size = panels * capacity * N
    var widest = g.unit(0).columns(g.cols)
    var copy_size = source_elements[dtype](at_once, g.rows, widest, g.unit_rows)
    var a = allocate[dtype](a_size + b_size + copy_size + N)
    var b = a.unsafe_offset(a_size)
    var copy = b.unsafe_offset(b_size)
    var zeros = copy.unsafe_offset(copy_size)
    zeros.unsafe_store(SIMD[dtype, N](0))
    var offsets = rebind[Offsets](allocate[DType.int64](taps).unsafe_bitcast[Int]())
    var plane = g.rows.outs * g.cols.outs
    var source_plane = g.rows.size * g.cols.size
    var fresh = True
    var block = first
    while block < last:
        var end = block
        var depth = 0
        while end < last:
            var p = g.unit(end)
            if depth + p.positions() > capacity:
                break
            var dy = g.dy.unsafe_offset((p.image * g.groups + group) * g.outs * plane + p.top * g.cols.outs + p.left)
            for j in range(panels):
                var dst = b.unsafe_offset((j * capacity + depth) * N)
                copy_transposed(dst, N, dy.unsafe_offset(j * N * plane), plane, min(N, g.outs - j * N), p.positions())
            if c0 == 0 and g.has_bias:
                for m in range(g.outs):
                    var total = bias_sums.unsafe_offset(m)
                    var sum = Float64(0)
                    for i in range(p.height):
                        sum += _sum_run(dy.unsafe_offset(m * plane + i * g.cols.outs), p.width)
                    total.unsafe_store(total.unsafe_load() + sum)
            depth += p.positions()
            end += 1
        for c in range(c0, c1, at_once):
            var channels = min(at_once, c1 - c)
            var done = 0
            for u in range(block, end):
                var p = g.unit(u)
                var cols = p.columns(g.cols)
                var x = g.x.unsafe_offset(((p.image * g.groups + group) * g.ins + c) * source_plane)
                var source = copy_source(copy, x, channels, g.rows, cols, p.top, p.height)
                find_taps(offsets, source, g.rows, cols)
                for k in range(channels * taps):
                    var s = source.start.unsafe_offset(
                        k // taps * source.plane + offsets.unsafe_offset(k % taps).unsafe_load()
                    )
                    _pack_positions(
                        a.unsafe_offset(k * stride + done), s, g.rows.step * source.row, source.slack, p.height, p.width
                    )
                done += p.positions()
            var height = channels * taps
            for i in range(0, height, MR):
                for j in range(panels):
                    var sum = sums.unsafe_offset((c * taps + i) * pitch + j * N)
                    run_tile(
                        min(MR, height - i),
                        min(N, g.outs - j * N),
                        sum,
                        pitch,
                        zeros if fresh else sum,
                        0 if fresh else pitch,
                        a.unsafe_offset(i * stride),
                        stride,
                        False,
                        b.unsafe_offset(j * capacity * N),
                        N,
                        depth,
                    )
        fresh = False
        block = end
    release(a)
    release(offsets)


@no_inline
def _depthwise_group[dtype: DType](g: WeightGrad[dtype], group: Int):
    """A group with one source channel: dot products of dy and shifted source rows, image by image."""
    comptime W = simd_width_of[dtype]()
    comptime V = SIMD[dtype, W]
    var taps = g.rows.taps * g.cols.taps
    var plane = g.rows.outs * g.cols.outs
    var size = source_elements[dtype](1, g.rows, g.cols, g.rows.outs)
    var copy = allocate[dtype](size)
    var totals = allocate[DType.float64]((taps + 1) * g.outs)
    var offsets = rebind[Offsets](allocate[DType.int64](taps).unsafe_bitcast[Int]())
    for t in range((taps + 1) * g.outs):
        totals.unsafe_offset(t).unsafe_store(Float64(0))
    var tail = g.cols.outs % W
    var whole = g.cols.outs - tail
    var mask = lanes_below[dtype, W](tail)
    for image in range(g.images):
        var x = g.x.unsafe_offset((image * g.groups + group) * g.rows.size * g.cols.size)
        var source = copy_source(copy, x, 1, g.rows, g.cols, 0, g.rows.outs)
        find_taps(offsets, source, g.rows, g.cols)
        for m in range(g.outs):
            var dy = g.dy.unsafe_offset(((image * g.groups + group) * g.outs + m) * plane)
            for t in range(taps + 1):
                if t == taps and not g.has_bias:
                    continue
                var sum = V(0)
                for i in range(g.rows.outs):
                    var d = dy.unsafe_offset(i * g.cols.outs)
                    var s = source.start
                    if t < taps:
                        s = s.unsafe_offset(i * g.rows.step * source.row + offsets.unsafe_offset(t).unsafe_load())
                    for j in range(0, whole, W):
                        var v = d.unsafe_offset(j).unsafe_load[width=W]()
                        sum = v.fma(s.unsafe_offset(j).unsafe_load[width=W](), sum) if t < taps else sum + v
                    if tail > 0:
                        var v = masked_load[W](d.unsafe_offset(whole), mask, V(0))
                        if t < taps:
                            sum = v.fma(masked_load[W](s.unsafe_offset(whole), mask, V(0)), sum)
                        else:
                            sum += v
                var p = totals.unsafe_offset(m * (taps + 1) + t)
                p.unsafe_store(p.unsafe_load() + sum.cast[DType.float64]().reduce_add())
    for m in range(g.outs):
        for t in range(taps + 1):
            var total = totals.unsafe_offset(m * (taps + 1) + t).unsafe_load().cast[dtype]()
            if t < taps:
                var p = g.dw.unsafe_offset((group * g.outs + m) * taps + t)
                p.unsafe_store(p.unsafe_load() + total)
            elif g.has_bias:
                var p = g.db.unsafe_offset(group * g.outs + m)
                p.unsafe_store(p.unsafe_load() + total)
    release(copy)
    release(totals)
    release(offsets)


@no_inline
def _add_shares[
    dtype: DType
](dst: Ptr[dtype], dst_row: Int, sums: Ptr[dtype], pitch: Int, step: Int, shares: Int, depth: Int, m: Int, count: Int):
    """`dst[m + l, k] += sum over shares of sums[k, m + l]` for `count` channels, at most a vector."""
    comptime W = simd_width_of[dtype]()
    for k in range(depth):
        var total = SIMD[dtype, W](0)
        for s in range(shares):
            total += sums.unsafe_offset(s * step + k * pitch + m).unsafe_load[width=W]()
        for l in range(count):
            var p = dst.unsafe_offset((m + l) * dst_row + k)
            p.unsafe_store(p.unsafe_load() + total[l])


@no_inline
def convolution_weight_grad[
    dtype: DType
](c: Convolution, dw: Ptr[dtype], has_bias: Bool, db: Ptr[dtype], x: Ptr[dtype], dy: Ptr[dtype], threads: Int = 0):
    """Add the gradients of weights and, with `has_bias`, of the bias."""
    comptime W = simd_width_of[dtype]()
    if c.images == 0 or c.out_height == 0 or c.out_width == 0 or c.ins == 0 or c.outs == 0:
        return
    var unit_cols = min(c.out_width, KC)
    var g = WeightGrad(
        dw,
        has_bias,
        db,
        x,
        dy,
        c.images,
        c.groups,
        c.outs // c.groups,
        c.ins // c.groups,
        Axis.forward(c.rows, c.height, c.out_height),
        Axis.forward(c.cols, c.width, c.out_width),
        max(1, min(c.out_height, KC // unit_cols)) if unit_cols == c.out_width else 1,
        unit_cols,
    )
    var taps = c.rows.kernel * c.cols.kernel
    var depth = g.ins * taps
    var positions = c.images * c.out_height * c.out_width
    var workers = threads if threads > 0 else worthwhile_parts(2 * positions * c.outs * depth)
    if g.ins == 1 and g.outs <= 2:
        var parts = min(workers, g.groups)

        def channels(p: Int) {imm}:
            for i in range(p * g.groups // parts, (p + 1) * g.groups // parts):
                _depthwise_group(g, i)

        parallel_for(channels, parts)
        return

    # what follows up to `shares` must depend on the sizes alone
    var units = c.images * g.down() * g.across()
    var pitch = ceildiv(g.outs, W) * W
    var size = depth * pitch
    var shares = max(1, min(min(SHARES, units), positions // 256))
    shares = max(1, min(shares, SUM_ELEMENTS // (size * c.groups)))

    var step = size * c.groups
    var sums = allocate[dtype](shares * step + W)
    var bias_sums = allocate[DType.float64](shares * c.outs)
    for i in range(shares * c.outs):
        bias_sums.unsafe_offset(i).unsafe_store(Float64(0))
    var splits = min(g.ins, ceildiv(workers, shares * c.groups))
    var tasks = shares * c.groups * splits
    var parts = min(tasks, workers * 4) if workers > 1 else 1

    def part(p: Int) {imm}:
        for task in range(p * tasks // parts, (p + 1) * tasks // parts):
            var split = task % splits
            var group = task // splits % c.groups
            var s = task // splits // c.groups
            var own = sums.unsafe_offset(s * step + group * size)
            _share(
                g,
                group,
                s * units // shares,
                (s + 1) * units // shares,
                split * g.ins // splits,
                (split + 1) * g.ins // splits,
                own,
                pitch,
                bias_sums.unsafe_offset(s * c.outs + group * g.outs),
            )

    parallel_for(part, parts)

    var blocks = ceildiv(g.outs, W)
    var adders = min(worthwhile_parts(16 * shares * depth * c.outs), blocks * c.groups)

    def add(p: Int) {imm}:
        for i in range(p * blocks * c.groups // adders, (p + 1) * blocks * c.groups // adders):
            var group = i // blocks
            var m = i % blocks * W
            var own = sums.unsafe_offset(group * size)
            var count = min(W, g.outs - m)
            _add_shares(dw.unsafe_offset(group * g.outs * depth), depth, own, pitch, step, shares, depth, m, count)

    parallel_for(add, adders)
    if has_bias:
        for m in range(c.outs):
            var total = Float64(0)
            for s in range(shares):
                total += bias_sums.unsafe_offset(s * c.outs + m).unsafe_load()
            var p = db.unsafe_offset(m)
            p.unsafe_store(p.unsafe_load() + total.cast[dtype]())
    release(sums)
    release(bias_sums)
