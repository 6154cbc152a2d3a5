"""Inverted dropout with a mask from the counter hash: nothing is stored, the backward draws it again."""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext
from std.math import ceildiv

from .control import SEED, STEP, STREAM
from .memory import Ptr, at, load, ptr, store
from .random import low_word, philox_blocks
from .target import cpu_only
from .threads import parallel_for, worthwhile_step

comptime BLOCKS = 8
"""Blocks of four words at a time."""
comptime ELEMENT_FLOPS = 64
"""What an element costs, in multiply-adds."""


@always_inline
def dropped[
    dtype: DType, width: Int
](x: SIMD[dtype, width], words: SIMD[DType.uint32, width], threshold: UInt64, scale: Scalar[dtype]) -> SIMD[
    dtype, width
]:
    """The kept elements times `scale`, 0 elsewhere; NaN in a dropped element does not survive."""
    return words.cast[DType.uint64]().ge(threshold).select(x * scale, SIMD[dtype, width](0))


@no_inline
def dropout[
    dtype: DType
](y: Ptr[dtype], x: Ptr[dtype], count: Int, key: Ptr[DType.int64], threshold: UInt64, scale: Scalar[dtype]):
    """All elements; threads share out blocks of words."""
    comptime N = 4 * BLOCKS
    var seed = UInt64(at(key, SEED))
    var draw = low_word(at(key, STEP))
    var stream = low_word(at(key, STREAM))
    var step = worthwhile_step(count, ELEMENT_FLOPS * count, N)

    def part(p: Int) {imm}:
        var i = p * step
        var stop = min(count, i + step)
        while i < stop:
            var words = philox_blocks[BLOCKS](i // 4, draw, stream, seed)
            if i + N <= stop:
                store[N](y, i, dropped[width=N](load[N](x, i), words, threshold, scale))
            else:
                for lane in range(stop - i):
                    var word = SIMD[DType.uint32, 1](words[lane])
                    store[1](y, i + lane, dropped[width=1](load[1](x, i + lane), word, threshold, scale))
            i += N

    parallel_for(part, ceildiv(count, step))


@extensibility.register("noeira.dropout")
struct Dropout:
    """Words below `threshold` drop their element; `key` names the draw."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        y: OutputTensor[...],
        x: InputTensor[dtype=y.dtype, rank=y.rank, ...],
        key: InputTensor[dtype=DType.int64, rank=1, ...],
        threshold: InputTensor[dtype=DType.int64, rank=1, ...],
        scale: InputTensor[dtype=y.dtype, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime D = y.dtype
        var source = rebind[Ptr[D]](ptr(x))
        dropout[D](ptr(y), source, y.size(), ptr(key), UInt64(at(ptr(threshold), 0)), at(ptr(scale), 0))
