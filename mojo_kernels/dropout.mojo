"""Inverted dropout with a mask from the counter hash: nothing is stored, the backward draws it again."""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext

from .control import SEED, STEP, STREAM
from .memory import Ptr, at, load, ptr, store
from .random import low_word, philox
from .target import cpu_only


@always_inline
def dropped[
    dtype: DType, width: Int
](x: SIMD[dtype, width], words: SIMD[DType.uint32, width], threshold: UInt64, scale: Scalar[dtype]) -> SIMD[
    dtype, width
]:
    """The kept elements times `scale`, 0 elsewhere; NaN in a dropped element does not survive."""
    return words.cast[DType.uint64]().ge(threshold).select(x * scale, SIMD[dtype, width](0))


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
        var n = 1
        comptime for d in range(y.rank):
            n *= y.dim_size(d)
        var p = ptr(x)
        var q = ptr(y)
        var seed = UInt64(at(ptr(key), SEED))
        var step = low_word(at(ptr(key), STEP))
        var stream = low_word(at(ptr(key), STREAM))
        var limit = UInt64(at(ptr(threshold), 0))
        var factor = at(ptr(scale), 0)
        for block in range((n + 3) // 4):
            var words = philox(block, step, stream, seed)
            var i = block * 4
            if i + 4 <= n:
                store[4](q, i, dropped[width=4](load[4](p, i), words, limit, factor))
            else:
                for lane in range(n - i):
                    var word = SIMD[DType.uint32, 1](words[lane])
                    store[1](q, i + lane, dropped[width=1](load[1](p, i + lane), word, limit, factor))
