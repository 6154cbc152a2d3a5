"""Attention on CPU: what forward and backward share.

    x = scale q k^T + bias, -inf where masked        p = softmax(x)        o = dropout(p) v

Nothing of size queries x keys is stored: blocks of QUERIES x KEYS scores live in a scratch that fits the first-level
cache, products run on the register tiles of the matrix product, and a row keeps its maximum and the sum of its
exponentials. Scores that no query of a register tile may see are skipped, so causal attention costs half.

A query attends the keys that `Attention` allows it: the causal rule, a boolean mask, an additive bias (blocked at
-1e30 and below). Nothing of a masked key reaches a query, not even NaN: rows of an operand that are not finite are
zeroed before a product and their share is added for the pairs that see each other. A fully masked row gives 0.
"""

from std.sys.info import simd_width_of
from std.sys.intrinsics import masked_load

from .activation import _clamp, _expm1_parts, _pow2
from .gemm import run_tile
from .gemm_kernel import MR, NR
from .memory import Ptr, at, lanes_below, load, store
from .random import philox_blocks


comptime QUERIES = 48
"""Rows of a block of scores: whole register tiles of 12 or 6."""
comptime KEYS = 96
"""Columns of a block of scores: whole register tiles of 8, 16 or 32, and of 12 or 6."""
comptime BLOCKED = -1e30
"""An additive bias at or below this forbids the pair."""

comptime NO_BIAS = 0
comptime ADD = 1
comptime THRESHOLD = 2
"""The bias is a mask of numbers: above 0.5 attends."""

comptime Bytes = Ptr[DType.uint8]
comptime WORD_LANES = 8
"""Philox blocks at a time."""


@fieldwise_init
struct Heads[dtype: DType](ImplicitlyCopyable):
    """A tensor [batch, head, token, feature] with contiguous features."""

    var start: Ptr[Self.dtype]
    var batch: Int
    var head: Int
    var token: Int

    @always_inline
    def at(self, b: Int, h: Int) -> Ptr[Self.dtype]:
        """The first token of a head."""
        return self.start.unsafe_offset(b * self.batch + h * self.head)


@fieldwise_init
struct Strides(ImplicitlyCopyable):
    """Of a mask [batch, head, query, key]; 0 where it is broadcast."""

    var batch: Int
    var head: Int
    var query: Int
    var key: Int

    @always_inline
    def row(self, b: Int, h: Int, i: Int) -> Int:
        """Offset of a query's row."""
        return b * self.batch + h * self.head + i * self.query


@fieldwise_init
struct Draw[dtype: DType](ImplicitlyCopyable):
    """Dropout on probabilities: words below the threshold drop, the others are scaled."""

    var active: Bool
    var seed: UInt64
    var step: UInt32
    var stream: UInt32
    var threshold: UInt64
    var factor: Scalar[Self.dtype]


@fieldwise_init
struct Attention[dtype: DType](ImplicitlyCopyable):
    """One attention: its operands, sizes and masks."""

    var q: Heads[Self.dtype]
    var k: Heads[Self.dtype]
    var v: Heads[Self.dtype]
    var out_: Heads[Self.dtype]
    var stats: Ptr[Self.dtype]
    """[batch, head, query, 2]: maximum of a row of x, and its sum of exp(x - maximum)."""
    var batch: Int
    var heads: Int
    var kv_heads: Int
    var queries: Int
    var keys: Int
    var width: Int
    """Features of q and k."""
    var v_width: Int
    var scale: Scalar[Self.dtype]
    var causal: Bool
    """Query i sees key j if j <= i + keys - queries."""
    var has_keep: Bool
    var keep: Bytes
    var keep_strides: Strides
    var bias_mode: Int
    var bias: Ptr[Self.dtype]
    var bias_strides: Strides
    var draw: Draw[Self.dtype]

    @always_inline
    def seen(self, i: Int, j0: Int, cols: Int) -> Int:
        """How many of the keys [j0, j0 + cols) the causal rule shows to query i."""
        if not self.causal:
            return cols
        return max(0, min(cols, i + self.keys - self.queries + 1 - j0))

    @always_inline
    def masked(self) -> Bool:
        """Whether a row needs more than the causal rule."""
        return self.has_keep or self.bias_mode != NO_BIAS

    def attends(self, b: Int, h: Int, i: Int, j: Int) -> Bool:
        """Whether query i sees key j."""
        if self.seen(i, j, 1) == 0:
            return False
        if self.has_keep and at(self.keep, self.keep_strides.row(b, h, i) + j * self.keep_strides.key) == 0:
            return False
        if self.bias_mode == NO_BIAS:
            return True
        var value = at(self.bias, self.bias_strides.row(b, h, i) + j * self.bias_strides.key)
        return value > 0.5 if self.bias_mode == THRESHOLD else not value <= Scalar[Self.dtype](BLOCKED)


