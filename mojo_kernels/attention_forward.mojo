"""Attention forward: softmax by running maximum and sum over blocks of keys, one block of queries at a time."""

from std.math import ceildiv
from std.sys.info import simd_width_of

from .attention import (
    KEYS,
    QUERIES,
    WORD_LANES,
    Attention,
    Bytes,
    add_scaled,
    copy_head,
    drop_row,
    exp_nonpositive,
    fill,
    hide_tail,
    mask_row,
    padded,
    scores,
)
from .gemm import run_tile
from .gemm_kernel import MR, NR
from .gemm_pack import copy_transposed
from .memory import Ptr, allocate, at, load, release, store
from .threads import parallel_for, worthwhile_parts


@no_inline
def _nan_among[dtype: DType](x: Ptr[dtype], seen: Int, otherwise: Scalar[dtype]) -> Scalar[dtype]:
    """NaN if a score is NaN: the maximum does not tell."""
    for j in range(seen):
        if at(x, j) != at(x, j):
            return at(x, j)
    return otherwise


@no_inline
def _softmax_row[
    dtype: DType
](x: Ptr[dtype], seen: Int, width: Int, o: Ptr[dtype], o_width: Int, high: Ptr[dtype], sum: Ptr[dtype]):
    """Scores to exp(x - maximum), zero from `seen` up to `width`; on a new maximum, o and the sum so far shrink."""
    comptime W = simd_width_of[dtype]()
    comptime V = SIMD[dtype, W]
    comptime NEVER = Scalar[dtype].MIN
    var most = V(NEVER)
    hide_tail(x, seen)
    for j in range(0, seen, W):
        most = max(most, load[W](x, j))
    var old = at(high, 0)
    var new = max(old, most.reduce_max())
    if new == NEVER:
        new = _nan_among(x, seen, new)
    var done = 0
    if not new == NEVER:
        var total = V(0)
        for j in range(0, seen, W):
            var p = exp_nonpositive(load[W](x, j) - new)
            total += p
            store(x, j, p)
        done = padded[dtype](seen)
        var shrink = exp_nonpositive(old - new) if not old == new else Scalar[dtype](1)
        if not shrink == 1:
            for c in range(0, o_width, W):
                store(o, c, load[W](o, c) * shrink)
        store[1](high, 0, new)
        store[1](sum, 0, at(sum, 0).fma(shrink, total.reduce_add()))
    for j in range(done, width, W):
        store(x, j, V(0))


@no_inline
def _finish_row[dtype: DType](dst: Ptr[dtype], o: Ptr[dtype], cols: Int, sum: Scalar[dtype]):
    """`dst = o / sum`, 0 where nothing was seen."""
    comptime W = simd_width_of[dtype]()
    var whole = cols // W * W
    var factor = Scalar[dtype](0) if sum == 0 else 1 / sum
    for c in range(0, whole, W):
        store(dst, c, load[W](o, c) * factor)
    for c in range(whole, cols):
        store[1](dst, c, at(o, c) * factor)


