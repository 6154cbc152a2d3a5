"""Column sums: out[j] += sum_i x[i, j], the bias gradient of a linear layer.

Columns are taken a few vectors at a time and rows in blocks: each block is summed on its own and then added to the
total, which keeps the rounding error near that of a pairwise sum. The order is fixed, so reruns agree to the bit.
"""

from std.sys.info import simd_width_of

from .memory import COMPUTE, Ptr, lanes_below, load_lanes, store_lanes

comptime ROW_BLOCK = 64


@always_inline
def _add_column_strip[
    source: DType, vectors: Int, masked: Bool
](out_: Ptr[COMPUTE[source]], x: Ptr[source], x_stride: Int, rows: Int, last: Int):
    """Add the columns of `vectors` vectors; masked: the last vector holds `last` columns."""
    comptime dtype = COMPUTE[source]
    comptime W = simd_width_of[dtype]()
    comptime V = SIMD[dtype, W]
    var mask = lanes_below[dtype, W](last)
    var total = Array[V, vectors](fill=V(0))
    for first in range(0, rows, ROW_BLOCK):
        var sums = Array[V, vectors](fill=V(0))
        for i in range(first, min(rows, first + ROW_BLOCK)):
            comptime for j in range(vectors):
                sums[j] += load_lanes[source, W, masked](x.unsafe_offset(i * x_stride + j * W), mask)
        comptime for j in range(vectors):
            total[j] += sums[j]
    comptime for j in range(vectors):
        var p = out_.unsafe_offset(j * W)
        var old = rebind[V](load_lanes[dtype, W, masked](p, mask))
        store_lanes[dtype, W, masked](rebind[SIMD[COMPUTE[dtype], W]](old + total[j]), p, mask)


@no_inline
def add_column_sums[source: DType, dtype: DType](sums: Ptr[dtype], x: Ptr[source], x_stride: Int, rows: Int, cols: Int):
    """`sums[j] += sum_i x[i, j]`, in float32 where x is bfloat16."""
    var out_ = rebind[Ptr[COMPUTE[source]]](sums)
    comptime W = simd_width_of[COMPUTE[source]]()
    var j = 0
    while j + 4 * W <= cols:
        _add_column_strip[source, 4, False](out_.unsafe_offset(j), x.unsafe_offset(j), x_stride, rows, W)
        j += 4 * W
    while j < cols:
        _add_column_strip[source, 1, True](out_.unsafe_offset(j), x.unsafe_offset(j), x_stride, rows, min(W, cols - j))
        j += W
