"""Matrix product on CPU: C = act(A B + bias), C = A B or C += A B, float32 and float64.

A and B are given by strides, one of which is 1, so A B, A B^T and A^T B are one code path: the difference is only how
a block is packed. Sizes are run-time values and the functions are not inlined: one instantiation per dtype serves every
layer.

Loops, from the outside: column blocks of NC, depth blocks of KC, row blocks of MC, panels of NR columns, panels of
MR rows, and the register tile over KC. A panel of B (KC x NR) stays in the first-level cache while the block of A
(MC x KC) streams from the second. A block that would be used too few times to pay for its packing is read in place.

Threads divide the output only, and every element is summed over the same blocks of k in the same order wherever it
lies, so the result does not depend on their number.
"""

from std.math import ceildiv
from std.sys import prefetch
from std.sys.info import simd_width_of
from std.sys.intrinsics import PrefetchOptions

from .activation import IDENTITY, activate_rows, activation_grad_rows
from .gemm_kernel import KC, MR, NR, edge_tile, full_tile
from .gemm_pack import copy_rows, copy_transposed
from .gemm_vector import dot_products, fill_zero, row_strips
from .memory import Ptr, allocate, release
from .threads import parallel_for, worthwhile_parts

comptime MC = 16 * MR
"""Rows of a packed block of A."""
comptime NC = 1024
"""Columns of a packed block of B."""
comptime A_ROW = KC + 16
"""Row stride of a packed block of A that is contiguous along k: not a power of two, which would crowd a few cache sets."""
comptime PACK_A_FROM = 4
"""Column panels from which packing A pays."""
comptime PACK_B_FROM = 5
"""Row panels from which packing B pays."""
comptime WRITING = 8
"""Writing an element of c costs about as much as this depth of multiply-adds."""
comptime SHALLOW = 2
"""Depth up to which a product is little more than writing c, so that c is gone through row by row."""


@fieldwise_init
struct Gemm[dtype: DType](ImplicitlyCopyable):
    """One product: c[m, n] (row stride c_stride) from a[m, k] and b[k, n], and what happens to each element of c."""

    var c: Ptr[Self.dtype]
    var c_stride: Int
    var a: Ptr[Self.dtype]
    var a_row: Int
    var a_col: Int
    var b: Ptr[Self.dtype]
    var b_row: Int
    var b_col: Int
    var rows: Int
    var cols: Int
    var depth: Int
    var accumulate: Bool
    """Add to c rather than overwrite it (without bias and activation)."""
    var has_bias: Bool
    var bias: Ptr[Self.dtype]
    """Row added to every row of c."""
    var bias_step: Int
    """From one element of the bias to the next: 1, or 0 for the same value in every column."""
    var activation: Int
    var activated: Ptr[Self.dtype]
    """Where act(c) goes, with the stride of c; may be c. With `derivative`, where act' is to be taken instead."""
    var derivative: Bool
    """Multiply c by act'(activated), the last step of a backward pass, rather than store act(c)."""


@fieldwise_init
struct Panel[dtype: DType](ImplicitlyCopyable):
    """A block of A as the register tiles will read it."""

    var start: Ptr[Self.dtype]
    var stride: Int
    var step: Int
    """From one panel of MR rows to the next."""
    var by_columns: Bool
    """The tile's rows are contiguous: (i, k) at k * stride + i; otherwise (i, k) is at i * stride + k."""


@always_inline
def run_tile[
    dtype: DType, pairs: Bool = False
](
    rows: Int,
    cols: Int,
    c: Ptr[dtype],
    c_stride: Int,
    init: Ptr[dtype],
    init_stride: Int,
    a: Ptr[dtype],
    a_stride: Int,
    by_columns: Bool,
    b: Ptr[dtype],
    b_stride: Int,
    depth: Int,
):
    """A tile of any size, from either layout of A."""
    var full = rows == MR and cols == NR[dtype]
    if by_columns:
        if full:
            full_tile[dtype, True, pairs](c, c_stride, init, init_stride, a, a_stride, b, b_stride, depth)
        else:
            edge_tile[dtype, True, pairs](rows, cols, c, c_stride, init, init_stride, a, a_stride, b, b_stride, depth)
    else:
        if full:
            full_tile[dtype, False, pairs](c, c_stride, init, init_stride, a, a_stride, b, b_stride, depth)
        else:
            edge_tile[dtype, False, pairs](rows, cols, c, c_stride, init, init_stride, a, a_stride, b, b_stride, depth)


