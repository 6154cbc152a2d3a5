"""Optimizers over flat arenas: gradient norm, then one pass that clips, updates and clears.

Arenas are float32; hyper-parameters and the learning-rate table are float64. Control memory (int64 `counters`)
is laid out in `control.mojo`. Sums run over fixed chunks combined in order, so the norm does not
depend on the number of threads; the update is elementwise.
"""

import extensibility
from extensibility import InputTensor, OutputTensor
from extensibility import _MutableInputTensor as MutableInputTensor
from max.gpu.host import DeviceContext
from std.math import ceildiv, expm1, isfinite, log, sqrt
from std.sys import simd_width_of

from .control import (
    APPLIED,
    BAD_INDEX,
    BETA1,
    BETA2,
    CLEAR,
    CLIP_NORM,
    CLIP_VALUE,
    CURSOR,
    DAMPENING,
    DECOUPLED,
    EPS,
    LOG_LR,
    LOG_NORM,
    LOG_SKIPPED,
    LR_BASE,
    NESTEROV,
    SKIPPED,
    WEIGHT_DECAY,
)
from .gemm_vector import fill_zero
from .memory import Ptr, allocate, at, load, ptr, release, store
from .target import cpu_only
from .threads import parallel_for, worthwhile_parts

comptime CHUNK = 16384
comptime CHUNK_FLOPS = 32 * CHUNK
"""What a chunk's loads and stores cost, in multiply-adds."""
comptime F64 = DType.float64


def sum_of_squares[dtype: DType](g: Ptr[dtype], count: Int) -> Float64:
    """Sum g_i^2 in float64: 1e20 squared is far from overflow there."""
    comptime W = simd_width_of[F64]()
    var total = SIMD[F64, W](0)
    var i = 0
    while i + W <= count:
        var v = load[W](g, i).cast[F64]()
        total = v.fma(v, total)
        i += W
    var sum = total.reduce_add()
    while i < count:
        var v = at(g, i).cast[F64]()
        sum += v * v
        i += 1
    return sum


def chunked_sum_of_squares[dtype: DType](g: Ptr[dtype], count: Int) -> Float64:
    """Sum g_i^2 over fixed chunks, in parallel, added up in order: the same bits for any number of threads."""
    var chunks = ceildiv(count, CHUNK)
    var partial = allocate[DType.float64](max(chunks, 1))

    def chunk(i: Int) {imm}:
        var start = i * CHUNK
        store[1](partial, i, sum_of_squares(g.unsafe_offset(start), min(CHUNK, count - start)))

    in_parts(chunk, chunks)
    var total = Float64(0)
    for i in range(chunks):
        total += at(partial, i)
    release(partial)
    return total


def in_parts[Body: def(Int) -> None](body: Body, count: Int):
    """Run body(0) ... body(count - 1), each a pass over a chunk, on as many threads as pay, with neighbours together.
    """
    var parts = max(1, min(count, worthwhile_parts(count * CHUNK_FLOPS)))
    var step = ceildiv(count, parts)

    def part(p: Int) {imm}:
        for i in range(p * step, min((p + 1) * step, count)):
            body(i)

    parallel_for(part, parts)


def first_non_finite[dtype: DType](g: Ptr[dtype], count: Int) -> Int:
    """Index of the first NaN or infinity, or -1."""
    for i in range(count):
        if not isfinite(at(g, i)):
            return i
    return -1


@extensibility.register("noeira.gradient_norm")
struct GradientNorm:
    """L2 norm of the gradient arena, and the position of its first non-finite element (-1: none)."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        norm: OutputTensor[dtype=F64, rank=1, ...],
        bad: OutputTensor[dtype=DType.int64, rank=1, ...],
        grad: MutableInputTensor[rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        var n = grad.dim_size(0)
        var g = ptr(grad)
        var total = chunked_sum_of_squares(g, n)
        store[1](ptr(norm), 0, sqrt(total))
        store[1](ptr(bad), 0, Int64(-1) if isfinite(total) else Int64(first_non_finite(g, n)))


@fieldwise_init
struct Step(Copyable, Movable):
    """What one optimizer step needs beside the arenas, read once from control memory."""

    var apply: Bool
    var lr: Float64
    var scale: Float64
    var clip_value: Float64
    var clear: Bool
    var t: Int


def begin(
    counters: Ptr[DType.int64],
    hyper: Ptr[F64],
    lr_table: Ptr[F64],
    lr_count: Int,
    norm: Float64,
    bad: Int,
    accumulated: Ptr[DType.float32],
    record: Ptr[DType.float32],
    record_rows: Int,
    record_width: Int,
) -> Step:
    """Decide skip or apply, scale and lr; move the counters; write the step's row of the record."""
    var t = Int(at(counters, APPLIED))
    var weight = at(accumulated, 0).cast[F64]()
    var mean = 1 / weight if weight > 0 else Float64(0)
    var lr = at(lr_table, max(0, min(t - Int(at(counters, LR_BASE)), lr_count - 1)))
    var limit = at(hyper, CLIP_NORM)
    var scale = mean * min(Float64(1), limit / (norm * mean + 1e-6)) if limit > 0 else mean  # PyTorch's 1e-6
    var finite = bad < 0 and isfinite(norm)
    if finite:
        store[1](counters, APPLIED, Int64(t + 1))
    else:
        store[1](counters, SKIPPED, at(counters, SKIPPED) + 1)
        if at(counters, BAD_INDEX) < 0:
            store[1](counters, BAD_INDEX, Int64(bad))
    store[1](accumulated, 0, Float32(0))
    var row = record.unsafe_offset((Int(at(counters, CURSOR)) - 1) % record_rows * record_width)
    store[1](row, LOG_NORM, Float32(norm * mean))
    store[1](row, LOG_LR, Float32(lr))
    store[1](row, LOG_SKIPPED, Float32(0) if finite else Float32(1))
    return Step(finite, lr, scale, at(hyper, CLIP_VALUE), at(hyper, CLEAR) != 0, t + 1)


