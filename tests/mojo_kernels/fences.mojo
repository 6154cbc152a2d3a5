"""Scratch memory that ends where a page begins that may not be touched: in the tests this stands for `memory.allocate`.

Before the memory, and not seen by whoever uses it, lie the address and length of the mapping. It is filled with NaN, so
that what is read before it was written shows up in the results.
"""

from std.ffi import external_call
from std.math import ceildiv
from std.sys import size_of

comptime PAGE = 4096
comptime HEADER = 64


def fenced(bytes: Int) -> Int:
    """The address of that many bytes."""
    var room = ceildiv(bytes + HEADER, PAGE) * PAGE
    var start = external_call["mmap", Int](0, room + PAGE, 3, 0x22, -1, 0)
    _ = external_call["mprotect", Int32](start + room, PAGE, 0)
    var address = start + room - bytes
    var header = _header(address)
    header.unsafe_offset(0).unsafe_store(start)
    header.unsafe_offset(1).unsafe_store(room + PAGE)
    _ = external_call["memset", Int](address, 0xFF, bytes)
    return address


def unfence(address: Int):
    """Give it back."""
    var header = _header(address)
    _ = external_call["munmap", Int32](header.unsafe_offset(0).unsafe_load(), header.unsafe_offset(1).unsafe_load())


def _header(address: Int) -> Pointer[Int, MutUntrackedOrigin]:
    return Pointer[Int, MutUntrackedOrigin](unsafe_from_address=(address - HEADER // 2) // 8 * 8)