@always_inline
def padded[dtype: DType](width: Int) -> Int:
    """The width rounded up to whole vectors."""
    comptime W = simd_width_of[dtype]()
    return (width + W - 1) // W * W


@always_inline
def exp_nonpositive[dtype: DType, width: SIMDLength](x: SIMD[dtype, width]) -> SIMD[dtype, width]:
    """`exp(x)` for x <= 0, 0 where the result would not be a normal number."""
    comptime lo = -708.0 if dtype == DType.float64 else -87.0
    var parts = _expm1_parts(_clamp(x, lo, 0.0))
    var scale = _pow2[dtype, width](parts[0])
    return x.lt(SIMD[dtype, width](lo)).select(SIMD[dtype, width](0), parts[1].fma(scale, scale))


# ---------------------------------------------------------------------------------------------------------------------
# Copies of heads
# ---------------------------------------------------------------------------------------------------------------------


@no_inline
def copy_head[
    dtype: DType
](
    dst: Ptr[dtype],
    src: Ptr[dtype],
    src_stride: Int,
    rows: Int,
    cols: Int,
    factor: Scalar[dtype],
    clean: Bool,
    bad: Bytes,
) -> Int:
    """`dst = factor src` with rows padded by zeros to whole vectors; returns how many rows are not finite and marks
    them in `bad`; `clean` leaves those zero."""
    comptime W = simd_width_of[dtype]()
    comptime V = SIMD[dtype, W]
    var width = padded[dtype](cols)
    var whole = cols // W * W
    var mask = lanes_below[dtype, W](cols - whole)
    var count = 0
    for i in range(rows):
        var s = src.unsafe_offset(i * src_stride)
        var d = dst.unsafe_offset(i * width)
        var check = V(0)
        for c in range(0, whole, W):
            var x = load[W](s, c) * factor
            check = x.fma(V(0), check)
            store(d, c, x)
        if whole < width:
            var x = masked_load[W](s.unsafe_offset(whole), mask, V(0)) * factor
            check = x.fma(V(0), check)
            store(d, whole, x)
        var finite = check.reduce_add() == 0
        store[1](bad, i, UInt8(0) if finite else UInt8(1))
        if not finite:
            count += 1
            if clean:
                fill(d, width, Scalar[dtype](0))
    return count


@no_inline
def fill[dtype: DType](p: Ptr[dtype], count: Int, value: Scalar[dtype]):
    """Write one value `count` times."""
    comptime W = simd_width_of[dtype]()
    var i = 0
    while i + W <= count:
        store(p, i, SIMD[dtype, W](value))
        i += W
    while i < count:
        store[1](p, i, value)
        i += 1


@no_inline
def write_head[dtype: DType](dst: Ptr[dtype], dst_stride: Int, src: Ptr[dtype], src_stride: Int, rows: Int, cols: Int):
    """Copy rows out of padded scratch."""
    comptime W = simd_width_of[dtype]()
    var whole = cols // W * W
    for i in range(rows):
        var s = src.unsafe_offset(i * src_stride)
        var d = dst.unsafe_offset(i * dst_stride)
        for c in range(0, whole, W):
            store(d, c, load[W](s, c))
        for c in range(whole, cols):
            store[1](d, c, at(s, c))


@no_inline
def add_scaled[dtype: DType](y: Ptr[dtype], x: Ptr[dtype], factor: Scalar[dtype], cols: Int):
    """`y += factor x`."""
    for c in range(cols):
        store[1](y, c, at(x, c).fma(factor, at(y, c)))


# ---------------------------------------------------------------------------------------------------------------------
# Blocks of scores
# ---------------------------------------------------------------------------------------------------------------------


