"""Counter-based random numbers: Philox4x32-10, the same bits as `mojo_kernels/random.mojo`.

A draw is named by a key (seed, step, stream); element i is word i % 4 of block i // 4. Nothing is advanced or shared,
so the same draw can be made again anywhere: on another device, on another thread, in a recomputation.
Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import hashlib

import numpy as np

from noeira.ops import control
from noeira.ops.dispatch import Array, emit, op
from noeira.runtime.staging import Spec

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
