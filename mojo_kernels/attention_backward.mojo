"""Attention backward: scores are computed again block by block from the saved maximum and sum of each row.

    p = exp(x - maximum) / sum      D_i = do_i . o_i      g = p (do v^T - D)
    dv += p^T do                    dk += g^T (scale q)   dq += g (scale k)

A task takes a head of keys with all its heads of queries and computes all three gradients: five products. Where there
are fewer such heads than threads, tasks of key blocks (dk, dv) and of query blocks (dq) recompute the scores each.
Either way every gradient is summed over the same blocks in ascending order, so the result does not depend on threads.
"""

from std.math import ceildiv
from std.sys.info import simd_width_of

from .attention import (
    KEYS,
    QUERIES,
    WORD_LANES,
    Attention,
    Bytes,
    Heads,
    add_scaled,
    copy_head,
    drop_row,
    exp_nonpositive,
    fill,
    hide_tail,
    mask_row,
    padded,
    scores,
    write_head,
)
from .gemm import run_tile
from .gemm_kernel import MR, NR
from .gemm_pack import copy_transposed
from .memory import Ptr, allocate, at, load, release, store
from .threads import parallel_for, worthwhile_parts


@fieldwise_init
struct AttentionGrad[dtype: DType](ImplicitlyCopyable):
    """The output's gradient, and where those of q, k and v go."""

    var out_: Heads[Self.dtype]
    var q: Heads[Self.dtype]
    var k: Heads[Self.dtype]
    var v: Heads[Self.dtype]


struct Scratch[dtype: DType](Movable):
    """What a task holds of its head: padded copies and sums, all linear in the number of tokens."""

    var memory: Ptr[Self.dtype]
    var marks: Bytes
    var words: Ptr[DType.uint32]
    var kt: Ptr[Self.dtype]
    """Transposed panels of k."""
    var vt: Ptr[Self.dtype]
    var k: Ptr[Self.dtype]
    """The scaled k; rows that are not finite are zero, as in `q` and `grad`."""
    var q: Ptr[Self.dtype]
    """The scaled q."""
    var q_all: Ptr[Self.dtype]
    """The same with every row as it is; `q` where all are finite."""
    var grad: Ptr[Self.dtype]
    var grad_all: Ptr[Self.dtype]
    var delta: Ptr[Self.dtype]
    var dq: Ptr[Self.dtype]
    var dk: Ptr[Self.dtype]
    var dv: Ptr[Self.dtype]
    var p: Ptr[Self.dtype]
    var g: Ptr[Self.dtype]
    var zeros: Ptr[Self.dtype]
    var bad_k: Bytes
    var bad_q: Bytes
    var bad_grad: Bytes
    var bad_keys: Int
    var bad_queries: Int
    var bad_grads: Int

    def __init__(out self, a: Attention[Self.dtype]):
        comptime N = NR[Self.dtype]
        var d = padded[Self.dtype](a.width)
        var dv = padded[Self.dtype](a.v_width)
        var key_rows = ceildiv(a.keys, N) * N
        var floats = key_rows * (3 * d + 2 * dv) + a.queries * (3 * d + 2 * dv + 1) + 2 * QUERIES * KEYS + 2 * N
        self.memory = allocate[Self.dtype](floats)
        self.marks = allocate[DType.uint8](a.keys + 2 * a.queries + 1)
        self.words = allocate[DType.uint32](KEYS + 4 * WORD_LANES + 64)
        self.zeros = self.memory
        self.p = self.zeros.unsafe_offset(N)
        self.g = self.p.unsafe_offset(QUERIES * KEYS)
        self.kt = self.g.unsafe_offset(QUERIES * KEYS)
        self.vt = self.kt.unsafe_offset(key_rows * d)
        self.k = self.vt.unsafe_offset(key_rows * dv)
        self.dk = self.k.unsafe_offset(key_rows * d)
        self.dv = self.dk.unsafe_offset(key_rows * d)
        self.q = self.dv.unsafe_offset(key_rows * dv)
        self.q_all = self.q
        self.dq = self.q.unsafe_offset(a.queries * 2 * d)
        self.grad = self.dq.unsafe_offset(a.queries * d)
        self.grad_all = self.grad
        self.delta = self.grad.unsafe_offset(a.queries * 2 * dv)
        self.bad_k = self.marks
        self.bad_q = self.marks.unsafe_offset(a.keys)
        self.bad_grad = self.bad_q.unsafe_offset(a.queries)
        self.bad_keys = 0
        self.bad_queries = 0
        self.bad_grads = 0
        fill(self.zeros, N, Scalar[Self.dtype](0))

    def release(self):
        """Give the memory back."""
        release(self.memory)
        release(self.marks)
        release(self.words)

    def take_keys(mut self, a: Attention[Self.dtype], b: Int, kv: Int):
        """Pack k and v of a head, and zero its gradients."""
        comptime N = NR[Self.dtype]
        var k = a.k.at(b, kv)
        var v = a.v.at(b, kv)
        for j in range(0, a.keys, N):
            var rows = min(N, a.keys - j)
            copy_transposed(
                self.kt.unsafe_offset(j * a.width), N, k.unsafe_offset(j * a.k.token), a.k.token, rows, a.width
            )
            copy_transposed(
                self.vt.unsafe_offset(j * a.v_width), N, v.unsafe_offset(j * a.v.token), a.v.token, rows, a.v_width
            )
        self.bad_keys = copy_head(self.k, k, a.k.token, a.keys, a.width, a.scale, True, self.bad_k)
        fill(self.dk, a.keys * padded[Self.dtype](a.width), Scalar[Self.dtype](0))
        fill(self.dv, a.keys * padded[Self.dtype](a.v_width), Scalar[Self.dtype](0))

    def take_queries(mut self, a: Attention[Self.dtype], grad: AttentionGrad[Self.dtype], b: Int, h: Int):
        """Pack q and do of a head, compute D, and zero dq."""
        comptime W = simd_width_of[Self.dtype]()
        var d = padded[Self.dtype](a.width)
        var dv = padded[Self.dtype](a.v_width)
        var q = a.q.at(b, h)
        var dy = grad.out_.at(b, h)
        comptime one = Scalar[Self.dtype](1)
        self.bad_queries = copy_head(self.q, q, a.q.token, a.queries, a.width, a.scale, True, self.bad_q)
        self.q_all = self.q
        if self.bad_queries > 0:
            self.q_all = self.q.unsafe_offset(a.queries * d)
            _ = copy_head(self.q_all, q, a.q.token, a.queries, a.width, a.scale, False, self.bad_q)
        self.bad_grads = copy_head(self.grad, dy, grad.out_.token, a.queries, a.v_width, one, True, self.bad_grad)
        self.grad_all = self.grad
        if self.bad_grads > 0:
            self.grad_all = self.grad.unsafe_offset(a.queries * dv)
            _ = copy_head(self.grad_all, dy, grad.out_.token, a.queries, a.v_width, one, False, self.bad_grad)
        var y = a.out_.at(b, h)
        var whole = a.v_width // W * W
        for i in range(a.queries):
            var s = y.unsafe_offset(i * a.out_.token)
            var t = self.grad_all.unsafe_offset(i * dv)
            var total = SIMD[Self.dtype, W](0)
            for c in range(0, whole, W):
                total = load[W](s, c).fma(load[W](t, c), total)
            var sum = total.reduce_add()
            for c in range(whole, a.v_width):
                sum = at(s, c).fma(at(t, c), sum)
            store[1](self.delta, i, sum)
        fill(self.dq, a.queries * d, Scalar[Self.dtype](0))


