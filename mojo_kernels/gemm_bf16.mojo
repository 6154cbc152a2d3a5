"""Matrix product of bfloat16 matrices with float32 sums: activations and weights in bfloat16, gradients of parameters in float32.

Blocks are packed so that two neighbours in k share a 32-bit element; a register tile then walks depth / 2 such pairs
and its structure is that of float32 (`gemm_kernel.tile` with `pairs`). Where the CPU has AVX512-BF16 one
instruction multiplies and adds both members of a pair in 16 columns, elsewhere they are widened to float32, exactly.
A bfloat16 result is summed in a float32 scratch matrix and rounded once, after bias and activation.


"""

from std.math import ceildiv
from std.sys.info import simd_width_of
from std.sys.intrinsics import masked_load

from .activation import IDENTITY, activate_rows
from .gemm import A_ROW, MC, NC, Grid, run_tile
from .gemm_kernel import KC, MR, NR
from .gemm_pack import copy_rows, copy_transposed
from .memory import Ptr, allocate, lanes_below, release
from .threads import parallel_for, worthwhile_parts

comptime F32 = DType.float32
comptime U16 = DType.uint16
"""The bits of a bfloat16."""
comptime BF16 = Ptr[DType.bfloat16]


@fieldwise_init
struct GemmBF16(ImplicitlyCopyable):
    """One product: a[m, k] b[k, n] either added to the float32 matrix c or rounded to the bfloat16 matrix y."""

    var add_to_float: Bool
    """C += A B in float32, without bias and activation; otherwise y = act(A B + bias) in bfloat16."""
    var c: Ptr[F32]
    var y: BF16
    var has_pre: Bool
    var z: BF16
    """Where to keep the rounded A B + bias."""
    var stride: Int
    """Row stride of c, or of y and z."""
    var a: BF16
    var a_row: Int
    var a_col: Int
    var b: BF16
    var b_row: Int
    var b_col: Int
    var rows: Int
    var cols: Int
    var depth: Int
    var has_bias: Bool
    var bias: BF16
    var activation: Int


# ---------------------------------------------------------------------------------------------------------------------
# Packing
# ---------------------------------------------------------------------------------------------------------------------


@always_inline
def _bits(p: BF16) -> Ptr[U16]:
    return rebind[Ptr[U16]](p.unsafe_bitcast[Scalar[U16]]())


@no_inline
def _interleave_rows(dst: Ptr[F32], width: Int, src: Ptr[U16], src_stride: Int, cols: Int, depth: Int):
    """Pair (k, j) of dst is (src[2k, j], src[2k + 1, j]); zeros from cols up to width and beyond depth."""
    comptime W = simd_width_of[F32]()
    comptime V = SIMD[U16, W]
    var out_ = rebind[Ptr[U16]](dst.unsafe_bitcast[Scalar[U16]]())
    for k in range(0, depth, 2):
        for j in range(0, width, W):
            var mask = lanes_below[U16, W](max(cols - j, 0))
            var p = src.unsafe_offset(k * src_stride + min(j, cols))
            var first = masked_load[W](p, mask, V(0))
            var second = V(0)
            if k + 1 < depth:
                second = masked_load[W](p.unsafe_offset(src_stride), mask, V(0))
            out_.unsafe_offset(k * width + 2 * j).unsafe_store(first.interleave(second))


