"""Counter-based random numbers: Philox4x32-10, the same bits as `mojo_kernels/random.mojo`.

A draw is named by a key (seed, step, stream); element i is word i % 4 of block i // 4. Nothing is advanced or shared,
so the same draw can be made again anywhere: on another device, on another thread, in a recomputation.
Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import hashlib

import numpy as np

from noeira.ops import control
from noeira.ops.dispatch import Array, emit, known_size, op, size
from noeira.ops.elementwise import add, cast, cos, floor_divide, log, multiply, sqrt
from noeira.ops.pieces import split
from noeira.ops.reduce import sum_axis
from noeira.ops.rope import repeat_heads
from noeira.ops.shape import reshape
from noeira.runtime.staging import Dim, Shape, Spec

_FOLD_STREAM = 0xF01D
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85


def philox(blocks: np.ndarray, step: int, stream: int, seed: int) -> np.ndarray:
    """Words of the given blocks: uint32 [len(blocks), 4]."""
    blocks = blocks.astype(np.uint64)
    c0, c1 = blocks & _LOW, blocks >> _SHIFT
    c2 = np.full_like(c0, step & 0xFFFFFFFF)
    c3 = np.full_like(c0, stream & 0xFFFFFFFF)
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF
    for _ in range(10):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (
            (p1 >> _SHIFT) ^ c1 ^ np.uint64(k0),
            p1 & _LOW,
            (p0 >> _SHIFT) ^ c3 ^ np.uint64(k1),
            p0 & _LOW,
        )
        k0, k1 = (k0 + _W0) & 0xFFFFFFFF, (k1 + _W1) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=1).astype(np.uint32)


def bits(count: int, *, seed: int, stream: int, step: int = 0) -> np.ndarray:
    """The first `count` 32-bit words of a draw."""
    return philox(np.arange((count + 3) // 4), step, stream, seed).reshape(-1)[:count]


def stream_of(name: str) -> int:
    """A 32-bit stream number for a dotted name."""
    return int.from_bytes(hashlib.blake2s(name.encode(), digest_size=4).digest(), "little")


@op
def fold_in(key: Array, number: int) -> Array:
    """A new key for one of many draws that share `key`: its stream is hashed with `number`.

    Args:
        key: int64 [>= 3], beginning with seed, step and stream.
        number: Any 32-bit number, such as `stream_of(name)`.

    Returns:
        int64 [3].
    """
    stream = philox(np.array([number]), int(key[control.STREAM]), _FOLD_STREAM, 0)[0, 0]
    return np.array([key[control.SEED], key[control.STEP], stream], np.int64)


@fold_in.staged
def _(key: Array, number: int) -> Array:
    return emit("noeira.fold_in", [key, np.array([number], np.int64)], [Spec((3,), "int64")])[0]


# ---- words and normal numbers ----------------------------------------------------------------------------------------
#
# Philox makes one 64-bit key a draw, and the counter generator Squares (Widynski, "Squares: a fast counter-based RNG",
# 2020) makes the numbers from it: integer arithmetic that the compiler fuses.

_TWO32 = np.array([1 << 32], np.uint64)


def _squares(counters: Array, key: Array) -> Array:
    """32 random bits for each counter: the middle of squares, four rounds. Both are uint64."""
    y = multiply(counters, key)
    z = add(y, key)
    x = y
    for term in (y, z, y):
        x = add(multiply(x, x), term)
        x = add(floor_divide(x, _TWO32), multiply(x, _TWO32))  # the halves change places
    return floor_divide(add(multiply(x, x), z), _TWO32)


def _squares_key(ones_and_zeros: Array) -> Array:
    """The odd key, uint64 [1], that 64 random bits make; they are float64, and the lowest is not used."""
    powers = np.tile(2.0 ** np.arange(32), 2)
    powers[0] = 0
    halves = cast(sum_axis(reshape(multiply(ones_and_zeros, powers), (2, 32)), 1), "uint64")
    low, high = split(halves, (1, 1))
    return add(add(low, multiply(high, _TWO32)), np.array([1], np.uint64))


def _reference_key(key: Array) -> Array:
    seed, step, stream = (int(value) for value in key[:3])
    top_bits = bits(64, seed=seed, stream=stream, step=step) >> 31
    return _squares_key(top_bits.astype(np.float64))


def _staged_key(key: Array) -> Array:
    half, one = np.array([1 << 31], np.int64), np.array([1.0])
    top_bits = emit("noeira.dropout", [np.ones(64), key, half, one], [Spec((64,), "float64")])[0]
    return _squares_key(top_bits)


def _staged_counters(key: Array, shape: Shape) -> Array:
    return emit("iota", [key], [Spec((size(shape),), "uint64")])[0]


def in_memory(flat: Array, shape: Shape) -> Array:
    """The numbers behind a copy: MAX broadcasts wrongly against a range or a slice that it fuses."""
    count = size(shape)
    return reshape(repeat_heads(reshape(flat, (1, 1, 1, count)), 1), shape)


def _box_muller(counters: Array, key: Array) -> Array:
    """A normal number for each counter, from the words 2 i and 2 i + 1, in float64."""
    first = multiply(counters, np.array([2], np.uint64))
    u, v = (
        multiply(add(cast(_squares(c, key), "float64"), 0.5), 2.0**-32)
        for c in (first, add(first, np.array([1], np.uint64)))
    )
    return multiply(sqrt(multiply(log(u), -2.0)), cos(multiply(v, 2 * np.pi)))


@op
def words(key: Array, shape: Shape, repeats: int = 1) -> Array:
    """32 random bits for each element, as uint64; element i is a pure function of (key, i // repeats).

    Args:
        key: int64 [3], names the draw (`fold_in`).
        shape: Shape of the result.
        repeats: How many neighbours share a word.
    """
    counters = np.arange(known_size(shape), dtype=np.uint64) // np.uint64(repeats)
    return _squares(counters, _reference_key(key)).reshape(shape)  # type: ignore[arg-type]


@words.staged
def _(key: Array, shape: Shape, repeats: int = 1) -> Array:
    counters = floor_divide(_staged_counters(key, shape), np.array([repeats], np.uint64))
    return in_memory(_squares(counters, _staged_key(key)), shape)


@op
def normal(key: Array, shape: Shape, dtype: str = "float32") -> Array:
    """Standard normal numbers, by the Box-Muller transform in float64, rounded once.

    Element i is a pure function of (key, i): the same draw can be made again anywhere.

    Args:
        key: int64 [3], names the draw (`fold_in`).
        shape: Shape of the result.
        dtype: Its dtype.
    """
    counters = np.arange(known_size(shape), dtype=np.uint64)
    return _box_muller(counters, _reference_key(key)).reshape(shape).astype(dtype)  # type: ignore[arg-type]


@normal.staged
def _(key: Array, shape: Shape, dtype: str = "float32") -> Array:
    return in_memory(cast(_box_muller(_staged_counters(key, shape), _staged_key(key)), dtype), shape)


@op
def positions(like: Array, count: Dim, dtype: str = "int64") -> Array:
    """The numbers 0 to count - 1.

    Args:
        like: Any array; where it is staged, the result is.
        count: How many; of a staged shape it may be free.
        dtype: Dtype of the result.
    """
    return np.arange(int(count), dtype=dtype)


@positions.staged
def _(like: Array, count: Dim, dtype: str = "int64") -> Array:
    return in_memory(emit("iota", [like], [Spec((count,), dtype)])[0], (count,))


def below(random: Array, limit: Array) -> Array:
    """Turn 32 random bits into whole numbers 0 to limit - 1, by a product and no remainder: floor(w limit / 2^32).

    Args:
        random: `words`.
        limit: uint64, 1 to 2^32; broadcasts.
    """
    return floor_divide(multiply(random, limit), _TWO32)
