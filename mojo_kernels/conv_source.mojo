"""Laying out what a gathering sum reads: a padded copy of source rows, and panels as register tiles take them."""

from std.math import ceildiv
from std.sys.info import simd_width_of
from std.sys.intrinsics import masked_load

from .conv_axis import Axis
from .memory import Ptr, lanes_below


@fieldwise_init
struct Source[dtype: DType](ImplicitlyCopyable):
    """The source rows of a unit as the taps read them: element (c, y, x) of tap offset 0 at c * plane + y * row + x."""

    var start: Ptr[Self.dtype]
    var plane: Int
    var row: Int
    var part: Int
    """From the columns of one remainder modulo the step to those of the next."""
    var slack: Bool
    """Whether whole vectors can be read that begin at any element."""


@no_inline
def copy_source_row[dtype: DType](dst: Ptr[dtype], src: Ptr[dtype], low: Int, width: Int, size: Int):
    """Positions [low, low + width) of a row of `size` elements, zero outside."""
    comptime W = simd_width_of[dtype]()
    var left = max(0, min(width, -low))
    var right = max(left, min(width, size - low))
    for i in range(left):
        dst.unsafe_offset(i).unsafe_store(Scalar[dtype](0))
    var s = src.unsafe_offset(low)
    var i = left
    while i + W <= right:
        dst.unsafe_offset(i).unsafe_store(s.unsafe_offset(i).unsafe_load[width=W]())
        i += W
    while i < right:
        dst.unsafe_offset(i).unsafe_store(s.unsafe_offset(i).unsafe_load())
        i += 1
    for k in range(right, width):
        dst.unsafe_offset(k).unsafe_store(Scalar[dtype](0))


@no_inline
def copy_source_row_by_step[
    dtype: DType
](dst: Ptr[dtype], part: Int, step: Int, src: Ptr[dtype], low: Int, width: Int, size: Int):
    """As `copy_source_row`, with position low + i at (i % step) * part + i // step."""
    comptime W = simd_width_of[dtype]()
    for r in range(min(step, width)):
        var d = dst.unsafe_offset(r * part)
        var count = ceildiv(width - r, step)
        # the outputs i with 0 <= low + r + i * step < size
        var left = min(count, max(0, ceildiv(-(low + r), step)))
        var right = max(left, min(count, ceildiv(size - low - r, step)))
        for i in range(left):
            d.unsafe_offset(i).unsafe_store(Scalar[dtype](0))
        var i = left
        if step == 2:
            while i + W <= right and low + r + (i + W) * 2 <= size:
                var s = src.unsafe_offset(low + r + i * 2).unsafe_load[width=2 * W]()
                d.unsafe_offset(i).unsafe_store(s.deinterleave()[0])
                i += W
        while i < right:
            d.unsafe_offset(i).unsafe_store(src.unsafe_offset(low + r + i * step).unsafe_load())
            i += 1
        for k in range(right, count):
            d.unsafe_offset(k).unsafe_store(Scalar[dtype](0))


@no_inline
def copy_source[
    dtype: DType
](scratch: Ptr[dtype], x: Ptr[dtype], channels: Int, rows: Axis, cols: Axis, first: Int, count: Int) -> Source[dtype]:
    """The source of output rows [first, first + count): a padded copy in scratch, or x itself."""
    var plane = rows.size * cols.size
    if cols.step == 1 and cols.inside() and rows.inside():
        var start = x.unsafe_offset((first * rows.step + rows.low()) * cols.size + cols.low())
        return Source(start, plane, cols.size, 0, False)
    var height = rows.span(count)
    var width = cols.span(cols.outs)
    var part = ceildiv(width, cols.step)
    var row = part * cols.step
    var low = first * rows.step + rows.low()
    for c in range(channels):
        for i in range(height):
            var dst = scratch.unsafe_offset((c * height + i) * row)
            if low + i < 0 or low + i >= rows.size:
                for k in range(row):
                    dst.unsafe_offset(k).unsafe_store(Scalar[dtype](0))
                continue
            var src = x.unsafe_offset(c * plane + (low + i) * cols.size)
            if cols.step == 1:
                copy_source_row(dst, src, cols.low(), width, cols.size)
            else:
                copy_source_row_by_step(dst, part, cols.step, src, cols.low(), width, cols.size)
    return Source(scratch, height * row, row, part, True)