@no_inline
def scores[
    dtype: DType
](
    a: Attention[dtype],
    c: Ptr[dtype],
    left: Ptr[dtype],
    panels: Ptr[dtype],
    zeros: Ptr[dtype],
    width: Int,
    i0: Int,
    rows: Int,
    j0: Int,
    cols: Int,
):
    """`c[i, j] = sum_d left[i, d] right[j, d]`, right being given as transposed panels of NR keys; tiles that the causal
    rule hides are left as they are."""
    comptime N = NR[dtype]
    var stride = padded[dtype](width)
    for j in range(0, cols, N):
        var panel = panels.unsafe_offset((j0 + j) * width)
        for i in range(0, rows, MR):
            var height = min(MR, rows - i)
            if a.seen(i0 + i + height - 1, j0 + j, 1) == 0:
                continue
            run_tile(
                height,
                N,
                c.unsafe_offset(i * KEYS + j),
                KEYS,
                zeros,
                0,
                left.unsafe_offset(i * stride),
                stride,
                False,
                panel,
                N,
                width,
            )


@no_inline
def mask_row[dtype: DType](a: Attention[dtype], x: Ptr[dtype], b: Int, h: Int, i: Int, j0: Int, cols: Int):
    """Add the bias to a row of scores, and set what is masked to -inf."""
    comptime W = simd_width_of[dtype]()
    comptime V = SIMD[dtype, W]
    comptime NEVER = Scalar[dtype].MIN
    if a.has_keep:
        var step = a.keep_strides.key
        var p = a.keep.unsafe_offset(a.keep_strides.row(b, h, i) + j0 * step)
        if step == 0:
            if at(p, 0) == 0:
                fill(x, cols, NEVER)
        else:
            var j = 0
            while j + W <= cols:
                store(x, j, load[W](p, j).eq(0).select(V(NEVER), load[W](x, j)))
                j += W
            while j < cols:
                if at(p, j) == 0:
                    store[1](x, j, NEVER)
                j += 1
    if a.bias_mode != NO_BIAS:
        var step = a.bias_strides.key
        var p = a.bias.unsafe_offset(a.bias_strides.row(b, h, i) + j0 * step)
        var j = 0
        while j < cols:
            var tail = cols - j < W
            var mask = lanes_below[dtype, W](cols - j)
            var value = V(at(p, 0))
            if step != 0:
                value = masked_load[W](p.unsafe_offset(j), mask, V(0)) if tail else load[W](p, j)
            var score = load[W](x, j)
            if a.bias_mode == ADD:
                store(x, j, value.le(V(BLOCKED)).select(V(NEVER), score + value))
            else:
                store(x, j, value.gt(V(0.5)).select(score, V(NEVER)))
            j += W


@always_inline
def hide_tail[dtype: DType](x: Ptr[dtype], seen: Int):
    """-inf in the lanes after `seen` of the vector that it ends in."""
    comptime W = simd_width_of[dtype]()
    var tail = seen % W
    if tail > 0:
        var j = seen - tail
        store(x, j, lanes_below[dtype, W](tail).select(load[W](x, j), SIMD[dtype, W](Scalar[dtype].MIN)))


# ---------------------------------------------------------------------------------------------------------------------
# Dropout
# ---------------------------------------------------------------------------------------------------------------------


@no_inline
def draw_words(dst: Ptr[DType.uint32], first: Int, count: Int, seed: UInt64, step: UInt32, stream: UInt32) -> Int:
    """Words `first` to `first + count` of a draw; the first one is written at the position that is returned, and up to
    4 WORD_LANES + 3 words more than asked for are written.
    """
    comptime L = WORD_LANES
    var block = first // 4
    var skip = first - block * 4
    for i in range(0, skip + count, 4 * L):
        dst.unsafe_offset(i).unsafe_store(philox_blocks[L](block + i // 4, step, stream, seed))
    return skip


@no_inline
def drop_row[
    dtype: DType
](
    a: Attention[dtype],
    words: Ptr[DType.uint32],
    x: Ptr[dtype],
    dst: Ptr[dtype],
    b: Int,
    h: Int,
    i: Int,
    j0: Int,
    cols: Int,
    drawn: Int,
) -> Int:
    """`dst = x` under the dropout mask, for the row of a query; draws the words unless they are `drawn` already (then
    the position this returned)."""
    comptime W = simd_width_of[dtype]()
    comptime V = SIMD[dtype, W]
    var first = ((b * a.heads + h) * a.queries + i) * a.keys + j0
    var skip = drawn if drawn >= 0 else draw_words(words, first, cols, a.draw.seed, a.draw.step, a.draw.stream)
    var w = words.unsafe_offset(skip)
    for j in range(0, cols, W):
        var kept = load[W](w, j).cast[DType.uint64]().ge(SIMD[DType.uint64, W](a.draw.threshold))
        store(dst, j, kept.select(load[W](x, j) * a.draw.factor, V(0)))
    return skip
