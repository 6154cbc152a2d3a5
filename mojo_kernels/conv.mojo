"""Convolution on CPU, NCHW: the gathering sum behind forward, input gradient and transposed convolution.

    y[n, m, i, j] = bias[m] + sum over c, ty, tx of  w[m, c, ty, tx]  x[n, c, rows(i, ty), cols(j, tx)]

is a matrix product of the weights [M, C taps] and a matrix of source values that never exists as a whole. The work is
cut into units: some output rows of one image and group. A unit copies the source rows it needs, with their padding,
into scratch that stays in the second-level cache (columns sorted by their remainder modulo the stride, so that whatever
the geometry a tap reads neighbours); where there is nothing to pad or sort, the source itself serves. From there one
panel after the other of NR output positions is laid out as the register tiles of `gemm_kernel` read it, KC deep, and
multiplied with all the weights.

Threads take units. A sum runs over the same blocks of (c, ty, tx) in the same order wherever the cuts are, so the
result does not depend on their number.
"""

from std.math import ceildiv
from std.sys.info import simd_width_of
from std.sys.intrinsics import masked_load, masked_store

from .conv_axis import Axis, Window
from .conv_source import Offsets, Pieces, Source, copy_source, find_taps, pack_panel, source_elements
from .gemm import run_tile
from .gemm_kernel import KC, MR, NR
from .memory import Ptr, allocate, lanes_below, release
from .threads import parallel_for, worthwhile_parts

comptime UNIT_ELEMENTS = 48 * 1024
"""Source elements a unit copies: a part of the second-level cache that leaves room for weights and a panel."""
comptime PARTS_PER_THREAD = 4
"""Parts that a thread takes one after the other, so that one that is held up does not hold up the others."""


@fieldwise_init
struct Gather[dtype: DType](ImplicitlyCopyable):
    """One gathering sum over all images and groups."""

    var y: Ptr[Self.dtype]
    var y_plane: Int
    """From one channel of y to the next."""
    var y_row: Int
    var x: Ptr[Self.dtype]
    var weight: Ptr[Self.dtype]
    var weight_group: Int
    var weight_out: Int
    """From the weights of one output channel to those of the next."""
    var weight_in: Int
    """From the weights of one source channel to those of the next."""
    var kernel_cols: Int
    var has_bias: Bool
    var bias: Ptr[Self.dtype]
    var images: Int
    var groups: Int
    var outs: Int
    """Output channels of a group."""
    var ins: Int
    """Source channels of a group."""
    var rows: Axis
    var cols: Axis

    @always_inline
    def depth(self) -> Int:
        """Terms of a sum."""
        return self.ins * self.rows.taps * self.cols.taps

    @always_inline
    def contiguous(self) -> Bool:
        """Whether neighbouring outputs are neighbours in memory."""
        return self.cols.out_step == 1 and self.rows.out_step == 1


# ---------------------------------------------------------------------------------------------------------------------
# Weights
# ---------------------------------------------------------------------------------------------------------------------


@no_inline
def pack_weights[dtype: DType](g: Gather[dtype], dst: Ptr[dtype]):
    """All weights as panels of MR output channels: [group, panel, (c, ty, tx), MR], zeros beyond the last channel."""
    var panels = ceildiv(g.outs, MR)
    var depth = g.depth()

    def part(i: Int) {imm}:
        var group = i // panels
        var m0 = i % panels * MR
        var p = dst.unsafe_offset(i * depth * MR)
        for m in range(MR):
            var d = p.unsafe_offset(m)
            if m0 + m >= g.outs:
                for k in range(depth):
                    d.unsafe_offset(k * MR).unsafe_store(Scalar[dtype](0))
                continue
            var w = g.weight.unsafe_offset(group * g.weight_group + (m0 + m) * g.weight_out)
            for c in range(g.ins):
                for ty in range(g.rows.taps):
                    var ky = g.rows.kernel_first + ty * g.rows.kernel_step
                    var s = w.unsafe_offset(c * g.weight_in + ky * g.kernel_cols + g.cols.kernel_first)
                    for tx in range(g.cols.taps):
                        d.unsafe_store(s.unsafe_offset(tx * g.cols.kernel_step).unsafe_load())
                        d = d.unsafe_offset(MR)

    for i in range(g.groups * panels):
        part(i)