@no_inline
def _probabilities[
    dtype: DType
](
    x: Ptr[dtype],
    seen: Int,
    width: Int,
    high: Scalar[dtype],
    factor: Scalar[dtype],
    g: Ptr[dtype],
    delta: Scalar[dtype],
):
    """Scores x to p, and g = do v^T to p (g - D); both zero where masked and from `seen` up to `width`."""
    comptime W = simd_width_of[dtype]()
    comptime V = SIMD[dtype, W]
    var end = seen if not factor == 0 else 0
    hide_tail(x, end)
    for j in range(0, end, W):
        var score = load[W](x, j)
        var hidden = score.eq(V(Scalar[dtype].MIN))
        var p = hidden.select(V(0), exp_nonpositive(score - high) * factor)
        store(x, j, p)
        store(g, j, hidden.select(V(0), p * (load[W](g, j) - delta)))
    for j in range(padded[dtype](end), width, W):
        store(x, j, V(0))
        store(g, j, V(0))


@no_inline
def _probabilities_dropped[
    dtype: DType
](
    a: Attention[dtype],
    words: Ptr[DType.uint32],
    b: Int,
    h: Int,
    i: Int,
    j0: Int,
    x: Ptr[dtype],
    seen: Int,
    width: Int,
    high: Scalar[dtype],
    factor: Scalar[dtype],
    g: Ptr[dtype],
    delta: Scalar[dtype],
):
    """The same where dropout follows: g = p (dropout(do v^T) - D), and x becomes dropout(p)."""
    if seen > 0:
        var drawn = drop_row(a, words, g, g, b, h, i, j0, seen, -1)
        _probabilities(x, seen, width, high, factor, g, delta)
        _ = drop_row(a, words, x, x, b, h, i, j0, seen, drawn)
    else:
        _probabilities(x, seen, width, high, factor, g, delta)