@always_inline
def scaled[
    dtype: DType, width: Int
](g: SIMD[dtype, width], scale: Scalar[dtype], clip: Scalar[dtype]) -> SIMD[dtype, width]:
    """The gradient the update sees: mean, norm-clipped, then value-clipped."""
    var v = g * scale
    if clip > 0:
        v = max(min(v, SIMD[dtype, width](clip)), SIMD[dtype, width](-clip))
    return v


def adam_run[
    dtype: DType
](
    p: Ptr[dtype],
    g: Ptr[dtype],
    m: Ptr[dtype],
    v: Ptr[dtype],
    first: Int,
    count: Int,
    step: Step,
    hyper: Ptr[F64],
    lr: Float64,
    decay: Float64,
):
    """Adam (Kingma and Ba 2015), AdamW (Loshchilov and Hutter 2019) on `count` neighbouring elements."""
    comptime W = simd_width_of[dtype]()
    var b1 = at(hyper, BETA1)
    var b2 = at(hyper, BETA2)
    var keep1 = Scalar[dtype](b1)
    var keep2 = Scalar[dtype](b2)
    var take1 = Scalar[dtype](1 - b1)
    var take2 = Scalar[dtype](1 - b2)
    # 1 - b^t through expm1, which keeps its accuracy where b is near 1
    var step_size = Scalar[dtype](lr / correction(b1, step.t))
    var root = Scalar[dtype](sqrt(correction(b2, step.t)))
    var eps = Scalar[dtype](at(hyper, EPS))
    var decoupled = at(hyper, DECOUPLED) != 0
    var shrink = Scalar[dtype](1 - lr * decay) if decoupled else Scalar[dtype](1)
    var coupled = Scalar[dtype](0) if decoupled else Scalar[dtype](decay)
    var scale = Scalar[dtype](step.scale)
    var clip = Scalar[dtype](step.clip_value)

    @__parameter
    @always_inline
    def update[width: Int](i: Int):
        var param = load[width](p, i)
        var grad = scaled(load[width](g, i), scale, clip) + param * coupled
        var m1 = load[width](m, i) * keep1 + grad * take1
        var v1 = load[width](v, i) * keep2 + grad * grad * take2
        store[width](m, i, m1)
        store[width](v, i, v1)
        store[width](p, i, param * shrink - step_size * m1 / (sqrt(v1) / root + eps))
        if step.clear:
            store[width](g, i, SIMD[dtype, width](0))

    var i = first
    while i + W <= first + count:
        update[W](i)
        i += W
    while i < first + count:
        update[1](i)
        i += 1


@always_inline
def correction(beta: Float64, t: Int) -> Float64:
    """Compute 1 - beta^t; 1 for beta = 0."""
    return -expm1(Float64(t) * log(beta)) if beta > 0 else Float64(1)


def sgd_run[
    dtype: DType
](
    p: Ptr[dtype],
    g: Ptr[dtype],
    m: Ptr[dtype],
    first: Int,
    count: Int,
    step: Step,
    hyper: Ptr[F64],
    lr: Float64,
    decay: Float64,
):
    """SGD with momentum (PyTorch's form: the velocity holds gradients, not steps), on `count` neighbours."""
    comptime W = simd_width_of[dtype]()
    var momentum = Scalar[dtype](at(hyper, BETA1))
    # the first velocity is the gradient itself, whatever the dampening
    var take = Scalar[dtype](1 if step.t == 1 else 1 - at(hyper, DAMPENING))
    var nesterov = at(hyper, NESTEROV) != 0
    var rate = Scalar[dtype](lr)
    var coupled = Scalar[dtype](decay)
    var scale = Scalar[dtype](step.scale)
    var clip = Scalar[dtype](step.clip_value)

    @__parameter
    @always_inline
    def update[width: Int](i: Int):
        var param = load[width](p, i)
        var grad = scaled(load[width](g, i), scale, clip) + param * coupled
        if momentum != 0:
            var m1 = load[width](m, i) * momentum + grad * take
            store[width](m, i, m1)
            grad = grad + momentum * m1 if nesterov else m1
        store[width](p, i, param - rate * grad)
        if step.clear:
            store[width](g, i, SIMD[dtype, width](0))

    var i = first
    while i + W <= first + count:
        update[W](i)
        i += W
    while i < first + count:
        update[1](i)
        i += 1


