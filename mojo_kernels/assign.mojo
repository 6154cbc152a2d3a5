"""Reading and writing memory that outlives a step.

MAX has loads and stores of its own, but they do not compile inside a subgraph.
"""

import extensibility
from extensibility import InputTensor, OutputTensor
from extensibility import _MutableInputTensor as MutableInputTensor
from max.gpu.host import DeviceContext
from std.math import ceildiv
from std.sys.info import simd_width_of

from .memory import Ptr, at, load, ptr, store
from .target import cpu_only
from .threads import parallel_for, worthwhile_step

comptime COPY = 0
comptime ADD = 1
comptime ADD_MULTIPLE = 2
comptime BLEND = 3
comptime ELEMENT_FLOPS = 32
"""What an element's loads and stores cost, in multiply-adds."""


@always_inline
def _combine[
    dtype: DType, width: SIMDLength, //, rule: Int
](y: SIMD[dtype, width], x: SIMD[dtype, width], factor: Scalar[dtype]) -> SIMD[dtype, width]:
    comptime if rule == COPY:
        return x
    elif rule == ADD:
        return y + x
    elif rule == ADD_MULTIPLE:
        return y + x * factor
    else:
        return y + (x - y) * factor


@no_inline
def write[dtype: DType, rule: Int](y: Ptr[dtype], x: Ptr[dtype], count: Int, factor: Scalar[dtype]):
    """Combine the elements of x with those of y, in place."""
    comptime W = simd_width_of[dtype]()
    var step = worthwhile_step(count, ELEMENT_FLOPS * count, W)

    def part(p: Int) {imm}:
        var i = p * step
        var stop = min(count, i + step)
        while i + W <= stop:
            store(y, i, _combine[rule](load[W](y, i), load[W](x, i), factor))
            i += W
        while i < stop:
            store[1](y, i, _combine[rule](at(y, i), at(x, i), factor))
            i += 1

    parallel_for(part, ceildiv(count, step))


@extensibility.register("noeira.assign")
struct Assign:
    """Overwrite `memory` with `value`."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        memory: MutableInputTensor[...],
        value: InputTensor[dtype=memory.dtype, rank=memory.rank, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        write[memory.dtype, COPY](ptr(memory), rebind[Ptr[memory.dtype]](ptr(value)), memory.size(), 0)


@extensibility.register("noeira.accumulate")
struct Accumulate:
    """Add `value` to `memory`."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        memory: MutableInputTensor[...],
        value: InputTensor[dtype=memory.dtype, rank=memory.rank, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        write[memory.dtype, ADD](ptr(memory), rebind[Ptr[memory.dtype]](ptr(value)), memory.size(), 0)


@extensibility.register("noeira.axpy")
struct Axpy:
    """Add `factor` times `value` to `memory`."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        memory: MutableInputTensor[...],
        value: InputTensor[dtype=memory.dtype, rank=memory.rank, ...],
        factor: InputTensor[dtype=DType.float64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime D = memory.dtype
        write[D, ADD_MULTIPLE](ptr(memory), rebind[Ptr[D]](ptr(value)), memory.size(), at(ptr(factor), 0).cast[D]())


@extensibility.register("noeira.polyak")
struct Polyak:
    """Move `memory` the share `tau` of the way to `value`."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        memory: MutableInputTensor[...],
        value: InputTensor[dtype=memory.dtype, rank=memory.rank, ...],
        tau: InputTensor[dtype=DType.float64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        comptime D = memory.dtype
        write[D, BLEND](ptr(memory), rebind[Ptr[D]](ptr(value)), memory.size(), at(ptr(tau), 0).cast[D]())


@extensibility.register("noeira.load")
struct Load:
    """Copy of the contents of `memory`."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        value: OutputTensor[...],
        memory: MutableInputTensor[dtype=value.dtype, rank=value.rank, ...],
        ctx: DeviceContext,
    ) raises:
        cpu_only[target]()
        write[value.dtype, COPY](ptr(value), rebind[Ptr[value.dtype]](ptr(memory)), value.size(), 0)
