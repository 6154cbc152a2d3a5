"""Batches on the device: the permutation of an epoch, and the rows it selects.

Seed, epoch and cursor are read from control memory (`control.mojo`).
"""

import extensibility
from extensibility import InputTensor, OutputTensor
from extensibility import _MutableInputTensor as MutableInputTensor
from max.gpu.host import DeviceContext
from std.math import ceildiv
from std.sys import simd_width_of

from .control import CURSOR, EPOCH, SEED, STEP
from .memory import Ptr, at, load, ptr, store
from .random import SHUFFLE_STREAM, WINDOW_STREAM, low_word, philox
from .target import cpu_only
from .threads import parallel_for, worthwhile_step

comptime ELEMENT_FLOPS = 32
"""What copying an element costs, in multiply-adds."""


def shuffle(order: Ptr[DType.int32], n: Int, seed: UInt64, epoch: UInt32):
    """Fisher-Yates: `order` becomes the permutation of 0..n-1 that (seed, epoch) names."""
    for i in range(n):
        store[1](order, i, Int32(i))
    var words = SIMD[DType.uint32, 4](0)
    var held = -1
    var i = n - 1
    while i > 0:
        if i // 4 != held:
            held = i // 4
            words = philox(held, epoch, SHUFFLE_STREAM, seed)
        var j = Int((UInt64(words[i % 4]) * UInt64(i + 1)) >> 32)
        var a = at(order, i)
        store[1](order, i, at(order, j))
        store[1](order, j, a)
        i -= 1


@extensibility.register("noeira.shuffle")
struct Shuffle:
    """Fill `order` for the epoch in `counters`, and put the cursor on its first batch."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        order: MutableInputTensor[dtype=DType.int32, rank=1, ...],
        counters: MutableInputTensor[dtype=DType.int64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        var c = ptr(counters)
        shuffle(ptr(order), order.dim_size(0), UInt64(at(c, SEED)), UInt32(at(c, EPOCH)))
        store[1](c, CURSOR, Int64(0))


def gather[
    src: DType, dst: DType
](output: Ptr[dst], data: Ptr[src], rows: Ptr[DType.int32], count: Int, width: Int, scale: Scalar[dst]):
    """Gather: output[r, :] = scale * data[rows[r], :], converted to the output's type."""
    comptime W = simd_width_of[dst]()
    var step = worthwhile_step(count, ELEMENT_FLOPS * count * width, 1)

    def part(p: Int) {imm}:
        for r in range(p * step, min(count, (p + 1) * step)):
            var base = Int(at(rows, r)) * width
            var c = 0
            while c + W <= width:
                store[W](output, r * width + c, load[W](data, base + c).cast[dst]() * scale)
                c += W
            while c < width:
                store[1](output, r * width + c, at(data, base + c).cast[dst]() * scale)
                c += 1

    parallel_for(part, ceildiv(count, step))


@extensibility.register("noeira.gather_rows")
struct GatherRows:
    """The rows of `data` that batch number `cursor` of `order` [batches, batch] names."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        output: OutputTensor[...],
        data: InputTensor[...],
        order: InputTensor[dtype=DType.int32, rank=2, ...],
        counters: MutableInputTensor[dtype=DType.int64, rank=1, ...],
        scale: InputTensor[dtype=output.dtype, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        var count = order.dim_size(1)
        var width = 1
        comptime for d in range(1, data.rank):
            width *= data.dim_size(d)
        var cursor = Int(at(ptr(counters), CURSOR))
        gather[data.dtype, output.dtype](
            ptr(output),
            ptr(data),
            ptr(order).unsafe_offset(cursor % order.dim_size(0) * count),
            count,
            width,
            at(ptr(scale), 0),
        )


def windows(
    x: Ptr[DType.int32],
    y: Ptr[DType.int32],
    corpus: Ptr[DType.int32],
    tokens: Int,
    count: Int,
    length: Int,
    seed: UInt64,
    step: UInt32,
):
    """Runs of `length` tokens that begin anywhere in the corpus, and the same one token later."""
    for row in range(count):
        var words = philox(row // 4, step, WINDOW_STREAM, seed)
        var start = Int((UInt64(words[row % 4]) * UInt64(tokens - length)) >> 32)
        for i in range(length):
            store[1](x, row * length + i, at(corpus, start + i))
            store[1](y, row * length + i, at(corpus, start + i + 1))


@extensibility.register("noeira.windows")
struct Windows:
    """Windows [batch, length] of a corpus for the step in `counters`, and what follows each of their tokens."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        x: OutputTensor[dtype=DType.int32, rank=2, ...],
        y: OutputTensor[dtype=DType.int32, rank=2, ...],
        corpus: InputTensor[dtype=DType.int32, rank=1, ...],
        counters: MutableInputTensor[dtype=DType.int64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        var c = ptr(counters)
        windows(
            ptr(x),
            ptr(y),
            ptr(corpus),
            corpus.dim_size(0),
            x.dim_size(0),
            x.dim_size(1),
            UInt64(at(c, SEED)),
            low_word(at(c, STEP)),
        )


@extensibility.register("noeira.advance")
struct Advance:
    """Move on: step += 1, cursor += 1."""

    @staticmethod
    def execute[
        target: StaticString
    ](counters: MutableInputTensor[dtype=DType.int64, rank=1, ...], ctx: DeviceContext) raises:
        cpu_only[target]()
        var c = ptr(counters)
        store[1](c, STEP, at(c, STEP) + 1)
        store[1](c, CURSOR, at(c, CURSOR) + 1)