@no_inline
def _add_transposed[
    dtype: DType
](
    a: Attention[dtype],
    total: Ptr[dtype],
    weights: Ptr[dtype],
    right: Ptr[dtype],
    width: Int,
    i0: Int,
    rows: Int,
    j0: Int,
    cols: Int,
):
    """`total[j0 + j] += sum_i weights[i, j] right[i0 + i]`, over the queries that see a register tile of keys."""
    comptime N = NR[dtype]
    for j in range(0, cols, MR):
        var height = min(MR, cols - j)
        var start = max(0, min(rows, j0 + j - (a.keys - a.queries) - i0)) if a.causal else 0
        if start == rows:
            continue
        for c in range(0, width, N):
            var t = total.unsafe_offset((j0 + j) * width + c)
            run_tile(
                height,
                min(N, width - c),
                t,
                width,
                t,
                width,
                weights.unsafe_offset(start * KEYS + j),
                KEYS,
                True,
                right.unsafe_offset((i0 + start) * width + c),
                width,
                rows - start,
            )


@no_inline
def _add_product[
    dtype: DType
](
    a: Attention[dtype],
    total: Ptr[dtype],
    weights: Ptr[dtype],
    right: Ptr[dtype],
    width: Int,
    i0: Int,
    rows: Int,
    j0: Int,
    cols: Int,
):
    """`total[i0 + i] += sum_j weights[i, j] right[j0 + j]`, over the keys that a register tile of queries sees."""
    comptime N = NR[dtype]
    for i in range(0, rows, MR):
        var height = min(MR, rows - i)
        var depth = a.seen(i0 + i + height - 1, j0, cols)
        if depth == 0:
            continue
        for c in range(0, width, N):
            var t = total.unsafe_offset((i0 + i) * width + c)
            run_tile(
                height,
                min(N, width - c),
                t,
                width,
                t,
                width,
                weights.unsafe_offset(i * KEYS),
                KEYS,
                False,
                right.unsafe_offset(j0 * width + c),
                width,
                depth,
            )


@no_inline
def _add_not_finite[
    dtype: DType
](
    a: Attention[dtype],
    grad: AttentionGrad[dtype],
    s: Scratch[dtype],
    b: Int,
    h: Int,
    kv: Int,
    i0: Int,
    rows: Int,
    j0: Int,
    cols: Int,
):
    """What the products left out: rows of k, q and do that are not finite, for the pairs that see each other."""
    var d = padded[dtype](a.width)
    var dv = padded[dtype](a.v_width)
    for i in range(i0, i0 + rows):
        var bad_q = at(s.bad_q, i) != 0
        var bad_grad = at(s.bad_grad, i) != 0
        for j in range(j0, j0 + cols):
            var bad_k = at(s.bad_k, j) != 0
            if not (bad_q or bad_grad or bad_k) or not a.attends(b, h, i, j):
                continue
            var place = (i - i0) * KEYS + j - j0
            if bad_grad:
                var dy = grad.out_.at(b, h).unsafe_offset(i * grad.out_.token)
                add_scaled(s.dv.unsafe_offset(j * dv), dy, at(s.p, place), a.v_width)
            if bad_q:
                var q = a.q.at(b, h).unsafe_offset(i * a.q.token)
                add_scaled(s.dk.unsafe_offset(j * d), q, at(s.g, place) * a.scale, a.width)
            if bad_k:
                var k = a.k.at(b, kv).unsafe_offset(j * a.k.token)
                add_scaled(s.dq.unsafe_offset(i * d), k, at(s.g, place) * a.scale, a.width)


@no_inline
def _block[
    dtype: DType
](
    a: Attention[dtype],
    grad: AttentionGrad[dtype],
    s: Scratch[dtype],
    b: Int,
    h: Int,
    kv: Int,
    i0: Int,
    j0: Int,
    want_q: Bool,
    want_kv: Bool,
):
    """One block of queries against one of keys."""
    var rows = min(QUERIES, a.queries - i0)
    var cols = a.seen(i0 + rows - 1, j0, min(KEYS, a.keys - j0))
    if cols == 0:
        return
    var d = padded[dtype](a.width)
    var dv = padded[dtype](a.v_width)
    scores(a, s.p, s.q_all.unsafe_offset(i0 * d), s.kt, s.zeros, a.width, i0, rows, j0, cols)
    scores(a, s.g, s.grad_all.unsafe_offset(i0 * dv), s.vt, s.zeros, a.v_width, i0, rows, j0, cols)
    var stats = a.stats.unsafe_offset(2 * ((b * a.heads + h) * a.queries + i0))
    for i in range(rows):
        var x = s.p.unsafe_offset(i * KEYS)
        var g = s.g.unsafe_offset(i * KEYS)
        var seen = a.seen(i0 + i, j0, cols)
        if a.masked():
            mask_row(a, x, b, h, i0 + i, j0, seen)
        var sum = at(stats, 2 * i + 1)
        var factor = Scalar[dtype](0) if sum == 0 else 1 / sum
        var high = at(stats, 2 * i)
        var delta = at(s.delta, i0 + i)
        if a.draw.active:
            _probabilities_dropped(a, s.words, b, h, i0 + i, j0, x, seen, cols, high, factor, g, delta)
        else:
            _probabilities(x, seen, cols, high, factor, g, delta)
    if want_kv:
        _add_transposed(a, s.dv, s.p, s.grad, dv, i0, rows, j0, cols)
        _add_transposed(a, s.dk, s.g, s.q, d, i0, rows, j0, cols)
    if want_q:
        _add_product(a, s.dq, s.g, s.k, d, i0, rows, j0, cols)
    if s.bad_keys + s.bad_queries + s.bad_grads > 0:
        _add_not_finite(a, grad, s, b, h, kv, i0, rows, j0, cols)


