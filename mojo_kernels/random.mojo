"""Philox4x32-10 (Salmon et al., SC 2011): random bits as a pure function of a counter and a key.

The key is the seed (two 32-bit words); the counter is (block low, block high, step, stream), and element `i` of a
draw is word `i % 4` of block `i // 4`. So every device, thread count and recomputation draws the same bits.
"""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext
from std.math import iota

from .control import SEED, STEP, STREAM
from .memory import at, ptr, store
from .target import cpu_only

comptime SHUFFLE_STREAM = UInt32(0x5FFF1E)
comptime FOLD_STREAM = UInt32(0xF01D)
comptime WINDOW_STREAM = UInt32(0x71D0)
comptime M0 = UInt64(0xD2511F53)
comptime M1 = UInt64(0xCD9E8D57)
comptime W0 = UInt32(0x9E3779B9)
comptime W1 = UInt32(0xBB67AE85)
comptime LOW = UInt64(0xFFFFFFFF)


@always_inline
def philox_blocks[count: Int](first: Int, step: UInt32, stream: UInt32, seed: UInt64) -> SIMD[DType.uint32, 4 * count]:
    """The words of `count` blocks from `first` on, four each, in the draw named by (seed, stream, step)."""
    comptime U = SIMD[DType.uint64, count]
    comptime U32 = SIMD[DType.uint32, count]
    var number = U(UInt64(first)) + iota[DType.uint64, count]()
    var c0 = number & U(LOW)
    var c1 = number >> 32
    var c2 = U(UInt64(step))
    var c3 = U(UInt64(stream))
    var k0 = UInt32(seed & LOW)
    var k1 = UInt32(seed >> 32)
    comptime for _ in range(10):
        var p0 = U(M0) * c0
        var p1 = U(M1) * c2
        c0 = (p1 >> 32) ^ c1 ^ U(UInt64(k0))
        c2 = (p0 >> 32) ^ c3 ^ U(UInt64(k1))
        c1 = p1 & U(LOW)
        c3 = p0 & U(LOW)
        k0 += W0
        k1 += W1
    var even = c0.cast[DType.uint32]().interleave(c2.cast[DType.uint32]())
    var odd = c1.cast[DType.uint32]().interleave(c3.cast[DType.uint32]())
    return rebind[SIMD[DType.uint32, 4 * count]](even.interleave(odd))


@always_inline
def philox(block: Int, step: UInt32, stream: UInt32, seed: UInt64) -> SIMD[DType.uint32, 4]:
    """The four words of one block."""
    return rebind[SIMD[DType.uint32, 4]](philox_blocks[1](block, step, stream, seed))


@always_inline
def low_word(value: Int64) -> UInt32:
    """The low 32 bits."""
    return UInt32(UInt64(value) & LOW)


@extensibility.register("noeira.fold_in")
struct FoldIn:
    """A new key from a key [seed, step, stream] and a number: the stream is hashed with the number."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[dtype=DType.int64, rank=1, ...],
        key: InputTensor[dtype=DType.int64, rank=1, ...],
        number: InputTensor[dtype=DType.int64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        var k = ptr(key)
        var words = philox(Int(at(ptr(number), 0)), low_word(at(k, STREAM)), FOLD_STREAM, 0)
        store[1](ptr(result), SEED, at(k, SEED))
        store[1](ptr(result), STEP, at(k, STEP))
        store[1](ptr(result), STREAM, Int64(words[0]))