@no_inline
def _forward_part[dtype: DType](a: Attention[dtype], first: Int, last: Int, chunk: Int, chunks: Int):
    """Heads [first, last) of batch x heads, and of their blocks of queries every `chunks`-th."""
    comptime N = NR[dtype]
    comptime P = Ptr[dtype]
    var d = a.width
    var dv = padded[dtype](a.v_width)
    var key_rows = ceildiv(a.keys, N) * N
    var group = a.heads // a.kv_heads
    var floats = key_rows * (d + dv) + QUERIES * (padded[dtype](d) + KEYS + dv + 2) + N
    var memory = allocate[dtype](floats)
    var kt = memory
    var v = kt.unsafe_offset(key_rows * d)
    var x = v.unsafe_offset(key_rows * dv)
    var o = x.unsafe_offset(QUERIES * KEYS)
    var q = o.unsafe_offset(QUERIES * dv)
    var zeros = q.unsafe_offset(QUERIES * padded[dtype](d))
    var high = zeros.unsafe_offset(N)
    var sum = high.unsafe_offset(QUERIES)
    fill(zeros, N, Scalar[dtype](0))
    var bad = allocate[DType.uint8](max(a.keys, QUERIES))
    var bad_q = allocate[DType.uint8](QUERIES)
    var words = allocate[DType.uint32](KEYS + 4 * WORD_LANES + 64)
    var packed = -1
    var bad_keys = 0
    for bh in range(first, last):
        var b = bh // a.heads
        var h = bh - b * a.heads
        var kv = b * a.kv_heads + h // group
        if kv != packed:
            packed = kv
            for j in range(0, a.keys, N):
                var source = a.k.at(b, h // group).unsafe_offset(j * a.k.token)
                copy_transposed(kt.unsafe_offset(j * d), N, source, a.k.token, min(N, a.keys - j), d)
            bad_keys = copy_head(v, a.v.at(b, h // group), a.v.token, a.keys, a.v_width, Scalar[dtype](1), True, bad)
        for i0 in range(chunk * QUERIES, a.queries, chunks * QUERIES):
            var rows = min(QUERIES, a.queries - i0)
            var keys = a.seen(i0 + rows - 1, 0, a.keys)
            _ = copy_head(q, a.q.at(b, h).unsafe_offset(i0 * a.q.token), a.q.token, rows, d, a.scale, False, bad_q)
            fill(o, rows * dv, Scalar[dtype](0))
            fill(high, rows, Scalar[dtype].MIN)
            fill(sum, rows, Scalar[dtype](0))
            for j0 in range(0, keys, KEYS):
                var cols = min(KEYS, keys - j0)
                scores(a, x, q, kt, zeros, d, i0, rows, j0, cols)
                for i in range(rows):
                    var row = x.unsafe_offset(i * KEYS)
                    var seen = a.seen(i0 + i, j0, cols)
                    if a.masked():
                        mask_row(a, row, b, h, i0 + i, j0, seen)
                    var tile_end = min(rows, i // MR * MR + MR) - 1
                    var width = a.seen(i0 + tile_end, j0, cols)
                    _softmax_row(
                        row, seen, width, o.unsafe_offset(i * dv), dv, high.unsafe_offset(i), sum.unsafe_offset(i)
                    )
                    if a.draw.active:
                        _ = drop_row(a, words, row, row, b, h, i0 + i, j0, seen, -1)
                for i in range(0, rows, MR):
                    var height = min(MR, rows - i)
                    var depth = a.seen(i0 + i + height - 1, j0, cols)
                    if depth == 0:
                        continue
                    for c in range(0, dv, N):
                        var t = o.unsafe_offset(i * dv + c)
                        run_tile(
                            height,
                            min(N, dv - c),
                            t,
                            dv,
                            t,
                            dv,
                            x.unsafe_offset(i * KEYS),
                            KEYS,
                            False,
                            v.unsafe_offset(j0 * dv + c),
                            dv,
                            depth,
                        )
                if bad_keys > 0:
                    for j in range(cols):
                        if at(bad, j0 + j) != 0:
                            var source = a.v.at(b, h // group).unsafe_offset((j0 + j) * a.v.token)
                            for i in range(rows):
                                if a.attends(b, h, i0 + i, j0 + j):
                                    add_scaled(o.unsafe_offset(i * dv), source, at(x, i * KEYS + j), a.v_width)
            var stats = a.stats.unsafe_offset(2 * (bh * a.queries + i0))
            for i in range(rows):
                var dst = a.out_.at(b, h).unsafe_offset((i0 + i) * a.out_.token)
                _finish_row(dst, o.unsafe_offset(i * dv), a.v_width, at(sum, i))
                store[1](stats, 2 * i, at(high, i))
                store[1](stats, 2 * i + 1, at(sum, i))
    release(memory)
    release(bad)
    release(bad_q)
    release(words)


@no_inline
def attention_forward[dtype: DType](a: Attention[dtype], threads: Int = 0):
    """Fill out and stats."""
    var all_heads = a.batch * a.heads
    if all_heads == 0 or a.queries == 0:
        return
    var work = all_heads * a.queries * max(a.keys, 1) * (a.width + a.v_width) * 2 // (2 if a.causal else 1)
    var parts = threads if threads > 0 else worthwhile_parts(work)
    if parts == 1:
        return _forward_part(a, 0, all_heads, 0, 1)
    if all_heads >= 2 * parts:
        var shares = min(all_heads, 4 * parts)

        def share(p: Int) {imm}:
            _forward_part(a, p * all_heads // shares, (p + 1) * all_heads // shares, 0, 1)

        return parallel_for(share, shares)
    var chunks = min(ceildiv(a.queries, QUERIES), ceildiv(4 * parts, all_heads))

    def piece(p: Int) {imm}:
        _forward_part(a, p // chunks, p // chunks + 1, p % chunks, chunks)

    parallel_for(piece, all_heads * chunks)