def source_elements[dtype: DType](channels: Int, rows: Axis, cols: Axis, count: Int) -> Int:
    """Elements of scratch that `copy_source` may write or that may be read behind them."""
    var width = ceildiv(cols.span(cols.outs), cols.step) * cols.step
    return channels * rows.span(count) * width + 2 * simd_width_of[dtype]()


@fieldwise_init
struct Pieces(Movable):
    """A run of output positions as vectors of neighbours: where each starts in the source, and how long it is."""

    var count: Int
    var from_: Array[Int, 64]
    var to: Array[Int, 64]
    var length: Array[Int, 64]

    @staticmethod
    def cut[W: Int, dtype: DType](source: Source[dtype], rows: Axis, cols: Axis, first: Int, count: Int) -> Pieces:
        """Positions [first, first + count), at most 64, counted through the rows."""
        var p = Pieces(0, Array[Int, 64](fill=0), Array[Int, 64](fill=0), Array[Int, 64](fill=0))
        var i = first // cols.outs
        var j = first % cols.outs
        var done = 0
        while done < count:
            var n = min(W, min(count - done, cols.outs - j))
            p.from_[p.count] = i * rows.step * source.row + j
            p.to[p.count] = done
            p.length[p.count] = n
            p.count += 1
            done += n
            j += n
            if j == cols.outs:
                j = 0
                i += 1
        return p^


comptime Offsets = Pointer[Int, MutUntrackedOrigin]
"""Where each tap (ty, tx) of output 0 lies in a source."""


@no_inline
def find_taps[dtype: DType](offsets: Offsets, source: Source[dtype], rows: Axis, cols: Axis):
    """Fill the offsets of a source."""
    for ty in range(rows.taps):
        var y = rows.first + ty * rows.spread - rows.low()
        for tx in range(cols.taps):
            var x = cols.first + tx * cols.spread - cols.low()
            var offset = y * source.row + x % cols.step * source.part + x // cols.step
            offsets.unsafe_offset(ty * cols.taps + tx).unsafe_store(offset)


@always_inline
def copy_pieces[dtype: DType, exact: Bool](dst: Ptr[dtype], src: Ptr[dtype], pieces: Pieces):
    """One term of the sums: the source values of all positions. A vector's surplus is overwritten by the next one."""
    comptime W = simd_width_of[dtype]()
    for p in range(pieces.count):
        var s = src.unsafe_offset(pieces.from_[p])
        var d = dst.unsafe_offset(pieces.to[p])
        comptime if exact:
            var n = pieces.length[p]
            if n < W:
                d.unsafe_store(masked_load[W](s, lanes_below[dtype, W](n), SIMD[dtype, W](0)))
                continue
        d.unsafe_store(s.unsafe_load[width=W]())


@no_inline
def pack_panel[
    dtype: DType, exact: Bool
](
    dst: Ptr[dtype],
    stride: Int,
    source: Source[dtype],
    pieces: Pieces,
    offsets: Offsets,
    taps: Int,
    k: Int,
    depth: Int,
):
    """Terms [k, k + depth), in the order (c, ty, tx), one every `stride` elements; dst has room for one more vector."""
    comptime W = simd_width_of[dtype]()
    var plane = source.start.unsafe_offset(k // taps * source.plane)
    var t = k % taps
    var two = pieces.count == 2 and pieces.to[1] == W and (not exact or pieces.length[1] == W)
    var from0 = pieces.from_[0]
    var from1 = pieces.from_[1]
    for i in range(depth):
        var s = plane.unsafe_offset(offsets.unsafe_offset(t).unsafe_load())
        var d = dst.unsafe_offset(i * stride)
        if two:
            var u = s.unsafe_offset(from0).unsafe_load[width=W]()
            var v = s.unsafe_offset(from1).unsafe_load[width=W]()
            d.unsafe_store(u)
            d.unsafe_offset(W).unsafe_store(v)
        else:
            copy_pieces[dtype, exact](d, s, pieces)
        t += 1
        if t == taps:
            t = 0
            plane = plane.unsafe_offset(source.plane)
