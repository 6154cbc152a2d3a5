"""Embedding: rows of a table picked by integer ids, and the gradient added into the rows they came from.

An id out of range gives a row of NaN and no gradient: nothing outside the table is touched. The gradient is added in
the order of the ids; threads share the columns, so the bits do not depend on how many there are.
"""

import extensibility
from extensibility import InputTensor, OutputTensor
from extensibility import _MutableInputTensor as MutableInputTensor
from max.gpu.host import DeviceContext
from std.math import ceildiv, nan
from std.sys.info import simd_width_of

from .memory import COMPUTE, Ptr, at, lanes_below, load_lanes, ptr, store_lanes
from .target import cpu_only
from .threads import parallel_for, worthwhile_parts

comptime ELEMENT_FLOPS = 6
"""What an element costs, in operations of a matrix product."""


@no_inline
def gather_embeddings[
    dtype: DType, id: DType
](y: Ptr[dtype], table: Ptr[dtype], ids: Ptr[id], count: Int, rows: Int, width: Int):
    """`y[i] = table[ids[i]]`."""
    comptime C = COMPUTE[dtype]
    comptime W = simd_width_of[C]()
    var parts = worthwhile_parts(count * width * ELEMENT_FLOPS)
    var step = ceildiv(count, parts)
    var mask = lanes_below[C, W](width % W)

    def part(p: Int) {imm}:
        for i in range(p * step, min(count, (p + 1) * step)):
            var row = Int(at(ids, i))
            var inside = row >= 0 and row < rows
            var source = table.unsafe_offset(row * width if inside else 0)
            var target = y.unsafe_offset(i * width)

            @__parameter
            @always_inline
            def element[masked: Bool](c: Int):
                var v = SIMD[C, W](nan[C]())
                if inside:
                    v = load_lanes[dtype, W, masked](source.unsafe_offset(c), mask)
                store_lanes[dtype, W, masked](v, target.unsafe_offset(c), mask)

            var c = 0
            while c + W <= width:
                element[False](c)
                c += W
            if c < width:
                element[True](c)

    parallel_for(part, parts)


@no_inline
def add_embedding_grads[
    dtype: DType, id: DType
](dtable: Ptr[COMPUTE[dtype]], ids: Ptr[id], dy: Ptr[dtype], count: Int, rows: Int, width: Int, skipped: Int):
    """`dtable[ids[i]] += dy[i]` in the order of i; `skipped` names an id without gradient."""
    comptime C = COMPUTE[dtype]
    comptime W = simd_width_of[C]()
    comptime V = SIMD[C, W]
    var strips = ceildiv(width, W)
    var parts = min(worthwhile_parts(count * width * ELEMENT_FLOPS), max(strips, 1))
    var step = ceildiv(strips, parts) * W
    var mask = lanes_below[C, W](width % W)

    def part(p: Int) {imm}:
        var first = min(width, p * step)
        var stop = min(width, first + step)
        for i in range(count):
            var row = Int(at(ids, i))
            if row < 0 or row >= rows or row == skipped:
                continue
            var source = dy.unsafe_offset(i * width)
            var target = dtable.unsafe_offset(row * width)

            @__parameter
            @always_inline
            def element[masked: Bool](c: Int):
                var g = load_lanes[dtype, W, masked](source.unsafe_offset(c), mask)
                var old = rebind[V](load_lanes[C, W, masked](target.unsafe_offset(c), mask))
                store_lanes[C, W, masked](rebind[SIMD[COMPUTE[C], W]](old + g), target.unsafe_offset(c), mask)

            var c = first
            while c + W <= stop:
                element[False](c)
                c += W
            if c < stop:
                element[True](c)

    parallel_for(part, parts)


@extensibility.register("noeira.embedding")
struct Embedding:
    """`y[..., :] = table[ids[...], :]`."""

    @staticmethod
    def execute[
        target: StaticString
    ](y: OutputTensor, table: InputTensor[dtype=y.dtype, rank=2, ...], ids: InputTensor, ctx: DeviceContext) raises:
        cpu_only[target]()
        gather_embeddings[y.dtype, ids.dtype](
            ptr(y),
            rebind[Ptr[y.dtype]](ptr(table)),
            ptr(ids),
            ids.size(),
            table.dim_size(0),
            table.dim_size(1),
        )


@extensibility.register("noeira.embedding_grad")
struct EmbeddingGrad:
    """`dtable[ids[...], :] += dy[..., :]`, in place; no output."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        dtable: MutableInputTensor[rank=2, ...],
        ids: InputTensor,
        dy: InputTensor,
        padding: InputTensor[dtype=DType.int64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        add_embedding_grads[dy.dtype, ids.dtype](
            rebind[Ptr[COMPUTE[dy.dtype]]](ptr(dtable)),
            ptr(ids),
            ptr(dy),
            ids.size(),
            dtable.dim_size(0),
            dtable.dim_size(1),
            Int(at(ptr(padding), 0)),
        )
