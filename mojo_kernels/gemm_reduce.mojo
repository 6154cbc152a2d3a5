"""Column sums: out[j] += sum_i x[i, j], the bias gradient of a linear layer.

Columns are taken a few vectors at a time and rows in blocks: each block is summed on its own and then added to the
total, which keeps the rounding error near that of a pairwise sum. The order is fixed, so reruns agree to the bit.
"""

from std.sys.info import simd_width_of
from std.sys.intrinsics import masked_load, masked_store

from .activation import Ptr, lanes_below

comptime ROW_BLOCK = 64


@always_inline
def _add_column_strip[
    dtype: DType, vectors: Int, partial: Bool
](out_: Ptr[dtype], x: Ptr[dtype], x_stride: Int, rows: Int, last: Int):
    """Columns of `vectors` vectors, of which the last holds `last` columns if partial."""
    comptime W = simd_width_of[dtype]()
    comptime V = SIMD[dtype, W]
    var mask = lanes_below[dtype, W](last)

    @always_inline
    def load(p: Ptr[dtype]) {imm} -> V:
        comptime if partial:
            return masked_load[W](p, mask, V(0))
        else:
            return p.unsafe_load[width=W]()

    var total = Array[V, vectors](fill=V(0))
    for first in range(0, rows, ROW_BLOCK):
        var sums = Array[V, vectors](fill=V(0))
        for i in range(first, min(rows, first + ROW_BLOCK)):
            comptime for j in range(vectors):
                sums[j] += load(x.unsafe_offset(i * x_stride + j * W))
        comptime for j in range(vectors):
            total[j] += sums[j]
    comptime for j in range(vectors):
        var p = out_.unsafe_offset(j * W)
        comptime if partial:
            masked_store(load(p) + total[j], p, mask)
        else:
            p.unsafe_store(load(p) + total[j])


@no_inline
def add_column_sums[dtype: DType](out_: Ptr[dtype], x: Ptr[dtype], x_stride: Int, rows: Int, cols: Int):
    """`out[j] += sum_i x[i, j]`."""
    comptime W = simd_width_of[dtype]()
    var j = 0
    while j + 4 * W <= cols:
        _add_column_strip[dtype, 4, False](out_.unsafe_offset(j), x.unsafe_offset(j), x_stride, rows, W)
        j += 4 * W
    while j < cols:
        _add_column_strip[dtype, 1, True](
            out_.unsafe_offset(j), x.unsafe_offset(j), x_stride, rows, min(W, cols - j)
        )
        j += W
