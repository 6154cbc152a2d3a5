"""Register tiles of the matrix product.

A tile keeps rows x (vectors * W) sums in registers and walks k once:

    c[i, j] = init[i, j] + sum_k a[i, k] b[k, j]

`init` is a row of zeros or the bias (stride 0), or c itself to accumulate. Each sum is one chain of fused multiply-adds
over at most KC values of k in ascending order, whatever the tile's shape, and is then added to init: neither edges nor
the number of threads can change a bit of the result, and the rounding error of a deep product stays that of short sums.

A is read in place by broadcasts (`packed` False: a[i, k] at i * a_stride + k; True: at k * a_stride + i, which is both a
packed panel and the transpose of a row-major matrix); b is a panel whose row k starts at k * b_stride. Only the last
vector of a row may be partial: it is loaded and stored under a mask.

With `pairs`, each 32-bit element of a and b is a pair of bfloat16 that are neighbours in k, and a sum takes both products.

The tile's size follows the machine: 24 sums in 32 registers of AVX-512 or NEON, 12 in 16 of AVX2. That covers the
multiply-add latency and needs fewer loads than multiply-adds.
"""

from std.memory import bitcast
from std.sys import llvm_intrinsic
from std.sys.info import CompilationTarget, simd_width_of
from std.sys.intrinsics import masked_load, masked_store

from .memory import Ptr, lanes_below

comptime MANY_REGISTERS = CompilationTarget.has_avx512f() or CompilationTarget.has_neon()
comptime MR = 12 if MANY_REGISTERS else 6
"""Rows of the full register tile."""
comptime VECTORS = 2
"""Vectors in a row of the full register tile."""
comptime KC = 384
"""Depth of a block: a panel of B stays in the first two cache levels, and C is passed over once for this many k."""


comptime NR[dtype: DType] = VECTORS * simd_width_of[dtype]()
"""Columns of the full register tile."""


@always_inline
def _multiply_add[
    dtype: DType, width: SIMDLength, pairs: Bool
](x: SIMD[dtype, width], y: SIMD[dtype, width], sum: SIMD[dtype, width]) -> SIMD[dtype, width]:
    """The sum plus x y, or plus both products of a pair of bfloat16."""
    comptime if not pairs:
        return x.fma(y, sum)
    elif CompilationTarget._has_feature["avx512bf16"]() and width == 16:
        return llvm_intrinsic["llvm.x86.avx512bf16.dpbf16ps.512", SIMD[dtype, width], has_side_effect=False](
            sum, bitcast[DType.bfloat16, width * 2](x), bitcast[DType.bfloat16, width * 2](y)
        )
    else:
        # The upper half of a float32 is the bfloat16 of the same value.
        var u = bitcast[DType.uint32, width](x)
        var v = bitcast[DType.uint32, width](y)
        var s = bitcast[dtype, width](u << 16).fma(bitcast[dtype, width](v << 16), sum)
        return bitcast[dtype, width](u & 0xFFFF0000).fma(bitcast[dtype, width](v & 0xFFFF0000), s)


@always_inline
def tile[
    dtype: DType, rows: Int, vectors: Int, packed: Bool, pairs: Bool = False
](
    c: Ptr[dtype],
    c_stride: Int,
    init: Ptr[dtype],
    init_stride: Int,
    a: Ptr[dtype],
    a_stride: Int,
    b: Ptr[dtype],
    b_stride: Int,
    depth: Int,
    last: Int,
):
    """One register tile; `last` is the number of columns in the last vector."""
    comptime W = simd_width_of[dtype]()
    comptime V = SIMD[dtype, W]
    var sums = Array[V, rows * vectors](fill=V(0))
    var ak = a
    var bk = b
    for _ in range(depth):
        var row = Array[V, vectors](fill=V(0))
        comptime for j in range(vectors):
            row[j] = bk.unsafe_offset(j * W).unsafe_load[width=W]()
        comptime for i in range(rows):
            var x = V(ak.unsafe_offset(i if packed else i * a_stride).unsafe_load())
            comptime for j in range(vectors):
                sums[i * vectors + j] = _multiply_add[pairs=pairs](x, row[j], sums[i * vectors + j])
        ak = ak.unsafe_offset(a_stride if packed else 1)
        bk = bk.unsafe_offset(b_stride)
    var whole = last == W
    var mask = lanes_below[dtype, W](last)
    comptime for i in range(rows):
        comptime for j in range(vectors):
            var p = c.unsafe_offset(i * c_stride + j * W)
            var q = init.unsafe_offset(i * init_stride + j * W)
            var sum = sums[i * vectors + j]
            comptime if j < vectors - 1:
                p.unsafe_store(q.unsafe_load[width=W]() + sum)
            else:
                if whole:
                    p.unsafe_store(q.unsafe_load[width=W]() + sum)
                else:
                    masked_store(masked_load[W](q, mask, V(0)) + sum, p, mask)


@no_inline
def full_tile[
    dtype: DType, packed: Bool, pairs: Bool = False
](
    c: Ptr[dtype],
    c_stride: Int,
    init: Ptr[dtype],
    init_stride: Int,
    a: Ptr[dtype],
    a_stride: Int,
    b: Ptr[dtype],
    b_stride: Int,
    depth: Int,
):
    """A tile of MR rows and NR columns, by far the most frequent one."""
    tile[dtype, MR, VECTORS, packed, pairs](
        c, c_stride, init, init_stride, a, a_stride, b, b_stride, depth, simd_width_of[dtype]()
    )


@no_inline
def edge_tile[
    dtype: DType, packed: Bool, pairs: Bool = False
](
    rows: Int,
    cols: Int,
    c: Ptr[dtype],
    c_stride: Int,
    init: Ptr[dtype],
    init_stride: Int,
    a: Ptr[dtype],
    a_stride: Int,
    b: Ptr[dtype],
    b_stride: Int,
    depth: Int,
):
    """A tile of 1..MR rows and 1..NR columns, from tiles of MR, 8, 4, 2 and 1 rows; b must be readable to the end of
    the last vector."""
    comptime W = simd_width_of[dtype]()
    comptime for v in range(1, VECTORS + 1):
        if (cols + W - 1) // W == v:
            var i = 0
            comptime for step in range(5):
                comptime r = MR if step == 0 else 16 >> step
                comptime if step == 0 or r < MR:
                    while rows - i >= r:
                        tile[dtype, r, v, packed, pairs](
                            c.unsafe_offset(i * c_stride),
                            c_stride,
                            init.unsafe_offset(i * init_stride),
                            init_stride,
                            a.unsafe_offset(i if packed else i * a_stride),
                            a_stride,
                            b,
                            b_stride,
                            depth,
                            cols - (v - 1) * W,
                        )
                        i += r
