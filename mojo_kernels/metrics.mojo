"""What a loop records on the device: losses a step, totals over an evaluation (`noeira/ops/control.py`)."""

import extensibility
from extensibility import InputTensor
from extensibility import _MutableInputTensor as MutableInputTensor
from max.gpu.host import DeviceContext

from .memory import Ptr, at, store

comptime CURSOR = 2
comptime F64 = DType.float64


@extensibility.register("noeira.record_loss")
struct RecordLoss:
    """Row `cursor` of the record gets the batch's loss and weight; `accumulated` grows by the weight."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        record: MutableInputTensor[dtype=DType.float32, rank=2, ...],
        counters: MutableInputTensor[dtype=DType.int64, rank=1, ...],
        accumulated: MutableInputTensor[dtype=DType.float32, rank=1, ...],
        loss: InputTensor[...],
        weight: InputTensor[...],
        ctx: DeviceContext,
    ) raises:
        var cursor = Int(at(counters.unsafe_ptr(), CURSOR))
        var row = record.unsafe_ptr().unsafe_offset(cursor * record.dim_size(1))
        var w = at(weight.unsafe_ptr(), 0).cast[DType.float32]()
        store[1](row, 0, at(loss.unsafe_ptr(), 0).cast[DType.float32]())
        store[1](row, 1, w)
        store[1](accumulated.unsafe_ptr(), 0, at(accumulated.unsafe_ptr(), 0) + w)


def argmax[dtype: DType](row: Ptr[dtype], count: Int) -> Int:
    """Position of the first maximum; a NaN counts as the maximum, as in NumPy."""
    var best = 0
    for i in range(1, count):
        var v = at(row, i)
        var high = at(row, best)
        if high != high:
            return best
        if v > high or v != v:
            best = i
    return best


@extensibility.register("noeira.accumulate_totals")
struct AccumulateTotals:
    """Add up totals: weighted loss, weight, correct predictions, rows. Targets are labels [n] or rows [n, classes]."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        totals: MutableInputTensor[dtype=F64, rank=1, ...],
        logits: InputTensor[rank=2, ...],
        targets: InputTensor[...],
        loss: InputTensor[...],
        weight: InputTensor[...],
        ctx: DeviceContext,
    ) raises:
        var rows = logits.dim_size(0)
        var classes = logits.dim_size(1)
        var correct = 0
        for r in range(rows):
            var wanted: Int
            comptime if targets.rank == 1:
                wanted = Int(at(targets.unsafe_ptr(), r))
            else:
                wanted = argmax(targets.unsafe_ptr().unsafe_offset(r * classes), classes)
            if argmax(logits.unsafe_ptr().unsafe_offset(r * classes), classes) == wanted:
                correct += 1
        var t = totals.unsafe_ptr()
        var w = at(weight.unsafe_ptr(), 0).cast[F64]()
        store[1](t, 0, at(t, 0) + at(loss.unsafe_ptr(), 0).cast[F64]() * w)
        store[1](t, 1, at(t, 1) + w)
        store[1](t, 2, at(t, 2) + Float64(correct))
        store[1](t, 3, at(t, 3) + Float64(rows))