@no_inline
def _pair_columns(dst: Ptr[F32], width: Int, src: Ptr[U16], src_stride: Int, cols: Int, depth: Int):
    """Pair (k, j) of dst is (src[j, 2k], src[j, 2k + 1]); zeros from cols up to width and beyond depth."""
    if depth % 2 == 0 and src_stride % 2 == 0:
        # Pairs lie side by side already.
        var pairs = rebind[Ptr[F32]](src.unsafe_bitcast[Scalar[F32]]())
        return copy_transposed(dst, width, pairs, src_stride // 2, cols, depth // 2)
    var out_ = rebind[Ptr[U16]](dst.unsafe_bitcast[Scalar[U16]]())
    for k in range((depth + 1) // 2 * 2):
        for j in range(width):
            var inside = j < cols and k < depth
            var v = src.unsafe_offset(j * src_stride + k).unsafe_load() if inside else Scalar[U16](0)
            out_.unsafe_offset((k // 2 * width + j) * 2 + k % 2).unsafe_store(v)


@no_inline
def _pack_b(g: GemmBF16, scratch: Ptr[F32], n: Int, cols: Int, k: Int, depth: Int):
    comptime N = NR[F32]
    for j in range(0, cols, N):
        var source = _bits(g.b.unsafe_offset(k * g.b_row + (n + j) * g.b_col))
        var panel = scratch.unsafe_offset(j * ((depth + 1) // 2))
        if g.b_col == 1:
            _interleave_rows(panel, N, source, g.b_row, min(N, cols - j), depth)
        else:
            _pair_columns(panel, N, source, g.b_col, min(N, cols - j), depth)


@no_inline
def _pack_a(g: GemmBF16, scratch: Ptr[F32], m: Int, rows: Int, k: Int, depth: Int):
    """Rows contiguous along k are copied with stride A_ROW; others become panels of MR rows."""
    var source = _bits(g.a.unsafe_offset(m * g.a_row + k * g.a_col))
    var pairs = (depth + 1) // 2
    if g.a_col == 1:
        var out_ = rebind[Ptr[U16]](scratch.unsafe_bitcast[Scalar[U16]]())
        return copy_rows(out_, 2 * A_ROW, source, g.a_row, rows, depth, 2 * pairs)
    for i in range(0, rows, MR):
        _interleave_rows(
            scratch.unsafe_offset(i * pairs), MR, source.unsafe_offset(i), g.a_col, min(MR, rows - i), depth
        )


# ---------------------------------------------------------------------------------------------------------------------
# Blocks
# ---------------------------------------------------------------------------------------------------------------------


@no_inline
def _round_rows(src: Ptr[F32], src_stride: Int, dst: BF16, dst_stride: Int, rows: Int, cols: Int):
    """The float32 matrix src rounded to bfloat16."""
    comptime W = simd_width_of[F32]()
    var whole = cols // W * W
    for i in range(rows):
        var s = src.unsafe_offset(i * src_stride)
        var d = dst.unsafe_offset(i * dst_stride)
        for j in range(0, whole, W):
            d.unsafe_offset(j).unsafe_store(s.unsafe_offset(j).unsafe_load[width=W]().cast[DType.bfloat16]())
        for j in range(whole, cols):
            d.unsafe_offset(j).unsafe_store(s.unsafe_offset(j).unsafe_load().cast[DType.bfloat16]())


@no_inline
def _finish_tile(g: GemmBF16, c: Ptr[F32], c_stride: Int, offset: Int, rows: Int, cols: Int):
    """From float32 sums to bfloat16 results, each rounded once."""
    if g.has_pre:
        _round_rows(c, c_stride, g.z.unsafe_offset(offset), g.stride, rows, cols)
    if g.activation != IDENTITY:
        activate_rows(g.activation, c, c_stride, c, c_stride, rows, cols)
    _round_rows(c, c_stride, g.y.unsafe_offset(offset), g.stride, rows, cols)


@no_inline
def _block(g: GemmBF16, m0: Int, m1: Int, n0: Int, n1: Int):
    """The part [m0, m1) x [n0, n1) of the output."""
    comptime N = NR[F32]
    var kc = min(2 * KC, (g.depth + 1) // 2 * 2)
    var nc = min(NC, ceildiv(n1 - n0, N) * N)
    var mc = min(MC, ceildiv(m1 - m0, MR) * MR)
    var b_size = kc // 2 * nc
    var a_size = mc * A_ROW
    var c_size = 0 if g.add_to_float else (m1 - m0) * nc
    var scratch = allocate[F32](b_size + a_size + nc + c_size)
    var a_scratch = scratch.unsafe_offset(b_size)
    var start = a_scratch.unsafe_offset(a_size)
    var sums = start.unsafe_offset(nc)
    for n in range(n0, n1, nc):
        var cols = min(nc, n1 - n)
        for j in range(nc):
            var v = Float32(0)
            if g.has_bias and j < cols:
                v = g.bias.unsafe_offset(n + j).unsafe_load().cast[F32]()
            start.unsafe_offset(j).unsafe_store(v)
        var k = 0
        while True:
            var depth = min(kc, g.depth - k)
            var pairs = (depth + 1) // 2
            _pack_b(g, scratch, n, cols, k, depth)
            for m in range(m0, m1, mc):
                var rows = min(mc, m1 - m)
                _pack_a(g, a_scratch, m, rows, k, depth)
                for j in range(0, cols, N):
                    for i in range(0, rows, MR):
                        var height = min(MR, rows - i)
                        var width = min(N, cols - j)
                        var by_columns = g.a_col != 1
                        var a = a_scratch.unsafe_offset(i * (pairs if by_columns else A_ROW))
                        var offset = (m + i) * g.stride + n + j
                        var c = g.c.unsafe_offset(offset)
                        var c_stride = g.stride
                        if not g.add_to_float:
                            c = sums.unsafe_offset((m - m0 + i) * nc + j)
                            c_stride = nc
                        var fresh = k == 0 and not g.add_to_float
                        run_tile[F32, True](
                            height,
                            width,
                            c,
                            c_stride,
                            start.unsafe_offset(j) if fresh else c,
                            0 if fresh else c_stride,
                            a,
                            MR if by_columns else A_ROW,
                            by_columns,
                            scratch.unsafe_offset(j * pairs),
                            N,
                            pairs,
                        )
                        if k + depth == g.depth and not g.add_to_float:
                            _finish_tile(g, c, c_stride, offset, height, width)
            k += depth
            if k >= g.depth:
                break
    release(scratch)


@no_inline
def gemm_bf16(g: GemmBF16, threads: Int = 0):
    """Run the product on `threads` threads, by default as many as pay."""
    if g.rows == 0 or g.cols == 0:
        return
    var parts = threads if threads > 0 else worthwhile_parts(2 * g.rows * g.cols * g.depth)
    var grid = Grid.divide[F32](g.rows, g.cols, parts)

    def part(i: Int) {imm}:
        var m0, m1, n0, n1 = grid.part(i)
        if m0 < m1 and n0 < n1:
            _block(g, m0, m1, n0, n1)

    parallel_for(part, parts)
