"""Loads and stores through raw pointers, shared by all kernels."""

comptime Ptr[dtype: DType] = Pointer[Scalar[dtype], MutAnyOrigin]


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
