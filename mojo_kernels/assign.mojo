"""Reading and writing memory that outlives a step.

MAX has loads and stores of its own, but they do not compile inside a subgraph.
"""

import extensibility
from extensibility import InputTensor, OutputTensor
from extensibility import _MutableInputTensor as MutableInputTensor
from max.gpu.host import DeviceContext

from .memory import at, ptr, store
from .target import cpu_only


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
        for i in range(memory.size()):
            store[1](ptr(memory), i, at(ptr(value), i))


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
        for i in range(memory.size()):
            store[1](ptr(memory), i, at(ptr(memory), i) + at(ptr(value), i))


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
        for i in range(value.size()):
            store[1](ptr(value), i, at(ptr(memory), i))
