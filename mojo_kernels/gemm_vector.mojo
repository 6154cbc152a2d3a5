"""The product of one row and a matrix: c = init + x B, where a register tile of MR rows would idle.

Where the rows of B are contiguous, eight vectors of c are kept in registers and B is read in rows; where its columns
are, each element of c is a dot product, four at a time. Either way an element's sums are the same whatever part of c a
thread gets.
"""

from std.sys.info import simd_width_of
from std.sys.intrinsics import masked_load

from .gemm_kernel import KC, tile
from .memory import Ptr, lanes_below

comptime STRIP = 8
"""Vectors of c in registers."""
comptime DOTS = 4
"""Dot products at a time: as many chains as hide the latency of a multiply-add."""


@no_inline
def fill_zero[dtype: DType](c: Ptr[dtype], count: Int):
    """Zero count elements."""
    comptime W = simd_width_of[dtype]()
    var j = 0
    while j + W <= count:
        c.unsafe_offset(j).unsafe_store(SIMD[dtype, W](0))
        j += W
    while j < count:
        c.unsafe_offset(j).unsafe_store(Scalar[dtype](0))
        j += 1


@no_inline
def row_strips[
    dtype: DType
](
    c: Ptr[dtype], init: Ptr[dtype], x: Ptr[dtype], x_stride: Int, b: Ptr[dtype], b_row: Int, depth: Int, cols: Int
) -> Int:
    """Compute c for as many whole strips of columns as there are, and return their number of columns."""
    comptime W = simd_width_of[dtype]()
    comptime N = STRIP * W
    var whole = cols // N * N
    for k in range(0, max(depth, 1), KC):
        var start = init if k == 0 else c
        for j in range(0, whole, N):
            tile[dtype, 1, STRIP, True](
                c.unsafe_offset(j),
                0,
                start.unsafe_offset(j),
                0,
                x.unsafe_offset(k * x_stride),
                x_stride,
                b.unsafe_offset(k * b_row + j),
                b_row,
                min(KC, depth - k),
                W,
            )
    return whole


@always_inline
def _dots[
    dtype: DType, count: Int
](c: Ptr[dtype], init: Ptr[dtype], init_stride: Int, x: Ptr[dtype], b: Ptr[dtype], b_col: Int, depth: Int):
    comptime W = simd_width_of[dtype]()
    comptime V = SIMD[dtype, W]
    var sums = Array[V, count](fill=V(0))
    var whole = depth // W * W
    for k in range(0, whole, W):
        var v = x.unsafe_offset(k).unsafe_load[width=W]()
        comptime for j in range(count):
            sums[j] = v.fma(b.unsafe_offset(j * b_col + k).unsafe_load[width=W](), sums[j])
    if whole < depth:
        var mask = lanes_below[dtype, W](depth - whole)
        var v = masked_load[W](x.unsafe_offset(whole), mask, V(0))
        comptime for j in range(count):
            sums[j] = v.fma(masked_load[W](b.unsafe_offset(j * b_col + whole), mask, V(0)), sums[j])
    comptime for j in range(count):
        c.unsafe_offset(j).unsafe_store(init.unsafe_offset(j * init_stride).unsafe_load() + sums[j].reduce_add())


@no_inline
def dot_products[
    dtype: DType
](c: Ptr[dtype], init: Ptr[dtype], init_stride: Int, x: Ptr[dtype], b: Ptr[dtype], b_col: Int, depth: Int, cols: Int):
    """`c[j] = init[j] + sum_k x[k] b[k, j]` with contiguous columns of b."""
    var j = 0
    while j + DOTS <= cols:
        _dots[dtype, DOTS](
            c.unsafe_offset(j),
            init.unsafe_offset(j * init_stride),
            init_stride,
            x,
            b.unsafe_offset(j * b_col),
            b_col,
            depth,
        )
        j += DOTS
    while j < cols:
        _dots[dtype, 1](
            c.unsafe_offset(j),
            init.unsafe_offset(j * init_stride),
            init_stride,
            x,
            b.unsafe_offset(j * b_col),
            b_col,
            depth,
        )
        j += 1
