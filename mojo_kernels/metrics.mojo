"""What a loop records on the device: losses a step, totals over an evaluation (`noeira/ops/control.py`)."""

import extensibility
from extensibility import InputTensor
from extensibility import _MutableInputTensor as MutableInputTensor
from max.gpu.host import DeviceContext

from .control import CURSOR, EVAL_CORRECT, EVAL_LOSS, EVAL_ROWS, EVAL_WEIGHT, LOG_LOSS, LOG_WEIGHT
from .memory import Ptr, at, ptr, store
from .target import cpu_only

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
        cpu_only[target]()
        var cursor = Int(at(ptr(counters), CURSOR))
        # a loop that runs past the record starts over instead of writing outside it
        var row = ptr(record).unsafe_offset(cursor % record.dim_size(0) * record.dim_size(1))
        var w = at(ptr(weight), 0).cast[DType.float32]()
        store[1](row, LOG_LOSS, at(ptr(loss), 0).cast[DType.float32]())
        store[1](row, LOG_WEIGHT, w)
        store[1](ptr(accumulated), 0, at(ptr(accumulated), 0) + w)


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
        cpu_only[target]()
        var rows = logits.dim_size(0)
        var classes = logits.dim_size(1)
        var correct = 0
        for r in range(rows):
            var wanted: Int
            comptime if targets.rank == 1:
                wanted = Int(at(ptr(targets), r))
            else:
                wanted = argmax(ptr(targets).unsafe_offset(r * classes), classes)
            if argmax(ptr(logits).unsafe_offset(r * classes), classes) == wanted:
                correct += 1
        var t = ptr(totals)
        var w = at(ptr(weight), 0).cast[F64]()
        store[1](t, EVAL_LOSS, at(t, EVAL_LOSS) + at(ptr(loss), 0).cast[F64]() * w)
        store[1](t, EVAL_WEIGHT, at(t, EVAL_WEIGHT) + w)
        store[1](t, EVAL_CORRECT, at(t, EVAL_CORRECT) + Float64(correct))
        store[1](t, EVAL_ROWS, at(t, EVAL_ROWS) + Float64(rows))