@always_inline
def _finish[dtype: DType](g: Gemm[dtype], offset: Int, rows: Int, cols: Int):
    """The activation, or its derivative, on a part of c that is complete."""
    var c = g.c.unsafe_offset(offset)
    var other = g.activated.unsafe_offset(offset)
    if g.activation == IDENTITY:
        return
    if g.derivative:
        activation_grad_rows(g.activation, c, g.c_stride, other, g.c_stride, c, g.c_stride, rows, cols)
    else:
        activate_rows(g.activation, c, g.c_stride, other, g.c_stride, rows, cols)


@no_inline
def _pack_a[
    dtype: DType
](g: Gemm[dtype], scratch: Ptr[dtype], pack: Bool, m: Int, rows: Int, k: Int, depth: Int) -> Panel[dtype]:
    """Rows [m, m + rows) of A at depth [k, k + depth): a copy in scratch, or in place."""
    var source = g.a.unsafe_offset(m * g.a_row + k * g.a_col)
    var by_columns = g.a_col != 1
    if not pack:
        if by_columns:
            return Panel(source, g.a_col, MR, True)
        return Panel(source, g.a_row, MR * g.a_row, False)
    if not by_columns:
        copy_rows(scratch, A_ROW, source, g.a_row, rows, depth, depth)
        return Panel(scratch, A_ROW, MR * A_ROW, False)
    for i in range(0, rows, MR):
        var width = min(MR, rows - i)
        copy_rows(scratch.unsafe_offset(i * depth), MR, source.unsafe_offset(i), g.a_col, depth, width, width)
    return Panel(scratch, MR, MR * depth, True)


@no_inline
def _pack_b[dtype: DType](g: Gemm[dtype], scratch: Ptr[dtype], first: Int, n: Int, cols: Int, k: Int, depth: Int):
    """Columns [n + first, n + cols) of B at depth [k, k + depth) as panels of NR columns."""
    comptime N = NR[dtype]
    for j in range(first, cols, N):
        var source = g.b.unsafe_offset(k * g.b_row + (n + j) * g.b_col)
        var panel = scratch.unsafe_offset((j - first) * depth)
        if g.b_col == 1:
            copy_rows(panel, N, source, g.b_row, depth, min(N, cols - j), N)
        else:
            copy_transposed(panel, N, source, g.b_col, min(N, cols - j), depth)


@always_inline
def _prefetch_rows[dtype: DType](c: Ptr[dtype], stride: Int, rows: Int):
    """Ask for a tile of C that will be written next."""
    comptime options = PrefetchOptions().for_write().high_locality().to_data_cache()
    for i in range(rows):
        prefetch[options](c.unsafe_offset(i * stride))
        prefetch[options](c.unsafe_offset(i * stride + NR[dtype] - 1))


@no_inline
def _gemm_block[dtype: DType](g: Gemm[dtype], m0: Int, m1: Int, n0: Int, n1: Int):
    """The part [m0, m1) x [n0, n1) of the output."""
    comptime N = NR[dtype]
    var pack_a = n1 - n0 > (PACK_A_FROM - 1) * N
    var pack_b = g.b_col != 1 or m1 - m0 > (PACK_B_FROM - 1) * MR
    var kc = min(KC, g.depth)
    var nc = min(NC, ceildiv(n1 - n0, N) * N)
    var mc = min(MC, ceildiv(m1 - m0, MR) * MR)
    var b_size = kc * (nc if pack_b else N)
    var a_size = mc * A_ROW if pack_a else 0
    var scratch = allocate[dtype](b_size + a_size + N)
    var a_scratch = scratch.unsafe_offset(b_size)
    var zeros = a_scratch.unsafe_offset(a_size)
    zeros.unsafe_store(SIMD[dtype, N](0))
    for n in range(n0, n1, nc):
        var cols = min(nc, n1 - n)
        # The last panel is packed in any case if it is narrow: a tile reads whole vectors.
        var first_packed = 0 if pack_b else cols // N * N
        var k = 0
        while True:
            var depth = min(kc, g.depth - k)
            _pack_b(g, scratch, first_packed, n, cols, k, depth)
            for m in range(m0, m1, mc):
                var rows = min(mc, m1 - m)
                var a = _pack_a(g, a_scratch, pack_a, m, rows, k, depth)
                for j in range(0, cols, N):
                    var packed = j >= first_packed
                    var b = scratch.unsafe_offset((j - first_packed) * depth) if packed else g.b.unsafe_offset(
                        k * g.b_row + n + j
                    )
                    _run_panel(g, m, rows, n + j, min(N, cols - j), k, depth, a, b, N if packed else g.b_row, zeros)
            k += depth
            if k >= g.depth:
                break
    release(scratch)


