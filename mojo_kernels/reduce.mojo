"""Sums over rows: y[c] = sum_r x[r, c], in row order, so the result does not depend on threads."""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext
from std.math import ceildiv
from std.sys.info import simd_width_of

from .gemm_reduce import add_column_sums
from .gemm_vector import fill_zero
from .memory import Ptr
from .target import cpu_only
from .threads import parallel_for, worthwhile_step

comptime ELEMENT_FLOPS = 8
"""What adding an element costs, in multiply-adds."""


@extensibility.register("noeira.sum_rows")
struct SumRows:
    """All axes but the last are rows."""

    @staticmethod
    def execute[
        target: StaticString
    ](y: OutputTensor[rank=1, ...], x: InputTensor[dtype=y.dtype, ...], ctx: DeviceContext) raises:
        cpu_only[target]()
        comptime P = Ptr[y.dtype]
        var cols = y.dim_size(0)
        var rows = 1
        comptime for d in range(x.rank - 1):
            rows *= x.dim_size(d)
        var sums = rebind[P](y.unsafe_ptr())
        var source = rebind[P](x.unsafe_ptr())
        var step = worthwhile_step(cols, ELEMENT_FLOPS * rows * cols, 4 * simd_width_of[y.dtype]())

        def part(p: Int) {imm}:
            var first = p * step
            var count = min(step, cols - first)
            fill_zero(sums.unsafe_offset(first), count)
            add_column_sums(sums.unsafe_offset(first), source.unsafe_offset(first), cols, rows, count)

        parallel_for(part, ceildiv(cols, step))