# ---------------------------------------------------------------------------------------------------------------------
# Units
# ---------------------------------------------------------------------------------------------------------------------


@fieldwise_init
struct Unit(ImplicitlyCopyable):
    """Some output rows and panels of output channels of one image and group."""

    var image: Int
    var group: Int
    var row: Int
    var rows: Int
    var panel: Int
    var panels: Int


@always_inline
def _init_pointer[dtype: DType](g: Gather[dtype], biases: Ptr[dtype], group: Int, m: Int) -> Ptr[dtype]:
    """A tile's start: rows of NR times the bias of an output channel."""
    return biases.unsafe_offset((group * g.outs + m) * NR[dtype])


@no_inline
def _multiply_unit[
    dtype: DType
](
    g: Gather[dtype],
    u: Unit,
    source: Source[dtype],
    weights: Ptr[dtype],
    biases: Ptr[dtype],
    offsets: Offsets,
    panel: Ptr[dtype],
    out_: Ptr[dtype],
    out_stride: Int,
):
    """All products of a unit into out_[channel, position]."""
    comptime N = NR[dtype]
    comptime W = simd_width_of[dtype]()
    var depth = g.depth()
    var taps = g.rows.taps * g.cols.taps
    var positions = u.rows * g.cols.outs
    var all_panels = ceildiv(g.outs, MR)
    var k = 0
    while True:
        var kc = min(KC, depth - k)
        for q in range(0, positions, N):
            var width = min(N, positions - q)
            if kc > 0:
                var pieces = Pieces.cut[W](source, g.rows, g.cols, q, width)
                if source.slack:
                    pack_panel[dtype, False](panel, N, source, pieces, offsets, taps, k, kc)
                else:
                    pack_panel[dtype, True](panel, N, source, pieces, offsets, taps, k, kc)
            for i in range(u.panel, u.panel + u.panels):
                var m = i * MR
                var c = out_.unsafe_offset((m - u.panel * MR) * out_stride + q)
                var fresh = k == 0
                run_tile(
                    min(MR, g.outs - m),
                    width,
                    c,
                    out_stride,
                    _init_pointer(g, biases, u.group, m) if fresh else c,
                    N if fresh else out_stride,
                    weights.unsafe_offset(((u.group * all_panels + i) * depth + k) * MR),
                    MR,
                    True,
                    panel,
                    N,
                    kc,
                )
        k += kc
        if k >= depth:
            break


@no_inline
def _scatter_unit[dtype: DType](g: Gather[dtype], u: Unit, src: Ptr[dtype], dst: Ptr[dtype], channels: Int):
    """From a unit's own [channel, position] to where its outputs lie in y."""
    for m in range(channels):
        for i in range(u.rows):
            var s = src.unsafe_offset((m * u.rows + i) * g.cols.outs)
            var row = g.rows.out_first + (u.row + i) * g.rows.out_step
            var d = dst.unsafe_offset(m * g.y_plane + row * g.y_row + g.cols.out_first)
            for j in range(g.cols.outs):
                d.unsafe_offset(j * g.cols.out_step).unsafe_store(s.unsafe_offset(j).unsafe_load())


@no_inline
def _depthwise_unit[
    dtype: DType
](g: Gather[dtype], u: Unit, source: Source[dtype], offsets: Offsets, out_: Ptr[dtype], out_stride: Int):
    """A unit with one source channel and few output channels, straight from the source."""
    comptime W = simd_width_of[dtype]()
    comptime V = SIMD[dtype, W]
    for m in range(g.outs):
        var w = g.weight.unsafe_offset(u.group * g.weight_group + m * g.weight_out)
        var bias = V(g.bias.unsafe_offset(u.group * g.outs + m).unsafe_load()) if g.has_bias else V(0)
        for i in range(u.rows):
            var d = out_.unsafe_offset(m * out_stride + i * g.cols.outs)
            var s = source.start.unsafe_offset(i * g.rows.step * source.row)
            for j in range(0, g.cols.outs, W):
                var n = min(W, g.cols.outs - j)
                var mask = lanes_below[dtype, W](n)
                var sum = bias
                for ty in range(g.rows.taps):
                    var ky = g.rows.kernel_first + ty * g.rows.kernel_step
                    for tx in range(g.cols.taps):
                        var kx = g.cols.kernel_first + tx * g.cols.kernel_step
                        var p = s.unsafe_offset(offsets.unsafe_offset(ty * g.cols.taps + tx).unsafe_load() + j)
                        var x: V
                        if n == W or source.slack:
                            x = p.unsafe_load[width=W]()
                        else:
                            x = masked_load[W](p, mask, V(0))
                        sum = x.fma(V(w.unsafe_offset(ky * g.kernel_cols + kx).unsafe_load()), sum)
                if n == W:
                    d.unsafe_offset(j).unsafe_store(sum)
                else:
                    masked_store(sum, d.unsafe_offset(j), mask)