def clear_all[dtype: DType](g: Ptr[dtype], n: Int):
    """Zero the gradient arena after a skipped step: what made it non-finite must not stay."""
    fill_zero(g, n)


@extensibility.register("noeira.adam")
struct Adam:
    """One Adam or AdamW step on the segments [start, length] with their (lr, decay) multipliers."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        val: MutableInputTensor[rank=1, ...],
        grd: MutableInputTensor[dtype=val.dtype, rank=1, ...],
        m: MutableInputTensor[dtype=val.dtype, rank=1, ...],
        v: MutableInputTensor[dtype=val.dtype, rank=1, ...],
        counters: MutableInputTensor[dtype=DType.int64, rank=1, ...],
        accumulated: MutableInputTensor[dtype=DType.float32, rank=1, ...],
        record: MutableInputTensor[dtype=DType.float32, rank=2, ...],
        norm: InputTensor[dtype=F64, rank=1, ...],
        bad: InputTensor[dtype=DType.int64, rank=1, ...],
        segments: InputTensor[dtype=DType.int64, rank=2, ...],
        multipliers: InputTensor[dtype=F64, rank=2, ...],
        hyper: InputTensor[dtype=F64, rank=1, ...],
        lr_table: InputTensor[dtype=F64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        var h = ptr(hyper)
        var step = begin(
            ptr(counters),
            h,
            ptr(lr_table),
            lr_table.dim_size(0),
            at(ptr(norm), 0),
            Int(at(ptr(bad), 0)),
            ptr(accumulated),
            ptr(record),
            record.dim_size(0),
            record.dim_size(1),
        )
        if not step.apply:
            if step.clear:
                clear_all(ptr(grd), grd.dim_size(0))
            return
        for s in range(segments.dim_size(0)):
            var first = Int(at(ptr(segments), 2 * s))
            var count = Int(at(ptr(segments), 2 * s + 1))
            var lr = step.lr * at(ptr(multipliers), 2 * s)
            var decay = at(h, WEIGHT_DECAY) * at(ptr(multipliers), 2 * s + 1)
            var p = ptr(val)
            var g = ptr(grd)
            var m1 = ptr(m)
            var v1 = ptr(v)

            def chunk(i: Int) {imm}:
                adam_run(p, g, m1, v1, first + i * CHUNK, min(CHUNK, count - i * CHUNK), step, h, lr, decay)

            in_parts(chunk, ceildiv(count, CHUNK))


@extensibility.register("noeira.sgd")
struct SGD:
    """One SGD step on the segments [start, length] with their (lr, decay) multipliers; `m` is the velocity."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        val: MutableInputTensor[rank=1, ...],
        grd: MutableInputTensor[dtype=val.dtype, rank=1, ...],
        m: MutableInputTensor[dtype=val.dtype, rank=1, ...],
        counters: MutableInputTensor[dtype=DType.int64, rank=1, ...],
        accumulated: MutableInputTensor[dtype=DType.float32, rank=1, ...],
        record: MutableInputTensor[dtype=DType.float32, rank=2, ...],
        norm: InputTensor[dtype=F64, rank=1, ...],
        bad: InputTensor[dtype=DType.int64, rank=1, ...],
        segments: InputTensor[dtype=DType.int64, rank=2, ...],
        multipliers: InputTensor[dtype=F64, rank=2, ...],
        hyper: InputTensor[dtype=F64, rank=1, ...],
        lr_table: InputTensor[dtype=F64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        var h = ptr(hyper)
        var step = begin(
            ptr(counters),
            h,
            ptr(lr_table),
            lr_table.dim_size(0),
            at(ptr(norm), 0),
            Int(at(ptr(bad), 0)),
            ptr(accumulated),
            ptr(record),
            record.dim_size(0),
            record.dim_size(1),
        )
        if not step.apply:
            if step.clear:
                clear_all(ptr(grd), grd.dim_size(0))
            return
        for s in range(segments.dim_size(0)):
            var first = Int(at(ptr(segments), 2 * s))
            var count = Int(at(ptr(segments), 2 * s + 1))
            var lr = step.lr * at(ptr(multipliers), 2 * s)
            var decay = at(h, WEIGHT_DECAY) * at(ptr(multipliers), 2 * s + 1)
            var p = ptr(val)
            var g = ptr(grd)
            var m1 = ptr(m)

            def chunk(i: Int) {imm}:
                sgd_run(p, g, m1, first + i * CHUNK, min(CHUNK, count - i * CHUNK), step, h, lr, decay)

            in_parts(chunk, ceildiv(count, CHUNK))
