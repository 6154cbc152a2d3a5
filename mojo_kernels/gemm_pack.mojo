"""Packing of matrix blocks into panels that a register tile reads front to back.

A panel of B has NR columns, element (k, j) at k * NR + j, zero beyond the last column. A panel of A has MR rows and is
kept in one of two orders, whichever is a plain copy: (i, k) at k * MR + i, or at i * A_ROW + k. Only B^T needs
a transposition, done on square blocks of one vector by as many, in registers.
"""

from std.sys.info import simd_width_of
from std.sys.intrinsics import masked_load
from std.utils.index import IndexList

from .memory import Ptr, lanes_below


@no_inline
def copy_rows[
    dtype: DType
](dst: Ptr[dtype], dst_stride: Int, src: Ptr[dtype], src_stride: Int, rows: Int, cols: Int, width: Int):
    """The rows of a matrix, filled with zeros from cols up to width (a multiple of the vector width)."""
    comptime W = simd_width_of[dtype]()
    comptime V = SIMD[dtype, W]
    var whole = cols // W * W
    var mask = lanes_below[dtype, W](cols - whole)
    for i in range(rows):
        var s = src.unsafe_offset(i * src_stride)
        var d = dst.unsafe_offset(i * dst_stride)
        for j in range(0, whole, W):
            d.unsafe_offset(j).unsafe_store(s.unsafe_offset(j).unsafe_load[width=W]())
        if whole < width:
            d.unsafe_offset(whole).unsafe_store(masked_load[W](s.unsafe_offset(whole), mask, V(0)))
            for j in range(whole + W, width, W):
                d.unsafe_offset(j).unsafe_store(V(0))


def _exchange[W: Int](distance: Int, second: Bool) -> IndexList[W]:
    """One step of a transposition by halves: lanes of two rows `distance` apart that make the first or second row."""
    var lanes = IndexList[W]()
    for l in range(W):
        var keep = l & distance == 0
        if second:
            lanes[l] = l + distance if keep else W + l
        else:
            lanes[l] = l if keep else W + l - distance
    return lanes


@always_inline
def _transpose_block[
    dtype: DType, masked: Bool
](dst: Ptr[dtype], width: Int, src: Ptr[dtype], src_stride: Int, cols: Int, depth: Int):
    """A transposed square block; masked: with `cols` of its rows and `depth` of its columns."""
    comptime W = simd_width_of[dtype]()
    comptime V = SIMD[dtype, W]
    var rows = Array[V, W](fill=V(0))
    var mask = lanes_below[dtype, W](depth)
    comptime for j in range(W):
        var s = src.unsafe_offset(j * src_stride)
        comptime if masked:
            if j < cols:
                rows[j] = masked_load[W](s, mask, V(0))
        else:
            rows[j] = s.unsafe_load[width=W]()
    comptime for step in range(6):
        comptime d = 1 << step
        comptime if d < W:
            comptime for j in range(W):
                comptime if j & d == 0:
                    var lo = rows[j]
                    var hi = rows[j + d]
                    rows[j] = lo.shuffle[mask=_exchange[W](d, False)](hi)
                    rows[j + d] = lo.shuffle[mask=_exchange[W](d, True)](hi)
    comptime for k in range(W):
        comptime if masked:
            if k < depth:
                dst.unsafe_offset(k * width).unsafe_store(rows[k])
        else:
            dst.unsafe_offset(k * width).unsafe_store(rows[k])


@no_inline
def copy_transposed[dtype: DType](dst: Ptr[dtype], width: Int, src: Ptr[dtype], src_stride: Int, cols: Int, depth: Int):
    """Column j of dst[depth, width] is row j of src[cols, depth]; zeros from cols up to width."""
    comptime W = simd_width_of[dtype]()
    for j in range(0, width, W):
        for k in range(0, depth, W):
            var d = dst.unsafe_offset(k * width + j)
            var s = src.unsafe_offset(j * src_stride + k)
            if j + W <= cols and k + W <= depth:
                _transpose_block[dtype, False](d, width, s, src_stride, W, W)
            else:
                _transpose_block[dtype, True](d, width, s, src_stride, cols - j, depth - k)