@no_inline
def gather_convolution[dtype: DType](g: Gather[dtype], threads: Int = 0):
    """Run the sum on `threads` threads, by default as many as pay."""
    comptime N = NR[dtype]
    if g.images == 0 or g.rows.outs <= 0 or g.cols.outs <= 0:
        return
    var depth = g.depth()
    var workers = threads if threads > 0 else worthwhile_parts(
        2 * g.images * g.groups * g.outs * depth * g.rows.outs * g.cols.outs
    )
    var depthwise = g.ins == 1 and g.outs <= 2
    # rows of a unit: what fits the cache, but no fewer than fill a panel, and enough units for all threads
    var line = g.ins * g.rows.step * ceildiv(g.cols.span(g.cols.outs), g.cols.step) * g.cols.step
    var rows = max(1, min(g.rows.outs, UNIT_ELEMENTS // max(1, line)))
    var least = min(g.rows.outs, ceildiv(N, g.cols.outs))
    if workers > 1:
        var wanted = ceildiv(2 * workers, g.images * g.groups)
        rows = min(rows, ceildiv(g.rows.outs, wanted))
    rows = max(rows, least)
    rows = ceildiv(g.rows.outs, ceildiv(g.rows.outs, rows))
    var stripes = ceildiv(g.rows.outs, rows)
    var panels = ceildiv(g.outs, MR)
    var units = g.images * g.groups * stripes
    var splits = 1
    if units < workers and not depthwise:
        splits = min(panels, ceildiv(workers, units))
    var split = ceildiv(panels, splits)
    units *= splits

    var source_size = source_elements[dtype](g.ins, g.rows, g.cols, rows)
    var panel_size = min(KC, max(1, depth)) * N + 2 * N
    var own_size = 0 if g.contiguous() else g.outs * rows * g.cols.outs + N
    var weights_size = 0 if depthwise else g.groups * panels * MR * depth
    var shared = allocate[dtype](weights_size + (g.groups * g.outs + MR) * N)
    var biases = shared.unsafe_offset(weights_size)
    if not depthwise:
        pack_weights(g, shared)
        for m in range(g.groups * g.outs):
            var b = g.bias.unsafe_offset(m).unsafe_load() if g.has_bias else Scalar[dtype](0)
            biases.unsafe_offset(m * N).unsafe_store(SIMD[dtype, N](b))
    var parts = min(units, workers * PARTS_PER_THREAD) if workers > 1 else 1

    def part(p: Int) {imm}:
        var scratch = allocate[dtype](panel_size + source_size + own_size)
        var offsets = rebind[Offsets](allocate[DType.int64](g.rows.taps * g.cols.taps + 1).unsafe_bitcast[Int]())
        var panel = scratch
        var copy = scratch.unsafe_offset(panel_size)
        var own = copy.unsafe_offset(source_size)
        for i in range(p * units // parts, (p + 1) * units // parts):
            var s = i // splits % stripes
            var group = i // splits // stripes % g.groups
            var image = i // splits // stripes // g.groups
            var first = s * rows
            var u = Unit(image, group, first, min(rows, g.rows.outs - first), i % splits * split, 0)
            u.panels = min(split, panels - u.panel)
            if u.rows <= 0 or u.panels <= 0:
                continue
            var x = g.x.unsafe_offset((image * g.groups + group) * g.ins * g.rows.size * g.cols.size)
            var y = g.y.unsafe_offset(((image * g.groups + group) * g.outs + u.panel * MR) * g.y_plane)
            var out_ = own
            var stride = u.rows * g.cols.outs
            if g.contiguous():
                out_ = y.unsafe_offset(first * g.y_row)
                stride = g.y_plane
            var source = Source(x, 0, 0, 0, False)
            if depth > 0:
                source = copy_source(copy, x, g.ins, g.rows, g.cols, first, u.rows)
                find_taps(offsets, source, g.rows, g.cols)
            if depthwise:
                _depthwise_unit(g, u, source, offsets, out_, stride)
            else:
                _multiply_unit(g, u, source, shared, biases, offsets, panel, out_, stride)
            if not g.contiguous():
                _scatter_unit(g, u, own, y, min(g.outs - u.panel * MR, u.panels * MR))
        release(scratch)
        release(offsets)

    parallel_for(part, parts)
    release(shared)


# ---------------------------------------------------------------------------------------------------------------------
# Forward and input gradient
# ---------------------------------------------------------------------------------------------------------------------


@fieldwise_init
struct Convolution(ImplicitlyCopyable):
    """A convolution's sizes: x [images, ins, height, width], weight [outs, ins / groups, kernel], y [images, outs, ...].
    """

    var images: Int
    var groups: Int
    var ins: Int
    var height: Int
    var width: Int
    var outs: Int
    var out_height: Int
    var out_width: Int
    var rows: Window
    var cols: Window


@no_inline
def convolution[
    dtype: DType
](c: Convolution, y: Ptr[dtype], x: Ptr[dtype], weight: Ptr[dtype], has_bias: Bool, bias: Ptr[dtype], threads: Int = 0):
    """`y = x * weight + bias`."""
    var taps = c.rows.kernel * c.cols.kernel
    var ins = c.ins // c.groups
    var outs = c.outs // c.groups
    var rows = Axis.forward(c.rows, c.height, c.out_height)
    var cols = Axis.forward(c.cols, c.width, c.out_width)
    var plane = c.out_height * c.out_width
    var row = c.out_width
    if taps == 1 and c.rows.stride == 1 and c.cols.stride == 1 and c.rows.padding == 0 and c.cols.padding == 0:
        if c.height == c.out_height and c.width == c.out_width:  # pointwise: one long row
            rows = Axis.forward(c.rows, 1, 1)
            cols = Axis.forward(c.cols, plane, plane)
            row = plane
    gather_convolution(
        Gather(
            y,
            plane,
            row,
            x,
            weight,
            outs * ins * taps,
            ins * taps,
            taps,
            c.cols.kernel,
            has_bias,
            bias,
            c.images,
            c.groups,
            outs,
            ins,
            rows,
            cols,
        ),
        threads,
    )


@no_inline
def convolution_input_grad[
    dtype: DType
](
    c: Convolution,
    dx: Ptr[dtype],
    dy: Ptr[dtype],
    weight: Ptr[dtype],
    has_bias: Bool,
    bias: Ptr[dtype],
    threads: Int = 0,
):
    """The transposed map: `dx[h] = bias + sum of dy[i] weight[k] over i stride - padding + k dilation = h`."""
    var taps = c.rows.kernel * c.cols.kernel
    var ins = c.ins // c.groups
    var outs = c.outs // c.groups
    var plane = c.height * c.width
    for phase_y in range(min(c.rows.stride, c.height)):
        for phase_x in range(min(c.cols.stride, c.width)):
            var rows = Axis.phase(c.rows, phase_y, c.out_height, c.height)
            var cols = Axis.phase(c.cols, phase_x, c.out_width, c.width)
            var row = c.width
            if taps == 1 and c.height == c.out_height and c.width == c.out_width and rows.inside() and cols.inside():
                rows = Axis.forward(Window(1, 1, 0, 1), 1, 1)
                cols = Axis.forward(Window(1, 1, 0, 1), plane, plane)
                row = plane
            gather_convolution(
                Gather(
                    dx,
                    plane,
                    row,
                    dy,
                    weight,
                    outs * ins * taps,
                    taps,
                    ins * taps,
                    c.cols.kernel,
                    has_bias,
                    bias,
                    c.images,
                    c.groups,
                    ins,
                    outs,
                    rows,
                    cols,
                ),
                threads,
            )
