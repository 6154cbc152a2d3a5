"""Loads and stores through raw pointers, shared by all kernels."""

from extensibility import ManagedTensorSlice
from std.math import iota
from std.memory import bitcast
from std.memory.alloc import unsafe_alloc
from std.sys.info import simd_width_of
from std.sys.intrinsics import masked_load, masked_store

comptime Ptr[dtype: DType] = Pointer[Scalar[dtype], MutUntrackedOrigin]
"""What kernels read and write through: memory that whoever runs the kernel keeps alive."""

comptime COMPUTE[storage: DType] = DType.float32 if storage == DType.bfloat16 else storage
"""The dtype to compute in for elements kept as `storage`."""


@always_inline
def ptr(tensor: ManagedTensorSlice) -> Ptr[tensor.dtype]:
    """The elements of a custom op's operand or result."""
    return rebind[Ptr[tensor.dtype]](tensor.unsafe_ptr())


@no_inline
def allocate[dtype: DType](count: Int) -> Ptr[dtype]:
    """Memory for `count` elements, not cleared, until `release`."""
    return rebind[Ptr[dtype]](unsafe_alloc[Scalar[dtype]](count, alignment=64))


@no_inline
def release[element: AnyType](memory: Pointer[element, MutUntrackedOrigin]):
    """Give memory from `allocate` back."""
    memory.unsafe_free()


@always_inline
def load[width: Int, dtype: DType](p: Ptr[dtype], i: Int) -> SIMD[dtype, width]:
    """`width` neighbouring elements from position `i` on."""
    return p.unsafe_offset(i).unsafe_load[width=width]()


@always_inline
def at[dtype: DType](p: Ptr[dtype], i: Int) -> Scalar[dtype]:
    """The element at position `i`."""
    return p.unsafe_offset(i).unsafe_load()


@always_inline
def store[width: Int, dtype: DType](p: Ptr[dtype], i: Int, value: SIMD[dtype, width]):
    """Write `width` neighbouring elements from position `i` on."""
    p.unsafe_offset(i).unsafe_store(value)


@always_inline
def lanes_below[dtype: DType, width: SIMDLength](n: Int) -> SIMD[DType.bool, width]:
    """The mask of the first n lanes."""
    comptime int = DType.int64 if dtype == DType.float64 else DType.int32
    return iota[int, width]().lt(SIMD[int, width](n))


@always_inline
def load_lanes[
    storage: DType, width: SIMDLength, masked: Bool
](p: Ptr[storage], mask: SIMD[DType.bool, width]) -> SIMD[COMPUTE[storage], width]:
    """Load a vector, or its masked lanes and zeros, in the dtype to compute in."""
    comptime if storage == DType.bfloat16:
        # The upper half of a float32 is the bfloat16 of the same value.
        comptime U16 = SIMD[DType.uint16, width]
        var bits = rebind[Ptr[DType.uint16]](p.unsafe_bitcast[Scalar[DType.uint16]]())
        var half: U16
        comptime if masked:
            half = masked_load[width](bits, mask, U16(0))
        else:
            half = bits.unsafe_load[width=width]()
        return bitcast[COMPUTE[storage], width](half.cast[DType.uint32]() << 16)
    elif masked:
        return rebind[SIMD[COMPUTE[storage], width]](masked_load[width](p, mask, SIMD[storage, width](0)))
    else:
        return rebind[SIMD[COMPUTE[storage], width]](p.unsafe_load[width=width]())


@always_inline
def store_lanes[
    storage: DType, width: SIMDLength, masked: Bool
](value: SIMD[COMPUTE[storage], width], p: Ptr[storage], mask: SIMD[DType.bool, width]):
    """Round a vector to `storage` and store it, or its masked lanes."""
    comptime if storage == DType.bfloat16:
        var half = bitcast[DType.uint16, width](value.cast[DType.bfloat16]())
        var bits = rebind[Ptr[DType.uint16]](p.unsafe_bitcast[Scalar[DType.uint16]]())
        comptime if masked:
            masked_store(half, bits, mask)
        else:
            bits.unsafe_store(half)
    else:
        var same = rebind[SIMD[storage, width]](value)
        comptime if masked:
            masked_store(same, p, mask)
        else:
            p.unsafe_store(same)


@no_inline
def copy_elements[dtype: DType](dst: Ptr[dtype], src: Ptr[dtype], count: Int):
    """`dst = src`."""
    comptime W = simd_width_of[dtype]()
    var whole = count // W * W
    for i in range(0, whole, W):
        store(dst, i, load[W](src, i))
    for i in range(whole, count):
        store[1](dst, i, at(src, i))


@no_inline
def add_elements[dtype: DType](dst: Ptr[dtype], src: Ptr[dtype], count: Int):
    """`dst += src`."""
    comptime W = simd_width_of[dtype]()
    var whole = count // W * W
    for i in range(0, whole, W):
        store(dst, i, load[W](dst, i) + load[W](src, i))
    for i in range(whole, count):
        store[1](dst, i, at(dst, i) + at(src, i))