@no_inline
def _backward_part[
    dtype: DType
](
    a: Attention[dtype],
    grad: AttentionGrad[dtype],
    first: Int,
    last: Int,
    chunk: Int,
    chunks: Int,
    want_q: Bool,
    want_kv: Bool,
):
    """Heads [first, last) of batch x heads of keys; of their blocks (of keys, or of queries where only dq is wanted)
    every `chunks`-th."""
    var s = Scratch(a)
    var d = padded[dtype](a.width)
    var dv = padded[dtype](a.v_width)
    var group = a.heads // a.kv_heads
    var j_first = chunk * KEYS if want_kv else 0
    var j_step = chunks * KEYS if want_kv else KEYS
    var i_first = 0 if want_kv else chunk * QUERIES
    var i_step = QUERIES if want_kv else chunks * QUERIES
    for pair in range(first, last):
        var b = pair // a.kv_heads
        var kv = pair - b * a.kv_heads
        s.take_keys(a, b, kv)
        for h in range(kv * group, (kv + 1) * group):
            s.take_queries(a, grad, b, h)
            for j0 in range(j_first, a.keys, j_step):
                for i0 in range(i_first, a.queries, i_step):
                    _block(a, grad, s, b, h, kv, i0, j0, want_q, want_kv)
            if want_q:
                for i0 in range(i_first, a.queries, i_step):
                    var dst = grad.q.at(b, h).unsafe_offset(i0 * grad.q.token)
                    var rows = min(QUERIES, a.queries - i0)
                    write_head(dst, grad.q.token, s.dq.unsafe_offset(i0 * d), d, rows, a.width)
        if want_kv:
            for j0 in range(j_first, a.keys, j_step):
                var rows = min(KEYS, a.keys - j0)
                var dk = grad.k.at(b, kv).unsafe_offset(j0 * grad.k.token)
                write_head(dk, grad.k.token, s.dk.unsafe_offset(j0 * d), d, rows, a.width)
                var dst = grad.v.at(b, kv).unsafe_offset(j0 * grad.v.token)
                write_head(dst, grad.v.token, s.dv.unsafe_offset(j0 * dv), dv, rows, a.v_width)
    s.release()


@no_inline
def attention_backward[dtype: DType](a: Attention[dtype], grad: AttentionGrad[dtype], threads: Int = 0):
    """Fill the gradients of q, k and v."""
    var pairs = a.batch * a.kv_heads
    if pairs == 0:
        return
    var scored = a.batch * a.heads * max(a.queries, 1) * max(a.keys, 1)
    var work = scored * (3 * a.width + 2 * a.v_width) * 2 // (2 if a.causal else 1)
    var parts = threads if threads > 0 else worthwhile_parts(work)
    if parts == 1:
        return _backward_part(a, grad, 0, pairs, 0, 1, True, True)
    if pairs >= 3 * parts or pairs % parts == 0:
        var shares = pairs if pairs < 4 * parts else min(pairs, 4 * parts)

        def share(p: Int) {imm}:
            _backward_part(a, grad, p * pairs // shares, (p + 1) * pairs // shares, 0, 1, True, True)

        return parallel_for(share, shares)
    var key_chunks = max(1, min(ceildiv(a.keys, KEYS), ceildiv(2 * parts, pairs)))
    var query_chunks = max(1, min(ceildiv(a.queries, QUERIES), ceildiv(2 * parts, pairs)))
    var key_tasks = pairs * key_chunks

    def piece(p: Int) {imm}:
        if p < key_tasks:
            _backward_part(a, grad, p // key_chunks, p // key_chunks + 1, p % key_chunks, key_chunks, False, True)
        else:
            var t = p - key_tasks
            _backward_part(
                a, grad, t // query_chunks, t // query_chunks + 1, t % query_chunks, query_chunks, True, False
            )

    parallel_for(piece, key_tasks + pairs * query_chunks)
