"""What one core of this machine can do at best: the float32 multiply-add rate, and the rate of copies.

    peaks MILLISECONDS BYTES...

prints the multiply-add rate in GFLOP/s, then for each size the copy rate in GB/s: bytes read plus bytes written, in a
working set (source and destination together) of that size. Each is measured for about the given time; the best
stretch counts. One process a core, started together, gives the machine's figures.
"""

from std.ffi import external_call
from std.memory.alloc import unsafe_alloc
from std.sys import argv, simd_width_of
from std.time import perf_counter_ns

comptime F = DType.float32
comptime W = simd_width_of[F]()
comptime CHAINS = 12
"""Independent chains of multiply-adds: enough to hide the latency of two units."""
comptime ROUNDS = 100_000
comptime COPIED_AT_ONCE = 64 << 20
"""Bytes between two looks at the clock, at least."""


@no_inline
def multiply_add(factor: SIMD[F, W], term: SIMD[F, W]) -> Float32:
    """Run ROUNDS multiply-adds on each chain; the sum keeps them from being optimised away."""
    var sums = Array[SIMD[F, W], CHAINS](fill=SIMD[F, W](1))
    for _ in range(ROUNDS):
        comptime for i in range(CHAINS):
            sums[i] = sums[i].fma(factor, term)
    var total = SIMD[F, W](0)
    comptime for i in range(CHAINS):
        total += sums[i]
    return total.reduce_add()


def multiply_add_rate(limit: Int) -> Float64:
    """GFLOP/s of the best stretch within `limit` nanoseconds."""
    var factor = SIMD[F, W](Float32(0.5) + Float32(len(argv())) * Float32(1e-6))
    var best = Float64(0)
    var checksum = Float32(0)
    var start = perf_counter_ns()
    while perf_counter_ns() - start < limit:
        var begin = perf_counter_ns()
        checksum += multiply_add(factor, SIMD[F, W](0.25))
        best = max(best, Float64(2 * W * CHAINS * ROUNDS) / Float64(perf_counter_ns() - begin))
    return best if checksum > 0 else Float64(0)


def copy_rate(size: Int, limit: Int) -> Float64:
    """GB/s of the best stretch within `limit` nanoseconds, through the C library's memcpy."""
    var half = size // 2
    var source = unsafe_alloc[UInt8](half, alignment=64)
    var target = unsafe_alloc[UInt8](half, alignment=64)
    for i in range(half):
        source.unsafe_offset(i).unsafe_store(UInt8(i & 255))
        target.unsafe_offset(i).unsafe_store(UInt8(0))
    var times = max(1, COPIED_AT_ONCE // size)
    var best = Float64(0)
    var start = perf_counter_ns()
    while perf_counter_ns() - start < limit:
        var begin = perf_counter_ns()
        for _ in range(times):
            _ = external_call["memcpy", Int](target, source, half)
        best = max(best, Float64(2 * half * times) / Float64(perf_counter_ns() - begin))
    source.unsafe_free()
    target.unsafe_free()
    return best


def main() raises:
    """Measure, print one number a line."""
    var limit = Int(String(argv()[1])) * 1_000_000
    print(multiply_add_rate(limit))
    for i in range(2, len(argv())):
        print(copy_rate(Int(String(argv()[i])), limit))