@always_inline
def _run_panel[
    dtype: DType
](
    g: Gemm[dtype],
    m: Int,
    rows: Int,
    n: Int,
    cols: Int,
    k: Int,
    depth: Int,
    a: Panel[dtype],
    b: Ptr[dtype],
    b_stride: Int,
    zeros: Ptr[dtype],
):
    """One panel of B against all panels of a block of A."""
    var fresh = k == 0 and not g.accumulate
    for i in range(0, rows, MR):
        var height = min(MR, rows - i)
        var offset = (m + i) * g.c_stride + n
        var c = g.c.unsafe_offset(offset)
        if rows - i > MR:
            _prefetch_rows(c.unsafe_offset(MR * g.c_stride), g.c_stride, min(MR, rows - i - MR))
        var init = c
        if fresh:
            init = g.bias.unsafe_offset(n) if g.has_bias else zeros
        run_tile(
            height,
            cols,
            c,
            g.c_stride,
            init,
            0 if fresh else g.c_stride,
            a.start.unsafe_offset(i // MR * a.step),
            a.stride,
            a.by_columns,
            b,
            b_stride,
            depth,
        )
        if k + depth == g.depth:
            _finish(g, offset, height, cols)


@no_inline
def _row_part[dtype: DType](g: Gemm[dtype], n0: Int, n1: Int) -> Int:
    """The part [n0, n1) of an output of one row, by the kernels made for it; returns where they stopped."""
    var repeated = g.has_bias and g.bias_step == 0
    var dots = g.a_col == 1 and g.b_row == 1 and (g.b_col != 1 or repeated)
    if not dots and g.b_col != 1:
        return n0
    var c = g.c.unsafe_offset(n0)
    var init = c
    var step = 1
    if not g.accumulate:
        if g.has_bias:
            step = g.bias_step
            init = g.bias.unsafe_offset(n0 * step)
        else:
            fill_zero(c, n1 - n0)
    var done = n1 - n0
    if dots:
        dot_products(c, init, step, g.a, g.b.unsafe_offset(n0 * g.b_col), g.b_col, g.depth, done)
    else:
        done = row_strips(c, init, g.a, g.a_col, g.b.unsafe_offset(n0), g.b_row, g.depth, done)
    if done > 0:
        _finish(g, n0, 1, done)
    return n0 + done


@always_inline
def _row[dtype: DType](problem: Gemm[dtype], m: Int) -> Gemm[dtype]:
    """The product of one row of A."""
    var g = problem
    g.rows = 1
    g.a = g.a.unsafe_offset(m * g.a_row)
    g.c = g.c.unsafe_offset(m * g.c_stride)
    g.activated = g.activated.unsafe_offset(m * g.c_stride)
    return g


@no_inline
def _run_part[dtype: DType](g: Gemm[dtype], m0: Int, m1: Int, n0: Int, n1: Int):
    """The part [m0, m1) x [n0, n1) of the output, by the kernels that suit its shape."""
    var n = n0
    if g.rows == 1:
        n = _row_part(g, n0, n1)
    elif g.depth <= SHALLOW and g.b_col == 1:
        for m in range(m0, m1):
            n = _row_part(_row(g, m), n0, n1)
    if n < n1:
        _gemm_block(g, m0, m1, n, n1)


# ---------------------------------------------------------------------------------------------------------------------
# Threads
# ---------------------------------------------------------------------------------------------------------------------


def _part_cost[dtype: DType](rows: Int, cols: Int) -> Int:
    """A relative cost of a part: its padded area, and the packing of its share of A and B."""
    comptime W = simd_width_of[dtype]()
    return ceildiv(rows, 2) * 2 * ceildiv(cols, W) * W + 8 * (rows + cols)


@fieldwise_init
struct Grid(ImplicitlyCopyable):
    """A division of an output into parts of row_step x col_step elements."""

    var rows: Int
    var cols: Int
    var row_step: Int
    var col_step: Int
    var across: Int
    """Parts side by side."""

    @staticmethod
    def divide[dtype: DType](rows: Int, cols: Int, parts: Int) -> Grid:
        """The division into `parts` whose largest part costs least; columns are cut between register tiles."""
        comptime N = NR[dtype]
        var best = Grid(rows, cols, rows, cols, 1)
        var least = Int.MAX
        for across in range(1, parts + 1):
            if parts % across == 0:
                var row_step = ceildiv(ceildiv(rows, parts // across), 2) * 2
                var col_step = ceildiv(ceildiv(cols, N), across) * N
                var cost = _part_cost[dtype](min(rows, row_step), min(cols, col_step))
                if cost < least:
                    least = cost
                    best = Grid(rows, cols, row_step, col_step, across)
        return best

    def part(self, i: Int) -> Tuple[Int, Int, Int, Int]:
        """First and last row, first and last column of part i, which may be empty."""
        var m = min(self.rows, i // self.across * self.row_step)
        var n = min(self.cols, i % self.across * self.col_step)
        return (m, min(self.rows, m + self.row_step), n, min(self.cols, n + self.col_step))


@always_inline
def _column_as_row[dtype: DType](g: Gemm[dtype]) -> Gemm[dtype]:
    """The transposed problem of one with a single column: c^T = B^T A^T has a single row."""
    return Gemm(
        g.c,
        g.rows,
        g.b,
        g.b_col,
        g.b_row,
        g.a,
        g.a_col,
        g.a_row,
        1,
        g.rows,
        g.depth,
        g.accumulate,
        g.has_bias,
        g.bias,
        0,
        g.activation,
        g.activated,
        g.derivative,
    )


@no_inline
def gemm[dtype: DType](problem: Gemm[dtype], threads: Int = 0):
    """Run the product on `threads` threads, by default as many as pay."""
    if problem.rows == 0 or problem.cols == 0:
        return
    var g = problem
    # One value of bias for all rows cannot be read as a vector: only the dot products allow it.
    var dots = g.a_col == 1 and g.b_row == 1
    if g.cols == 1 and g.rows > 1 and g.c_stride == 1 and (dots or not g.has_bias):
        g = _column_as_row(problem)
    var parts = threads if threads > 0 else worthwhile_parts(2 * g.rows * g.cols * max(g.depth, WRITING))
    if parts == 1:
        return _run_part(g, 0, g.rows, 0, g.cols)
    var grid = Grid.divide[dtype](g.rows, g.cols, parts)

    def part(i: Int) {imm}:
        var m0, m1, n0, n1 = grid.part(i)
        if m0 < m1 and n0 < n1:
            _run_part(g, m0, m1, n0, n1)

    parallel_for(part, parts)


@no_inline
def gemm_batched[dtype: DType](first: Gemm[dtype], batch: Int, c_step: Int, a_step: Int, b_step: Int, threads: Int = 0):
    """`batch` products of one shape, each a fixed number of elements after the previous one in c (and `activated`), a
    and b; a step of 0 repeats a or b. Threads divide the batch where it is long enough, otherwise each product."""

    def run(i: Int, threads: Int) {imm}:
        var g = first
        g.c = g.c.unsafe_offset(i * c_step)
        g.activated = g.activated.unsafe_offset(i * c_step)
        g.a = g.a.unsafe_offset(i * a_step)
        g.b = g.b.unsafe_offset(i * b_step)
        gemm(g, threads)

    var work = 2 * batch * first.rows * first.cols * first.depth
    var parts = threads if threads > 0 else worthwhile_parts(work)
    if batch < 2 * parts and parts > 1:
        for i in range(batch):
            run(i, threads)
        return

    def part(p: Int) {imm}:
        for i in range(p * batch // parts, (p + 1) * batch // parts):
            run(i, 1)

    parallel_for(part, parts)
